//! Schedules: their fires, and what operators may do with them.
//!
//! Each verb reads the schedule, computes with the time of its command, and writes, all in one step of the one writer.
//! A refused command is undone.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::{Map, Value, json};

use laneway_core::{
    Actor, Fired, InvalidInput, Limits, Missed, Overlap, Ran, Rule, Schedule, ScheduleName, ScheduleView,
    StoreError, TaskId,
};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::enqueue;
use crate::error::{refusal_in, refused, unreadable};
use crate::look;
use crate::row::{self, Sql};
use crate::writer::Step;

/// Schedules that one step fires at most.
const FIRE_MAX: usize = 100;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select name, cron, zone, every_us, anchor_at, missed, missed_cap, skip_open, paused_at, next_fire_at, ",
            "last_fire_at, last_task, task from schedule ",
            $rest
        )
    };
}

const GET: &str = select!("where name = ?1");
const PAGE: &str = select!("where name > ?1 order by name limit ?2");
const DUE: &str = select!("where next_fire_at <= ?1 order by next_fire_at limit ?2");

const PUT: &str = "
insert or replace into schedule (
    name,
    cron,
    zone,
    every_us,
    anchor_at,
    missed,
    missed_cap,
    skip_open,
    paused_at,
    next_fire_at,
    last_fire_at,
    last_task,
    task
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

const MOVE_ON: &str = "
update schedule
set next_fire_at = ?2,
    last_fire_at = ?3,
    last_task = coalesce(?4, last_task)
where name = ?1";

const REMOVE: &str = "delete from schedule where name = ?1";
const PAUSE: &str =
    "update schedule set paused_at = ?2, next_fire_at = null where name = ?1 and paused_at is null";
const RESUME: &str = "update schedule set paused_at = null, next_fire_at = ?2 where name = ?1";
const SET_LAST_TASK: &str = "update schedule set last_task = ?2 where name = ?1";

/// Fires what is due.
pub(crate) fn fire_due(step: &mut Step<'_>, limits: &Limits) -> rusqlite::Result<Fired> {
    let now = step.now;
    let due = step.db.all(DUE, params![now, FIRE_MAX as i64], |row| Ok((name(row)?, view(row, now))))?;
    let is_full = due.len() == FIRE_MAX;
    let mut fired = Fired::default();
    for (name, view) in due {
        match view {
            Ok(view) => fire(step, limits, &view, &mut fired)?,
            Err(error) => stuck(name, &error, &mut fired),
        }
    }
    fired.more = is_full && fired.stuck.len() < FIRE_MAX;
    Ok(fired)
}

/// One schedule that cannot be computed must not hold up the others.
fn stuck(name: ScheduleName, error: &impl std::error::Error, fired: &mut Fired) {
    tracing::error!(schedule = %name, %error, "a schedule cannot fire");
    fired.stuck.push(name);
}

fn fire(
    step: &mut Step<'_>,
    limits: &Limits,
    view: &ScheduleView,
    fired: &mut Fired,
) -> rusqlite::Result<()> {
    let name = &view.schedule.name;
    let (pending, due) = match (view.next_fire_at, view.due(row::timestamp(step.now)?)) {
        (Some(pending), Ok(Some(due))) => (pending, due),
        (_, Ok(_)) => return Ok(()),
        (_, Err(refused)) => {
            stuck(name.clone(), &refused, fired);
            return Ok(());
        }
    };
    let mut tasks: Vec<_> = due.fires.iter().map(|at| view.task(Some(*at))).collect();
    if open_task(step.db, view)?.is_some() {
        tasks.clear();
    }
    let ids: Vec<TaskId> = match enqueue::enqueue(step, limits, &tasks) {
        Ok(answers) => answers.iter().filter(|answer| answer.is_new()).map(|answer| answer.id).collect(),
        Err(error) => match refusal_in(&error) {
            Some(StoreError::KeyTaken { .. }) => vec![],
            Some(refused) => {
                stuck(name.clone(), &refused, fired);
                return Ok(());
            }
            None => return Err(error),
        },
    };
    fired.skipped += u32::from(ids.is_empty());
    let last = due.fires.last().copied().unwrap_or(pending);
    let (next, last) = (due.next.as_microsecond(), last.as_microsecond());
    step.db.run(MOVE_ON, params![name.as_str(), next, last, ids.last().map(|id| id.0)])?;
    fired.tasks.extend(ids);
    Ok(())
}

/// Makes or changes a schedule, whose content was checked.
pub(crate) fn put(step: &mut Step<'_>, actor: &Actor, schedule: Schedule) -> rusqlite::Result<ScheduleView> {
    let seen = get(step.db, &schedule.name, step.now)?;
    let before = seen.as_ref().map(shown);
    let view = ScheduleView::put(seen, schedule.stored(), row::timestamp(step.now)?).map_err(invalid)?;
    write(step, &view)?;
    let after = Some(shown(&view));
    if before != after {
        record(step, actor, "put_schedule", &view.schedule.name, &[], before, after)?;
    }
    if let Some(next) = view.next_fire_at {
        step.news.due(next.as_microsecond());
    }
    Ok(view)
}

/// A schedule as the audit shows it.
fn shown(view: &ScheduleView) -> Value {
    let Schedule { rule, task, missed, overlap, .. } = &view.schedule;
    let mut shown = Map::new();
    let mut show = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    match rule {
        Rule::Cron { expression, zone } => {
            show("cron", json!(expression));
            show("zone", json!(zone));
        }
        Rule::Every(interval) => {
            show("every_ms", json!(interval.as_millis() as u64));
        }
    }
    match missed {
        Missed::Skip => show("missed", json!("skip")),
        Missed::Once => show("missed", json!("once")),
        Missed::All { cap } => {
            show("missed_cap", json!(cap));
            show("missed", json!("all"))
        }
    };
    show("overlap", json!(overlap));
    show("paused", json!(view.paused_at.is_some()));
    show("task", json!(task));
    Value::Object(shown)
}

fn record(
    step: &Step<'_>,
    actor: &Actor,
    action: &str,
    name: &ScheduleName,
    tasks: &[i64],
    before: Option<Value>,
    after: Option<Value>,
) -> rusqlite::Result<()> {
    let subject = format!("schedule {name}");
    audit::record(step, actor, Record { action, subject, tasks, before, after })
}

fn invalid(input: InvalidInput) -> rusqlite::Error {
    refused(input.into())
}

fn write(step: &Step<'_>, view: &ScheduleView) -> rusqlite::Result<usize> {
    let schedule = &view.schedule;
    let (cron, zone, every_us) = match &schedule.rule {
        Rule::Cron { expression, zone } => (Some(expression), Some(zone), None),
        Rule::Every(interval) => (None, None, Some(micros(*interval))),
    };
    let (missed, cap) = match schedule.missed {
        Missed::Skip => ("skip", None),
        Missed::Once => ("once", None),
        Missed::All { cap } => ("all", Some(cap)),
    };
    let task = serde_json::to_string(&schedule.task)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let at = |time: Option<Timestamp>| time.map(Timestamp::as_microsecond);
    let row = params![
        schedule.name.as_str(),
        cron,
        zone,
        every_us,
        view.anchor_at.as_microsecond(),
        missed,
        cap,
        schedule.overlap == Overlap::SkipWhileOpen,
        at(view.paused_at),
        at(view.next_fire_at),
        at(view.last_fire_at),
        view.last_task.map(|task| task.0),
        task,
    ];
    step.db.run(PUT, row)
}

/// Removes a schedule. False when there is none.
pub(crate) fn remove(step: &Step<'_>, actor: &Actor, name: &ScheduleName) -> rusqlite::Result<bool> {
    let Some(view) = get(step.db, name, step.now)? else { return Ok(false) };
    step.db.run(REMOVE, [name.as_str()])?;
    record(step, actor, "remove_schedule", name, &[], Some(shown(&view)), None)?;
    Ok(true)
}

/// Stops a schedule. False when it was paused before, or there is none.
pub(crate) fn pause(step: &Step<'_>, actor: &Actor, name: &ScheduleName) -> rusqlite::Result<bool> {
    let is_new = step.db.run(PAUSE, params![name.as_str(), step.now])? > 0;
    if is_new {
        let (before, after) = (Some(json!({"paused": false})), Some(json!({"paused": true})));
        record(step, actor, "pause_schedule", name, &[], before, after)?;
    }
    Ok(is_new)
}

/// Lets a schedule go on. False when it was not paused, or there is none.
pub(crate) fn resume(step: &mut Step<'_>, actor: &Actor, name: &ScheduleName) -> rusqlite::Result<bool> {
    let seen = get(step.db, name, step.now)?;
    let Some(view) = seen.filter(|view| view.paused_at.is_some()) else { return Ok(false) };
    let next = view.next_after(row::timestamp(step.now)?).map_err(invalid)?.as_microsecond();
    step.db.run(RESUME, params![name.as_str(), next])?;
    let (before, after) = (Some(json!({"paused": true})), Some(json!({"paused": false})));
    record(step, actor, "resume_schedule", name, &[], before, after)?;
    step.news.due(next);
    Ok(true)
}

/// Enqueues the task of a schedule and leaves its next fire alone.
pub(crate) fn run(
    step: &mut Step<'_>,
    actor: &Actor,
    limits: &Limits,
    name: &ScheduleName,
) -> rusqlite::Result<Ran> {
    let Some(view) = get(step.db, name, step.now)? else { return Ok(Ran::NotFound) };
    if let Some(open) = open_task(step.db, &view)? {
        return Ok(Ran::Open(open));
    }
    let answer = match enqueue::enqueue(step, limits, &[view.task(None)]) {
        Ok(answers) => answers[0],
        Err(error) => match refusal_in(&error) {
            Some(StoreError::KeyTaken { holder, .. }) => return Ok(Ran::Open(holder)),
            Some(refusal) => return Err(refused(refusal)),
            None => return Err(error),
        },
    };
    if !answer.is_new() {
        return Ok(Ran::Open(answer.id));
    }
    step.db.run(SET_LAST_TASK, params![name.as_str(), answer.id.0])?;
    record(step, actor, "run_schedule", name, &[answer.id.0], None, None)?;
    Ok(Ran::Enqueued(answer.id))
}

/// The last task, if it is open and the schedule may not overlap itself.
fn open_task(db: &Connection, view: &ScheduleView) -> rusqlite::Result<Option<TaskId>> {
    let (Overlap::SkipWhileOpen, Some(last)) = (view.schedule.overlap, view.last_task) else {
        return Ok(None);
    };
    let found = look::get(db, last)?;
    Ok(found.filter(|task| !task.state.has_ended()).map(|task| task.id))
}

/// A schedule as it is at `now`.
pub(crate) fn get(db: &Connection, name: &ScheduleName, now: i64) -> rusqlite::Result<Option<ScheduleView>> {
    db.first(GET, [name.as_str()], |row| view(row, now))
}

/// Up to `limit` schedules after a name.
pub(crate) fn page(
    db: &Connection,
    after: Option<&ScheduleName>,
    limit: u32,
    now: i64,
) -> rusqlite::Result<Vec<ScheduleView>> {
    let after = after.map_or("", ScheduleName::as_str);
    db.all(PAGE, params![after, limit], |row| view(row, now))
}

/// What is wrong with the next fires.
pub(crate) fn verify(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let all = db.all(select!(""), [], |row| view(row, 0))?;
    Ok(all.iter().filter_map(ScheduleView::problem).collect())
}

fn view(row: &Row<'_>, now: i64) -> rusqlite::Result<ScheduleView> {
    let rule = match (row.get(1)?, row.get(2)?) {
        (Some::<String>(expression), Some::<String>(zone)) => Rule::Cron { expression, zone },
        _ => Rule::Every(Duration::from_micros(row::count(row, 3)?)),
    };
    let missed = match (row.get_ref(5)?.as_str()?, row.get(6)?) {
        ("all", Some(cap)) => Missed::All { cap },
        ("once", _) => Missed::Once,
        _ => Missed::Skip,
    };
    let overlap = if row.get(7)? { Overlap::SkipWhileOpen } else { Overlap::Allow };
    let task = serde_json::from_str(row.get_ref(12)?.as_str()?).map_err(unreadable)?;
    let name = name(row)?;
    let at = |column| row.get::<_, Option<i64>>(column)?.map(row::timestamp).transpose();
    let next_fire_at = at(9)?;
    Ok(ScheduleView {
        schedule: Schedule { name, rule, task, missed, overlap },
        anchor_at: row::timestamp(row.get(4)?)?,
        paused_at: at(8)?,
        next_fire_at,
        last_fire_at: at(10)?,
        last_task: row.get::<_, Option<i64>>(11)?.map(TaskId),
        overdue: ScheduleView::overdue_at(next_fire_at, row::timestamp(now)?),
    })
}

fn name(row: &Row<'_>) -> rusqlite::Result<ScheduleName> {
    ScheduleName::new(row.get::<_, String>(0)?).map_err(unreadable)
}
