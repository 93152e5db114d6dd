//! Schedules in the model: what is due after how many units of time, and what a fire then enqueues.

use std::collections::BTreeMap;

use laneway_core::{Json, Missed, NewTask, Overlap, Ran, Rule, Schedule, ScheduleName, ScheduleView, TaskId};

use super::UNIT;
use super::run::{same, told};
use super::script::{KINDS, QUEUES, SCHEDULES, ScheduleOp};
use super::state::{Model, Task};
use crate::store::{TestStore, kind, queue};

/// A schedule, in units of time. Fire times are the moments of `anchor + n * interval`.
#[derive(Debug)]
pub(super) struct Scheduled {
    anchor: u64,
    interval: u64,
    /// None while it is paused.
    next: Option<u64>,
    /// A task for every missed fire, or one for all.
    all: bool,
    skip_open: bool,
    last: Option<TaskId>,
}

impl Scheduled {
    pub fn is_enabled(&self) -> bool {
        self.next.is_some()
    }

    fn next_after(&self, now: u64) -> u64 {
        self.anchor + ((now - self.anchor) / self.interval + 1) * self.interval
    }
}

/// Carries out an operation on the store and on the model, and compares the answers.
pub(super) async fn carry_out(store: &TestStore, model: &mut Model, op: &ScheduleOp) -> Result<(), String> {
    match op {
        ScheduleOp::Put { which, interval, all, skip_open } => {
            put(store, model, *which, *interval, *all, *skip_open).await
        }
        ScheduleOp::Fire => fire(store, model).await,
        ScheduleOp::Pause { which } => {
            let scheduled = model.schedules.get_mut(&name(*which));
            let was_enabled = scheduled.is_some_and(|scheduled| scheduled.next.take().is_some());
            same("pause_schedule", told(store.pause_schedule(&name(*which)).await)?, was_enabled)
        }
        ScheduleOp::Resume { which } => {
            let paused = model.schedules.get_mut(&name(*which)).filter(|scheduled| scheduled.next.is_none());
            let was_paused = paused.is_some();
            if let Some(scheduled) = paused {
                scheduled.next = Some(scheduled.next_after(model.now));
            }
            same("resume_schedule", told(store.resume_schedule(&name(*which)).await)?, was_paused)
        }
        ScheduleOp::Run { which } => run(store, model, *which).await,
        ScheduleOp::Remove { which } => {
            let was_there = model.schedules.remove(&name(*which)).is_some();
            same("remove_schedule", told(store.remove_schedule(&name(*which)).await)?, was_there)
        }
    }
}

async fn put(
    store: &TestStore,
    model: &mut Model,
    which: usize,
    interval: u64,
    all: bool,
    skip_open: bool,
) -> Result<(), String> {
    let task = NewTask::new(kind(KINDS[0]), Json::default()).queue(queue(QUEUES[0]));
    let missed = if all { Missed::All { cap: 1_000 } } else { Missed::Once };
    let overlap = if skip_open { Overlap::SkipWhileOpen } else { Overlap::Allow };
    let schedule = Schedule::new(name(which), Rule::Every(UNIT * interval as u32), task);
    told(store.put_schedule(schedule.missed(missed).overlap(overlap)).await)?;

    let now = model.now;
    let new = Scheduled { anchor: now, interval: 0, next: Some(now), all, skip_open, last: None };
    let scheduled = model.schedules.entry(name(which)).or_insert(new);
    (scheduled.all, scheduled.skip_open) = (all, skip_open);
    if scheduled.interval != interval {
        (scheduled.anchor, scheduled.interval) = (now, interval);
        scheduled.next = scheduled.next.map(|_| now + interval);
    }
    Ok(())
}

async fn fire(store: &TestStore, model: &mut Model) -> Result<(), String> {
    let fired = told(store.fire_due().await)?;
    let mut tasks: BTreeMap<ScheduleName, Vec<TaskId>> = BTreeMap::new();
    for id in fired.tasks {
        let view = told(store.get(id).await)?.ok_or_else(|| format!("fired task {id} is gone"))?;
        let fire = view.options.fire.ok_or_else(|| format!("fired task {id} knows no fire"))?;
        tasks.entry(fire.schedule).or_default().push(id);
    }
    let names: Vec<_> = model.schedules.keys().cloned().collect();
    let mut skipped = 0;
    for name in names {
        let Some(expected) = due(model, &name) else { continue };
        let found = tasks.remove(&name).unwrap_or_default();
        same(&format!("tasks fired by `{name}`"), found.len() as u64, expected)?;
        skipped += u32::from(expected == 0);
        found.iter().for_each(|id| enqueued(model, *id));
        let now = model.now;
        let scheduled = model.schedules.get_mut(&name).expect("just listed");
        scheduled.next = Some(scheduled.next_after(now));
        scheduled.last = found.last().copied().or(scheduled.last);
    }
    same("fired before their time", tasks, BTreeMap::new())?;
    same("skipped", fired.skipped, skipped)
}

/// How many tasks a schedule enqueues now; none when it is not due.
fn due(model: &Model, name: &ScheduleName) -> Option<u64> {
    let scheduled = &model.schedules[name];
    let next = scheduled.next.filter(|next| *next <= model.now)?;
    Some(match open_task(model, scheduled) {
        Some(_) => 0,
        None if scheduled.all && !scheduled.skip_open => (model.now - next) / scheduled.interval + 1,
        None => 1,
    })
}

async fn run(store: &TestStore, model: &mut Model, which: usize) -> Result<(), String> {
    let answer = told(store.run_schedule(&name(which)).await)?;
    let Some(scheduled) = model.schedules.get(&name(which)) else {
        return same("run_schedule", answer, Ran::NotFound);
    };
    match (open_task(model, scheduled), answer) {
        (None, Ran::Enqueued(id)) => {
            enqueued(model, id);
            model.schedules.get_mut(&name(which)).expect("just found").last = Some(id);
            Ok(())
        }
        (Some(open), answer) => same("run_schedule", answer, Ran::Open(open)),
        (None, answer) => Err(format!("run_schedule was answered {answer:?}")),
    }
}

/// The last task, if it keeps the schedule from firing.
fn open_task(model: &Model, scheduled: &Scheduled) -> Option<TaskId> {
    let is_open = |id: &TaskId| model.tasks.get(id).is_some_and(Task::is_open);
    scheduled.last.filter(|last| scheduled.skip_open && is_open(last))
}

fn enqueued(model: &mut Model, id: TaskId) {
    let task = Task { queue: queue(QUEUES[0]), is_scheduled: true, ..Task::of(kind(KINDS[0])) };
    model.touched.insert(id);
    model.tasks.insert(id, task);
}

/// Compares all schedules.
pub(super) async fn compare(store: &TestStore, model: &Model) -> Result<(), String> {
    let found = told(store.schedules(None, 500).await)?;
    let names: Vec<_> = found.iter().map(|view| &view.schedule.name).collect();
    same("schedules", names, model.schedules.keys().collect())?;
    for (view, (name, scheduled)) in found.iter().zip(&model.schedules) {
        same(&format!("next fire of `{name}`"), next_in_units(view, scheduled.anchor), scheduled.next)?;
        same(&format!("paused_at of `{name}`"), view.paused_at.is_some(), scheduled.next.is_none())?;
        same(&format!("last task of `{name}`"), view.last_task, scheduled.last)?;
    }
    Ok(())
}

fn next_in_units(view: &ScheduleView, anchor: u64) -> Option<u64> {
    let since = view.next_fire_at?.duration_since(view.anchor_at);
    Some(anchor + since.as_secs() as u64 / UNIT.as_secs())
}

fn name(which: usize) -> ScheduleName {
    ScheduleName::new(SCHEDULES[which % SCHEDULES.len()]).expect("valid names")
}
