//! Queues and their settings, and pauses.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Actor, ActorName, Code, Counts, InvalidInput, Keep, Kind, KindCounts, Pausable, Pause, QueueName,
    QueueSettings, QueueView, Serial, State,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lane::Limit;
use crate::etag::Settled;

/// The queues that are known.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Queues {
    pub queues: Vec<Queue>,
}

/// A queue as it is now.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Queue {
    /// Its name.
    pub queue: String,
    /// Since when nothing is claimed from it.
    #[schema(value_type = Option<String>)]
    paused_at: Option<Timestamp>,
    /// Since when its oldest runnable task has been runnable.
    #[schema(value_type = Option<String>)]
    oldest_ready_at: Option<Timestamp>,
    /// When that task started which has waited longest for its children.
    #[schema(value_type = Option<String>)]
    oldest_waiting_at: Option<Timestamp>,
    /// How long completed tasks are kept: `default`, `nothing`, or `{"days": 30}`.
    #[schema(value_type = serde_json::Value)]
    keep_completed: Keep,
    /// How long failed tasks are kept.
    #[schema(value_type = serde_json::Value)]
    keep_failed: Keep,
    /// How long cancelled tasks are kept.
    #[schema(value_type = serde_json::Value)]
    keep_cancelled: Keep,
    /// Whether statistics are gathered.
    statistics: bool,
    /// `off`, or, when its top-level tasks run one at a time, how many of their children run at once: `{"children": 4}`.
    #[schema(value_type = serde_json::Value)]
    serial: Serial,
    /// The limit of lanes that are given none: a number, or `"unlimited"`.
    #[schema(value_type = serde_json::Value)]
    lane_limit: Limit,
}

impl Settled for Queue {
    fn settings(&self) -> serde_json::Value {
        serde_json::json!([
            self.paused_at,
            self.keep_completed,
            self.keep_failed,
            self.keep_cancelled,
            self.statistics,
            self.serial,
            self.lane_limit
        ])
    }
}

impl From<QueueView> for Queue {
    fn from(view: QueueView) -> Self {
        Self {
            queue: view.queue.into(),
            paused_at: view.paused_at,
            oldest_ready_at: view.oldest_ready_at,
            oldest_waiting_at: view.oldest_waiting_at,
            keep_completed: view.keep_completed,
            keep_failed: view.keep_failed,
            keep_cancelled: view.keep_cancelled,
            statistics: view.statistics,
            serial: view.serial,
            lane_limit: view.lane_limit.into(),
        }
    }
}

impl TryFrom<Queue> for QueueView {
    type Error = InvalidInput;

    fn try_from(queue: Queue) -> Result<Self, InvalidInput> {
        Ok(Self {
            queue: QueueName::new(queue.queue)?,
            paused_at: queue.paused_at,
            oldest_ready_at: queue.oldest_ready_at,
            oldest_waiting_at: queue.oldest_waiting_at,
            keep_completed: queue.keep_completed,
            keep_failed: queue.keep_failed,
            keep_cancelled: queue.keep_cancelled,
            statistics: queue.statistics,
            serial: queue.serial,
            lane_limit: queue.lane_limit.into_lane_limit()?,
        })
    }
}

/// Changes to a queue; what is left out stays as it is.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueChange {
    /// `"default"`, `"nothing"`, or `{"days": 30}`.
    #[schema(value_type = Option<serde_json::Value>)]
    keep_completed: Option<Keep>,
    /// `"default"` or `{"days": 30}`.
    #[schema(value_type = Option<serde_json::Value>)]
    keep_failed: Option<Keep>,
    /// `"default"` or `{"days": 30}`.
    #[schema(value_type = Option<serde_json::Value>)]
    keep_cancelled: Option<Keep>,
    /// Whether statistics are gathered.
    statistics: Option<bool>,
    /// `"off"` or `{"children": 4}`. Only while the queue has no open tasks.
    #[schema(value_type = Option<serde_json::Value>)]
    serial: Option<Serial>,
    /// The limit of lanes that are made from now on and given none: a number, or `"unlimited"`.
    #[schema(value_type = Option<serde_json::Value>)]
    lane_limit: Option<Limit>,
}

impl QueueChange {
    pub(crate) fn into_settings(self) -> Result<QueueSettings, InvalidInput> {
        Ok(QueueSettings {
            keep_completed: self.keep_completed,
            keep_failed: self.keep_failed,
            keep_cancelled: self.keep_cancelled,
            statistics: self.statistics,
            serial: self.serial,
            lane_limit: self.lane_limit.map(Limit::into_lane_limit).transpose()?,
        })
    }
}

impl From<QueueSettings> for QueueChange {
    fn from(settings: QueueSettings) -> Self {
        Self {
            keep_completed: settings.keep_completed,
            keep_failed: settings.keep_failed,
            keep_cancelled: settings.keep_cancelled,
            statistics: settings.statistics,
            serial: settings.serial,
            lane_limit: settings.lane_limit.map(Limit::from),
        }
    }
}

/// How long something is paused.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRequest {
    /// The pause is over by itself after this time. Without it, it lasts until it is ended.
    pub expires_ms: Option<u64>,
}

impl PauseRequest {
    pub(crate) fn of(expires: Option<Duration>) -> Self {
        Self { expires_ms: expires.map(|expires| expires.as_millis() as u64) }
    }

    pub(crate) fn expires(&self) -> Option<Duration> {
        self.expires_ms.map(Duration::from_millis)
    }
}

/// Everything that is paused.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Pauses {
    pub pauses: Vec<Paused>,
}

/// Something that is paused.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Paused {
    /// `queue`, `kind` or `lane`.
    what: String,
    /// The queue, unless it is a kind.
    queue: Option<String>,
    /// The kind or the lane.
    name: Option<String>,
    /// By whom.
    by: String,
    /// Why.
    reason: Option<String>,
    /// Since when.
    #[schema(value_type = String)]
    paused_at: Timestamp,
    /// When it is over by itself.
    #[schema(value_type = Option<String>)]
    expires_at: Option<Timestamp>,
}

impl From<Pause> for Paused {
    fn from(pause: Pause) -> Self {
        let (queue, name) = match &pause.what {
            Pausable::Queue(queue) => (Some(queue.to_string()), None),
            Pausable::Kind(kind) => (None, Some(kind.to_string())),
            Pausable::Lane(queue, lane) => (Some(queue.to_string()), Some(lane.to_string())),
        };
        Self {
            what: pause.what.stored().0.to_owned(),
            queue,
            name,
            by: pause.actor.who.into(),
            reason: pause.actor.reason,
            paused_at: pause.paused_at,
            expires_at: pause.expires_at,
        }
    }
}

impl TryFrom<Paused> for Pause {
    type Error = InvalidInput;

    fn try_from(paused: Paused) -> Result<Self, InvalidInput> {
        let (queue, name) = (paused.queue.unwrap_or_default(), paused.name.unwrap_or_default());
        Ok(Self {
            what: Pausable::from_stored(&paused.what, queue, name)?,
            actor: Actor { who: ActorName::new(paused.by)?, reason: paused.reason },
            paused_at: paused.paused_at,
            expires_at: paused.expires_at,
        })
    }
}

/// Tasks, counted.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Counted {
    pub counts: Vec<Count>,
}

/// How many tasks are in a state.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Count {
    /// The queue, in counts of all queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    /// The kind, in counts of one queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// The state.
    #[schema(value_type = String)]
    state: State,
    /// How many; at least, when there are `more`.
    tasks: u64,
    /// True when counting stopped here.
    more: bool,
}

impl From<Counts> for Count {
    fn from(counts: Counts) -> Self {
        let Counts { queue, state, tasks, more } = counts;
        Self { queue: Some(queue.into()), kind: None, state, tasks, more }
    }
}

impl From<KindCounts> for Count {
    fn from(counts: KindCounts) -> Self {
        let KindCounts { kind, state, tasks, more } = counts;
        Self { queue: None, kind: Some(kind.into()), state, tasks, more }
    }
}

fn missing(field: &'static str) -> InvalidInput {
    InvalidInput::new(Code::InvalidName, field, "of a count is missing")
}

impl TryFrom<Count> for Counts {
    type Error = InvalidInput;

    fn try_from(count: Count) -> Result<Self, InvalidInput> {
        let queue = QueueName::new(count.queue.ok_or_else(|| missing("queue"))?)?;
        Ok(Self { queue, state: count.state, tasks: count.tasks, more: count.more })
    }
}

impl TryFrom<Count> for KindCounts {
    type Error = InvalidInput;

    fn try_from(count: Count) -> Result<Self, InvalidInput> {
        let kind = Kind::new(count.kind.ok_or_else(|| missing("kind"))?)?;
        Ok(Self { kind, state: count.state, tasks: count.tasks, more: count.more })
    }
}
