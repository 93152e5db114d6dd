//! Gives back what dead workers left.
//!
//! It starts from leases and asks whether their session lives, not from the sessions that it removes: a lease
//! whose session is gone for whatever reason is found by every sweep.

use laneway_core::Swept;
use laneway_core::liveness::{CRASHES_MAX, SESSION_SILENCE_MAX};

use crate::clock::micros;
use crate::end::{self, Charge, Ending, Leased};
use crate::line;
use crate::queue;
use crate::renew::lease_tasks;
use crate::row::Sql;
use crate::writer::Step;

const DELETE_SILENT: &str = "delete from worker where seen_at < ?1";

const ORPHANS: &str = "
select id,
       tasks
from lease
where not exists (select 1 from worker where worker.session = lease.session)
order by id desc";

/// Removes silent sessions and gives back what nobody runs.
pub(crate) fn sweep(step: &mut Step<'_>) -> rusqlite::Result<Swept> {
    let sessions = step.db.run(DELETE_SILENT, [step.now - micros(SESSION_SILENCE_MAX)])?;
    let mut swept = Swept { sessions: sessions as u32, ..Swept::default() };
    let mut lanes = Vec::new();
    for (lease, tasks) in step.db.all(ORPHANS, [], lease_tasks)? {
        for id in tasks {
            if let Some(task) = end::leased(step, lease, id)? {
                rescue(step, &task, &mut swept, &mut lanes)?;
            }
        }
        step.db.run("delete from lease where id = ?1", [lease])?;
    }
    line::refresh_all(step, lanes)?;
    Ok(swept)
}

fn rescue(
    step: &mut Step<'_>,
    task: &Leased,
    swept: &mut Swept,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<()> {
    if end::is_cancel_requested(step, task.id)? {
        return end::end_leased(step, task, 0, Ending::cancelled(None), lanes);
    }
    let crashed = Charge { crashes: 1, ..Charge::default() };
    if task.crashes + 1 < CRASHES_MAX {
        swept.given_back += 1;
        let queue = queue::name(step.db, task.queue)?;
        *swept.rescued.entry(queue).or_default() += 1;
        return end::give_back(step, task, crashed, lanes);
    }
    swept.poisoned += 1;
    end::charge(step, task.id, crashed)?;
    let error = format!("worker died {CRASHES_MAX} times while running this task; it is not tried again");
    end::end_leased(step, task, 0, Ending::failed(error), lanes)
}
