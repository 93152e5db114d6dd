//! Rows and the types they become; statements that are prepared once.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Params, Row};
use uuid::Uuid;

use laneway_core::{Actor, ActorName, Json, Kind, Kinds, LaneKey, QueueName, SessionId, TaskId, TaskOptions};

use crate::error::unreadable;

/// Running a statement that stays prepared.
pub(crate) trait Sql {
    /// Runs `sql` and returns how many rows it changed.
    fn run(&self, sql: &'static str, params: impl Params) -> rusqlite::Result<usize>;

    /// The first row of `sql`, if there is one.
    fn first<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>>;

    /// Every row of `sql`.
    fn all<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>>;

    /// True when `sql` finds a row.
    fn any(&self, sql: &'static str, params: impl Params) -> rusqlite::Result<bool> {
        Ok(self.first(sql, params, |_| Ok(()))?.is_some())
    }
}

impl Sql for Connection {
    fn run(&self, sql: &'static str, params: impl Params) -> rusqlite::Result<usize> {
        self.prepare_cached(sql)?.execute(params)
    }

    fn first<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.prepare_cached(sql)?.query_row(params, read).optional()
    }

    fn all<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.prepare_cached(sql)?.query_map(params, read)?.collect()
    }
}

/// The columns that a task carries from table to table, in the order in which `claim.rs` and `look.rs` read them
/// after the id.
macro_rules! carried {
    () => {
        "queue,
         lane,
         priority,
         attempt,
         max_attempts,
         crashes,
         parent,
         depth,
         enqueued_at,
         started_at,
         kind,
         options,
         payload,
         error"
    };
}
pub(crate) use carried;

pub(crate) fn timestamp(micros: i64) -> rusqlite::Result<Timestamp> {
    Timestamp::from_microsecond(micros).map_err(unreadable)
}

pub(crate) fn session(bytes: &[u8]) -> rusqlite::Result<SessionId> {
    uuid(bytes).map(SessionId)
}

pub(crate) fn uuid(bytes: &[u8]) -> rusqlite::Result<Uuid> {
    Uuid::from_slice(bytes).map_err(unreadable)
}

pub(crate) fn kind(text: String) -> rusqlite::Result<Kind> {
    Kind::new(text).map_err(unreadable)
}

pub(crate) fn queue_name(text: String) -> rusqlite::Result<QueueName> {
    QueueName::new(text).map_err(unreadable)
}

pub(crate) fn lane_key(text: String) -> rusqlite::Result<LaneKey> {
    LaneKey::new(text).map_err(unreadable)
}

pub(crate) fn actor(who: String, reason: Option<String>) -> rusqlite::Result<Actor> {
    Ok(Actor { who: ActorName::new(who).map_err(unreadable)?, reason })
}

pub(crate) fn options(text: Option<&str>) -> rusqlite::Result<TaskOptions> {
    TaskOptions::from_stored(text).map_err(unreadable)
}

pub(crate) fn json(text: Option<String>) -> Option<Json> {
    text.map(Json::trusted)
}

/// The number of an advance as it is stored. "Any number" is larger than what fits.
pub(crate) fn advance_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that is never negative.
pub(crate) fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(at)?.unsigned_abs())
}

pub(crate) fn parent(id: Option<i64>) -> Option<TaskId> {
    id.map(TaskId)
}

/// Kinds as a statement takes them.
pub(crate) fn json_array(kinds: &[Kind]) -> String {
    serde_json::to_string(kinds).expect("names can be encoded")
}

/// The kinds that a worker handles as it is kept; null stands for all.
pub(crate) fn stored_kinds(kinds: &Kinds) -> Option<String> {
    match kinds {
        Kinds::All => None,
        Kinds::Only(kinds) => Some(json_array(kinds)),
    }
}

/// The kinds that a worker handles.
pub(crate) fn kinds(text: Option<&str>) -> rusqlite::Result<Kinds> {
    match text {
        None => Ok(Kinds::All),
        Some(text) => serde_json::from_str(text).map(Kinds::Only).map_err(unreadable),
    }
}

/// Task ids as a lease keeps them.
pub(crate) fn pack_ids(ids: &[i64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// The task ids of a lease.
pub(crate) fn unpack_ids(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks::<8>().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect()
}
