//! The model: every task and where it is, every lane and what it may do.
//!
//! Most of the contract is exact. Where it leaves the store a choice, the model says so: [`Bound::Perhaps`] (turns
//! above a lowered limit are burned, and which ones is not said), a span instead of an instant for the next start of
//! a lane whose interval was changed, and overdue tasks, which an advance moves but a look may still find waiting.

use std::collections::{BTreeMap, BTreeSet};

use laneway_core::liveness::CRASHES_MAX;
use laneway_core::{
    Claimed, Json, KeyScope, Kind, LaneKey, LeaseId, LeaseToken, OnFailure, Outcome, QueueName, ScheduleName,
    SessionId, Settle, State, Swept, TaskId, Unique, UniqueKey, Verdict,
};

use super::family::{Family, News};
use super::schedules::Scheduled;
use crate::store::lane_key;

/// Begins the names of children's lanes.
const OF_CHILDREN: &str = "of children: ";

/// A lane's name.
pub(super) type LaneName = (QueueName, LaneKey);

#[derive(Debug, Default)]
pub(super) struct Model {
    /// In units.
    pub now: u64,
    pub tasks: BTreeMap<TaskId, Task>,
    pub lanes: BTreeMap<LaneName, Lane>,
    pub paused: BTreeSet<QueueName>,
    pub paused_kinds: BTreeSet<Kind>,
    /// For how many days queues keep what has completed and failed; 0 for as long as by default.
    pub kept: BTreeMap<QueueName, (u32, u32)>,
    /// Known sessions, and when each was last heard of.
    pub sessions: BTreeMap<SessionId, u64>,
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Unique keys, by queue, kind and key; those of the whole store have neither queue nor kind.
    pub keys: BTreeMap<KeyName, Held>,
    pub schedules: BTreeMap<ScheduleName, Scheduled>,
    /// Tasks that the current operation changed.
    pub touched: BTreeSet<TaskId>,
    /// Parents of which children have ended or joined since they were last counted.
    pub unfolded: BTreeSet<TaskId>,
}

/// A unique key.
pub(super) type KeyName = (Option<(QueueName, Kind)>, UniqueKey);

/// Who holds a key, and how long.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub task: TaskId,
    pub scope: KeyScope,
    /// In units; only for keys that last for a time.
    pub expires: Option<u64>,
    pub content: i64,
}

#[derive(Debug)]
pub(super) struct Task {
    pub queue: QueueName,
    pub lane: Option<LaneKey>,
    pub kind: Kind,
    pub payload: Json,
    pub priority: i32,
    pub max_attempts: u32,
    pub charged: u32,
    pub crashes: u32,
    pub error: Told,
    pub cancel_requested: bool,
    pub unique: Option<Unique>,
    /// Schedules remember their last task, so operators of a script leave those alone.
    pub is_scheduled: bool,
    pub parent: Option<TaskId>,
    pub depth: u32,
    /// Its latest children.
    pub brood: BTreeSet<TaskId>,
    /// What is known about them.
    pub family: Option<Family>,
    /// Its next attempt lets failed children start anew.
    pub resume: bool,
    pub place: Place,
    /// In units, once it has ended.
    pub ended_at: u64,
}

/// What the error text must be.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    Nothing,
    Exactly(String),
    /// The contract does not say.
    Anything,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pending(Bound),
    Later {
        due: u64,
        holds_turn: bool,
    },
    Leased(LeaseId),
    /// For its children.
    Waiting,
    /// Until another task has ended; then it is runnable after the delay.
    Held {
        after: TaskId,
        keep: bool,
        delay: u64,
    },
    Ended(State),
}

/// Whether a turn of the lane came back with the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    No,
    Perhaps,
    Yes,
}

#[derive(Debug)]
pub(super) struct Lane {
    /// `i64::MAX` is unlimited.
    pub limit: i64,
    /// True when an operator has set the limit.
    pub fixed: bool,
    pub interval: u64,
    pub on_failure: OnFailure,
    pub halted: bool,
    pub paused: bool,
    pub last_start: Option<u64>,
    /// Nothing starts before this time …
    pub not_before: u64,
    /// … and from this time on the interval forbids nothing.
    pub surely_from: u64,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub session: SessionId,
    pub token: LeaseToken,
    pub number: u64,
    pub all: BTreeSet<TaskId>,
    pub open: BTreeSet<TaskId>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            limit: 1,
            fixed: false,
            interval: 0,
            on_failure: OnFailure::Continue,
            halted: false,
            paused: false,
            last_start: None,
            not_before: 0,
            surely_from: 0,
        }
    }
}

impl Lane {
    pub fn set_interval(&mut self, interval: u64) {
        self.interval = interval;
        self.not_before = 0;
        let from_last = self.last_start.map_or(0, |start| start + interval);
        self.surely_from = if interval == 0 { 0 } else { self.surely_from.max(from_last) };
    }

    fn start(&mut self, now: u64) {
        self.last_start = Some(now);
        (self.not_before, self.surely_from) = match self.interval {
            0 => (0, 0),
            interval => (now + interval, now + interval),
        };
    }
}

impl Task {
    /// A task that was just stored.
    pub fn of(kind: Kind) -> Self {
        Self {
            queue: QueueName::default(),
            lane: None,
            kind,
            payload: Json::default(),
            priority: 0,
            max_attempts: 25,
            charged: 0,
            crashes: 0,
            error: Told::Nothing,
            cancel_requested: false,
            unique: None,
            is_scheduled: false,
            parent: None,
            depth: 0,
            brood: BTreeSet::new(),
            family: None,
            resume: false,
            place: Place::Pending(Bound::No),
            ended_at: 0,
        }
    }

    /// The lane in the model. Children have lanes of their own.
    pub fn lane_name(&self) -> Option<LaneName> {
        let key = self.lane.clone()?;
        let key = match self.parent {
            None => key,
            Some(_) => lane_key(&format!("{OF_CHILDREN}{key}")),
        };
        Some((self.queue.clone(), key))
    }

    fn is_in(&self, name: &LaneName) -> bool {
        let Some(key) = &self.lane else { return false };
        let of_children = name.1.as_str().strip_prefix(OF_CHILDREN);
        self.queue == name.0
            && match self.parent {
                None => *key == name.1,
                Some(_) => of_children == Some(key.as_str()),
            }
    }

    pub fn is_pending(&self) -> bool {
        matches!(self.place, Place::Pending(_))
    }

    pub fn is_overdue(&self, now: u64) -> bool {
        matches!(self.place, Place::Later { due, .. } if due <= now)
    }
}

impl Model {
    pub fn is_alive(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The tasks of a lane.
    pub fn in_lane(&self, name: &LaneName) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter().filter(move |(_, task)| task.is_in(name)).map(|(id, task)| (*id, task))
    }

    /// How many turns of a lane are with tasks.
    pub fn held(&self, name: &LaneName) -> i64 {
        let holds = |task: &Task| match task.place {
            Place::Leased(_) | Place::Later { holds_turn: true, .. } => true,
            Place::Waiting => task.parent.is_none(),
            _ => false,
        };
        self.in_lane(name).filter(|(_, task)| holds(task)).count() as i64
    }

    /// Puts every task that is due into place. Any advance that claims does so.
    pub fn make_due(&mut self) {
        for (id, task) in &mut self.tasks {
            if let Place::Later { due, holds_turn } = task.place
                && due <= self.now
            {
                let bound = if holds_turn { Bound::Yes } else { Bound::No };
                task.place = Place::Pending(bound);
                self.touched.insert(*id);
            }
        }
    }

    /// Where a lane has more turns out than its limit, no bound turn is certain any more.
    pub fn doubt_bound_turns(&mut self) {
        let names: Vec<_> = self.lanes.keys().cloned().collect();
        for name in names {
            let bound = |task: &Task| matches!(task.place, Place::Pending(Bound::Yes | Bound::Perhaps));
            let out = self.held(&name) + self.in_lane(&name).filter(|(_, task)| bound(task)).count() as i64;
            if out <= self.lanes[&name].limit {
                continue;
            }
            for task in self.tasks.values_mut().filter(|task| task.lane_name().as_ref() == Some(&name)) {
                if task.place == Place::Pending(Bound::Yes) {
                    task.place = Place::Pending(Bound::Perhaps);
                }
            }
        }
    }

    /// Judges one settle and carries it out. Leases stay until [`Model::drop_settled_leases`].
    pub fn settle(&mut self, session: SessionId, again: bool, settle: &Settle, news: &mut News) -> Verdict {
        let alive = self.is_alive(session);
        let Some(lease) = self.leases.get_mut(&settle.lease.id) else {
            return if again && alive { Verdict::Already } else { Verdict::Stale };
        };
        if lease.token != settle.lease.token || lease.session != session || !lease.all.contains(&settle.task)
        {
            return Verdict::Stale;
        }
        if !lease.open.remove(&settle.task) {
            return Verdict::Already;
        }
        let (id, outcome) = (settle.task, &settle.outcome);
        match &settle.spawned {
            Some(spawned) if matches!(outcome, Outcome::Completed { .. }) => {
                self.complete_spawning(id, spawned, news)
            }
            spawned => {
                let verdict = self.record(id, outcome);
                if let Some(spawned) = spawned.as_ref().filter(|_| verdict == Verdict::Failed) {
                    self.keep_follow_ups(id, spawned, news);
                }
                verdict
            }
        }
    }

    pub fn drop_settled_leases(&mut self) {
        self.leases.retain(|_, lease| !lease.open.is_empty());
    }

    fn record(&mut self, id: TaskId, outcome: &Outcome) -> Verdict {
        let task = &self.tasks[&id];
        let (attempt, cancelled) = (task.charged + 1, task.cancel_requested);
        let spent = attempt >= task.max_attempts;
        match outcome {
            Outcome::Completed { .. } => {
                self.end(id, State::Completed, Told::Anything);
                Verdict::Completed
            }
            Outcome::Cancelled { reason } => {
                let text = reason.clone().unwrap_or_else(|| "cancelled".into());
                self.end(id, State::Cancelled, Told::Exactly(text));
                Verdict::Cancelled
            }
            Outcome::Retry { .. } | Outcome::Snooze { .. } | Outcome::GivenBack if cancelled => {
                self.end(id, State::Cancelled, Told::Anything);
                Verdict::Cancelled
            }
            Outcome::Retry { error, .. } if spent => {
                self.end(id, State::Failed, Told::Exactly(error.clone()));
                Verdict::Failed
            }
            Outcome::Failed { error } => {
                self.end(id, State::Failed, Told::Exactly(error.clone()));
                Verdict::Failed
            }
            Outcome::Retry { after, error } => {
                self.postpone(id, after.as_secs() / super::UNIT.as_secs());
                let task = self.task(id);
                task.charged = attempt;
                task.error = Told::Exactly(error.clone());
                Verdict::Later
            }
            Outcome::Snooze { after } => {
                self.postpone(id, after.as_secs() / super::UNIT.as_secs());
                Verdict::Later
            }
            _ => {
                self.give_back(id);
                Verdict::Pending
            }
        }
    }

    pub fn task(&mut self, id: TaskId) -> &mut Task {
        self.touched.insert(id);
        self.tasks.get_mut(&id).expect("the model knows every task that it stored")
    }

    fn postpone(&mut self, id: TaskId, units: u64) {
        let holds_turn = self.tasks[&id].lane_name().is_some_and(|name| self.lanes[&name].limit == 1);
        let due = self.now + units;
        self.task(id).place = Place::Later { due, holds_turn };
    }

    fn give_back(&mut self, id: TaskId) {
        let task = self.task(id);
        task.place = Place::Pending(if task.lane.is_some() { Bound::Yes } else { Bound::No });
    }

    /// Ends a task; a failure halts a lane that is told so.
    pub fn end(&mut self, id: TaskId, state: State, error: Told) {
        let now = self.now;
        let task = self.task(id);
        task.ended_at = now;
        if matches!(task.place, Place::Leased(_)) {
            task.charged += 1;
        }
        task.place = Place::Ended(state);
        task.error = error;
        task.cancel_requested = false;
        self.keys.retain(|_, held| held.task != id || held.expires.is_some());
        self.tell_family(id, self.tasks[&id].parent, state);
        let task = &self.tasks[&id];
        let failed_in = task.lane_name().filter(|_| state == State::Failed);
        if let Some(lane) = failed_in.and_then(|name| self.lanes.get_mut(&name)) {
            lane.halted |= lane.on_failure == OnFailure::Halt;
        }
    }

    /// Gives back what is open in a lease, or ends it where that was asked for. Returns how many tasks are
    /// runnable again.
    pub fn give_back_lease(&mut self, id: LeaseId) -> u32 {
        let lease = self.leases.remove(&id).expect("picked from the model's leases");
        let mut given_back = 0;
        for task in lease.open {
            if self.tasks[&task].cancel_requested {
                self.end(task, State::Cancelled, Told::Anything);
            } else {
                self.give_back(task);
                given_back += 1;
            }
        }
        given_back
    }

    /// Removes sessions that were not heard of in this unit of time, and takes their tasks from them.
    pub fn sweep(&mut self) -> Swept {
        let before = self.sessions.len();
        self.sessions.retain(|_, seen| *seen >= self.now);
        let mut swept = Swept { sessions: (before - self.sessions.len()) as u32, ..Default::default() };
        let orphans: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, lease)| !self.is_alive(lease.session))
            .map(|(id, _)| *id)
            .collect();
        for lease in orphans {
            for id in self.leases.remove(&lease).expect("just listed").open {
                self.crash(id, &mut swept);
            }
        }
        swept
    }

    fn crash(&mut self, id: TaskId, swept: &mut Swept) {
        if self.tasks[&id].cancel_requested {
            return self.end(id, State::Cancelled, Told::Anything);
        }
        let task = self.task(id);
        task.crashes += 1;
        task.error = Told::Anything;
        if task.crashes >= CRASHES_MAX {
            swept.poisoned += 1;
            self.end(id, State::Failed, Told::Anything);
        } else {
            swept.given_back += 1;
            *swept.rescued.entry(task.queue.clone()).or_default() += 1;
            self.give_back(id);
        }
    }

    /// Follows a claim that was found legal.
    pub fn start(&mut self, session: SessionId, number: u64, claimed: &Claimed) {
        let (id, now) = (claimed.task.id, self.now);
        self.keys.retain(|_, held| held.task != id || held.scope != KeyScope::WhilePending);
        let task = self.task(id);
        task.place = Place::Leased(claimed.lease.id);
        if let Some(name) = task.lane_name() {
            self.lanes.get_mut(&name).expect("made with its first task").start(now);
        }
        let token = claimed.lease.token;
        let new = || Lease { session, token, number, all: BTreeSet::new(), open: BTreeSet::new() };
        let lease = self.leases.entry(claimed.lease.id).or_insert_with(new);
        lease.all.insert(id);
        lease.open.insert(id);
    }
}
