//! Makes runnable what has become due: tasks in `later`, and lanes whose interval is over.

use rusqlite::Connection;

use laneway_core::State;

use crate::line;
use crate::pause;
use crate::row::{Sql, carried};
use crate::turn::{self, End};
use crate::writer::Step;

/// Tasks that one step moves at most, so that a storm of due tasks does not stop everybody else.
const DUE_MAX: i64 = 10_000;

const DUE: &str = "
select id,
       queue,
       lane,
       holds_turn,
       kind
from later
where due_at <= ?1
order by due_at, id
limit ?2";

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
    let tasks: Vec<(i64, i64, i64, bool, String)> = step.db.all(DUE, [step.now, DUE_MAX], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    })?;
    let mut lanes = step.db.all(RESTED, [step.now], |row| row.get(0))?;
    for (id, queue, lane, holds_turn, kind) in tasks {
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
    }
    line::refresh_all(step, lanes)?;
    pause::end_expired(step)
}

/// When the next task or lane is due or the next schedule fires, in any queue.
pub(crate) fn next_due(db: &Connection) -> rusqlite::Result<Option<i64>> {
    db.first(NEXT_DUE, [], |row| row.get(0)).map(Option::flatten)
}
