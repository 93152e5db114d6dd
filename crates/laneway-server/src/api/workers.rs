//! Workers.

use axum::Json;
use axum::extract::State;
use laneway_core::SessionId;

use super::Changed;
use crate::access::{Caller, Operate, Read};
use crate::input::Segments;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::worker::{Worker, Workers, session};

async fn living(app: &App) -> Result<Vec<Worker>, Problem> {
    Ok(app.store.workers().await?.into_iter().map(Worker::from).collect())
}

async fn find(app: &App, session: SessionId) -> Result<Worker, Problem> {
    let found = living(app).await?.into_iter().find(|worker| worker.session == session.to_string());
    found.ok_or_else(|| Problem::not_found(format!("worker {session}")))
}

/// List the living workers.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "workers", security(("token" = ["read"])),
    responses((status = 200, body = Workers))
)]
pub(crate) async fn list(_: Caller<Read>, State(app): State<App>) -> Result<Json<Workers>, Problem> {
    Ok(Json(Workers { workers: living(&app).await? }))
}

/// One living worker.
#[utoipa::path(
    get, path = "/api/v1/workers/{session}", tag = "workers", security(("token" = ["read"])),
    params(("session" = String, Path, description = "Its session")),
    responses((status = 200, body = Worker), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(text): Segments<String>,
) -> Result<Json<Worker>, Problem> {
    find(&app, session(&text)?).await.map(Json)
}

/// Tell a worker to end, as the first signal to stop would.
#[utoipa::path(
    post, path = "/api/v1/workers/{session}/stop", tag = "workers", security(("token" = ["operate"])),
    params(("session" = String, Path, description = "Its session")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn stop(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(text): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    let session = session(&text)?;
    find(&app, session).await?;
    Ok(Json(Changed { changed: app.store.stop(&caller.actor, session).await? }))
}

/// Tell a worker to take nothing new.
#[utoipa::path(
    post, path = "/api/v1/workers/{session}/drain", tag = "workers", security(("token" = ["operate"])),
    params(("session" = String, Path, description = "Its session")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn drain(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(text): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    let session = session(&text)?;
    find(&app, session).await?;
    Ok(Json(Changed { changed: app.store.drain(&caller.actor, session).await? }))
}
