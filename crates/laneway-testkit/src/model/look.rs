//! Compares what a store shows with what the model expects.

use std::collections::{BTreeMap, BTreeSet};

use laneway_core::{
    Filter, LaneLimit, LaneListing, LaneOrder, Listing, Place as List, QueueName, Reason, State, TaskId,
    TaskView,
};

use super::family;
use super::run::{same, told};
use super::schedules;
use super::script::{KINDS, QUEUES};
use super::state::{Bound, Model, Place, Task, Told};
use crate::store::{TestStore, queue};

/// Looks at the tasks that the last operation changed.
pub(super) async fn compare_touched(store: &TestStore, model: &Model) -> Result<(), String> {
    for id in &model.touched {
        compare_task(store, model, *id).await?;
    }
    // Every look costs a round trip, so some tasks stand for all.
    for id in model.touched.iter().take(2) {
        compare_why(store, model, *id).await.map_err(|problem| format!("why {id}: {problem}"))?;
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
    compare_lane_list(store, model).await?;
    compare_filters(store, model).await?;
    schedules::compare(store, model).await?;
    let violations = told(store.verify().await)?;
    if violations.is_empty() { Ok(()) } else { Err(format!("verify: {}", violations.join("; "))) }
}

async fn compare_task(store: &TestStore, model: &Model, id: TaskId) -> Result<(), String> {
    let Some(view) = told(store.get(id).await)? else { return Err(format!("task {id} is gone")) };
    let task = &model.tasks[&id];
    let compared = compare_view(model, task, &view).and_then(|()| family::compare(model, id, task, &view));
    compared.map_err(|problem| format!("task {id}: {problem}; {view:?}"))
}

/// Looks at the first reason, which follows from the state, and at the pauses.
async fn compare_why(store: &TestStore, model: &Model, id: TaskId) -> Result<(), String> {
    let (view, why) = (told(store.get(id).await)?, told(store.why(id).await)?);
    let Some((view, why)) = view.zip(why) else { return Err("is not known".into()) };
    same("state", why.state, view.state)?;
    let first = why.reasons.first();
    let fits = match view.state {
        State::Later if view.due_at.is_none() => matches!(first, Some(Reason::After { .. })),
        State::Later => matches!(first, Some(Reason::Due { .. } | Reason::BackOff { .. })),
        State::Waiting => matches!(first, Some(Reason::Waiting { .. })) && why.reasons.len() == 1,
        State::Leased => matches!(first, Some(Reason::Running { .. })) && why.reasons.len() == 1,
        State::Pending => first.is_some(),
        _ => matches!(first, Some(Reason::Ended { state, .. }) if *state == view.state),
    };
    if !fits {
        return Err(format!("reasons {:?}", why.reasons));
    }
    if view.state != State::Pending {
        return Ok(());
    }
    let has = |wanted: fn(&Reason) -> bool| why.reasons.iter().any(wanted);
    same("queue paused", has(|it| matches!(it, Reason::QueuePaused(_))), model.paused.contains(&view.queue))?;
    same(
        "kind paused",
        has(|it| matches!(it, Reason::KindPaused(_))),
        model.paused_kinds.contains(&view.kind),
    )?;
    let alone = why.reasons.len() == 1;
    same("claimable alone", has(|it| matches!(it, Reason::Claimable)) && !alone, false)
}

/// What filters find, over all lists together: an overdue task may be in one or the other.
async fn compare_filters(store: &TestStore, model: &Model) -> Result<(), String> {
    for (queue, kind) in QUEUES.iter().flat_map(|queue| KINDS.map(|kind| (queue, kind))) {
        let mine = |task: &&Task| task.queue.as_str() == *queue && task.kind.as_str() == kind;
        let expected = model.tasks.iter().filter(|(_, task)| mine(task)).map(|(id, _)| *id).collect();
        let found = find(store, &format!("queue:{queue} kind:{kind}")).await?;
        same(&format!("tasks of `{queue}` and `{kind}`"), found, expected)?;
    }
    for wanted in [State::Leased, State::Waiting, State::Completed, State::Failed, State::Cancelled] {
        let expected =
            model.tasks.iter().filter(|(_, task)| state(task) == wanted).map(|(id, _)| *id).collect();
        same(&format!("tasks that are {wanted}"), find(store, &format!("state:{wanted}")).await?, expected)?;
    }
    Ok(())
}

async fn find(store: &TestStore, filter: &str) -> Result<BTreeSet<TaskId>, String> {
    let filter: Filter = filter.parse().map_err(|problem| format!("{problem}"))?;
    let mut found = BTreeSet::new();
    for place in [List::Pending, List::Later, List::Leased, List::Waiting, List::Ended] {
        let mut listing = Listing::of(place).filter(filter.clone()).limit(50);
        loop {
            let page = told(store.list(listing.clone()).await)?;
            found.extend(page.tasks.iter().map(|task| task.id));
            let Some(next) = page.next else { break };
            listing = listing.after(next);
        }
    }
    Ok(found)
}

/// Every lane with runnable tasks is listed, and as a look at it shows it.
async fn compare_lane_list(store: &TestStore, model: &Model) -> Result<(), String> {
    for name in QUEUES {
        let listing = LaneListing::of(queue(name)).order(LaneOrder::Key);
        let listed = told(store.lanes(listing).await)?.lanes;
        for ((_, key), _) in model.lanes.iter().filter(|((queue, _), _)| queue.as_str() == name) {
            let lane = told(store.lane(&queue(name), key).await)?;
            let found = listed.iter().find(|listed| listed.key == *key);
            if lane.is_some() {
                same(&format!("lane `{key}` of `{name}` in the list"), found, lane.as_ref())?;
            }
            // Lanes of children have the same keys, and are not listed.
            let waits = model.tasks.values().any(|task| {
                let is_here = task.queue.as_str() == name && task.lane.as_ref() == Some(key);
                is_here && task.parent.is_none() && task.is_pending()
            });
            if waits && found.is_none() {
                return Err(format!("lane `{key}` of `{name}` is not listed"));
            }
        }
    }
    Ok(())
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
        Place::Later { .. } | Place::Held { .. } => State::Later,
        Place::Waiting => State::Waiting,
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
