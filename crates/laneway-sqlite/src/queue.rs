//! Queues: their numbers, and pausing them.

use rusqlite::{Connection, params};

use laneway_core::QueueName;

use crate::row::{self, Sql};
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

/// The name of a queue whose number is known.
pub(crate) fn name(db: &Connection, queue: i64) -> rusqlite::Result<QueueName> {
    let mut statement = db.prepare_cached("select name from queue where id = ?1")?;
    statement.query_row([queue], |row| row::queue_name(row.get(0)?))
}

/// How many children of a serial queue run at once; 0 when it is not serial.
pub(crate) fn serial(db: &Connection, queue: i64) -> rusqlite::Result<i32> {
    Ok(db.first("select serial from queue where id = ?1", [queue], |row| row.get(0))?.unwrap_or(0))
}

/// True when the queue takes part in claims.
pub(crate) fn is_open(db: &Connection, queue: i64) -> rusqlite::Result<bool> {
    db.any("select 1 from queue where id = ?1 and paused = 0", [queue])
}

/// Stops claims from a queue, or lets it go on.
pub(crate) fn set_paused(step: &Step<'_>, queue: i64, paused: bool) -> rusqlite::Result<()> {
    step.db.run(SET_PAUSED, params![queue, paused]).map(|_| ())
}
