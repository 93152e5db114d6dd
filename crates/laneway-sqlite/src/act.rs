//! What operators do to tasks, one by one.

use rusqlite::params;
use serde_json::{Map, Value, json};

use laneway_core::{Acted, Action, Actor, Cancel, Edit, FamilyView, KeyScope, Skip, State, TaskId};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::end::{self, Ending, Table};
use crate::family::changed_options;
use crate::follow_up::NEVER;
use crate::row::{self, Sql, carried};
use crate::writer::Step;
use crate::{cancel, children, lane, line, turn, unique};

const PLACE: &str = "
select 'task', priority, null from task where id = ?1
union all
select 'later', priority, due_at from later where id = ?1
union all
select 'leased', null, null from leased where id = ?1
union all
select 'waiting', null, null from waiting where id = ?1
union all
select 'ended', state, payload is null from ended where id = ?1";

const ENDED: &str = "select queue, lane, lane_key, kind, options, parent, state from ended where id = ?1";

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
       ?4,
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

const PARENT: &str = "
select parent from task where id = ?1
union all
select parent from later where id = ?1";

const LANE_OF_TASK: &str = "select queue, lane, kind from task where id = ?1";
const LANE_OF_LATER: &str = "select queue, lane, kind, holds_turn from later where id = ?1";
const KIND_OF_ENDED: &str = "select queue, kind from ended where id = ?1";
const SET_DUE: &str = "update later set due_at = ?2 where id = ?1";
const SET_PAYLOAD_OF_TASK: &str = "update task set payload = ?2 where id = ?1";
const SET_PAYLOAD_OF_LATER: &str = "update later set payload = ?2 where id = ?1";
const PAYLOAD: &str = "
select payload from task where id = ?1
union all
select payload from later where id = ?1";
const SET_PRIORITY_OF_TASK: &str = "update task set priority = ?2 where id = ?1";
const SET_PRIORITY_OF_LATER: &str = "update later set priority = ?2 where id = ?1";

/// Where a task is, with what the audit wants to know about it there.
enum Place {
    Task { priority: i64 },
    Later { priority: i64, due_at: i64 },
    Leased,
    Waiting,
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
        Action::Retry => retry(step, id, &place, Anew::Whole),
        Action::RetryChildren => retry(step, id, &place, Anew::Children),
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
            "waiting" => Place::Waiting,
            _ => Place::Ended { state: end::state_from_stored(row.get(1)?), is_plain: row.get(2)? },
        })
    })
}

fn cancel_task(step: &mut Step<'_>, id: i64, place: &Place) -> rusqlite::Result<Did> {
    let was = match place {
        Place::Task { .. } => "pending",
        Place::Later { .. } => "later",
        Place::Leased => "leased",
        Place::Waiting => "waiting",
        Place::Ended { state, .. } => return Ok(Did::skipped(Skip::Ended(*state))),
    };
    Ok(match cancel::cancel(step, TaskId(id))? {
        Cancel::Requested => Did { acted: Acted::Requested, ..Did::done(was, "cancel requested") },
        _ => Did::done(was, "cancelled"),
    })
}

/// Lets a task that has failed or was cancelled start anew.
fn retry(step: &mut Step<'_>, id: i64, place: &Place, anew: Anew) -> rusqlite::Result<Did> {
    let state = match place {
        Place::Ended { state: State::Completed, .. } => {
            return Ok(Did::skipped(Skip::Ended(State::Completed)));
        }
        Place::Ended { state, .. } => *state,
        _ => return Ok(Did::skipped(Skip::Open)),
    };
    Ok(match start_anew(step, id, anew)? {
        Some(skip) => Did::skipped(skip),
        None => Did::done(state.as_str(), "pending"),
    })
}

/// How a task that has ended starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anew {
    /// From its first step, with a new family.
    Whole,
    /// With those of its children that failed or were cancelled.
    Children,
}

/// An ended task, as far as it matters when it starts anew.
struct Ended {
    queue: i64,
    lane: i64,
    lane_key: Option<String>,
    kind: String,
    options: Option<String>,
    parent: Option<i64>,
    state: State,
}

/// Makes a task that has ended runnable under its id, or says why not.
pub(crate) fn start_anew(step: &mut Step<'_>, id: i64, anew: Anew) -> rusqlite::Result<Option<Skip>> {
    let found = step.db.first(ENDED, [id], |row| {
        Ok(Ended {
            queue: row.get(0)?,
            lane: row.get(1)?,
            lane_key: row.get(2)?,
            kind: row.get(3)?,
            options: row.get(4)?,
            parent: row.get(5)?,
            state: end::state_from_stored(row.get(6)?),
        })
    })?;
    let Some(ended) = found else { return Ok(Some(Skip::NotFound)) };
    let has_failed = |family: FamilyView| family.has_failed();
    if anew == Anew::Children && !FamilyView::from_stored(ended.options.as_deref()).is_some_and(has_failed) {
        return Ok(Some(Skip::NoFailedChildren));
    }
    if let Some(holder) = take_key_again(step, id, &ended)? {
        return Ok(Some(Skip::KeyHeld(TaskId(holder))));
    }
    let lane = match &ended.lane_key {
        Some(key) if ended.lane != 0 => lane::find_or_make(step.db, ended.queue, key)?,
        _ => ended.lane,
    };
    let options = options_anew(step, id, &ended, anew)?;
    step.db.run(START_ANEW, params![id, lane, step.now, options])?;
    step.db.run(REMEMBER_FAILURE, [id])?;
    step.feed.entered(ended.queue, State::Pending, id, &ended.kind);
    step.db.run(DELETE_ENDED, [id])?;
    step.news.runnable(ended.queue);
    if let Some(parent) = ended.parent {
        children::rejoin(step, parent, id, ended.state)?;
    }
    if lane != 0 {
        let row = turn::lane_row(step, lane)?;
        turn::issue(step, &row, 1)?;
        line::refresh(step, lane)?;
    }
    Ok(None)
}

/// Who holds the key of a task that starts anew, if it is not the task itself.
fn take_key_again(step: &Step<'_>, id: i64, ended: &Ended) -> rusqlite::Result<Option<i64>> {
    match row::options(ended.options.as_deref())?.unique {
        Some(unique) if unique.scope == KeyScope::WhileOpen => {
            let holder = unique::take_again(step, ended.queue, &ended.kind, &unique.key, id)?;
            Ok((holder != id).then_some(holder))
        }
        _ => Ok(None),
    }
}

/// Whoever starts from the beginning has no children yet.
fn options_anew(step: &Step<'_>, id: i64, ended: &Ended, anew: Anew) -> rusqlite::Result<Option<String>> {
    if anew == Anew::Whole {
        children::forget(step, id)?;
    }
    changed_options(ended.options.as_deref(), |members| match anew {
        Anew::Children => {
            members.insert("resume".to_owned(), json!(true));
        }
        Anew::Whole => members.retain(|member, _| !["family", "step", "resume"].contains(&member.as_str())),
    })
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
        Place::Later { due_at: NEVER, .. } => return Ok(Did::skipped(Skip::Waiting)),
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
            tell_family(step, id)?;
            unique::release_ended(step, id)?;
            end::leave(step, Table::Task, id)?;
            leave_lane(step, lane, id)?;
            State::Pending
        }
        Place::Later { .. } => {
            let (queue, lane, kind, holds_turn) = of_later(step, id)?;
            step.feed.deleted(queue, State::Later, id, &kind);
            tell_family(step, id)?;
            unique::release_ended(step, id)?;
            end::leave(step, Table::Later, id)?;
            if holds_turn && turn::release(step, lane)? {
                line::refresh(step, lane)?;
            }
            State::Later
        }
        Place::Leased => return Ok(Did::skipped(Skip::Running)),
        Place::Waiting => return Ok(Did::skipped(Skip::Waiting)),
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

/// To its family a task that is deleted is cancelled.
fn tell_family(step: &mut Step<'_>, id: i64) -> rusqlite::Result<()> {
    let parent = step.db.first(PARENT, [id], |row| row.get(0))?.flatten();
    end::tell(step, id, parent, &Ending::cancelled(Some("deleted".to_owned())))
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

/// Changes a task that waits, and records it.
pub(crate) fn edit(step: &mut Step<'_>, actor: &Actor, id: TaskId, edit: &Edit) -> rusqlite::Result<Acted> {
    let set_payload = match find(step, id.0)? {
        None => return Ok(Acted::Skipped(Skip::NotFound)),
        Some(Place::Task { .. }) => SET_PAYLOAD_OF_TASK,
        Some(Place::Later { .. }) => SET_PAYLOAD_OF_LATER,
        Some(place) => return Ok(skip_unless_waiting(&place).acted),
    };
    let (mut before, mut after) = (Map::new(), Map::new());
    if let Some(priority) = edit.priority {
        let did = one(step, Action::SetPriority(priority), id.0, step.now)?;
        if did.acted.is_done() {
            before.insert("priority".to_owned(), did.was);
            after.insert("priority".to_owned(), did.is);
        }
    }
    let old = step.db.first(PAYLOAD, [id.0], |row| row.get::<_, String>(0))?.unwrap_or_default();
    if let Some(new) = edit.payload.as_ref().filter(|new| new.as_str() != old) {
        step.db.run(set_payload, params![id.0, new.as_str()])?;
        let shown = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        before.insert("payload".to_owned(), shown(&old));
        after.insert("payload".to_owned(), shown(new.as_str()));
    }
    if after.is_empty() {
        return Ok(Acted::Skipped(Skip::Unchanged));
    }
    let (before, after) = (Some(Value::Object(before)), Some(Value::Object(after)));
    let subject = format!("task {id}");
    audit::record(step, actor, Record { action: "edit", subject, tasks: &[id.0], before, after })?;
    Ok(Acted::Done)
}

fn skip_unless_waiting(place: &Place) -> Did {
    Did::skipped(match place {
        Place::Ended { state, .. } => Skip::Ended(*state),
        Place::Waiting => Skip::Waiting,
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
