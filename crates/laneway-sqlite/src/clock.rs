//! The one source of time of a store.
//!
//! PostgreSQL has a clock of its own; a file has none, so the processes that share it use the clock of their
//! machine. Each command reads it once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// The clock of a store. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use laneway_sqlite::Clock;
///
/// let clock = Clock::shifted();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert!(clock.now().duration_since(before) >= jiff::SignedDuration::from_hours(1));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Microseconds ahead of the machine's clock; `None` for a clock that cannot be moved.
    ahead: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that starts at the machine's time and can be moved ahead, for tests.
    pub fn shifted() -> Self {
        Self { ahead: Some(Arc::default()) }
    }

    /// Moves a [shifted](Clock::shifted) clock ahead, for all its clones.
    ///
    /// # Panics
    /// If this is the machine's clock, which cannot be moved.
    pub fn advance(&self, by: Duration) {
        let ahead = self.ahead.as_ref().expect("only a clock made by `Clock::shifted` can be moved");
        ahead.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.now_micros()).expect("a machine's clock shows a year before 9999")
    }

    /// The time in microseconds since 1970, as it is stored.
    pub(crate) fn now_micros(&self) -> i64 {
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.load(Ordering::SeqCst));
        Timestamp::now().as_microsecond() + ahead
    }
}

/// A duration as it is stored. Validation keeps durations far below what would not fit.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}
