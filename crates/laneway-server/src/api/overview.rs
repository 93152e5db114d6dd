//! What operators look at first, and what they may type.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use laneway_core::{
    Code, Counts, InvalidInput, QueueView, ScheduleView, State as TaskState, Totals, WorkerView,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Read};
use crate::input::Asked;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// What is counted as lately.
const LATELY: Duration = Duration::from_secs(15 * 60);
/// A schedule whose fire is overdue by this much needs attention.
const SCHEDULE_LATE: Duration = Duration::from_secs(60);
/// Schedules that are looked at.
const SCHEDULES_MAX: u32 = 500;
const SUGGESTIONS_MAX: usize = 20;

/// A queue in one line.
#[derive(Debug, Serialize, ToSchema)]
struct QueueLine {
    queue: String,
    pending: u64,
    later: u64,
    running: u64,
    waiting: u64,
    /// True when there are more than were counted.
    more: bool,
    /// For how long its oldest ready task is ready: the queue's health.
    oldest_ready_ms: Option<u64>,
    paused: bool,
    workers: u64,
    slots: u64,
    /// What happened in the last 15 minutes, as old as the last maintenance: `enqueued`, `started`, `completed`, `failed`, `cancelled`.
    #[schema(value_type = Object)]
    lately: Option<Totals>,
}

/// Something that somebody should look at.
#[derive(Debug, Serialize, ToSchema)]
struct Attention {
    /// `queue_paused`, `no_worker` or `schedule_late`.
    code: &'static str,
    /// The queue or schedule.
    name: String,
    /// What to do.
    hint: String,
}

/// What operators look at first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Overview {
    queues: Vec<QueueLine>,
    /// Living workers.
    workers: u64,
    slots: u64,
    free: u64,
    /// What somebody should look at, each with its remedy.
    attention: Vec<Attention>,
}

/// What operators look at first.
#[utoipa::path(
    get, path = "/api/v1/stats/overview", tag = "stats", security(("token" = ["read"])),
    responses((status = 200, body = Overview), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn overview(_: Caller<Read>, State(app): State<App>) -> Result<Json<Overview>, Problem> {
    let now = Timestamp::now();
    let store = &app.store;
    let (views, counts) = (store.queues().await?, store.counts().await?);
    let (workers, schedules) = (store.workers().await?, store.schedules(None, SCHEDULES_MAX).await?);
    let lately = store.totals(now.checked_sub(LATELY).unwrap_or(now), now).await?;
    let line = |view: &QueueView| QueueLine::of(view, &counts, &workers, &lately, now);
    let queues: Vec<_> = views.iter().map(line).collect();
    let attention = attention(&queues, &schedules);
    let sum = |number: fn(&WorkerView) -> u32| workers.iter().map(|worker| u64::from(number(worker))).sum();
    Ok(Json(Overview {
        queues,
        workers: workers.len() as u64,
        slots: sum(|worker| worker.capacity.slots),
        free: sum(|worker| worker.capacity.free),
        attention,
    }))
}

impl QueueLine {
    fn of(
        view: &QueueView,
        counts: &[Counts],
        workers: &[WorkerView],
        lately: &[Totals],
        now: Timestamp,
    ) -> Self {
        let counts: Vec<_> = counts.iter().filter(|count| count.queue == view.queue).collect();
        let tasks = |state| counts.iter().find(|count| count.state == state).map_or(0, |count| count.tasks);
        let serving = workers.iter().filter(|worker| worker.queues.contains(&view.queue));
        let ready = |at: Timestamp| now.duration_since(at).as_millis().max(0) as u64;
        Self {
            queue: view.queue.to_string(),
            pending: tasks(TaskState::Pending),
            later: tasks(TaskState::Later),
            running: tasks(TaskState::Leased),
            waiting: tasks(TaskState::Waiting),
            more: counts.iter().any(|count| count.more),
            oldest_ready_ms: view.oldest_ready_at.map(ready),
            paused: view.paused_at.is_some(),
            workers: serving.clone().count() as u64,
            slots: serving.map(|worker| u64::from(worker.capacity.slots)).sum(),
            lately: lately.iter().find(|totals| totals.queue == view.queue).cloned(),
        }
    }
}

fn attention(queues: &[QueueLine], schedules: &[ScheduleView]) -> Vec<Attention> {
    let paused = queues.iter().filter(|queue| queue.paused).map(|queue| Attention {
        code: "queue_paused",
        name: queue.queue.clone(),
        hint: format!("laneway queues resume {}", queue.queue),
    });
    let alone = queues.iter().filter(|queue| queue.workers == 0 && queue.pending > 0);
    let alone = alone.map(|queue| Attention {
        code: "no_worker",
        name: queue.queue.clone(),
        hint: format!("laneway worker run --queues {}", queue.queue),
    });
    let late = schedules.iter().filter(|view| view.overdue.is_some_and(|overdue| overdue > SCHEDULE_LATE));
    let late = late.map(|view| Attention {
        code: "schedule_late",
        name: view.schedule.name.to_string(),
        hint: format!("workers fire schedules; laneway schedules show {}", view.schedule.name),
    });
    paused.chain(alone).chain(late).collect()
}

/// What is being typed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SuggestQuery {
    /// `queue`, `kind`, `state`, `worker` or `schedule`.
    field: String,
    /// How it begins.
    #[serde(default)]
    prefix: String,
}

/// What it may become.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Suggestions {
    /// At most 20, in order.
    values: Vec<String>,
}

/// Values of a field that begin like this, to complete a query.
#[utoipa::path(
    get, path = "/api/v1/stats/suggest", tag = "stats", security(("token" = ["read"])), params(SuggestQuery),
    responses((status = 200, body = Suggestions), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn suggest(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<SuggestQuery>,
) -> Result<Json<Suggestions>, Problem> {
    let mut values = match query.field.as_str() {
        "queue" => app.store.queues().await?.into_iter().map(|view| view.queue.into()).collect(),
        "kind" => kinds(&app).await?,
        "state" => TaskState::ALL.map(|state| state.as_str().to_owned()).to_vec(),
        "worker" => {
            let workers = app.store.workers().await?;
            workers.iter().map(|worker| format!("w-{}", &worker.session.to_string()[..8])).collect()
        }
        "schedule" => {
            let schedules = app.store.schedules(None, SCHEDULES_MAX).await?;
            schedules.into_iter().map(|view| view.schedule.name.into()).collect()
        }
        other => {
            let problem = format!(
                "`{}` is unknown; one of: queue, kind, state, worker, schedule",
                other.escape_debug()
            );
            return Err(InvalidInput::new(Code::InvalidName, "field", problem).into());
        }
    };
    values.retain(|value| value.starts_with(&query.prefix));
    values.sort_unstable();
    values.dedup();
    values.truncate(SUGGESTIONS_MAX);
    Ok(Json(Suggestions { values }))
}

/// The kinds that tasks have and workers handle.
async fn kinds(app: &App) -> Result<Vec<String>, Problem> {
    let mut kinds = vec![];
    for view in app.store.queues().await? {
        kinds.extend(app.store.counts_by_kind(&view.queue).await?.into_iter().map(|count| count.kind.into()));
    }
    for worker in app.store.workers().await? {
        kinds.extend(worker.kinds.names().unwrap_or_default().into_iter().map(ToOwned::to_owned));
    }
    Ok(kinds)
}
