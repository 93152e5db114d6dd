//! Operators in the model: what they do to tasks, kinds and lanes.

use laneway_core::{Acted, Action, Actor, KeyScope, Pausable, Skip, State, TaskId};

use super::UNIT;
use super::family::Family;
use super::run::{same, told};
use super::script::{ActOp, KINDS, LANES, QUEUES};
use super::state::{Held, LaneName, Model, Place};
use crate::store::{TestStore, kind, lane_key, queue};

/// Carries out an operation on the store and on the model.
pub(super) async fn carry_out(store: &TestStore, model: &mut Model, op: &ActOp) -> Result<(), String> {
    match op {
        ActOp::Retry { which } => act(store, model, Action::Retry, *which).await,
        ActOp::RetryChildren { which } => act(store, model, Action::RetryChildren, *which).await,
        ActOp::Snooze { which, units } => {
            act(store, model, Action::Snooze(UNIT * *units as u32), *which).await
        }
        ActOp::Delete { which } => act(store, model, Action::Delete, *which).await,
        ActOp::SetPriority { which, priority } => {
            act(store, model, Action::SetPriority(*priority), *which).await
        }
        ActOp::PauseKind { kind: which } => {
            let was_running = model.paused_kinds.insert(kind(KINDS[*which]));
            pause(store, Pausable::Kind(kind(KINDS[*which])), was_running).await
        }
        ActOp::ResumeKind { kind: which } => {
            let was_paused = model.paused_kinds.remove(&kind(KINDS[*which]));
            resume(store, Pausable::Kind(kind(KINDS[*which])), was_paused).await
        }
        ActOp::PauseLane { queue, lane } => {
            let name = lane_name(*queue, *lane);
            let lane = model.lanes.entry(name.clone()).or_default();
            let was_running = !std::mem::replace(&mut lane.paused, true);
            pause(store, Pausable::Lane(name.0, name.1), was_running).await
        }
        ActOp::EndLanePause { queue, lane } => {
            let name = lane_name(*queue, *lane);
            let lane = model.lanes.get_mut(&name);
            let was_paused = lane.is_some_and(|lane| std::mem::take(&mut lane.paused));
            resume(store, Pausable::Lane(name.0, name.1), was_paused).await
        }
    }
}

async fn pause(store: &TestStore, what: Pausable, expected: bool) -> Result<(), String> {
    same("pause", told(store.pause(&Actor::program(), &what, None).await)?, expected)
}

async fn resume(store: &TestStore, what: Pausable, expected: bool) -> Result<(), String> {
    same("resume", told(store.resume(&Actor::program(), &what).await)?, expected)
}

async fn act(store: &TestStore, model: &mut Model, action: Action, which: usize) -> Result<(), String> {
    let known = model.tasks.len();
    let id = model.tasks.keys().copied().nth(which % (known + 1)).unwrap_or(TaskId(999_999_999));
    let Some(expected) = expect(model, action, id) else { return Ok(()) };
    model.fold();
    let answer = told(store.act(&Actor::program(), action, &[id]).await)?;
    same(&format!("{action:?} of {id}"), &answer[..], &[expected])
}

/// What the store must answer, and follows it. None: the contract leaves too much open, so it is not tried.
fn expect(model: &mut Model, action: Action, id: TaskId) -> Option<Acted> {
    let Some(task) = model.tasks.get(&id) else { return Some(Acted::Skipped(Skip::NotFound)) };
    // An overdue task may or may not have been moved; of a success the model does not know whether it was plain.
    if task.is_overdue(model.now) || task.is_scheduled {
        return None;
    }
    match (action, task.place) {
        (Action::Delete, Place::Ended(State::Completed)) => None,
        (Action::Retry | Action::RetryChildren, Place::Ended(State::Completed)) => {
            Some(Acted::Skipped(Skip::Ended(State::Completed)))
        }
        (Action::Retry, Place::Ended(_)) => Some(retry(model, id, false)),
        (Action::RetryChildren, Place::Ended(_)) => {
            let has_failed = task.family.as_ref().is_some_and(Family::has_failed);
            Some(if has_failed { retry(model, id, true) } else { Acted::Skipped(Skip::NoFailedChildren) })
        }
        (Action::Retry | Action::RetryChildren, _) => Some(Acted::Skipped(Skip::Open)),
        (_, Place::Waiting) | (Action::Snooze(_), Place::Held { .. }) => Some(Acted::Skipped(Skip::Waiting)),
        (_, Place::Leased(_)) => Some(Acted::Skipped(Skip::Running)),
        (Action::Delete, _) => {
            model.keys.retain(|_, held| held.task != id || held.expires.is_some());
            let task = model.tasks.remove(&id)?;
            if task.is_open() {
                model.tell_family(id, task.parent, State::Cancelled);
            }
            Some(Acted::Done)
        }
        (_, Place::Ended(state)) => Some(Acted::Skipped(Skip::Ended(state))),
        (Action::SetPriority(priority), _) if task.priority == priority => {
            Some(Acted::Skipped(Skip::Unchanged))
        }
        (Action::SetPriority(priority), _) => {
            model.touched.insert(id);
            model.tasks.get_mut(&id)?.priority = priority;
            Some(Acted::Done)
        }
        (Action::Snooze(delay), place) => {
            let holds_turn = matches!(place, Place::Later { holds_turn: true, .. });
            let due = model.now + delay.as_secs() / UNIT.as_secs();
            model.touched.insert(id);
            model.tasks.get_mut(&id)?.place = Place::Later { due, holds_turn };
            Some(Acted::Done)
        }
        _ => None,
    }
}

fn retry(model: &mut Model, id: TaskId, resume: bool) -> Acted {
    let task = &model.tasks[&id];
    if let Some(unique) = task.unique.clone().filter(|unique| unique.scope == KeyScope::WhileOpen) {
        let name = (Some((task.queue.clone(), task.kind.clone())), unique.key);
        let held =
            model.keys.get(&name).filter(|held| held.expires.is_none_or(|expires| expires > model.now));
        if let Some(held) = held {
            return Acted::Skipped(Skip::KeyHeld(held.task));
        }
        let held = Held { task: id, scope: KeyScope::WhileOpen, expires: None, content: 0 };
        model.keys.insert(name, held);
    }
    model.start_anew(id, resume);
    Acted::Done
}

fn lane_name(place: usize, lane: usize) -> LaneName {
    (queue(QUEUES[place]), lane_key(LANES[lane]))
}
