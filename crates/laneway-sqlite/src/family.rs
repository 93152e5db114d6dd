//! Counts the ends of children into their parents, and ends parents whose children have all ended.
//!
//! A command adds up in memory what has become of children ([`Families`]). [`fold`] counts it in: an advance folds before it
//! claims, a cancel before it answers, and every command before it is done, so that no parent is ever seen without an open child.

use std::collections::BTreeMap;

use rusqlite::{Row, params};
use serde_json::{Map, Value, json};

use laneway_core::{FAMILY_ERRORS_MAX, FamilyPolicy, FamilyView, State, TaskId, family_error};

use crate::end::{self, Ending, Table};
use crate::error::unreadable;
use crate::fold::Times;
use crate::row::{Sql, carried};
use crate::turn::{self, End};
use crate::writer::Step;
use crate::{children, keep, line, unique};

const PARENT: &str = "
select queue,
       lane,
       parent,
       kind,
       options,
       result,
       holds_turn,
       then_again,
       stopping,
       family,
       coalesce(ready_at, enqueued_at),
       started_at
from waiting
where id = ?1";

const SAVE: &str = "update waiting set family = ?2, stopping = ?3 where id = ?1";
const SET_OPTIONS: &str = "update waiting set options = ?2 where id = ?1";
const START_OVER: &str = "update waiting set attempt = 0, crashes = 0, options = ?2 where id = ?1";

const TO_TASK: &str = concat!(
    "insert into task (id, ready_at, ",
    carried!(),
    ") select id, ?2, ",
    carried!(),
    " from waiting where id = ?1"
);

/// Why a parent's children are being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    Failed,
    Cancelled,
}

/// What a command has done to children, by parent.
#[derive(Default)]
pub(crate) struct Families(BTreeMap<i64, Ends>);

/// How the numbers of one family change.
#[derive(Default)]
struct Ends {
    open: i64,
    completed: i64,
    failed: i64,
    cancelled: i64,
    errors: Vec<(TaskId, String)>,
}

impl Ends {
    fn add(&mut self, state: State, tasks: i64) {
        self.open -= tasks;
        match state {
            State::Completed => self.completed += tasks,
            State::Failed => self.failed += tasks,
            _ => self.cancelled += tasks,
        }
    }

    /// Children that were added: what has ended and what is open more than before.
    fn added(&self) -> i64 {
        self.open + self.completed + self.failed + self.cancelled
    }
}

impl Families {
    /// A child has ended.
    pub(crate) fn ended(&mut self, parent: i64, task: i64, state: State, error: Option<&str>) {
        let ends = self.0.entry(parent).or_default();
        ends.add(state, 1);
        if let Some(error) = error.filter(|_| state != State::Completed)
            && ends.errors.len() < FAMILY_ERRORS_MAX
        {
            ends.errors.push((TaskId(task), family_error(error)));
        }
    }

    /// Children were added.
    pub(crate) fn added(&mut self, parent: i64, tasks: usize) {
        self.0.entry(parent).or_default().open += tasks as i64;
    }

    /// Nothing has become of the children so far.
    pub(crate) fn forget(&mut self, parent: i64) {
        self.0.remove(&parent);
    }

    /// A child that had ended like this starts anew.
    pub(crate) fn reopened(&mut self, parent: i64, state: State) {
        self.0.entry(parent).or_default().add(state, -1);
    }
}

/// Counts what has become of children, and ends the parents that have none open; their ends are counted, too.
pub(crate) fn fold(step: &mut Step<'_>) -> rusqlite::Result<()> {
    // A child has a higher id than its parent: the innermost families come first.
    while let Some((parent, ends)) = step.families.0.pop_last() {
        // One that does not wait has its children from a former life.
        if let Some(parent) = Parent::load(step, parent)? {
            count_in(step, parent, ends)?;
        }
    }
    Ok(())
}

fn count_in(step: &mut Step<'_>, mut parent: Parent, ends: Ends) -> rusqlite::Result<()> {
    let grew = ends.added() > 0 || ends.open > 0;
    parent.count(ends);
    let fails_fast = parent.family.policy == FamilyPolicy::FailFast
        && parent.family.has_failed()
        && parent.stopping == Stopping::No;
    if fails_fast {
        parent.stopping = Stopping::Failed;
    }
    parent.save(step)?;
    // What was added after the children were told to stop has not heard of it.
    if fails_fast || grew && parent.stopping != Stopping::No {
        children::cancel(step, parent.id)?;
    }
    if parent.family.open == 0 { parent.end(step) } else { Ok(()) }
}

/// Has the children of a waiting task stopped; it ends as cancelled when the last of them has ended.
pub(crate) fn stop(step: &mut Step<'_>, id: i64) -> rusqlite::Result<()> {
    step.db.run("update waiting set stopping = 2 where id = ?1", [id])?;
    children::cancel(step, id)
}

/// The options of a task with some members changed.
pub(crate) fn changed_options(
    options: Option<&str>,
    change: impl FnOnce(&mut Map<String, Value>),
) -> rusqlite::Result<Option<String>> {
    let mut members = match options {
        Some(text) => serde_json::from_str(text).map_err(unreadable)?,
        None => Map::new(),
    };
    change(&mut members);
    Ok((!members.is_empty()).then(|| Value::Object(members).to_string()))
}

/// A task that waits for its children.
struct Parent {
    id: i64,
    queue: i64,
    lane: i64,
    parent: Option<i64>,
    kind: String,
    options: Option<String>,
    result: Option<String>,
    holds_turn: bool,
    then_again: bool,
    stopping: Stopping,
    family: FamilyView,
    ready_at: i64,
    started_at: i64,
}

impl Parent {
    fn load(step: &Step<'_>, id: i64) -> rusqlite::Result<Option<Self>> {
        step.db.first(PARENT, [id], |row| Self::read(id, row))
    }

    fn read(id: i64, row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id,
            queue: row.get(0)?,
            lane: row.get(1)?,
            parent: row.get(2)?,
            kind: row.get(3)?,
            options: row.get(4)?,
            result: row.get(5)?,
            holds_turn: row.get(6)?,
            then_again: row.get(7)?,
            stopping: match row.get(8)? {
                0 => Stopping::No,
                1 => Stopping::Failed,
                _ => Stopping::Cancelled,
            },
            family: serde_json::from_str(row.get_ref(9)?.as_str()?).map_err(unreadable)?,
            ready_at: row.get(10)?,
            started_at: row.get(11)?,
        })
    }

    fn count(&mut self, ends: Ends) {
        let family = &mut self.family;
        family.total = family.total.saturating_add_signed(ends.added());
        family.open = family.open.saturating_add_signed(ends.open);
        family.completed = family.completed.saturating_add_signed(ends.completed);
        family.failed = family.failed.saturating_add_signed(ends.failed);
        family.cancelled = family.cancelled.saturating_add_signed(ends.cancelled);
        family.errors.extend(ends.errors);
        family.errors.truncate(FAMILY_ERRORS_MAX);
    }

    fn save(&self, step: &Step<'_>) -> rusqlite::Result<()> {
        step.db.run(SAVE, params![self.id, stored(&self.family), self.stopping as i64]).map(|_| ())
    }

    /// The last child has ended.
    fn end(self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        let is_bad = self.family.has_failed() && self.family.policy != FamilyPolicy::Ignore;
        let ending = match self.stopping {
            Stopping::Cancelled => Ending::cancelled(None),
            _ if is_bad => Ending::failed(self.family.error()),
            _ if self.then_again => return self.begin_next_step(step),
            _ => Ending { state: State::Completed, error: None, result: self.result.clone() },
        };
        let times = Times { ready_at: self.ready_at, started_at: self.started_at };
        step.tally.ended(self.queue, ending.state, Some(times), step.now);
        step.feed.entered(self.queue, ending.state, self.id, &self.kind);
        if ending.state == State::Completed && keep::keeps_nothing(step, self.queue)? {
            step.db.run("delete from failure where task_id = ?1", [self.id])?;
            unique::release_ended(step, self.id)?;
            end::leave(step, Table::Waiting, self.id)?;
            end::tell(step, self.id, self.parent, &ending)?;
        } else {
            step.tally.kept(self.queue, ending.state, self.kind.clone());
            step.db.run(SET_OPTIONS, params![self.id, self.options_with_family(0)?])?;
            end::tell(step, self.id, self.parent, &ending)?;
            end::record(step, Table::Waiting, self.id, self.lane, ending)?;
        }
        match self.holds_turn && turn::release(step, self.lane)? {
            true => line::refresh(step, self.lane),
            false => Ok(()),
        }
    }

    /// It runs again, under its id and in its old place.
    fn begin_next_step(self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        step.feed.entered(self.queue, State::Pending, self.id, &self.kind);
        step.db.run(START_OVER, params![self.id, self.options_with_family(1)?])?;
        step.db.run(TO_TASK, [self.id, step.now])?;
        end::leave(step, Table::Waiting, self.id)?;
        step.news.runnable(self.queue);
        if self.lane == 0 {
            return Ok(());
        }
        if self.holds_turn {
            turn::come_back(step, self.lane, self.id, End::Front)?;
        } else {
            let lane = turn::lane_row(step, self.lane)?;
            turn::issue(step, &lane, 1)?;
        }
        line::refresh(step, self.lane)
    }

    fn options_with_family(&self, steps: u64) -> rusqlite::Result<Option<String>> {
        changed_options(self.options.as_deref(), |members| {
            let step = members.get("step").and_then(Value::as_u64).unwrap_or(0) + steps;
            if step > 0 {
                members.insert("step".to_owned(), json!(step));
            }
            members.insert("family".to_owned(), json!(self.family));
        })
    }
}

/// A family as it is kept.
pub(crate) fn stored(family: &FamilyView) -> String {
    serde_json::to_string(family).expect("strings and numbers can be encoded")
}
