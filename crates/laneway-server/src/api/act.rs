//! Acting on one task.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use laneway_core::{Acted, Action, Edit, Json, Lane, NewTask, QueueName, Skip, TaskId, TaskView, When};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::enqueue::store_one;
use crate::access::{Caller, Operate};
use crate::input::{Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::{Enqueued, given};

/// What an action did to a task.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Done {
    id: i64,
    /// `done`; `unchanged`, when it was so before; or `requested`, when its worker is told to stop it.
    #[schema(value_type = String)]
    pub result: Cow<'static, str>,
}

async fn act(
    app: &App,
    caller: &Caller<Operate>,
    action: Action,
    id: &str,
) -> Result<axum::Json<Done>, Problem> {
    let task: TaskId = id.parse()?;
    let acted = app.store.act(&caller.actor, action, &[task]).await?;
    done(task, acted.first().copied().unwrap_or(Acted::Done))
}

fn done(task: TaskId, acted: Acted) -> Result<axum::Json<Done>, Problem> {
    let result = match acted {
        Acted::Skipped(Skip::Unchanged) => "unchanged",
        Acted::Skipped(skip) => return Err(Problem::skipped(task, skip)),
        Acted::Requested => "requested",
        _ => "done",
    };
    Ok(axum::Json(Done { id: task.0, result: result.into() }))
}

/// Remove a task that does not run, and its history.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")),
    responses((status = 200, body = Done), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn delete(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Done>, Problem> {
    act(&app, &caller, Action::Delete, &id).await
}

/// What starts anew.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryRequest {
    /// Only its failed and cancelled children; the task waits for them again, and its handler is not called before.
    #[serde(default)]
    children: bool,
}

/// Let a task start anew that has failed or was cancelled, or its failed children.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/retry", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")), request_body = RetryRequest,
    responses((status = 200, body = Done), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn retry(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Content(request): Content<RetryRequest>,
) -> Result<axum::Json<Done>, Problem> {
    let action = if request.children { Action::RetryChildren } else { Action::Retry };
    act(&app, &caller, action, &id).await
}

/// End a task, or tell its worker to stop it.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/cancel", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")),
    responses((status = 200, body = Done), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn cancel(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<axum::Json<Done>, Problem> {
    act(&app, &caller, Action::Cancel, &id).await
}

/// How long a task is put off.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snooze {
    /// From now.
    delay_ms: u64,
}

/// Put a task off that waits.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/snooze", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")), request_body = Snooze,
    responses((status = 200, body = Done), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn snooze(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Content(snooze): Content<Snooze>,
) -> Result<axum::Json<Done>, Problem> {
    act(&app, &caller, Action::Snooze(Duration::from_millis(snooze.delay_ms)), &id).await
}

/// Changes to a task that waits; what is left out stays as it is.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskChange {
    /// Lower runs first: −1000 to 1000.
    priority: Option<i32>,
    /// What the handler is given: any JSON.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

impl From<Edit> for TaskChange {
    fn from(edit: Edit) -> Self {
        let raw = |json: Json| RawValue::from_string(json.as_str().to_owned()).expect("a payload is JSON");
        Self { priority: edit.priority, payload: edit.payload.map(raw) }
    }
}

/// Change the payload or the priority of a task that waits. Not while it runs.
#[utoipa::path(
    patch, path = "/api/v1/tasks/{id}", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")), request_body = TaskChange,
    responses((status = 200, body = Done), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn change(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Content(change): Content<TaskChange>,
) -> Result<axum::Json<Done>, Problem> {
    let task: TaskId = id.parse()?;
    let payload = change.payload.map(|raw| Json::parse(raw.get())).transpose()?;
    let edited = app.store.edit(&caller.actor, task, Edit { payload, priority: change.priority }).await?;
    done(task, edited)
}

/// What is different about the copy of a task; what is left out is as it was.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloneRequest {
    /// What the handler is given.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Where it waits.
    queue: Option<String>,
    /// Lower runs first: −1000 to 1000.
    priority: Option<i32>,
    /// Starts it no earlier than this long from now.
    delay_ms: Option<u64>,
}

/// Enqueue a new task like this one, whatever became of it.
///
/// The copy has its kind, payload, queue, lane, priority and options, but neither its keys nor its family. Of a plain success no
/// payload is kept: give one.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/clone", tag = "tasks", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The task's number")), request_body = CloneRequest,
    responses((status = 201, body = Enqueued), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn clone(
    _: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Content(request): Content<CloneRequest>,
) -> Result<Response, Problem> {
    let id: TaskId = id.parse()?;
    let view = app.store.get(id).await?.ok_or_else(|| Problem::skipped(id, Skip::NotFound))?;
    store_one(&app, request.copy_of(view)?).await
}

impl CloneRequest {
    fn copy_of(self, view: TaskView) -> Result<NewTask, Problem> {
        let payload = match self.payload {
            Some(raw) => Json::parse(raw.get())?,
            None => view.payload.ok_or_else(|| Problem::skipped(view.id, Skip::Plain))?,
        };
        let mut task = NewTask::new(view.kind, payload);
        task.queue = self.queue.map(QueueName::new).transpose()?.unwrap_or(view.queue);
        task.lane = view.lane.map(Lane::new);
        task.priority = self.priority.unwrap_or(view.priority);
        task.max_attempts = view.max_attempts;
        task.when = self.delay_ms.map_or(When::Now, |delay| When::After(Duration::from_millis(delay)));
        task.timeout = view.options.timeout_ms.map(Duration::from_millis);
        task.retry = view.options.retry.unwrap_or(task.retry);
        task.tags = view.options.tags;
        task.trace = view.options.trace;
        Ok(task)
    }
}
