//! Queues, kinds, and what is paused.

use axum::Json;
use axum::extract::State;
use laneway_core::{Counts, Kind, Pausable, QueueName, State as TaskState};
use serde::Serialize;
use utoipa::ToSchema;

use super::Changed;
use crate::access::{Caller, Operate, Read};
use crate::etag::{Expected, IfMatch, Tagged};
use crate::input::{Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::queue::{Count, Counted, PauseRequest, Paused, Pauses, Queue, QueueChange, Queues};

/// List queues with the age of their oldest ready task.
#[utoipa::path(
    get, path = "/api/v1/queues", tag = "queues", security(("token" = ["read"])),
    responses((status = 200, body = Queues))
)]
pub(crate) async fn list(_: Caller<Read>, State(app): State<App>) -> Result<Json<Queues>, Problem> {
    let queues = app.store.queues().await?.into_iter().map(Queue::from).collect();
    Ok(Json(Queues { queues }))
}

/// One queue.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}", tag = "queues", security(("token" = ["read"])),
    params(("queue" = String, Path, description = "Its name")),
    responses((status = 200, body = Queue), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
) -> Result<Tagged<Queue>, Problem> {
    let name = QueueName::new(queue)?;
    let found = find(&app, &name).await?;
    found.map(Tagged).ok_or_else(|| Problem::not_found(format!("queue `{name}`")))
}

async fn find(app: &App, name: &QueueName) -> Result<Option<Queue>, Problem> {
    let queues = app.store.queues().await?;
    Ok(queues.into_iter().find(|view| view.queue == *name).map(Queue::from))
}

/// Change a queue, which is made if it does not exist.
#[utoipa::path(
    patch, path = "/api/v1/queues/{queue}", tag = "queues", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "Its name"), IfMatch), request_body = QueueChange,
    responses((status = 200, body = Queue), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn change(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
    expected: Expected,
    Content(change): Content<QueueChange>,
) -> Result<Tagged<Queue>, Problem> {
    let name = QueueName::new(queue)?;
    if expected.is_given() {
        expected.check(find(&app, &name).await?.as_ref())?;
    }
    app.store.set_queue_by(&caller.actor, &name, change.into_settings()?).await?;
    let found = find(&app, &name).await?;
    found.map(Tagged).ok_or_else(|| Problem::not_found(format!("queue `{name}`")))
}

/// Count the tasks of a queue by kind and state.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}/kinds", tag = "queues", security(("token" = ["read"])),
    params(("queue" = String, Path, description = "Its name")),
    responses((status = 200, body = Counted), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn kinds(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
) -> Result<Json<Counted>, Problem> {
    let counts = app.store.counts_by_kind(&QueueName::new(queue)?).await?;
    Ok(Json(Counted { counts: counts.into_iter().map(Count::from).collect() }))
}

/// Count tasks by queue and state.
#[utoipa::path(
    get, path = "/api/v1/counts", tag = "queues", security(("token" = ["read"])),
    responses((status = 200, body = Counted))
)]
pub(crate) async fn counts(_: Caller<Read>, State(app): State<App>) -> Result<Json<Counted>, Problem> {
    let counts = app.store.counts().await?;
    Ok(Json(Counted { counts: counts.into_iter().map(Count::from).collect() }))
}

/// Pauses something; `changed` is false when it was paused before.
pub(super) async fn pause_it(
    app: &App,
    caller: &Caller<Operate>,
    what: Pausable,
    request: &PauseRequest,
) -> Result<Json<Changed>, Problem> {
    let changed = app.store.pause(&caller.actor, &what, request.expires()).await?;
    Ok(Json(Changed { changed }))
}

async fn resume_it(app: &App, caller: &Caller<Operate>, what: Pausable) -> Result<Json<Changed>, Problem> {
    Ok(Json(Changed { changed: app.store.resume(&caller.actor, &what).await? }))
}

/// Stop claims from a queue. What runs goes on.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/pause", tag = "queues", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "Its name")), request_body = PauseRequest,
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn pause(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
    Content(request): Content<PauseRequest>,
) -> Result<Json<Changed>, Problem> {
    pause_it(&app, &caller, Pausable::Queue(QueueName::new(queue)?), &request).await
}

/// A queue that takes nothing new.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Drained {
    /// False when it was paused before.
    changed: bool,
    /// Attempts of it that still run.
    running: u64,
}

/// Pause a queue, and tell how many of its attempts still run.
///
/// Ask again until `running` is 0: then nothing of the queue runs anywhere.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/drain", tag = "queues", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "Its name")), request_body = PauseRequest,
    responses((status = 200, body = Drained), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn drain(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
    Content(request): Content<PauseRequest>,
) -> Result<Json<Drained>, Problem> {
    let queue = QueueName::new(queue)?;
    let Json(paused) = pause_it(&app, &caller, Pausable::Queue(queue.clone()), &request).await?;
    let counts = app.store.counts().await?;
    let running = |count: &&Counts| count.queue == queue && count.state == TaskState::Leased;
    let running = counts.iter().filter(running).map(|count| count.tasks).sum();
    Ok(Json(Drained { changed: paused.changed, running }))
}

/// End the pause of a queue.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/resume", tag = "queues", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resume(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    resume_it(&app, &caller, Pausable::Queue(QueueName::new(queue)?)).await
}

/// Stop claims of a kind, in all queues. What runs goes on.
#[utoipa::path(
    post, path = "/api/v1/kinds/{kind}/pause", tag = "queues", security(("token" = ["operate"])),
    params(("kind" = String, Path, description = "Its name")), request_body = PauseRequest,
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn pause_kind(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(kind): Segments<String>,
    Content(request): Content<PauseRequest>,
) -> Result<Json<Changed>, Problem> {
    pause_it(&app, &caller, Pausable::Kind(Kind::new(kind)?), &request).await
}

/// End the pause of a kind.
#[utoipa::path(
    post, path = "/api/v1/kinds/{kind}/resume", tag = "queues", security(("token" = ["operate"])),
    params(("kind" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resume_kind(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(kind): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    resume_it(&app, &caller, Pausable::Kind(Kind::new(kind)?)).await
}

/// List what is paused, oldest pause first.
#[utoipa::path(
    get, path = "/api/v1/pauses", tag = "queues", security(("token" = ["read"])),
    responses((status = 200, body = Pauses))
)]
pub(crate) async fn pauses(_: Caller<Read>, State(app): State<App>) -> Result<Json<Pauses>, Problem> {
    let pauses = app.store.pauses().await?.into_iter().map(Paused::from).collect();
    Ok(Json(Pauses { pauses }))
}
