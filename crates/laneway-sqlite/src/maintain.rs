//! House-keeping that nobody waits for.

use std::time::Duration;

use rusqlite::Connection;

use crate::error::is_busy;
use crate::file::BUSY_TIMEOUT;
use crate::row::Sql;
use crate::writer::Step;

/// Lanes that one round looks at. Their number is found in one scan, so this bounds the time that others wait.
const LANES_MAX: i64 = 10_000;
/// Families of which one round looks whether anybody remembers them.
const BROODS_MAX: i64 = 1_000;
/// How long an empty lane is remembered.
const LANES_KEPT_US: i64 = 600_000_000;

// A lane that comes back is simply made again; only what an operator has said about it must stay.
const DELETE_IDLE_LANES: &str = "
delete from lane
where id in (
    select id
    from lane
    where issued = 0
      and own = 0
      and interval_us = 0
      and halts = 0
      and halted = 0
      and paused = 0
      and used_at < ?2
      and not exists (select 1 from task where task.queue = lane.queue and task.lane = lane.id)
      and id not in (select lane from later)
      and id not in (select lane from leased)
      and id not in (select lane from waiting)
    limit ?1
)";

// The ranges of children are kept as long as their parent is. Some of them from anywhere, since most are still needed.
const DELETE_BROODS: &str = "
delete from brood
where parent in (
    select parent
    from brood
    where parent >= (select min(parent) + abs(random()) % (max(parent) - min(parent) + 1) from brood)
    order by parent
    limit ?1
)
  and not exists (select 1 from task where task.id = brood.parent)
  and not exists (select 1 from later where later.id = brood.parent)
  and not exists (select 1 from leased where leased.id = brood.parent)
  and not exists (select 1 from waiting where waiting.id = brood.parent)
  and not exists (select 1 from ended where ended.id = brood.parent)";

/// Removes what is known about the children of tasks that are gone.
pub(crate) fn remove_broods(step: &Step<'_>) -> rusqlite::Result<usize> {
    step.db.run(DELETE_BROODS, [BROODS_MAX])
}

/// Removes lanes that have held nothing for a while and say nothing.
pub(crate) fn remove_idle_lanes(step: &Step<'_>) -> rusqlite::Result<usize> {
    step.db.run(DELETE_IDLE_LANES, [LANES_MAX, step.now - LANES_KEPT_US])
}

/// Moves the log into the file, and shortens it if nobody reads from it just now.
pub(crate) fn checkpoint(db: &Connection) -> rusqlite::Result<()> {
    // The writing thread must not wait for readers; the next round comes soon enough.
    db.busy_timeout(Duration::ZERO)?;
    let result = db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()));
    db.busy_timeout(BUSY_TIMEOUT)?;
    match result {
        Err(error) if is_busy(&error) => Ok(()),
        result => result,
    }
}
