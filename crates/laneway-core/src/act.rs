//! What operators do: to tasks, one by one or by filter, and to queues, kinds, lanes and workers.
//!
//! Every action names its [`Actor`] and leaves one row in the audit, in the transaction that carries it out. An action
//! that changes nothing leaves none.
//!
//! An action on tasks that a filter means is a [`Bulk`]: an object of the store, carried out step by step by whoever
//! calls [`Store::bulk_step`](crate::Store::bulk_step). A caller that dies leaves it where it was; anybody goes on.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::filter::{Filter, Moment, Test};
use crate::id::TaskId;
use crate::json::Json;
use crate::look::{Cursor, Place, State};
use crate::name::{ActorName, Kind, LaneKey, QueueName};
use crate::validate::{self, Code, InvalidInput, Limits};

/// Tasks that one action may name.
pub const ACT_MAX: usize = 1_000;
/// Tasks that one step of a bulk looks at.
pub const BULK_STEP: u32 = 500;
/// Tasks a second that a bulk may be told to meet.
const PACE_MAX: u32 = 100_000;

/// Who acts, and why.
///
/// ```
/// use laneway_core::{Actor, ActorName};
///
/// let ann = Actor::new(ActorName::new("ann")?).because("the mail server is back");
/// assert_eq!(ann.reason.as_deref(), Some("the mail server is back"));
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// A person or a program.
    pub who: ActorName,
    /// Why, in the actor's words. Cut at 64 KiB like every report.
    pub reason: Option<String>,
}

impl Actor {
    /// An actor who gives no reason.
    pub fn new(who: ActorName) -> Self {
        Self { who, reason: None }
    }

    /// The application itself, where a call names nobody.
    pub fn program() -> Self {
        Self::new(ActorName::new("program").expect("a valid name"))
    }

    /// Gives the reason.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(validate::clean_report(&reason.into()));
        self
    }
}

/// What is done to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Action {
    /// Ends it, or tells its worker to stop it.
    Cancel,
    /// Lets a task that has failed or was cancelled start anew: under its id, with all its attempts. The errors of its
    /// former attempts stay.
    Retry,
    /// Lets the failed and cancelled children of a task that has failed or was cancelled start anew; the task waits for
    /// them, and its handler is not called again before they have ended.
    RetryChildren,
    /// Puts a task that waits off, until this long from now. At most five years.
    Snooze(Duration),
    /// Removes a task that does not run, and its history.
    Delete,
    /// Gives a task that waits another priority: −1000 to 1000.
    SetPriority(i32),
}

impl Action {
    /// The action as stores and the audit name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RetryChildren => "retry_children",
            Self::Snooze(_) => "snooze",
            Self::Delete => "delete",
            Self::SetPriority(_) => "set_priority",
        }
    }

    /// The lists in which it can find something to do.
    pub fn places(self) -> &'static [Place] {
        match self {
            Self::Cancel => &[Place::Pending, Place::Later, Place::Leased, Place::Waiting],
            Self::Retry | Self::RetryChildren => &[Place::Ended],
            Self::Snooze(_) | Self::SetPriority(_) => &[Place::Pending, Place::Later],
            Self::Delete => &[Place::Pending, Place::Later, Place::Ended],
        }
    }

    /// Checks its number.
    ///
    /// # Errors
    /// `out_of_range`, `time_out_of_range`.
    pub fn check(self) -> Result<(), InvalidInput> {
        match self {
            Self::Snooze(delay) => validate::delay_ahead(delay),
            Self::SetPriority(priority) => {
                validate::in_range("priority", priority, -validate::PRIORITY_MAX..=validate::PRIORITY_MAX)
            }
            _ => Ok(()),
        }
    }
}

/// What is changed about a task that waits. What is not named stays.
///
/// ```
/// use laneway_core::{Edit, Json, Limits};
///
/// let edit = Edit { payload: Some(Json::parse(r#"{"to": "bob@example.org"}"#)?), priority: Some(-5) };
/// assert!(edit.check(&Limits::default()).is_ok());
/// assert!(Edit::default().check(&Limits::default()).is_err(), "an edit changes something");
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edit {
    /// What the handler is given.
    pub payload: Option<Json>,
    /// Lower runs first: −1000 to 1000.
    pub priority: Option<i32>,
}

impl Edit {
    /// Checks what is changed, and that something is.
    ///
    /// # Errors
    /// `out_of_range`, `payload_too_large`.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        if self.payload.is_none() && self.priority.is_none() {
            let problem = "is empty; give a payload, a priority, or both";
            return Err(InvalidInput::new(Code::OutOfRange, "edit", problem));
        }
        self.payload.as_ref().map_or(Ok(()), |payload| validate::payload_size(payload, limits))?;
        self.priority.map_or(Ok(()), |priority| Action::SetPriority(priority).check())
    }
}

/// Checks the number of tasks that an action names.
///
/// # Errors
/// `bulk_too_large`.
pub fn check_act(action: Action, tasks: &[TaskId]) -> Result<(), InvalidInput> {
    action.check()?;
    if tasks.len() > ACT_MAX {
        let problem = format!("are {} in one action, the limit is {ACT_MAX}; use a filter", tasks.len());
        return Err(InvalidInput::new(Code::BulkTooLarge, "tasks", problem));
    }
    Ok(())
}

/// What an action did to one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Acted {
    /// It is done.
    Done,
    /// Its worker is told to stop it.
    Requested,
    /// Nothing was done, for this reason.
    Skipped(Skip),
}

/// Why nothing was done to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Skip {
    /// There is no such task.
    NotFound,
    /// It has ended like this.
    Ended(State),
    /// It has not ended.
    Open,
    /// It runs.
    Running,
    /// It waits for its children, or for the task that it follows.
    Waiting,
    /// It has no children that failed or were cancelled.
    NoFailedChildren,
    /// It is as it should be already.
    Unchanged,
    /// Another task holds its unique key.
    KeyHeld(TaskId),
    /// It is a plain success, of which nothing is kept but a share in a row of history; that goes with its day.
    Plain,
    /// Another transaction holds it just now.
    Busy,
}

impl Skip {
    /// The skip that a code stands for, with the state in which the task has ended and the task that holds its key, where
    /// the code needs them. None when it stands for no skip.
    ///
    /// ```
    /// use laneway_core::{Skip, State};
    ///
    /// assert_eq!(Skip::of_code("task_ended", Some(State::Failed), None), Some(Skip::Ended(State::Failed)));
    /// assert_eq!(Skip::of_code("task_ended", None, None), None);
    /// ```
    pub fn of_code(code: &str, state: Option<State>, holder: Option<TaskId>) -> Option<Self> {
        let ended = state.map(Self::Ended);
        let held = holder.map(Self::KeyHeld);
        let plain = [
            Self::NotFound,
            Self::Open,
            Self::Running,
            Self::Waiting,
            Self::NoFailedChildren,
            Self::Unchanged,
            Self::Plain,
            Self::Busy,
        ];
        plain.into_iter().chain(ended).chain(held).find(|skip| skip.code() == code)
    }

    /// The stable code, the same from command line and HTTP.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Ended(_) => "task_ended",
            Self::Open => "task_open",
            Self::Running => "task_running",
            Self::Waiting => "task_waiting",
            Self::NoFailedChildren => "no_failed_children",
            Self::Unchanged => "unchanged",
            Self::KeyHeld(_) => "unique_conflict",
            Self::Plain => "plain_success",
            Self::Busy => "busy",
        }
    }
}

/// Continues a sentence that begins with the task: `task 7 has ended as failed`.
impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("does not exist, or its history was removed"),
            Self::Ended(state) => write!(f, "has ended as {state}"),
            Self::Open => f.write_str("has not ended"),
            Self::Running => f.write_str("is running; cancel it first"),
            Self::Waiting => f.write_str("waits for other tasks; cancel it first"),
            Self::NoFailedChildren => f.write_str("has no children that failed or were cancelled"),
            Self::Unchanged => f.write_str("is as it should be already"),
            Self::KeyHeld(holder) => write!(f, "cannot have its unique key back, task {holder} holds it"),
            Self::Plain => f.write_str("is a plain success, of which nothing is kept; it goes with its day"),
            Self::Busy => f.write_str("is held by another transaction; try again"),
        }
    }
}

impl Acted {
    /// True when something was done.
    pub fn is_done(self) -> bool {
        !matches!(self, Self::Skipped(_))
    }
}

/// What can be paused: nothing of it is claimed until it is resumed or the pause is over. What runs goes on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pausable {
    /// A queue.
    Queue(QueueName),
    /// A kind, in all queues. As if no worker could run it: the head of an ordered lane holds up what is behind it.
    Kind(Kind),
    /// A lane.
    Lane(QueueName, LaneKey),
}

impl Pausable {
    /// What, in which queue, and its name, as stores keep it. A kind has no queue.
    pub fn stored(&self) -> (&'static str, &str, &str) {
        match self {
            Self::Queue(queue) => ("queue", queue.as_str(), ""),
            Self::Kind(kind) => ("kind", "", kind.as_str()),
            Self::Lane(queue, lane) => ("lane", queue.as_str(), lane.as_str()),
        }
    }

    /// What a store kept.
    ///
    /// # Errors
    /// When it is not what [`Pausable::stored`] gave.
    pub fn from_stored(what: &str, queue: String, name: String) -> Result<Self, InvalidInput> {
        Ok(match what {
            "queue" => Self::Queue(QueueName::new(queue)?),
            "kind" => Self::Kind(Kind::new(name)?),
            _ => Self::Lane(QueueName::new(queue)?, LaneKey::new(name)?),
        })
    }
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// What is paused.
    pub what: Pausable,
    /// By whom, and why.
    pub actor: Actor,
    /// Since when.
    pub paused_at: Timestamp,
    /// When it is over by itself.
    pub expires_at: Option<Timestamp>,
}

/// The number of a bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BulkId(pub i64);

/// An action on all tasks that a filter means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBulk {
    /// What is done.
    pub action: Action,
    /// To which tasks.
    pub filter: Filter,
    /// True: only count.
    pub dry_run: bool,
    /// Tasks a second at most. None: as fast as it goes.
    pub pace: Option<u32>,
}

impl NewBulk {
    /// An action on all tasks that `filter` means.
    pub fn new(action: Action, filter: Filter) -> Self {
        Self { action, filter, dry_run: false, pace: None }
    }

    /// Only counts, and does nothing.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Meets at most this many tasks a second, whoever drives it.
    pub fn pace(mut self, tasks: u32) -> Self {
        self.pace = Some(tasks);
        self
    }

    /// Checks action, filter and pace.
    ///
    /// # Errors
    /// As for actions and listings; `out_of_range` for a pace outside 1 to 100,000.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.action.check()?;
        self.pace.map_or(Ok(()), |pace| validate::in_range("pace", pace, 1..=PACE_MAX))?;
        self.filter.check()
    }
}

/// A bulk as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Bulk {
    /// Its number.
    pub id: BulkId,
    /// Who started it.
    pub actor: Actor,
    /// What is done.
    pub action: Action,
    /// To which tasks. Only those that were there when it was started.
    pub filter: Filter,
    /// True when it only counts.
    pub dry_run: bool,
    /// Tasks a second at most.
    pub pace: Option<u32>,
    /// How far it is.
    pub state: BulkState,
    /// When it was started.
    pub started_at: Timestamp,
    /// Steps taken.
    pub steps: u64,
    /// Tasks that were met.
    pub matched: u64,
    /// Of those, tasks to which it was done.
    pub done: u64,
    /// Where the next step begins: which of the lists, and behind which row.
    pub place: u32,
    /// Behind this row.
    pub after: Option<Cursor>,
}

/// How far a bulk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkState {
    /// Waits for its next step.
    Running,
    /// All is done.
    Finished,
    /// Somebody has stopped it. It can be resumed.
    Aborted,
}

impl BulkState {
    /// The state as stores name it.
    pub fn stored(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Aborted => "aborted",
        }
    }

    /// The state that a store kept.
    pub fn from_stored(text: &str) -> Self {
        match text {
            "running" => Self::Running,
            "finished" => Self::Finished,
            _ => Self::Aborted,
        }
    }
}

impl Bulk {
    /// Tasks that its next step looks at: never more than a second's worth.
    pub fn step_size(&self) -> u32 {
        self.pace.map_or(BULK_STEP, |pace| pace.clamp(1, BULK_STEP))
    }

    /// How long whoever drives it waits after a step.
    pub fn pause(&self) -> Duration {
        let secs = self.pace.map_or(0.0, |pace| f64::from(self.step_size()) / f64::from(pace.max(1)));
        Duration::from_secs_f64(secs)
    }

    /// The list that the next step looks at, and the filter that it uses; none when there is nothing left. Tasks that came
    /// after the start are left alone, or a busy queue would never come to an end.
    pub fn next_list(&self) -> Option<(Place, Filter)> {
        let wanted = self.filter.places();
        let mut places = self.action.places().iter().filter(|place| wanted.contains(place));
        let place = places.nth(self.place as usize)?;
        Some((*place, self.filter.clone().and(Test::Until(Moment::At(self.started_at)))))
    }
}

/// One step of a bulk, to be recorded together with what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkStep {
    /// The bulk.
    pub bulk: BulkId,
    /// Which step: how many were taken before. When another caller has taken it meanwhile, nothing is done.
    pub number: u64,
    /// The tasks that it found.
    pub tasks: Vec<TaskId>,
    /// Which of the lists the next step looks at.
    pub place: u32,
    /// Behind this row.
    pub after: Option<Cursor>,
    /// True when there is no next step.
    pub is_last: bool,
}

/// One row of the audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number; later ones are higher.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who, and why.
    pub actor: Actor,
    /// What: `cancel`, `retry`, `pause`, `set_lane` …
    pub action: String,
    /// To what: `queue mail`, `lane mail/customer:7`, `bulk 3`; of tasks, how many.
    pub subject: String,
    /// The tasks that were changed.
    pub tasks: Vec<TaskId>,
    /// How it was; for tasks their states, due times or priorities by id.
    pub before: Option<Json>,
    /// How it is now.
    pub after: Option<Json>,
}

/// A page of the audit, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditPage {
    /// Only entries before this one.
    pub before: Option<i64>,
    /// At most this many: 1 to 500.
    pub limit: u32,
}

impl Default for AuditPage {
    /// The newest hundred.
    fn default() -> Self {
        Self { before: None, limit: 100 }
    }
}

impl AuditPage {
    /// Checks the page size.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        validate::in_range("limit", self.limit, 1..=validate::PAGE_MAX)
    }
}

/// A page of bulks, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkPage {
    /// Only bulks before this one.
    pub before: Option<BulkId>,
    /// Only bulks in this state.
    pub state: Option<BulkState>,
    /// At most this many: 1 to 500.
    pub limit: u32,
}

impl Default for BulkPage {
    /// The newest hundred.
    fn default() -> Self {
        Self { before: None, state: None, limit: 100 }
    }
}

impl BulkPage {
    /// Checks the page size.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        validate::in_range("limit", self.limit, 1..=validate::PAGE_MAX)
    }
}

/// Checks how long a pause lasts: a millisecond to 30 days.
///
/// # Errors
/// `out_of_range`.
pub fn check_pause(expires: Option<Duration>) -> Result<(), InvalidInput> {
    let Some(expires) = expires else { return Ok(()) };
    let most = validate::WAIT_MAX.as_millis() as u64;
    validate::in_range("pause.expires", expires.as_millis() as u64, 1..=most)
        .map_err(|refused| InvalidInput { message: format!("{} ms", refused.message), ..refused })
}
