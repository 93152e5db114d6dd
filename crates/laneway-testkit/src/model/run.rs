//! Runs a script: each operation on the store, the same on the model, then both are compared.

use std::collections::BTreeSet;
use std::time::Duration;

use laneway_core::{
    Advance, Advanced, Cancel, Capacity, Claim, Claimed, FamilyPolicy, FollowUp, FollowUpOnFailure, Json,
    Kinds, Lane as NewLane, LaneLimit, LaneSettings, LeaseToken, Left, NewTask, OnFailure, Outcome,
    QueueName, Registration, Renewal, Renewed, Scan, SessionId, Spawned, State, StoreError, TaskId,
};

use super::claim::{Wish, judge};
use super::family::News;
use super::feed::Feed;
use super::script::{
    ClaimPick, KINDS, LANES, NewTaskPick, Op, OutcomePick, PAYLOADS, QUEUES, SLOTS, SettlePick, SpawnPick,
    SpawnedPick,
};
use super::state::{Bound, LaneName, Model, Place, Task, Told};
use super::{UNIT, act, house, look, schedules, unique};
use crate::store::{TestStore, kind, lane_key, queue};

/// Everything is compared after this many operations; after each one only what it changed.
const COMPARE_ALL_EVERY: usize = 20;
/// A worker remembers this many attempts, so that some settles come too late.
const REMEMBERED: usize = 40;

/// Where a store and the model disagreed.
#[derive(Debug)]
pub(super) struct Failure {
    pub step: usize,
    pub problem: String,
}

type Checked = Result<(), String>;

/// A store, the model of it, and the workers of the script.
pub(super) struct Run {
    store: TestStore,
    model: Model,
    slots: Vec<Slot>,
    feed: Feed,
    /// Takes up what was enqueued, and claims nothing.
    usher: Slot,
}

/// A worker of the script.
struct Slot {
    session: SessionId,
    number: u64,
    last: Option<Advance>,
    handed: Vec<Claimed>,
}

impl Slot {
    fn new() -> Self {
        Self { session: SessionId::random(), number: 0, last: None, handed: vec![] }
    }

    fn registration(&self) -> Registration {
        Registration {
            session: self.session,
            name: "model".into(),
            queues: QUEUES.map(queue).to_vec(),
            kinds: Kinds::All,
            capacity: Capacity::default(),
        }
    }
}

impl Run {
    /// Runs a script on a fresh store.
    pub async fn replay(store: TestStore, ops: Vec<Op>) -> Result<(), Failure> {
        let slots = (0..SLOTS).map(|_| Slot::new()).collect();
        let feed = Feed::begin(&store).await.map_err(|problem| Failure { step: 0, problem })?;
        let mut run = Self { store, model: Model::default(), slots, feed, usher: Slot::new() };
        for slot in 0..SLOTS {
            run.register(slot).await.map_err(|problem| Failure { step: 0, problem })?;
        }
        let last = ops.len().saturating_sub(1);
        for (step, op) in ops.iter().enumerate() {
            let everything = step % COMPARE_ALL_EVERY == 0 || step == last;
            run.step(op, everything).await.map_err(|problem| Failure { step, problem })?;
        }
        Ok(())
    }

    async fn step(&mut self, op: &Op, everything: bool) -> Checked {
        self.model.touched.clear();
        self.carry_out(op).await?;
        self.model.doubt_bound_turns();
        look::compare_touched(&self.store, &self.model).await?;
        if everything {
            look::compare_everything(&self.store, &self.model).await?;
            self.feed.compare(&self.store).await?;
        }
        Ok(())
    }

    async fn carry_out(&mut self, op: &Op) -> Checked {
        match op {
            Op::Enqueue { queue, lane, limit, tasks } => self.enqueue(*queue, *lane, *limit, tasks).await,
            Op::Advance { slot, fresh, settles, claims } => {
                if *fresh && !self.model.is_alive(self.slots[*slot].session) {
                    self.register(*slot).await?;
                }
                self.advance(*slot, settles, claims).await
            }
            Op::Repeat { slot } => self.repeat(*slot).await,
            Op::Cancel { which } => self.cancel(*which).await,
            Op::SetLane { queue, lane, limit, interval, halt } => {
                self.set_lane(&lane_name(*queue, *lane), *limit, *interval, *halt).await
            }
            Op::ResumeLane { queue, lane } => self.resume_lane(&lane_name(*queue, *lane)).await,
            Op::Pause { queue: place } => {
                let name = queue(QUEUES[*place]);
                let was_running = self.model.paused.insert(name.clone());
                same("pause_queue", told(self.store.pause_queue(&name).await)?, was_running)
            }
            Op::Resume { queue: place } => {
                let name = queue(QUEUES[*place]);
                let was_paused = self.model.paused.remove(&name);
                same("resume_queue", told(self.store.resume_queue(&name).await)?, was_paused)
            }
            Op::Renew { slot, forget, behind } => self.renew(*slot, *forget, *behind).await,
            Op::Register { slot } => self.register(*slot).await,
            Op::Deregister { slot } => self.deregister(*slot).await,
            Op::AdvanceClock { units } => {
                self.feed.compare(&self.store).await?;
                self.store.advance_clock(UNIT * *units as u32).await;
                self.feed.compare(&self.store).await?;
                self.model.now += units;
                Ok(())
            }
            Op::Sweep { survivors } => self.sweep(*survivors).await,
            Op::Act(op) => act::carry_out(&self.store, &mut self.model, op).await,
            Op::House(op) => {
                // Nobody is told when history goes.
                self.feed.compare(&self.store).await?;
                house::carry_out(&self.store, &mut self.model, op).await?;
                self.feed.compare(&self.store).await
            }
            Op::Schedule(op) => schedules::carry_out(&self.store, &mut self.model, op).await,
        }
    }

    async fn enqueue(
        &mut self,
        place: usize,
        lane: Option<usize>,
        limit: Option<u32>,
        picks: &[NewTaskPick],
    ) -> Checked {
        let name = lane.map(|lane| lane_name(place, lane));
        let new_lane = name.as_ref().map(|(_, key)| NewLane {
            key: key.clone(),
            limit: limit.map(|limit| LaneLimit::at(limit).expect("scripts pick valid limits")),
        });
        let tasks = picks.iter().map(|pick| {
            let payload = Json::trusted(PAYLOADS[pick.payload]);
            let task = NewTask::new(kind(KINDS[pick.kind]), payload).queue(queue(QUEUES[place]));
            let task = NewTask { unique: pick.unique.map(unique::of_pick), ..task };
            let task =
                task.priority(pick.priority).max_attempts(pick.max_attempts).delay(UNIT * pick.delay as u32);
            NewTask { lane: new_lane.clone(), ..task }
        });
        let tasks: Vec<NewTask> = tasks.collect();
        let answer = self.store.enqueue_many(tasks.clone()).await;
        if let Some(code) = unique::expected_refusal(&self.model, &tasks) {
            return same("refusal", answer.map_err(|error| error.code()), Err(code));
        }
        let answers = told(answer)?;
        let ids: Vec<_> = answers.iter().filter(|answer| answer.is_new()).map(|answer| answer.id).collect();
        if answers.len() != picks.len()
            || !ids.is_sorted()
            || ids.first().is_some_and(|id| *id <= self.last_id())
        {
            return Err(format!("ids do not ascend: {answers:?}"));
        }
        let first = ids.first().copied();
        for ((answer, task), pick) in answers.into_iter().zip(&tasks).zip(picks) {
            if unique::follow(&mut self.model, task, answer, first)? {
                self.model.touched.insert(answer.id);
                self.model.tasks.insert(answer.id, new_task(place, lane, pick, self.model.now));
            }
        }
        let Some(name) = name.filter(|_| first.is_some()) else { return Ok(()) };
        let lane = self.model.lanes.entry(name.clone()).or_default();
        match limit {
            Some(limit) if !lane.fixed && lane.limit != i64::from(limit) => {
                lane.limit = i64::from(limit);
                // Some stores give the lane its limit when it is next looked at, not at once.
                self.usher_in(&name.0).await
            }
            _ => Ok(()),
        }
    }

    fn last_id(&self) -> TaskId {
        self.model.tasks.keys().last().copied().unwrap_or(TaskId(0))
    }

    /// An advance that takes up what was enqueued, and finds nothing that it can run.
    async fn usher_in(&mut self, queue: &QueueName) -> Checked {
        self.usher.number += 1;
        told(self.store.register(self.usher.registration()).await)?;
        let nothing = Kinds::Only(vec![kind("nobody")]);
        let claim = Claim { queue: queue.clone(), max: 1, kinds: nothing, alone: vec![] };
        let advance = Advance { claims: vec![claim], ..Advance::new(self.usher.session, self.usher.number) };
        let advanced = told(self.store.advance(advance).await)?;
        self.model.make_due();
        told(self.store.deregister(self.usher.session).await)?;
        same("claimed without kinds", advanced.claimed.len(), 0)
    }

    async fn advance(&mut self, slot: usize, settles: &[SettlePick], claims: &[ClaimPick]) -> Checked {
        let mut advance = Advance::new(self.slots[slot].session, self.slots[slot].number + 1);
        advance.scan = Scan::Full;
        let mut honest = true;
        for pick in settles {
            if let Some(mut claimed) = self.pick_attempt(pick) {
                if pick.forged {
                    claimed.lease.token = LeaseToken(uuid::Uuid::new_v4());
                }
                honest &= !pick.forged && pick.of_slot == slot;
                let spawned = self.spawned(claimed.task.id, pick.spawn.as_ref());
                advance.settles.push(claimed.settle(outcome(pick.outcome)).spawning(spawned));
            }
        }
        advance.claims = claims.iter().map(claim).collect();
        self.slots[slot].number = advance.number;
        self.slots[slot].last = honest.then(|| advance.clone());
        self.send(slot, advance).await
    }

    /// What an attempt spawns. One that resumes a family can do nothing else.
    fn spawned(&self, id: TaskId, pick: Option<&SpawnPick>) -> Spawned {
        let task = self.model.tasks.get(&id);
        if task.is_some_and(|task| task.resume) {
            return Spawned { again: true, ..Default::default() };
        }
        let Some(pick) = pick.filter(|_| task.is_some_and(|task| task.depth < 3)) else {
            return Spawned::default();
        };
        let follow_ups = pick.follow_ups.iter().map(|(task, keep)| FollowUp {
            task: spawned_task(task),
            on_failure: if *keep { FollowUpOnFailure::Keep } else { FollowUpOnFailure::Drop },
        });
        Spawned {
            children: pick.children.iter().map(spawned_task).collect(),
            siblings: pick.siblings.iter().map(spawned_task).collect(),
            follow_ups: follow_ups.collect(),
            policy: [FamilyPolicy::WaitAll, FamilyPolicy::FailFast, FamilyPolicy::Ignore][pick.policy],
            then: pick.then,
            again: false,
        }
    }

    async fn repeat(&mut self, slot: usize) -> Checked {
        match self.slots[slot].last.clone() {
            Some(advance) => self.send(slot, Advance { again: true, ..advance }).await,
            None => Ok(()),
        }
    }

    fn pick_attempt(&self, pick: &SettlePick) -> Option<Claimed> {
        let under_way = |claimed: &&Claimed| {
            let lease = self.model.leases.get(&claimed.lease.id);
            pick.any || lease.is_some_and(|lease| lease.open.contains(&claimed.task.id))
        };
        let handed: Vec<_> = self.slots[pick.of_slot].handed.iter().filter(under_way).collect();
        (!handed.is_empty()).then(|| handed[pick.which % handed.len()].clone())
    }

    async fn send(&mut self, slot: usize, advance: Advance) -> Checked {
        let advanced = told(self.store.advance(advance.clone()).await)?;
        let alive = self.model.is_alive(advance.session);
        same("session_lost", advanced.session_lost, !alive)?;
        let mut news = News::learn(&self.store, &self.model, &advance.settles).await?;
        for (settle, settled) in advance.settles.iter().zip(&advanced.settled) {
            let verdict = self.model.settle(advance.session, advance.again, settle, &mut news);
            same(&format!("the verdict on task {}", settle.task), settled.verdict, verdict)?;
        }
        same("answered settles", advanced.settled.len(), advance.settles.len())?;
        news.check()?;
        self.model.drop_settled_leases();
        self.model.fold();
        self.model.doubt_bound_turns();
        if !alive {
            return same("claimed by a lost session", advanced.claimed.len(), 0);
        }
        if advance.claims.is_empty() || self.handed_out_again(&advance, &advanced)? {
            return Ok(());
        }
        self.model.make_due();
        self.model.doubt_bound_turns();
        self.judge_claims(&advance, &advanced)?;
        self.follow(slot, &advance, &advanced);
        self.judge_rest(&advance, &advanced)
    }

    /// True when the answer repeats what an earlier try has claimed.
    fn handed_out_again(&self, advance: &Advance, advanced: &Advanced) -> Result<bool, String> {
        let mine = self.model.leases.values().filter(|lease| {
            advance.again && lease.session == advance.session && lease.number == advance.number
        });
        let expected: BTreeSet<TaskId> = mine.flat_map(|lease| lease.open.iter().copied()).collect();
        if expected.is_empty() {
            return Ok(false);
        }
        let handed: BTreeSet<TaskId> = advanced.claimed.iter().map(|claimed| claimed.task.id).collect();
        same("handed out again", handed, expected).map(|()| true)
    }

    fn judge_claims(&self, advance: &Advance, advanced: &Advanced) -> Checked {
        let place =
            |claimed: &Claimed| advance.claims.iter().position(|claim| claim.queue == claimed.task.queue);
        let rank = |claimed: &Claimed| (place(claimed), claimed.task.priority, claimed.task.id);
        if !advanced.claimed.iter().map(rank).is_sorted() {
            return Err(format!("claimed in a wrong order: {:?}", crate::worker::ids(&advanced.claimed)));
        }
        for claimed in &advanced.claimed {
            self.judge_content(claimed)?;
        }
        for (number, claim) in advance.claims.iter().enumerate() {
            let wish =
                Wish { queue: claim.queue.clone(), max: claim.max as usize, kinds: claim.kinds.clone() };
            let claimed: Vec<_> = advanced.claimed.iter().filter(|one| place(one) == Some(number)).collect();
            judge(&self.model, &wish, &claimed).map_err(|problem| {
                let ids: Vec<_> = claimed.iter().map(|one| one.task.id.0).collect();
                format!("claim of {wish:?} gave {ids:?}: {problem}")
            })?;
        }
        Ok(())
    }

    fn judge_content(&self, claimed: &Claimed) -> Checked {
        let id = claimed.task.id;
        let Some(task) = self.model.tasks.get(&id) else { return Err(format!("task {id} does not exist")) };
        let seen = &claimed.task;
        same(&format!("queue of {id}"), &seen.queue, &task.queue)?;
        same(&format!("lane of {id}"), &seen.lane, &task.lane)?;
        same(&format!("kind of {id}"), &seen.kind, &task.kind)?;
        same(&format!("parent and depth of {id}"), (seen.parent, seen.depth), (task.parent, task.depth))?;
        same(&format!("priority of {id}"), seen.priority, task.priority)?;
        same(&format!("attempt of {id}"), seen.attempt, task.charged + 1)?;
        same(&format!("crashes of {id}"), seen.crashes, task.crashes)?;
        match task.place {
            Place::Pending(_) => Ok(()),
            other => Err(format!("task {id} was claimed while it was {other:?}")),
        }
    }

    fn follow(&mut self, slot: usize, advance: &Advance, advanced: &Advanced) {
        for claimed in &advanced.claimed {
            self.model.start(advance.session, advance.number, claimed);
        }
        let handed = &mut self.slots[slot].handed;
        handed.extend(advanced.claimed.iter().cloned());
        handed.drain(..handed.len().saturating_sub(REMEMBERED));
    }

    /// Checks what the answer says about the tasks that were not claimed.
    fn judge_rest(&self, advance: &Advance, advanced: &Advanced) -> Checked {
        let wanted: usize = advance.claims.iter().map(|claim| claim.max as usize).sum();
        if wanted == 0 {
            return Ok(());
        }
        let asked = |task: &Task| advance.claims.iter().any(|claim| claim.queue == task.queue);
        let pending = self.model.tasks.values().any(|task| task.is_pending() && asked(task));
        let left = match advanced.claimed.len() == wanted {
            true => Left::More,
            false if pending => Left::Blocked,
            false => Left::Nothing,
        };
        same("left", advanced.left, left)?;
        let due = self.model.tasks.values().filter_map(|task| match task.place {
            Place::Later { due, .. } => Some(UNIT * (due - self.model.now) as u32),
            _ => None,
        });
        match (due.min(), advanced.next_due) {
            (_, None) if left == Left::More => Ok(()),
            (Some(expected), Some(told)) if left != Left::More && told <= expected => Ok(()),
            (None, _) if left != Left::More => Ok(()),
            (expected, told) => Err(format!("next_due is {told:?}, the next task is due in {expected:?}")),
        }
    }

    async fn cancel(&mut self, which: usize) -> Checked {
        let known = self.model.tasks.len();
        // Now and then a task that does not exist.
        let id = self.model.tasks.keys().copied().nth(which % (known + 1)).unwrap_or(TaskId(999_999_999));
        let answer = told(self.store.cancel(id).await)?;
        let Some(task) = self.model.tasks.get_mut(&id) else {
            return same("cancel", answer, Cancel::NotFound);
        };
        let expected = match task.place {
            Place::Pending(_) | Place::Later { .. } => {
                self.model.end(id, State::Cancelled, Told::Exactly("cancelled".into()));
                Cancel::Cancelled
            }
            Place::Leased(_) => {
                task.cancel_requested = true;
                self.model.touched.insert(id);
                Cancel::Requested
            }
            Place::Held { .. } => {
                self.model.end(id, State::Cancelled, Told::Exactly("cancelled".into()));
                Cancel::Cancelled
            }
            Place::Waiting => {
                self.model.stop(id);
                self.model.fold();
                if self.model.tasks[&id].is_open() { Cancel::Requested } else { Cancel::Cancelled }
            }
            Place::Ended(state) => Cancel::Ended(state),
        };
        self.model.fold();
        same(&format!("cancel of {id}"), answer, expected)
    }

    async fn set_lane(
        &mut self,
        name: &LaneName,
        limit: Option<u32>,
        interval: Option<u64>,
        halt: Option<bool>,
    ) -> Checked {
        let settings = LaneSettings {
            limit: limit.map(|limit| LaneLimit::at(limit).unwrap_or(LaneLimit::UNLIMITED)),
            interval: interval.map(|units| UNIT * units as u32),
            on_failure: halt.map(|halt| if halt { OnFailure::Halt } else { OnFailure::Continue }),
        };
        told(self.store.set_lane(&name.0, &name.1, settings.clone()).await)?;
        let lane = self.model.lanes.entry(name.clone()).or_default();
        if let Some(limit) = settings.limit {
            lane.limit = if limit == LaneLimit::UNLIMITED { i64::MAX } else { i64::from(limit.stored()) };
            lane.fixed = true;
        }
        interval.into_iter().for_each(|units| lane.set_interval(units));
        lane.on_failure = settings.on_failure.unwrap_or(lane.on_failure);
        Ok(())
    }

    async fn resume_lane(&mut self, name: &LaneName) -> Checked {
        let answer = told(self.store.resume_lane(&name.0, &name.1).await)?;
        let lane = self.model.lanes.get_mut(name);
        same("resume_lane", answer, lane.is_some_and(|lane| std::mem::take(&mut lane.halted)))
    }

    async fn renew(&mut self, slot: usize, forget: u64, behind: u64) -> Checked {
        let (session, number) = (self.slots[slot].session, self.slots[slot].number.saturating_sub(behind));
        let mine = self.model.leases.iter().filter(|(_, lease)| lease.session == session);
        let (known, forgotten): (Vec<_>, Vec<_>) =
            mine.enumerate().partition(|(place, _)| forget >> (place % 64) & 1 == 0);
        let leases = known.into_iter().map(|(_, (id, _))| *id).collect();
        let lost: Vec<_> = forgotten
            .into_iter()
            .filter(|(_, (_, lease))| lease.number <= number)
            .map(|(_, (id, lease))| (*id, lease.open.len() as u32))
            .collect();
        let renewal = Renewal { session, capacity: Capacity::default(), leases, advance_number: number };
        let orders = match told(self.store.renew(renewal).await)? {
            Renewed::Alive(orders) if self.model.is_alive(session) => orders,
            Renewed::Lost if !self.model.is_alive(session) => return Ok(()),
            other => return Err(format!("a renewal was answered {other:?}")),
        };
        self.model.sessions.insert(session, self.model.now);
        let tasks: u32 = lost.iter().map(|(_, open)| open).sum();
        let runnable: u32 = lost.iter().map(|(lease, _)| self.model.give_back_lease(*lease)).sum();
        if !(runnable..=tasks).contains(&orders.given_back) {
            return Err(format!("{} tasks were given back, it should be {runnable}", orders.given_back));
        }
        let told: BTreeSet<TaskId> = orders.cancel.into_iter().collect();
        same("orders to cancel", told, self.to_be_cancelled(session))?;
        self.count_ends().await
    }

    fn to_be_cancelled(&self, session: SessionId) -> BTreeSet<TaskId> {
        let mine = self.model.leases.values().filter(|lease| lease.session == session);
        mine.flat_map(|lease| &lease.open)
            .copied()
            .filter(|id| self.model.tasks[id].cancel_requested)
            .collect()
    }

    /// Renews a living session; a lost one is followed by a new one.
    async fn register(&mut self, slot: usize) -> Checked {
        if !self.model.is_alive(self.slots[slot].session) {
            let handed = std::mem::take(&mut self.slots[slot].handed);
            self.slots[slot] = Slot { handed, ..Slot::new() };
        }
        told(self.store.register(self.slots[slot].registration()).await)?;
        self.model.sessions.insert(self.slots[slot].session, self.model.now);
        Ok(())
    }

    async fn deregister(&mut self, slot: usize) -> Checked {
        let session = self.slots[slot].session;
        told(self.store.deregister(session).await)?;
        self.model.sessions.remove(&session);
        let mine = self.model.leases.iter().filter(|(_, lease)| lease.session == session);
        let leases: Vec<_> = mine.map(|(id, _)| *id).collect();
        leases.into_iter().for_each(|lease| {
            self.model.give_back_lease(lease);
        });
        self.count_ends().await
    }

    /// What a give-back has ended is counted by some stores at once, and by others with the next advance.
    async fn count_ends(&mut self) -> Checked {
        if self.model.unfolded.is_empty() {
            return Ok(());
        }
        self.usher_in(&queue(QUEUES[0])).await?;
        self.model.fold();
        Ok(())
    }

    async fn sweep(&mut self, survivors: u64) -> Checked {
        for slot in 0..SLOTS {
            let session = self.slots[slot].session;
            // A session that lives by the model's clock must not die of the seconds that the run itself takes.
            let heard_now = self.model.sessions.get(&session) == Some(&self.model.now);
            if heard_now || (self.model.is_alive(session) && survivors >> slot & 1 == 1) {
                self.register(slot).await?;
            }
        }
        let answer = told(self.store.sweep().await)?;
        let expected = self.model.sweep();
        self.model.fold();
        same("sweep", answer, expected)
    }
}

fn new_task(place: usize, lane: Option<usize>, pick: &NewTaskPick, now: u64) -> Task {
    Task {
        queue: queue(QUEUES[place]),
        lane: lane.map(|lane| lane_key(LANES[lane])),
        payload: Json::trusted(PAYLOADS[pick.payload]),
        priority: pick.priority,
        max_attempts: pick.max_attempts,
        unique: pick.unique.map(unique::of_pick),
        place: match pick.delay {
            0 => Place::Pending(Bound::No),
            units => Place::Later { due: now + units, holds_turn: false },
        },
        ..Task::of(kind(KINDS[pick.kind]))
    }
}

fn lane_name(place: usize, lane: usize) -> LaneName {
    (queue(QUEUES[place]), lane_key(LANES[lane]))
}

fn claim(pick: &ClaimPick) -> Claim {
    let kinds = match pick.kinds {
        0 => Kinds::All,
        bits => {
            Kinds::Only((0..KINDS.len()).filter(|n| bits >> n & 1 == 1).map(|n| kind(KINDS[n])).collect())
        }
    };
    Claim { queue: queue(QUEUES[pick.queue]), max: pick.max, kinds, alone: vec![] }
}

fn spawned_task(pick: &SpawnedPick) -> NewTask {
    let task = NewTask::new(kind(KINDS[pick.kind]), Json::default()).queue(queue(QUEUES[pick.queue]));
    let task = task.priority(pick.priority).max_attempts(pick.max_attempts).delay(UNIT * pick.delay as u32);
    NewTask { lane: pick.lane.map(|lane| NewLane::new(lane_key(LANES[lane]))), ..task }
}

fn outcome(pick: OutcomePick) -> Outcome {
    let after = |units: u64| -> Duration { UNIT * units as u32 };
    match pick {
        OutcomePick::Completed => Outcome::completed(),
        OutcomePick::Result => Outcome::Completed { result: Some(Json::trusted("[1]")) },
        OutcomePick::Retry(units) => Outcome::Retry { after: after(units), error: format!("retry {units}") },
        OutcomePick::Snooze(units) => Outcome::Snooze { after: after(units) },
        OutcomePick::Failed => Outcome::Failed { error: "failed".into() },
        OutcomePick::Cancelled => Outcome::Cancelled { reason: None },
        OutcomePick::GivenBack => Outcome::GivenBack,
    }
}

pub(super) fn told<T>(answer: Result<T, StoreError>) -> Result<T, String> {
    answer.map_err(|error| format!("the store failed: {error} ({error:?})"))
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}")) }
}
