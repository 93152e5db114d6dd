//! Looking at tasks, queues and workers.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::advance::Kinds;
use crate::family::{FamilyView, Serial};
use crate::filter::{Filter, Test};
use crate::id::{SessionId, TaskId};
use crate::json::Json;
use crate::keep::Keep;
use crate::lane::LaneLimit;
use crate::liveness::Capacity;
use crate::name::{Kind, LaneKey, QueueName};
use crate::progress::ProgressView;
use crate::task::TaskOptions;
use crate::validate::{self, Code, InvalidInput};

/// A task's state, which is the place it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Runnable.
    Pending,
    /// Scheduled, snoozed or in back-off.
    Later,
    /// An attempt is running.
    Leased,
    /// Its children are open.
    Waiting,
    /// Done.
    Completed,
    /// Failed for good.
    Failed,
    /// Ended by a command.
    Cancelled,
}

impl State {
    /// Every state, in the order of a task's life.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Later,
        Self::Leased,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The state as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Later => "later",
            Self::Leased => "leased",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// True when nothing will happen to the task any more.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let allowed = Self::ALL.map(Self::as_str).join(", ");
            let problem = format!("`{}` is unknown; one of: {allowed}", text.escape_debug());
            InvalidInput::new(Code::InvalidName, "state", problem)
        })
    }
}

/// A task wherever it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskView {
    /// Its number.
    pub id: TaskId,
    /// Selects the handler.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its lane's key, while the lane is known.
    pub lane: Option<LaneKey>,
    /// Lower runs first. 0 for plain successes, whose priority is not kept.
    pub priority: i32,
    /// Where it is.
    pub state: State,
    /// Attempts that were charged, counting a running one.
    pub attempt: u32,
    /// How often it is tried at most.
    pub max_attempts: u32,
    /// How many workers died while they ran it.
    pub crashes: u32,
    /// The parent that spawned it.
    pub parent: Option<TaskId>,
    /// Distance from the top of its family.
    pub depth: u32,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it becomes runnable, while it is in `later`.
    pub due_at: Option<Timestamp>,
    /// When the running or last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The worker that runs it.
    pub worker: Option<SessionId>,
    /// Its payload. Not kept for plain successes: completed at the first attempt, without a result.
    pub payload: Option<Json>,
    /// What the handler returned.
    pub result: Option<Json>,
    /// What went wrong last.
    pub error: Option<String>,
    /// True while a running attempt has been told to stop.
    pub cancel_requested: bool,
    /// How far the running attempt is, if it has told.
    pub progress: Option<ProgressView>,
    /// Its latest children, counted: while it waits for them and afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<FamilyView>,
    /// What few tasks set.
    #[serde(flatten)]
    pub options: TaskOptions,
}

/// The list that a page is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Runnable tasks, oldest id first.
    Pending,
    /// Scheduled tasks, next due first.
    Later,
    /// Running tasks, oldest id first.
    Leased,
    /// Parents with open children, oldest id first.
    Waiting,
    /// History, last ended first.
    Ended,
}

impl Place {
    /// The list that tasks of `state` are in.
    pub fn of(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Later => Self::Later,
            State::Leased => Self::Leased,
            State::Waiting => Self::Waiting,
            State::Completed | State::Failed | State::Cancelled => Self::Ended,
        }
    }
}

/// A request for one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Which list.
    pub place: Place,
    /// Only these tasks.
    pub filter: Filter,
    /// Go on after this row.
    pub after: Option<Cursor>,
    /// At most this many rows: 1 to 500.
    pub limit: u32,
}

impl Listing {
    /// The first hundred rows of `place`.
    pub fn of(place: Place) -> Self {
        Self { place, filter: Filter::default(), after: None, limit: 100 }
    }

    /// Only tasks of `queue`.
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.filter = self.filter.and(Test::Queue(queue));
        self
    }

    /// Only tasks that `filter` means.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Goes on after a page.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    /// At most this many rows.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Checks the page size and the filter's length.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.filter.check()?;
        validate::in_range("limit", self.limit, 1..=validate::PAGE_MAX)
    }
}

/// A place in a list that rows of the same instant cannot blur: time and id of the last row seen. Lists by id
/// have time 0.
///
/// ```
/// use laneway_core::{Cursor, TaskId};
///
/// let cursor: Cursor = "1700000000000000-42".parse().unwrap();
/// assert_eq!(cursor, Cursor { micros: 1_700_000_000_000_000, id: TaskId(42) });
/// assert_eq!(cursor.to_string(), "1700000000000000-42");
/// assert!("page 2".parse::<Cursor>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Microseconds since 1970.
    pub micros: i64,
    /// The row's task.
    pub id: TaskId,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.micros, self.id)
    }
}

impl FromStr for Cursor {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let parse = || {
            let (micros, id) = text.split_once('-')?;
            Some(Self { micros: micros.parse().ok()?, id: id.parse().ok()? })
        };
        parse().ok_or_else(|| {
            let problem =
                format!("`{}` was not made by a listing; start at the first page", text.escape_debug());
            InvalidInput::new(Code::InvalidId, "cursor", problem)
        })
    }
}

/// One page of a list.
///
/// A look for rare tasks ends after [`LOOK_ROWS_MAX`] rows. The page is then short, possibly empty, and still has a
/// `next`, from which the following page looks on: reading page after page finds everything, each at a bounded cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page {
    /// The rows.
    pub tasks: Vec<TaskView>,
    /// Where the next page starts; none when this was the last.
    #[serde(skip)]
    pub next: Option<Cursor>,
    /// How far it looked.
    pub looked: Looked,
}

/// Rows that one page is looked for in.
pub const LOOK_ROWS_MAX: u32 = 10_000;
/// The same when payloads or error texts have to be read.
pub const LOOK_TEXTS_MAX: u32 = 2_000;

/// How far a list looked for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Looked {
    /// Until the page was full.
    UntilFull,
    /// To the end of the list.
    ToTheEnd,
    /// Through this many rows, the newest first where the list says so, and there are more.
    Rows(u32),
}

/// How many tasks of a queue are in a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Counts {
    /// The queue.
    pub queue: QueueName,
    /// The state.
    pub state: State,
    /// How many. At least, when there are `more`.
    pub tasks: u64,
    /// True when counting stopped here: with very many tasks only the first some thousands are counted.
    pub more: bool,
}

/// How many tasks of a kind are in a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct KindCounts {
    /// The kind.
    pub kind: Kind,
    /// The state.
    pub state: State,
    /// How many. At least, when there are `more`.
    pub tasks: u64,
    /// True when counting stopped here.
    pub more: bool,
}

/// A queue that is known by its settings, tasks, workers or history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueView {
    /// Its name.
    pub queue: QueueName,
    /// Since when nothing is claimed from it.
    pub paused_at: Option<Timestamp>,
    /// Since when its oldest runnable task has been runnable: the queue's health. In a queue with more than 500 lanes it
    /// is looked for in some of them.
    pub oldest_ready_at: Option<Timestamp>,
    /// When that task started which has waited longest for its children.
    pub oldest_waiting_at: Option<Timestamp>,
    /// How long completed tasks are kept.
    pub keep_completed: Keep,
    /// How long failed tasks are kept.
    pub keep_failed: Keep,
    /// How long cancelled tasks are kept.
    pub keep_cancelled: Keep,
    /// Whether statistics are gathered.
    pub statistics: bool,
    /// Whether its top-level tasks run one at a time.
    pub serial: Serial,
    /// The limit of lanes that are given none.
    pub lane_limit: LaneLimit,
}

/// A living worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerView {
    /// Its session.
    pub session: SessionId,
    /// Host and process.
    pub name: String,
    /// The queues that it serves.
    pub queues: Vec<QueueName>,
    /// The kinds that it handles.
    pub kinds: Kinds,
    /// What it could take when it was last heard of.
    pub capacity: Capacity,
    /// When it registered.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub seen_at: Timestamp,
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// It was not running and has ended as cancelled.
    Cancelled,
    /// It is running; its worker is told to stop it. Should the attempt complete first, it has completed. Or it waits for
    /// children, of which some are running and were told to stop: it ends as cancelled with the last of them.
    Requested,
    /// It had ended before, like this.
    Ended(State),
    /// There is no such task, or its history is gone.
    NotFound,
}
