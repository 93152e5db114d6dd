//! `laneway tasks show`: everything about a task.

use clap::Args;
use jiff::Timestamp;
use laneway_core::{FailedAttempt, ProgressView, TaskId, TaskView};
use serde::Serialize;

use crate::context::Context;
use crate::output::text;
use crate::problem::{Exit, Outcome, Problem};

/// Shows a task.
#[derive(Args, Debug)]
pub struct Show {
    /// Its number
    pub id: String,
}

/// A task with the errors of its attempts.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    task: TaskView,
    failures: Vec<FailedAttempt>,
}

impl Show {
    pub async fn run(&self, context: &Context) -> Outcome {
        let id: TaskId = self.id.parse()?;
        let opened = context.store().await?;
        let task = opened.store.get(id).await?.ok_or_else(|| not_found(id))?;
        let failures = opened.store.failures(id).await?;
        let shown = Shown { task, failures };
        context.out.one("task", &shown, &id.to_string(), &fields(&shown, Timestamp::now()))?;
        Ok(Exit::Done)
    }
}

/// The refusal of an id that no task has.
pub fn not_found(id: TaskId) -> Problem {
    let message = format!("task {id} does not exist, or its history was removed");
    Problem { code: Some("not_found"), ..Problem::nothing(message) }
}

fn fields(shown: &Shown, now: Timestamp) -> Vec<(&'static str, String)> {
    let Shown { task, failures } = shown;
    let optional = |value: Option<String>| value.unwrap_or_default();
    let moment = |then: Option<Timestamp>| optional(then.map(|then| text::moment(then, now)));
    let stopping = if task.cancel_requested { ", told to stop" } else { "" };
    let crashes = if task.crashes > 0 { format!(", {} crashes", task.crashes) } else { String::new() };
    vec![
        ("id", task.id.to_string()),
        ("kind", task.kind.to_string()),
        ("state", format!("{}{stopping}", task.state)),
        ("queue", task.queue.to_string()),
        ("lane", optional(task.lane.as_ref().map(ToString::to_string))),
        ("priority", task.priority.to_string()),
        ("attempt", format!("{} of {}{crashes}", task.attempt, task.max_attempts)),
        ("parent", optional(task.parent.map(|parent| parent.to_string()))),
        ("enqueued", text::moment(task.enqueued_at, now)),
        ("due", moment(task.due_at)),
        ("started", moment(task.started_at)),
        ("ended", moment(task.ended_at)),
        ("waited", optional(waited(task))),
        ("ran", optional(ran(task))),
        ("progress", optional(task.progress.as_ref().map(|progress| told(progress, now)))),
        ("worker", optional(task.worker.map(|worker| worker.to_string()))),
        (
            "timeout",
            optional(task.options.timeout_ms.map(|ms| text::span(std::time::Duration::from_millis(ms)))),
        ),
        ("tags", task.options.tags.iter().map(|tag| tag.as_str()).collect::<Vec<_>>().join(", ")),
        ("unique", optional(task.options.unique.as_ref().map(|unique| unique.key.to_string()))),
        ("schedule", optional(task.options.fire.as_ref().map(|fire| fire.schedule.to_string()))),
        ("payload", optional(task.payload.as_ref().map(|payload| payload.as_str().to_owned()))),
        ("result", optional(task.result.as_ref().map(|result| result.as_str().to_owned()))),
        ("error", optional(task.error.clone())),
        ("failures", failures.iter().map(|failure| failed(failure, now)).collect::<Vec<_>>().join("\n")),
    ]
}

/// Until its last attempt was claimed.
fn waited(task: &TaskView) -> Option<String> {
    Some(text::span(text::since(task.enqueued_at, task.started_at?)))
}

fn ran(task: &TaskView) -> Option<String> {
    Some(text::span(text::since(task.started_at?, task.ended_at?)))
}

fn told(progress: &ProgressView, now: Timestamp) -> String {
    let note = progress.note.as_deref().map(|note| format!(" {note}")).unwrap_or_default();
    format!("{:.0}%{note} ({})", progress.fraction * 100.0, text::ago(progress.at, now))
}

fn failed(failure: &FailedAttempt, now: Timestamp) -> String {
    let error = text::first_line(&failure.error, 200);
    format!("#{} {}: {error}", failure.attempt, text::ago(failure.at, now))
}
