//! Schedules.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Code, InvalidInput, Json, Missed, Overlap, Rule, Schedule, ScheduleName, ScheduleView, TaskId,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::TaskRequest;
use crate::etag::Settled;

/// A schedule: by cron in a zone, or every so often.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleRequest {
    /// What it is called, where the path does not say.
    pub name: Option<String>,
    /// Five fields, or six with seconds first: `30 2 * * *`.
    cron: Option<String>,
    /// The zone whose clocks count, such as `Europe/Berlin`. `UTC`.
    zone: Option<String>,
    /// The interval, in place of `cron`.
    every_ms: Option<u64>,
    /// What it enqueues.
    task: TaskRequest,
    /// What becomes of missed fires: `skip` (if none is given), `once`, or `{"all": {"cap": 10}}`.
    #[schema(value_type = Option<serde_json::Value>)]
    missed: Option<Missed>,
    /// Whether it fires while its last task is open: `allow` (if none is given) or `skip_while_open`.
    #[schema(value_type = Option<String>)]
    overlap: Option<Overlap>,
}

impl ScheduleRequest {
    /// `path`: the name that the path has, if it has one.
    pub(crate) fn into_schedule(self, path: Option<String>) -> Result<Schedule, InvalidInput> {
        let name = match (path, self.name) {
            (Some(path), Some(name)) if path != name => {
                let problem =
                    format!("is `{}`, and the path says otherwise; leave it out", name.escape_debug());
                return Err(InvalidInput::new(Code::InvalidName, "name", problem));
            }
            (None, None) => {
                return Err(InvalidInput::new(Code::InvalidName, "name", "is missing; a schedule has one"));
            }
            (path, name) => ScheduleName::new(path.or(name).unwrap_or_default())?,
        };
        let rule = rule(self.cron, self.zone, self.every_ms)?;
        Ok(Schedule::new(name, rule, self.task.into_task()?)
            .missed(self.missed.unwrap_or_default())
            .overlap(self.overlap.unwrap_or_default()))
    }
}

impl From<&Schedule> for ScheduleRequest {
    fn from(schedule: &Schedule) -> Self {
        let (cron, zone, every_ms) = shown_rule(schedule.rule.clone());
        Self {
            name: Some(schedule.name.to_string()),
            cron,
            zone,
            every_ms,
            task: TaskRequest::from(&schedule.task),
            missed: Some(schedule.missed),
            overlap: Some(schedule.overlap),
        }
    }
}

/// Changes to a schedule; what is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleChange {
    /// Another expression, or one in place of an interval.
    cron: Option<String>,
    /// The zone whose clocks count.
    zone: Option<String>,
    /// Another interval, or one in place of an expression.
    every_ms: Option<u64>,
    /// What it enqueues, whole.
    task: Option<TaskRequest>,
    /// What becomes of missed fires.
    #[schema(value_type = Option<serde_json::Value>)]
    missed: Option<Missed>,
    /// Whether it fires while its last task is open.
    #[schema(value_type = Option<String>)]
    overlap: Option<Overlap>,
}

impl ScheduleChange {
    /// The schedule with these changes.
    pub(crate) fn applied_to(self, mut schedule: Schedule) -> Result<Schedule, InvalidInput> {
        schedule.rule = match (self.cron, self.zone, self.every_ms, schedule.rule) {
            (None, None, None, rule) => rule,
            (cron, zone, None, Rule::Cron { expression, zone: old }) => {
                Rule::cron(cron.unwrap_or(expression), zone.unwrap_or(old))
            }
            (cron, zone, every_ms, _) => rule(cron, zone, every_ms)?,
        };
        if let Some(task) = self.task {
            schedule.task = task.into_task()?;
        }
        schedule.missed = self.missed.unwrap_or(schedule.missed);
        schedule.overlap = self.overlap.unwrap_or(schedule.overlap);
        Ok(schedule)
    }
}

fn rule(cron: Option<String>, zone: Option<String>, every_ms: Option<u64>) -> Result<Rule, InvalidInput> {
    let refused = |problem| Err(InvalidInput::new(Code::InvalidSchedule, "cron", problem));
    match (cron, every_ms) {
        (Some(expression), None) => Ok(Rule::cron(expression, zone.unwrap_or_else(|| "UTC".to_owned()))),
        (None, Some(_)) if zone.is_some() => refused("is missing; a zone is of use only with one"),
        (None, Some(every)) => Ok(Rule::Every(Duration::from_millis(every))),
        (None, None) => refused("and every_ms are both missing; give one of them"),
        (Some(_), Some(_)) => refused("and every_ms are both given; give one of them"),
    }
}

/// Expression and zone, or the interval.
fn shown_rule(rule: Rule) -> (Option<String>, Option<String>, Option<u64>) {
    match rule {
        Rule::Cron { expression, zone } => (Some(expression), Some(zone), None),
        Rule::Every(interval) => (None, None, Some(interval.as_millis() as u64)),
    }
}

/// A rule whose fires are asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PreviewQuery {
    /// Five fields, or six with seconds first.
    expr: Option<String>,
    /// The zone whose clocks count. `UTC`.
    tz: Option<String>,
    /// The interval, in place of `expr`.
    every_ms: Option<u64>,
    /// How many fires: 1 to 100. 5.
    n: Option<usize>,
}

impl PreviewQuery {
    pub(crate) fn preview(self) -> Result<Vec<Timestamp>, InvalidInput> {
        rule(self.expr, self.tz, self.every_ms)?.preview(Timestamp::now(), self.n.unwrap_or(5))
    }
}

/// Schedules by name.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Schedules {
    pub schedules: Vec<ShownSchedule>,
}

/// The task that a schedule has enqueued.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct RanTask {
    /// Its number.
    pub task: i64,
}

/// A schedule as it is now.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ShownSchedule {
    /// What it is called.
    name: String,
    /// Its cron expression.
    cron: Option<String>,
    /// The zone whose clocks count.
    zone: Option<String>,
    /// Its interval.
    every_ms: Option<u64>,
    /// The kind of what it enqueues.
    kind: String,
    /// The queue of what it enqueues.
    queue: String,
    /// The payload of what it enqueues.
    #[schema(value_type = serde_json::Value)]
    payload: Json,
    /// What it enqueues, whole.
    task: TaskRequest,
    /// What becomes of missed fires.
    #[schema(value_type = serde_json::Value)]
    missed: Missed,
    /// Whether it fires while its last task is open.
    #[schema(value_type = String)]
    overlap: Overlap,
    /// When it got its rule: intervals are counted from here.
    #[schema(value_type = String)]
    anchor_at: Timestamp,
    /// Since when it is paused.
    #[schema(value_type = Option<String>)]
    paused_at: Option<Timestamp>,
    /// When it fires next.
    #[schema(value_type = Option<String>)]
    next_fire_at: Option<Timestamp>,
    /// The last fire that was dealt with.
    #[schema(value_type = Option<String>)]
    last_fire_at: Option<Timestamp>,
    /// The task that was enqueued last.
    last_task: Option<i64>,
    /// For how long its next fire has been due.
    overdue_ms: Option<u64>,
}

impl Settled for ShownSchedule {
    fn settings(&self) -> serde_json::Value {
        serde_json::json!([
            self.cron,
            self.zone,
            self.every_ms,
            self.task,
            self.missed,
            self.overlap,
            self.paused_at
        ])
    }
}

impl From<ScheduleView> for ShownSchedule {
    fn from(view: ScheduleView) -> Self {
        let task = TaskRequest::from(&view.schedule.task);
        let (cron, zone, every_ms) = shown_rule(view.schedule.rule);
        Self {
            name: view.schedule.name.into(),
            cron,
            zone,
            every_ms,
            kind: view.schedule.task.kind.into(),
            queue: view.schedule.task.queue.into(),
            payload: view.schedule.task.payload,
            task,
            missed: view.schedule.missed,
            overlap: view.schedule.overlap,
            anchor_at: view.anchor_at,
            paused_at: view.paused_at,
            next_fire_at: view.next_fire_at,
            last_fire_at: view.last_fire_at,
            last_task: view.last_task.map(|task| task.0),
            overdue_ms: view.overdue.map(|overdue| overdue.as_millis() as u64),
        }
    }
}

impl TryFrom<ShownSchedule> for ScheduleView {
    type Error = InvalidInput;

    fn try_from(shown: ShownSchedule) -> Result<Self, InvalidInput> {
        let (name, rule) = (ScheduleName::new(shown.name)?, rule(shown.cron, shown.zone, shown.every_ms)?);
        let schedule = Schedule::new(name, rule, shown.task.into_task()?);
        Ok(Self {
            schedule: schedule.missed(shown.missed).overlap(shown.overlap),
            anchor_at: shown.anchor_at,
            paused_at: shown.paused_at,
            next_fire_at: shown.next_fire_at,
            last_fire_at: shown.last_fire_at,
            last_task: shown.last_task.map(TaskId),
            overdue: shown.overdue_ms.map(Duration::from_millis),
        })
    }
}
