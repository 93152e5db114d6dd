//! The model's part about unique keys: who is refused, and who is answered with whom.

use laneway_core::{
    Effect, Enqueued, KeyScope, NewTask, OnConflict, TaskId, Unique, UniqueKey, content_hash,
};

use super::UNIT;
use super::run::same;
use super::script::{KEYS, ScopePick, UniquePick};
use super::state::{Held, KeyName, Model, Place};

/// The key that a script picked.
pub(super) fn of_pick(pick: UniquePick) -> Unique {
    let key = UniqueKey::new(KEYS[pick.key]).expect("scripts pick valid keys");
    let scope = match pick.scope {
        ScopePick::Pending => KeyScope::WhilePending,
        ScopePick::Open => KeyScope::WhileOpen,
        ScopePick::Within(units) => KeyScope::Within(UNIT * units as u32),
    };
    match pick.conflict {
        0 => Unique::new(key).scope(scope),
        1 => Unique::new(key).scope(scope).on_conflict(OnConflict::Replace),
        2 => Unique::new(key).scope(scope).on_conflict(OnConflict::Merge),
        3 => Unique::new(key).scope(scope).on_conflict(OnConflict::Reject),
        _ => Unique::idempotent(key).scope(KeyScope::Within(scope.window().unwrap_or(UNIT))),
    }
}

fn name(task: &NewTask, unique: &Unique) -> KeyName {
    let place = (!unique.is_store_wide()).then(|| (task.queue.clone(), task.kind.clone()));
    (place, unique.key.clone())
}

/// Who holds the key of `task` now.
fn holder<'a>(model: &'a Model, task: &NewTask, unique: &Unique) -> Option<&'a Held> {
    let held = model.keys.get(&name(task, unique))?;
    held.expires.is_none_or(|expires| expires > model.now).then_some(held)
}

/// The code of the refusal that a bulk must meet, if it must.
pub(super) fn expected_refusal(model: &Model, tasks: &[NewTask]) -> Option<&'static str> {
    let mut earlier: Vec<(KeyName, i64)> = vec![];
    for task in tasks {
        let Some(unique) = &task.unique else { continue };
        let (name, content) = (name(task, unique), content_hash(task));
        let in_bulk = earlier.iter().find(|(key, _)| *key == name).map(|(_, content)| *content);
        let held = holder(model, task, unique).map(|held| held.content).or(in_bulk);
        match (held, unique.on_conflict) {
            (Some(_), OnConflict::Reject) => return Some("unique_conflict"),
            (Some(other), OnConflict::Same) if other != content => return Some("idempotency_conflict"),
            (Some(_), _) => (),
            (None, _) => earlier.push((name, content)),
        }
    }
    None
}

/// Judges one answer of a bulk whose first new task is `first`, and follows it. True when a task was stored.
pub(super) fn follow(
    model: &mut Model,
    task: &NewTask,
    answer: Enqueued,
    first: Option<TaskId>,
) -> Result<bool, String> {
    let Some(unique) = &task.unique else {
        return same("effect", answer.effect, Effect::Made).map(|()| true);
    };
    let Some(held) = holder(model, task, unique).cloned() else {
        same("effect", answer.effect, Effect::Made)?;
        let expires = unique.scope.window().map(|window| model.now + window.as_secs() / UNIT.as_secs());
        let held = Held { task: answer.id, scope: unique.scope, expires, content: content_hash(task) };
        model.keys.insert(name(task, unique), held);
        return Ok(true);
    };
    same("holder", answer.id, held.task)?;
    let in_bulk = first.is_some_and(|first| held.task >= first);
    let effect = if in_bulk { Effect::Existing } else { change(model, task, unique, held.task) };
    same("effect", answer.effect, effect).map(|()| false)
}

fn change(model: &mut Model, new: &NewTask, unique: &Unique, holder: TaskId) -> Effect {
    let Some(task) = model.tasks.get_mut(&holder) else { return Effect::Existing };
    if !matches!(task.place, Place::Pending(_) | Place::Later { .. }) {
        return Effect::Existing;
    }
    model.touched.insert(holder);
    match unique.on_conflict {
        OnConflict::Replace => {
            task.payload = new.payload.clone();
            Effect::Replaced
        }
        OnConflict::Merge => {
            task.payload = task.payload.merged(&new.payload);
            Effect::Merged
        }
        _ => Effect::Existing,
    }
}
