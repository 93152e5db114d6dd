//! Is there anything to claim? Asked before somebody sleeps, and before sleepers are told.

use rusqlite::{Connection, params};

use laneway_core::{Claim, Kinds, QueueName};

use crate::pause;
use crate::queue;
use crate::row::{self, Sql};

// The index on turns is partial, so the condition has to be repeated.
const IN_QUEUE: &str = "
select 1
from queue
where id = ?1
  and paused = 0
  and (exists (select 1 from task where task.queue = ?1 and task.lane = 0)
    or exists (select 1 from turn where turn.queue = ?1 and turn.priority is not null))";

const CLAIMABLE_TASK: &str = "
select 1
from task
where queue = ?1
  and lane = 0
  and (?2 is null or kind in (select value from json_each(?2)))
limit 1";

const DUE: &str = "
select 1
from later
where due_at <= ?3
  and queue = ?1
  and (?2 is null or kind in (select value from json_each(?2)))
limit 1";

const RESTED: &str = "
select 1
from parked
join lane on lane.id = parked.lane
where parked.until <= ?2
  and lane.queue = ?1
limit 1";

// The task that a turn in the line would take, by the rules of `claim.rs`.
const CLAIMABLE_TURN: &str = "
select 1
from turn
join lane on lane.id = turn.lane
where turn.queue = ?1
  and turn.priority is not null
  and (?2 is null or exists (
      select 1
      from task
      where task.queue = turn.queue
        and task.lane = turn.lane
        and task.kind in (select value from json_each(?2))
        and case
            when turn.task_id is not null then task.id = turn.task_id
            when lane.lim > 1 then true
            else task.id = (
                select head.id
                from task as head
                where head.queue = turn.queue
                  and head.lane = turn.lane
                order by head.priority, head.id
                limit 1
            )
        end
  ))
limit 1";

/// True when something of `queue` can be claimed by a worker that runs all kinds.
pub(crate) fn in_queue(db: &Connection, queue: i64) -> rusqlite::Result<bool> {
    db.any(IN_QUEUE, [queue])
}

/// True when a worker of these queues and kinds has something to claim.
pub(crate) fn for_worker(
    db: &Connection,
    queues: &[QueueName],
    kinds: &Kinds,
    now: i64,
) -> rusqlite::Result<bool> {
    if pause::is_expired(db, now)? {
        return Ok(true);
    }
    for name in queues {
        let Some(queue) = queue::find(db, name)? else { continue };
        let claim = Claim { queue: name.clone(), max: 1, kinds: kinds.clone(), alone: vec![] };
        let kinds = match &pause::open_claim(db, queue, &claim)?.kinds {
            Kinds::All => None,
            Kinds::Only(kinds) => Some(row::json_array(kinds)),
        };
        if queue::is_open(db, queue)?
            && (db.any(CLAIMABLE_TASK, params![queue, kinds])?
                || db.any(CLAIMABLE_TURN, params![queue, kinds])?
                || db.any(DUE, params![queue, kinds, now])?
                || db.any(RESTED, [queue, now])?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
