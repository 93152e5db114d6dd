//! How far running attempts are.
//!
//! A report is kept beside its task and shown while the lease that it names holds the task, so the end of an attempt has
//! nothing to remove.

use rusqlite::{Connection, params};

use laneway_core::{ProgressView, Report, SessionId, State, TaskView};

use crate::row::{self, Sql};
use crate::writer::Step;

const REPORT: &str = "
insert into progress (task_id, lease, at, fraction, note)
select leased.id, leased.lease, ?4, ?5, ?6
from leased
join lease on lease.id = leased.lease
where leased.id = ?1
  and leased.lease = ?2
  and lease.session = ?3
on conflict (task_id) do update
set lease = excluded.lease,
    at = excluded.at,
    fraction = excluded.fraction,
    note = excluded.note";

const OF_TASK: &str = "
select progress.fraction,
       progress.note,
       progress.at
from progress
join leased on leased.id = progress.task_id and leased.lease = progress.lease
where progress.task_id = ?1";

const REMOVE_OLD: &str = "
delete from progress
where not exists (
    select 1 from leased where leased.id = progress.task_id and leased.lease = progress.lease
)";

/// Keeps what a session tells about tasks that run under its leases.
pub(crate) fn report(step: &Step<'_>, session: SessionId, reports: &[Report]) -> rusqlite::Result<()> {
    let session = session.0.as_bytes().as_slice();
    for Report { task, lease, progress } in reports {
        step.db.run(REPORT, params![task.0, lease.0, session, step.now, progress.fraction, progress.note])?;
    }
    Ok(())
}

/// Adds what a running task has told to what is shown of it.
pub(crate) fn add(db: &Connection, task: &mut TaskView) -> rusqlite::Result<()> {
    if task.state == State::Leased {
        task.progress = db.first(OF_TASK, [task.id.0], |row| {
            Ok(ProgressView { fraction: row.get(0)?, note: row.get(1)?, at: row::timestamp(row.get(2)?)? })
        })?;
    }
    Ok(())
}

/// Removes what ended attempts have left.
pub(crate) fn remove_old(step: &Step<'_>) -> rusqlite::Result<()> {
    step.db.run(REMOVE_OLD, []).map(|_| ())
}
