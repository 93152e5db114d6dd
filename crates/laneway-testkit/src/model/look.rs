//! Compares what a store shows with what the model expects.

use std::collections::BTreeMap;

use laneway_core::{LaneLimit, QueueName, State, TaskId, TaskView};

use super::run::{same, told};
use super::schedules;
use super::state::{Bound, Model, Place, Task, Told};
use crate::store::TestStore;

/// Looks at the tasks that the last operation changed.
pub(super) async fn compare_touched(store: &TestStore, model: &Model) -> Result<(), String> {
    for id in &model.touched {
        compare_task(store, model, *id).await?;
    }
    Ok(())
}

/// Looks at all tasks that have not ended, all lanes, all schedules, the counts, and the store's own invariants.
pub(super) async fn compare_everything(store: &TestStore, model: &Model) -> Result<(), String> {
    for (id, task) in &model.tasks {
        if !matches!(task.place, Place::Ended(_)) {
            compare_task(store, model, *id).await?;
        }
    }
    compare_counts(store, model).await?;
    compare_lanes(store, model).await?;
    schedules::compare(store, model).await?;
    let violations = told(store.verify().await)?;
    if violations.is_empty() { Ok(()) } else { Err(format!("verify: {}", violations.join("; "))) }
}

async fn compare_task(store: &TestStore, model: &Model, id: TaskId) -> Result<(), String> {
    let Some(view) = told(store.get(id).await)? else { return Err(format!("task {id} is gone")) };
    compare_view(model, &model.tasks[&id], &view).map_err(|problem| format!("task {id}: {problem}; {view:?}"))
}

fn compare_view(model: &Model, task: &Task, view: &TaskView) -> Result<(), String> {
    let overdue_seen_pending = task.is_overdue(model.now) && view.state == State::Pending;
    if !overdue_seen_pending {
        same("state", view.state, state(task))?;
    }
    same("kind", &view.kind, &task.kind)?;
    same("queue", &view.queue, &task.queue)?;
    same("crashes", view.crashes, task.crashes)?;
    if !view.state.has_ended() {
        same("payload", view.payload.as_ref(), Some(&task.payload))?;
    }
    same("cancel_requested", view.cancel_requested, task.cancel_requested)?;
    match task.place {
        Place::Ended(State::Cancelled) => (),
        Place::Ended(_) if task.crashes > 0 => (),
        Place::Leased(_) => same("attempt", view.attempt, task.charged + 1)?,
        _ => same("attempt", view.attempt, task.charged)?,
    }
    match &task.error {
        Told::Anything => Ok(()),
        Told::Nothing => same("error", &view.error, &None),
        Told::Exactly(text) => same("error", view.error.as_deref(), Some(text)),
    }
}

fn state(task: &Task) -> State {
    match task.place {
        Place::Pending(_) => State::Pending,
        Place::Later { .. } => State::Later,
        Place::Leased(_) => State::Leased,
        Place::Ended(state) => state,
    }
}

async fn compare_counts(store: &TestStore, model: &Model) -> Result<(), String> {
    // An overdue task counts as pending or later, as the store likes; then only their sum is certain.
    let overdue = model.tasks.values().any(|task| task.is_overdue(model.now));
    let merged = |state| if overdue && state == State::Later { State::Pending } else { state };
    let mut expected: BTreeMap<(QueueName, State), u64> = BTreeMap::new();
    for task in model.tasks.values() {
        *expected.entry((task.queue.clone(), merged(state(task)))).or_default() += 1;
    }
    let mut found = BTreeMap::new();
    for count in told(store.counts().await)? {
        *found.entry((count.queue, merged(count.state))).or_default() += count.tasks;
    }
    same("counts", found, expected)
}

async fn compare_lanes(store: &TestStore, model: &Model) -> Result<(), String> {
    for (name, lane) in &model.lanes {
        let Some(view) = told(store.lane(&name.0, &name.1).await)? else { continue };
        let what = |field: &str| format!("{field} of lane `{}` in `{}`", name.1, name.0);
        same(&what("halted"), view.halted, lane.halted)?;
        same(&what("on_failure"), view.on_failure, lane.on_failure)?;
        same(&what("interval"), view.interval, super::UNIT * lane.interval as u32)?;
        let limit =
            if view.limit == LaneLimit::UNLIMITED { i64::MAX } else { i64::from(view.limit.stored()) };
        same(&what("limit"), limit, lane.limit)?;
        if model.in_lane(name).any(|(_, task)| task.is_overdue(model.now) || doubtful(task)) {
            continue;
        }
        let pending = model.in_lane(name).filter(|(_, task)| task.is_pending()).count() as u64;
        same(&what("pending"), view.pending, pending)?;
        same(&what("held"), view.held, model.held(name) as u64)?;
    }
    Ok(())
}

fn doubtful(task: &Task) -> bool {
    task.place == Place::Pending(Bound::Perhaps)
}
