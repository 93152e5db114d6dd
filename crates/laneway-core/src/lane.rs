//! Lanes: keys inside a queue with a limit.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::LaneKey;
use crate::validate::{self, InvalidInput};

/// How many tasks of a lane may be in progress at once, over all workers. At 1 they run strictly in order.
///
/// ```
/// use laneway_core::LaneLimit;
///
/// assert!(LaneLimit::at(1).unwrap().is_ordered());
/// assert!(LaneLimit::at(0).is_err());
/// assert_eq!(LaneLimit::UNLIMITED.to_string(), "unlimited");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneLimit(i32);

impl LaneLimit {
    /// One at a time, in order: the limit of a lane that was given none.
    pub const ONE: Self = Self(1);
    /// No limit.
    pub const UNLIMITED: Self = Self(i32::MAX);

    /// At most `limit` at once.
    ///
    /// # Errors
    /// `out_of_range` outside 1 to 1,000,000.
    pub fn at(limit: u32) -> Result<Self, InvalidInput> {
        validate::in_range("lane.limit", limit, 1..=validate::LANE_LIMIT_MAX)?;
        Ok(Self(limit as i32))
    }

    /// The limit as stores keep it: `i32::MAX` is unlimited.
    pub fn stored(self) -> i32 {
        self.0
    }

    /// The limit that a store kept.
    pub fn from_stored(limit: i32) -> Self {
        Self(limit.max(1))
    }

    /// True when tasks of the lane run one at a time in order.
    pub fn is_ordered(self) -> bool {
        self.0 == 1
    }
}

impl fmt::Display for LaneLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNLIMITED { f.write_str("unlimited") } else { self.0.fmt(f) }
    }
}

/// The lane of a task that is enqueued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Its key inside the queue.
    pub key: LaneKey,
    /// The limit that the lane shall have from now on. `None` leaves it as it is (1 for a new lane). A limit
    /// set with [`Store::set_lane`](crate::Store::set_lane) is the operator's and is not changed by enqueues.
    pub limit: Option<LaneLimit>,
}

impl Lane {
    /// A lane whose limit is left as it is.
    pub fn new(key: LaneKey) -> Self {
        Self { key, limit: None }
    }

    /// Gives the lane a limit.
    pub fn limit(mut self, limit: LaneLimit) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// What a lane does after one of its tasks has failed for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Goes on with the next task.
    #[default]
    Continue,
    /// Starts nothing until an operator resumes it.
    Halt,
}

/// Changes to a lane. `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneSettings {
    /// The new limit, which enqueues then leave alone.
    pub limit: Option<LaneLimit>,
    /// The least time between two starts in this lane, over all workers. Zero removes it.
    pub interval: Option<Duration>,
    /// What happens after a failure.
    pub on_failure: Option<OnFailure>,
}

impl LaneSettings {
    /// Checks the interval: at most 30 days.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.interval.map_or(Ok(()), |interval| validate::wait("lane.interval", interval))
    }
}

/// A lane as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneView {
    /// Its key.
    pub key: LaneKey,
    /// Its limit.
    pub limit: LaneLimit,
    /// The least time between two starts.
    pub interval: Duration,
    /// What happens after a failure.
    pub on_failure: OnFailure,
    /// True when it was halted by a failure and waits for an operator.
    pub halted: bool,
    /// True while an operator's pause stops it.
    pub paused: bool,
    /// Runnable tasks that wait for a turn: its backlog. At least, when there are `more`.
    pub pending: u64,
    /// True when counting stopped here: at 10,000 tasks, or earlier in a list of very many lanes.
    pub more: bool,
    /// Turns that are with tasks: leased, waiting for children, or in back-off in an ordered lane.
    pub held: u64,
}
