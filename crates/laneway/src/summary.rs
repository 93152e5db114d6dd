//! What a worker did, told when it ends.

use std::fmt;
use std::time::Duration;

/// What a worker did between its start and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Attempts that completed their task.
    pub completed: u64,
    /// Attempts that failed; their tasks run again, or have spent their attempts.
    pub failed: u64,
    /// Tasks that failed for good without regard to attempts left.
    pub discarded: u64,
    /// Attempts that were stopped because their task was cancelled.
    pub cancelled: u64,
    /// Attempts that were put off by their handler.
    pub snoozed: u64,
    /// Tasks that were given back unfinished, uncharged.
    pub given_back: u64,
    /// Attempts whose end came too late to count.
    pub lost: u64,
    /// From start to end.
    pub ran: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} completed, {} failed", self.completed, self.failed + self.discarded)?;
        for (count, what) in [
            (self.cancelled, "cancelled"),
            (self.snoozed, "snoozed"),
            (self.given_back, "given back"),
            (self.lost, "too late to count"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(f, " in {:.1} s", self.ran.as_secs_f64())
    }
}
