//! One step of a worker: settle, move what is due, count the ends of children, claim.

use std::time::Duration;

use rusqlite::params;

use laneway_core::{
    Advance, Advanced, Claim, Claimed, LeaseId, LeaseRef, LeaseToken, Left, Limits, SessionId, Verdict,
};

use crate::claim::{self, task_from, waited};
use crate::due;
use crate::family;
use crate::lane;
use crate::queue;
use crate::row::{self, Sql, carried};
use crate::settle;
use crate::writer::Step;

const IS_KNOWN: &str = "select 1 from worker where session = ?1";

const LEASES_OF_ADVANCE: &str = "
select id,
       token,
       tasks
from lease
where session = ?1
  and advance_number = ?2
order by id";

const LEASED_TASK: &str = concat!(
    "select id, ",
    carried!(),
    ", ",
    "(select name from queue where queue.id = leased.queue), ",
    "(select key from lane where lane.id = leased.lane), ready_at ",
    "from leased where id = ?1 and lease = ?2"
);

const HAS_TASK: &str = "select 1 from task where queue = ?1 limit 1";

/// Carries out an advance.
pub(crate) fn advance(step: &mut Step<'_>, limits: &Limits, advance: Advance) -> rusqlite::Result<Advanced> {
    let Advance { session, number, again, settles, claims, scan: _ } = advance;
    let known = step.db.any(IS_KNOWN, [session.0.as_bytes().as_slice()])?;
    // A living worker that asks again lost the answer, not the lease.
    let missing = if again && known { Verdict::Already } else { Verdict::Stale };
    let settled = settle::settle(step, limits, session, missing, settles)?;
    due::due(step)?;
    family::fold(step)?;

    let mut claimed = if again && known { claimed_before(step, session, number, &claims)? } else { vec![] };
    if known && claimed.is_empty() {
        claimed = claim::claim(step, session, number, &claims)?;
    }
    let wanted: u64 = claims.iter().map(|claim| u64::from(claim.max)).sum();
    let filled = !claims.is_empty() && claimed.len() as u64 >= wanted;
    let left = if filled { Left::More } else { left(step, &claims)? };
    let next_due = if filled { None } else { due::next_due(step.db)? };
    Ok(Advanced {
        settled,
        claimed,
        left,
        next_due: next_due.map(|due| Duration::from_micros(due.saturating_sub(step.now).max(0) as u64)),
        session_lost: !known,
    })
}

/// What the first try of an advance claimed and is not settled yet.
fn claimed_before(
    step: &Step<'_>,
    session: SessionId,
    number: u64,
    claims: &[Claim],
) -> rusqlite::Result<Vec<Claimed>> {
    let key = params![session.0.as_bytes().as_slice(), row::advance_number(number)];
    let leases = step.db.all(LEASES_OF_ADVANCE, key, |row| {
        let token = LeaseToken(row::uuid(row.get_ref(1)?.as_blob()?)?);
        let tasks = row::unpack_ids(row.get_ref(2)?.as_blob()?);
        Ok((LeaseRef { id: LeaseId(row.get(0)?), token, tasks: tasks.len() as u32 }, tasks))
    })?;
    let mut claimed = Vec::new();
    for (lease, tasks) in leases {
        for id in tasks {
            let found = step.db.first(LEASED_TASK, [id, lease.id.0], |row| {
                let lane: Option<String> = row.get(16)?;
                let lane = lane.map(lane::shown_key).transpose()?.flatten();
                let task = task_from(row, row::queue_name(row.get(15)?)?, lane)?;
                // Column 10 is when it was claimed.
                let waited = waited(&task, row.get(17)?, row.get(10)?);
                Ok(Claimed { task, lease, waited })
            })?;
            claimed.extend(found);
        }
    }
    let order = |claimed: &Claimed| claims.iter().position(|claim| claim.queue == claimed.task.queue);
    claimed.sort_by_key(|claimed| (order(claimed), claimed.task.priority, claimed.task.id));
    Ok(claimed)
}

fn left(step: &Step<'_>, claims: &[Claim]) -> rusqlite::Result<Left> {
    for claim in claims {
        if let Some(queue) = queue::find(step.db, &claim.queue)?
            && step.db.any(HAS_TASK, [queue])?
        {
            return Ok(Left::Blocked);
        }
    }
    Ok(Left::Nothing)
}
