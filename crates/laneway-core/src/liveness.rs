//! Staying alive, being told what to do, and falling asleep without missing a task.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::advance::Kinds;
use crate::id::{LeaseId, SessionId, TaskId};
use crate::name::QueueName;

/// A session that is not renewed for this long is dead: its tasks run elsewhere.
pub const SESSION_SILENCE_MAX: Duration = Duration::from_secs(30);
/// A task whose workers died this often is failed as poison.
pub const CRASHES_MAX: u32 = 3;

/// A worker that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Random, new for every start.
    pub session: SessionId,
    /// For humans: host and process.
    pub name: String,
    /// The queues that it serves.
    pub queues: Vec<QueueName>,
    /// The kinds that it has handlers for.
    pub kinds: Kinds,
    /// What it can take.
    pub capacity: Capacity,
}

/// What a worker can take, told with every renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Attempts that it runs at once at most.
    pub slots: u32,
    /// Slots that are free.
    pub free: u32,
    /// Memory use in percent of what the process may use.
    pub memory_percent: u8,
    /// True when it takes nothing new.
    pub draining: bool,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Who.
    pub session: SessionId,
    /// What it can take now.
    pub capacity: Capacity,
    /// The leases that the worker knows. A lease of the session that it does not know was claimed by an advance
    /// whose answer was lost; its tasks are given back.
    pub leases: Vec<LeaseId>,
    /// The number of the last advance whose answer has arrived. Leases of later advances are left alone.
    pub advance_number: u64,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The session lives; these are its orders.
    Alive(Orders),
    /// The session was silent for too long, and its tasks were given to others. Stop all attempts and register
    /// as a new session.
    Lost,
}

/// What a worker shall do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Stop the attempts of these tasks and settle them as cancelled.
    pub cancel: Vec<TaskId>,
    /// Take nothing new.
    pub drain: bool,
    /// End as with the first signal to stop: what runs may finish within the grace time.
    pub stop: bool,
    /// How many tasks of unknown leases were given back.
    pub given_back: u32,
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sessions that were silent for too long.
    pub sessions: u32,
    /// Tasks of dead sessions that are runnable again.
    pub given_back: u32,
    /// Tasks that were failed because their workers died three times.
    pub poisoned: u32,
    /// The tasks that are runnable again, by queue.
    pub rescued: BTreeMap<QueueName, u32>,
}

/// A worker that has found nothing and wants to sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Who.
    pub session: SessionId,
    /// Queues whose work shall wake it.
    pub queues: Vec<QueueName>,
    /// How long it will sleep at most. Hints stop a little later, should it die asleep.
    pub at_most: Duration,
}

/// The moment at which a worker announced its sleep.
///
/// Whoever enqueues after it sends a hint. Whoever began before it may not have seen the announcement, so the
/// worker stays half awake until all of them have ended: see [`Store::fall_asleep`](crate::Store::fall_asleep).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence(pub u64);
