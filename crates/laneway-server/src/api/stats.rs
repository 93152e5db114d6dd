//! Statistics for charts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use laneway_core::{Code, InvalidInput, Point, QueueName, Series, parse_span};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Read};
use crate::input::Asked;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// The most steps of a series.
const POINTS_MAX: u64 = 2_000;
/// The most queues of one answer.
const GROUPS_MAX: usize = 20;
const METRICS: [&str; 7] = ["enqueued", "started", "completed", "failed", "cancelled", "waits", "runs"];

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
    /// The time before `to`, such as `6h`, in place of `from`.
    range: Option<String>,
    /// How long a step is, in seconds: whole minutes. 60, or longer where that would be more than 2,000 steps.
    step: Option<u64>,
    /// Only these numbers of each point, with commas: `completed,failed`.
    metric: Option<String>,
    /// `queue`: a series for each queue, of 20 at most.
    group: Option<String>,
}

/// One point per step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Points {
    /// `at`, `enqueued`, `started`, `completed`, `failed`, `cancelled`, and `waits` and `runs` counted by powers of two in
    /// milliseconds.
    #[schema(value_type = Vec<Object>)]
    points: Vec<Value>,
    /// With `group=queue`: the points of each queue, in place of `points`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    series: Vec<OfQueue>,
}

/// The points of one queue.
#[derive(Debug, Serialize, ToSchema)]
struct OfQueue {
    queue: String,
    #[schema(value_type = Vec<Object>)]
    points: Vec<Value>,
}

impl SeriesQuery {
    fn series(&self, queue: Option<QueueName>) -> Result<Series, InvalidInput> {
        let to = self.to.unwrap_or_else(Timestamp::now);
        let range = self.range.as_deref().map(|text| parse_span("range", text)).transpose()?;
        if range.is_some() && self.from.is_some() {
            let problem = "and from are both given; give one of them";
            return Err(InvalidInput::new(Code::OutOfRange, "range", problem));
        }
        let range = range.unwrap_or(Duration::from_secs(3_600));
        let from = self.from.unwrap_or_else(|| to.checked_sub(range).unwrap_or(to));
        let fits = || to.duration_since(from).unsigned_abs().as_secs().div_ceil(60 * POINTS_MAX).max(1) * 60;
        let step = Duration::from_secs(self.step.unwrap_or_else(fits));
        Ok(Series { queue, from, to, step })
    }

    /// The numbers that are shown of each point; none: all.
    fn metrics(&self) -> Result<Option<Vec<&str>>, InvalidInput> {
        let Some(text) = &self.metric else { return Ok(None) };
        let wanted: Vec<_> = text.split(',').collect();
        match wanted.iter().find(|metric| !METRICS.contains(metric)) {
            None => Ok(Some(wanted)),
            Some(unknown) => {
                let problem =
                    format!("`{}` is unknown; one of: {}", unknown.escape_debug(), METRICS.join(", "));
                Err(InvalidInput::new(Code::InvalidName, "metric", problem))
            }
        }
    }

    fn is_grouped(&self) -> Result<bool, InvalidInput> {
        match (self.group.as_deref(), &self.queue) {
            (None, _) => Ok(false),
            (Some("queue"), None) => Ok(true),
            (Some("queue"), Some(_)) => {
                let problem = "and queue are both given; give one of them";
                Err(InvalidInput::new(Code::OutOfRange, "group", problem))
            }
            (Some(other), _) => {
                let problem = format!("`{}` is unknown; one of: queue", other.escape_debug());
                Err(InvalidInput::new(Code::InvalidName, "group", problem))
            }
        }
    }
}

/// A point as it is shown: when, and the numbers that were asked for.
fn shown(point: Point, metrics: Option<&[&str]>) -> Value {
    let mut shown = serde_json::to_value(point).expect("numbers can be encoded");
    if let (Some(metrics), Value::Object(members)) = (metrics, &mut shown) {
        members.retain(|name, _| name == "at" || metrics.contains(&name.as_str()));
    }
    shown
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
    let metrics = query.metrics()?;
    let read = async |queue| -> Result<Vec<Value>, Problem> {
        let points = app.store.series(query.series(queue)?).await?;
        Ok(points.into_iter().map(|point| shown(point, metrics.as_deref())).collect())
    };
    if !query.is_grouped()? {
        let queue = query.queue.as_deref().map(QueueName::new).transpose()?;
        return Ok(Json(Points { points: read(queue).await?, series: vec![] }));
    }
    let mut series = vec![];
    for view in app.store.queues().await?.into_iter().take(GROUPS_MAX) {
        series.push(OfQueue { queue: view.queue.to_string(), points: read(Some(view.queue)).await? });
    }
    Ok(Json(Points { points: vec![], series }))
}
