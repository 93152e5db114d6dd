//! Looking at tasks, queues and workers.

use std::path::Path;

use rusqlite::{Connection, Row};

use laneway_core::{Capacity, FamilyView, State, StoreHealth, TableHealth, TaskId, TaskView, WorkerView};

use crate::end::state_from_stored;
use crate::error::unreadable;
use crate::lane;
use crate::progress;
use crate::row::{self, Sql, carried};

/// The names of a row's queue and lane. A lane that was removed since has no name any more.
macro_rules! names {
    () => {
        "(select name from queue where queue.id = at.queue), (select key from lane where lane.id = at.lane)"
    };
}

// Every view has the same columns: id, the carried ones, two names, and then state, due_at, ended_at, session,
// cancel_requested, result, family.
macro_rules! pending {
    ($rest:literal) => {
        concat!(
            "select id, ",
            carried!(),
            ", ",
            names!(),
            ", 0, null, null, null, 0, null, null from task as at ",
            $rest
        )
    };
}

macro_rules! later {
    ($rest:literal) => {
        concat!(
            "select id, ",
            carried!(),
            ", ",
            names!(),
            ", 0, nullif(due_at, 9223372036854775807), null, null, 0, null, null from later as at ",
            $rest
        )
    };
}

macro_rules! leased {
    ($rest:literal) => {
        concat!(
            "select id, ",
            carried!(),
            ", ",
            names!(),
            ", 0, null, null, ",
            "(select session from lease where lease.id = at.lease), ",
            "exists (select 1 from cancel_request where cancel_request.task_id = at.id), ",
            "null, null from leased as at ",
            $rest
        )
    };
}

macro_rules! waiting {
    ($rest:literal) => {
        concat!(
            "select id, ",
            carried!(),
            ", ",
            names!(),
            ", 0, null, null, null, stopping = 2, null, family from waiting as at ",
            $rest
        )
    };
}

macro_rules! ended {
    ($rest:literal) => {
        concat!(
            "select id, ",
            carried!(),
            ", ",
            "(select name from queue where queue.id = at.queue), ",
            "coalesce((select key from lane where lane.id = at.lane), lane_key)",
            ", state, null, ended_at, null, 0, result, null from ended as at ",
            $rest
        )
    };
}

/// The rows of a list, to be followed by a condition on `at`.
pub(crate) const PENDING_ROWS: &str = pending!("");
pub(crate) const LATER_ROWS: &str = later!("");
pub(crate) const LEASED_ROWS: &str = leased!("");
pub(crate) const WAITING_ROWS: &str = waiting!("");
pub(crate) const ENDED_ROWS: &str = ended!("");

const WORKERS: &str = "
select session,
       name,
       queues,
       kinds,
       slots,
       free,
       memory_percent,
       draining,
       started_at,
       seen_at
from worker
order by started_at, session";

/// A task wherever it is.
pub(crate) fn get(db: &Connection, id: TaskId) -> rusqlite::Result<Option<TaskView>> {
    for (state, sql) in [
        (State::Pending, pending!("where id = ?1")),
        (State::Later, later!("where id = ?1")),
        (State::Leased, leased!("where id = ?1")),
        (State::Waiting, waiting!("where id = ?1")),
        (State::Completed, ended!("where id = ?1")),
    ] {
        if let Some(mut found) = db.first(sql, [id.0], |row| view(row, state))? {
            progress::add(db, &mut found)?;
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Up to `max` children of `parent` with ids in a range, by id.
pub(crate) fn children(
    db: &Connection,
    parent: i64,
    (first, last): (i64, i64),
    max: i64,
) -> rusqlite::Result<Vec<TaskView>> {
    let mut found = Vec::new();
    for (state, sql) in [
        (State::Pending, pending!("where id between ?1 and ?2 and parent = ?3 order by id limit ?4")),
        (State::Later, later!("where id between ?1 and ?2 and parent = ?3 order by id limit ?4")),
        (State::Leased, leased!("where id between ?1 and ?2 and parent = ?3 order by id limit ?4")),
        (State::Waiting, waiting!("where id between ?1 and ?2 and parent = ?3 order by id limit ?4")),
        (State::Completed, ended!("where id between ?1 and ?2 and parent = ?3 order by id limit ?4")),
    ] {
        found.extend(db.all(sql, [first, last, parent, max], |row| view(row, state))?);
    }
    found.sort_unstable_by_key(|child| child.id);
    found.truncate(max as usize);
    Ok(found)
}

/// The living workers.
pub(crate) fn workers(db: &Connection) -> rusqlite::Result<Vec<WorkerView>> {
    db.all(WORKERS, [], |row| {
        Ok(WorkerView {
            session: row::session(row.get_ref(0)?.as_blob()?)?,
            name: row.get(1)?,
            queues: serde_json::from_str(row.get_ref(2)?.as_str()?).map_err(unreadable)?,
            kinds: row::kinds(row.get_ref(3)?.as_str_or_null()?)?,
            capacity: Capacity {
                slots: row.get(4)?,
                free: row.get(5)?,
                memory_percent: row.get(6)?,
                draining: row.get(7)?,
            },
            started_at: row::timestamp(row.get(8)?)?,
            seen_at: row::timestamp(row.get(9)?)?,
        })
    })
}

/// Versions, and what the file takes.
pub(crate) fn health(db: &Connection, path: &Path) -> rusqlite::Result<StoreHealth> {
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let bytes = number("pragma page_count")? * number("pragma page_size")?;
    let wal = std::fs::metadata(format!("{}-wal", path.display())).map_or(0, |found| found.len());
    let table = |table: &str, bytes| TableHealth { table: table.to_owned(), rows: 0, dead_rows: 0, bytes };
    let mut tables = vec![table("file", bytes as u64), table("wal", wal)];
    tables.sort_by_key(|table| std::cmp::Reverse(table.bytes));
    Ok(StoreHealth {
        database: format!("SQLite {}", rusqlite::version()),
        schema_version: db.query_row("select max(version) from migration", [], |row| row.get(0))?,
        tables,
        oldest_transaction: None,
    })
}

/// The task in a row of a view; `place` is its state unless it has ended.
pub(crate) fn view(row: &Row<'_>, place: State) -> rusqlite::Result<TaskView> {
    let state = match row.get(17)? {
        0 => place,
        ended => state_from_stored(ended),
    };
    let time = |at| row.get::<_, Option<i64>>(at)?.map(row::timestamp).transpose();
    let lane: Option<String> = row.get(16)?;
    let session: Option<Vec<u8>> = row.get(20)?;
    let options = row.get_ref(12)?.as_str_or_null()?;
    let family = match row.get_ref(23)?.as_str_or_null()? {
        Some(text) => Some(serde_json::from_str(text).map_err(unreadable)?),
        None => FamilyView::from_stored(options),
    };
    Ok(TaskView {
        id: TaskId(row.get(0)?),
        kind: row::kind(row.get(11)?)?,
        queue: row::queue_name(row.get(15)?)?,
        lane: lane.map(lane::shown_key).transpose()?.flatten(),
        priority: row.get(3)?,
        state,
        attempt: row.get::<_, u32>(4)? + u32::from(state == State::Leased),
        max_attempts: row.get(5)?,
        crashes: row.get(6)?,
        parent: row::parent(row.get(7)?),
        depth: row.get(8)?,
        enqueued_at: row::timestamp(row.get(9)?)?,
        due_at: time(18)?,
        started_at: time(10)?,
        ended_at: time(19)?,
        worker: session.map(|bytes| row::session(&bytes)).transpose()?,
        payload: row::json(row.get(13)?),
        result: row::json(row.get(22)?),
        error: row.get(14)?,
        cancel_requested: row.get(21)?,
        progress: None,
        family,
        options: row::options(options)?,
    })
}
