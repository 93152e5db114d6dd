//! Looking at tasks.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use laneway::{Client, StoreHandle, WaitError};
use laneway_core::{
    Cursor, FailedAttempt, Filter, Listing, Looked, Place, QueueName, Skip, State as TaskState, TaskId,
    TaskView, Test, Why, validate,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Read};
use crate::input::{Asked, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::fields::{Fields, Shown};
use crate::wire::{Task, TaskPage};

/// The longest wait for a result, in seconds.
const WAIT_SECS_MAX: u64 = 30;

/// Which tasks are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// A query such as `state:failed kind:mail.* since:2h`.
    q: Option<String>,
    /// Only these states, with commas: `failed,cancelled`.
    state: Option<String>,
    /// Only this queue.
    queue: Option<String>,
    /// Only this list: `pending`, `later`, `leased`, `waiting` or `ended`.
    #[param(value_type = Option<String>)]
    place: Option<Place>,
    /// Where the page begins: `next` of the one before.
    cursor: Option<String>,
    /// How many: 1 to 500. 100.
    limit: Option<u32>,
    /// Only these fields of each task, with commas: `id,state,error`.
    fields: Option<String>,
}

impl ListQuery {
    fn filter(&self) -> Result<Filter, Problem> {
        let mut text = self.q.clone().unwrap_or_default();
        if let Some(states) = &self.state {
            states.split(',').try_for_each(|state| state.parse::<TaskState>().map(drop))?;
            text = format!("{text} state:{states}");
        }
        let filter: Filter = text.parse()?;
        Ok(match &self.queue {
            Some(queue) => filter.and(Test::Queue(QueueName::new(queue.as_str())?)),
            None => filter,
        })
    }
}

/// A place in the lists, one after the other: `ended:1700000000000000-42`.
pub(crate) fn read_cursor(text: &str) -> Result<(Place, Option<Cursor>), Problem> {
    let (place, cursor) = text.split_once(':').unwrap_or(("", text));
    let place = serde_json::from_value(place.into())
        .map_err(|_| Problem::from("page".parse::<Cursor>().expect_err("a word is no cursor")))?;
    Ok((place, if cursor.is_empty() { None } else { Some(cursor.parse()?) }))
}

pub(crate) fn cursor_text(place: Place, cursor: Option<Cursor>) -> String {
    let cursor = cursor.map(|cursor| cursor.to_string()).unwrap_or_default();
    format!("{}:{cursor}", place_text(place))
}

/// A list by its name: `ended`.
pub(crate) fn place_text(place: Place) -> String {
    let place = serde_json::to_value(place).unwrap_or_default();
    place.as_str().unwrap_or_default().to_owned()
}

/// List tasks.
///
/// Lists follow one another: pending, later, leased, waiting, then history, newest first. A rare match is looked for in a
/// bounded number of rows; the page is then short and `next` goes on.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", security(("token" = ["read"])), params(ListQuery),
    responses((status = 200, body = TaskPage), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<TaskPage>, Problem> {
    let limit = query.limit.unwrap_or(100);
    validate::in_range("limit", limit, 1..=validate::PAGE_MAX)?;
    let filter = query.filter()?;
    let fields = query.fields.as_deref().map(str::parse::<Fields>).transpose()?;
    let from = query.cursor.as_deref().map(read_cursor).transpose()?;
    let mut places = filter.places();
    places.retain(|place| query.place.is_none_or(|wanted| wanted == *place));
    let first = from.and_then(|(place, _)| places.iter().position(|known| *known == place)).unwrap_or(0);
    let mut page = TaskPage { tasks: vec![], next: None, looked: Looked::ToTheEnd };
    for (step, place) in places.iter().enumerate().skip(first) {
        let after = from.filter(|_| step == first).and_then(|(_, cursor)| cursor);
        let left = limit - page.tasks.len() as u32;
        let listing = Listing { place: *place, filter: filter.clone(), after, limit: left };
        let found = app.store.list(listing).await?;
        page.tasks.extend(found.tasks.into_iter().map(|view| Shown::of(view.into(), fields.as_ref())));
        page.looked = found.looked;
        if found.next.is_some() {
            page.next = Some(cursor_text(*place, found.next));
            break;
        }
        if page.tasks.len() == limit as usize {
            page.next = places.get(step + 1).map(|place| cursor_text(*place, None));
            break;
        }
    }
    Ok(Json(page))
}

/// One task.
///
/// With the header `Prefer: wait=20` the answer comes when the task has ended, or after so many seconds.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks", security(("token" = ["read"])),
    params(
        ("id" = i64, Path, description = "The task's number"),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`, 30 at most")
    ),
    responses((status = 200, body = Task), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
) -> Result<Json<Task>, Problem> {
    let id: TaskId = id.parse()?;
    let found = match preferred_wait(&headers) {
        Some(wait) => Some(ended_within(&app, id, wait).await?),
        None => app.store.get(id).await?,
    };
    found.map(|view| Json(Task::from(view))).ok_or_else(|| Problem::skipped(id, Skip::NotFound))
}

/// Why a task is not running.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/why", tag = "tasks", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The task's number")),
    responses(
        (status = 200, description = "`state`, and `reasons`, most important first", body = Object),
        (status = "4XX", body = ProblemBody)
    )
)]
pub(crate) async fn why(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<Why>, Problem> {
    let id: TaskId = id.parse()?;
    app.store.why(id).await?.map(Json).ok_or_else(|| Problem::skipped(id, Skip::NotFound))
}

/// The failed attempts of a task.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Failures {
    /// `attempt`, `at` and `error`, newest first: the last twenty, and the one that failed it for good.
    #[schema(value_type = Vec<Object>)]
    pub failures: Vec<FailedAttempt>,
}

/// The failed attempts of a task, newest first.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/attempts", tag = "tasks", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The task's number")),
    responses((status = 200, body = Failures), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn failures(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<Failures>, Problem> {
    let id: TaskId = id.parse()?;
    let failures = app.store.failures(id).await?;
    if failures.is_empty() && app.store.get(id).await?.is_none() {
        return Err(Problem::skipped(id, Skip::NotFound));
    }
    Ok(Json(Failures { failures }))
}

/// How long to wait for a result.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Seconds to wait for the end: 0 to 30. 0.
    wait: Option<u64>,
}

/// How a task ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskResult {
    id: i64,
    /// Its state.
    #[schema(value_type = String)]
    state: TaskState,
    /// True when nothing will happen to it any more.
    ended: bool,
    /// When it ended.
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    /// What the handler returned.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<laneway_core::Json>,
    /// What went wrong.
    error: Option<String>,
}

/// How long a caller prefers to wait (RFC 7240): `Prefer: wait=20`. Longer than the longest wait is that one; what is not
/// understood is no preference.
fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all("prefer").into_iter().filter_map(|value| value.to_str().ok());
    let mut parts = preferences.flat_map(|value| value.split([',', ';']));
    let seconds = parts.find_map(|part| part.trim().strip_prefix("wait=")?.parse::<u64>().ok())?;
    Some(Duration::from_secs(seconds.min(WAIT_SECS_MAX)))
}

/// A task when it has ended, or as it is after `wait`, or when the server stops.
async fn ended_within(app: &App, id: TaskId, wait: Duration) -> Result<TaskView, Problem> {
    let client = Client::new(StoreHandle::from(app.store.clone()));
    let waited = tokio::time::timeout(wait, client.wait(id));
    let ended = tokio::select! {
        () = app.stop.cancelled() => None,
        waited = waited => match waited {
            Ok(Ok(ended)) => Some(ended.view().clone()),
            Ok(Err(WaitError::NotFound { task })) => return Err(Problem::skipped(task, Skip::NotFound)),
            Ok(Err(WaitError::Store(error))) => return Err(error.into()),
            _ => None,
        },
    };
    match ended {
        Some(view) => Ok(view),
        None => app.store.get(id).await?.ok_or_else(|| Problem::skipped(id, Skip::NotFound)),
    }
}

/// The result of a task; waits for it, if asked to with `wait` or `Prefer: wait=`.
///
/// 200 when the task has ended, however it did; 202 when it has not.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/result", tag = "tasks", security(("token" = ["read"])),
    params(
        ("id" = i64, Path, description = "The task's number"),
        WaitQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`, 30 at most")
    ),
    responses(
        (status = 200, description = "It has ended", body = TaskResult),
        (status = 202, description = "It has not", body = TaskResult),
        (status = "4XX", body = ProblemBody)
    )
)]
pub(crate) async fn result(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<String>,
    Asked(query): Asked<WaitQuery>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<TaskResult>), Problem> {
    let id: TaskId = id.parse()?;
    validate::in_range("wait", query.wait.unwrap_or(0), 0..=WAIT_SECS_MAX)?;
    let wait = query.wait.map(Duration::from_secs).or_else(|| preferred_wait(&headers));
    let view = ended_within(&app, id, wait.unwrap_or_default()).await?;
    let ended = view.state.has_ended();
    let status = if ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((
        status,
        Json(TaskResult {
            id: id.0,
            state: view.state,
            ended,
            ended_at: view.ended_at,
            result: view.result,
            error: view.error,
        }),
    ))
}
