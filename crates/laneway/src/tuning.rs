//! What can be changed about a worker while it runs.
//!
//! A [`Tuning`] is the one place where these settings are kept: the builder fills it, whoever holds a handle may set it, and the
//! coordinator takes every change in before its next step. A change never ends an attempt that runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// More slots than this are a mistake.
const SLOTS_MAX: usize = 1_000_000;
/// More tasks than this in one claim are a mistake.
const CLAIM_SIZE_MAX: usize = 10_000;

/// The settings of a worker that can change while it runs. What they mean is told by the methods of the same names of
/// [`WorkerBuilder`](crate::WorkerBuilder).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuned {
    /// Attempts at once.
    pub slots: usize,
    /// Tasks that one claim takes at most.
    pub claim_size: usize,
    /// How often it looks for work while no hints arrive.
    pub poll_interval: Duration,
    /// How often it looks while hints arrive.
    pub poll_interval_max: Duration,
    /// This share of the slots is kept free.
    pub min_free_ratio: f64,
    /// Above this share of memory in use claims are halved.
    pub memory_high: f64,
    /// From this share of memory in use on nothing is claimed.
    pub memory_stop: f64,
    /// When one attempt of a hundred takes longer, claims are smaller.
    pub latency_threshold: Option<Duration>,
}

impl Default for Tuned {
    fn default() -> Self {
        Self {
            slots: 1_000,
            claim_size: 50,
            poll_interval: Duration::from_millis(100),
            poll_interval_max: Duration::from_secs(1),
            min_free_ratio: 0.0,
            memory_high: 0.8,
            memory_stop: 0.95,
            latency_threshold: None,
        }
    }
}

impl Tuned {
    /// Everything that is wrong with these settings, one sentence each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Self { slots, claim_size, poll_interval, poll_interval_max, .. } = *self;
        let Self { min_free_ratio, memory_high, memory_stop, .. } = *self;
        let mut problems = vec![];
        let mut check = |right: bool, problem: String| {
            if !right {
                problems.push(problem);
            }
        };
        check((1..=SLOTS_MAX).contains(&slots), format!("slots is {slots}; allowed is 1 to {SLOTS_MAX}"));
        check(
            (1..=CLAIM_SIZE_MAX).contains(&claim_size),
            format!("claim_size is {claim_size}; allowed is 1 to {CLAIM_SIZE_MAX}"),
        );
        let millisecond = Duration::from_millis(1);
        check(
            poll_interval >= millisecond,
            format!("poll_interval is {poll_interval:?}; it must be 1 ms or more"),
        );
        check(
            poll_interval_max >= poll_interval,
            format!(
                "poll_interval_max is {poll_interval_max:?}, which is less than poll_interval ({poll_interval:?})"
            ),
        );
        let ratios =
            [("min_free_ratio", min_free_ratio), ("memory_high", memory_high), ("memory_stop", memory_stop)];
        for (name, ratio) in ratios {
            check((0.0..=1.0).contains(&ratio), format!("{name} is {ratio}; allowed is 0 to 1"));
        }
        check(
            memory_stop >= memory_high,
            format!("memory_stop is {memory_stop}, which is less than memory_high ({memory_high})"),
        );
        problems
    }
}

/// Everything that is wrong with new settings of a worker. The old ones stay.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct TuningError {
    /// One sentence per mistake.
    pub problems: Vec<String>,
}

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker cannot be set so: {}", self.problems.join("; "))
    }
}

/// Changes a worker while it runs. Made by [`Worker::tuning`](crate::Worker::tuning); clones change the same worker.
///
/// With fewer slots than attempts run, nothing is claimed until enough of them have ended; none is cancelled. More slots are used at
/// once.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Ping;
/// # impl laneway::Payload for Ping { const KIND: &'static str = "ping"; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use laneway::{SqliteStore, Tuned, Worker};
///
/// async fn ping(_: Ping) -> Result<(), std::io::Error> { Ok(()) }
///
/// let worker = Worker::builder(SqliteStore::temporary().await?).slots(10).handle(ping).build()?;
/// let tuning = worker.tuning(); // keep it while the worker runs
///
/// tuning.set(Tuned { slots: 20, ..tuning.get() })?;
/// assert_eq!(worker.slots(), 20);
///
/// let refused = tuning.set(Tuned { slots: 0, ..tuning.get() }).unwrap_err();
/// assert_eq!(refused.to_string(), "the worker cannot be set so: slots is 0; allowed is 1 to 1000000");
/// assert_eq!(tuning.get().slots, 20);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tuning(Arc<watch::Sender<Tuned>>);

impl Tuning {
    /// `tuned` has been checked.
    pub(crate) fn new(tuned: Tuned) -> Self {
        Self(Arc::new(watch::Sender::new(tuned)))
    }

    /// The settings as they are now.
    pub fn get(&self) -> Tuned {
        *self.0.borrow()
    }

    /// Replaces them all. They count from the coordinator's next step on.
    ///
    /// # Errors
    /// Everything that is not allowed; nothing is changed then.
    pub fn set(&self, tuned: Tuned) -> Result<(), TuningError> {
        let problems = tuned.problems();
        if !problems.is_empty() {
            return Err(TuningError { problems });
        }
        self.0.send_replace(tuned);
        Ok(())
    }

    /// Tells of every change. It is never closed while the worker exists.
    pub(crate) fn changes(&self) -> watch::Receiver<Tuned> {
        self.0.subscribe()
    }
}
