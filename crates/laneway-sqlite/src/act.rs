//! What operators do to tasks, one by one.

use rusqlite::params;
use serde_json::{Map, Value, json};

use laneway_core::{Acted, Action, Actor, Cancel, KeyScope, LaneKey, Skip, State, TaskId};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::end::{self, Table};
use crate::row::{self, Sql, carried};
use crate::writer::Step;
use crate::{cancel, lane, line, turn, unique};

const PLACE: &str = "
select 'task', priority, null from task where id = ?1
union all
select 'later', priority, due_at from later where id = ?1
union all
select 'leased', null, null from leased where id = ?1
union all
select 'ended', state, payload is null from ended where id = ?1";

const ENDED: &str = "select queue, lane, lane_key, kind, options from ended where id = ?1";

const START_ANEW: &str = "
insert into task (
    id,
    queue,
    lane,
    priority,
    attempt,
    max_attempts,
    crashes,
    parent,
    depth,
    enqueued_at,
    kind,
    options,
    payload,
    error,
    ready_at
)
select id,
       queue,
       ?2,
       priority,
       0,
       max_attempts,
       0,
       parent,
       depth,
       enqueued_at,
       kind,
       options,
       payload,
       error,
       ?3
from ended
where id = ?1";

const REMEMBER_FAILURE: &str = "
insert or replace into failure (task_id, attempt, at, error)
select id, attempt, ended_at, error
from ended
where id = ?1
  and error is not null";

const DELETE_ENDED: &str = "delete from ended where id = ?1";

const PUT_OFF: &str = concat!(
    "insert into later (id, due_at, holds_turn, ",
    carried!(),
    ") ",
    "select id, ?2, 0, ",
    carried!(),
    " from task where id = ?1"
);

const LANE_OF_TASK: &str = "select queue, lane, kind from task where id = ?1";
const LANE_OF_LATER: &str = "select queue, lane, kind, holds_turn from later where id = ?1";
const KIND_OF_ENDED: &str = "select queue, kind from ended where id = ?1";
const SET_DUE: &str = "update later set due_at = ?2 where id = ?1";
const SET_PRIORITY_OF_TASK: &str = "update task set priority = ?2 where id = ?1";
const SET_PRIORITY_OF_LATER: &str = "update later set priority = ?2 where id = ?1";

/// Where a task is, with what the audit wants to know about it there.
enum Place {
    Task { priority: i64 },
    Later { priority: i64, due_at: i64 },
    Leased,
    Ended { state: State, is_plain: bool },
}

/// What was done to one task, as it was and as it is.
struct Did {
    acted: Acted,
    was: Value,
    is: Value,
}

impl Did {
    fn done(was: impl Into<Value>, is: impl Into<Value>) -> Self {
        Self { acted: Acted::Done, was: was.into(), is: is.into() }
    }

    fn skipped(skip: Skip) -> Self {
        Self { acted: Acted::Skipped(skip), was: Value::Null, is: Value::Null }
    }
}

/// Does `action` to each of `tasks`, as if it were `now` for a snooze, and records it.
pub(crate) fn act(
    step: &mut Step<'_>,
    actor: &Actor,
    action: Action,
    tasks: &[TaskId],
    now: i64,
) -> rusqlite::Result<Vec<Acted>> {
    let (mut results, mut done) = (Vec::with_capacity(tasks.len()), Vec::new());
    let (mut before, mut after) = (Map::new(), Map::new());
    for task in tasks {
        let did = one(step, action, task.0, now)?;
        results.push(did.acted);
        if did.acted.is_done() {
            done.push(task.0);
            before.insert(task.to_string(), did.was);
            after.insert(task.to_string(), did.is);
        }
    }
    if !done.is_empty() {
        let subject = match done[..] {
            [task] => format!("task {task}"),
            _ => format!("{} tasks", done.len()),
        };
        let (before, after) = (Some(Value::Object(before)), Some(Value::Object(after)));
        audit::record(step, actor, Record { action: action.name(), subject, tasks: &done, before, after })?;
    }
    Ok(results)
}

fn one(step: &mut Step<'_>, action: Action, id: i64, now: i64) -> rusqlite::Result<Did> {
    let Some(place) = find(step, id)? else { return Ok(Did::skipped(Skip::NotFound)) };
    match action {
        Action::Cancel => cancel_task(step, id, &place),
        Action::Retry => retry(step, id, &place),
        Action::Snooze(delay) => snooze(step, id, &place, now.saturating_add(micros(delay))),
        Action::Delete => delete(step, id, &place),
        Action::SetPriority(priority) => set_priority(step, id, &place, priority.into()),
        // The actions that may come one day.
        _ => Ok(Did::skipped(Skip::Unchanged)),
    }
}

fn find(step: &Step<'_>, id: i64) -> rusqlite::Result<Option<Place>> {
    step.db.first(PLACE, [id], |row| {
        Ok(match row.get_ref(0)?.as_str()? {
            "task" => Place::Task { priority: row.get(1)? },
            "later" => Place::Later { priority: row.get(1)?, due_at: row.get(2)? },
            "leased" => Place::Leased,
            _ => Place::Ended { state: end::state_from_stored(row.get(1)?), is_plain: row.get(2)? },
        })
    })
}

fn cancel_task(step: &mut Step<'_>, id: i64, place: &Place) -> rusqlite::Result<Did> {
    let was = match place {
        Place::Task { .. } => "pending",
        Place::Later { .. } => "later",
        Place::Leased => "leased",
        Place::Ended { state, .. } => return Ok(Did::skipped(Skip::Ended(*state))),
    };
    Ok(match cancel::cancel(step, TaskId(id))? {
        Cancel::Requested => Did { acted: Acted::Requested, ..Did::done(was, "cancel requested") },
        _ => Did::done(was, "cancelled"),
    })
}

/// Lets a task that has failed or was cancelled start anew.
fn retry(step: &mut Step<'_>, id: i64, place: &Place) -> rusqlite::Result<Did> {
    let state = match place {
        Place::Ended { state: State::Completed, .. } => {
            return Ok(Did::skipped(Skip::Ended(State::Completed)));
        }
        Place::Ended { state, .. } => *state,
        _ => return Ok(Did::skipped(Skip::Open)),
    };
    let row = step.db.first(ENDED, [id], |row| {
        let key = row.get::<_, Option<String>>(2)?.map(row::lane_key).transpose()?;
        let options = row.get::<_, Option<String>>(4)?;
        Ok((row.get(0)?, row.get::<_, i64>(1)?, key, row.get::<_, String>(3)?, options))
    })?;
    let (queue, old_lane, key, kind, options) = row.expect("just found");
    let unique = row::options(options.as_deref())?.unique;
    if let Some(unique) = unique.filter(|unique| unique.scope == KeyScope::WhileOpen) {
        let holder = unique::take_again(step, queue, &kind, &unique.key, id)?;
        if holder != id {
            return Ok(Did::skipped(Skip::KeyHeld(TaskId(holder))));
        }
    }
    let lane = lane_again(step, queue, old_lane, key.as_ref())?;
    step.db.run(START_ANEW, [id, lane, step.now])?;
    step.db.run(REMEMBER_FAILURE, [id])?;
    step.feed.entered(queue, State::Pending, id, &kind);
    step.db.run(DELETE_ENDED, [id])?;
    step.news.runnable(queue);
    if lane != 0 {
        let row = turn::lane_row(step, lane)?;
        turn::issue(step, &row, 1)?;
        line::refresh(step, lane)?;
    }
    Ok(Did::done(state.as_str(), "pending"))
}

/// The lane that a task had; it is made anew if it is gone.
fn lane_again(step: &Step<'_>, queue: i64, lane: i64, key: Option<&LaneKey>) -> rusqlite::Result<i64> {
    match key {
        Some(key) if lane != 0 => lane::find_or_make(step.db, queue, key),
        _ => Ok(lane),
    }
}

fn snooze(step: &mut Step<'_>, id: i64, place: &Place, due_at: i64) -> rusqlite::Result<Did> {
    let shown = |micros| row::timestamp(micros).map(|at| json!(at));
    let was = match place {
        Place::Task { .. } => {
            let (queue, lane, kind) = of_task(step, id)?;
            step.db.run(PUT_OFF, [id, due_at])?;
            step.db.run("delete from task where id = ?1", [id])?;
            step.feed.entered(queue, State::Later, id, &kind);
            leave_lane(step, lane, id)?;
            json!("pending")
        }
        Place::Later { due_at: old, .. } if *old == due_at => return Ok(Did::skipped(Skip::Unchanged)),
        Place::Later { due_at: old, .. } => {
            let (queue, _, kind, _) = of_later(step, id)?;
            step.db.run(SET_DUE, [id, due_at])?;
            step.feed.entered(queue, State::Later, id, &kind);
            shown(*old)?
        }
        place => return Ok(skip_unless_waiting(place)),
    };
    step.news.due(due_at);
    Ok(Did::done(was, shown(due_at)?))
}

/// Removes a task that does not run, and what is kept of it.
fn delete(step: &mut Step<'_>, id: i64, place: &Place) -> rusqlite::Result<Did> {
    let was = match place {
        Place::Task { .. } => {
            let (queue, lane, kind) = of_task(step, id)?;
            step.feed.deleted(queue, State::Pending, id, &kind);
            unique::release_ended(step, id)?;
            end::leave(step, Table::Task, id)?;
            leave_lane(step, lane, id)?;
            State::Pending
        }
        Place::Later { .. } => {
            let (queue, lane, kind, holds_turn) = of_later(step, id)?;
            step.feed.deleted(queue, State::Later, id, &kind);
            unique::release_ended(step, id)?;
            end::leave(step, Table::Later, id)?;
            if holds_turn && turn::release(step, lane)? {
                line::refresh(step, lane)?;
            }
            State::Later
        }
        Place::Leased => return Ok(Did::skipped(Skip::Running)),
        Place::Ended { is_plain: true, .. } => return Ok(Did::skipped(Skip::Plain)),
        Place::Ended { state, .. } => {
            let found =
                step.db.first(KIND_OF_ENDED, [id], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
            let (queue, kind) = found.expect("just found");
            step.feed.deleted(queue, *state, id, &kind);
            step.db.run(DELETE_ENDED, [id])?;
            *state
        }
    };
    Ok(Did::done(was.as_str(), Value::Null))
}

fn set_priority(step: &mut Step<'_>, id: i64, place: &Place, priority: i64) -> rusqlite::Result<Did> {
    let was = match place {
        Place::Task { priority: was } | Place::Later { priority: was, .. } if *was == priority => {
            return Ok(Did::skipped(Skip::Unchanged));
        }
        Place::Task { priority: was } => {
            let (queue, lane, _) = of_task(step, id)?;
            step.db.run(SET_PRIORITY_OF_TASK, [id, priority])?;
            step.news.runnable(queue);
            if lane != 0 {
                line::refresh(step, lane)?;
            }
            *was
        }
        Place::Later { priority: was, .. } => {
            step.db.run(SET_PRIORITY_OF_LATER, params![id, priority])?;
            *was
        }
        place => return Ok(skip_unless_waiting(place)),
    };
    Ok(Did::done(was, priority))
}

fn skip_unless_waiting(place: &Place) -> Did {
    Did::skipped(match place {
        Place::Ended { state, .. } => Skip::Ended(*state),
        _ => Skip::Running,
    })
}

/// Queue, lane and kind of a task that was just found to be runnable.
fn of_task(step: &Step<'_>, id: i64) -> rusqlite::Result<(i64, i64, String)> {
    let found = step.db.first(LANE_OF_TASK, [id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    found.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Queue, lane and kind of a task that was just found in `later`, and whether it holds a turn.
fn of_later(step: &Step<'_>, id: i64) -> rusqlite::Result<(i64, i64, String, bool)> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    step.db.first(LANE_OF_LATER, [id], read)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// A task that was runnable has left its lane.
fn leave_lane(step: &mut Step<'_>, lane: i64, id: i64) -> rusqlite::Result<()> {
    if lane == 0 {
        return Ok(());
    }
    turn::unbind(step, lane, id)?;
    line::refresh(step, lane)
}
