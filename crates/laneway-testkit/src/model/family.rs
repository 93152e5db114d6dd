//! Families in the model: what a settle spawns, how parents end, and what operators do to both.
//!
//! A store counts the ends of children when a step has settled everything ([`Model::fold`]), so the model does, too: until
//! then a family that fails fast has not stopped its other children.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use laneway_core::{
    FamilyPolicy, FollowUp, FollowUpOnFailure, NewTask, Settle, Spawned, State, TaskId, TaskView, Verdict,
    When,
};

use super::UNIT;
use super::run::{same, told};
use super::state::{Bound, Model, Place, Task, Told};
use crate::store::TestStore;

/// What a task that had children knows about them.
#[derive(Clone, Debug)]
pub(super) struct Family {
    policy: FamilyPolicy,
    then: bool,
    stopping: Option<State>,
    /// Something has joined it since it was last folded.
    grew: bool,
    total: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
}

impl Family {
    fn new(policy: FamilyPolicy, then: bool, total: u64) -> Self {
        Self { policy, then, stopping: None, grew: false, total, completed: 0, failed: 0, cancelled: 0 }
    }

    pub fn has_failed(&self) -> bool {
        self.failed + self.cancelled > 0
    }

    fn number(&mut self, state: State) -> &mut u64 {
        match state {
            State::Completed => &mut self.completed,
            State::Failed => &mut self.failed,
            _ => &mut self.cancelled,
        }
    }
}

/// The tasks that a store has spawned and the model does not know yet, in order.
#[derive(Debug, Default)]
pub(super) struct News {
    children: BTreeMap<TaskId, VecDeque<TaskId>>,
    follow_ups: BTreeMap<TaskId, VecDeque<TaskId>>,
}

impl News {
    /// Asks the store for what `settles` may have spawned.
    pub async fn learn(store: &TestStore, model: &Model, settles: &[Settle]) -> Result<Self, String> {
        let unknown = |views: Vec<TaskView>| -> VecDeque<TaskId> {
            views.iter().map(|view| view.id).filter(|id| !model.tasks.contains_key(id)).collect()
        };
        let mut news = Self::default();
        for settle in settles.iter().filter(|settle| settle.spawned.is_some()) {
            let parent = model.tasks.get(&settle.task).and_then(|task| task.parent);
            for id in parent.into_iter().chain([settle.task]) {
                let children = told(store.children(laneway_core::Children::of(id)).await)?;
                news.children.insert(id, unknown(children));
            }
            news.follow_ups.insert(settle.task, unknown(told(store.follow_ups(settle.task).await)?));
        }
        Ok(news)
    }

    /// Everything that the store has stored must have been expected.
    pub fn check(&self) -> Result<(), String> {
        let left = |news: &BTreeMap<TaskId, VecDeque<TaskId>>| news.values().flatten().count();
        same("spawned tasks that nobody expected", left(&self.children) + left(&self.follow_ups), 0)
    }
}

fn next(news: &mut BTreeMap<TaskId, VecDeque<TaskId>>, of: TaskId) -> TaskId {
    let next = news.get_mut(&of).and_then(VecDeque::pop_front);
    next.unwrap_or_else(|| panic!("task {of} should have spawned more than the store shows"))
}

impl Task {
    fn new(task: &NewTask, now: u64) -> Self {
        let delay = match task.when {
            When::After(delay) => delay.as_secs() / UNIT.as_secs(),
            _ => 0,
        };
        Self {
            queue: task.queue.clone(),
            lane: task.lane.as_ref().map(|lane| lane.key.clone()),
            payload: task.payload.clone(),
            priority: task.priority,
            max_attempts: task.max_attempts,
            place: match delay {
                0 => Place::Pending(Bound::No),
                units => Place::Later { due: now + units, holds_turn: false },
            },
            ..Self::of(task.kind.clone())
        }
    }

    pub fn is_open(&self) -> bool {
        !matches!(self.place, Place::Ended(_))
    }
}

impl Model {
    /// The settle of a completed attempt that has spawned something.
    pub fn complete_spawning(&mut self, id: TaskId, spawned: &Spawned, news: &mut News) -> Verdict {
        let task = &self.tasks[&id];
        let waits = spawned.again || !spawned.children.is_empty();
        if waits && task.cancel_requested {
            self.end(id, State::Cancelled, Told::Exactly("cancelled".into()));
            return Verdict::Cancelled;
        }
        if !spawned.siblings.is_empty() && task.parent.is_none() {
            let text = "no_parent: siblings need a parent, and this task has none; spawn children instead";
            self.end(id, State::Failed, Told::Exactly(text.into()));
            return Verdict::Failed;
        }
        if spawned.again {
            return self.resume(id, spawned.then);
        }
        let old = if waits { self.forget_brood(id) } else { 0 };
        let (parent, depth) = (task_parent(self, id), self.tasks[&id].depth);
        for child in &spawned.children {
            self.add_child(next(&mut news.children, id), child, id, depth + 1);
        }
        for sibling in &spawned.siblings {
            let parent = parent.expect("checked above");
            self.add_child(next(&mut news.children, parent), sibling, parent, depth);
            self.joined(parent, |family| family.total += 1);
        }
        self.add_follow_ups(id, &spawned.follow_ups, waits, news);
        if !waits {
            self.end(id, State::Completed, Told::Anything);
            return Verdict::Completed;
        }
        let total = spawned.children.len() as u64 + old;
        self.wait(id, Family::new(spawned.policy, spawned.then, total))
    }

    /// A failed attempt leaves those follow-ups that are kept.
    pub fn keep_follow_ups(&mut self, id: TaskId, spawned: &Spawned, news: &mut News) {
        let kept = |follow_up: &&FollowUp| follow_up.on_failure == FollowUpOnFailure::Keep;
        let kept: Vec<_> = spawned.follow_ups.iter().filter(kept).cloned().collect();
        self.add_follow_ups(id, &kept, false, news);
    }

    fn add_child(&mut self, id: TaskId, child: &NewTask, parent: TaskId, depth: u32) {
        let task = Task { parent: Some(parent), depth, ..Task::new(child, self.now) };
        if let Some(name) = task.lane_name() {
            self.lanes.entry(name).or_default();
        }
        self.touched.insert(id);
        self.tasks.insert(id, task);
        if let Some(parent) = self.tasks.get_mut(&parent) {
            parent.brood.insert(id);
        }
    }

    fn add_follow_ups(&mut self, after: TaskId, follow_ups: &[FollowUp], held: bool, news: &mut News) {
        for follow_up in follow_ups {
            let id = next(&mut news.follow_ups, after);
            let mut task = Task::new(&follow_up.task, self.now);
            if held {
                let delay = match task.place {
                    Place::Later { due, .. } => due - self.now,
                    _ => 0,
                };
                task.place =
                    Place::Held { after, keep: follow_up.on_failure == FollowUpOnFailure::Keep, delay };
            }
            if let Some(name) = task.lane_name() {
                self.lanes.entry(name).or_default();
            }
            self.touched.insert(id);
            self.tasks.insert(id, task);
        }
    }

    fn wait(&mut self, id: TaskId, family: Family) -> Verdict {
        let task = self.task(id);
        task.charged += 1;
        task.place = Place::Waiting;
        task.family = Some(family);
        task.resume = false;
        Verdict::Waiting
    }

    /// Lets failed children start anew.
    fn resume(&mut self, id: TaskId, then: bool) -> Verdict {
        let brood: Vec<_> = self.tasks[&id].brood.iter().copied().collect();
        for child in brood {
            if matches!(self.tasks.get(&child).map(|task| task.place), Some(Place::Ended(state)) if state != State::Completed)
            {
                let has_failed = self.tasks[&child].family.as_ref().is_some_and(Family::has_failed);
                self.start_anew(child, has_failed);
            }
        }
        let Some(mut family) =
            self.tasks[&id].family.clone().filter(|_| self.open_children(id).next().is_some())
        else {
            let text = "no failed children are left; retry the task itself";
            self.end(id, State::Failed, Told::Exactly(text.into()));
            return Verdict::Failed;
        };
        (family.failed, family.cancelled, family.then) = (0, 0, then);
        family.total = family.completed + self.open_children(id).count() as u64;
        (family.stopping, family.grew) = (None, false);
        self.wait(id, family)
    }

    /// Makes an ended task pending: whole, or only with its failed children.
    pub fn start_anew(&mut self, id: TaskId, resume: bool) {
        if !resume {
            self.forget_brood(id);
        }
        if let Some(name) = self.tasks[&id].lane_name() {
            self.lanes.entry(name).or_default(); // it may have been forgotten
        }
        let task = self.task(id);
        let Place::Ended(state) = task.place else { panic!("task {id} has not ended") };
        task.place = Place::Pending(Bound::No);
        (task.charged, task.crashes, task.resume) = (0, 0, resume);
        if !resume {
            task.family = None;
        }
        if let Some(parent) = task_parent(self, id) {
            let joins = self.tasks.get_mut(&parent).is_some_and(|parent| parent.brood.insert(id));
            self.joined(parent, |family| match joins {
                true => family.total += 1,
                false => *family.number(state) -= 1,
            });
        }
    }

    /// Forgets former children unless they are open; returns how many are.
    fn forget_brood(&mut self, id: TaskId) -> u64 {
        let is_open: BTreeSet<_> = self.open_children(id).collect();
        self.task(id).brood = is_open;
        self.tasks[&id].brood.len() as u64
    }

    fn open_children(&self, id: TaskId) -> impl Iterator<Item = TaskId> {
        let is_open = |child: &TaskId| self.tasks.get(child).is_some_and(Task::is_open);
        self.tasks[&id].brood.iter().copied().filter(is_open)
    }

    /// Something joins the family of a parent that waits.
    fn joined(&mut self, parent: TaskId, change: impl FnOnce(&mut Family)) {
        if let Some(family) = self.waiting_family(parent) {
            change(family);
            family.grew = true;
        }
    }

    fn waiting_family(&mut self, parent: TaskId) -> Option<&mut Family> {
        let task = self.tasks.get_mut(&parent).filter(|task| task.place == Place::Waiting)?;
        self.touched.insert(parent);
        self.unfolded.insert(parent);
        task.family.as_mut()
    }

    /// Tells the family of a task that it has ended, and lets go what follows it.
    pub fn tell_family(&mut self, id: TaskId, parent: Option<TaskId>, state: State) {
        if let Some(family) = parent.and_then(|parent| self.waiting_family(parent)) {
            *family.number(state) += 1;
        }
        let follows = |task: &Task| matches!(task.place, Place::Held { after, .. } if after == id);
        let held: Vec<_> = self.tasks.iter().filter(|(_, task)| follows(task)).map(|(id, _)| *id).collect();
        for follow_up in held {
            self.release(follow_up, id, state);
        }
    }

    fn release(&mut self, id: TaskId, after: TaskId, state: State) {
        let Place::Held { keep, delay, .. } = self.tasks[&id].place else { return };
        let how = if state == State::Failed { "failed" } else { "was cancelled" };
        match state {
            State::Failed if !keep => {
                self.end(id, State::Cancelled, Told::Exactly(format!("task {after} {how}")));
            }
            State::Cancelled => {
                self.end(id, State::Cancelled, Told::Exactly(format!("task {after} {how}")));
            }
            _ if delay > 0 => {
                let due = self.now + delay;
                self.task(id).place = Place::Later { due, holds_turn: false };
            }
            _ => self.task(id).place = Place::Pending(Bound::No),
        }
    }

    /// Counts what has ended, stops families that fail fast, and ends parents without open children.
    pub fn fold(&mut self) {
        while let Some(id) = self.unfolded.pop_last() {
            let is_over = self.open_children(id).next().is_none();
            let Some(family) = self.tasks[&id].family.clone() else { continue };
            if self.tasks[&id].place != Place::Waiting {
                continue;
            }
            let fails_fast =
                family.policy == FamilyPolicy::FailFast && family.has_failed() && family.stopping.is_none();
            let task = self.task(id).family.as_mut().expect("just seen");
            task.grew = false;
            if fails_fast {
                task.stopping = Some(State::Failed);
            }
            if fails_fast || family.grew && family.stopping.is_some() {
                self.stop_children(id);
            }
            if is_over {
                self.end_parent(id, &family);
            }
        }
    }

    fn end_parent(&mut self, id: TaskId, family: &Family) {
        if family.stopping == Some(State::Cancelled) {
            return self.end(id, State::Cancelled, Told::Exactly("cancelled".into()));
        }
        if family.has_failed() && family.policy != FamilyPolicy::Ignore {
            return self.end(id, State::Failed, Told::Anything);
        }
        if !family.then {
            return self.end(id, State::Completed, Told::Anything);
        }
        let task = self.task(id);
        let bound = if task.lane.is_some() && task.parent.is_none() { Bound::Yes } else { Bound::No };
        task.place = Place::Pending(bound);
        (task.charged, task.crashes) = (0, 0);
    }

    /// Cancels a task that waits, with all that is open below it.
    pub fn stop(&mut self, id: TaskId) {
        let task = self.task(id);
        task.cancel_requested = true;
        task.family.as_mut().expect("it waits").stopping = Some(State::Cancelled);
        self.unfolded.insert(id);
        self.stop_children(id);
    }

    fn stop_children(&mut self, parent: TaskId) {
        let children: BTreeSet<_> = self.tasks[&parent].brood.clone();
        for child in children {
            match self.tasks.get(&child).map(|task| task.place) {
                Some(Place::Pending(_) | Place::Later { .. }) => {
                    self.end(child, State::Cancelled, Told::Exactly("cancelled".into()));
                }
                Some(Place::Leased(_)) => self.task(child).cancel_requested = true,
                Some(Place::Waiting) => self.stop(child),
                _ => (),
            }
        }
    }
}

fn task_parent(model: &Model, id: TaskId) -> Option<TaskId> {
    model.tasks[&id].parent
}

/// Compares the numbers of a family that is waited for.
pub(super) fn compare(model: &Model, id: TaskId, task: &Task, view: &TaskView) -> Result<(), String> {
    let (Place::Waiting, Some(family)) = (task.place, &task.family) else { return Ok(()) };
    let Some(found) = &view.family else { return Err("it waits, but has no family".into()) };
    let found = [found.total, found.open, found.completed, found.failed, found.cancelled];
    let open = model.open_children(id).count() as u64;
    same("family", found, [family.total, open, family.completed, family.failed, family.cancelled])
}
