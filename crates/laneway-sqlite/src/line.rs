//! Makes the line show what may start: the part of `turn.rs` that decides who is in it.
//!
//! Whatever was changed about a lane, one [`refresh`] after it sets things right: its first free turn shows the
//! priority of the lane's head, bound turns show that of their tasks, free turns without a task are retired, and a lane
//! that is halted or rests shows nothing.

use rusqlite::params;

use crate::row::Sql;
use crate::turn::{LaneRow, add_issued, lane_row};
use crate::writer::Step;

const HEAD_PRIORITY: &str = "
select priority
from task
where queue = ?1
  and lane = ?2
  and id not in (select task_id from turn where lane = ?2 and task_id is not null)
order by priority, id
limit 1";

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

const DELETE_FREE: &str = "delete from turn where lane = ?1 and task_id is null";

/// Makes the line show what the lane may start now.
pub(crate) fn refresh(step: &mut Step<'_>, lane: i64) -> rusqlite::Result<()> {
    let lane = lane_row(step, lane)?;
    let rests_until = lane.rests_until(step.now);
    let in_line = lane.is_open(step.now);

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

/// Lets the first free turn show that a task of `priority` has arrived.
pub(crate) fn move_up(step: &Step<'_>, lane: &LaneRow, priority: i64) -> rusqlite::Result<()> {
    let first: Option<(i64, Option<i64>)> =
        step.db.first(FIRST_FREE, [lane.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let Some((seq, Some(shown))) = first
        && shown > priority
    {
        step.db.run(SET_PRIORITY, [seq, priority])?;
    }
    Ok(())
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
