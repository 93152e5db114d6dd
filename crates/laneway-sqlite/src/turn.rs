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
//! After a lane was changed, `line.rs` makes the line follow. Callers change first and refresh after.

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
    /// By a failure, or because it is paused.
    pub(crate) halted: bool,
}

impl LaneRow {
    /// True when it may start something now.
    pub(crate) fn is_open(&self, now: i64) -> bool {
        !self.halted && self.rests_until(now).is_none()
    }

    /// When it may start its next task, if not now.
    pub(crate) fn rests_until(&self, now: i64) -> Option<i64> {
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
       halted or paused
from lane
where id = ?1";

const ADD_ISSUED: &str = "update lane set issued = issued + ?2, used_at = ?3 where id = ?1";

const INSERT_IN_LINE: &str = "insert into turn (queue, lane, priority) values (?1, ?2, ?3)";

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

// For a lane without bound turns.
const FIRST_PRIORITY: &str = "
select priority
from task
where queue = ?1
  and lane = ?2
order by priority
limit 1";

const COUNT_WAITING: &str =
    "select count(*) from (select 1 from task where queue = ?1 and lane = ?2 limit ?3)";

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
        step.db.run(ADD_ISSUED, [lane, turns, step.now])?;
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

/// Puts the only turn of a lane, which `issued` counts already, into the line. False when the lane has no task for
/// it. Most lanes have one turn, so this way around a refresh is worth having.
pub(crate) fn insert_only(step: &mut Step<'_>, lane: &LaneRow) -> rusqlite::Result<bool> {
    let head: Option<i64> = step.db.first(FIRST_PRIORITY, [lane.queue, lane.id], |row| row.get(0))?;
    if let Some(priority) = head {
        step.db.run(INSERT_IN_LINE, [lane.queue, lane.id, priority])?;
        step.news.runnable(lane.queue);
    }
    Ok(head.is_some())
}

/// Takes back the turn of a task that has ended or no longer needs it: to the end of the line if the lane has
/// more, else it is retired. True when the caller has to refresh.
pub(crate) fn release(step: &mut Step<'_>, lane: i64) -> rusqlite::Result<bool> {
    let lane = lane_row(step, lane)?;
    if lane.issued == 1 && lane.is_open(step.now) {
        if !insert_only(step, &lane)? {
            add_issued(step, lane.id, -1)?;
        }
        return Ok(false);
    }
    if lane.issued <= lane.lim && step.db.any(HAS_HEAD, [lane.queue, lane.id])? {
        insert_free(step, &lane)?;
    } else {
        add_issued(step, lane.id, -1)?;
    }
    Ok(true)
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
