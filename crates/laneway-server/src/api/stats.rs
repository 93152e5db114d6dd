//! Statistics for charts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use laneway_core::{Point, QueueName, Series};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Read};
use crate::input::Asked;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// What a series is about.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesQuery {
    /// Only this queue.
    queue: Option<String>,
    /// Where the first step begins. An hour before `to`.
    #[param(value_type = Option<String>)]
    from: Option<Timestamp>,
    /// Where the last step ends. Now.
    #[param(value_type = Option<String>)]
    to: Option<Timestamp>,
    /// How long a step is, in seconds: whole minutes. 60.
    step: Option<u64>,
}

/// One point per step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Points {
    /// `at`, `enqueued`, `started`, `completed`, `failed`, `cancelled`, and `waits` and `runs` counted by powers of two in
    /// milliseconds.
    #[schema(value_type = Vec<Object>)]
    points: Vec<Point>,
}

/// Statistics over time: at most 2,000 steps of whole minutes.
#[utoipa::path(
    get, path = "/api/v1/stats/series", tag = "stats", security(("token" = ["read"])), params(SeriesQuery),
    responses((status = 200, body = Points), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn series(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<SeriesQuery>,
) -> Result<Json<Points>, Problem> {
    let to = query.to.unwrap_or_else(Timestamp::now);
    let from = query.from.unwrap_or_else(|| to.checked_sub(Duration::from_secs(3_600)).unwrap_or(to));
    let queue = query.queue.map(QueueName::new).transpose()?;
    let step = Duration::from_secs(query.step.unwrap_or(60));
    Ok(Json(Points { points: app.store.series(Series { queue, from, to, step }).await? }))
}
