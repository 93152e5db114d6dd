//! Actions on one task and on many.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{Acted, Action, BulkState, Code, Filter, InvalidInput, TaskId};
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

/// An action on the tasks that a query means, or on these.
#[derive(Debug, Deserialize, ToSchema)]
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
    pub(crate) fn action(&self) -> Result<Action, InvalidInput> {
        let missing = |field, problem: &str| Err(InvalidInput::new(Code::OutOfRange, field, problem));
        match (self.action, self.delay_ms, self.priority) {
            (Verb::Cancel, None, None) => Ok(Action::Cancel),
            (Verb::Retry, None, None) => Ok(Action::Retry),
            (Verb::RetryChildren, None, None) => Ok(Action::RetryChildren),
            (Verb::Delete, None, None) => Ok(Action::Delete),
            (Verb::Snooze, Some(delay), None) => Ok(Action::Snooze(Duration::from_millis(delay))),
            (Verb::SetPriority, None, Some(priority)) => Ok(Action::SetPriority(priority)),
            (Verb::Snooze, None, None) => missing("delay_ms", "is missing; a snooze needs it"),
            (Verb::SetPriority, None, None) => missing("priority", "is missing; set_priority needs it"),
            (_, Some(_), _) => missing("delay_ms", "is of use only for a snooze; leave it out"),
            (_, _, Some(_)) => missing("priority", "is of use only for set_priority; leave it out"),
        }
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
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActedOn {
    /// The task.
    id: i64,
    /// `done`; `requested`, when its worker is told to stop it; or `skipped`.
    result: &'static str,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Why it was skipped, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl ActedOn {
    pub(crate) fn new(task: TaskId, acted: Acted) -> Self {
        let (result, skip) = match acted {
            Acted::Done => ("done", None),
            Acted::Requested => ("requested", None),
            Acted::Skipped(skip) => ("skipped", Some(skip)),
            _ => ("done", None),
        };
        let detail = skip.map(|skip| format!("task {task} {skip}"));
        Self { id: task.0, result, code: skip.map(|skip| skip.code()), detail }
    }
}

/// An action on all tasks that a query means, as it is now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Bulk {
    /// Its number.
    id: i64,
    /// What is done.
    action: &'static str,
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
}

impl From<laneway_core::Bulk> for Bulk {
    fn from(bulk: laneway_core::Bulk) -> Self {
        let (delay_ms, priority) = match bulk.action {
            Action::Snooze(delay) => (Some(delay.as_millis() as u64), None),
            Action::SetPriority(priority) => (None, Some(priority)),
            _ => (None, None),
        };
        Self {
            id: bulk.id.0,
            action: bulk.action.name(),
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
        }
    }
}
