//! The change feed: which task entered which state, and which were deleted.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::id::TaskId;
use crate::liveness::Fence;
use crate::look::State;
use crate::name::{Kind, QueueName};
use crate::validate::{Code, InvalidInput};

/// Somebody who follows the change feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatcherId(pub Uuid);

/// A watch that has begun. It is ready once its fence has passed; see [`Store::watch`](crate::Store::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// What reads name.
    pub watcher: WatcherId,
    /// Behind it every change is written.
    pub fence: Fence,
    /// Where to begin to read.
    pub position: Position,
}

/// A place in the change feed. Only the store that made it can tell what lies behind it.
///
/// ```
/// use laneway_core::Position;
///
/// let position = Position { tx: 7_001, seq: 42 };
/// assert_eq!(position.to_string(), "7001-42");
/// assert_eq!("7001-42".parse::<Position>().unwrap(), position);
/// assert_eq!("latest".parse::<Position>().unwrap_err().code.as_str(), "invalid_id");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The transaction, where the store orders by it.
    pub tx: u64,
    /// The number of the change.
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.tx, self.seq)
    }
}

impl FromStr for Position {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let parse = || {
            let (tx, seq) = text.split_once('-')?;
            Some(Self { tx: tx.parse().ok()?, seq: seq.parse().ok()? })
        };
        parse().ok_or_else(|| {
            let problem = format!("`{}` was not made by the change feed; watch anew", text.escape_debug());
            InvalidInput::new(Code::InvalidId, "position", problem)
        })
    }
}

/// Tasks of one queue that entered a state together, or were deleted from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When.
    pub at: Timestamp,
    /// Their queue.
    pub queue: QueueName,
    /// The state that they entered; of deleted tasks, the one that they were in.
    pub state: State,
    /// True when an operator has deleted them: they are in no state any more.
    pub deleted: bool,
    /// The tasks and their kinds.
    pub tasks: Vec<(TaskId, Kind)>,
}

/// What was read of the change feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changes, each committed, in an order that fits every single task.
    pub changes: Vec<Change>,
    /// Where to go on.
    pub position: Position,
    /// True when changes may have been missed, because the watcher had lapsed or was too slow. Look at the tasks as they
    /// are, and watch anew.
    pub gap: bool,
}
