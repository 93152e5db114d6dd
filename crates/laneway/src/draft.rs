//! A task that is being described: the builder behind `client.enqueue(payload)`.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    InvalidInput, Json, Kind, Lane, LaneKey, LaneLimit, NewTask, QueueName, RetryPolicy, Tag, Unique,
    UniqueKey,
};

use crate::payload::Payload;
use crate::trace;

/// A task before it is enqueued: a payload and what was said about it. Everything has a written default.
///
/// Made by [`Client::enqueue`](crate::Client::enqueue), then awaited, or by [`task`] for bulk enqueues and transactions.
/// Names are checked when it is enqueued, and the first mistake is answered.
#[must_use = "nothing is enqueued until the draft is awaited or handed to a client"]
#[derive(Debug)]
pub struct Draft<C = ()> {
    /// Who enqueues it: a client, or nobody yet.
    pub(crate) client: C,
    pub(crate) task: Result<NewTask, InvalidInput>,
    /// True when it names its queue; a spawned task otherwise gets its spawner's.
    pub(crate) says_queue: bool,
    pub(crate) says_priority: bool,
}

/// Describes a task for [`Client::enqueue_many`](crate::Client::enqueue_many) and
/// [`Client::enqueue_in`](crate::Client::enqueue_in).
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Page { url: String }
/// # impl laneway::Payload for Page { const KIND: &'static str = "page.fetch"; }
/// let pages = ["/a", "/b"].map(|url| laneway::task(Page { url: url.into() }).lane("site:42").limit(3));
/// ```
pub fn task(payload: impl Payload) -> Draft {
    Draft::new((), payload)
}

impl<P: Payload> From<P> for Draft {
    fn from(payload: P) -> Self {
        task(payload)
    }
}

impl<C> Draft<C> {
    pub(crate) fn new<P: Payload>(client: C, payload: P) -> Self {
        let task = Kind::new(P::KIND).and_then(|kind| Ok(NewTask::new(kind, Json::encode(&payload)?)));
        Self { client, task, says_queue: false, says_priority: false }.with(|task| {
            // A task that is enqueued by an attempt belongs to the attempt's trace.
            task.trace = trace::current();
            Ok(())
        })
    }

    fn with(mut self, change: impl FnOnce(&mut NewTask) -> Result<(), InvalidInput>) -> Self {
        self.task = self.task.and_then(|mut task| {
            change(&mut task)?;
            Ok(task)
        });
        self
    }

    /// Puts it into a queue. `default`.
    pub fn queue(mut self, queue: &str) -> Self {
        self.says_queue = true;
        self.with(|task| QueueName::new(queue).map(|queue| task.queue = queue))
    }

    /// Puts it into a lane of its queue: at most the lane's limit of tasks are in progress at once, over all
    /// workers. A new lane has limit 1, which is strict order.
    pub fn lane(self, key: impl Into<String>) -> Self {
        self.with(|task| LaneKey::new(key).map(|key| task.lane = Some(Lane::new(key))))
    }

    /// Gives its lane this limit from now on. Name the lane first.
    pub fn limit(self, limit: u32) -> Self {
        self.with(|task| {
            let limit = LaneLimit::at(limit)?;
            let lane = task.lane.as_mut().ok_or_else(|| {
                let problem = "belongs to a lane; call `lane` before `limit`";
                InvalidInput::new(laneway_core::Code::OutOfRange, "lane.limit", problem)
            })?;
            lane.limit = Some(limit);
            Ok(())
        })
    }

    /// Lower runs first. 0; allowed is −1000 to 1000.
    pub fn priority(mut self, priority: i32) -> Self {
        self.says_priority = true;
        self.change(|task| task.priority(priority))
    }

    /// Starts it no earlier than `delay` after it was stored.
    pub fn delay(self, delay: Duration) -> Self {
        self.change(|task| task.delay(delay))
    }

    /// Starts it no earlier than `due`, by the store's clock.
    pub fn at(self, due: Timestamp) -> Self {
        self.change(|task| task.at(due))
    }

    /// Stores it only if no task of the same kind and queue with this key is open; otherwise the answer names that one.
    /// [`unique_by`](Self::unique_by) says it differently.
    pub fn unique(self, key: impl Into<String>) -> Self {
        self.with(|task| UniqueKey::new(key).map(|key| task.unique = Some(Unique::new(key))))
    }

    /// Stores it by the rules of `unique`: for how long the key is held, and what becomes of a second task.
    pub fn unique_by(self, unique: Unique) -> Self {
        self.change(|task| task.unique(unique))
    }

    /// Makes repeating this enqueue harmless: with the same key and the same content no second task is stored.
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        self.with(|task| UniqueKey::new(key).map(|key| task.unique = Some(Unique::idempotent(key))))
    }

    /// Tries it at most this often before it has failed for good. 25.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.change(|task| task.max_attempts(attempts))
    }

    /// How long it waits after failed attempts. 1 s, 2 s, 4 s … up to an hour.
    pub fn retry(self, retry: RetryPolicy) -> Self {
        self.change(|task| task.retry(retry))
    }

    /// Ends an attempt that takes longer; it counts as failed. None.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|task| task.timeout(timeout))
    }

    /// Adds a label for operators.
    pub fn tag(self, tag: &str) -> Self {
        self.with(|task| Tag::new(tag).map(|tag| task.tags.push(tag)))
    }

    /// Adds one entry to its trace context, such as `traceparent`, which its attempts are given.
    pub fn trace(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|task| {
            task.trace.insert(key.into(), value.into());
            Ok(())
        })
    }

    fn change(mut self, change: impl FnOnce(NewTask) -> NewTask) -> Self {
        self.task = self.task.map(change);
        self
    }
}
