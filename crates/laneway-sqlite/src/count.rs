//! Counts that stay cheap with millions of tasks: what has ended was added up when it ended (`fold.rs`), what is open is
//! counted up to a bound.

use rusqlite::{Connection, Row};

use laneway_core::{Counts, Keep, KindCounts, LaneLimit, QueueName, QueueView, Serial, State};

use crate::end::state_from_stored;
use crate::queue;
use crate::row::{self, Sql};

/// Tasks that are counted one by one.
const COUNT_MAX: u64 = 10_000;
const LATER_MAX: u64 = 50_000;

const QUEUES: &str = "select id, name from queue order by name";
const PENDING: &str = "select count(*) from (select 1 from task where queue = ?1 limit ?2)";
const LEASED: &str = "select count(*) from leased where queue = ?1";
const WAITING: &str = "select count(*) from waiting where queue = ?1";
const LATER_ALL: &str = "select queue, count(*) from (select queue from later limit ?1) group by queue";
const ENDED: &str = "select state, sum(n) from ended_count where queue = ?1 group by state";

const PENDING_KINDS: &str =
    "select kind, count(*) from (select kind from task where queue = ?1 limit ?2) group by kind";
const LATER_KINDS: &str = "
select kind, count(*)
from (select kind, queue from later limit ?2)
where queue = ?1
group by kind";
const LEASED_KINDS: &str = "select kind, count(*) from leased where queue = ?1 group by kind";
const WAITING_KINDS: &str = "select kind, count(*) from waiting where queue = ?1 group by kind";
const ENDED_KINDS: &str = "select kind, state, sum(n) from ended_count where queue = ?1 group by kind, state";

const QUEUE_VIEWS: &str = "
select name,
       (select paused_at from pause where pause.what = 'queue' and pause.queue = queue.name and pause.name = ''),
       (
           select min(coalesce(ready_at, enqueued_at))
           from (select ready_at, enqueued_at from task where task.queue = queue.id limit 10000)
       ),
       (select min(started_at) from waiting where waiting.queue = queue.id),
       keep_completed_days,
       keep_failed_days,
       keep_cancelled_days,
       statistics,
       serial,
       lane_limit
from queue
order by name";

/// Tasks by queue and state, sorted.
pub(crate) fn counts(db: &Connection) -> rusqlite::Result<Vec<Counts>> {
    let later =
        db.all(LATER_ALL, [LATER_MAX as i64], |row| Ok((row.get::<_, i64>(0)?, row::count(row, 1)?)))?;
    let later_more = later.iter().map(|(_, n)| n).sum::<u64>() >= LATER_MAX;
    let mut counts = Vec::new();
    for (id, name) in db.all(QUEUES, [], |row| Ok((row.get::<_, i64>(0)?, row::queue_name(row.get(1)?)?)))? {
        let mut add = |state, tasks: u64, more| {
            if tasks > 0 {
                counts.push(Counts { queue: name.clone(), state, tasks, more });
            }
        };
        let pending = count(db, PENDING, (id, COUNT_MAX as i64 + 1))?;
        add(State::Pending, pending.min(COUNT_MAX), pending > COUNT_MAX);
        let later = later.iter().find(|(queue, _)| *queue == id).map_or(0, |(_, n)| *n);
        add(State::Later, later, later_more);
        add(State::Leased, count(db, LEASED, [id])?, false);
        add(State::Waiting, count(db, WAITING, [id])?, false);
        for (state, n) in db.all(ENDED, [id], |row| Ok((row.get(0)?, row::count(row, 1)?)))? {
            add(state_from_stored(state), n, false);
        }
    }
    counts.sort();
    Ok(counts)
}

fn count(db: &Connection, sql: &'static str, params: impl rusqlite::Params) -> rusqlite::Result<u64> {
    Ok(db.first(sql, params, |row| row::count(row, 0))?.unwrap_or(0))
}

/// The tasks of one queue by kind and state, sorted.
pub(crate) fn by_kind(db: &Connection, name: &QueueName) -> rusqlite::Result<Vec<KindCounts>> {
    let Some(queue) = queue::find(db, name)? else { return Ok(vec![]) };
    let mut counts = Vec::new();
    let pending = db.all(PENDING_KINDS, [queue, COUNT_MAX as i64], |row| of_kind(row, State::Pending))?;
    let later = db.all(LATER_KINDS, [queue, LATER_MAX as i64], |row| of_kind(row, State::Later))?;
    for (some, max) in [(pending, COUNT_MAX), (later, LATER_MAX)] {
        let more = some.iter().map(|count| count.tasks).sum::<u64>() >= max;
        counts.extend(some.into_iter().map(|count| KindCounts { more, ..count }));
    }
    counts.extend(db.all(LEASED_KINDS, [queue], |row| of_kind(row, State::Leased))?);
    counts.extend(db.all(WAITING_KINDS, [queue], |row| of_kind(row, State::Waiting))?);
    counts.extend(db.all(ENDED_KINDS, [queue], |row| {
        let (kind, state) = (row::kind(row.get(0)?)?, state_from_stored(row.get(1)?));
        Ok(KindCounts { kind, state, tasks: row::count(row, 2)?, more: false })
    })?);
    counts.retain(|count| count.tasks > 0);
    counts.sort();
    Ok(counts)
}

fn of_kind(row: &Row<'_>, state: State) -> rusqlite::Result<KindCounts> {
    Ok(KindCounts { kind: row::kind(row.get(0)?)?, state, tasks: row::count(row, 1)?, more: false })
}

/// The queues that are known.
pub(crate) fn queues(db: &Connection) -> rusqlite::Result<Vec<QueueView>> {
    db.all(QUEUE_VIEWS, [], |row| {
        let time = |at| row.get::<_, Option<i64>>(at)?.map(row::timestamp).transpose();
        let keep = |at| row.get(at).map(Keep::from_stored);
        Ok(QueueView {
            queue: row::queue_name(row.get(0)?)?,
            paused_at: time(1)?,
            oldest_ready_at: time(2)?,
            oldest_waiting_at: time(3)?,
            keep_completed: keep(4)?,
            keep_failed: keep(5)?,
            keep_cancelled: keep(6)?,
            statistics: row.get(7)?,
            serial: Serial::from_stored(row.get(8)?),
            lane_limit: LaneLimit::from_stored(row.get(9)?),
        })
    })
}
