//! Unique keys: taking them at enqueue, giving them up when a task starts or ends.
//!
//! The key of a task is in its options, so a task without one costs nothing. The index decides who is first: a key
//! is inserted, and only when that did nothing is it looked at who holds it.

use rusqlite::params;

use laneway_core::{
    Code, Effect, Enqueued, InvalidInput, Json, KeyScope, Limits, NewTask, OnConflict, StoreError, TaskId,
    TaskOptions, Unique, UniqueKey, content_hash,
};

use crate::clock::micros;
use crate::error::refused;
use crate::row::{self, Sql};
use crate::writer::Step;

const TAKE: &str = "
insert into unique_key (queue, kind, key, task_id, scope, expires_at, hash)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (queue, kind, key) do nothing";

const DELETE_EXPIRED: &str = "
delete from unique_key
where queue = ?1
  and kind = ?2
  and key = ?3
  and expires_at <= ?4";

const HOLDER: &str = "select task_id, hash from unique_key where queue = ?1 and kind = ?2 and key = ?3";

const RELEASE: &str = "
delete from unique_key
where queue = ?1
  and kind = ?2
  and key = ?3
  and task_id = ?4";

const REMOVE_EXPIRED: &str = "delete from unique_key where expires_at <= ?1";

const PAYLOAD_OF_TASK: &str = "select payload from task where id = ?1";
const PAYLOAD_OF_LATER: &str = "select payload from later where id = ?1";
const CHANGE_TASK: &str = "update task set payload = ?2 where id = ?1";
const CHANGE_LATER: &str = "update later set payload = ?2 where id = ?1";

const OPTIONS: &str = "
select queue, kind, options from task where id = ?1
union all
select queue, kind, options from later where id = ?1
union all
select queue, kind, options from leased where id = ?1
union all
select queue, kind, options from waiting where id = ?1";

/// Takes the key of a task that is to be stored as `id`, the first of its call being `first`, or tells who has it.
///
/// # Errors
/// When the key is taken and the task wants to be refused then; the whole call is undone.
pub(crate) fn take(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &NewTask,
    queue: i64,
    (first, id): (i64, i64),
) -> rusqlite::Result<Enqueued> {
    let Some(unique) = &task.unique else { return Ok(Enqueued::made(TaskId(id))) };
    let (holder, held_hash) = match insert(step, task, unique, queue, id)? {
        Ok(()) => return Ok(Enqueued::made(TaskId(id))),
        Err(held) => held,
    };
    // Of two tasks with one key in one call the first counts.
    let effect = if holder >= first { Effect::Existing } else { change(step, limits, task, unique, holder)? };
    let holder = TaskId(holder);
    match unique.on_conflict {
        OnConflict::Reject => Err(refused(StoreError::KeyTaken { key: unique.key.clone(), holder })),
        OnConflict::Same if content_hash(task) != held_hash => {
            Err(refused(StoreError::IdempotencyConflict { key: unique.key.clone(), holder }))
        }
        _ => Ok(Enqueued { id: holder, effect }),
    }
}

/// Takes the key of a task that is to be stored as `id`, unless somebody has it: then the task is not stored.
pub(crate) fn take_if_free(
    step: &Step<'_>,
    task: &NewTask,
    queue: i64,
    id: i64,
) -> rusqlite::Result<Enqueued> {
    let Some(unique) = &task.unique else { return Ok(Enqueued::made(TaskId(id))) };
    let holder = match insert(step, task, unique, queue, id)? {
        Ok(()) => return Ok(Enqueued::made(TaskId(id))),
        Err((holder, _)) => holder,
    };
    Ok(Enqueued { id: TaskId(holder), effect: Effect::Existing })
}

/// Takes a key, or tells who has it, and the hash of what that one is.
fn insert(
    step: &Step<'_>,
    task: &NewTask,
    unique: &Unique,
    queue: i64,
    id: i64,
) -> rusqlite::Result<Result<(), (i64, i64)>> {
    let (queue, kind) = if unique.is_store_wide() { (0, "") } else { (queue, task.kind.as_str()) };
    let (key, hash) = (unique.key.as_str(), content_hash(task));
    step.db.run(DELETE_EXPIRED, params![queue, kind, key, step.now])?;
    let expires_at = unique.scope.window().map(|window| step.now.saturating_add(micros(window)));
    let row = params![queue, kind, key, id, unique.scope.stored(), expires_at, hash];
    if step.db.run(TAKE, row)? > 0 {
        return Ok(Ok(()));
    }
    let held = step.db.first(HOLDER, params![queue, kind, key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Err(held.expect("what stopped the insert is there")))
}

/// Gives the payload to the task that holds the key, if that is wanted and the task still waits.
fn change(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &NewTask,
    unique: &Unique,
    holder: i64,
) -> rusqlite::Result<Effect> {
    let merge = match unique.on_conflict {
        OnConflict::Replace => false,
        OnConflict::Merge => true,
        _ => return Ok(Effect::Existing),
    };
    for (find, set) in [(PAYLOAD_OF_TASK, CHANGE_TASK), (PAYLOAD_OF_LATER, CHANGE_LATER)] {
        let Some(old) = step.db.first(find, [holder], |row| row.get::<_, String>(0))? else { continue };
        let new = if merge { Json::trusted(old).merged(&task.payload) } else { task.payload.clone() };
        check_size(limits, &new)?;
        step.db.run(set, params![holder, new.as_str()])?;
        return Ok(if merge { Effect::Merged } else { Effect::Replaced });
    }
    Ok(Effect::Existing)
}

fn check_size(limits: &Limits, payload: &Json) -> rusqlite::Result<()> {
    let (bytes, most) = (payload.as_str().len(), limits.payload_bytes_max);
    if bytes <= most {
        return Ok(());
    }
    let problem = format!(
        "has {bytes} bytes once merged, the limit is {most}; keep the data elsewhere and enqueue a reference"
    );
    Err(refused(InvalidInput::new(Code::PayloadTooLarge, "payload", problem).into()))
}

/// Gives up the key of a task that starts, if it holds it only until then.
pub(crate) fn release_started(
    step: &Step<'_>,
    queue: i64,
    kind: &str,
    id: i64,
    options: &TaskOptions,
) -> rusqlite::Result<()> {
    match &options.unique {
        Some(unique) if unique.scope == KeyScope::WhilePending => {
            step.db.run(RELEASE, params![queue, kind, unique.key.as_str(), id]).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// Gives up the key of a task that ends, wherever it still is. Keys that last for a time stay.
pub(crate) fn release_ended(step: &Step<'_>, id: i64) -> rusqlite::Result<()> {
    let found = step.db.first(OPTIONS, [id], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?))
    })?;
    let Some((queue, kind, Some(options))) = found else { return Ok(()) };
    match row::options(Some(&options))?.unique {
        Some(unique) if unique.scope.window().is_none() => {
            step.db.run(RELEASE, params![queue, kind, unique.key.as_str(), id]).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// Takes the key of a task that starts anew, and returns who holds it: the task itself, or another one.
pub(crate) fn take_again(
    step: &Step<'_>,
    queue: i64,
    kind: &str,
    key: &UniqueKey,
    id: i64,
) -> rusqlite::Result<i64> {
    let scope = KeyScope::WhileOpen.stored();
    step.db.run(DELETE_EXPIRED, params![queue, kind, key.as_str(), step.now])?;
    // Hashes are compared for idempotency keys only.
    step.db.run(TAKE, params![queue, kind, key.as_str(), id, scope, None::<i64>, 0])?;
    let holder = step.db.first(HOLDER, params![queue, kind, key.as_str()], |row| row.get(0))?;
    Ok(holder.unwrap_or(id))
}

/// Removes keys whose time is over.
pub(crate) fn remove_expired(step: &Step<'_>) -> rusqlite::Result<usize> {
    step.db.run(REMOVE_EXPIRED, [step.now])
}
