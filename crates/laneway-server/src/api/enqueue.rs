//! Storing tasks: one, several, or a stream of lines.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_core::{NewTask, check_bulk};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lines;
use crate::access::{Caller, Enqueue};
use crate::input::{Asked, decode, expect_json, media_type, whole};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::{Enqueued, EnqueuedMany, TaskRequest};

/// Whether tasks are stored.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EnqueueQuery {
    /// Only checks the tasks, and stores nothing. What depends on other tasks, such as a key that is held, is not looked at.
    #[serde(default, deserialize_with = "switch")]
    #[param(value_type = Option<bool>)]
    dry_run: bool,
    /// Of lines: stores all of them or none, and answers with each task. At most 100,000 lines and 32 MiB.
    #[serde(default, deserialize_with = "switch")]
    #[param(value_type = Option<bool>)]
    whole: bool,
}

/// A parameter that is switched on by being there: `?dry_run`, `?dry_run=true`.
fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        other => Err(D::Error::custom(format!("`{}` is neither true nor false", other.escape_debug()))),
    }
}

/// Tasks that would be accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Checked {
    /// How many.
    pub checked: u64,
}

/// Enqueue one task, an array of tasks, or a stream of lines.
///
/// One task is answered with 201 when it is new and with 200 when its key was held. An array is stored whole or not at all.
/// A body of `application/x-ndjson` has one task per line and no limit on its length; it is stored in pieces, and an answer
/// about a bad line says how many lines before it are stored. With `whole` it is stored at once or not at all. The header `Idempotency-Key` makes it safe to repeat the call
/// for one task.
#[utoipa::path(
    post, path = "/api/v1/tasks", tag = "tasks", security(("token" = ["enqueue"])),
    params(EnqueueQuery, ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the call safe")),
    request_body(content = TaskRequest, description = "A task, an array of tasks, or lines of tasks"),
    responses(
        (status = 201, description = "Stored", body = Enqueued),
        (status = 200, description = "Several tasks, or the task that holds the key", body = Enqueued),
        (status = "4XX", description = "Refused; nothing is stored unless the answer says so", body = ProblemBody)
    )
)]
pub(crate) async fn enqueue(
    _: Caller<Enqueue>,
    State(app): State<App>,
    Asked(query): Asked<EnqueueQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let key = idempotency_key(&parts.headers)?;
    if media_type(&parts.headers) == "application/x-ndjson" {
        refuse_key(key)?;
        return match (query.dry_run, query.whole) {
            (true, _) => Ok(Json(lines::check(&*app.store, body).await?).into_response()),
            (false, true) => Ok(Json(lines::store_whole(&*app.store, body).await?).into_response()),
            (false, false) => Ok(Json(lines::store(&*app.store, body).await?).into_response()),
        };
    }
    if query.whole {
        let detail = "whole is of use only with lines; one task and an array are stored whole anyway";
        return Err(Problem::new("invalid_request", detail).field("whole"));
    }
    expect_json(&parts.headers)?;
    let bytes = whole(body).await?;
    if bytes.trim_ascii_start().starts_with(b"[") {
        refuse_key(key)?;
        let tasks = several(decode(&bytes)?)?;
        return if query.dry_run { checked(&app, &tasks) } else { store_many(&app, tasks).await };
    }
    let mut request: TaskRequest = decode(&bytes)?;
    if key.is_some() {
        request.idempotency_key = key;
    }
    let task = request.into_task()?;
    if query.dry_run { checked(&app, &[task]) } else { store_one(&app, task).await }
}

fn checked(app: &App, tasks: &[NewTask]) -> Result<Response, Problem> {
    check_bulk(tasks, &app.store.limits())?;
    Ok(Json(Checked { checked: tasks.len() as u64 }).into_response())
}

pub(super) async fn store_one(app: &App, task: NewTask) -> Result<Response, Problem> {
    let enqueued = app.store.enqueue(task).await?;
    let location = HeaderValue::try_from(format!("{}/api/v1/tasks/{}", app.base_path, enqueued.id))
        .expect("digits are valid in a header");
    let status = if enqueued.is_new() { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], Json(Enqueued::from(enqueued))).into_response())
}

fn several(requests: Vec<TaskRequest>) -> Result<Vec<NewTask>, Problem> {
    let made = |(place, request): (usize, TaskRequest)| -> Result<NewTask, Problem> {
        request.into_task().map_err(|mut refused| {
            refused.message = format!("task {place}: {}", refused.message);
            refused.into()
        })
    };
    requests.into_iter().enumerate().map(made).collect()
}

async fn store_many(app: &App, tasks: Vec<NewTask>) -> Result<Response, Problem> {
    let enqueued = app.store.enqueue_many(tasks).await?;
    let tasks = enqueued.into_iter().map(Enqueued::from).collect();
    Ok(Json(EnqueuedMany { tasks }).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Problem::new("invalid_name", "Idempotency-Key is not UTF-8").field("Idempotency-Key"))?;
    Ok(Some(text.to_owned()))
}

fn refuse_key(key: Option<String>) -> Result<(), Problem> {
    let detail = "Idempotency-Key is for one task; give each of several its own `idempotency_key`";
    key.map_or(Ok(()), |_| Err(Problem::new("invalid_request", detail).field("Idempotency-Key")))
}
