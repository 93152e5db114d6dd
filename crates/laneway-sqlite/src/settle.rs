//! Records how attempts ended, if the caller still owns them.
//!
//! A settle is exact: lease, token and session must match, and the lease must still have the task. Everything
//! else is answered and changes nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use laneway_core::{Limits, Outcome, SessionId, Settle, Settled, Spawned, State, Verdict};

use crate::clock::micros;
use crate::end::{self, Charge, Ending, Leased};
use crate::line;
use crate::row::{self, Sql};
use crate::spawn;
use crate::writer::Step;

const LEASE: &str = "
select session,
       token,
       open,
       tasks
from lease
where id = ?1";

const SET_OPEN: &str = "update lease set open = ?2 where id = ?1";
const DELETE_LEASE: &str = "delete from lease where id = ?1";

/// Records `settles` in order. `missing` is what a settle is told whose lease is gone.
pub(crate) fn settle(
    step: &mut Step<'_>,
    limits: &Limits,
    session: SessionId,
    missing: Verdict,
    settles: Vec<Settle>,
) -> rusqlite::Result<Vec<Settled>> {
    let mut leases = HashMap::new();
    let mut lanes = Vec::new();
    let mut settled = Vec::with_capacity(settles.len());
    for settle in settles {
        let task = settle.task;
        let lease = match leases.entry(settle.lease.id.0) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Lease::load(step, settle.lease.id.0)?),
        };
        let verdict = match lease {
            None => missing,
            Some(lease) if lease.belongs_to(session, &settle) => {
                settle_one(step, limits, lease, settle, &mut lanes)?
            }
            Some(_) => Verdict::Stale,
        };
        settled.push(Settled { task, verdict });
    }
    // Only now: a task that is named twice must still find its lease.
    leases.into_values().flatten().try_for_each(|lease| lease.save(step))?;
    line::refresh_all(step, lanes)?;
    Ok(settled)
}

struct Lease {
    id: i64,
    session: Vec<u8>,
    token: Vec<u8>,
    open: i64,
    open_before: i64,
    tasks: Vec<u8>,
}

impl Lease {
    fn load(step: &Step<'_>, id: i64) -> rusqlite::Result<Option<Self>> {
        step.db.first(LEASE, [id], |row| {
            let open = row.get(2)?;
            Ok(Self {
                id,
                session: row.get(0)?,
                token: row.get(1)?,
                open,
                open_before: open,
                tasks: row.get(3)?,
            })
        })
    }

    fn belongs_to(&self, session: SessionId, settle: &Settle) -> bool {
        self.session == session.0.as_bytes() && self.token == settle.lease.token.0.as_bytes()
    }

    fn save(self, step: &Step<'_>) -> rusqlite::Result<()> {
        match self.open {
            0 => step.db.run(DELETE_LEASE, [self.id])?,
            open if open < self.open_before => step.db.run(SET_OPEN, [self.id, open])?,
            _ => 0,
        };
        Ok(())
    }
}

fn settle_one(
    step: &mut Step<'_>,
    limits: &Limits,
    lease: &mut Lease,
    settle: Settle,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<Verdict> {
    let Some(task) = end::leased(step, lease.id, settle.task.0)? else {
        let was_in_it = row::unpack_ids(&lease.tasks).contains(&settle.task.0);
        return Ok(if was_in_it { Verdict::Already } else { Verdict::Stale });
    };
    lease.open -= 1;
    match settle.spawned {
        None => record(step, &task, settle.outcome.cleaned(), lanes),
        Some(spawned) => record_spawning(step, limits, &task, (settle.outcome.cleaned(), *spawned), lanes),
    }
}

/// Records the end of an attempt that has spawned tasks. They are stored only if it has completed; what is refused about them
/// fails the task.
fn record_spawning(
    step: &mut Step<'_>,
    limits: &Limits,
    task: &Leased,
    (outcome, spawned): (Outcome, Spawned),
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<Verdict> {
    let Outcome::Completed { result } = outcome else {
        let verdict = record(step, task, outcome, lanes)?;
        if verdict == Verdict::Failed {
            spawn::keep_follow_ups(step, limits, task, spawned)?;
        }
        return Ok(verdict);
    };
    let would_wait = spawned.again || !spawned.children.is_empty();
    if would_wait && end::is_cancel_requested(step, task.id)? {
        return record(step, task, Outcome::Cancelled { reason: None }, lanes);
    }
    if let Some(refused) = spawn::refusal(step, limits, task, &spawned)? {
        let error = format!("{}: {}", refused.code, refused.message);
        return record(step, task, Outcome::Failed { error }, lanes);
    }
    let result = result.map(|result| result.as_str().to_owned());
    spawn::complete(step, limits, task, (result, &spawned), lanes)
}

fn record(
    step: &mut Step<'_>,
    task: &Leased,
    outcome: Outcome,
    lanes: &mut Vec<i64>,
) -> rusqlite::Result<Verdict> {
    let (charged, ending) = match outcome {
        Outcome::Completed { result } => {
            let result = result.map(|result| result.as_str().to_owned());
            (1, Ending { state: State::Completed, error: None, result })
        }
        Outcome::Failed { error } => (1, Ending::failed(error)),
        Outcome::Cancelled { reason } => (1, Ending::cancelled(reason)),
        again if end::is_cancel_requested(step, task.id)? => {
            let charged = matches!(again, Outcome::Retry { .. });
            (u32::from(charged), Ending::cancelled(None))
        }
        Outcome::Retry { error, .. } if task.attempt + 1 >= task.max_attempts => (1, Ending::failed(error)),
        Outcome::Retry { after, error } => {
            let charge = Charge { attempts: 1, error: Some(error), ..Charge::default() };
            end::put_off(step, task, step.now.saturating_add(micros(after)), charge, lanes)?;
            return Ok(Verdict::Later);
        }
        Outcome::Snooze { after } => {
            end::put_off(step, task, step.now.saturating_add(micros(after)), Charge::default(), lanes)?;
            return Ok(Verdict::Later);
        }
        // The outcomes that may come one day are not ours to lose a task over.
        _ => {
            end::give_back(step, task, Charge::default(), lanes)?;
            return Ok(Verdict::Pending);
        }
    };
    let verdict = match ending.state {
        State::Completed => Verdict::Completed,
        State::Failed => Verdict::Failed,
        _ => Verdict::Cancelled,
    };
    end::end_leased(step, task, charged, ending, lanes)?;
    Ok(verdict)
}
