//! Stores new tasks, and issues the turns that they need.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::params;

use laneway_core::{Enqueued, Lane, LaneKey, Limits, NewTask, QueueName, State, TaskOptions, When};

use crate::clock::micros;
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
    depth,
    enqueued_at,
    kind,
    options,
    payload
)
values (?1, ?2, ?3, ?4, 0, ?5, 0, 0, ?6, ?7, ?8, ?9)";

const INSERT_LATER: &str = "
insert into later (
    id,
    queue,
    lane,
    priority,
    attempt,
    max_attempts,
    crashes,
    depth,
    enqueued_at,
    kind,
    options,
    payload,
    due_at,
    holds_turn
)
values (?1, ?2, ?3, ?4, 0, ?5, 0, 0, ?6, ?7, ?8, ?9, ?10, 0)";

/// Stores those of `tasks` whose keys are not taken, and answers in their order.
pub(crate) fn enqueue(
    step: &mut Step<'_>,
    limits: &Limits,
    tasks: &[NewTask],
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
        let queue = places.find_queue(step, task)?;
        let answer = unique::take(step, limits, task, queue, (first, id))?;
        if answer.is_new() {
            new.push((id, task, places.find(step, queue, task)?));
        }
        answers.push(answer);
    }
    places.apply_limits(step)?;
    for (id, task, place) in &new {
        insert(step, *id, task, *place)?;
    }
    let runnable = new.iter().filter(|(_, task, _)| due_at(task.when, step.now).is_none());
    let laned: Vec<(i64, i64)> = runnable
        .filter(|(_, _, place)| place.lane != 0)
        .map(|(_, task, place)| (place.lane, task.priority.into()))
        .collect();
    issue_turns(step, &laned)?;
    Ok(answers)
}

fn insert(step: &mut Step<'_>, id: i64, task: &NewTask, place: Place) -> rusqlite::Result<()> {
    let Place { queue, lane } = place;
    step.tally.enqueued(queue);
    let options = TaskOptions::stored(task);
    let (kind, payload) = (task.kind.as_str(), task.payload.as_str());
    let (priority, max_attempts, now) = (task.priority, task.max_attempts, step.now);
    match due_at(task.when, now) {
        Some(due) => {
            step.news.due(due);
            step.feed.entered(queue, State::Later, id, kind);
            let row = params![id, queue, lane, priority, max_attempts, now, kind, options, payload, due];
            step.db.run(INSERT_LATER, row)?;
        }
        None => {
            step.news.runnable(queue);
            step.feed.entered(queue, State::Pending, id, kind);
            let row = params![id, queue, lane, priority, max_attempts, now, kind, options, payload];
            step.db.run(INSERT_TASK, row)?;
        }
    }
    Ok(())
}

/// When the task becomes runnable; `None` when it is.
fn due_at(when: When, now: i64) -> Option<i64> {
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

/// The queues and lanes of one call, each looked up once.
#[derive(Default)]
struct Places<'t> {
    queues: HashMap<&'t QueueName, i64>,
    lanes: HashMap<(i64, &'t LaneKey), i64>,
    /// The limit that each lane shall have; the last task that names one decides.
    limits: HashMap<i64, i64>,
}

impl<'t> Places<'t> {
    fn find_queue(&mut self, step: &Step<'_>, task: &'t NewTask) -> rusqlite::Result<i64> {
        match self.queues.entry(&task.queue) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(entry) => Ok(*entry.insert(queue::find_or_make(step.db, &task.queue)?)),
        }
    }

    fn find(&mut self, step: &Step<'_>, queue: i64, task: &'t NewTask) -> rusqlite::Result<Place> {
        let lane = match &task.lane {
            Some(lane) => self.find_lane(step, queue, lane)?,
            None => 0,
        };
        Ok(Place { queue, lane })
    }

    fn find_lane(&mut self, step: &Step<'_>, queue: i64, lane: &'t Lane) -> rusqlite::Result<i64> {
        let id = match self.lanes.entry((queue, &lane.key)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(lane::find_or_make(step.db, queue, &lane.key)?),
        };
        if let Some(limit) = lane.limit {
            self.limits.insert(id, limit.stored().into());
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
