//! Why a task is not running.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::look::State;
use crate::name::Kind;

/// Tasks in front of another one that are counted.
pub const AHEAD_MAX: u64 = 1_000;
/// Workers and holders of turns that are named.
pub const NAMED_MAX: u64 = 20;

/// Where a task is and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The task.
    pub task: TaskId,
    /// Its state.
    pub state: State,
    /// Everything that keeps it from running, most important first. All of them must go before it starts.
    pub reasons: Vec<Reason>,
}

/// One thing that keeps a task from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It is scheduled or snoozed.
    Due {
        /// When it becomes runnable.
        at: Timestamp,
    },
    /// Its last attempt failed, and it waits before the next.
    BackOff {
        /// When it becomes runnable.
        until: Timestamp,
        /// The attempt that failed.
        attempt: u32,
        /// What went wrong.
        error: Option<String>,
    },
    /// Its children are open.
    Waiting {
        /// How many.
        open: u64,
        /// Children that have failed or were cancelled.
        failed: u64,
        /// The first open ones: at most five.
        children: Vec<OpenChild>,
    },
    /// It runs after another task, which has not ended.
    After {
        /// That task.
        task: TaskId,
    },
    /// Its queue is paused.
    QueuePaused(Paused),
    /// Its kind is paused.
    KindPaused(Paused),
    /// Its lane is paused.
    LanePaused(Paused),
    /// A failure has halted its lane.
    LaneHalted,
    /// Its lane started something less than its interval ago.
    LaneRests {
        /// When it may start the next.
        until: Timestamp,
    },
    /// As many tasks of its lane are in progress as may be.
    LaneFull {
        /// The limit.
        limit: u32,
        /// Who has the lane's turns: at most [`NAMED_MAX`].
        held_by: Vec<Holder>,
    },
    /// Others are before it: in its lane, or, without one, in its queue.
    Behind {
        /// How many.
        ahead: u64,
        /// True when there are more than [`AHEAD_MAX`], at which counting stops.
        more: bool,
    },
    /// No living worker of its queue handles its kind.
    NoWorker {
        /// The living workers of the queue: at most [`NAMED_MAX`].
        serving: Vec<Serving>,
    },
    /// Those workers that could run it had no free slot when they were last heard of.
    NoFreeSlot,
    /// Nothing: the next claim of its queue takes it.
    Claimable,
    /// It is running.
    Running {
        /// On which worker.
        worker: uuid::Uuid,
        /// The worker's name, while it is registered.
        name: Option<String>,
        /// Since when.
        since: Timestamp,
        /// True when it was told to stop.
        stopping: bool,
    },
    /// It has ended.
    Ended {
        /// How.
        state: State,
        /// When.
        at: Timestamp,
        /// What went wrong last.
        error: Option<String>,
    },
}

/// An open child of a task that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenChild {
    /// The child.
    pub task: TaskId,
    /// Its state.
    pub state: State,
}

/// Who has paused something, and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub since: Timestamp,
    /// By whom.
    pub by: String,
    /// When the pause ends by itself.
    pub until: Option<Timestamp>,
}

/// A task that has a turn of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The task.
    pub task: TaskId,
    /// `leased` while it runs, `later` in back-off, `waiting` for its children.
    pub state: State,
    /// The worker that runs it.
    pub worker: Option<uuid::Uuid>,
    /// The worker's name, while it is registered.
    pub name: Option<String>,
    /// Since when it runs or waits, or until when it is in back-off.
    pub at: Timestamp,
}

/// A worker that serves a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Its session.
    pub worker: uuid::Uuid,
    /// Its name.
    pub name: String,
    /// The kinds that it handles; none stands for all.
    pub kinds: Option<Vec<Kind>>,
}
