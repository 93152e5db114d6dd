//! Actions on one task and on many.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Acted, Action, Actor, ActorName, BulkId, BulkState, Code, Filter, InvalidInput, NewBulk, Skip, State,
    TaskId,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is done to tasks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    /// Ends them, or tells their workers to stop them.
    Cancel,
    /// Lets those start anew that have failed or were cancelled.
    Retry,
    /// Lets the failed and cancelled children of those start anew.
    RetryChildren,
    /// Puts those off that wait, by `delay_ms`.
    Snooze,
    /// Removes those that do not run.
    Delete,
    /// Gives those that wait another `priority`.
    SetPriority,
}

impl Verb {
    /// What is done, with the delay and the priority that it takes.
    fn of(action: Action) -> (Self, Option<u64>, Option<i32>) {
        match action {
            Action::Cancel => (Self::Cancel, None, None),
            Action::Retry => (Self::Retry, None, None),
            Action::RetryChildren => (Self::RetryChildren, None, None),
            Action::Snooze(delay) => (Self::Snooze, Some(delay.as_millis() as u64), None),
            Action::Delete => (Self::Delete, None, None),
            Action::SetPriority(priority) => (Self::SetPriority, None, Some(priority)),
            other => unreachable!("`{}` has no word here; give it one", other.name()),
        }
    }

    fn action(self, delay_ms: Option<u64>, priority: Option<i32>) -> Result<Action, InvalidInput> {
        let missing = |field, problem: &str| Err(InvalidInput::new(Code::OutOfRange, field, problem));
        match (self, delay_ms, priority) {
            (Self::Cancel, None, None) => Ok(Action::Cancel),
            (Self::Retry, None, None) => Ok(Action::Retry),
            (Self::RetryChildren, None, None) => Ok(Action::RetryChildren),
            (Self::Delete, None, None) => Ok(Action::Delete),
            (Self::Snooze, Some(delay), None) => Ok(Action::Snooze(Duration::from_millis(delay))),
            (Self::SetPriority, None, Some(priority)) => Ok(Action::SetPriority(priority)),
            (Self::Snooze, None, None) => missing("delay_ms", "is missing; a snooze needs it"),
            (Self::SetPriority, None, None) => missing("priority", "is missing; set_priority needs it"),
            (_, Some(_), _) => missing("delay_ms", "is of use only for a snooze; leave it out"),
            (_, _, Some(_)) => missing("priority", "is of use only for set_priority; leave it out"),
        }
    }
}

/// An action on the tasks that a query means, or on these.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkRequest {
    /// What is done.
    action: Verb,
    /// The query that says which tasks.
    pub q: Option<String>,
    /// The tasks, at most 1,000, in place of a query.
    pub ids: Option<Vec<i64>>,
    /// Must be true for a query that means every task.
    #[serde(default)]
    all: bool,
    /// How long a snooze is.
    delay_ms: Option<u64>,
    /// The new priority.
    priority: Option<i32>,
    /// With a query: only counts the tasks, however long that takes, and does nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Tasks a second at most, with a query: 1 to 100,000.
    pub pace: Option<u32>,
    /// Why, for the audit, in place of the header `X-Reason`.
    pub reason: Option<String>,
}

/// What an action is about.
pub(crate) enum Whom {
    Tasks(Vec<TaskId>),
    Matching(Filter),
}

impl BulkRequest {
    /// An action on tasks that are named.
    pub(crate) fn on_tasks(action: Action, tasks: &[TaskId], reason: Option<String>) -> Self {
        let ids = Some(tasks.iter().map(|task| task.0).collect());
        Self { ids, reason, ..Self::bare(action) }
    }

    /// An action on all tasks that a query means.
    pub(crate) fn on_matching(bulk: &NewBulk, reason: Option<String>) -> Self {
        let (q, all) = (Some(bulk.filter.to_string()), bulk.filter.is_empty());
        Self { q, all, dry_run: bulk.dry_run, pace: bulk.pace, reason, ..Self::bare(bulk.action) }
    }

    fn bare(action: Action) -> Self {
        let (action, delay_ms, priority) = Verb::of(action);
        Self {
            action,
            q: None,
            ids: None,
            all: false,
            delay_ms,
            priority,
            dry_run: false,
            pace: None,
            reason: None,
        }
    }

    pub(crate) fn action(&self) -> Result<Action, InvalidInput> {
        self.action.action(self.delay_ms, self.priority)
    }

    pub(crate) fn whom(&self) -> Result<Whom, InvalidInput> {
        let refused = |problem| Err(InvalidInput::new(Code::InvalidFilter, "q", problem));
        match (&self.q, &self.ids) {
            (None, Some(ids)) => Ok(Whom::Tasks(ids.iter().map(|id| TaskId(*id)).collect())),
            (Some(_), Some(_)) => refused("and ids are both given; give one of them"),
            (None, None) if !self.all => refused("and ids are both missing; give one of them"),
            (query, None) => {
                let filter: Filter = query.as_deref().unwrap_or_default().parse()?;
                if filter.is_empty() && !self.all {
                    return refused("means every task; say so with `\"all\": true`");
                }
                Ok(Whom::Matching(filter))
            }
        }
    }
}

/// What an action did to one task.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ActedOn {
    /// The task.
    id: i64,
    /// `done`; `requested`, when its worker is told to stop it; or `skipped`.
    #[schema(value_type = String)]
    result: Cow<'static, str>,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    code: Option<Cow<'static, str>>,
    /// Why it was skipped, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// How it has ended, when it was skipped for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    state: Option<State>,
    /// The task that holds its key, when it was skipped for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<i64>,
}

impl ActedOn {
    pub(crate) fn new(task: TaskId, acted: Acted) -> Self {
        let (result, skip) = match acted {
            Acted::Done => ("done", None),
            Acted::Requested => ("requested", None),
            Acted::Skipped(skip) => ("skipped", Some(skip)),
            _ => ("done", None),
        };
        let (state, holder) = skip.map_or((None, None), in_the_way);
        Self {
            id: task.0,
            result: result.into(),
            code: skip.map(|skip| skip.code().into()),
            detail: skip.map(|skip| format!("task {task} {skip}")),
            state,
            task: holder.map(|holder| holder.0),
        }
    }

    /// What was done; none when this is no answer that we know.
    pub(crate) fn acted(&self) -> Option<Acted> {
        match (&*self.result, &self.code) {
            ("done", _) => Some(Acted::Done),
            ("requested", _) => Some(Acted::Requested),
            (_, Some(code)) => Skip::of_code(code, self.state, self.task.map(TaskId)).map(Acted::Skipped),
            _ => None,
        }
    }
}

/// What a skip is about: how its task has ended, or who holds its key.
pub(crate) fn in_the_way(skip: Skip) -> (Option<State>, Option<TaskId>) {
    match skip {
        Skip::Ended(state) => (Some(state), None),
        Skip::KeyHeld(holder) => (None, Some(holder)),
        _ => (None, None),
    }
}

/// What was done to each task that was named.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Results {
    pub results: Vec<ActedOn>,
}

/// Bulks, newest first.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Bulks {
    pub bulks: Vec<Bulk>,
}

/// An action on all tasks that a query means, as it is now.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Bulk {
    /// Its number.
    id: i64,
    /// What is done.
    action: Verb,
    /// How long a snooze is.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    /// The new priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    /// To which tasks.
    q: String,
    /// True when it only counts.
    dry_run: bool,
    /// Tasks a second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pace: Option<u32>,
    /// `running`, `finished` or `aborted`.
    #[schema(value_type = String)]
    pub state: BulkState,
    /// Tasks that were met.
    matched: u64,
    /// Of those, tasks to which it was done.
    done: u64,
    /// Who started it.
    by: String,
    /// Why.
    reason: Option<String>,
    /// When it was started.
    #[schema(value_type = String)]
    started_at: Timestamp,
    /// Steps taken.
    steps: u64,
}

impl From<laneway_core::Bulk> for Bulk {
    fn from(bulk: laneway_core::Bulk) -> Self {
        let (action, delay_ms, priority) = Verb::of(bulk.action);
        Self {
            id: bulk.id.0,
            action,
            delay_ms,
            priority,
            q: bulk.filter.to_string(),
            dry_run: bulk.dry_run,
            pace: bulk.pace,
            state: bulk.state,
            matched: bulk.matched,
            done: bulk.done,
            by: bulk.actor.who.into(),
            reason: bulk.actor.reason,
            started_at: bulk.started_at,
            steps: bulk.steps,
        }
    }
}

impl TryFrom<Bulk> for laneway_core::Bulk {
    type Error = InvalidInput;

    fn try_from(bulk: Bulk) -> Result<Self, InvalidInput> {
        Ok(Self {
            id: BulkId(bulk.id),
            actor: Actor { who: ActorName::new(bulk.by)?, reason: bulk.reason },
            action: bulk.action.action(bulk.delay_ms, bulk.priority)?,
            filter: bulk.q.parse()?,
            dry_run: bulk.dry_run,
            pace: bulk.pace,
            state: bulk.state,
            started_at: bulk.started_at,
            steps: bulk.steps,
            matched: bulk.matched,
            done: bulk.done,
            // Where the next step begins is known to whoever takes it: the server.
            place: 0,
            after: None,
        })
    }
}
