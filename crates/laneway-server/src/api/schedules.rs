//! Schedules.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use laneway_core::{Ran, ScheduleName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Changed;
use crate::access::{Caller, Operate, Read};
use crate::etag::{Expected, IfMatch, Tagged};
use crate::input::{Asked, Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::wire::schedule::{
    PreviewQuery, RanTask, ScheduleChange, ScheduleRequest, Schedules, ShownSchedule,
};

fn missing(name: &ScheduleName) -> Problem {
    Problem::not_found(format!("schedule `{name}`"))
}

/// Which schedules are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScheduleQuery {
    /// Only those after this name.
    after: Option<String>,
    /// How many: 1 to 500. 100.
    limit: Option<u32>,
}

/// List schedules by name.
#[utoipa::path(
    get, path = "/api/v1/schedules", tag = "schedules", security(("token" = ["read"])), params(ScheduleQuery),
    responses((status = 200, body = Schedules), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<ScheduleQuery>,
) -> Result<Json<Schedules>, Problem> {
    let after = query.after.map(ScheduleName::new).transpose()?;
    let found = app.store.schedules(after.as_ref(), query.limit.unwrap_or(100)).await?;
    Ok(Json(Schedules { schedules: found.into_iter().map(ShownSchedule::from).collect() }))
}

/// One schedule.
#[utoipa::path(
    get, path = "/api/v1/schedules/{name}", tag = "schedules", security(("token" = ["read"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = ShownSchedule), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn get(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Tagged<ShownSchedule>, Problem> {
    let name = ScheduleName::new(name)?;
    let found = app.store.schedule(&name).await?;
    found.map(|view| Tagged(ShownSchedule::from(view))).ok_or_else(|| missing(&name))
}

/// Refuses a change of a schedule that is not as the caller has seen it.
async fn check(app: &App, name: &ScheduleName, expected: &Expected) -> Result<(), Problem> {
    if expected.is_given() {
        let found = app.store.schedule(name).await?.map(ShownSchedule::from);
        expected.check(found.as_ref())?;
    }
    Ok(())
}

/// Make a schedule that does not exist yet.
#[utoipa::path(
    post, path = "/api/v1/schedules", tag = "schedules", security(("token" = ["operate"])), request_body = ScheduleRequest,
    responses((status = 201, body = ShownSchedule), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn create(
    caller: Caller<Operate>,
    State(app): State<App>,
    Content(request): Content<ScheduleRequest>,
) -> Result<(StatusCode, Tagged<ShownSchedule>), Problem> {
    let schedule = request.into_schedule(None)?;
    if app.store.schedule(&schedule.name).await?.is_some() {
        let detail = format!("schedule `{}` is there already; change it with PATCH or PUT", schedule.name);
        return Err(Problem::new("schedule_exists", detail).field("name"));
    }
    let made = app.store.put_schedule_by(&caller.actor, schedule).await?;
    Ok((StatusCode::CREATED, Tagged(made.into())))
}

/// Change a schedule; what is left out stays as it is.
#[utoipa::path(
    patch, path = "/api/v1/schedules/{name}", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name"), IfMatch), request_body = ScheduleChange,
    responses((status = 200, body = ShownSchedule), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn change(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
    expected: Expected,
    Content(change): Content<ScheduleChange>,
) -> Result<Tagged<ShownSchedule>, Problem> {
    let name = ScheduleName::new(name)?;
    check(&app, &name, &expected).await?;
    let view = app.store.schedule(&name).await?.ok_or_else(|| missing(&name))?;
    let schedule = change.applied_to(view.schedule)?;
    Ok(Tagged(app.store.put_schedule_by(&caller.actor, schedule).await?.into()))
}

/// Make a schedule, or change the one of that name.
#[utoipa::path(
    put, path = "/api/v1/schedules/{name}", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name"), IfMatch), request_body = ScheduleRequest,
    responses((status = 200, body = ShownSchedule), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn put(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
    expected: Expected,
    Content(request): Content<ScheduleRequest>,
) -> Result<Tagged<ShownSchedule>, Problem> {
    let schedule = request.into_schedule(Some(name))?;
    check(&app, &schedule.name, &expected).await?;
    Ok(Tagged(app.store.put_schedule_by(&caller.actor, schedule).await?.into()))
}

/// Remove a schedule. The tasks that it has enqueued stay.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{name}", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name"), IfMatch),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
    expected: Expected,
) -> Result<Json<Changed>, Problem> {
    let name = ScheduleName::new(name)?;
    check(&app, &name, &expected).await?;
    match app.store.remove_schedule_by(&caller.actor, &name).await? {
        true => Ok(Json(Changed { changed: true })),
        false => Err(missing(&name)),
    }
}

/// Answers whether something changed; a schedule that is not there is unknown.
async fn changed(app: &App, name: &ScheduleName, changed: bool) -> Result<Json<Changed>, Problem> {
    if !changed && app.store.schedule(name).await?.is_none() {
        return Err(missing(name));
    }
    Ok(Json(Changed { changed }))
}

/// Stop a schedule from firing.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/pause", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn pause(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    let name = ScheduleName::new(name)?;
    let done = app.store.pause_schedule_by(&caller.actor, &name).await?;
    changed(&app, &name, done).await
}

/// Let a schedule go on with its first fire after now.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/resume", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resume(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<Changed>, Problem> {
    let name = ScheduleName::new(name)?;
    let done = app.store.resume_schedule_by(&caller.actor, &name).await?;
    changed(&app, &name, done).await
}

/// Enqueue the task of a schedule now, paused or not.
#[utoipa::path(
    post, path = "/api/v1/schedules/{name}/run", tag = "schedules", security(("token" = ["operate"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 201, body = RanTask), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn run(
    caller: Caller<Operate>,
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<(StatusCode, Json<RanTask>), Problem> {
    let name = ScheduleName::new(name)?;
    match app.store.run_schedule_by(&caller.actor, &name).await? {
        Ran::Enqueued(task) => Ok((StatusCode::CREATED, Json(RanTask { task: task.0 }))),
        Ran::Open(task) => {
            let detail = format!("task {task} of schedule `{name}` is open; wait until it has ended");
            Err(Problem::new("schedule_open", detail).task(task))
        }
        Ran::NotFound => Err(missing(&name)),
    }
}

/// Fire times.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Fires {
    /// In order.
    #[schema(value_type = Vec<String>)]
    fires: Vec<Timestamp>,
}

/// How many fires are asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NextQuery {
    /// 1 to 100. 5.
    n: Option<usize>,
}

/// The next fires of a schedule. None while it is paused.
#[utoipa::path(
    get, path = "/api/v1/schedules/{name}/next", tag = "schedules", security(("token" = ["read"])),
    params(("name" = String, Path, description = "Its name"), NextQuery),
    responses((status = 200, body = Fires), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn next(
    _: Caller<Read>,
    State(app): State<App>,
    Segments(name): Segments<String>,
    Asked(query): Asked<NextQuery>,
) -> Result<Json<Fires>, Problem> {
    let name = ScheduleName::new(name)?;
    let view = app.store.schedule(&name).await?.ok_or_else(|| missing(&name))?;
    Ok(Json(Fires { fires: view.preview(query.n.unwrap_or(5))? }))
}

/// When a schedule with this rule would fire.
#[utoipa::path(
    get, path = "/api/v1/schedules/preview", tag = "schedules", security(("token" = ["read"])), params(PreviewQuery),
    responses((status = 200, body = Fires), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn preview(
    _: Caller<Read>,
    Asked(query): Asked<PreviewQuery>,
) -> Result<Json<Fires>, Problem> {
    Ok(Json(Fires { fires: query.preview()? }))
}
