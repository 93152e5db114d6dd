//! How long history is kept, by queue and state, its removal day by day, and what it has to tell.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use laneway_core::{
    Actor, FailedAttempt, Keep, LaneLimit, Point, QueueName, QueueSettings, Series, State, TaskId, Totals,
    serial_queue_in_use,
};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::end::state_from_stored;
use crate::error::refused;
use crate::fold::{DAY, histogram};
use crate::queue;
use crate::row::{self, Sql};
use crate::writer::Step;

/// Rows that one round of maintenance removes.
const REMOVED_MAX: i64 = 10_000;
/// How long statistics are kept, in minutes.
const MINUTES_KEPT: i64 = 30 * 24 * 60;

const SET: &str = "
update queue
set keep_completed_days = nullif(coalesce(?2, keep_completed_days), -1),
    keep_failed_days = nullif(coalesce(?3, keep_failed_days), -1),
    keep_cancelled_days = nullif(coalesce(?4, keep_cancelled_days), -1),
    statistics = coalesce(?5, statistics),
    lane_limit = coalesce(?6, lane_limit)
where id = ?1";

const SHOWN: &str = "select keep_completed_days, keep_failed_days, keep_cancelled_days, statistics, serial, lane_limit from queue where id = ?1";

const KEEPS_NOTHING: &str = "select 1 from queue where id = ?1 and keep_completed_days = 0";

const DAYS: &str = "
select distinct
       ended_count.day,
       ended_count.queue,
       ended_count.state,
       case ended_count.state
           when 1 then keep_completed_days
           when 2 then keep_failed_days
           else keep_cancelled_days
       end
from ended_count
join queue on queue.id = ended_count.queue
where ended_count.n > 0
order by ended_count.day";

const EXPIRED: &str = "
select id
from ended
where ended_at >= ?1
  and ended_at < ?2
  and queue = ?3
  and state = ?4
limit ?5";

const FAILURES: &str = "
select attempt, ended_at, error
from ended
where id = ?1
  and state = 2
  and error is not null
union all
select attempt, at, error
from (select attempt, at, error from failure where task_id = ?1 order by attempt desc limit 20)";

const MINUTES: &str = "
select minute, enqueued, started, completed, failed, cancelled, waits, runs
from stat_minute
where minute >= ?1
  and minute < ?2
  and (?3 is null or queue = ?3)";

const TOTALS: &str = "
select queue.name, sum(enqueued), sum(started), sum(completed), sum(failed), sum(cancelled)
from stat_minute
join queue on queue.id = stat_minute.queue
where minute >= ?1
  and minute < ?2
group by queue.name
order by queue.name";

const HAS_OPEN: &str = "
select 1 from task where queue = ?1
union all
select 1 from later where queue = ?1
union all
select 1 from leased where queue = ?1
union all
select 1 from waiting where queue = ?1
limit 1";

/// Changes what `settings` names, and records it.
pub(crate) fn set_queue(
    step: &Step<'_>,
    actor: &Actor,
    name: &QueueName,
    settings: &QueueSettings,
) -> rusqlite::Result<()> {
    let before = match queue::find(step.db, name)? {
        Some(queue) => step.db.first(SHOWN, [queue], shown)?,
        None => None,
    };
    let queue = queue::find_or_make(step.db, name)?;
    let days = |keep: Option<Keep>| keep.map(Keep::stored);
    let QueueSettings { keep_completed, keep_failed, keep_cancelled, statistics, serial, lane_limit } =
        *settings;
    if let Some(serial) = serial {
        set_serial(step, name, queue, serial.stored())?;
    }
    let lane_limit = lane_limit.map(LaneLimit::stored);
    let values =
        params![queue, days(keep_completed), days(keep_failed), days(keep_cancelled), statistics, lane_limit];
    step.db.run(SET, values)?;
    let after = step.db.first(SHOWN, [queue], shown)?;
    if before == after {
        return Ok(());
    }
    let subject = format!("queue {name}");
    audit::record(step, actor, Record { action: "set_queue", subject, tasks: &[], before, after })
}

fn shown(row: &Row<'_>) -> rusqlite::Result<Value> {
    let days = |column| row.get::<_, Option<i32>>(column);
    Ok(json!({
        "keep_completed_days": days(0)?,
        "keep_failed_days": days(1)?,
        "keep_cancelled_days": days(2)?,
        "statistics": row.get::<_, bool>(3)?,
        "serial": row.get::<_, i32>(4)?,
        "lane_limit": row.get::<_, i32>(5)?,
    }))
}

/// Makes a queue serial or parallel. What is open has its lane from how the queue was.
fn set_serial(step: &Step<'_>, name: &QueueName, queue: i64, serial: i32) -> rusqlite::Result<()> {
    if queue::serial(step.db, queue)? == serial {
        return Ok(());
    }
    if step.db.any(HAS_OPEN, [queue])? {
        return Err(refused(serial_queue_in_use(name).into()));
    }
    step.db.run("update queue set serial = ?2 where id = ?1", params![queue, serial]).map(|_| ())
}

/// True when the queue writes no history of successes.
pub(crate) fn keeps_nothing(step: &Step<'_>, queue: i64) -> rusqlite::Result<bool> {
    step.db.any(KEEPS_NOTHING, [queue])
}

/// Removes history whose time is over, oldest first, and old statistics. Returns how many tasks went.
pub(crate) fn drop_history(step: &Step<'_>) -> rusqlite::Result<BTreeMap<State, u64>> {
    let today = step.now / DAY;
    let (mut left, mut removed) = (REMOVED_MAX, BTreeMap::new());
    let days = step.db.all(DAYS, [], |row| {
        let state: i64 = row.get(2)?;
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, state, row.get::<_, Option<i32>>(3)?))
    })?;
    for (day, queue, state, kept) in days {
        if day + kept_days(kept, state_from_stored(state)) < today && left > 0 {
            let gone = remove(step, day, queue, state, left)?;
            left -= gone;
            *removed.entry(state_from_stored(state)).or_default() += gone as u64;
        }
    }
    step.db.run("delete from ended_count where n = 0", [])?;
    step.db.run("delete from stat_minute where minute < ?1", [step.now / 60_000_000 - MINUTES_KEPT])?;
    Ok(removed)
}

fn kept_days(stored: Option<i32>, state: State) -> i64 {
    match Keep::from_stored(stored) {
        Keep::Days(days) => days.into(),
        Keep::Nothing => 0,
        Keep::Default => Keep::default_days(state).into(),
    }
}

fn remove(step: &Step<'_>, day: i64, queue: i64, state: i64, max: i64) -> rusqlite::Result<i64> {
    let ids: Vec<i64> =
        step.db.all(EXPIRED, [day * DAY, (day + 1) * DAY, queue, state, max], |row| row.get(0))?;
    for id in &ids {
        step.db.run("delete from failure where task_id = ?1", [id])?;
        step.db.run("delete from ended where id = ?1", [id])?;
    }
    Ok(ids.len() as i64)
}

/// The failed attempts of a task, newest first.
pub(crate) fn failures(db: &Connection, task: TaskId) -> rusqlite::Result<Vec<FailedAttempt>> {
    db.all(FAILURES, [task.0], |row| {
        Ok(FailedAttempt { attempt: row.get(0)?, at: row::timestamp(row.get(1)?)?, error: row.get(2)? })
    })
}

/// The first minute that begins at this time or later: a minute belongs to the step in which it begins.
fn minute(micros: i64) -> i64 {
    micros.div_euclid(60_000_000) + i64::from(micros.rem_euclid(60_000_000) > 0)
}

/// What happened in each queue between two times.
pub(crate) fn totals(db: &Connection, from: Timestamp, to: Timestamp) -> rusqlite::Result<Vec<Totals>> {
    db.all(TOTALS, [minute(from.as_microsecond()), minute(to.as_microsecond())], |row| {
        Ok(Totals {
            queue: row::queue_name(row.get(0)?)?,
            enqueued: row::count(row, 1)?,
            started: row::count(row, 2)?,
            completed: row::count(row, 3)?,
            failed: row::count(row, 4)?,
            cancelled: row::count(row, 5)?,
        })
    })
}

/// The points of a series.
pub(crate) fn series(db: &Connection, series: &Series) -> rusqlite::Result<Vec<Point>> {
    let mut points = series.empty();
    let queue = match &series.queue {
        None => None,
        Some(name) => match queue::find(db, name)? {
            None => return Ok(points),
            found => found,
        },
    };
    let (from, to) = (series.from.as_microsecond(), series.to.as_microsecond());
    let mut statement = db.prepare_cached(MINUTES)?;
    let mut rows = statement.query(params![minute(from), minute(to), queue])?;
    while let Some(row) = rows.next()? {
        let at = row.get::<_, i64>(0)? * 60_000_000;
        let step = (at - from) / micros(series.step);
        if let Some(point) = points.get_mut(step as usize) {
            add(point, row)?;
        }
    }
    Ok(points)
}

fn add(point: &mut Point, row: &rusqlite::Row<'_>) -> rusqlite::Result<()> {
    point.enqueued += row::count(row, 1)?;
    point.started += row::count(row, 2)?;
    point.completed += row::count(row, 3)?;
    point.failed += row::count(row, 4)?;
    point.cancelled += row::count(row, 5)?;
    point.waits.merge(&histogram(row.get_ref(6)?.as_str()?)?);
    point.runs.merge(&histogram(row.get_ref(7)?.as_str()?)?);
    Ok(())
}
