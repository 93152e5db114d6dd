//! Moves tasks out of the places where they wait or run. Every end of a task, whatever its cause, is [`end_leased`],
//! [`end_waiting`], or that of a parent in `family.rs`, and is told to its family.

use rusqlite::params;

use laneway_core::State;

use crate::fold::Times;
use crate::follow_up;
use crate::keep;
use crate::lane;
use crate::row::{Sql, carried};
use crate::turn::{self, End};
use crate::unique;
use crate::writer::Step;

/// What a leased task's future depends on.
pub(crate) struct Leased {
    pub(crate) id: i64,
    pub(crate) queue: i64,
    pub(crate) lane: i64,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) parent: Option<i64>,
    pub(crate) depth: u32,
    /// Only options can hold a key, and only a task with options can have follow-ups that wait.
    has_options: bool,
    /// True when it had children before.
    had_children: bool,
    pub(crate) kind: String,
    ready_at: i64,
    started_at: i64,
}

/// The table that a task leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Task,
    Later,
    Leased,
    Waiting,
}

/// How a task ends.
pub(crate) struct Ending {
    pub(crate) state: State,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<String>,
}

impl Ending {
    /// Ended by a command.
    pub(crate) fn cancelled(reason: Option<String>) -> Self {
        let error = Some(reason.unwrap_or_else(|| "cancelled".to_owned()));
        Self { state: State::Cancelled, error, result: None }
    }

    /// Failed for good.
    pub(crate) fn failed(error: String) -> Self {
        Self { state: State::Failed, error: Some(error), result: None }
    }
}

/// What an attempt adds to its task.
#[derive(Default)]
pub(crate) struct Charge {
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    /// Replaces the last error.
    pub(crate) error: Option<String>,
}

const LEASED: &str = "
select queue,
       lane,
       attempt,
       max_attempts,
       crashes,
       parent,
       options is not null,
       kind,
       coalesce(ready_at, enqueued_at),
       started_at,
       depth,
       options is not null and json_extract(options, '$.family') is not null
from leased
where id = ?1
  and lease = ?2";

const CHARGE: &str = "
update leased
set attempt = attempt + ?2,
    crashes = crashes + ?3,
    error = coalesce(?4, error)
where id = ?1";

const INSERT_FAILURE: &str =
    "insert or replace into failure (task_id, attempt, at, error) values (?1, ?2, ?3, ?4)";
const TRIM_FAILURES: &str = "delete from failure where task_id = ?1 and attempt <= ?2";
/// Failed attempts of a task that are remembered.
const FAILURES_KEPT: i64 = 20;

const IS_ORDERED: &str = "select 1 from lane where id = ?1 and lim = 1";

// Nobody asks for the payload of a plain success; most tasks are one, so their history stays narrow.
const END_PLAIN: &str = "
insert into ended (
    id,
    queue,
    lane,
    state,
    ended_at,
    priority,
    attempt,
    max_attempts,
    crashes,
    parent,
    depth,
    enqueued_at,
    started_at,
    kind
)
select id,
       queue,
       lane,
       1,
       ?2,
       0,
       1,
       max_attempts,
       0,
       parent,
       depth,
       enqueued_at,
       started_at,
       kind
from leased
where id = ?1";

macro_rules! end_from {
    ($table:literal) => {
        concat!(
            "insert into ended (id, state, ended_at, result, lane_key, ",
            carried!(),
            ") ",
            "select id, ?2, ?3, ?4, (select key from lane where lane.id = ",
            $table,
            ".lane), ",
            carried!(),
            " from ",
            $table,
            " where id = ?1"
        )
    };
}

const SET_ERROR_OF_TASK: &str = "update task set error = ?2 where id = ?1";
const SET_ERROR_OF_LATER: &str = "update later set error = ?2 where id = ?1";

const TO_LATER: &str = concat!(
    "insert into later (id, due_at, holds_turn, ",
    carried!(),
    ") ",
    "select id, ?2, ?3, ",
    carried!(),
    " from leased where id = ?1"
);

const TO_TASK: &str = concat!(
    "insert into task (id, ready_at, ",
    carried!(),
    ") select id, ready_at, ",
    carried!(),
    " from leased where id = ?1"
);

/// The task if this lease still has it.
pub(crate) fn leased(step: &Step<'_>, lease: i64, id: i64) -> rusqlite::Result<Option<Leased>> {
    step.db.first(LEASED, [id, lease], |row| {
        Ok(Leased {
            id,
            queue: row.get(0)?,
            lane: row.get(1)?,
            attempt: row.get(2)?,
            max_attempts: row.get(3)?,
            crashes: row.get(4)?,
            parent: row.get(5)?,
            has_options: row.get(6)?,
            kind: row.get(7)?,
            ready_at: row.get(8)?,
            started_at: row.get(9)?,
            depth: row.get(10)?,
            had_children: row.get(11)?,
        })
    })
}

/// True when somebody wants the running task to be stopped.
pub(crate) fn is_cancel_requested(step: &Step<'_>, id: i64) -> rusqlite::Result<bool> {
    step.db.any("select 1 from cancel_request where task_id = ?1", [id])
}

/// Ends a leased task and takes its turn back. `attempts` is 1 when the attempt that ended it is charged.
pub(crate) fn end_leased(
    step: &mut Step<'_>,
    task: &Leased,
    attempts: u32,
    ending: Ending,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<()> {
    let plain = ending.state == State::Completed
        && ending.result.is_none()
        && task.attempt + attempts == 1
        && task.crashes == 0
        && !task.had_children;
    let times = Times { ready_at: task.ready_at, started_at: task.started_at };
    step.tally.ended(task.queue, ending.state, Some(times), step.now);
    step.feed.entered(task.queue, ending.state, task.id, &task.kind);
    match task.has_options {
        true => tell(step, task.id, task.parent, &ending)?,
        false => tell_parent(step, task.id, task.parent, &ending),
    }
    if ending.state == State::Completed && keeps_nothing(step, task.queue)? {
        step.db.run("delete from failure where task_id = ?1", [task.id])?;
        if task.has_options {
            unique::release_ended(step, task.id)?;
        }
        leave(step, Table::Leased, task.id)?;
        return release(step, task.lane, lanes);
    }
    step.tally.kept(task.queue, ending.state, task.kind.clone());
    if plain {
        if task.has_options {
            unique::release_ended(step, task.id)?;
        }
        step.db.run(END_PLAIN, [task.id, step.now])?;
        leave(step, Table::Leased, task.id)?;
    } else {
        charge(step, task.id, Charge { attempts, ..Charge::default() })?;
        record(step, Table::Leased, task.id, task.lane, ending)?;
    }
    release(step, task.lane, lanes)
}

/// Tells the parent of a task that it has ended, and lets go what follows it.
pub(crate) fn tell(
    step: &mut Step<'_>,
    id: i64,
    parent: Option<i64>,
    ending: &Ending,
) -> rusqlite::Result<()> {
    tell_parent(step, id, parent, ending);
    follow_up::release(step, id, ending.state)
}

fn tell_parent(step: &mut Step<'_>, id: i64, parent: Option<i64>, ending: &Ending) {
    if let Some(parent) = parent {
        step.families.ended(parent, id, ending.state, ending.error.as_deref());
    }
}

/// True when the queue writes no history of successes. Asked once per command.
fn keeps_nothing(step: &mut Step<'_>, queue: i64) -> rusqlite::Result<bool> {
    if let Some(known) = step.tally.keeps_nothing.get(&queue) {
        return Ok(*known);
    }
    let nothing = keep::keeps_nothing(step, queue)?;
    step.tally.keeps_nothing.insert(queue, nothing);
    Ok(nothing)
}

/// Ends a task that did not run.
pub(crate) fn end_waiting(
    step: &mut Step<'_>,
    from: Table,
    id: i64,
    lane: i64,
    ending: Ending,
) -> rusqlite::Result<()> {
    let find = match from {
        Table::Later => "select queue, kind, parent from later where id = ?1",
        _ => "select queue, kind, parent from task where id = ?1",
    };
    let found = step.db.first(find, [id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if let Some((queue, kind, parent)) = found {
        let kind: String = kind;
        tell(step, id, parent, &ending)?;
        step.feed.entered(queue, ending.state, id, &kind);
        step.tally.ended(queue, ending.state, None, step.now);
        step.tally.kept(queue, ending.state, kind);
    }
    record(step, from, id, lane, ending)
}

/// History, and what the lane does about a failure. What becomes of the turn depends on where the task was, and is the
/// caller's.
pub(crate) fn record(
    step: &mut Step<'_>,
    from: Table,
    id: i64,
    lane: i64,
    ending: Ending,
) -> rusqlite::Result<()> {
    let (set_error, end) = match from {
        Table::Task => (SET_ERROR_OF_TASK, end_from!("task")),
        Table::Later => (SET_ERROR_OF_LATER, end_from!("later")),
        Table::Leased => ("update leased set error = ?2 where id = ?1", end_from!("leased")),
        Table::Waiting => ("update waiting set error = ?2 where id = ?1", end_from!("waiting")),
    };
    if let Some(error) = &ending.error {
        step.db.run(set_error, params![id, error])?;
    }
    unique::release_ended(step, id)?;
    step.db.run(end, params![id, stored_state(ending.state), step.now, ending.result])?;
    leave(step, from, id)?;
    if ending.state == State::Failed && lane != 0 {
        lane::halt_if_told(step, lane)?;
    }
    Ok(())
}

/// Puts a leased task off. In an ordered lane it keeps its turn, so that nothing overtakes it.
pub(crate) fn put_off(
    step: &mut Step<'_>,
    task: &Leased,
    due_at: i64,
    charged: Charge,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<()> {
    let holds_turn = task.lane != 0 && step.db.any(IS_ORDERED, [task.lane])?;
    if let Some(error) = &charged.error {
        let attempt = i64::from(task.attempt) + 1;
        step.db.run(INSERT_FAILURE, params![task.id, attempt, step.now, error])?;
        step.db.run(TRIM_FAILURES, [task.id, attempt - FAILURES_KEPT])?;
    }
    step.feed.entered(task.queue, State::Later, task.id, &task.kind);
    charge(step, task.id, charged)?;
    step.db.run(TO_LATER, params![task.id, due_at, holds_turn])?;
    leave(step, Table::Leased, task.id)?;
    step.news.due(due_at);
    if holds_turn { Ok(()) } else { release(step, task.lane, lanes) }
}

/// Makes a leased task runnable again in its old place: its turn is bound to it, at the front of the line.
pub(crate) fn give_back(
    step: &mut Step<'_>,
    task: &Leased,
    charged: Charge,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<()> {
    step.feed.entered(task.queue, State::Pending, task.id, &task.kind);
    charge(step, task.id, charged)?;
    step.db.run(TO_TASK, [task.id])?;
    leave(step, Table::Leased, task.id)?;
    if task.lane == 0 {
        step.news.runnable(task.queue);
        return Ok(());
    }
    lanes.push(task.lane);
    turn::come_back(step, task.lane, task.id, End::Front)
}

/// Adds what an attempt has cost to a leased task.
pub(crate) fn charge(step: &Step<'_>, id: i64, charge: Charge) -> rusqlite::Result<()> {
    if charge.attempts + charge.crashes > 0 || charge.error.is_some() {
        step.db.run(CHARGE, params![id, charge.attempts, charge.crashes, charge.error])?;
    }
    Ok(())
}

/// Removes a task from the table that it leaves.
pub(crate) fn leave(step: &Step<'_>, from: Table, id: i64) -> rusqlite::Result<()> {
    match from {
        Table::Task => step.db.run("delete from task where id = ?1", [id])?,
        Table::Later => {
            follow_up::forget(step, id)?;
            step.db.run("delete from later where id = ?1", [id])?
        }
        Table::Waiting => step.db.run("delete from waiting where id = ?1", [id])?,
        Table::Leased => {
            step.db.run("delete from cancel_request where task_id = ?1", [id])?;
            step.db.run("delete from leased where id = ?1", [id])?
        }
    };
    Ok(())
}

/// Takes back the turn of a task that has left; the caller refreshes `lanes`.
pub(crate) fn release(step: &mut Step<'_>, lane: i64, lanes: &mut Vec<i64>) -> rusqlite::Result<()> {
    if lane != 0 && turn::release(step, lane)? {
        lanes.push(lane);
    }
    Ok(())
}

/// The state as `ended` keeps it.
pub(crate) fn stored_state(state: State) -> i64 {
    match state {
        State::Completed => 1,
        State::Failed => 2,
        _ => 3,
    }
}

/// The state of a row of `ended`.
pub(crate) fn state_from_stored(state: i64) -> State {
    match state {
        1 => State::Completed,
        2 => State::Failed,
        _ => State::Cancelled,
    }
}
