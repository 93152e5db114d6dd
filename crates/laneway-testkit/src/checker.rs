//! What workers did, written down by themselves, and whether it was right.
//!
//! A [`History`] is shared by all workers of a test. An attempt counts as running from the moment its claim's answer
//! has *arrived* until its settle is *sent*. That time lies inside the time in which the store holds the lease, so
//! whatever overlaps here has overlapped there: the checks never complain without a reason, however the
//! workers' threads or processes are scheduled.
//!
//! [`History::check`] tells whether
//! - every task that was acknowledged has ended, once, and as the accepted settle said (none lost, none doubled),
//! - no task was run by two at a time,
//! - no lane had more running than its limit,
//! - in ordered lanes nothing started between the first start of a task and its end, and tasks started in the order of
//!   their ids,
//! - the store's own invariants hold.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use laneway_core::{
    Advance, Advanced, Capacity, Claim, Claimed, Kinds, LeaseId, Listing, Outcome, Place, QueueName,
    Registration, SessionId, Settle, Settled, State, Store, TaskId, Verdict,
};

/// When something happened: time since any common start.
type At = Duration;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The store acknowledged a task.
    Enqueued {
        /// The task.
        task: TaskId,
        /// Its lane.
        lane: Option<String>,
    },
    /// The answer of a claim arrived.
    Claimed {
        /// Who claimed.
        session: SessionId,
        /// The lease.
        lease: LeaseId,
        /// The task.
        task: TaskId,
        /// Its lane.
        lane: Option<String>,
    },
    /// A settle is about to be sent.
    Settling {
        /// The lease.
        lease: LeaseId,
        /// The task.
        task: TaskId,
        /// Whether its outcome may end the task.
        ends: bool,
    },
    /// The answer of a settle arrived.
    Settled {
        /// The lease.
        lease: LeaseId,
        /// The task.
        task: TaskId,
        /// What the store said.
        verdict: Verdict,
    },
    /// A worker has stopped all its attempts, or was killed.
    Stopped {
        /// Who.
        session: SessionId,
    },
    /// A cancel or a sweep that may end this task is about to be sent.
    MayEnd {
        /// The task.
        task: TaskId,
    },
}

/// What must hold of the lanes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The highest limit that a lane had; 1 for lanes that are not named.
    pub limits: HashMap<String, usize>,
    /// Whether tasks of a lane were enqueued one after the other, at once runnable and with one priority, so that in
    /// lanes of limit 1 they must have started in the order of their ids.
    pub enqueued_in_order: bool,
}

impl Rules {
    /// Every lane is ordered, and was filled in order.
    pub fn ordered() -> Self {
        Self { limits: HashMap::new(), enqueued_in_order: true }
    }

    /// This lane had at most this limit.
    pub fn limit(mut self, lane: &str, limit: usize) -> Self {
        self.limits.insert(lane.into(), limit);
        self
    }

    fn limit_of(&self, lane: &str) -> usize {
        self.limits.get(lane).copied().unwrap_or(1)
    }
}

/// Everything that happened in one test.
#[derive(Debug)]
pub struct History {
    start: Instant,
    events: Mutex<Vec<(At, Event)>>,
}

impl Default for History {
    fn default() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }
}

impl History {
    /// A history that is shared.
    pub fn shared() -> Arc<Self> {
        Arc::default()
    }

    /// Writes down what happens now.
    pub fn record(&self, event: Event) {
        let mut events = self.events();
        // The time is read under the lock, so times ascend.
        let at = self.start.elapsed();
        events.push((at, event));
    }

    /// Writes down what happened at a time that another process has told.
    pub fn record_at(&self, at: At, event: Event) {
        self.events().push((at, event));
    }

    /// The store acknowledged a task.
    pub fn enqueued(&self, task: TaskId, lane: Option<&str>) {
        self.record(Event::Enqueued { task, lane: lane.map(Into::into) });
    }

    /// A claim's answer arrived.
    pub fn claimed(&self, session: SessionId, claimed: &[Claimed]) {
        for one in claimed {
            let lane = one.task.lane.as_ref().map(|key| key.as_str().to_owned());
            self.record(Event::Claimed { session, lease: one.lease.id, task: one.task.id, lane });
        }
    }

    /// These settles are about to be sent.
    pub fn settling(&self, settles: &[Settle]) {
        for settle in settles {
            let ends = may_end(&settle.outcome);
            self.record(Event::Settling { lease: settle.lease.id, task: settle.task, ends });
        }
    }

    /// The answer to these settles arrived.
    pub fn settled(&self, settles: &[Settle], answers: &[Settled]) {
        for (settle, answer) in std::iter::zip(settles, answers) {
            self.record(Event::Settled {
                lease: settle.lease.id,
                task: settle.task,
                verdict: answer.verdict,
            });
        }
    }

    /// The tasks that were acknowledged so far.
    pub fn acknowledged(&self) -> Vec<TaskId> {
        let enqueued = |(_, event): &(At, Event)| match event {
            Event::Enqueued { task, .. } => Some(*task),
            _ => None,
        };
        self.events().iter().filter_map(enqueued).collect()
    }

    fn events(&self) -> MutexGuard<'_, Vec<(At, Event)>> {
        self.events.lock().expect("nobody panics while it writes history")
    }

    /// Checks the history against the rules and against a store in which nothing is under way.
    ///
    /// # Panics
    /// When something went wrong, with one line per mistake.
    pub async fn check(&self, store: &dyn Store, rules: &Rules) {
        let facts = self.facts();
        let mut mistakes = facts.against_store(&self.acknowledged(), &all_ended(store).await);
        mistakes.extend(facts.out_of_order(rules));
        self.check_also(facts, mistakes, store, rules).await;
    }

    /// The same of tasks that were not all enqueued by the test, and may have started anew after their end: none was run by two
    /// at a time, no lane had more running than its limit, and the store's own invariants hold.
    ///
    /// # Panics
    /// As [`History::check`].
    pub async fn check_what_ran(&self, store: &dyn Store, rules: &Rules) {
        self.check_also(self.facts(), vec![], store, rules).await;
    }

    async fn check_also(&self, facts: Facts, mut mistakes: Vec<String>, store: &dyn Store, rules: &Rules) {
        mistakes.extend(facts.run_by_two());
        mistakes.extend(facts.over_limit(rules));
        mistakes.extend(store.verify().await.expect("a verification"));
        assert!(
            mistakes.is_empty(),
            "{} mistakes in {} events:\n{}",
            mistakes.len(),
            self.events().len(),
            mistakes[..mistakes.len().min(20)].join("\n")
        );
    }

    fn facts(&self) -> Facts {
        let mut events = self.events().clone();
        events.sort_by_key(|(at, _)| *at);
        Facts::of(&events)
    }
}

/// Whether the store may end a task that is settled like this: retries end when attempts are spent, and what comes back
/// ends when it was cancelled.
fn may_end(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed { .. } | Outcome::Failed { .. } | Outcome::Cancelled { .. })
}

/// One attempt, as far as its worker told.
#[derive(Clone, Debug)]
struct Attempt {
    task: TaskId,
    lane: Option<String>,
    session: SessionId,
    from: At,
    /// When its settle was sent or its worker stopped; `None` when neither happened.
    until: Option<At>,
    may_end: bool,
    verdict: Option<Verdict>,
}

impl Attempt {
    fn end(&self) -> At {
        self.until.unwrap_or(At::MAX)
    }

    /// When it has ended its task, as far as is known: accepted, or sent by a worker that was killed.
    fn ended_task(&self) -> Option<At> {
        match self.verdict {
            Some(verdict) => is_end(verdict).then_some(self.end()),
            None => self.may_end.then_some(self.end()),
        }
    }
}

fn is_end(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Completed | Verdict::Failed | Verdict::Cancelled)
}

#[derive(Default)]
struct Facts {
    attempts: Vec<Attempt>,
    /// When a cancel or sweep that may have ended the task was sent.
    may_have_ended: HashMap<TaskId, At>,
}

impl Facts {
    fn of(events: &[(At, Event)]) -> Self {
        let mut facts = Self::default();
        let mut open: HashMap<(LeaseId, TaskId), usize> = HashMap::new();
        for (at, event) in events {
            match event {
                Event::Enqueued { .. } => (),
                Event::Claimed { session, lease, task, lane } => {
                    open.insert((*lease, *task), facts.attempts.len());
                    facts.attempts.push(Attempt {
                        task: *task,
                        lane: lane.clone(),
                        session: *session,
                        from: *at,
                        until: None,
                        may_end: false,
                        verdict: None,
                    });
                }
                Event::Settling { lease, task, ends } => {
                    let attempt = &mut facts.attempts[open[&(*lease, *task)]];
                    attempt.until.get_or_insert(*at);
                    attempt.may_end |= ends;
                }
                Event::Settled { lease, task, verdict } => {
                    let attempt = &mut facts.attempts[open[&(*lease, *task)]];
                    // A settle that is sent twice is answered twice; the accepted answer counts.
                    if attempt.verdict.is_none_or(|known| !known.is_recorded()) {
                        attempt.verdict = Some(*verdict);
                    }
                }
                Event::Stopped { session } => {
                    let theirs = facts.attempts.iter_mut().filter(|attempt| attempt.session == *session);
                    theirs.for_each(|attempt| _ = attempt.until.get_or_insert(*at));
                }
                Event::MayEnd { task } => _ = facts.may_have_ended.entry(*task).or_insert(*at),
            }
        }
        facts
    }

    /// None lost, none doubled, and the history says what was accepted.
    fn against_store(&self, acknowledged: &[TaskId], ended: &BTreeMap<TaskId, Vec<State>>) -> Vec<String> {
        let mut mistakes = vec![];
        let known: HashSet<_> = acknowledged.iter().copied().collect();
        let mut accepted: HashMap<TaskId, Vec<Verdict>> = HashMap::new();
        for attempt in &self.attempts {
            if !known.contains(&attempt.task) {
                mistakes.push(format!("task {} was run and never acknowledged", attempt.task));
            }
            if let Some(verdict) = attempt.verdict.filter(|verdict| is_end(*verdict)) {
                accepted.entry(attempt.task).or_default().push(verdict);
            }
        }
        for task in acknowledged {
            let (states, ends) = (ended.get(task), accepted.get(task));
            match (states.map(Vec::as_slice), ends.map(Vec::as_slice)) {
                (None, _) => mistakes.push(format!("task {task} was acknowledged and has not ended")),
                (Some([state]), Some([verdict])) if state_of(*verdict) == Some(*state) => (),
                (Some([_]), None)
                    if self.may_have_ended.contains_key(task) || self.was_interrupted(*task) => {}
                (states, ends) => {
                    mistakes.push(format!("task {task} ended as {states:?}, accepted were {ends:?}"))
                }
            }
        }
        mistakes
    }

    /// Whether the end of a task may have been accepted without the worker living to tell.
    fn was_interrupted(&self, task: TaskId) -> bool {
        self.attempts
            .iter()
            .any(|attempt| attempt.task == task && attempt.may_end && attempt.verdict.is_none())
    }

    fn run_by_two(&self) -> Vec<String> {
        let mut mistakes = vec![];
        for (task, attempts) in self.by(|attempt| Some(attempt.task)) {
            for pair in attempts.windows(2).filter(|pair| pair[1].from < pair[0].end()) {
                mistakes.push(format!("task {task} was run by two at a time: {pair:?}"));
            }
        }
        mistakes
    }

    fn over_limit(&self, rules: &Rules) -> Vec<String> {
        let mut mistakes = vec![];
        for (lane, attempts) in self.by(|attempt| attempt.lane.clone()) {
            let limit = rules.limit_of(&lane);
            for attempt in &attempts {
                let is_running = |other: &&&Attempt| other.from <= attempt.from && attempt.from < other.end();
                let running: Vec<_> = attempts.iter().filter(is_running).map(|other| other.task.0).collect();
                if running.len() > limit {
                    mistakes.push(format!("lane {lane} of limit {limit} ran {running:?} at a time"));
                }
            }
        }
        mistakes
    }

    fn out_of_order(&self, rules: &Rules) -> Vec<String> {
        let mut mistakes = vec![];
        let mut may_have_ended = self.may_have_ended.clone();
        for attempt in &self.attempts {
            if let Some(at) = attempt.ended_task() {
                let known = may_have_ended.entry(attempt.task).or_insert(at);
                *known = at.min(*known);
            }
        }
        for (lane, attempts) in self.by(|attempt| attempt.lane.clone()) {
            if rules.limit_of(&lane) > 1 {
                continue;
            }
            let mut first_starts: Vec<&Attempt> = vec![];
            for attempt in attempts {
                if first_starts.last().is_none_or(|last| last.task != attempt.task) {
                    first_starts.push(attempt);
                }
            }
            for pair in first_starts.windows(2) {
                let (before, after) = (pair[0].task, pair[1].task);
                if may_have_ended.get(&before).is_none_or(|end| pair[1].from < *end) {
                    mistakes
                        .push(format!("lane {lane}: task {after} started before task {before} had ended"));
                }
                if rules.enqueued_in_order && after < before {
                    mistakes.push(format!("lane {lane}: task {after} started after task {before}"));
                }
            }
        }
        mistakes
    }

    /// Attempts by something they have in common, each group by time of start.
    fn by<K: Ord>(&self, key: impl Fn(&Attempt) -> Option<K>) -> BTreeMap<K, Vec<&Attempt>> {
        let mut groups: BTreeMap<K, Vec<&Attempt>> = BTreeMap::new();
        for attempt in &self.attempts {
            if let Some(key) = key(attempt) {
                groups.entry(key).or_default().push(attempt);
            }
        }
        groups
    }
}

fn state_of(verdict: Verdict) -> Option<State> {
    match verdict {
        Verdict::Completed => Some(State::Completed),
        Verdict::Failed => Some(State::Failed),
        Verdict::Cancelled => Some(State::Cancelled),
        _ => None,
    }
}

/// Every row of history: more than one state for a task that ended twice.
async fn all_ended(store: &dyn Store) -> BTreeMap<TaskId, Vec<State>> {
    let mut ended: BTreeMap<TaskId, Vec<State>> = BTreeMap::new();
    let mut listing = Listing::of(Place::Ended).limit(500);
    loop {
        let page = store.list(listing.clone()).await.expect("a page of history");
        for task in &page.tasks {
            ended.entry(task.id).or_default().push(task.state);
        }
        match page.next {
            Some(next) => listing = listing.after(next),
            None => return ended,
        }
    }
}

/// A session that writes down what it does.
pub struct RecordingWorker {
    /// Its handle on the store.
    pub store: Arc<dyn Store>,
    /// Who it is.
    pub session: SessionId,
    /// The number of its last advance.
    pub number: u64,
    /// What it claims.
    pub kinds: Kinds,
    history: Arc<History>,
}

impl RecordingWorker {
    /// Registers a new session.
    pub async fn register(store: Arc<dyn Store>, history: &Arc<History>) -> Self {
        let (session, history) = (SessionId::random(), Arc::clone(history));
        let worker = Self { store, session, number: 0, kinds: Kinds::All, history };
        worker.store.register(worker.registration()).await.expect("a registration");
        worker
    }

    fn registration(&self) -> Registration {
        Registration {
            session: self.session,
            name: "recording".into(),
            queues: vec![QueueName::default()],
            kinds: Kinds::All,
            capacity: Capacity { slots: 10, free: 10, ..Default::default() },
        }
    }

    /// Settles these and claims up to `max` from the default queue.
    pub async fn step(&mut self, settles: Vec<Settle>, max: u32) -> Advanced {
        self.number += 1;
        let mut advance = Advance::new(self.session, self.number);
        advance.settles = settles;
        if max > 0 {
            let (queue, kinds) = (QueueName::default(), self.kinds.clone());
            advance.claims.push(Claim { queue, max, kinds, alone: vec![] });
        }
        self.history.settling(&advance.settles);
        let advanced = self.store.advance(advance.clone()).await.expect("an advance");
        self.history.settled(&advance.settles, &advanced.settled);
        self.history.claimed(self.session, &advanced.claimed);
        advanced
    }

    /// Says that it runs nothing any more.
    pub fn stopped(&self) {
        self.history.record(Event::Stopped { session: self.session });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LeaseId = LeaseId(1);

    fn claim(task: i64, lease: i64) -> Event {
        let session = SessionId(uuid::Uuid::nil());
        Event::Claimed { session, lease: LeaseId(lease), task: TaskId(task), lane: Some("a".into()) }
    }

    fn settle(task: i64, lease: i64, verdict: Verdict) -> [Event; 2] {
        let (task, lease) = (TaskId(task), LeaseId(lease));
        [Event::Settling { lease, task, ends: is_end(verdict) }, Event::Settled { lease, task, verdict }]
    }

    fn facts(events: impl IntoIterator<Item = Event>) -> Facts {
        let timed: Vec<_> =
            events.into_iter().enumerate().map(|(at, event)| (At::from_secs(at as u64), event)).collect();
        Facts::of(&timed)
    }

    #[test]
    fn a_task_without_an_end_is_lost() {
        let mistakes = facts([]).against_store(&[TaskId(1)], &BTreeMap::new());

        assert_eq!(mistakes, ["task 1 was acknowledged and has not ended"]);
    }

    #[test]
    fn two_accepted_ends_are_one_too_many() {
        let [sending, accepted] = settle(1, 1, Verdict::Completed);
        let [sending_again, accepted_again] = settle(1, 2, Verdict::Completed);
        let events = [claim(1, 1), sending, accepted, claim(1, 2), sending_again, accepted_again];
        let ended = BTreeMap::from([(TaskId(1), vec![State::Completed])]);

        assert_eq!(facts(events).against_store(&[TaskId(1)], &ended).len(), 1);
    }

    #[test]
    fn two_rows_of_history_are_one_too_many() {
        let [sending, accepted] = settle(1, 1, Verdict::Completed);
        let ended = BTreeMap::from([(TaskId(1), vec![State::Completed, State::Completed])]);

        assert_eq!(facts([claim(1, 1), sending, accepted]).against_store(&[TaskId(1)], &ended).len(), 1);
    }

    #[test]
    fn two_runs_of_one_task_may_not_overlap() {
        assert_eq!(facts([claim(1, 1), claim(1, 2)]).run_by_two().len(), 1);
        let [sending, _] = settle(1, 1, Verdict::Later);
        assert_eq!(facts([claim(1, 1), sending, claim(1, 2)]).run_by_two().len(), 0);
    }

    #[test]
    fn more_running_than_the_limit_is_seen() {
        let rules = Rules::ordered().limit("a", 2);
        assert_eq!(facts([claim(1, 1), claim(2, 2)]).over_limit(&rules).len(), 0);
        assert_eq!(facts([claim(1, 1), claim(2, 2), claim(3, 3)]).over_limit(&rules).len(), 1);
    }

    #[test]
    fn an_ordered_lane_waits_for_the_end_of_a_task_and_not_only_of_its_attempt() {
        let [sending, later] = settle(1, 1, Verdict::Later);
        let overtaken = facts([claim(1, 1), sending, later, claim(2, 2)]);
        assert_eq!(
            overtaken.out_of_order(&Rules::ordered()),
            ["lane a: task 2 started before task 1 had ended"]
        );

        let [sending, completed] = settle(1, 1, Verdict::Completed);
        let in_turn = facts([claim(1, 1), sending, completed, claim(2, 2)]);
        assert_eq!(in_turn.out_of_order(&Rules::ordered()), Vec::<String>::new());
    }

    #[test]
    fn a_lower_id_that_starts_later_is_out_of_order() {
        let [sending, completed] = settle(2, 1, Verdict::Completed);
        let swapped = facts([claim(2, 1), sending, completed, claim(1, 2)]);

        assert_eq!(swapped.out_of_order(&Rules::ordered()), ["lane a: task 1 started after task 2"]);
        let unordered = Rules { enqueued_in_order: false, ..Rules::ordered() };
        assert_eq!(swapped.out_of_order(&unordered), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_worker_may_have_ended_is_given_the_benefit_of_the_doubt() {
        let sending = Event::Settling { lease: LEASE, task: TaskId(1), ends: true };
        let session = SessionId(uuid::Uuid::nil());
        let events = [claim(1, 1), sending, Event::Stopped { session }];
        let ended = BTreeMap::from([(TaskId(1), vec![State::Completed])]);

        assert_eq!(facts(events).against_store(&[TaskId(1)], &ended), Vec::<String>::new());
    }
}
