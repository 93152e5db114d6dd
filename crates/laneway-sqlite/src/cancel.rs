//! Ends a task that is not running, or has its worker told.

use laneway_core::{Cancel, TaskId};

use crate::end::{self, Ending, Table};
use crate::family;
use crate::line;
use crate::row::{self, Sql};
use crate::turn;
use crate::writer::Step;

const HAS_ENDED: &str = "select 1 from ended where id = ?1";
const REQUEST: &str = "insert into cancel_request (task_id) values (?1) on conflict do nothing";

const SESSION: &str =
    "select lease.session from leased join lease on lease.id = leased.lease where leased.id = ?1";

/// Cancels a task wherever it is, with its children and theirs.
pub(crate) fn cancel(step: &mut Step<'_>, task: TaskId) -> rusqlite::Result<Cancel> {
    let answer = stop(step, task.0)?;
    family::fold(step)?;
    // A parent of which no child was running has ended with them.
    match answer {
        Cancel::Requested if step.db.any(HAS_ENDED, [task.0])? => Ok(Cancel::Cancelled),
        answer => Ok(answer),
    }
}

/// Ends a task that does not run, or notes that it shall stop. Its family is not told yet.
pub(crate) fn stop(step: &mut Step<'_>, id: i64) -> rusqlite::Result<Cancel> {
    if let Some(lane) = step.db.first("select lane from task where id = ?1", [id], |row| row.get(0))? {
        cancel_pending(step, id, lane)?;
        return Ok(Cancel::Cancelled);
    }
    let later = step.db.first("select lane, holds_turn from later where id = ?1", [id], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    if let Some((lane, holds_turn)) = later {
        cancel_later(step, id, lane, holds_turn)?;
        return Ok(Cancel::Cancelled);
    }
    if let Some(session) = step.db.first(SESSION, [id], |row| row::session(row.get_ref(0)?.as_blob()?))? {
        step.db.run(REQUEST, [id])?;
        step.news.orders(session);
        return Ok(Cancel::Requested);
    }
    if step.db.any("select 1 from waiting where id = ?1", [id])? {
        family::stop(step, id)?;
        return Ok(Cancel::Requested);
    }
    let ended = step.db.first("select state from ended where id = ?1", [id], |row| row.get(0))?;
    Ok(ended.map_or(Cancel::NotFound, |state| Cancel::Ended(end::state_from_stored(state))))
}

fn cancel_pending(step: &mut Step<'_>, id: i64, lane: i64) -> rusqlite::Result<()> {
    end::end_waiting(step, Table::Task, id, lane, Ending::cancelled(None))?;
    if lane == 0 {
        return Ok(());
    }
    turn::unbind(step, lane, id)?;
    line::refresh(step, lane)
}

fn cancel_later(step: &mut Step<'_>, id: i64, lane: i64, holds_turn: bool) -> rusqlite::Result<()> {
    end::end_waiting(step, Table::Later, id, lane, Ending::cancelled(None))?;
    if holds_turn && turn::release(step, lane)? {
        line::refresh(step, lane)?;
    }
    Ok(())
}
