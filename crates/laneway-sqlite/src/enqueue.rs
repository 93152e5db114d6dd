//! Stores new tasks, and issues the turns that they need.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::params;

use laneway_core::{
    Enqueued, LaneLimit, Limits, NewTask, QueueName, State, TaskId, TaskOptions, When, lane_in_serial_queue,
};

use crate::clock::micros;
use crate::error::refused;
use crate::follow_up::{self, NEVER};
use crate::lane;
use crate::line;
use crate::queue;
use crate::row::Sql;
use crate::turn::{self, LaneRow};
use crate::unique;
use crate::writer::Step;

const NEXT_IDS: &str = "update sequence set last = last + ?1 where name = 'task' returning last";

const INSERT_TASK: &str = "
insert into task (
    id,
    queue,
    lane,
    priority,
    attempt,
    max_attempts,
    crashes,
    parent,
    depth,
    enqueued_at,
    kind,
    options,
    payload
)
values (?1, ?2, ?3, ?4, 0, ?5, 0, ?6, ?7, ?8, ?9, ?10, ?11)";

const INSERT_LATER: &str = "
insert into later (
    id,
    queue,
    lane,
    priority,
    attempt,
    max_attempts,
    crashes,
    parent,
    depth,
    enqueued_at,
    kind,
    options,
    payload,
    due_at,
    holds_turn
)
values (?1, ?2, ?3, ?4, 0, ?5, 0, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 0)";

/// Where a new task comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was enqueued.
    Top,
    /// It was spawned, and its parent waits for it.
    Child {
        /// The parent.
        parent: i64,
        /// Its own depth.
        depth: u32,
    },
    /// It runs after another task has ended.
    FollowUp {
        /// That task.
        after: i64,
        /// True while that task is open.
        held: bool,
        /// True when it also runs after a failure.
        keep: bool,
    },
}

impl Origin {
    fn parent_and_depth(self) -> (Option<i64>, u32) {
        match self {
            Self::Child { parent, depth } => (Some(parent), depth),
            _ => (None, 0),
        }
    }

    fn is_held(self) -> bool {
        matches!(self, Self::FollowUp { held: true, .. })
    }
}

/// A task that is to be stored.
#[derive(Clone, Copy)]
pub(crate) struct New<'t> {
    pub(crate) task: &'t NewTask,
    pub(crate) origin: Origin,
}

impl New<'_> {
    /// Its options as they are kept.
    fn options(&self) -> Option<String> {
        let mut options = TaskOptions::of(self.task);
        if let Origin::FollowUp { after, .. } = self.origin {
            options.after = Some(TaskId(after));
        }
        options.to_stored()
    }

    /// True when it can be claimed at once.
    fn is_runnable(&self, now: i64) -> bool {
        !self.origin.is_held() && due_at(self.task.when, now).is_none()
    }
}

/// Stores those of `tasks` whose keys are not taken, and answers in their order.
pub(crate) fn enqueue(
    step: &mut Step<'_>,
    limits: &Limits,
    tasks: &[NewTask],
) -> rusqlite::Result<Vec<Enqueued>> {
    let tasks: Vec<_> = tasks.iter().map(|task| New { task, origin: Origin::Top }).collect();
    store(step, limits, &tasks)
}

/// Stores new tasks, whoever they come from.
pub(crate) fn store(
    step: &mut Step<'_>,
    limits: &Limits,
    tasks: &[New<'_>],
) -> rusqlite::Result<Vec<Enqueued>> {
    if tasks.is_empty() {
        return Ok(vec![]);
    }
    let last: i64 = step.db.prepare_cached(NEXT_IDS)?.query_row([tasks.len() as i64], |row| row.get(0))?;
    let first = last - tasks.len() as i64 + 1;

    let mut places = Places::default();
    let mut answers = Vec::with_capacity(tasks.len());
    let mut new = Vec::with_capacity(tasks.len());
    for (id, task) in (first..=last).zip(tasks) {
        let queue = places.find_queue(step, task.task)?;
        let answer = take_key(step, limits, task, queue.0, (first, id))?;
        if answer.is_new() {
            new.push((id, *task, places.find(step, queue, task)?));
        }
        answers.push(answer);
    }
    places.apply_limits(step)?;
    for (id, task, place) in &new {
        insert(step, *id, task, *place)?;
    }
    let laned: Vec<(i64, i64)> = new
        .iter()
        .filter(|(_, task, place)| place.lane != 0 && task.is_runnable(step.now))
        .map(|(_, task, place)| (place.lane, task.task.priority.into()))
        .collect();
    issue_turns(step, &laned)?;
    Ok(answers)
}

/// A follow-up whose key is taken is not stored, whatever its rule: the settle that brings it must not fail.
fn take_key(
    step: &mut Step<'_>,
    limits: &Limits,
    new: &New<'_>,
    queue: i64,
    (first, id): (i64, i64),
) -> rusqlite::Result<Enqueued> {
    match new.origin {
        Origin::FollowUp { .. } => unique::take_if_free(step, new.task, queue, id),
        _ => unique::take(step, limits, new.task, queue, (first, id)),
    }
}

fn insert(step: &mut Step<'_>, id: i64, new: &New<'_>, place: Place) -> rusqlite::Result<()> {
    let Place { queue, lane } = place;
    let (task, options) = (new.task, new.options());
    let (parent, depth) = new.origin.parent_and_depth();
    let (kind, payload) = (task.kind.as_str(), task.payload.as_str());
    let (priority, most, now) = (task.priority, task.max_attempts, step.now);
    step.tally.enqueued(queue);
    if new.is_runnable(now) {
        step.news.runnable(queue);
        step.feed.entered(queue, State::Pending, id, kind);
        let row = params![id, queue, lane, priority, most, parent, depth, now, kind, options, payload];
        return step.db.run(INSERT_TASK, row).map(|_| ());
    }
    let due = match new.origin {
        Origin::FollowUp { after, held: true, keep } => {
            follow_up::hold(step, id, after, keep, task.when)?;
            NEVER
        }
        _ => due_at(task.when, now).unwrap_or(now),
    };
    if due != NEVER {
        step.news.due(due);
    }
    step.feed.entered(queue, State::Later, id, kind);
    let row = params![id, queue, lane, priority, most, parent, depth, now, kind, options, payload, due];
    step.db.run(INSERT_LATER, row).map(|_| ())
}

/// When the task becomes runnable; `None` when it is.
pub(crate) fn due_at(when: When, now: i64) -> Option<i64> {
    let due = match when {
        When::Now => return None,
        When::After(delay) => now.saturating_add(micros(delay)),
        When::At(due) => due.as_microsecond(),
    };
    (due > now).then_some(due)
}

/// A lane that has got new tasks.
struct Wanting {
    lane: LaneRow,
    /// Turns that it is given.
    turns: i64,
    /// Of the most urgent new task.
    priority: i64,
}

impl Wanting {
    /// True when it gets its one turn now.
    fn is_woken(&self, now: i64) -> bool {
        self.lane.lim == 1 && self.lane.issued == 0 && self.lane.is_open(now)
    }

    fn add_turn(&mut self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        if self.lane.issued + self.turns >= self.lane.lim {
            return Ok(());
        }
        self.turns += 1;
        if self.is_woken(step.now) {
            turn::insert_only(step, &self.lane).map(|_| ())
        } else {
            turn::insert_free(step, &self.lane)
        }
    }

    /// Lets the line follow.
    fn finish(&self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        turn::add_issued(step, self.lane.id, self.turns)?;
        match self.turns {
            0 => line::move_up(step, &self.lane, self.priority),
            _ if self.is_woken(step.now) => Ok(()),
            _ => line::refresh(step, self.lane.id),
        }
    }
}

/// Issues a turn for each of `tasks` (lane and priority) whose lane may have more: first come, first served.
fn issue_turns(step: &mut Step<'_>, tasks: &[(i64, i64)]) -> rusqlite::Result<()> {
    let mut lanes: HashMap<i64, Wanting> = HashMap::new();
    for (lane, priority) in tasks {
        let wanting = match lanes.entry(*lane) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Wanting { lane: turn::lane_row(step, *lane)?, turns: 0, priority: *priority })
            }
        };
        wanting.priority = wanting.priority.min(*priority);
        wanting.add_turn(step)?;
    }
    lanes.values().try_for_each(|wanting| wanting.finish(step))
}

/// The numbers of a task's queue and lane; lane 0 is none.
#[derive(Clone, Copy)]
struct Place {
    queue: i64,
    lane: i64,
}

/// A queue's number, and how many children it runs at once if it is serial.
type Queue = (i64, i32);

/// The queues and lanes of one call, each looked up once.
#[derive(Default)]
struct Places<'t> {
    queues: HashMap<&'t QueueName, Queue>,
    lanes: HashMap<(i64, Cow<'t, str>), i64>,
    /// The limit that each lane shall have; the last task that names one decides.
    limits: HashMap<i64, i64>,
}

impl<'t> Places<'t> {
    fn find_queue(&mut self, step: &Step<'_>, task: &'t NewTask) -> rusqlite::Result<Queue> {
        match self.queues.entry(&task.queue) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(entry) => {
                let queue = queue::find_or_make(step.db, &task.queue)?;
                Ok(*entry.insert((queue, queue::serial(step.db, queue)?)))
            }
        }
    }

    fn find(&mut self, step: &Step<'_>, (queue, serial): Queue, new: &New<'t>) -> rusqlite::Result<Place> {
        let is_child = matches!(new.origin, Origin::Child { .. });
        let (key, limit) = match &new.task.lane {
            Some(lane) if serial > 0 => {
                return Err(refused(lane_in_serial_queue(&lane.key, &new.task.queue).into()));
            }
            None if serial > 0 && is_child => (Cow::from(lane::SERIAL_CHILDREN), Some(serial)),
            None if serial > 0 => (Cow::from(lane::SERIAL), None),
            Some(lane) => (lane::stored_key(&lane.key, is_child), lane.limit.map(LaneLimit::stored)),
            None => return Ok(Place { queue, lane: 0 }),
        };
        Ok(Place { queue, lane: self.find_lane(step, queue, key, limit)? })
    }

    fn find_lane(
        &mut self,
        step: &Step<'_>,
        queue: i64,
        key: Cow<'t, str>,
        limit: Option<i32>,
    ) -> rusqlite::Result<i64> {
        let id = match self.lanes.entry((queue, key)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let id = lane::find_or_make(step.db, queue, &entry.key().1)?;
                *entry.insert(id)
            }
        };
        if let Some(limit) = limit {
            self.limits.insert(id, limit.into());
        }
        Ok(id)
    }

    /// Changes the limits that an operator has not set.
    fn apply_limits(&self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        for (lane, limit) in &self.limits {
            let mut row = turn::lane_row(step, *lane)?;
            if !row.own && row.lim != *limit {
                turn::set_limit(step, &mut row, *limit)?;
                line::refresh(step, *lane)?;
            }
        }
        Ok(())
    }
}
