//! Falling asleep without missing a task.
//!
//! ```text
//!            100 ms without work                nothing there, fence passed
//!   awake ───── announce ─────▶ dozing ──────────────────────────────────▶ asleep ──┐
//!     ▲                           │ ▲  fence? → last claim → look            │ ▲    │ announced anew
//!     │                           │ └── pause 1, 2, 4 … ms                   │ └────┘ every 5 s
//!     └── take the announcement back ◀── something was claimed ─────────────┘
//! ```
//! The order matters and is told on [`Store::fall_asleep`](laneway_core::Store::fall_asleep). While asleep a poll now and
//! then finds what a lost hint did not tell; a poll that brings nothing leaves the worker asleep.

use std::time::Duration;

use laneway_core::{Fence, Sleep};
use tokio::time::Instant;

use super::call::Call;
use super::looks::Source;
use super::{Coordinator, Step, jittered};
use crate::pressure::ClaimLimit;

/// A worker stays awake this long without work, so that announcements stay rare.
const AWAKE: Duration = Duration::from_millis(100);
/// How long an announcement holds before it is renewed.
const ANNOUNCED: Duration = Duration::from_secs(5);
/// An announcement that is renewed later than this after it ended may have missed a hint.
const LATE: Duration = Duration::from_millis(500);
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// Where a coordinator is between work and sleep.
#[derive(Debug)]
pub(super) enum Rest {
    /// Works, or looks for work.
    Awake,
    /// Has announced its sleep, and looks once more.
    Dozing { fence: Fence, announced: Instant, look: Look, pause: Duration },
    /// Nothing is there, and whoever brings something sends a hint.
    Asleep { announced: Instant },
    /// Has something to do; the announcement is still to be taken back.
    Waking,
}

/// The steps of looking once more.
#[derive(Debug)]
pub(super) enum Look {
    Fence,
    LastClaim { passed: bool },
    Plain,
    Pause(Instant),
}

impl Rest {
    pub(super) fn is_awake(&self) -> bool {
        matches!(self, Self::Awake | Self::Waking)
    }

    pub(super) fn is_asleep(&self) -> bool {
        matches!(self, Self::Asleep { .. })
    }

    /// The announcement was stored; it was sent at `announced`.
    pub(super) fn announced(&mut self, fence: Fence, announced: Instant) {
        *self = match self {
            Self::Asleep { .. } => Self::Asleep { announced },
            _ => Self::Dozing { fence, announced, look: Look::Fence, pause: PAUSE_FIRST },
        };
    }

    pub(super) fn fence_looked_at(&mut self, passed: bool) {
        if let Self::Dozing { look, .. } = self {
            *look = Look::LastClaim { passed };
        }
    }

    /// An advance was answered.
    pub(super) fn advanced(&mut self, claimed: bool) {
        if claimed {
            return self.wake();
        }
        if let Self::Dozing { look, pause, .. } = self
            && let Look::LastClaim { passed } = *look
        {
            *look = if passed { Look::Plain } else { paused(pause) };
        }
    }

    /// Ends any kind of sleep.
    pub(super) fn wake(&mut self) {
        if !matches!(self, Self::Awake) {
            *self = Self::Waking;
        }
    }

    /// The announcement was taken back.
    pub(super) fn woken(&mut self) {
        *self = Self::Awake;
    }
}

fn paused(pause: &mut Duration) -> Look {
    let until = Instant::now() + *pause;
    *pause *= 2;
    Look::Pause(until)
}

impl Coordinator {
    /// What to do when there is nothing to settle and nothing to claim.
    pub(super) fn rest_step(&mut self, now: Instant, limit: &ClaimLimit) -> Step {
        match &self.rest {
            Rest::Awake if !self.shared.store.is_listening() => Step::Wait(self.looks.next().0),
            Rest::Awake if !self.looks.are_quiet_for(now, AWAKE) => {
                Step::Wait(self.looks.next().0.min(self.looks.quiet_since() + AWAKE))
            }
            Rest::Awake => {
                // Before the announcement, never after: a hint that comes later must be heard.
                self.hints.clear();
                self.announce()
            }
            Rest::Dozing { look: Look::Fence, fence, .. } => Step::Call(Call::FencePassed(*fence)),
            Rest::Dozing { look: Look::LastClaim { .. }, .. } => Step::Call(self.next_advance(limit)),
            Rest::Dozing { look: Look::Plain, .. } => {
                Step::Call(Call::IsClaimable(self.queues(), self.shared.all_kinds()))
            }
            Rest::Dozing { look: Look::Pause(until), .. } if now < *until => Step::Wait(*until),
            Rest::Dozing { fence, .. } => Step::Call(Call::FencePassed(*fence)),
            Rest::Asleep { announced } if now >= *announced + ANNOUNCED + LATE => {
                // The machine slept, or all slots were taken from us: nobody has hinted for a while.
                self.rest = Rest::Awake;
                self.looks.at_once(now, Source::Poll);
                Step::Wait(now)
            }
            Rest::Asleep { announced } if now >= *announced + ANNOUNCED => self.announce(),
            Rest::Asleep { announced } => Step::Wait(self.looks.next().0.min(*announced + ANNOUNCED)),
            Rest::Waking => Step::Call(Call::WakeUp(self.session)),
        }
    }

    fn announce(&self) -> Step {
        let (session, queues) = (self.session, self.queues());
        Step::Call(Call::FallAsleep(Sleep { session, queues, at_most: ANNOUNCED }))
    }

    /// The plain look was answered.
    pub(super) fn looked(&mut self, is_claimable: bool) {
        let Rest::Dozing { announced, pause, .. } = &mut self.rest else { return };
        if is_claimable {
            *pause = (*pause).min(self.tuned.poll_interval);
            let next = paused(pause);
            if let Rest::Dozing { look, .. } = &mut self.rest {
                *look = next;
            }
            return;
        }
        self.rest = Rest::Asleep { announced: *announced };
        self.looks.poll_after(Instant::now(), jittered(self.tuned.poll_interval_max));
    }
}
