//! One attempt from start to end: decode, arm the timeout, call, classify.
//!
//! Settling and reporting is the coordinator's part, which owns the slots; only an attempt that has spawned very many tasks, or
//! some with keys, is settled from here.

use std::time::Duration;

use laneway_core::{Outcome, Task, Verdict};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use crate::attempt::{Attempt, StopReason};
use crate::failure::{Failure, Next};
use crate::family;
use crate::handler::{Answer, Registered};
use crate::trace;

/// How the future of an attempt ended.
#[derive(Debug)]
pub(crate) struct AttemptEnd {
    pub how: How,
    pub ran: Duration,
}

#[derive(Debug)]
pub(crate) enum How {
    /// The handler returned.
    Answered(Answer),
    /// The handler completed, and the attempt was settled by a call of its own.
    Settled(Verdict),
    /// It ran longer than the task's timeout and was dropped.
    TimedOut(Duration),
    /// It was told to stop, had its seconds, and was dropped.
    Dropped,
}

/// Runs the handler. After the attempt was told to stop, it has `patience` to return.
pub(crate) async fn run(handler: Registered, attempt: Attempt, patience: Duration) -> AttemptEnd {
    let started = Instant::now();
    let task = attempt.task();
    let timeout = task.options.timeout_ms.map(Duration::from_millis);
    let span = trace::attempt_span(task);
    let handled = trace::within(task.options.trace.clone(), handle(&handler, &attempt).instrument(span));
    let how = tokio::select! {
        biased;
        how = handled => how,
        timeout = passed(timeout) => {
            attempt.stop(StopReason::TimedOut);
            How::TimedOut(timeout)
        }
        () = out_of_patience(&attempt, patience) => How::Dropped,
    };
    AttemptEnd { how, ran: started.elapsed() }
}

/// Calls the handler, unless only failed children are to start anew, and settles what is better settled alone.
async fn handle(handler: &Registered, attempt: &Attempt) -> How {
    if attempt.resumes() {
        return How::Answered(Ok(None));
    }
    let answer = handler.run(attempt).await;
    let Ok(result) = &answer else { return How::Answered(answer) };
    if handler.needs_own_lease || !attempt.settles_alone() {
        return How::Answered(answer);
    }
    let settle = attempt.settle(Outcome::Completed { result: result.clone() }, handler.continues);
    match family::settle_alone(attempt, settle).await {
        Ok(verdict) => How::Settled(verdict),
        Err(error) => How::Answered(Err(error.into())),
    }
}

async fn passed(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

async fn out_of_patience(attempt: &Attempt, patience: Duration) {
    attempt.cancelled().await;
    sleep(patience).await;
}

/// How an attempt is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    Completed,
    Retry,
    Discard,
    Timeout,
    Panic,
    Cancelled,
    Snoozed,
    GivenBack,
}

impl Label {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::Cancelled => "cancelled",
            Self::Snoozed => "snoozed",
            Self::GivenBack => "given_back",
        }
    }
}

/// What the store is told about an attempt that ended, and how it is counted. `stopped` is why it had been told to stop.
pub(crate) fn classify(
    task: &Task,
    ended: Result<AttemptEnd, JoinError>,
    stopped: Option<StopReason>,
) -> (Outcome, Label) {
    match ended {
        Ok(AttemptEnd { how: How::Answered(Ok(result)), .. }) => {
            (Outcome::Completed { result }, Label::Completed)
        }
        Ok(AttemptEnd { how: How::Settled(_), .. }) => (Outcome::completed(), Label::Completed),
        Ok(AttemptEnd { how: How::Answered(Err(failure)), .. }) => {
            interrupted(stopped).unwrap_or_else(|| failed(task, failure))
        }
        Ok(AttemptEnd { how: How::TimedOut(timeout), .. }) => {
            (retry(task, format!("timed out after {timeout:?}")), Label::Timeout)
        }
        Ok(AttemptEnd { how: How::Dropped, .. }) => interrupted(stopped).unwrap_or(GIVEN_BACK),
        Err(error) if error.is_panic() => {
            (retry(task, format!("panicked: {}", panic_text(error))), Label::Panic)
        }
        Err(_aborted) => interrupted(stopped).unwrap_or(GIVEN_BACK),
    }
}

const GIVEN_BACK: (Outcome, Label) = (Outcome::GivenBack, Label::GivenBack);

/// An attempt that did not complete because it was told to stop is not to blame for it.
fn interrupted(stopped: Option<StopReason>) -> Option<(Outcome, Label)> {
    match stopped? {
        StopReason::Cancelled => Some((Outcome::Cancelled { reason: None }, Label::Cancelled)),
        StopReason::WorkerStops | StopReason::LeaseEnds => Some(GIVEN_BACK),
        StopReason::TimedOut => None,
    }
}

fn failed(task: &Task, failure: Failure) -> (Outcome, Label) {
    let Failure { what, error } = failure;
    match what {
        Next::Retry => (retry(task, error), Label::Retry),
        Next::RetryAfter(after) => (Outcome::Retry { after, error }, Label::Retry),
        Next::Discard => (Outcome::Failed { error }, Label::Discard),
        Next::Snooze(after) => (Outcome::Snooze { after }, Label::Snoozed),
    }
}

fn retry(task: &Task, error: String) -> Outcome {
    Outcome::Retry { after: task.options.retry_policy().jittered_delay(task.attempt), error }
}

fn panic_text(error: JoinError) -> String {
    let panic = error.into_panic();
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
