//! The settings of a queue: how long history is kept, by state, and whether its tasks run one at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::family::Serial;
use crate::lane::LaneLimit;
use crate::look::State;
use crate::validate::{self, InvalidInput};

/// How long ended tasks are kept. Whole days, by UTC: what ended on a day goes when that many days have passed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// As long as the store's default says: 7 days, failed ones 30.
    Default,
    /// This many days: 1 to 3650.
    Days(u32),
    /// Not at all: no row is written. Only for what has completed.
    Nothing,
}

impl Keep {
    /// The days that a state is kept by default.
    pub fn default_days(state: State) -> u32 {
        if state == State::Failed { 30 } else { 7 }
    }

    /// As stores take it: -1 for the default, 0 for nothing.
    pub fn stored(self) -> i32 {
        match self {
            Self::Default => -1,
            Self::Days(days) => days as i32,
            Self::Nothing => 0,
        }
    }

    /// As a store kept it; none is the default.
    pub fn from_stored(days: Option<i32>) -> Self {
        match days {
            None | Some(..=-1) => Self::Default,
            Some(0) => Self::Nothing,
            Some(days) => Self::Days(days as u32),
        }
    }

    fn check(self, field: &'static str) -> Result<(), InvalidInput> {
        match self {
            Self::Days(days) => validate::in_range(field, days, 1..=3_650),
            Self::Nothing if field != "keep_completed" => validate::in_range(field, 0, 1..=3_650),
            _ => Ok(()),
        }
    }
}

/// What house-keeping did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Ended tasks whose time was over, by state.
    pub removed: BTreeMap<State, u64>,
}

/// Changes to a queue. `None` leaves a setting as it is.
///
/// ```
/// use laneway_core::{Keep, QueueSettings};
///
/// let settings = QueueSettings { keep_completed: Some(Keep::Nothing), ..Default::default() };
/// assert!(settings.check().is_ok());
/// let settings = QueueSettings { keep_failed: Some(Keep::Nothing), ..Default::default() };
/// assert_eq!(settings.check().unwrap_err().to_string(), "keep_failed is 0; allowed is 1 to 3650");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// How long completed tasks are kept.
    pub keep_completed: Option<Keep>,
    /// How long failed tasks are kept.
    pub keep_failed: Option<Keep>,
    /// How long cancelled tasks are kept.
    pub keep_cancelled: Option<Keep>,
    /// Whether statistics per minute are gathered.
    pub statistics: Option<bool>,
    /// Whether its top-level tasks run one at a time. Can be changed only while the queue has no open tasks.
    pub serial: Option<Serial>,
    /// The limit of lanes that are made from now on and given none. Not in serial queues.
    pub lane_limit: Option<LaneLimit>,
}

impl QueueSettings {
    /// Checks the days and the number of children.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        for (field, keep) in [
            ("keep_completed", self.keep_completed),
            ("keep_failed", self.keep_failed),
            ("keep_cancelled", self.keep_cancelled),
        ] {
            keep.map_or(Ok(()), |keep| keep.check(field))?;
        }
        self.serial.map_or(Ok(()), Serial::check)
    }
}
