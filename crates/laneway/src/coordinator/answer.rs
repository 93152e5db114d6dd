//! What an answer of the store changes.

use std::collections::HashMap;
use std::time::Duration;

use laneway_core::{
    Advance, Advanced, Claimed, Left, Outcome, QueueName, Settle, Settled, StoreError, Verdict,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::call::{Answer, Call, Sent};
use super::looks::Source;
use super::{Coordinator, jittered};
use crate::attempt::Attempt;
use crate::metrics::{ByClaim, ByKind, ByQueue, ByReason};

/// A worker that runs until nothing is left waits for what is due within this time.
const DUE_SOON: Duration = Duration::from_millis(250);
/// How often the lane watch is told.
const TELL_LANES_EVERY: Duration = Duration::from_millis(500);

impl Coordinator {
    pub(super) fn answered(&mut self, sent: Sent, answer: Result<Answer, StoreError>) {
        let Sent { call, at } = sent;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.failed(call, error),
        };
        if let Some(outage) = self.backoff.succeeded() {
            info!(seconds = outage.as_secs_f64(), "the store answers again");
        }
        match (call, answer) {
            (Call::Register(registration), _) if registration.session == self.session => self.registered(at),
            (Call::Advance(advance, ended), Answer::Advanced(advanced))
                if advance.session == self.session =>
            {
                self.count_call(&advance, at.elapsed());
                if let Some(ended) = ended {
                    self.counted.settle_seconds.observe(ended.elapsed().as_secs_f64());
                }
                self.advanced(&advance, advanced);
            }
            (Call::FallAsleep(_), Answer::Fence(fence)) => self.rest.announced(fence, at),
            (Call::FencePassed(_), answer) => self.rest.fence_looked_at(matches!(answer, Answer::Yes)),
            (Call::IsClaimable(..), answer) => self.looked(matches!(answer, Answer::Yes)),
            (Call::WakeUp(_), _) => self.rest.woken(),
            _of_an_earlier_session => (),
        }
    }

    /// How long a call took, as a claim and as a settle of completed and of other attempts.
    fn count_call(&self, advance: &Advance, took: Duration) {
        if !advance.claims.is_empty() {
            self.counted.claim_seconds.observe(took.as_secs_f64());
        }
        let is_completed = |settle: &&Settle| matches!(settle.outcome, Outcome::Completed { .. });
        let completed = advance.settles.iter().filter(is_completed).count();
        self.counted.flushed("complete", completed, took);
        self.counted.flushed("fail", advance.settles.len() - completed, took);
    }

    /// The call failed or its answer was lost. It is repeated after a pause that grows.
    fn failed(&mut self, call: Call, error: StoreError) {
        let pause = self.backoff.failed(Instant::now());
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        warn!(%error, cause, pause_ms = pause.as_millis() as u64, "the store did not answer; trying again");
        match call {
            Call::Register(_) if !self.has_started && !error.is_transient() => {
                self.fatal = Some(error);
                self.give_up();
            }
            Call::Advance(advance, _) if advance.session == self.session => {
                self.count_claims(&advance, "error");
                self.repeat = Some(Advance { again: true, ..advance });
            }
            // Whether the announcement was stored is not known.
            Call::FallAsleep(_) => self.rest.wake(),
            // The others are asked again because nothing has changed.
            _ => (),
        }
    }

    fn registered(&mut self, sent: Instant) {
        self.registered = true;
        if !self.has_started {
            self.has_started = true;
            debug!(session = %self.session, "the worker is registered");
        }
        self.vitals.registered(self.session, sent);
    }

    fn advanced(&mut self, advance: &Advance, advanced: Advanced) {
        self.vitals.advanced(advance.number, &advance.settles, &advanced);
        self.check_settled(&advanced.settled);
        if advanced.session_lost {
            return self.lose_session();
        }
        let claimed = advanced.claimed.len();
        let more = self.take_note_of_claims(advance, &advanced);
        for claimed in advanced.claimed {
            self.start(claimed);
        }
        self.count_running();
        if !advance.claims.is_empty() {
            self.rest.advanced(claimed > 0);
            self.plan_next_look(advance, claimed, more, advanced.next_due);
            if !advance.settles.is_empty() && claimed == 0 && advanced.left == Left::Nothing {
                self.look_again_if_empty();
            }
        }
    }

    pub(super) fn check_settled(&mut self, settled: &[Settled]) {
        for one in settled {
            let by_itself = self.completing.remove(&one.task);
            if by_itself || one.verdict != Verdict::Stale {
                continue;
            }
            self.summary.lost += 1;
            self.counted.leases_lost.inc();
            warn!(task = %one.task, "finished after its lease had ended; another attempt owns the task");
        }
    }

    /// Counts what each queue gave, and tells whether some queue gave all it was asked for.
    fn take_note_of_claims(&mut self, advance: &Advance, advanced: &Advanced) -> bool {
        let mut got: HashMap<&QueueName, u32> = HashMap::new();
        for claimed in &advanced.claimed {
            *got.entry(&claimed.task.queue).or_default() += 1;
        }
        for claim in &advance.claims {
            let count = got.get(&claim.queue).copied().unwrap_or_default();
            let result = match (count, advanced.left) {
                (0, Left::Blocked) => "blocked",
                (0, _) => "empty",
                (count, _) if count >= claim.max => "full",
                _ => "partial",
            };
            let queue = claim.queue.to_string();
            self.counted.claims.get_or_create(&ByClaim { queue: queue.clone(), result }).inc();
            self.counted.claim_size.get_or_create(&ByQueue { queue }).observe(f64::from(count));
        }
        self.watch_lanes(advanced.left);
        let asked: Vec<_> = advance.claims.iter().map(|claim| (claim.queue.clone(), claim.max)).collect();
        self.shares.answered(&asked, &got)
    }

    fn count_claims(&self, advance: &Advance, result: &'static str) {
        for claim in &advance.claims {
            let queue = claim.queue.to_string();
            self.counted.claims.get_or_create(&ByClaim { queue, result }).inc();
        }
    }

    /// Starts what was claimed, or gives it back if the worker stops meanwhile.
    fn start(&mut self, claimed: Claimed) {
        let handler = self.shared.handler(&claimed.task.kind);
        let (Some(handler), true) = (handler, self.phase.is_working()) else {
            self.ended.push(claimed.settle(Outcome::GivenBack));
            self.ended_since.get_or_insert_with(Instant::now);
            self.summary.given_back += 1;
            self.counted.released.get_or_create(&ByReason { reason: "shutdown" }).inc();
            return;
        };
        let (queue, kind) = (claimed.task.queue.to_string(), self.counted.kind(claimed.task.kind.as_str()));
        let labels = ByQueue { queue: queue.clone() };
        self.counted.wait.get_or_create(&labels).observe(claimed.waited.as_secs_f64());
        self.counted.in_flight.get_or_create(&labels).inc();
        self.counted.started.get_or_create(&ByKind { queue, kind }).inc();
        let attempt = Attempt::new(claimed, self.session, self.shared.clone());
        self.slots.start(handler, attempt, self.shared.options.patience);
    }

    /// Decides when to look again. After a look that brought nothing the pauses grow, until the worker sleeps or polls.
    fn plan_next_look(&mut self, advance: &Advance, claimed: usize, more: bool, next_due: Option<Duration>) {
        let now = Instant::now();
        let (poll, poll_max) = (self.tuned.poll_interval, self.tuned.poll_interval_max);
        if more {
            self.looks.at_once(now, Source::More);
        }
        let pause = self.looks.pause();
        if claimed > 0 {
            self.looks.found(now);
        } else {
            self.looks.found_nothing(now, poll);
        }
        let pause = match (self.shared.store.is_listening(), self.rest.is_asleep()) {
            (true, true) => jittered(poll_max),
            (true, false) => pause,
            (false, _) => poll.mul_f64(0.9 + 0.1 * fastrand::f64()),
        };
        self.looks.poll_after(now, pause);
        self.looks.due_after(now, next_due);
        if claimed == 0 && advance.settles.is_empty() {
            self.stop_if_empty(next_due);
        }
    }

    /// After its last ends, a worker that should run until nothing is left looks at once whether they have made something
    /// runnable. What is there and blocked may be so for a moment only: then it takes its time.
    fn look_again_if_empty(&mut self) {
        if self.until_empty && self.slots.is_empty() {
            self.looks.at_once(Instant::now(), Source::More);
        }
    }

    /// Ends a worker that should run until nothing is left: nothing to start or soon due, nothing runs, all is settled.
    fn stop_if_empty(&mut self, next_due: Option<Duration>) {
        let is_due_soon = next_due.is_some_and(|due| due <= DUE_SOON);
        // An attempt that has settled itself while we looked may have spawned what we did not see.
        let is_news = self.looks.are_asked_for();
        if self.until_empty && self.slots.is_empty() && self.ended.is_empty() && !is_due_soon && !is_news {
            self.drain();
        }
    }

    /// Tells the lane watch which lanes are busy here while tasks wait that cannot start.
    fn watch_lanes(&mut self, left: Left) {
        let now = Instant::now();
        if left != Left::Nothing && now >= self.lanes_told + TELL_LANES_EVERY {
            self.lanes_told = now;
            self.shared.lanes.tell(self.slots.lanes());
        }
    }
}
