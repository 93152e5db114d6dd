//! Tasks that wait in `later`, without a due time, until another one has ended.

use laneway_core::{State, When};
use rusqlite::params;

use crate::clock::micros;
use crate::due;
use crate::end::{self, Ending, Table};
use crate::line;
use crate::row::Sql;
use crate::writer::Step;

/// The due time of what has none yet.
pub(crate) const NEVER: i64 = i64::MAX;

const HOLD: &str = "insert into follow_up (id, after, keep, delay_us, due_at) values (?1, ?2, ?3, ?4, ?5)";

const WAITING: &str = "
select follow_up.id,
       follow_up.keep,
       max(?2 + coalesce(delay_us, 0), coalesce(follow_up.due_at, 0)),
       later.lane
from follow_up
join later on later.id = follow_up.id
where after = ?1
order by follow_up.id";

const SET_DUE: &str = "update later set due_at = ?2 where id = ?1";
const FORGET: &str = "delete from follow_up where id = ?1";

/// Notes that `id` waits for the end of `after`.
pub(crate) fn hold(step: &Step<'_>, id: i64, after: i64, keep: bool, when: When) -> rusqlite::Result<()> {
    let (delay_us, due_at) = match when {
        When::Now => (None, None),
        When::After(delay) => (Some(micros(delay)), None),
        When::At(due) => (None, Some(due.as_microsecond())),
    };
    step.db.run(HOLD, params![id, after, keep, delay_us, due_at]).map(|_| ())
}

/// A task has ended: what follows it becomes runnable, or ends as cancelled.
pub(crate) fn release(step: &mut Step<'_>, after: i64, state: State) -> rusqlite::Result<()> {
    let waiting: Vec<(i64, bool, i64, i64)> = step
        .db
        .all(WAITING, [after, step.now], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    for (id, keep, due_at, lane) in waiting {
        if state == State::Completed || state == State::Failed && keep {
            start(step, id, due_at)?;
        } else {
            let reason = match state {
                State::Failed => format!("task {after} failed"),
                _ => format!("task {after} was cancelled"),
            };
            end::end_waiting(step, Table::Later, id, lane, Ending::cancelled(Some(reason)))?;
        }
    }
    Ok(())
}

fn start(step: &mut Step<'_>, id: i64, due_at: i64) -> rusqlite::Result<()> {
    forget(step, id)?;
    step.db.run(SET_DUE, [id, due_at])?;
    if due_at > step.now {
        step.news.due(due_at);
        return Ok(());
    }
    let mut lanes = Vec::new();
    due::make_runnable(step, id, &mut lanes)?;
    line::refresh_all(step, lanes)
}

/// A task waits no longer.
pub(crate) fn forget(step: &Step<'_>, id: i64) -> rusqlite::Result<()> {
    step.db.run(FORGET, [id]).map(|_| ())
}
