//! Tasks: what is enqueued, and how they are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Code, Effect, InvalidInput, Json, KeyScope, Kind, Lane, LaneKey, Looked, NewTask, OnConflict, QueueName,
    RetryPolicy, State, Tag, TaskId, TaskView, Unique, UniqueKey, When,
};
use serde::de::{Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::fields::Shown;
use super::lane::Limit;
use super::worker::session;

/// A task that is to be enqueued, as JSON: the body of `POST /api/v1/tasks`, and a line of a bulk.
///
/// ```
/// use laneway_server::wire::TaskRequest;
///
/// let line = r#"{"kind": "mail.send", "payload": {"to": "ann@example.org"}, "lane": "customer:7", "delay_ms": 600000}"#;
/// let request: TaskRequest = serde_json::from_str(line).unwrap();
/// let task = request.into_task().unwrap();
/// assert_eq!(task.lane.as_ref().unwrap().key.as_str(), "customer:7");
///
/// let again = serde_json::to_string(&TaskRequest::from(&task)).unwrap();
/// assert_eq!(serde_json::from_str::<TaskRequest>(&again).unwrap().into_task().unwrap(), task);
/// ```
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Selects the handler.
    pub kind: String,
    /// What the handler is given: any JSON. `{}` if there is none.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Where it waits. `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Its lane: a key, or an object with `key` and `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub lane: Option<LaneRequest>,
    /// Lower runs first: −1000 to 1000. 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Starts it no earlier than this long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Starts it no earlier than then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub due_at: Option<Timestamp>,
    /// How often it is tried: 1 to 1000. 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long it waits after a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub retry: Option<RetryPolicy>,
    /// How long one attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Labels for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Trace context that the attempt gets (`traceparent`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trace: BTreeMap<String, String>,
    /// A key that only one task may hold at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<UniqueRequest>,
    /// Makes it safe to repeat the call: the same key stores no second task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// A payload that is given is kept, also if it is `null`.
pub(crate) fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

/// The lane of a task: a key, or an object with `key` and `limit`.
#[derive(Debug)]
pub struct LaneRequest {
    /// Its key inside the queue.
    pub key: String,
    /// The limit that it shall have from now on.
    pub limit: Option<Limit>,
}

impl Serialize for LaneRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.limit {
            None => serializer.serialize_str(&self.key),
            Some(limit) => LaneObject { key: self.key.clone(), limit: Some(limit) }.serialize(serializer),
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LaneObject {
    key: String,
    limit: Option<Limit>,
}

impl<'de> Deserialize<'de> for LaneRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyOrObject;
        impl<'de> Visitor<'de> for KeyOrObject {
            type Value = LaneRequest;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a lane's key, or an object with `key` and `limit`")
            }

            fn visit_str<E: Error>(self, key: &str) -> Result<LaneRequest, E> {
                Ok(LaneRequest { key: key.to_owned(), limit: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LaneRequest, A::Error> {
                let object = LaneObject::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LaneRequest { key: object.key, limit: object.limit })
            }
        }
        deserializer.deserialize_any(KeyOrObject)
    }
}

/// A key that only one task may hold at a time.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UniqueRequest {
    /// The key, unique among the tasks of one kind in one queue.
    pub key: String,
    /// How long its task holds it: `while_pending`, `while_open` (if none is given), or `{"within_ms": 60000}`.
    #[schema(value_type = Option<serde_json::Value>)]
    pub scope: Option<KeyScope>,
    /// What becomes of a second task: `existing` (if none is given), `replace`, `merge` or `reject`.
    #[schema(value_type = Option<String>)]
    pub on_conflict: Option<OnConflict>,
}

impl TaskRequest {
    /// The task, if everything about it is acceptable by itself. Stores check the rest.
    ///
    /// # Errors
    /// What core's constructors refuse; `out_of_range` for two times or two keys at once.
    pub fn into_task(self) -> Result<NewTask, InvalidInput> {
        let payload = self.payload.map_or_else(|| Ok(Json::default()), |raw| Json::parse(raw.get()))?;
        let mut task = NewTask::new(Kind::new(self.kind)?, payload);
        if let Some(queue) = self.queue {
            task.queue = QueueName::new(queue)?;
        }
        task.lane = self.lane.map(LaneRequest::into_lane).transpose()?;
        task.when = when(self.delay_ms, self.due_at)?;
        task.priority = self.priority.unwrap_or(task.priority);
        task.max_attempts = self.max_attempts.unwrap_or(task.max_attempts);
        task.retry = self.retry.unwrap_or(task.retry);
        task.timeout = self.timeout_ms.map(Duration::from_millis);
        task.tags = self.tags.into_iter().map(Tag::new).collect::<Result<_, _>>()?;
        task.trace = self.trace;
        task.unique = unique(self.unique, self.idempotency_key)?;
        Ok(task)
    }
}

/// The task as it is sent: what has its default is left out.
impl From<&NewTask> for TaskRequest {
    fn from(task: &NewTask) -> Self {
        let usual = NewTask::new(task.kind.clone(), Json::default());
        let payload = RawValue::from_string(task.payload.as_str().to_owned());
        let (delay_ms, due_at) = match task.when {
            When::Now => (None, None),
            When::After(delay) => (Some(delay.as_millis() as u64), None),
            When::At(due) => (None, Some(due)),
        };
        let (unique, idempotency_key) = match task.unique.clone() {
            None => (None, None),
            Some(unique) if unique == Unique::idempotent(unique.key.clone()) => {
                (None, Some(unique.key.into()))
            }
            Some(unique) => (Some(UniqueRequest::from(unique)), None),
        };
        Self {
            kind: task.kind.to_string(),
            payload: Some(payload.expect("a payload is JSON")),
            queue: (task.queue != usual.queue).then(|| task.queue.to_string()),
            lane: task.lane.clone().map(LaneRequest::from),
            priority: (task.priority != usual.priority).then_some(task.priority),
            delay_ms,
            due_at,
            max_attempts: (task.max_attempts != usual.max_attempts).then_some(task.max_attempts),
            retry: (task.retry != usual.retry).then(|| task.retry.clone()),
            timeout_ms: task.timeout.map(|timeout| timeout.as_millis() as u64),
            tags: task.tags.iter().map(ToString::to_string).collect(),
            trace: task.trace.clone(),
            unique,
            idempotency_key,
        }
    }
}

impl From<Lane> for LaneRequest {
    fn from(lane: Lane) -> Self {
        Self { key: lane.key.into(), limit: lane.limit.map(Limit::from) }
    }
}

impl From<Unique> for UniqueRequest {
    fn from(unique: Unique) -> Self {
        Self { key: unique.key.into(), scope: Some(unique.scope), on_conflict: Some(unique.on_conflict) }
    }
}

impl LaneRequest {
    fn into_lane(self) -> Result<Lane, InvalidInput> {
        let limit = self.limit.map(Limit::into_lane_limit).transpose()?;
        Ok(Lane { key: LaneKey::new(self.key)?, limit })
    }
}

fn when(delay_ms: Option<u64>, due_at: Option<Timestamp>) -> Result<When, InvalidInput> {
    match (delay_ms, due_at) {
        (None, None) => Ok(When::Now),
        (Some(delay), None) => Ok(When::After(Duration::from_millis(delay))),
        (None, Some(due)) => Ok(When::At(due)),
        (Some(_), Some(_)) => {
            let problem = "and delay_ms are both given; a task has one of them";
            Err(InvalidInput::new(Code::OutOfRange, "due_at", problem))
        }
    }
}

fn unique(
    request: Option<UniqueRequest>,
    idempotency_key: Option<String>,
) -> Result<Option<Unique>, InvalidInput> {
    match (request, idempotency_key) {
        (None, None) => Ok(None),
        (None, Some(key)) => Ok(Some(Unique::idempotent(UniqueKey::new(key)?))),
        (Some(request), None) => {
            let plain = Unique::new(UniqueKey::new(request.key)?);
            let scope = request.scope.unwrap_or(plain.scope);
            Ok(Some(plain.scope(scope).on_conflict(request.on_conflict.unwrap_or_default())))
        }
        (Some(_), Some(_)) => {
            let problem = "and idempotency_key are both given; a task has one key";
            Err(InvalidInput::new(Code::OutOfRange, "unique", problem))
        }
    }
}

/// What an enqueue did.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Enqueued {
    /// The task: the new one, or the one that holds the key.
    pub id: i64,
    /// `made`, `existing`, `replaced` or `merged`.
    #[schema(value_type = String)]
    pub effect: Effect,
}

impl From<laneway_core::Enqueued> for Enqueued {
    fn from(enqueued: laneway_core::Enqueued) -> Self {
        Self { id: enqueued.id.0, effect: enqueued.effect }
    }
}

impl From<Enqueued> for laneway_core::Enqueued {
    fn from(enqueued: Enqueued) -> Self {
        Self { id: TaskId(enqueued.id), effect: enqueued.effect }
    }
}

/// The answers to several tasks, in their order.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct EnqueuedMany {
    pub tasks: Vec<Enqueued>,
}

/// A task wherever it is.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Task {
    /// Its number.
    id: i64,
    /// Selects the handler.
    kind: String,
    /// Its queue.
    queue: String,
    /// Its lane's key, while the lane is known.
    lane: Option<String>,
    /// Lower runs first.
    priority: i32,
    /// Where it is.
    #[schema(value_type = String)]
    pub state: State,
    /// Attempts that were charged, counting a running one.
    attempt: u32,
    /// How often it is tried at most.
    max_attempts: u32,
    /// How many workers died while they ran it.
    crashes: u32,
    /// The parent that spawned it.
    parent: Option<i64>,
    /// Distance from the top of its family.
    depth: u32,
    /// When it was enqueued.
    #[schema(value_type = String)]
    enqueued_at: Timestamp,
    /// When it becomes runnable, while it is `later`.
    #[schema(value_type = Option<String>)]
    due_at: Option<Timestamp>,
    /// When the running or last attempt was claimed.
    #[schema(value_type = Option<String>)]
    started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    /// The worker that runs it.
    worker: Option<String>,
    /// Its payload. Not kept for plain successes.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Json>,
    /// What the handler returned.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Json>,
    /// What went wrong last.
    error: Option<String>,
    /// True while a running attempt has been told to stop.
    cancel_requested: bool,
    /// How far the running attempt is, if it has told: the share that is done, a note, and when it was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    progress: Option<laneway_core::ProgressView>,
    /// Its latest children, counted: `total`, `open`, `completed`, `failed`, `cancelled`, the `policy` and the first `errors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    family: Option<laneway_core::FamilyView>,
    /// How long one attempt may take, how it is retried, tags, trace, unique key, the fire it comes from, the `step` of its
    /// family and the task that it runs `after`, where they are given.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    options: laneway_core::TaskOptions,
}

impl From<TaskView> for Task {
    fn from(view: TaskView) -> Self {
        Self {
            id: view.id.0,
            kind: view.kind.into(),
            queue: view.queue.into(),
            lane: view.lane.map(Into::into),
            priority: view.priority,
            state: view.state,
            attempt: view.attempt,
            max_attempts: view.max_attempts,
            crashes: view.crashes,
            parent: view.parent.map(|parent| parent.0),
            depth: view.depth,
            enqueued_at: view.enqueued_at,
            due_at: view.due_at,
            started_at: view.started_at,
            ended_at: view.ended_at,
            worker: view.worker.map(|session| session.to_string()),
            payload: view.payload,
            result: view.result,
            error: view.error,
            cancel_requested: view.cancel_requested,
            progress: view.progress,
            family: view.family,
            options: view.options,
        }
    }
}

impl TryFrom<Task> for TaskView {
    type Error = InvalidInput;

    fn try_from(task: Task) -> Result<Self, InvalidInput> {
        // A payload that is missing and one that is `null` look alike. Only of what has completed it may be missing.
        let payload = match task.payload {
            None if task.state != State::Completed => Some(Json::trusted("null")),
            payload => payload,
        };
        Ok(Self {
            id: TaskId(task.id),
            kind: Kind::new(task.kind)?,
            queue: QueueName::new(task.queue)?,
            lane: task.lane.map(LaneKey::new).transpose()?,
            priority: task.priority,
            state: task.state,
            attempt: task.attempt,
            max_attempts: task.max_attempts,
            crashes: task.crashes,
            parent: task.parent.map(TaskId),
            depth: task.depth,
            enqueued_at: task.enqueued_at,
            due_at: task.due_at,
            started_at: task.started_at,
            ended_at: task.ended_at,
            worker: task.worker.as_deref().map(session).transpose()?,
            payload,
            result: task.result,
            error: task.error,
            cancel_requested: task.cancel_requested,
            progress: task.progress,
            family: task.family,
            options: task.options,
        })
    }
}

/// One page of tasks.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TaskPage {
    /// The tasks, whole or as `fields` asks for.
    #[schema(value_type = Vec<Task>)]
    pub tasks: Vec<Shown>,
    /// Where the next page begins (`cursor=`); none when this was the last.
    pub next: Option<String>,
    /// How far it looked: `until_full`, `to_the_end`, or `{"rows": 10000}`, after which it stopped.
    #[schema(value_type = serde_json::Value)]
    pub looked: Looked,
}
