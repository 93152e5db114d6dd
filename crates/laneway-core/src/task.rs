//! A task before it is stored, and as an attempt sees it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::json::Json;
use crate::lane::Lane;
use crate::name::{Kind, LaneKey, QueueName, Tag, UniqueKey};
use crate::retry::RetryPolicy;
use crate::schedule::Fire;
use crate::unique::Unique;
use crate::validate::{self, Code, InvalidInput, Limits};

/// A task that is to be enqueued. Everything but kind and payload has a written default.
///
/// ```
/// use laneway_core::{Json, Kind, Lane, LaneKey, NewTask};
///
/// let task = NewTask::new(Kind::new("mail.receipt")?, Json::parse(r#"{"order": 7}"#)?)
///     .lane(Lane::new(LaneKey::new("customer:7")?))
///     .priority(-10);
/// task.check(&Default::default())?;
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// Selects the handler.
    pub kind: Kind,
    /// What the handler is given.
    pub payload: Json,
    /// Where it waits. `default`.
    pub queue: QueueName,
    /// Its lane. None: no limit and no order.
    pub lane: Option<Lane>,
    /// Lower runs first. 0; allowed is −1000 to 1000.
    pub priority: i32,
    /// When it may start. At once.
    pub when: When,
    /// How often it is tried before it has failed for good. 25; allowed is 1 to 1000.
    pub max_attempts: u32,
    /// How long it waits after a failed attempt.
    pub retry: RetryPolicy,
    /// How long one attempt may take. None: as long as the worker lives.
    pub timeout: Option<Duration>,
    /// Labels for operators.
    pub tags: Vec<Tag>,
    /// Trace context of the enqueuing code (`traceparent` and the like), handed to the attempt.
    pub trace: BTreeMap<String, String>,
    /// Its key, if there may be only one such task.
    #[serde(default)]
    pub unique: Option<Unique>,
    /// The fire that it comes from. Schedules set it.
    #[serde(skip)]
    pub fire: Option<Fire>,
}

/// When a task may start, by the database's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// This long after it was stored.
    After(Duration),
    /// At this time; a time in the past means at once.
    At(Timestamp),
}

impl NewTask {
    /// A task with the defaults.
    pub fn new(kind: Kind, payload: Json) -> Self {
        Self {
            kind,
            payload,
            queue: QueueName::default(),
            lane: None,
            priority: 0,
            when: When::Now,
            max_attempts: 25,
            retry: RetryPolicy::default(),
            timeout: None,
            tags: Vec::new(),
            trace: BTreeMap::new(),
            unique: None,
            fire: None,
        }
    }

    /// Puts it into `queue`.
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// Puts it into a lane of its queue.
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Lower runs first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Starts it no earlier than `delay` after it was stored.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.when = When::After(delay);
        self
    }

    /// Starts it no earlier than `due`.
    pub fn at(mut self, due: Timestamp) -> Self {
        self.when = When::At(due);
        self
    }

    /// Tries it at most this often.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Waits by `retry` after failed attempts.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Ends an attempt that takes longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds a label.
    pub fn tag(mut self, tag: Tag) -> Self {
        self.tags.push(tag);
        self
    }

    /// Gives it a key that only one task may hold at a time.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// Makes it safe to repeat this enqueue: with the same key no second task is stored. In place of another key.
    pub fn idempotency_key(self, key: UniqueKey) -> Self {
        self.unique(Unique::idempotent(key))
    }

    /// Checks everything that a store will not accept. Stores call it; nothing is stored when it fails.
    ///
    /// # Errors
    /// The first problem found, as the [`validate`] module describes.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        validate::payload_size(&self.payload, limits)?;
        validate::in_range("priority", self.priority, -validate::PRIORITY_MAX..=validate::PRIORITY_MAX)?;
        validate::in_range("max_attempts", self.max_attempts, 1..=validate::ATTEMPTS_MAX)?;
        match self.when {
            When::Now => (),
            When::After(delay) => validate::delay_ahead(delay)?,
            When::At(due) => validate::due_time(due, Timestamp::now())?,
        }
        self.retry.check()?;
        if let Some(timeout) = self.timeout {
            validate::in_range(
                "timeout",
                timeout.as_millis() as u64,
                1..=validate::WAIT_MAX.as_millis() as u64,
            )
            .map_err(|refused| InvalidInput { message: format!("{} ms", refused.message), ..refused })?;
        }
        self.unique.as_ref().map_or(Ok(()), Unique::check)?;
        self.check_labels()
    }

    fn check_labels(&self) -> Result<(), InvalidInput> {
        let too_many = |field, count: usize| {
            let problem = format!("has {count} entries; allowed are {}", validate::TAGS_MAX);
            Err(InvalidInput::new(Code::OutOfRange, field, problem))
        };
        if self.tags.len() > validate::TAGS_MAX {
            return too_many("tags", self.tags.len());
        }
        if self.trace.len() > validate::TAGS_MAX {
            return too_many("trace", self.trace.len());
        }
        self.trace.iter().try_for_each(|(key, value)| {
            validate::name("trace", key)?;
            if value.len() <= 1_000 && !value.chars().any(char::is_control) {
                return Ok(());
            }
            let problem = format!("`{key}` is over 1000 bytes or contains control characters");
            Err(InvalidInput::new(Code::InvalidName, "trace", problem))
        })
    }
}

/// Checks a bulk enqueue: every task, and how many there are. The refusal names the task's place.
///
/// # Errors
/// `bulk_too_large`, or what [`NewTask::check`] refuses.
pub fn check_bulk(tasks: &[NewTask], limits: &Limits) -> Result<(), InvalidInput> {
    if tasks.len() > limits.bulk_max {
        let problem =
            format!("are {} in one call, the limit is {}; split them", tasks.len(), limits.bulk_max);
        return Err(InvalidInput::new(Code::BulkTooLarge, "tasks", problem));
    }
    tasks.iter().enumerate().try_for_each(|(place, task)| {
        task.check(limits).map_err(|refused| match tasks.len() {
            1 => refused,
            _ => InvalidInput { message: format!("task {place}: {}", refused.message), ..refused },
        })
    })
}

/// A stored task as an attempt sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// Selects the handler.
    pub kind: Kind,
    /// What the handler is given.
    pub payload: Json,
    /// Its queue.
    pub queue: QueueName,
    /// Its lane's key.
    pub lane: Option<LaneKey>,
    /// Lower runs first.
    pub priority: i32,
    /// Number of this attempt, from 1. Snoozes, give-backs and crashes do not count.
    pub attempt: u32,
    /// How often it is tried at most.
    pub max_attempts: u32,
    /// How many workers died while they ran it.
    pub crashes: u32,
    /// The parent that spawned it.
    pub parent: Option<TaskId>,
    /// Distance from the top of its family: 0 for a task that was enqueued.
    pub depth: u32,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// What few tasks set.
    #[serde(flatten)]
    pub options: TaskOptions,
}

/// The settings of a task that only its attempt needs. Stored as one JSON document, absent when all are
/// default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskOptions {
    /// How long one attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it waits after a failed attempt. None: the default policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Labels for operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// Trace context of the enqueuing code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub trace: BTreeMap<String, String>,
    /// The key that it was enqueued with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// The fire of a schedule that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fire: Option<Fire>,
    /// Which step of its family this is: 0 until its children have ended for the first time.
    #[serde(skip_serializing_if = "is_zero")]
    pub step: u32,
    /// The task that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<TaskId>,
    /// True when its next attempt is not to call the handler but to wait for its failed children, which start anew: see
    /// [`Action::RetryChildren`](crate::Action::RetryChildren).
    #[serde(skip_serializing_if = "is_false")]
    pub resume: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl TaskOptions {
    /// The options of a new task as stores keep them: `None` when there is nothing to keep.
    pub fn stored(task: &NewTask) -> Option<String> {
        Self::of(task).to_stored()
    }

    /// The options of a new task.
    pub fn of(task: &NewTask) -> Self {
        Self {
            timeout_ms: task.timeout.map(|timeout| timeout.as_millis() as u64),
            retry: (task.retry != RetryPolicy::default()).then(|| task.retry.clone()),
            tags: task.tags.clone(),
            trace: task.trace.clone(),
            unique: task.unique.clone(),
            fire: task.fire.clone(),
            ..Self::default()
        }
    }

    /// Whether a new task has options to keep.
    pub fn are_set(task: &NewTask) -> bool {
        Self::of(task) != Self::default()
    }

    /// The options as stores keep them: `None` when there is nothing to keep.
    pub fn to_stored(&self) -> Option<String> {
        (*self != Self::default())
            .then(|| serde_json::to_string(self).expect("strings and numbers can be encoded"))
    }

    /// The options that a store kept.
    ///
    /// # Errors
    /// When the stored text is not what [`TaskOptions::stored`] wrote.
    pub fn from_stored(text: Option<&str>) -> Result<Self, serde_json::Error> {
        text.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }

    /// The policy by which a failed attempt is retried.
    pub fn retry_policy(&self) -> RetryPolicy {
        self.retry.clone().unwrap_or_default()
    }
}
