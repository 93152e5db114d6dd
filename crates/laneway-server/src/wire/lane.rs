//! Lanes and their limits.

use std::time::Duration;

use laneway_core::{InvalidInput, LaneKey, LaneLimit, LaneSettings, LaneView, OnFailure};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::etag::Settled;

/// How many tasks of a lane may be in progress at once: a number, or `"unlimited"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most this many.
    At(u32),
    /// As many as there are.
    Unlimited,
}

impl Limit {
    pub(crate) fn into_lane_limit(self) -> Result<LaneLimit, InvalidInput> {
        match self {
            Self::At(limit) => LaneLimit::at(limit),
            Self::Unlimited => Ok(LaneLimit::UNLIMITED),
        }
    }
}

impl From<LaneLimit> for Limit {
    fn from(limit: LaneLimit) -> Self {
        if limit == LaneLimit::UNLIMITED { Self::Unlimited } else { Self::At(limit.stored() as u32) }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::At(limit) => serializer.serialize_u32(*limit),
            Self::Unlimited => serializer.serialize_str("unlimited"),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrWord;
        impl Visitor<'_> for NumberOrWord {
            type Value = Limit;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number from 1 to 1000000, or \"unlimited\"")
            }

            fn visit_u64<E: Error>(self, limit: u64) -> Result<Limit, E> {
                // What is too large for a limit is refused by its own check, with the range.
                Ok(Limit::At(u32::try_from(limit).unwrap_or(u32::MAX)))
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Limit, E> {
                match word {
                    "unlimited" => Ok(Limit::Unlimited),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(NumberOrWord)
    }
}

/// Changes to a lane; what is left out stays as it is.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneChange {
    /// The new limit: a number, or `"unlimited"`. Enqueues then leave it alone.
    #[schema(value_type = Option<serde_json::Value>)]
    limit: Option<Limit>,
    /// The least time between two starts. 0 removes it.
    interval_ms: Option<u64>,
    /// What happens after a task has failed for good: `continue` or `halt`.
    #[schema(value_type = Option<String>)]
    on_failure: Option<OnFailure>,
}

impl LaneChange {
    pub(crate) fn into_settings(self) -> Result<LaneSettings, InvalidInput> {
        Ok(LaneSettings {
            limit: self.limit.map(Limit::into_lane_limit).transpose()?,
            interval: self.interval_ms.map(Duration::from_millis),
            on_failure: self.on_failure,
        })
    }
}

impl From<LaneSettings> for LaneChange {
    fn from(settings: LaneSettings) -> Self {
        Self {
            limit: settings.limit.map(Limit::from),
            interval_ms: settings.interval.map(|interval| interval.as_millis() as u64),
            on_failure: settings.on_failure,
        }
    }
}

/// What of a lane goes on.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneResume {
    /// `pause` or `failure`: ends only its pause, or only its halt after a failure. Both, if it is left out.
    pub only: Option<Halted>,
}

/// Why a lane stands.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Halted {
    /// An operator has paused it.
    Pause,
    /// A task of it has failed.
    Failure,
}

/// One page of lanes.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Lanes {
    pub lanes: Vec<Lane>,
    /// Where the next page begins; none when this was the last.
    pub next: Option<String>,
    /// True when the queue has more lanes than one look orders: those shown are of some of them.
    pub partial: bool,
}

/// A lane as it is now.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Lane {
    /// Its key.
    key: String,
    /// Its limit: a number, or `"unlimited"`.
    #[schema(value_type = serde_json::Value)]
    limit: Limit,
    /// The least time between two starts.
    interval_ms: u64,
    /// What happens after a failure: `continue` or `halt`.
    #[schema(value_type = String)]
    on_failure: OnFailure,
    /// True when a failure has halted it.
    halted: bool,
    /// True while an operator's pause stops it.
    paused: bool,
    /// Runnable tasks that wait for a turn; at least, when there are `more`.
    pending: u64,
    /// True when counting stopped here.
    more: bool,
    /// Turns that are with tasks.
    held: u64,
}

impl Settled for Lane {
    fn settings(&self) -> serde_json::Value {
        serde_json::json!([self.limit, self.interval_ms, self.on_failure, self.halted, self.paused])
    }
}

impl From<LaneView> for Lane {
    fn from(view: LaneView) -> Self {
        Self {
            key: view.key.into(),
            limit: view.limit.into(),
            interval_ms: view.interval.as_millis() as u64,
            on_failure: view.on_failure,
            halted: view.halted,
            paused: view.paused,
            pending: view.pending,
            more: view.more,
            held: view.held,
        }
    }
}

impl TryFrom<Lane> for LaneView {
    type Error = InvalidInput;

    fn try_from(lane: Lane) -> Result<Self, InvalidInput> {
        Ok(Self {
            key: LaneKey::new(lane.key)?,
            limit: lane.limit.into_lane_limit()?,
            interval: Duration::from_millis(lane.interval_ms),
            on_failure: lane.on_failure,
            halted: lane.halted,
            paused: lane.paused,
            pending: lane.pending,
            more: lane.more,
            held: lane.held,
        })
    }
}
