//! Statistics per queue and minute, for charts.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::QueueName;
use crate::validate::{self, Code, InvalidInput};

/// The most points of one series.
const POINTS_MAX: u64 = 2_000;

/// A request for a series: one point per step from `from` to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Of this queue; of all together if none is named.
    pub queue: Option<QueueName>,
    /// Where the first step begins.
    pub from: Timestamp,
    /// Where the last step ends at the latest.
    pub to: Timestamp,
    /// How long a step is: whole minutes. Counts are kept per minute, so a step begins with the first minute in it.
    pub step: Duration,
}

impl Series {
    /// Checks that there are 1 to 2,000 steps of whole minutes.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let secs = self.step.as_secs();
        if secs == 0 || !secs.is_multiple_of(60) || self.step.subsec_nanos() != 0 {
            let problem = format!("is {:?}; allowed are whole minutes", self.step);
            return Err(InvalidInput::new(Code::OutOfRange, "step", problem));
        }
        validate::in_range("points", self.points_wanted(), 1..=POINTS_MAX)
    }

    /// How many steps it has.
    fn points_wanted(&self) -> u64 {
        let span = self.to.duration_since(self.from);
        if span.is_negative() {
            0
        } else {
            span.unsigned_abs().as_secs().div_ceil(self.step.as_secs().max(1))
        }
    }

    /// A point per step without anything in it. Stores fill in what they have.
    pub fn empty(&self) -> Vec<Point> {
        let at = |step| self.from.checked_add(self.step * step as u32).unwrap_or(Timestamp::MAX);
        (0..self.points_wanted()).map(|step| Point { at: at(step), ..Point::default() }).collect()
    }
}

/// What happened in one step of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Where the step begins.
    pub at: Timestamp,
    /// Tasks that were enqueued.
    pub enqueued: u64,
    /// Attempts that were started.
    pub started: u64,
    /// Tasks that completed.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// How long ended tasks had waited, runnable, for their last attempt. Of settles with very many plain successes some
    /// stand for their neighbours.
    pub waits: Histogram,
    /// How long the last attempts of ended tasks took.
    pub runs: Histogram,
}

/// What happened in one queue between two times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// The queue.
    pub queue: QueueName,
    /// Tasks that were enqueued.
    pub enqueued: u64,
    /// Attempts that were started.
    pub started: u64,
    /// Tasks that completed.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
}

/// Times, counted by powers of two in milliseconds: below 1 ms, below 2 ms, below 4 ms …
///
/// ```
/// use std::time::Duration;
/// use laneway_core::Histogram;
///
/// let mut times = Histogram::default();
/// for millis in [3, 5, 6, 900] {
///     times.add(Duration::from_millis(millis), 1);
/// }
/// assert_eq!(times.counts(), [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1]);
/// assert_eq!(times.quantile(0.5), Some(Duration::from_millis(8)));
/// assert_eq!(times.quantile(1.0), Some(Duration::from_millis(1024)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// What a store kept.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        Self(counts.into_iter().collect())
    }

    /// The counts, from below 1 ms on. Empty buckets at the end are left out.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// How many times were counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Counts `n` times of this length.
    pub fn add(&mut self, time: Duration, n: u64) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - millis.leading_zeros()).min(32) as usize;
        if self.0.len() <= bucket {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] += n;
    }

    /// Counts what another one has counted.
    pub fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// A time that this share of the counted times is below; none if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (self.total() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.0.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        Some(Duration::from_millis(1 << bucket))
    }
}

/// One failed attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// When it failed.
    pub at: Timestamp,
    /// What went wrong.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_a_bounded_number_of_whole_minutes() {
        let from: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let series = |secs: u64, step: u64| Series {
            queue: None,
            from,
            to: from + Duration::from_secs(secs),
            step: Duration::from_secs(step),
        };

        assert_eq!(series(3_600, 60).empty().len(), 60);
        assert_eq!(series(3_601, 3_600).empty().len(), 2);
        for bad in [series(3_600, 0), series(3_600, 30), series(0, 60), series(60 * 2_001, 60)] {
            assert_eq!(bad.check().unwrap_err().code, Code::OutOfRange, "{bad:?}");
        }
    }
}
