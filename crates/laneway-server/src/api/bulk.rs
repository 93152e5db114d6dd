//! Actions on many tasks: on those that are named at once, on those that a query means step by step.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use laneway_core::{BulkId, BulkPage, BulkState, NewBulk};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Changed;
use crate::access::{Caller, Operate, Read};
use crate::input::{Asked, Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::bulk::{ActedOn, Bulk, BulkRequest, Bulks, Results, Whom};

/// How long a preview counts before it answers with what it has.
const PREVIEW_WITHIN: Duration = Duration::from_secs(5);

/// Act on many tasks.
///
/// With `ids` the answer says what became of each. With `q` a bulk is started and carried out in the background: look at it
/// under its number. With `dry_run` it only counts.
#[utoipa::path(
    post, path = "/api/v1/bulk", tag = "bulk", security(("token" = ["operate"])), request_body = BulkRequest,
    responses(
        (status = 200, description = "What became of each of `ids`", body = Results),
        (status = 202, description = "The bulk that was started", body = Bulk),
        (status = "4XX", body = ProblemBody)
    )
)]
pub(crate) async fn start(
    mut caller: Caller<Operate>,
    State(app): State<App>,
    Content(request): Content<BulkRequest>,
) -> Result<Response, Problem> {
    let (action, whom) = (request.action()?, request.whom()?);
    if let Some(reason) = request.reason {
        caller.actor = caller.actor.because(reason);
    }
    match whom {
        Whom::Tasks(_) if request.pace.is_some() => {
            let detail = "pace is of use only with a query; ids are acted on at once";
            Err(Problem::new("invalid_request", detail).field("pace"))
        }
        Whom::Tasks(_) if request.dry_run => {
            let detail = "dry_run is of use only with a query; ids are counted already";
            Err(Problem::new("invalid_request", detail).field("dry_run"))
        }
        Whom::Tasks(tasks) => {
            let acted = app.store.act(&caller.actor, action, &tasks).await?;
            let results = tasks.iter().zip(acted).map(|(task, acted)| ActedOn::new(*task, acted)).collect();
            Ok(Json(Results { results }).into_response())
        }
        Whom::Matching(filter) => {
            let new =
                NewBulk { pace: request.pace, dry_run: request.dry_run, ..NewBulk::new(action, filter) };
            let bulk = app.store.start_bulk(&caller.actor, new).await?;
            app.bulks.drive(bulk.id);
            Ok((StatusCode::ACCEPTED, Json(Bulk::from(bulk))).into_response())
        }
    }
}

/// Count the tasks that an action would meet, and do nothing.
///
/// Counting stops after five seconds; `state` is then `aborted` and there are more than `matched`.
#[utoipa::path(
    post, path = "/api/v1/bulk/preview", tag = "bulk", security(("token" = ["operate"])), request_body = BulkRequest,
    responses((status = 200, body = Bulk), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn preview(
    caller: Caller<Operate>,
    State(app): State<App>,
    Content(request): Content<BulkRequest>,
) -> Result<Json<Bulk>, Problem> {
    let Whom::Matching(filter) = request.whom()? else {
        let detail = "ids are counted already; a preview is for a query";
        return Err(Problem::new("invalid_request", detail).field("ids"));
    };
    let new = NewBulk::new(request.action()?, filter).dry_run();
    let mut bulk = app.store.start_bulk(&caller.actor, new).await?;
    let started = Instant::now();
    while bulk.state == BulkState::Running && started.elapsed() < PREVIEW_WITHIN {
        bulk = app.store.bulk_step(bulk.id).await?.ok_or_else(|| gone(bulk.id))?;
    }
    if bulk.state == BulkState::Running {
        app.store.set_bulk_state(&caller.actor, bulk.id, BulkState::Aborted).await?;
        bulk.state = BulkState::Aborted;
    }
    Ok(Json(bulk.into()))
}

fn gone(id: BulkId) -> Problem {
    Problem::not_found(format!("bulk {}", id.0))
}

/// Which bulks are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BulkQuery {
    /// Only those before this number.
    before: Option<i64>,
    /// Only `running`, `finished` or `aborted` ones.
    #[param(value_type = Option<String>)]
    state: Option<BulkState>,
    /// How many: 1 to 500. 100.
    limit: Option<u32>,
}

/// List bulks, newest first.
#[utoipa::path(
    get, path = "/api/v1/bulk", tag = "bulk", security(("token" = ["read"])), params(BulkQuery),
    responses((status = 200, body = Bulks), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<BulkQuery>,
) -> Result<Json<Bulks>, Problem> {
    let page =
        BulkPage { before: query.before.map(BulkId), state: query.state, limit: query.limit.unwrap_or(100) };
    let bulks = app.store.bulks(page).await?.into_iter().map(Bulk::from).collect();
    Ok(Json(Bulks { bulks }))
}

async fn find(app: &App, id: i64) -> Result<Bulk, Problem> {
    app.store.bulk(BulkId(id)).await?.map(Bulk::from).ok_or_else(|| gone(BulkId(id)))
}

/// One bulk.
#[utoipa::path(
    get, path = "/api/v1/bulk/{id}", tag = "bulk", security(("token" = ["read"])),
    params(("id" = i64, Path, description = "The bulk's number")),
    responses((status = 200, body = Bulk), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(id): Segments<i64>,
) -> Result<Json<Bulk>, Problem> {
    find(&app, id).await.map(Json)
}

async fn set(
    app: &App,
    caller: &Caller<Operate>,
    id: i64,
    state: BulkState,
) -> Result<Json<Changed>, Problem> {
    if find(app, id).await?.state == BulkState::Finished {
        return Err(Problem::new("bulk_ended", format!("bulk {id} has finished; start another one")));
    }
    let changed = app.store.set_bulk_state(&caller.actor, BulkId(id), state).await?;
    if state == BulkState::Running {
        app.bulks.drive(BulkId(id));
    }
    Ok(Json(Changed { changed }))
}

/// Stop a bulk. What it has done stays done.
#[utoipa::path(
    post, path = "/api/v1/bulk/{id}/abort", tag = "bulk", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The bulk's number")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn abort(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<i64>,
) -> Result<Json<Changed>, Problem> {
    set(&app, &caller, id, BulkState::Aborted).await
}

/// Let a bulk go on that was stopped.
#[utoipa::path(
    post, path = "/api/v1/bulk/{id}/resume", tag = "bulk", security(("token" = ["operate"])),
    params(("id" = i64, Path, description = "The bulk's number")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resume(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(id): Segments<i64>,
) -> Result<Json<Changed>, Problem> {
    set(&app, &caller, id, BulkState::Running).await
}
