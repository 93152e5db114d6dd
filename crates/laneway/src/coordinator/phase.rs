//! Stopping: drain, then cancel, then give back, then go.
//!
//! ```text
//!  working ── first signal ──▶ draining ── grace is over ──▶ cancelling ── patience is over ──▶ leaving ──▶ gone
//!     └──────────────────────────┴────── second signal ───────────┴──────────────▶┘
//! ```
//! In each phase the worker is gone as soon as nothing runs and everything is settled.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Coordinator, far_away};
use crate::attempt::StopReason;

/// How long the last settles may take.
const FLUSH: Duration = Duration::from_secs(10);
/// Attempts that were told to stop get this much more than their patience before they are counted as stuck.
const SLACK: Duration = Duration::from_millis(500);

/// How far a worker has come in stopping.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Working,
    /// Takes nothing new; what runs goes on.
    Draining {
        until: Instant,
    },
    /// Attempts were told to stop.
    Cancelling {
        until: Instant,
    },
    /// Attempts were dropped; what they left is given back.
    Leaving {
        until: Instant,
    },
}

impl Phase {
    pub(super) fn is_working(self) -> bool {
        matches!(self, Self::Working)
    }

    /// True once attempts have been dropped.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, Self::Leaving { .. })
    }

    pub(super) fn deadline(self) -> Instant {
        match self {
            Self::Working => far_away(),
            Self::Draining { until } | Self::Cancelling { until } | Self::Leaving { until } => until,
        }
    }
}

impl Coordinator {
    /// First signal: takes nothing new.
    pub(super) fn drain(&mut self) {
        let grace = self.shared.options.grace;
        if !self.slots.is_empty() {
            info!(
                running = self.slots.len(),
                grace_s = grace.as_secs_f64(),
                "stopping: what runs may finish"
            );
        }
        self.vitals.set_draining(true);
        self.phase = Phase::Draining { until: Instant::now() + grace };
    }

    /// Second signal: drops what runs and gives it back.
    pub(super) fn cut_off(&mut self) {
        if !self.slots.is_empty() {
            warn!(running = self.slots.len(), "stopping now: what runs is dropped and given back");
        }
        self.vitals.set_draining(true);
        self.slots.stop_all(StopReason::WorkerStops);
        self.leave();
    }

    /// A deadline has passed, perhaps that of the phase.
    pub(super) fn time_passed(&mut self) {
        if Instant::now() < self.phase.deadline() {
            return;
        }
        match self.phase {
            Phase::Draining { .. } => {
                warn!(running = self.slots.len(), "the grace time is over; telling attempts to stop");
                self.slots.stop_all(StopReason::WorkerStops);
                self.phase =
                    Phase::Cancelling { until: Instant::now() + self.shared.options.patience + SLACK };
            }
            Phase::Cancelling { .. } => self.leave(),
            Phase::Working | Phase::Leaving { .. } => (),
        }
    }

    fn leave(&mut self) {
        self.slots.abort_all();
        self.phase = Phase::Leaving { until: Instant::now() + FLUSH };
    }

    /// Ends without anything to settle.
    pub(super) fn give_up(&mut self) {
        self.phase = Phase::Leaving { until: Instant::now() };
    }

    /// True when everything that ran is settled, or there is no more time for it.
    pub(super) fn is_done(&self, now: Instant) -> bool {
        if self.phase.is_working() {
            return false;
        }
        if !self.registered && self.in_flight.is_none() {
            return true;
        }
        let is_settled = self.ended.is_empty() && self.repeat.is_none() && self.in_flight.is_none();
        let is_late = self.phase.is_cut() && now >= self.phase.deadline();
        is_late || (is_settled && self.slots.is_empty())
    }

    /// Ends the session: what is still leased is given back at once. If that fails, the others will notice in 30 s.
    pub(super) async fn deregister(&mut self) {
        self.vitals.forget_session();
        let (store, session) = (self.shared.store.shared(), self.session);
        // In a task of its own, so that it is not dropped half-way.
        let done = tokio::spawn(async move { store.deregister(session).await });
        match tokio::time::timeout(FLUSH, done).await {
            Ok(Ok(Ok(()))) => (),
            Ok(Ok(Err(error))) => warn!(%error, "could not deregister; the session will time out"),
            Ok(Err(_)) | Err(_) => warn!("could not deregister in time; the session will time out"),
        }
    }
}
