//! Moves tasks into leases. Which ones is decided in `pick.rs`.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Row, params};
use uuid::Uuid;

use laneway_core::{
    Claim, Claimed, Json, LaneKey, LeaseId, LeaseRef, LeaseToken, QueueName, SessionId, State, Task, TaskId,
};

use crate::pause;
use crate::pick::Picker;
use crate::queue;
use crate::row::{self, Sql, carried};
use crate::unique;
use crate::writer::Step;

const NEXT_LEASE: &str = "update sequence set last = last + 1 where name = 'lease' returning last";

const READ: &str = concat!("select id, ", carried!(), ", ready_at from task where id = ?1");

const INSERT_LEASED: &str = "
insert into leased (
    id,
    lease,
    queue,
    lane,
    priority,
    attempt,
    max_attempts,
    crashes,
    parent,
    depth,
    enqueued_at,
    started_at,
    kind,
    options,
    payload,
    error,
    ready_at
)
select id,
       ?2,
       queue,
       lane,
       priority,
       attempt,
       max_attempts,
       crashes,
       parent,
       depth,
       enqueued_at,
       ?3,
       kind,
       options,
       payload,
       error,
       ready_at
from task
where id = ?1";

const DELETE_TASK: &str = "delete from task where id = ?1";

const INSERT_LEASE: &str = "
insert into lease (id, session, token, advance_number, open, tasks)
values (?1, ?2, ?3, ?4, ?5, ?6)";

/// Serves `claims` in order, and records what was taken in leases.
pub(crate) fn claim(
    step: &mut Step<'_>,
    session: SessionId,
    number: u64,
    claims: &[Claim],
) -> rusqlite::Result<Vec<Claimed>> {
    let mut leases = Leases::default();
    let mut claimed = Vec::new();
    for claim in claims {
        let Some(queue) = queue::find(step.db, &claim.queue)? else { continue };
        if claim.max == 0 || !queue::is_open(step.db, queue)? {
            continue;
        }
        let claim = pause::open_claim(step.db, queue, claim)?;
        let mut taken = Picker::new(step, &claim, queue, number)?.pick(step, &mut leases)?;
        step.tally.started(queue, taken.len());
        for Taken { task, .. } in &taken {
            step.feed.entered(queue, State::Leased, task.id.0, task.kind.as_str());
        }
        taken.sort_unstable_by_key(|Taken { task, .. }| (task.priority, task.id));
        claimed.extend(taken);
    }
    leases.record(step, session, number)?;
    let claimed = claimed.into_iter();
    Ok(claimed
        .map(|Taken { lease, task, waited }| Claimed { task, lease: leases.show(lease), waited })
        .collect())
}

/// A task that was moved into a lease.
pub(crate) struct Taken {
    lease: i64,
    task: Task,
    waited: Duration,
}

/// How long a task had been runnable when it was claimed. `ready_at` is null for one that was runnable from the beginning.
pub(crate) fn waited(task: &Task, ready_at: Option<i64>, claimed_at: i64) -> Duration {
    let ready_at = ready_at.unwrap_or_else(|| task.enqueued_at.as_microsecond());
    Duration::from_micros((claimed_at - ready_at).max(0) as u64)
}

/// The task in a row of the id and the carried columns.
pub(crate) fn task_from(row: &Row<'_>, queue: QueueName, lane: Option<LaneKey>) -> rusqlite::Result<Task> {
    Ok(Task {
        id: TaskId(row.get(0)?),
        queue,
        lane,
        priority: row.get(3)?,
        attempt: row.get::<_, u32>(4)? + 1,
        max_attempts: row.get(5)?,
        crashes: row.get(6)?,
        parent: row::parent(row.get(7)?),
        depth: row.get(8)?,
        enqueued_at: row::timestamp(row.get(9)?)?,
        kind: row::kind(row.get(11)?)?,
        options: row::options(row.get_ref(12)?.as_str_or_null()?)?,
        payload: Json::trusted(row.get_ref(13)?.as_str()?),
    })
}

/// The leases of one advance: one for all tasks, and one for each task that shall have its own.
#[derive(Default)]
pub(crate) struct Leases {
    shared: Option<i64>,
    made: HashMap<i64, (LeaseToken, Vec<i64>)>,
}

impl Leases {
    /// Moves a task of `claim` from `task` into a lease, and returns both.
    pub(crate) fn take(
        &mut self,
        step: &Step<'_>,
        claim: &Claim,
        id: i64,
        lane: Option<LaneKey>,
    ) -> rusqlite::Result<Taken> {
        let mut read = step.db.prepare_cached(READ)?;
        let (queue, task, ready_at) = read.query_row([id], |row| {
            Ok((row.get(1)?, task_from(row, claim.queue.clone(), lane)?, row.get(15)?))
        })?;
        let waited = waited(&task, ready_at, step.now);
        let lease = self.lease(step, claim.alone.contains(&task.kind))?;
        if let Some((_, tasks)) = self.made.get_mut(&lease) {
            tasks.push(id);
        }
        unique::release_started(step, queue, task.kind.as_str(), id, &task.options)?;
        step.db.run(INSERT_LEASED, [id, lease, step.now])?;
        step.db.run(DELETE_TASK, [id])?;
        Ok(Taken { lease, task, waited })
    }

    /// The lease that the next task goes into.
    fn lease(&mut self, step: &Step<'_>, alone: bool) -> rusqlite::Result<i64> {
        if let Some(shared) = self.shared.filter(|_| !alone) {
            return Ok(shared);
        }
        let id = step.db.prepare_cached(NEXT_LEASE)?.query_row([], |row| row.get(0))?;
        self.made.insert(id, (LeaseToken(Uuid::new_v4()), vec![]));
        if !alone {
            self.shared = Some(id);
        }
        Ok(id)
    }

    fn record(&self, step: &Step<'_>, session: SessionId, number: u64) -> rusqlite::Result<()> {
        for (id, (token, tasks)) in &self.made {
            let (session, token) = (session.0.as_bytes().as_slice(), token.0.as_bytes().as_slice());
            let packed = row::pack_ids(tasks);
            step.db.run(
                INSERT_LEASE,
                params![id, session, token, row::advance_number(number), tasks.len() as i64, packed],
            )?;
        }
        Ok(())
    }

    fn show(&self, lease: i64) -> LeaseRef {
        let (token, tasks) = &self.made[&lease];
        LeaseRef { id: LeaseId(lease), token: *token, tasks: tasks.len() as u32 }
    }
}
