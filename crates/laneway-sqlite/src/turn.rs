//! The line of turns: which lane may start its next task.
//!
//! A lane of limit *n* owns up to *n* turns, and `lane.issued` counts those that exist. A turn is with a task
//! (leased, or in `later` when it came out of an ordered lane) or in the table `turn`. There it has a priority
//! when it may be taken: that of the task it would take. Of the free turns of a lane only the first is in the
//! line; the others stand behind it without a priority and move up when it is taken. So the line is
//! always exact: whatever has a priority can start, in the order (priority, seq).
//!
//! Always true after a command:
//! - `issued` = rows in `turn` + turns that are with tasks.
//! - Turns are in the table only while `issued <= lim`; a turn that comes back above the limit is burnt.
//! - A lane below its limit has a free turn for every task that could take one.
//! - A lane that is halted or rests (interval) has no turn in the line; one that rests is in `parked`.
//!
//! [`refresh`] makes the line follow whatever was changed about a lane. Callers change first and refresh after.

use rusqlite::params;

use crate::row::Sql;
use crate::writer::Step;

/// What decides about a lane's turns.
pub(crate) struct LaneRow {
    pub(crate) id: i64,
    pub(crate) queue: i64,
    pub(crate) key: String,
    pub(crate) lim: i64,
    pub(crate) own: bool,
    pub(crate) issued: i64,
    pub(crate) interval_us: i64,
    pub(crate) next_start: Option<i64>,
    pub(crate) halted: bool,
}

impl LaneRow {
    /// When it may start its next task, if not now.
    fn rests_until(&self, now: i64) -> Option<i64> {
        self.next_start.filter(|next_start| *next_start > now)
    }
}

/// The end of the line that a turn is put to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

const LANE: &str = "
select id,
       queue,
       key,
       lim,
       own,
       issued,
       interval_us,
       next_start,
       halted
from lane
where id = ?1";

const ADD_ISSUED: &str = "update lane set issued = issued + ?2 where id = ?1";

const INSERT_FREE: &str = "insert into turn (queue, lane) values (?1, ?2)";

const INSERT_BOUND: &str = "insert into turn (queue, lane, task_id) values (?1, ?2, ?3)";

const INSERT_BOUND_IN_FRONT: &str = "
insert into turn (seq, queue, lane, task_id)
values ((select coalesce(min(seq), 1) - 1 from turn), ?1, ?2, ?3)";

// Free turns go first, since a bound one keeps its task's place; of the same sort the last in line goes first.
const DELETE_SPARE: &str = "
delete from turn
where seq in (
    select seq
    from turn
    where lane = ?1
    order by task_id is not null, seq desc
    limit ?2
)";

const DELETE_FREE: &str = "delete from turn where lane = ?1 and task_id is null";

const UNBIND: &str = "update turn set task_id = null, priority = null where lane = ?1 and task_id = ?2";

const STEP_BACK: &str = "
update turn
set priority = null
where lane = ?1
  and task_id is null
  and priority is not null";

const HAS_HEAD: &str = "
select 1
from task
where queue = ?1
  and lane = ?2
  and id not in (select task_id from turn where lane = ?2 and task_id is not null)
limit 1";

const HEAD_PRIORITY: &str = "
select priority
from task
where queue = ?1
  and lane = ?2
  and id not in (select task_id from turn where lane = ?2 and task_id is not null)
order by priority, id
limit 1";

const COUNT_WAITING: &str =
    "select count(*) from (select 1 from task where queue = ?1 and lane = ?2 limit ?3)";

const FIRST_FREE: &str = "
select seq,
       priority
from turn
where lane = ?1
  and task_id is null
order by seq
limit 1";

const BOUND: &str = "
select seq,
       priority,
       (select task.priority from task where task.id = turn.task_id)
from turn
where lane = ?1
  and task_id is not null";

const SET_PRIORITY: &str = "update turn set priority = ?2 where seq = ?1";

const PARK: &str = "
insert into parked (lane, until)
values (?1, ?2)
on conflict (lane) do update set until = excluded.until";

const UNPARK: &str = "delete from parked where lane = ?1";

/// The lane's row.
pub(crate) fn lane_row(step: &Step<'_>, lane: i64) -> rusqlite::Result<LaneRow> {
    let row = step.db.first(LANE, [lane], |row| {
        Ok(LaneRow {
            id: row.get(0)?,
            queue: row.get(1)?,
            key: row.get(2)?,
            lim: row.get(3)?,
            own: row.get(4)?,
            issued: row.get(5)?,
            interval_us: row.get(6)?,
            next_start: row.get(7)?,
            halted: row.get(8)?,
        })
    })?;
    row.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Adds to the number of turns that exist.
pub(crate) fn add_issued(step: &Step<'_>, lane: i64, turns: i64) -> rusqlite::Result<()> {
    if turns != 0 {
        step.db.run(ADD_ISSUED, [lane, turns])?;
    }
    Ok(())
}

/// Puts a free turn, which `issued` counts already, to the end of the line.
pub(crate) fn insert_free(step: &Step<'_>, lane: &LaneRow) -> rusqlite::Result<()> {
    step.db.run(INSERT_FREE, [lane.queue, lane.id]).map(|_| ())
}

/// Issues turns for up to `tasks` tasks that have become runnable. The caller refreshes.
pub(crate) fn issue(step: &Step<'_>, lane: &LaneRow, tasks: i64) -> rusqlite::Result<()> {
    let turns = tasks.min(lane.lim - lane.issued).max(0);
    (0..turns).try_for_each(|_| insert_free(step, lane))?;
    add_issued(step, lane.id, turns)
}

/// Gives a lane another limit: turns above it are burnt, missing ones are issued. The caller refreshes.
pub(crate) fn set_limit(step: &Step<'_>, lane: &mut LaneRow, lim: i64) -> rusqlite::Result<()> {
    step.db.run("update lane set lim = ?2 where id = ?1", [lane.id, lim])?;
    lane.lim = lim;
    if lane.issued > lim {
        let burnt = step.db.run(DELETE_SPARE, [lane.id, lane.issued - lim])?;
        add_issued(step, lane.id, -(burnt as i64))?;
        lane.issued -= burnt as i64;
        return Ok(());
    }
    let room = lim - lane.issued;
    let waiting = step.db.first(COUNT_WAITING, [lane.queue, lane.id, room], |row| row.get(0))?.unwrap_or(0);
    issue(step, lane, waiting)?;
    lane.issued += room.min(waiting);
    Ok(())
}

/// Takes back the turn of a task that has ended or no longer needs it: to the end of the line if the lane has
/// more, else it is retired. The caller refreshes.
pub(crate) fn release(step: &Step<'_>, lane: i64) -> rusqlite::Result<()> {
    let lane = lane_row(step, lane)?;
    if lane.issued <= lane.lim && step.db.any(HAS_HEAD, [lane.queue, lane.id])? {
        return insert_free(step, &lane);
    }
    add_issued(step, lane.id, -1)
}

/// Puts the turn of a task that came back into the line, bound to that task. The caller refreshes.
pub(crate) fn come_back(step: &Step<'_>, lane: i64, task: i64, end: End) -> rusqlite::Result<()> {
    let lane = lane_row(step, lane)?;
    if lane.issued > lane.lim {
        return add_issued(step, lane.id, -1);
    }
    let insert = match end {
        End::Front => INSERT_BOUND_IN_FRONT,
        End::Back => INSERT_BOUND,
    };
    step.db.run(insert, [lane.queue, lane.id, task]).map(|_| ())
}

/// Frees the turn that was bound to a task which is gone. The caller refreshes.
pub(crate) fn unbind(step: &Step<'_>, lane: i64, task: i64) -> rusqlite::Result<()> {
    if step.db.run(UNBIND, [lane, task])? > 0 {
        // The freed turn may be before the one that stood first so far.
        step.db.run(STEP_BACK, [lane])?;
    }
    Ok(())
}

/// Makes the line show what the lane may start now.
pub(crate) fn refresh(step: &mut Step<'_>, lane: i64) -> rusqlite::Result<()> {
    let lane = lane_row(step, lane)?;
    let rests_until = lane.rests_until(step.now);
    let in_line = !lane.halted && rests_until.is_none();

    let mut could_start = refresh_bound(step, &lane, in_line)?;
    could_start |= refresh_free(step, &lane, in_line)?;

    match rests_until {
        Some(until) if could_start && !lane.halted => {
            step.news.due(until);
            step.db.run(PARK, [lane.id, until])?;
        }
        // Only a lane that has started something under an interval can be parked.
        _ if lane.next_start.is_some() => {
            step.db.run(UNPARK, [lane.id])?;
        }
        _ => (),
    }
    Ok(())
}

/// Refreshes each lane once.
pub(crate) fn refresh_all(step: &mut Step<'_>, mut lanes: Vec<i64>) -> rusqlite::Result<()> {
    lanes.sort_unstable();
    lanes.dedup();
    lanes.into_iter().try_for_each(|lane| refresh(step, lane))
}

/// True when there is a bound turn.
fn refresh_bound(step: &mut Step<'_>, lane: &LaneRow, in_line: bool) -> rusqlite::Result<bool> {
    let turns: Vec<(i64, Option<i64>, Option<i64>)> =
        step.db.all(BOUND, [lane.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for (seq, shown, task_priority) in &turns {
        show(step, lane, *seq, *shown, task_priority.filter(|_| in_line))?;
    }
    Ok(!turns.is_empty())
}

/// True when there is a free turn and a task for it.
fn refresh_free(step: &mut Step<'_>, lane: &LaneRow, in_line: bool) -> rusqlite::Result<bool> {
    let first: Option<(i64, Option<i64>)> =
        step.db.first(FIRST_FREE, [lane.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some((seq, shown)) = first else { return Ok(false) };
    let head: Option<i64> = step.db.first(HEAD_PRIORITY, [lane.queue, lane.id], |row| row.get(0))?;
    let Some(priority) = head else {
        let retired = step.db.run(DELETE_FREE, [lane.id])?;
        add_issued(step, lane.id, -(retired as i64))?;
        return Ok(false);
    };
    show(step, lane, seq, shown, Some(priority).filter(|_| in_line))?;
    Ok(true)
}

/// Gives a turn the priority that it shall show, if it does not show it yet.
fn show(
    step: &mut Step<'_>,
    lane: &LaneRow,
    seq: i64,
    shown: Option<i64>,
    priority: Option<i64>,
) -> rusqlite::Result<()> {
    if shown != priority {
        step.db.run(SET_PRIORITY, params![seq, priority])?;
    }
    if priority.is_some() {
        step.news.runnable(lane.queue);
    }
    Ok(())
}
