//! Schedules: tasks that are enqueued again and again, by cron or by interval.
//!
//! A store keeps a schedule with its one next fire time. Whoever calls [`Store::fire_due`](crate::Store::fire_due)
//! first after that time enqueues the task and moves the schedule on, in one transaction; all others find it moved.
//! When it fires is computed in `fires.rs`, from the database's time and never from ours.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fires::{Due, Fires};
use crate::id::TaskId;
use crate::name::ScheduleName;
use crate::task::{NewTask, When};
use crate::unique::Unique;
use crate::validate::{self, Code, InvalidInput, Limits};

/// A task that is enqueued again and again.
///
/// ```
/// use laneway_core::{Json, Kind, Missed, NewTask, Overlap, Rule, Schedule, ScheduleName};
///
/// let report = NewTask::new(Kind::new("report.daily")?, Json::default());
/// let schedule = Schedule::new(ScheduleName::new("daily report")?, Rule::cron("0 7 * * MON-FRI", "Europe/Berlin"), report)
///     .missed(Missed::Once)
///     .overlap(Overlap::SkipWhileOpen);
/// schedule.check(&Default::default())?;
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// What it is called.
    pub name: ScheduleName,
    /// When it fires.
    pub rule: Rule,
    /// What it enqueues. A delay counts from the moment it fires.
    pub task: NewTask,
    /// What becomes of fires that nobody was there for. They are skipped.
    pub missed: Missed,
    /// Whether it fires while its last task is open. It does.
    pub overlap: Overlap,
}

/// When a schedule fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// By the clocks of a time zone.
    Cron {
        /// Five fields, or six with seconds first: `30 2 * * *`.
        expression: String,
        /// An IANA name such as `Europe/Berlin`, or `UTC`.
        zone: String,
    },
    /// At this interval, counted from when the schedule got it. 1 s to 5 years, in whole microseconds.
    Every(Duration),
}

/// What becomes of fires that are found over a [minute](crate::fires::ON_TIME) late, because no worker was running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    #[default]
    Skip,
    /// One task for all fires that are due, in the name of the last one.
    Once,
    /// A task for each, oldest first; of more than `cap` only the last `cap`.
    All {
        /// 1 to 1000.
        cap: u32,
    },
}

/// Whether a schedule fires while its last task has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It does.
    #[default]
    Allow,
    /// The fire is skipped while the task of the fire before, or of the last run by hand, is pending, later, leased or
    /// waiting.
    SkipWhileOpen,
}

impl Rule {
    /// By cron in a time zone.
    pub fn cron(expression: impl Into<String>, zone: impl Into<String>) -> Self {
        Self::Cron { expression: expression.into(), zone: zone.into() }
    }

    /// The next `n` fires after `after` of a schedule that would get this rule then.
    ///
    /// ```
    /// use laneway_core::Rule;
    ///
    /// let fires = Rule::cron("30 2 * * *", "Europe/Berlin").preview("2026-03-28T12:00:00Z".parse().unwrap(), 2)?;
    /// // Clocks go from 02:00 to 03:00 that night, so the first fire is at 03:00.
    /// assert_eq!(fires[0].to_string(), "2026-03-29T01:00:00Z");
    /// assert_eq!(fires[1].to_string(), "2026-03-30T00:30:00Z");
    ///
    /// let refused = Rule::cron("0 0 30 2 *", "UTC").preview(fires[0], 1).unwrap_err();
    /// assert_eq!(refused.to_string(), "cron `0 0 30 2 *` never fires; no date satisfies all of its fields");
    /// # Ok::<(), laneway_core::InvalidInput>(())
    /// ```
    ///
    /// # Errors
    /// What [`Rule::check`] refuses; `out_of_range` for `n` outside 1 to 100.
    pub fn preview(&self, after: Timestamp, n: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        check_preview(n)?;
        self.check()?;
        Fires::of(self, after)?.preview(after, n)
    }

    /// Checks the expression and its zone, or the interval.
    ///
    /// # Errors
    /// `invalid_schedule` for an expression that is not understood, is over 256 bytes or can never fire, and for an
    /// unknown zone; `out_of_range` for an interval below a second or above five years.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let Self::Every(interval) = self else {
            return Fires::of(self, Timestamp::UNIX_EPOCH)?.check();
        };
        let range = 1..=validate::AHEAD_MAX.as_secs();
        if *interval <= validate::AHEAD_MAX && range.contains(&interval.as_secs()) {
            return Ok(());
        }
        let problem = format!("is {interval:?}; allowed is 1 s to {} days", range.end() / 86_400);
        Err(InvalidInput::new(Code::OutOfRange, "every", problem))
    }

    /// The rule as a store keeps it: intervals in whole microseconds.
    fn stored(self) -> Self {
        match self {
            Self::Every(interval) => Self::Every(Duration::from_micros(interval.as_micros() as u64)),
            cron => cron,
        }
    }
}

impl Schedule {
    /// A schedule that skips what it missed and may overlap itself.
    pub fn new(name: ScheduleName, rule: Rule, task: NewTask) -> Self {
        Self { name, rule: rule.stored(), task, missed: Missed::default(), overlap: Overlap::default() }
    }

    /// Says what becomes of missed fires.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Says whether it fires while its last task is open.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Checks everything that a store will not accept. Stores call it; nothing is changed when it fails.
    ///
    /// # Errors
    /// What [`Rule::check`] and [`NewTask::check`] refuse; `out_of_range` for a cap outside 1 to 1000 or for more than
    /// 64 MiB of payload to make up for; `invalid_schedule` for a task with a due time of its own or an idempotency key.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        self.rule.check()?;
        self.task.check(limits)?;
        if let When::At(due) = self.task.when {
            let problem =
                format!("is due at {due}; a scheduled task is due when it fires, or a delay after that");
            return Err(InvalidInput::new(Code::InvalidSchedule, "task", problem));
        }
        if self.task.unique.as_ref().is_some_and(Unique::is_store_wide) {
            let problem = "has an idempotency key; every fire is a task of its own, use a unique key";
            return Err(InvalidInput::new(Code::InvalidSchedule, "task", problem));
        }
        let Missed::All { cap } = self.missed else { return Ok(()) };
        validate::in_range("missed.cap", cap, 1..=validate::MISSED_CAP_MAX)?;
        let bytes = self.task.payload.as_str().len() * cap as usize;
        if bytes > validate::MISSED_BYTES_MAX {
            let limit = validate::MISSED_BYTES_MAX;
            let problem = format!("times the payload is {bytes} bytes, the limit is {limit}; lower the cap");
            return Err(InvalidInput::new(Code::OutOfRange, "missed.cap", problem));
        }
        Ok(())
    }

    /// The schedule in the form that a store keeps and gives back.
    pub fn stored(self) -> Self {
        Self { rule: self.rule.stored(), ..self }
    }
}

/// A schedule as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleView {
    /// What was put.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Intervals are counted from here: when the schedule got its rule.
    pub anchor_at: Timestamp,
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// When it fires next. None exactly while it is paused.
    pub next_fire_at: Option<Timestamp>,
    /// The last fire that was dealt with, also if it was skipped.
    pub last_fire_at: Option<Timestamp>,
    /// The task that was enqueued last, by a fire or by hand.
    pub last_task: Option<TaskId>,
    /// For how long its next fire has been due. A schedule that is overdue by more than a minute has no worker that
    /// looks after it.
    pub overdue: Option<Duration>,
}

impl ScheduleView {
    /// The next `n` fires: the stored one and those that follow. None while it is paused.
    ///
    /// # Errors
    /// `out_of_range` for `n` outside 1 to 100.
    pub fn preview(&self, n: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        check_preview(n)?;
        let Some(next) = self.next_fire_at else { return Ok(vec![]) };
        let following = self.fires()?.preview(next, n - 1)?;
        Ok([vec![next], following].concat())
    }

    /// For stores: what becomes of `seen`, or of nothing, when `schedule` is put at `now`.
    pub fn put(seen: Option<Self>, schedule: Schedule, now: Timestamp) -> Result<Self, InvalidInput> {
        let new = |schedule| Self {
            schedule,
            anchor_at: now,
            paused_at: None,
            next_fire_at: None,
            last_fire_at: None,
            last_task: None,
            overdue: None,
        };
        let mut view = match seen {
            Some(seen) if seen.schedule.rule == schedule.rule => return Ok(Self { schedule, ..seen }),
            Some(seen) => Self { schedule, anchor_at: now, overdue: None, ..seen },
            None => new(schedule),
        };
        if view.paused_at.is_none() {
            view.next_fire_at = Some(view.next_after(now)?);
        }
        Ok(view)
    }

    /// For stores: the next fire after `now`. Never one that was dealt with before, even if the clock went back.
    pub fn next_after(&self, now: Timestamp) -> Result<Timestamp, InvalidInput> {
        self.fires()?.next_after(self.last_fire_at.map_or(now, |last| last.max(now)))
    }

    /// For stores: what to do about a next fire that is due at `now`.
    pub fn due(&self, now: Timestamp) -> Result<Option<Due>, InvalidInput> {
        let Some(pending) = self.next_fire_at.filter(|pending| *pending <= now) else { return Ok(None) };
        let mut due = self.fires()?.due(pending, now, self.schedule.missed)?;
        if self.schedule.overlap == Overlap::SkipWhileOpen || self.schedule.task.unique.is_some() {
            // The first of them is open, or has the key, when it is the others' turn.
            due.fires.drain(..due.fires.len().saturating_sub(1));
        }
        Ok(Some(due))
    }

    /// For stores: the task of a fire, or of a run by hand.
    pub fn task(&self, at: Option<Timestamp>) -> NewTask {
        NewTask {
            fire: Some(Fire { schedule: self.schedule.name.clone(), at }),
            ..self.schedule.task.clone()
        }
    }

    /// For stores: how long its next fire has been due at `now`.
    pub fn overdue_at(next_fire_at: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
        let late = now.duration_since(next_fire_at?);
        (late > SignedDuration::ZERO).then(|| late.unsigned_abs())
    }

    /// What is wrong with the stored next fire: the watchdog behind [`Store::verify`](crate::Store::verify). An enabled
    /// schedule has exactly one, at a time that its rule knows, after the last one.
    pub fn problem(&self) -> Option<String> {
        let name = &self.schedule.name;
        let enabled = self.paused_at.is_none();
        let Some(next) = self.next_fire_at else {
            return enabled.then(|| format!("schedule {name} is enabled and has no next fire"));
        };
        if !enabled {
            return Some(format!("schedule {name} is paused and would fire at {next}"));
        }
        if self.last_fire_at.is_some_and(|last| last >= next) {
            return Some(format!("schedule {name} would fire again for {next}"));
        }
        let before = next - SignedDuration::from_micros(1);
        match self.fires().and_then(|fires| fires.next_after(before)) {
            Ok(expected) if expected == next => None,
            Ok(expected) => {
                Some(format!("schedule {name} would fire at {next}, but its rule says {expected}"))
            }
            Err(refused) => Some(format!("schedule {name} cannot fire: {refused}")),
        }
    }

    fn fires(&self) -> Result<Fires, InvalidInput> {
        Fires::of(&self.schedule.rule, self.anchor_at)
    }
}

fn check_preview(n: usize) -> Result<(), InvalidInput> {
    validate::in_range("n", n, 1..=validate::PREVIEW_MAX)
}

/// Which fire a task comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fire {
    /// Its schedule.
    pub schedule: ScheduleName,
    /// The fire time. None when it was run by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// The answer to a run by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// This task was enqueued.
    Enqueued(TaskId),
    /// Nothing was enqueued: the schedule may not overlap itself and this task of it is open, or this task holds the key.
    Open(TaskId),
    /// There is no such schedule.
    NotFound,
}

/// What [`Store::fire_due`](crate::Store::fire_due) did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fired {
    /// The tasks that were enqueued.
    pub tasks: Vec<TaskId>,
    /// Schedules that were moved on without a task: their last one is open, their key is
    /// taken, or what they missed is skipped.
    pub skipped: u32,
    /// Schedules that this process cannot compute, such as one in a zone that it does not know. They stay due.
    pub stuck: Vec<ScheduleName>,
    /// True when there are probably more that are due: call again.
    pub more: bool,
}
