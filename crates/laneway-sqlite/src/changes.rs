//! The change feed. Nothing is written while nobody watches.
//!
//! A watcher is a row, so that workers of other processes see it too; each transaction looks once whether there is one.
//! Announcing a watch needs no fence: what commits after the announcement sees it. A watcher that does not read for
//! its time lapses and is told that it has a gap; writers go on for ten seconds longer.

use std::time::Duration;

use rusqlite::{Connection, params};

use laneway_core::{Change, Changes, Fence, Kind, Position, State, TaskId, Watch, WatcherId};

use crate::clock::micros;
use crate::error::unreadable;
use crate::row::{self, Sql};
use crate::writer::Step;

const SLACK: Duration = Duration::from_secs(10);
/// Changes are kept for this long.
const KEPT: Duration = Duration::from_secs(15 * 60);
/// Changes that one round of maintenance removes.
const TRIMMED_MAX: i64 = 10_000;

const IS_WATCHED: &str = "select 1 from watcher where until > ?1 limit 1";
const INSERT_CHANGE: &str =
    "insert into change (at, queue, state, deleted, tasks) values (?1, ?2, ?3, ?4, ?5)";
const INSERT_WATCHER: &str = "insert into watcher (id, keep_us, until) values (?1, ?2, ?3)";
const RENEW: &str = "update watcher set until = ?2 + keep_us where id = ?1 and until > ?2";
const LAST: &str = "select seq from sqlite_sequence where name = 'change'";
const TRIMMED: &str = "select last from sequence where name = 'change_trimmed'";

const READ: &str = "
select seq,
       at,
       (select name from queue where queue.id = change.queue),
       state,
       deleted,
       tasks
from change
where seq > ?1
order by seq
limit ?2";

const TRIM: &str = "
delete from change
where seq in (select seq from change where at < ?1 order by seq limit ?2)
returning seq";

const SET_TRIMMED: &str = "update sequence set last = max(last, ?1) where name = 'change_trimmed'";

/// What a command has to tell.
#[derive(Default)]
pub(crate) struct Feed {
    is_watched: bool,
    /// Tasks that followed one another into the same state of the same queue are told together.
    entered: Vec<Entered>,
}

/// Tasks of one queue that entered a state together, or were deleted from it.
struct Entered {
    queue: i64,
    state: State,
    deleted: bool,
    tasks: Vec<(TaskId, String)>,
}

impl Feed {
    /// Looks whether somebody watches.
    pub(crate) fn begin(db: &Connection, now: i64) -> rusqlite::Result<Self> {
        let is_watched = db.any(IS_WATCHED, [now - micros(SLACK)])?;
        Ok(Self { is_watched, ..Self::default() })
    }

    /// An empty one for a command of the same transaction.
    pub(crate) fn of_command(&self) -> Self {
        Self { is_watched: self.is_watched, ..Self::default() }
    }

    /// A task has entered a state.
    pub(crate) fn entered(&mut self, queue: i64, state: State, task: i64, kind: &str) {
        self.tell(queue, state, false, task, kind);
    }

    /// A task was deleted from a state.
    pub(crate) fn deleted(&mut self, queue: i64, state: State, task: i64, kind: &str) {
        self.tell(queue, state, true, task, kind);
    }

    fn tell(&mut self, queue: i64, state: State, deleted: bool, task: i64, kind: &str) {
        if !self.is_watched {
            return;
        }
        let task = (TaskId(task), kind.to_owned());
        match self.entered.last_mut() {
            Some(last) if (last.queue, last.state, last.deleted) == (queue, state, deleted) => {
                last.tasks.push(task)
            }
            _ => self.entered.push(Entered { queue, state, deleted, tasks: vec![task] }),
        }
    }

    /// Writes what a command has told, as part of it.
    pub(crate) fn write(&self, db: &Connection, now: i64) -> rusqlite::Result<()> {
        for Entered { queue, state, deleted, tasks } in &self.entered {
            let tasks = serde_json::to_string(tasks).expect("ids and names can be encoded");
            db.run(INSERT_CHANGE, params![now, queue, state.as_str(), deleted, tasks])?;
        }
        Ok(())
    }
}

/// Announces a watcher.
pub(crate) fn watch(step: &Step<'_>, watcher: WatcherId, keep: Duration) -> rusqlite::Result<Watch> {
    let values = params![watcher.0.as_bytes().as_slice(), micros(keep), step.now + micros(keep)];
    step.db.run(INSERT_WATCHER, values)?;
    let seq = step.db.first(LAST, [], |row| row::count(row, 0))?.unwrap_or(0);
    Ok(Watch { watcher, fence: Fence(0), position: Position { tx: 0, seq } })
}

/// Ends a watch.
pub(crate) fn unwatch(step: &Step<'_>, watcher: WatcherId) -> rusqlite::Result<()> {
    step.db.run("delete from watcher where id = ?1", [watcher.0.as_bytes().as_slice()]).map(|_| ())
}

/// Tells that a watcher lives. False when it has lapsed.
pub(crate) fn renew(step: &Step<'_>, watcher: WatcherId) -> rusqlite::Result<bool> {
    Ok(step.db.run(RENEW, params![watcher.0.as_bytes().as_slice(), step.now])? > 0)
}

/// The changes behind a position.
pub(crate) fn read(db: &Connection, after: Position, max: u32, is_alive: bool) -> rusqlite::Result<Changes> {
    let mut position = after;
    let changes = db.all(READ, [after.seq as i64, i64::from(max)], |row| {
        position.seq = row::count(row, 0)?;
        let state: String = row.get(3)?;
        let tasks: Vec<(TaskId, Kind)> =
            serde_json::from_str(row.get_ref(5)?.as_str()?).map_err(unreadable)?;
        Ok(Change {
            at: row::timestamp(row.get(1)?)?,
            queue: row::queue_name(row.get(2)?)?,
            state: state.parse().map_err(unreadable)?,
            deleted: row.get(4)?,
            tasks,
        })
    })?;
    let trimmed = db.first(TRIMMED, [], |row| row::count(row, 0))?.unwrap_or(0);
    Ok(Changes { changes, position, gap: !is_alive || trimmed > after.seq })
}

/// Removes changes that are older than any watcher may be slow, and watchers that have lapsed.
pub(crate) fn trim(step: &Step<'_>) -> rusqlite::Result<()> {
    step.db.run("delete from watcher where until < ?1", [step.now - micros(Duration::from_secs(60))])?;
    let removed: Vec<i64> = step.db.all(TRIM, [step.now - micros(KEPT), TRIMMED_MAX], |row| row.get(0))?;
    if let Some(last) = removed.iter().max() {
        step.db.run(SET_TRIMMED, [last])?;
    }
    Ok(())
}
