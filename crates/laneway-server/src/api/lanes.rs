//! Lanes: limits, intervals, pauses and halts.

use axum::Json;
use axum::extract::State;
use laneway_core::{LaneKey, LaneListing, LaneOrder, Pausable, QueueName};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Changed;
use super::queues::pause_it;
use crate::access::{Caller, Operate, Read};
use crate::etag::{Expected, IfMatch, Tagged};
use crate::input::{Asked, Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::lane::{Halted, Lane, LaneChange, LaneResume, Lanes};
use crate::wire::queue::PauseRequest;

/// The queue and the key of a path.
type Named = Segments<(String, String)>;

fn names((queue, key): (String, String)) -> Result<(QueueName, LaneKey), Problem> {
    Ok((QueueName::new(queue)?, LaneKey::new(key)?))
}

async fn find(app: &App, queue: &QueueName, key: &LaneKey) -> Result<Tagged<Lane>, Problem> {
    let found = app.store.lane(queue, key).await?;
    let missing = || Problem::not_found(format!("lane `{key}` of queue `{queue}`"));
    found.map(|view| Tagged(Lane::from(view))).ok_or_else(missing)
}

/// Which lanes are listed, and in which order.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LaneQuery {
    /// `backlog` (most runnable tasks first, if none is given), `held` or `key`.
    order: Option<String>,
    /// Where the page begins: `next` of the one before, in the same order.
    cursor: Option<String>,
    /// How many: 1 to 500. 100.
    limit: Option<u32>,
}

/// List the lanes of a queue.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}/lanes", tag = "lanes", security(("token" = ["read"])),
    params(("queue" = String, Path, description = "The queue"), LaneQuery),
    responses((status = 200, body = Lanes), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(queue): Segments<String>,
    Asked(query): Asked<LaneQuery>,
) -> Result<Json<Lanes>, Problem> {
    let order = query.order.as_deref().map(str::parse::<LaneOrder>).transpose()?.unwrap_or_default();
    let after = query.cursor.as_deref().map(str::parse).transpose()?;
    let listing =
        LaneListing { queue: QueueName::new(queue)?, order, after, limit: query.limit.unwrap_or(100) };
    let page = app.store.lanes(listing).await?;
    let next = page.next.map(|cursor| cursor.to_string());
    Ok(Json(Lanes { lanes: page.lanes.into_iter().map(Lane::from).collect(), next, partial: page.partial }))
}

/// One lane.
#[utoipa::path(
    get, path = "/api/v1/queues/{queue}/lanes/{key}", tag = "lanes", security(("token" = ["read"])),
    params(("queue" = String, Path, description = "The queue"), ("key" = String, Path, description = "The lane's key")),
    responses((status = 200, body = Lane), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(named): Named,
) -> Result<Tagged<Lane>, Problem> {
    let (queue, key) = names(named)?;
    find(&app, &queue, &key).await
}

/// Change a lane, which is made if it does not exist.
#[utoipa::path(
    patch, path = "/api/v1/queues/{queue}/lanes/{key}", tag = "lanes", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "The queue"), ("key" = String, Path, description = "The lane's key"), IfMatch),
    request_body = LaneChange, responses((status = 200, body = Lane), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn change(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(named): Named,
    expected: Expected,
    Content(change): Content<LaneChange>,
) -> Result<Tagged<Lane>, Problem> {
    let (queue, key) = names(named)?;
    if expected.is_given() {
        let found = app.store.lane(&queue, &key).await?.map(Lane::from);
        expected.check(found.as_ref())?;
    }
    app.store.set_lane_by(&caller.actor, &queue, &key, change.into_settings()?).await?;
    find(&app, &queue, &key).await
}

/// Stop claims from a lane. What runs goes on.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/lanes/{key}/halt", tag = "lanes", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "The queue"), ("key" = String, Path, description = "The lane's key")),
    request_body = PauseRequest, responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn pause(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(named): Named,
    Content(request): Content<PauseRequest>,
) -> Result<Json<Changed>, Problem> {
    let (queue, key) = names(named)?;
    pause_it(&app, &caller, Pausable::Lane(queue, key), &request).await
}

/// Let a lane go on: ends its pause, and its halt after a failure.
#[utoipa::path(
    post, path = "/api/v1/queues/{queue}/lanes/{key}/resume", tag = "lanes", security(("token" = ["operate"])),
    params(("queue" = String, Path, description = "The queue"), ("key" = String, Path, description = "The lane's key")),
    request_body = LaneResume, responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resume(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(named): Named,
    Content(LaneResume { only }): Content<LaneResume>,
) -> Result<Json<Changed>, Problem> {
    let (queue, key) = names(named)?;
    let (ends_halt, ends_pause) = (only != Some(Halted::Pause), only != Some(Halted::Failure));
    let was_halted = ends_halt && app.store.resume_lane_by(&caller.actor, &queue, &key).await?;
    let was_paused = ends_pause && app.store.resume(&caller.actor, &Pausable::Lane(queue, key)).await?;
    Ok(Json(Changed { changed: was_halted || was_paused }))
}
