//! Stores what a task has spawned, with the settle that completes it.

use rusqlite::params;

use laneway_core::{
    Enqueued, FamilyView, FollowUpOnFailure, InvalidInput, Limits, QueueName, Spawned, Spawner, State,
    TaskId, Verdict, lane_in_serial_queue,
};

use crate::children;
use crate::end::{self, Charge, Ending, Leased, Table};
use crate::enqueue::{self, New, Origin};
use crate::family::{self, changed_options};
use crate::row::{self, Sql, carried};
use crate::writer::Step;

const QUEUE: &str = "select name, serial from queue where id = ?1";
const IS_SERIAL: &str = "select 1 from queue where name = ?1 and serial > 0";

const TO_WAITING: &str = concat!(
    "insert into waiting (id, ready_at, result, holds_turn, then_again, family, ",
    carried!(),
    ") select id, ready_at, ?2, ?3, ?4, ?5, ",
    carried!(),
    " from leased where id = ?1"
);

const OPTIONS: &str = "select options from leased where id = ?1";
const SET_OPTIONS: &str = "update leased set options = ?2 where id = ?1";

/// Why `task` may not spawn this.
pub(crate) fn refusal(
    step: &Step<'_>,
    limits: &Limits,
    task: &Leased,
    spawned: &Spawned,
) -> rusqlite::Result<Option<InvalidInput>> {
    let found = step.db.first(QUEUE, [task.queue], |row| Ok((row.get(0)?, row.get::<_, i32>(1)?)))?;
    let (queue, serial) = found.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    let queue = row::queue_name(queue)?;
    let parent = task.parent.map(TaskId);
    let spawner = Spawner { parent, depth: task.depth, queue: &queue, is_serial: serial > 0 };
    match spawned.check(limits).and_then(|()| spawned.check_spawner(spawner, limits)) {
        Ok(()) => lane_refusal(step, spawned),
        Err(refused) => Ok(Some(refused)),
    }
}

fn lane_refusal(step: &Step<'_>, spawned: &Spawned) -> rusqlite::Result<Option<InvalidInput>> {
    let laned = spawned.tasks().filter_map(|task| task.lane.as_ref().map(|lane| (&task.queue, &lane.key)));
    let mut parallel: Option<&QueueName> = None;
    for (queue, key) in laned {
        if parallel == Some(queue) {
            continue;
        }
        if step.db.any(IS_SERIAL, [queue.as_str()])? {
            return Ok(Some(lane_in_serial_queue(key, queue)));
        }
        parallel = Some(queue);
    }
    Ok(None)
}

/// Completes a task that has spawned others: it waits for its children, or has ended.
pub(crate) fn complete(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &Leased,
    (result, spawned): (Option<String>, &Spawned),
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<Verdict> {
    if spawned.again {
        return resume(step, task, (result, spawned), lanes);
    }
    let waits = !spawned.children.is_empty();
    let old = if waits { children::forget(step, task.id)? } else { 0 };
    store(step, limits, task, spawned, waits)?;
    if !waits {
        end::end_leased(step, task, 1, Ending { state: State::Completed, error: None, result }, lanes)?;
        return Ok(Verdict::Completed);
    }
    let children = spawned.children.len() as u64 + old;
    let family = FamilyView {
        parent: TaskId(task.id),
        policy: spawned.policy,
        total: children,
        open: children,
        completed: 0,
        failed: 0,
        cancelled: 0,
        errors: vec![],
    };
    wait(step, task, Waits { result, then_again: spawned.then, family }, lanes)
}

/// A failed task leaves those follow-ups behind that are to run all the same.
pub(crate) fn keep_follow_ups(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &Leased,
    mut spawned: Spawned,
) -> rusqlite::Result<()> {
    spawned.children.clear();
    spawned.siblings.clear();
    spawned.follow_ups.retain(|follow_up| follow_up.on_failure == FollowUpOnFailure::Keep);
    match refusal(step, limits, task, &spawned)? {
        None => store(step, limits, task, &spawned, false),
        Some(_) => Ok(()),
    }
}

/// Children, siblings and follow-ups get their ids in this order.
fn store(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &Leased,
    spawned: &Spawned,
    held: bool,
) -> rusqlite::Result<()> {
    let child = |task_id, depth| move |task| New { task, origin: Origin::Child { parent: task_id, depth } };
    let children = spawned.children.iter().map(child(task.id, task.depth + 1));
    let siblings = spawned.siblings.iter().map(child(task.parent.unwrap_or_default(), task.depth));
    let follow_ups = spawned.follow_ups.iter().map(|follow_up| {
        let keep = follow_up.on_failure == FollowUpOnFailure::Keep;
        New { task: &follow_up.task, origin: Origin::FollowUp { after: task.id, held, keep } }
    });
    let new: Vec<_> = children.chain(siblings).chain(follow_ups).collect();
    let stored = enqueue::store(step, limits, &new)?;

    let (children, rest) = stored.split_at(spawned.children.len());
    let (siblings, follow_ups) = rest.split_at(spawned.siblings.len());
    remember(step, task.id, children, false)?;
    remember(step, task.id, follow_ups, true)?;
    if let Some(parent) = task.parent.filter(|_| !siblings.is_empty()) {
        step.families.added(parent, siblings.len());
        remember(step, parent, siblings, false)?;
    }
    Ok(())
}

/// Notes the range of ids in which the new ones are.
fn remember(step: &Step<'_>, parent: i64, stored: &[Enqueued], follow_ups: bool) -> rusqlite::Result<()> {
    let mut new = stored.iter().filter(|answer| answer.is_new()).map(|answer| answer.id.0);
    let Some(first) = new.next() else { return Ok(()) };
    let last = new.next_back().unwrap_or(first);
    children::remember(step, parent, (first, last), follow_ups)
}

/// What a task takes along when it begins to wait.
struct Waits {
    result: Option<String>,
    then_again: bool,
    family: FamilyView,
}

/// A top-level task keeps its turn while it waits; a child gives it up, so that no family can wait for itself.
fn wait(step: &mut Step<'_>, task: &Leased, waits: Waits, lanes: &mut Vec<i64>) -> rusqlite::Result<Verdict> {
    let holds_turn = task.lane != 0 && task.parent.is_none();
    // What children did earlier in this command is in the numbers that it begins with.
    step.families.forget(task.id);
    step.feed.entered(task.queue, State::Waiting, task.id, &task.kind);
    end::charge(step, task.id, Charge { attempts: 1, ..Charge::default() })?;
    let family = family::stored(&waits.family);
    step.db.run(TO_WAITING, params![task.id, waits.result, holds_turn, waits.then_again, family])?;
    end::leave(step, Table::Leased, task.id)?;
    if !holds_turn {
        end::release(step, task.lane, lanes)?;
    }
    Ok(Verdict::Waiting)
}

/// Lets the failed and cancelled children of a task start anew, and waits for them.
fn resume(
    step: &mut Step<'_>,
    task: &Leased,
    (result, spawned): (Option<String>, &Spawned),
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<Verdict> {
    let options: Option<String> = step.db.first(OPTIONS, [task.id], |row| row.get(0))?.flatten();
    let family = FamilyView::from_stored(options.as_deref());
    children::reopen(step, task.id)?;
    let open = children::count_open(step.db, task.id)?;
    let Some(mut family) = family.filter(|_| open > 0) else {
        let error = "no failed children are left; retry the task itself".to_owned();
        end::end_leased(step, task, 1, Ending::failed(error), lanes)?;
        return Ok(Verdict::Failed);
    };
    (family.open, family.failed, family.cancelled) = (open, 0, 0);
    family.total = family.completed + open;
    family.errors.clear();
    let options = changed_options(options.as_deref(), |members| {
        members.remove("resume");
    })?;
    step.db.run(SET_OPTIONS, params![task.id, options])?;
    wait(step, task, Waits { result, then_again: spawned.then, family }, lanes)
}
