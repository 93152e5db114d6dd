//! Makes runnable what has become due: tasks in `later`, and lanes whose interval is over.

use rusqlite::Connection;

use laneway_core::State;

use crate::follow_up::NEVER;
use crate::line;
use crate::pause;
use crate::row::{Sql, carried};
use crate::turn::{self, End};
use crate::writer::Step;

/// Tasks that one step moves at most, so that a storm of due tasks does not stop everybody else.
const DUE_MAX: i64 = 10_000;

const DUE: &str = "select id from later where due_at <= ?1 order by due_at, id limit ?2";

const LATER: &str = "select queue, lane, holds_turn, kind from later where id = ?1";

const TO_TASK: &str = concat!(
    "insert into task (id, ready_at, ",
    carried!(),
    ") select id, due_at, ",
    carried!(),
    " from later where id = ?1"
);

const RESTED: &str = "select lane from parked where until <= ?1";

const NEXT_DUE: &str = "
select min(at)
from (
    select min(due_at) as at from later
    union all
    select min(until) from parked
    union all
    select min(next_fire_at) from schedule
    union all
    select min(expires_at) from pause where expires_at is not null
)";

/// Moves what is due into place, in the order in which it became due.
pub(crate) fn due(step: &mut Step<'_>) -> rusqlite::Result<()> {
    let tasks: Vec<i64> = step.db.all(DUE, [step.now, DUE_MAX], |row| row.get(0))?;
    let mut lanes = step.db.all(RESTED, [step.now], |row| row.get(0))?;
    tasks.into_iter().try_for_each(|id| make_runnable(step, id, &mut lanes))?;
    line::refresh_all(step, lanes)?;
    pause::end_expired(step)
}

/// Moves a task from `later` to `task`; the caller refreshes `lanes`.
pub(crate) fn make_runnable(step: &mut Step<'_>, id: i64, lanes: &mut Vec<i64>) -> rusqlite::Result<()> {
    let found = step.db.first(LATER, [id], |row| {
        Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?, row.get::<_, String>(3)?))
    })?;
    let Some((queue, lane, holds_turn, kind)) = found else { return Ok(()) };
    step.feed.entered(queue, State::Pending, id, &kind);
    step.db.run(TO_TASK, [id])?;
    step.db.run("delete from later where id = ?1", [id])?;
    step.news.runnable(queue);
    if holds_turn {
        turn::come_back(step, lane, id, End::Back)?;
    } else if lane != 0 {
        let row = turn::lane_row(step, lane)?;
        turn::issue(step, &row, 1)?;
    }
    if lane != 0 {
        lanes.push(lane);
    }
    Ok(())
}

/// When the next task or lane is due or the next schedule fires, in any queue.
pub(crate) fn next_due(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let next: Option<i64> = db.first(NEXT_DUE, [], |row| row.get(0))?.flatten();
    Ok(next.filter(|due| *due != NEVER))
}
