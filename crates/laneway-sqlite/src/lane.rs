//! Lanes: their numbers, and what operators may change about them.

use std::borrow::Cow;

use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use laneway_core::{Actor, LaneKey, LaneLimit, LaneSettings, OnFailure, QueueName};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::line;
use crate::queue;
use crate::row::{self, Sql};
use crate::turn;
use crate::writer::Step;

const FIND: &str = "select id from lane where queue = ?1 and key = ?2";
// In a serial queue lanes are ours.
const INSERT: &str = "
insert into lane (queue, key, lim)
select id, ?2, case when serial = 0 then lane_limit else 1 end
from queue
where id = ?1
returning id";
const OWN_LIMIT: &str = "update lane set own = 1 where id = ?1";

// The time of the last start is not kept, but follows from the interval that was added to it.
const SET_INTERVAL: &str = "
update lane
set next_start = case when ?2 = 0 then null else next_start - interval_us + ?2 end,
    interval_us = ?2
where id = ?1";

const SET_HALTS: &str = "update lane set halts = ?2 where id = ?1";
const HALT: &str = "update lane set halted = 1 where id = ?1 and halts = 1";
const RESUME: &str = "update lane set halted = 0 where id = ?1 and halted = 1";

const SHOWN: &str = "select lim, interval_us, halts from lane where id = ?1";

/// The lane of all top-level tasks of a serial queue.
pub(crate) const SERIAL: &str = "\u{2}";
/// The lane of the children in a serial queue.
pub(crate) const SERIAL_CHILDREN: &str = "\u{3}";
/// Begins the keys of children's lanes, which are lanes of their own: a parent keeps its turn while it waits for them, and
/// must not wait for itself. Keys that users give have no control characters.
const OF_CHILDREN: char = '\u{1}';

/// The key as it is kept.
pub(crate) fn stored_key(key: &LaneKey, is_child: bool) -> Cow<'_, str> {
    if is_child { Cow::from(format!("{OF_CHILDREN}{key}")) } else { Cow::from(key.as_str()) }
}

/// The key as it is shown: none for the lanes of a serial queue.
pub(crate) fn shown_key(stored: String) -> rusqlite::Result<Option<LaneKey>> {
    match stored.as_str() {
        SERIAL | SERIAL_CHILDREN => Ok(None),
        _ => row::lane_key(stored.trim_start_matches(OF_CHILDREN).to_owned()).map(Some),
    }
}

/// The lane's number, if it is known.
pub(crate) fn find(db: &Connection, queue: i64, key: &str) -> rusqlite::Result<Option<i64>> {
    db.first(FIND, params![queue, key], |row| row.get(0))
}

/// The lane's number; the lane is made if it is not known.
pub(crate) fn find_or_make(db: &Connection, queue: i64, key: &str) -> rusqlite::Result<i64> {
    match find(db, queue, key)? {
        Some(id) => Ok(id),
        None => db.prepare_cached(INSERT)?.query_row(params![queue, key], |row| row.get(0)),
    }
}

/// Changes what `settings` names, lets the line follow, and records it.
pub(crate) fn set(
    step: &mut Step<'_>,
    actor: &Actor,
    (queue, key): (&QueueName, &LaneKey),
    settings: &LaneSettings,
) -> rusqlite::Result<()> {
    let subject = format!("lane {queue}/{key}");
    let queue = queue::find_or_make(step.db, queue)?;
    let before = match find(step.db, queue, key.as_str())? {
        Some(lane) => step.db.first(SHOWN, [lane], shown)?,
        None => None,
    };
    let lane = find_or_make(step.db, queue, key.as_str())?;
    change(step, lane, settings)?;
    let after = step.db.first(SHOWN, [lane], shown)?;
    audit::record(step, actor, Record { action: "set_lane", subject, tasks: &[], before, after })
}

fn shown(row: &Row<'_>) -> rusqlite::Result<Value> {
    let limit = LaneLimit::from_stored(row.get(0)?);
    let limit = (limit != LaneLimit::UNLIMITED).then(|| limit.stored());
    let (interval_us, halts): (i64, bool) = (row.get(1)?, row.get(2)?);
    Ok(json!({"limit": limit, "interval_ms": interval_us / 1000, "halts": halts}))
}

fn change(step: &mut Step<'_>, lane: i64, settings: &LaneSettings) -> rusqlite::Result<()> {
    if let Some(limit) = settings.limit {
        step.db.run(OWN_LIMIT, [lane])?;
        let mut row = turn::lane_row(step, lane)?;
        turn::set_limit(step, &mut row, limit.stored().into())?;
    }
    if let Some(interval) = settings.interval {
        // Resting is decided anew by the refresh below.
        step.db.run("delete from parked where lane = ?1", [lane])?;
        step.db.run(SET_INTERVAL, [lane, micros(interval)])?;
    }
    if let Some(on_failure) = settings.on_failure {
        step.db.run(SET_HALTS, params![lane, on_failure == OnFailure::Halt])?;
    }
    line::refresh(step, lane)
}

/// Halts a lane after a failure, if it was told to. The caller refreshes it.
pub(crate) fn halt_if_told(step: &Step<'_>, lane: i64) -> rusqlite::Result<()> {
    step.db.run(HALT, [lane]).map(|_| ())
}

/// Lets a halted lane go on. False when it was not halted.
pub(crate) fn resume(
    step: &mut Step<'_>,
    actor: &Actor,
    queue: &QueueName,
    key: &LaneKey,
) -> rusqlite::Result<bool> {
    let subject = format!("lane {queue}/{key}");
    let Some(queue) = queue::find(step.db, queue)? else { return Ok(false) };
    let Some(lane) = find(step.db, queue, key.as_str())? else { return Ok(false) };
    let was_halted = step.db.run(RESUME, [lane])? > 0;
    if was_halted {
        line::refresh(step, lane)?;
        let (before, after) = (Some(json!({"halted": true})), Some(json!({"halted": false})));
        audit::record(step, actor, Record { action: "resume_lane", subject, tasks: &[], before, after })?;
    }
    Ok(was_halted)
}
