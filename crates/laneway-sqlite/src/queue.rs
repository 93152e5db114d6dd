//! Queues: their numbers, and pausing them.

use rusqlite::{Connection, params};

use laneway_core::QueueName;

use crate::row::Sql;
use crate::writer::Step;

const FIND: &str = "select id from queue where name = ?1";
const INSERT: &str = "insert into queue (name) values (?1) returning id";
const SET_PAUSED: &str = "update queue set paused = ?2 where id = ?1 and paused <> ?2";

/// The queue's number; `None` when nothing was ever enqueued into it.
pub(crate) fn find(db: &Connection, name: &QueueName) -> rusqlite::Result<Option<i64>> {
    db.first(FIND, [name.as_str()], |row| row.get(0))
}

/// The queue's number, which is given to it now if it has none.
pub(crate) fn find_or_make(db: &Connection, name: &QueueName) -> rusqlite::Result<i64> {
    match find(db, name)? {
        Some(id) => Ok(id),
        None => db.prepare_cached(INSERT)?.query_row([name.as_str()], |row| row.get(0)),
    }
}

/// True when the queue takes part in claims.
pub(crate) fn is_open(db: &Connection, queue: i64) -> rusqlite::Result<bool> {
    db.any("select 1 from queue where id = ?1 and paused = 0", [queue])
}

/// Stops claims from a queue. False when it was paused before.
pub(crate) fn pause(step: &Step<'_>, name: &QueueName) -> rusqlite::Result<bool> {
    let queue = find_or_make(step.db, name)?;
    Ok(step.db.run(SET_PAUSED, params![queue, true])? > 0)
}

/// Lets a queue go on. False when it was not paused.
pub(crate) fn resume(step: &mut Step<'_>, name: &QueueName) -> rusqlite::Result<bool> {
    let Some(queue) = find(step.db, name)? else { return Ok(false) };
    step.news.runnable(queue);
    Ok(step.db.run(SET_PAUSED, params![queue, false])? > 0)
}
