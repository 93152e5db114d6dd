//! Turns free slots into running attempts.
//!
//! One coordinator runs per worker, and it alone claims. It owns all state as plain fields in one loop: the attempts that
//! run, the ends that wait to be settled, the session, and whether it sleeps. One step is one call of the store
//! ([`Call`]), and at most one is under way; while it is, ends gather. An advance settles what has ended and claims what
//! fits into the free slots, in one round trip.
//!
//! ```text
//!            ┌────────────── claimed ───────────────┐
//!  free slot, hint, due time, poll ──▶ advance ──▶ running attempts
//!                                        ▲                │ ends within 1 ms
//!                                        └── settles ◀────┘
//! ```
//!
//! Always true:
//! - `slots.len()` plus what the call under way may claim is at most the number of slots when the call began. With fewer slots
//!   than attempts nothing is claimed.
//! - A call is spawned and awaited, never dropped half-way. If its answer is lost, it is repeated with `again`.
//! - After every answer that brought nothing there is a pause before the next look: no state is a busy loop.
//! - After a stop nothing is claimed, and what the last claim brought is given back.
//!
//! Not here: SQL (the store), calling user code (`run.rs`), signs of life (`renew.rs`), claim sizes (`pressure.rs`,
//! `share.rs`). In this module: `call.rs` (the calls), `answer.rs` (what their answers change), `looks.rs` (when to look for
//! work), `rest.rs` (falling asleep),
//! `phase.rs` (stopping).

mod answer;
mod call;
mod looks;
mod phase;
mod rest;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use laneway_core::{
    Advance, Claim, Hint, Hints, QueueName, Registration, Scan, SessionId, Settle, Settled, StoreError,
    TaskId, Verdict,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use self::call::{Call, InFlight};
use self::looks::{Looks, Source};
use self::phase::Phase;
use self::rest::Rest;
use crate::attempt::{Attempt, StopReason};
use crate::backoff::Backoff;
use crate::metrics::{ByKind, ByOutcome, ByQueue, ByReason, BySignal, BySource, Counted, Traced};
use crate::pressure::{ClaimLimit, Pressure};
use crate::renew::Order;
use crate::run::{AttemptEnd, How, Label, classify};
use crate::share::Shares;
use crate::shared::Shared;
use crate::slots::{Ended, Slots};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trace::sampled_trace;
use crate::tuning::Tuned;
use crate::vitals::Vitals;

/// Ends within this time are settled together.
const GATHER: Duration = Duration::from_millis(1);
/// So many ends are worth a call of their own, without waiting for more.
const ENOUGH: usize = 8;
/// How often it looks whether there is memory again.
const MEMORY_AGAIN: Duration = Duration::from_millis(500);
/// When several workers are told, each waits a random part of this.
const HINT_JITTER: Duration = Duration::from_millis(10);

pub(crate) struct Coordinator {
    shared: Arc<Shared>,
    counted: Counted,
    vitals: Arc<Vitals>,
    hints: Hints,
    /// The renewing thread holds the other end.
    orders: mpsc::Receiver<Order>,
    /// Tells of changes to `tuned`; handles of [`Tuning`](crate::Tuning) hold the other end.
    tuning: watch::Receiver<Tuned>,
    /// The settings that count at the moment.
    tuned: Tuned,
    stop: Stop,

    session: SessionId,
    /// False until the session is known to the store.
    registered: bool,
    /// The session has been registered once: from then on every error is waited out.
    has_started: bool,
    /// The session cannot be renewed at the moment: nothing is claimed.
    expires: bool,
    /// An operator told the worker to take nothing new.
    drain_ordered: bool,
    /// Number of the last advance that was sent.
    number: u64,

    slots: Slots,
    was_full: bool,
    /// Attempts that have ended, to be settled by the next advance.
    ended: Vec<Settle>,
    /// When the first of them ended.
    ended_since: Option<Instant>,

    /// Completed attempts whose handlers may have settled them in a transaction of their own.
    completing: HashSet<TaskId>,

    in_flight: Option<InFlight>,
    /// An advance whose answer was lost.
    repeat: Option<Advance>,
    backoff: Backoff,

    shares: Shares,
    pressure: Pressure,
    looks: Looks,
    rest: Rest,
    phase: Phase,
    /// True for a worker that ends when nothing is left to do.
    until_empty: bool,
    lanes_told: Instant,
    summary: Summary,
    fatal: Option<StoreError>,
}

/// What to do next.
enum Step {
    Call(Call),
    /// Nothing before this time, unless something happens.
    Wait(Instant),
    Done,
}

impl Coordinator {
    pub(crate) fn new(
        shared: Arc<Shared>,
        vitals: Arc<Vitals>,
        orders: mpsc::Receiver<Order>,
        stop: Stop,
        until_empty: bool,
    ) -> Self {
        let now = Instant::now();
        let mut tuning = shared.tuning.changes();
        let tuned = *tuning.borrow_and_update();
        vitals.set_slots(tuned.slots);
        shared.metrics.counted.slots.set(tuned.slots as i64);
        Self {
            counted: shared.metrics.counted.clone(),
            hints: shared.store.hints(),
            shares: Shares::new(&shared.options.queues),
            pressure: Pressure::new(tuned, now),
            tuning,
            tuned,
            shared,
            vitals,
            orders,
            stop,
            session: SessionId::random(),
            registered: false,
            has_started: false,
            expires: false,
            drain_ordered: false,
            number: 0,
            slots: Slots::default(),
            was_full: false,
            ended: vec![],
            ended_since: None,
            completing: HashSet::new(),
            in_flight: None,
            repeat: None,
            backoff: Backoff::default(),
            looks: Looks::new(now),
            rest: Rest::Awake,
            phase: Phase::Working,
            until_empty,
            lanes_told: now,
            summary: Summary::default(),
            fatal: None,
        }
    }

    /// Runs until told to stop, then until everything is settled or time is up. Nothing outlives this call but handlers
    /// that block their thread.
    ///
    /// # Errors
    /// What made the first registration impossible. Later errors are waited out.
    pub(crate) async fn run(mut self) -> Result<Summary, StoreError> {
        let started = Instant::now();
        loop {
            let until = match self.next_step(Instant::now()) {
                Step::Done => break,
                Step::Wait(until) => until,
                Step::Call(call) => {
                    self.in_flight = Some(call.spawn(&self.shared.store));
                    far_away()
                }
            };
            self.wait(until).await;
        }
        if self.registered {
            self.deregister().await;
        }
        match self.fatal {
            Some(error) => Err(error),
            None => Ok(Summary { ran: started.elapsed(), ..self.summary }),
        }
    }

    /// Waits for the first thing that happens, at most until `until`, and takes note of it.
    async fn wait(&mut self, until: Instant) {
        let until = until.min(self.phase.deadline());
        let is_asked = self.in_flight.is_some();
        tokio::select! {
            biased;
            () = self.stop.now_asked(), if !self.phase.is_cut() => self.cut_off(),
            () = self.stop.drain_asked(), if self.phase.is_working() => self.drain(),
            (call, answer) = InFlight::answer(&mut self.in_flight), if is_asked => self.answered(call, answer),
            Some(order) = self.orders.recv() => self.obey(order),
            Ok(()) = self.tuning.changed() => self.retune(),
            ended = self.slots.next_end() => {
                // Those that started together end together: the others are about to be polled.
                tokio::task::yield_now().await;
                self.attempts_ended(ended);
            }
            Some(hint) = self.hints.next() => self.hinted(&hint),
            () = sleep_until(until) => self.time_passed(),
        }
    }

    fn next_step(&mut self, now: Instant) -> Step {
        if self.is_done(now) {
            return Step::Done;
        }
        if self.in_flight.is_some() {
            return Step::Wait(far_away());
        }
        if let Some(until) = self.backoff.until(now) {
            return Step::Wait(until);
        }
        if let Some(advance) = self.repeat.take() {
            return Step::Call(Call::Advance(advance, None));
        }
        if !self.registered {
            return Step::Call(Call::Register(self.registration()));
        }
        if let Rest::Waking = self.rest {
            return Step::Call(Call::WakeUp(self.session));
        }
        let limit = self.claim_limit(now);
        if self.settles_are_due(now) || self.claims_are_due(now, &limit) {
            return Step::Call(self.next_advance(&limit));
        }
        let gathered = self.ended_since.map_or_else(far_away, |since| since + GATHER);
        if limit.memory == 0.0 {
            // Nobody tells when memory is free again; it is measured about once a second.
            return Step::Wait(gathered.min(now + MEMORY_AGAIN));
        }
        if limit.tasks == 0 || self.ended_since.is_some() {
            return Step::Wait(gathered);
        }
        self.rest_step(now, &limit)
    }

    /// Ends are settled a moment after the first of them, or at once when there is nothing to wait for.
    fn settles_are_due(&self, now: Instant) -> bool {
        let Some(since) = self.ended_since else { return false };
        let enough = ENOUGH.min(self.tuned.claim_size);
        now >= since + GATHER || self.slots.is_empty() || self.ended.len() >= enough
    }

    fn claims_are_due(&self, now: Instant, limit: &ClaimLimit) -> bool {
        limit.tasks > 0 && self.ended.is_empty() && self.looks.is_due(now)
    }

    fn claim_limit(&mut self, now: Instant) -> ClaimLimit {
        let takes_more = self.phase.is_working() && !self.expires && !self.drain_ordered;
        let free = if takes_more { self.tuned.slots.saturating_sub(self.slots.len()) } else { 0 };
        let limit = self.pressure.claim_limit(now, free, self.vitals.memory());
        self.counted.claim_limit.set(limit.tasks as i64);
        for (signal, factor) in [("slots", limit.slots), ("memory", limit.memory), ("latency", limit.latency)]
        {
            self.counted.backpressure.get_or_create(&BySignal { signal }).set(factor);
        }
        limit
    }

    /// Settles everything that has ended and claims what fits.
    fn next_advance(&mut self, limit: &ClaimLimit) -> Call {
        self.number += 1;
        let mut advance = Advance::new(self.session, self.number);
        // Before a worker sleeps or ends it must know that nothing is there, also not what came back with an old id.
        let must_know = self.until_empty || !self.rest.is_awake();
        advance.scan = if must_know { Scan::Full } else { Scan::Auto };
        advance.settles = std::mem::take(&mut self.ended);
        let claim = |(queue, max)| Claim {
            queue,
            max,
            kinds: self.shared.all_kinds(),
            alone: self.shared.kinds_alone(),
        };
        advance.claims = self.shares.divide(limit.tasks).into_iter().map(claim).collect();
        let ended_since = self.ended_since.take();
        if limit.tasks > 0 {
            // Ends go with the next claim, which is then caused by the slots that they free.
            let source = if ended_since.is_some() { "slot" } else { self.looks.next().1.as_str() };
            self.counted.wakeups.get_or_create(&BySource { source }).inc();
        }
        if limit.tasks > 0 {
            self.looks.looking();
        }
        if limit.memory < 1.0 || limit.latency < 1.0 {
            debug!(?limit, "claims less under pressure");
        }
        Call::Advance(advance, ended_since)
    }

    fn registration(&self) -> Registration {
        Registration {
            session: self.session,
            name: self.shared.options.name.clone(),
            queues: self.queues(),
            kinds: self.shared.all_kinds(),
            capacity: self.vitals.capacity(),
        }
    }

    fn queues(&self) -> Vec<QueueName> {
        self.shared.options.queues.iter().map(|(queue, _)| queue.clone()).collect()
    }

    /// Takes in one end and all that came with it.
    fn attempts_ended(&mut self, first: Ended) {
        self.attempt_ended(first);
        while let Some(next) = self.slots.try_next_end() {
            self.attempt_ended(next);
        }
        self.count_running();
    }

    fn attempt_ended(&mut self, (attempt, ended): Ended) {
        let now = Instant::now();
        let task = attempt.task();
        let ran = ended.as_ref().map_or(Duration::ZERO, |end| end.ran);
        self.pressure.record(now, ran);
        let settled = match &ended {
            Ok(AttemptEnd { how: How::Settled(verdict), .. }) => Some(*verdict),
            _ => None,
        };
        let (outcome, label) = classify(task, ended, attempt.stop_reason());
        let (queue, kind) = (task.queue.to_string(), self.counted.kind(task.kind.as_str()));
        self.counted.in_flight.get_or_create(&ByQueue { queue: queue.clone() }).dec();
        let labels = ByOutcome { queue, kind, outcome: label.as_str() };
        let traced = sampled_trace(&task.options.trace).map(|trace_id| Traced { trace_id });
        let ended_at = traced.is_some().then(std::time::SystemTime::now);
        self.counted.duration.get_or_create(&labels).observe(ran.as_secs_f64(), traced, ended_at);
        if matches!(label, Label::Panic | Label::Timeout | Label::Retry | Label::Discard) {
            debug!(task = %task.id, kind = %task.kind, attempt = task.attempt, ?outcome, "an attempt failed");
        }
        if attempt.session() != self.session {
            // The store gave the task away with the old session.
            self.summary.lost += 1;
            self.counted.leases_lost.inc();
            return;
        }
        self.count_end(label, labels);
        if label == Label::Completed && self.shared.is_alone(&task.kind) {
            self.completing.insert(task.id);
        }
        if let Some(verdict) = settled {
            return self.settled_alone(&attempt, verdict, now);
        }
        let continues = attempt.handler().is_some_and(|handler| handler.continues);
        self.ended.push(attempt.settle(outcome, continues));
        self.ended_since.get_or_insert(now);
    }

    /// An attempt has settled itself; what it has spawned may be runnable.
    fn settled_alone(&mut self, attempt: &Attempt, verdict: Verdict, now: Instant) {
        self.vitals.settled(attempt.claimed().lease.id);
        self.check_settled(&[Settled { task: attempt.id(), verdict }]);
        self.looks.at_once(now, Source::More);
    }

    fn count_end(&mut self, label: Label, labels: ByOutcome) {
        let summary = &mut self.summary;
        match label {
            Label::Completed => summary.completed += 1,
            Label::Retry | Label::Timeout | Label::Panic => summary.failed += 1,
            Label::Discard => summary.discarded += 1,
            Label::Cancelled => summary.cancelled += 1,
            Label::Snoozed => summary.snoozed += 1,
            Label::GivenBack => summary.given_back += 1,
        }
        match label {
            Label::Completed => {
                let ByOutcome { queue, kind, .. } = labels;
                self.counted.completed.get_or_create(&ByKind { queue, kind }).inc();
            }
            Label::GivenBack => {
                let reason = if self.expires { "lost" } else { "shutdown" };
                self.counted.released.get_or_create(&ByReason { reason }).inc();
            }
            _ => {
                self.counted.failed.get_or_create(&labels).inc();
            }
        }
    }

    /// Takes note of how many attempts run.
    fn count_running(&mut self) {
        let (running, slots) = (self.slots.len(), self.tuned.slots);
        self.vitals.set_running(running);
        self.counted.slots_used.set(running as f64 / slots as f64);
        let is_full = running >= slots;
        if is_full && !self.was_full {
            self.counted.no_slot.inc();
        }
        self.was_full = is_full;
    }

    /// Somebody has changed the settings. More slots are used at once; fewer are fewer as attempts end.
    fn retune(&mut self) {
        self.tuned = *self.tuning.borrow_and_update();
        let slots = self.tuned.slots;
        info!(slots, claim_size = self.tuned.claim_size, "the worker goes on with {slots} slots");
        self.pressure.retune(self.tuned);
        self.vitals.set_slots(slots);
        self.counted.slots.set(slots as i64);
        self.count_running();
        // Also when there are no more slots: a shorter poll interval begins now and not after the old one.
        self.looks.at_once(Instant::now(), Source::Poll);
    }

    /// There may be work. When others were told as well, waits a random moment so that not all claim at once.
    fn hinted(&mut self, hint: &Hint) {
        if let Some(session) = &hint.orders {
            if self.session.to_string().starts_with(session) {
                self.vitals.ask_renewal();
            }
            return;
        }
        if hint.queue.as_ref().is_some_and(|queue| !self.queues().contains(queue)) {
            return;
        }
        let jitter = if hint.told > 1 { HINT_JITTER.mul_f64(fastrand::f64()) } else { Duration::ZERO };
        self.looks.hinted(Instant::now(), jitter);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Alive { session, cancel, drain, stop } if session == self.session => {
                self.expires = false;
                self.drain_ordered = drain;
                self.slots.stop(&cancel, StopReason::Cancelled);
                if stop && self.phase.is_working() {
                    info!("an operator has told the worker to stop");
                    self.drain();
                }
            }
            Order::Expires(session) if session == self.session && !self.expires => {
                warn!(
                    "the worker's session cannot be renewed; stopping its attempts before others take over"
                );
                self.expires = true;
                self.slots.stop_all(StopReason::LeaseEnds);
            }
            Order::Lost(session) if session == self.session => self.lose_session(),
            _of_an_earlier_session => (),
        }
    }

    /// The store has given our tasks to others: drop everything and start anew.
    fn lose_session(&mut self) {
        warn!(session = %self.session, running = self.slots.len(), "the worker was taken for dead; starting a new session");
        self.vitals.forget_session();
        self.slots.stop_all(StopReason::LeaseEnds);
        self.slots.abort_all();
        self.summary.lost += self.ended.len() as u64;
        self.ended.clear();
        self.ended_since = None;
        self.repeat = None;
        self.session = SessionId::random();
        self.registered = false;
        self.expires = false;
        self.number = 0;
        self.rest = Rest::Awake;
        self.looks.at_once(Instant::now(), Source::Start);
    }
}

/// Up to a tenth less or more, so that workers do not poll in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// A time that does not come.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
