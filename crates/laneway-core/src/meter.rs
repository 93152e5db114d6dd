//! How long the calls of a store take, measured where they are made.
//!
//! A store counts its calls by what they do, and how long callers wait for a connection. Whoever shows metrics reads them;
//! nobody pays for it but with a short lock per call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets in seconds: 1 ms to 10 minutes, each about 2.2 times the one before.
pub const TIME_BOUNDS: [f64; 18] = [
    0.001, 0.0022, 0.0048, 0.011, 0.023, 0.052, 0.11, 0.25, 0.55, 1.2, 2.7, 5.8, 13.0, 28.0, 62.0, 137.0,
    301.0, 600.0,
];

/// Times of one sort, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// How many were not above each of [`TIME_BOUNDS`] but above the one before; the last counts what is above all.
    pub counts: [u64; TIME_BOUNDS.len() + 1],
    /// All of them together, in seconds.
    pub sum: f64,
}

impl Times {
    /// Counts one.
    pub fn add(&mut self, took: Duration) {
        let secs = took.as_secs_f64();
        let bucket = TIME_BOUNDS.partition_point(|bound| *bound < secs);
        self.counts[bucket] += 1;
        self.sum += secs;
    }

    /// Adds what was counted elsewhere.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// What a store has measured. Clones measure together.
///
/// ```
/// use std::time::Duration;
/// use laneway_core::Meter;
///
/// let meter = Meter::default();
/// meter.statement("list tasks", Duration::from_millis(3));
/// let (op, times) = meter.statements().remove(0);
/// assert_eq!((op, times.count()), ("list tasks", 1));
/// assert_eq!(meter.waits().count(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Measured>>);

#[derive(Debug, Default)]
struct Measured {
    statements: BTreeMap<&'static str, Times>,
    waits: Times,
}

impl Meter {
    /// True when both measure together.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call was answered or has failed; `op` says what it did.
    pub fn statement(&self, op: &'static str, took: Duration) {
        self.measured().statements.entry(op).or_default().add(took);
    }

    /// A caller has waited for a connection.
    pub fn wait(&self, took: Duration) {
        self.measured().waits.add(took);
    }

    /// How long calls took, by what they did.
    pub fn statements(&self) -> Vec<(&'static str, Times)> {
        self.measured().statements.iter().map(|(op, times)| (*op, times.clone())).collect()
    }

    /// How long callers waited for a connection.
    pub fn waits(&self) -> Times {
        self.measured().waits.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_it_does_not_exceed() {
        let mut times = Times::default();
        for millis in [0, 1, 2, 700_000] {
            times.add(Duration::from_millis(millis));
        }

        assert_eq!((times.counts[0], times.counts[1], times.counts[18]), (2, 1, 1));
        assert_eq!(times.count(), 4);
    }
}
