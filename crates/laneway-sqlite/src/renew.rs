//! Sessions: registering, renewing, and ending in an orderly way.

use rusqlite::{Row, params};

use laneway_core::{Capacity, Orders, Registration, Renewal, Renewed, SessionId, TaskId};

use crate::end::{self, Charge, Ending};
use crate::line;
use crate::row::{self, Sql};
use crate::writer::Step;

const REGISTER: &str = "
insert into worker (
    session,
    name,
    queues,
    kinds,
    slots,
    free,
    memory_percent,
    draining,
    started_at,
    seen_at
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
on conflict (session) do update
set name = excluded.name,
    queues = excluded.queues,
    kinds = excluded.kinds,
    slots = excluded.slots,
    free = excluded.free,
    memory_percent = excluded.memory_percent,
    draining = excluded.draining,
    seen_at = excluded.seen_at";

const RENEW: &str = "
update worker
set slots = ?2,
    free = ?3,
    memory_percent = ?4,
    draining = ?5,
    seen_at = ?6
where session = ?1";

const ORDERED: &str = "select drain_ordered, stop_ordered from worker where session = ?1";

const LEASES: &str = "
select id,
       tasks
from lease
where session = ?1
  and advance_number <= ?2
order by id desc";

const CANCEL_REQUESTS: &str = "
select cancel_request.task_id
from cancel_request
join leased on leased.id = cancel_request.task_id
join lease on lease.id = leased.lease
where lease.session = ?1
order by cancel_request.task_id";

/// A lease and the tasks that were claimed with it.
pub(crate) type LeaseTasks = (i64, Vec<i64>);

/// Makes a session known, or renews it.
pub(crate) fn register(step: &Step<'_>, registration: &Registration) -> rusqlite::Result<()> {
    let Capacity { slots, free, memory_percent, draining } = registration.capacity;
    let session = registration.session.0.as_bytes().as_slice();
    let queues = serde_json::to_string(&registration.queues).expect("names can be encoded");
    let name = &registration.name;
    let kinds = row::stored_kinds(&registration.kinds);
    step.db
        .run(REGISTER, params![session, name, queues, kinds, slots, free, memory_percent, draining, step.now])
        .map(|_| ())
}

/// Renews a session, gives back what it does not know that it has, and brings its orders.
pub(crate) fn renew(step: &mut Step<'_>, renewal: &Renewal) -> rusqlite::Result<Renewed> {
    let Capacity { slots, free, memory_percent, draining } = renewal.capacity;
    let session = renewal.session.0.as_bytes().as_slice();
    if step.db.run(RENEW, params![session, slots, free, memory_percent, draining, step.now])? == 0 {
        return Ok(Renewed::Lost);
    }
    let mut unknown =
        step.db.all(LEASES, params![session, row::advance_number(renewal.advance_number)], lease_tasks)?;
    unknown.retain(|(lease, _)| !renewal.leases.iter().any(|known| known.0 == *lease));
    let given_back = give_back(step, unknown)?;
    let cancel = step.db.all(CANCEL_REQUESTS, [session], |row| row.get(0).map(TaskId))?;
    let ordered = step.db.first(ORDERED, [session], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (drain, stop) = ordered.unwrap_or_default();
    Ok(Renewed::Alive(Orders { cancel, drain, stop, given_back }))
}

/// Ends a session and gives back what it has.
pub(crate) fn deregister(step: &mut Step<'_>, session: SessionId) -> rusqlite::Result<()> {
    let session = session.0.as_bytes().as_slice();
    let leases = step.db.all(LEASES, params![session, i64::MAX], lease_tasks)?;
    give_back(step, leases)?;
    step.db.run("delete from worker where session = ?1", [session]).map(|_| ())
}

/// Reads a lease's id and tasks. The last task comes first: what is put to the front of the line last stands first.
pub(crate) fn lease_tasks(row: &Row<'_>) -> rusqlite::Result<LeaseTasks> {
    let mut tasks = row::unpack_ids(row.get_ref(1)?.as_blob()?);
    tasks.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    Ok((row.get(0)?, tasks))
}

/// Gives back the unfinished tasks of leases, uncharged, and returns how many are runnable again.
fn give_back(step: &mut Step<'_>, leases: Vec<LeaseTasks>) -> rusqlite::Result<u32> {
    let (mut lanes, mut given_back) = (Vec::new(), 0);
    for (lease, tasks) in leases {
        for id in tasks {
            let Some(task) = end::leased(step, lease, id)? else { continue };
            if end::is_cancel_requested(step, id)? {
                end::end_leased(step, &task, 0, Ending::cancelled(None), &mut lanes)?;
            } else {
                end::give_back(step, &task, Charge::default(), &mut lanes)?;
                given_back += 1;
            }
        }
        step.db.run("delete from lease where id = ?1", [lease])?;
    }
    line::refresh_all(step, lanes)?;
    Ok(given_back)
}
