//! Actions on all tasks that a filter means. The filter is read by whoever takes a step; a step is recorded and carried
//! out here.

use rusqlite::{Connection, Row, params};
use serde_json::json;

use laneway_core::{
    Acted, Actor, Bulk, BulkId, BulkPage, BulkState, BulkStep, Cursor, Filter, NewBulk, TaskId,
};

use crate::act;
use crate::audit::{self, Record};
use crate::error::unreadable;
use crate::row::{self, Sql};
use crate::writer::Step;

const INSERT: &str = "
insert into bulk (started_at, state, who, reason, action, filter, dry_run, pace)
values (?1, 'running', ?2, ?3, ?4, ?5, ?6, ?7)
returning id";

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select id, who, reason, action, filter, dry_run, state, started_at, steps, matched, done, place, ",
            "at_micros, at_id, pace from bulk ",
            $rest
        )
    };
}

const VIEW: &str = select!("where id = ?1");
const LIST: &str = select!("where id < ?1 and (?3 is null or state = ?3) order by id desc limit ?2");

const TAKE_STEP: &str = "
update bulk
set steps = steps + 1,
    matched = matched + ?2,
    done = done + ?3,
    place = ?4,
    at_micros = ?5,
    at_id = ?6,
    state = case when ?7 then 'finished' else state end
where id = ?1";

const SET_STATE: &str = "
update bulk
set state = ?2
where id = ?1
  and state <> 'finished'
  and state <> ?2";

/// Begins a bulk.
pub(crate) fn start(step: &Step<'_>, actor: &Actor, new: &NewBulk) -> rusqlite::Result<Bulk> {
    let action = serde_json::to_string(&new.action).expect("an action can be encoded");
    let filter = new.filter.to_string();
    let row = params![step.now, actor.who.as_str(), actor.reason, action, filter, new.dry_run, new.pace];
    let id: i64 = step.db.prepare_cached(INSERT)?.query_row(row, |row| row.get(0))?;
    let after =
        json!({"action": new.action.name(), "filter": filter, "dry_run": new.dry_run, "pace": new.pace});
    let subject = format!("bulk {id}");
    let record = Record { action: "start_bulk", subject, tasks: &[], before: None, after: Some(after) };
    audit::record(step, actor, record)?;
    view(step.db, BulkId(id))?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// A bulk as it is now.
pub(crate) fn view(db: &Connection, id: BulkId) -> rusqlite::Result<Option<Bulk>> {
    db.first(VIEW, [id.0], read)
}

/// Bulks, newest first.
pub(crate) fn list(db: &Connection, page: BulkPage) -> rusqlite::Result<Vec<Bulk>> {
    let before = page.before.map_or(i64::MAX, |id| id.0);
    db.all(LIST, params![before, page.limit, page.state.map(BulkState::stored)], read)
}

/// Takes a step. False when it was not the next one, or the bulk is ahead of its pace.
pub(crate) fn take_step(step: &mut Step<'_>, taken: &BulkStep) -> rusqlite::Result<bool> {
    let Some(bulk) = view(step.db, taken.bulk)? else { return Ok(false) };
    if bulk.state != BulkState::Running || bulk.steps != taken.number {
        return Ok(false);
    }
    let elapsed = (step.now - bulk.started_at.as_microsecond()) as f64 / 1e6;
    if bulk.pace.is_some_and(|pace| bulk.matched as f64 > f64::from(pace) * elapsed) {
        return Ok(false);
    }
    let mut done = 0;
    if !bulk.dry_run {
        let started_at = bulk.started_at.as_microsecond();
        let results = act::act(step, &bulk.actor, bulk.action, &taken.tasks, started_at)?;
        done = results.into_iter().filter(|acted: &Acted| acted.is_done()).count();
    }
    let (micros, at_id) = (taken.after.map(|at| at.micros), taken.after.map(|at| at.id.0));
    let matched = taken.tasks.len() as i64;
    let row = params![taken.bulk.0, matched, done as i64, taken.place, micros, at_id, taken.is_last];
    step.db.run(TAKE_STEP, row)?;
    Ok(true)
}

/// Stops a bulk, or lets one that was stopped go on.
pub(crate) fn set_state(
    step: &Step<'_>,
    actor: &Actor,
    id: BulkId,
    state: BulkState,
) -> rusqlite::Result<bool> {
    let Some(before) = view(step.db, id)? else { return Ok(false) };
    if state == BulkState::Finished || step.db.run(SET_STATE, params![id.0, state.stored()])? == 0 {
        return Ok(false);
    }
    let action = if state == BulkState::Aborted { "abort_bulk" } else { "resume_bulk" };
    let record = Record {
        action,
        subject: format!("bulk {}", id.0),
        tasks: &[],
        before: Some(json!({"state": before.state})),
        after: Some(json!({"state": state})),
    };
    audit::record(step, actor, record)?;
    Ok(true)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Bulk> {
    let at: Option<(i64, i64)> = row.get::<_, Option<i64>>(12)?.zip(row.get(13)?);
    Ok(Bulk {
        id: BulkId(row.get(0)?),
        actor: row::actor(row.get(1)?, row.get(2)?)?,
        action: serde_json::from_str(row.get_ref(3)?.as_str()?).map_err(unreadable)?,
        filter: row.get_ref(4)?.as_str()?.parse::<Filter>().map_err(unreadable)?,
        dry_run: row.get(5)?,
        state: BulkState::from_stored(row.get_ref(6)?.as_str()?),
        started_at: row::timestamp(row.get(7)?)?,
        steps: row::count(row, 8)?,
        matched: row::count(row, 9)?,
        done: row::count(row, 10)?,
        place: row.get(11)?,
        after: at.map(|(micros, id)| Cursor { micros, id: TaskId(id) }),
        pace: row.get(14)?,
    })
}
