//! Judges a claim: the number must be exact, and every task must have had the right to be taken.

use std::collections::{BTreeMap, BTreeSet};

use laneway_core::{Claimed, Kinds, QueueName, TaskId};

use super::state::{Bound, Lane, LaneName, Model, Place, Task};

/// A wish for tasks of one queue.
#[derive(Debug)]
pub(super) struct Wish {
    pub queue: QueueName,
    pub max: usize,
    pub kinds: Kinds,
}

impl Wish {
    fn handles(&self, model: &Model, task: &Task) -> bool {
        if model.paused_kinds.contains(&task.kind) {
            return false;
        }
        match &self.kinds {
            Kinds::All => true,
            Kinds::Only(kinds) => kinds.contains(&task.kind),
        }
    }
}

/// What a lane may give to one claim.
#[derive(Debug, Default)]
struct Offer {
    /// At least this many, if the claim has room.
    least: usize,
    /// At most this many.
    most: usize,
    /// Other tasks, which must be taken in this order.
    in_order: Vec<TaskId>,
    /// Tasks that may be taken because it is not certain what the turns are bound to.
    perhaps: Vec<TaskId>,
}

/// Judges what a store claimed for one wish.
pub(super) fn judge(model: &Model, wish: &Wish, claimed: &[&Claimed]) -> Result<(), String> {
    let taken: BTreeSet<TaskId> = claimed.iter().map(|one| one.task.id).collect();
    if taken.len() != claimed.len() {
        return Err("a task was claimed twice in one claim".into());
    }
    if model.paused.contains(&wish.queue) {
        return if taken.is_empty() { Ok(()) } else { Err(format!("{taken:?} claimed from a paused queue")) };
    }
    let free: Vec<TaskId> = free_tasks(model, wish);
    let offers: BTreeMap<&LaneName, Offer> = model
        .lanes
        .iter()
        .filter(|(name, _)| name.0 == wish.queue)
        .map(|(name, lane)| (name, offer(model, wish, name, lane)))
        .collect();

    judge_number(wish, &free, &offers, taken.len())?;
    judge_free(&free, &taken)?;
    for (name, offer) in &offers {
        let of_lane: BTreeSet<TaskId> =
            taken.iter().copied().filter(|id| model.tasks[id].lane_name().as_ref() == Some(name)).collect();
        judge_lane(offer, &of_lane).map_err(|problem| format!("lane `{}`: {problem}; {offer:?}", name.1))?;
    }
    if taken.len() == wish.max && !serves_lanes_where_they_stand(model, wish) {
        judge_priorities(model, &free, &offers, &taken)?;
    }
    Ok(())
}

/// A lane of limit above 1 stands in line for its head. A worker that must pass over the head, because others run its
/// kind or the kind is paused, may take what is behind it at the same place, though it is less urgent.
fn serves_lanes_where_they_stand(model: &Model, wish: &Wish) -> bool {
    let wide = model.lanes.iter().any(|(name, lane)| name.0 == wish.queue && lane.limit != 1);
    wide && (wish.kinds != Kinds::All || !model.paused_kinds.is_empty())
}

fn by_rank(model: &Model, mut tasks: Vec<TaskId>) -> Vec<TaskId> {
    tasks.sort_by_key(|id| (model.tasks[id].priority, *id));
    tasks
}

fn free_tasks(model: &Model, wish: &Wish) -> Vec<TaskId> {
    let free = model.tasks.iter().filter(|(_, task)| {
        task.queue == wish.queue && task.lane.is_none() && task.is_pending() && wish.handles(model, task)
    });
    by_rank(model, free.map(|(id, _)| *id).collect())
}

fn offer(model: &Model, wish: &Wish, name: &LaneName, lane: &Lane) -> Offer {
    let turns = (lane.limit - model.held(name)).max(0) as usize;
    if lane.halted || lane.paused || turns == 0 || model.now < lane.not_before {
        return Offer::default();
    }
    let pending: Vec<(TaskId, &Task)> = model.in_lane(name).filter(|(_, task)| task.is_pending()).collect();
    let mut offer =
        if lane.limit == 1 { ordered(model, wish, &pending) } else { wide(model, wish, &pending, turns) };
    if lane.interval > 0 {
        (offer.least, offer.most) = (offer.least.min(1), offer.most.min(1));
    }
    if model.now < lane.surely_from {
        offer.least = 0;
    }
    offer
}

fn with(pending: &[(TaskId, &Task)], bound: Bound) -> Vec<TaskId> {
    pending.iter().filter(|(_, task)| task.place == Place::Pending(bound)).map(|(id, _)| *id).collect()
}

/// Limit 1: the bound task, else the head, or nothing.
fn ordered(model: &Model, wish: &Wish, pending: &[(TaskId, &Task)]) -> Offer {
    let (bound, doubtful) = (with(pending, Bound::Yes), with(pending, Bound::Perhaps));
    let head = by_rank(model, pending.iter().map(|(id, _)| *id).collect()).into_iter().next();
    let candidates = match (bound.is_empty(), doubtful.is_empty()) {
        (false, _) => bound,
        (true, true) => head.into_iter().collect(),
        (true, false) => doubtful.into_iter().chain(head).collect(),
    };
    let (handled, other): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|id| wish.handles(model, &model.tasks[id]));
    let most = handled.len().min(1);
    Offer { least: if other.is_empty() { most } else { 0 }, most, perhaps: handled, ..Default::default() }
}

/// Limit above 1: tasks that came back, and the first of the others that the caller can run. Where order is not promised,
/// a store may give the turn of a task that came back to another one.
fn wide(model: &Model, wish: &Wish, pending: &[(TaskId, &Task)], turns: usize) -> Offer {
    let handled = |ids: Vec<TaskId>| -> Vec<TaskId> {
        ids.into_iter().filter(|id| wish.handles(model, &model.tasks[id])).collect()
    };
    let all_doubtful = [with(pending, Bound::Yes), with(pending, Bound::Perhaps)].concat();
    let in_order = by_rank(model, handled(with(pending, Bound::No)));
    if all_doubtful.is_empty() {
        let number = in_order.len().min(turns);
        return Offer { least: number, most: number, in_order, ..Default::default() };
    }
    let idle = all_doubtful.len().min(turns);
    let perhaps: Vec<_> = handled(all_doubtful).into_iter().chain(in_order).collect();
    Offer {
        least: perhaps.len().min(turns - idle),
        most: perhaps.len().min(turns),
        perhaps,
        ..Default::default()
    }
}

fn judge_number(
    wish: &Wish,
    free: &[TaskId],
    offers: &BTreeMap<&LaneName, Offer>,
    number: usize,
) -> Result<(), String> {
    let least = wish.max.min(free.len() + offers.values().map(|offer| offer.least).sum::<usize>());
    let most = wish.max.min(free.len() + offers.values().map(|offer| offer.most).sum::<usize>());
    if (least..=most).contains(&number) {
        return Ok(());
    }
    let open: Vec<_> = offers.iter().filter(|(_, offer)| offer.most > 0).collect();
    Err(format!("{number} tasks were claimed, it should be {least} to {most}; free {free:?}, lanes {open:?}"))
}

fn judge_free(free: &[TaskId], taken: &BTreeSet<TaskId>) -> Result<(), String> {
    let count = free.iter().filter(|id| taken.contains(id)).count();
    if free[..count].iter().all(|id| taken.contains(id)) {
        return Ok(());
    }
    Err(format!("free tasks were not claimed in order: {taken:?} of {free:?}"))
}

fn judge_lane(offer: &Offer, taken: &BTreeSet<TaskId>) -> Result<(), String> {
    if taken.len() > offer.most {
        return Err(format!("{taken:?} were claimed, at most {} may start", offer.most));
    }
    let rest: BTreeSet<TaskId> = taken.iter().copied().filter(|id| !offer.perhaps.contains(id)).collect();
    let first: BTreeSet<TaskId> = offer.in_order.iter().copied().take(rest.len()).collect();
    if rest == first {
        return Ok(());
    }
    Err(format!("{rest:?} were claimed, {first:?} are first"))
}

/// A full claim took the best, and within the last priority lanes and free tasks alternate.
fn judge_priorities(
    model: &Model,
    free: &[TaskId],
    offers: &BTreeMap<&LaneName, Offer>,
    taken: &BTreeSet<TaskId>,
) -> Result<(), String> {
    let priority = |id: &TaskId| model.tasks[id].priority;
    let Some(worst) = taken.iter().map(priority).max() else { return Ok(()) };
    let left_free = free.iter().filter(|id| !taken.contains(id)).map(priority).min();
    let left_laned =
        offers.values().filter_map(|offer| next_in_lane(offer, taken)).map(|id| priority(&id)).min();
    for (what, left) in [("free task", left_free), ("lane", left_laned)] {
        if left.is_some_and(|left| left < worst) {
            return Err(format!("a {what} of priority {left:?} was left behind, one of {worst} was claimed"));
        }
    }
    if left_free != Some(worst) || left_laned != Some(worst) {
        return Ok(());
    }
    let (laned, free): (Vec<TaskId>, Vec<TaskId>) =
        taken.iter().filter(|id| priority(id) == worst).partition(|id| model.tasks[id].lane.is_some());
    if laned.len().abs_diff(free.len()) <= 1 {
        return Ok(());
    }
    Err(format!(
        "{} of lanes and {} free tasks of priority {worst} do not alternate",
        laned.len(),
        free.len()
    ))
}

/// The task that a lane would certainly have given next.
fn next_in_lane(offer: &Offer, taken: &BTreeSet<TaskId>) -> Option<TaskId> {
    let all = || offer.in_order.iter().chain(&offer.perhaps);
    if all().filter(|id| taken.contains(id)).count() >= offer.least {
        return None;
    }
    // In doubt it is the store's choice which comes next; only a single candidate is certain.
    let certain = match offer.perhaps.len() {
        0 => &offer.in_order,
        1 => &offer.perhaps,
        _ => return None,
    };
    certain.iter().find(|id| !taken.contains(id)).copied()
}
