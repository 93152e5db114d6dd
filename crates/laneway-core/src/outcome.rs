//! How attempts end, and what the store says to it.

use std::time::Duration;

use crate::family::Spawned;
use crate::id::{LeaseRef, TaskId};
use crate::json::Json;
use crate::validate::{self, REPORT_BYTES_MAX};

/// How an attempt ended.
///
/// Recording it cannot fail because of its content: error texts are cleaned and cut, long results are
/// replaced by a note that says how long they were.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done.
    Completed {
        /// What the handler returned, kept with the task's history.
        result: Option<Json>,
    },
    /// The attempt failed and is charged. The task runs again after the delay; it has failed for good when its
    /// attempts are spent.
    Retry {
        /// How long to wait, usually from the task's [`RetryPolicy`](crate::RetryPolicy).
        after: Duration,
        /// What went wrong.
        error: String,
    },
    /// Not now: the task runs again after the delay, and no attempt is charged.
    Snooze {
        /// How long to wait.
        after: Duration,
    },
    /// The task has failed for good, whatever attempts are left.
    Failed {
        /// What went wrong.
        error: String,
    },
    /// The attempt was stopped because somebody cancelled the task.
    Cancelled {
        /// Why, if known.
        reason: Option<String>,
    },
    /// The attempt did not run or was interrupted through no fault of the task, as when a worker stops. The
    /// task is runnable again at once, in its old place, and no attempt is charged.
    GivenBack,
}

impl Outcome {
    /// Completed without a result.
    pub fn completed() -> Self {
        Self::Completed { result: None }
    }

    /// Makes every text storable and every delay sane. Stores call it before they write.
    pub fn cleaned(self) -> Self {
        match self {
            Self::Completed { result: Some(result) } => Self::Completed { result: Some(shorten(result)) },
            Self::Retry { after, error } => {
                Self::Retry { after: after.min(validate::AHEAD_MAX), error: validate::clean_report(&error) }
            }
            Self::Snooze { after } => Self::Snooze { after: after.min(validate::AHEAD_MAX) },
            Self::Failed { error } => Self::Failed { error: validate::clean_report(&error) },
            Self::Cancelled { reason: Some(reason) } => {
                Self::Cancelled { reason: Some(validate::clean_report(&reason)) }
            }
            other => other,
        }
    }
}

fn shorten(result: Json) -> Json {
    let bytes = result.as_str().len();
    if bytes <= REPORT_BYTES_MAX {
        return result;
    }
    Json::trusted(format!(r#"{{"truncated":true,"bytes":{bytes}}}"#))
}

/// The end of one attempt, to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// The task.
    pub task: TaskId,
    /// The lease that the claim gave out.
    pub lease: LeaseRef,
    /// How the attempt ended.
    pub outcome: Outcome,
    /// What is stored with it if the task has completed.
    pub spawned: Option<Box<Spawned>>,
}

impl Settle {
    /// Stores `spawned` with it.
    pub fn spawning(mut self, spawned: Spawned) -> Self {
        self.spawned = (!spawned.is_empty()).then(|| Box::new(spawned));
        self
    }
}

/// What became of one [`Settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The task.
    pub task: TaskId,
    /// What was recorded, or why nothing was.
    pub verdict: Verdict,
}

/// Where a settled task is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Ended as completed.
    Completed,
    /// Ended as failed.
    Failed,
    /// Ended as cancelled, also when a retry, snooze or give-back met a request to cancel.
    Cancelled,
    /// In `later`: it will run again.
    Later,
    /// Runnable again.
    Pending,
    /// Its children are stored, and it waits for them.
    Waiting,
    /// This settle, or one of the same task before it, was recorded already. Nothing was changed.
    Already,
    /// The lease is gone, or is not this caller's: another attempt owns the task. Nothing was changed.
    Stale,
}

impl Verdict {
    /// True when this call recorded something.
    pub fn is_recorded(self) -> bool {
        !matches!(self, Self::Already | Self::Stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_replaced_by_a_note() {
        let long = Json::encode(&"x".repeat(70_000)).unwrap();

        let cleaned = Outcome::Completed { result: Some(long) }.cleaned();

        let note = Json::trusted(r#"{"truncated":true,"bytes":70002}"#);
        assert_eq!(cleaned, Outcome::Completed { result: Some(note) });
    }
}
