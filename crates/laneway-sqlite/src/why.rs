//! Why a task is not running.

use rusqlite::{Connection, params};

use laneway_core::liveness::SESSION_SILENCE_MAX;
use laneway_core::why::{AHEAD_MAX, NAMED_MAX};
use laneway_core::{Holder, Kinds, Paused, Reason, Serving, State, TaskId, TaskView, Why, WorkerView};

use crate::children;
use crate::clock::micros;
use crate::error::unreadable;
use crate::look;
use crate::row::{self, Sql};

/// Open children that are named.
const CHILDREN_MAX: i64 = 5;

const PLACE: &str = "
select queue, lane from task where id = ?1
union all
select queue, lane from later where id = ?1";

const PAUSES: &str = "
select what, paused_at, who, expires_at
from pause
where what = 'queue' and queue = ?1
   or what = 'kind' and name = ?2
   or what = 'lane' and queue = ?1 and name = ?3
order by what desc";

const LANE: &str = "select lim, halted, next_start from lane where id = ?1";

const HOLDERS: &str = "
select leased.id,
       lease.session,
       (select name from worker where worker.session = lease.session),
       leased.started_at,
       'leased'
from leased
join lease on lease.id = leased.lease
where leased.lane = ?1
union all
select id, null, null, due_at, 'later'
from later
where lane = ?1
  and holds_turn = 1
union all
select id, null, null, started_at, 'waiting'
from waiting
where lane = ?1
  and holds_turn = 1
order by 1";

const AHEAD: &str = "
select count(*)
from (
    select 1
    from task
    where queue = ?1
      and lane = ?2
      and (priority, id) < (?3, ?4)
    limit ?5
)";

/// Everything that keeps a task from running; `None` when there is no such task.
pub(crate) fn why(db: &Connection, id: TaskId, now: i64) -> rusqlite::Result<Option<Why>> {
    let Some(task) = look::get(db, id)? else { return Ok(None) };
    let reasons = match task.state {
        State::Leased => running(db, &task)?,
        State::Completed | State::Failed | State::Cancelled => ended(&task),
        State::Waiting => of_children(db, &task)?,
        State::Pending | State::Later => waiting(db, &task, now)?,
    };
    Ok(Some(Why { task: id, state: task.state, reasons }))
}

fn ended(task: &TaskView) -> Vec<Reason> {
    let ended = task.ended_at.map(|at| Reason::Ended { state: task.state, at, error: task.error.clone() });
    ended.into_iter().collect()
}

fn running(db: &Connection, task: &TaskView) -> rusqlite::Result<Vec<Reason>> {
    let (Some(session), Some(since)) = (task.worker, task.started_at) else { return Ok(vec![]) };
    let name = look::workers(db)?.into_iter().find(|worker| worker.session == session);
    Ok(vec![Reason::Running {
        worker: session.0,
        name: name.map(|worker| worker.name),
        since,
        stopping: task.cancel_requested,
    }])
}

fn of_children(db: &Connection, task: &TaskView) -> rusqlite::Result<Vec<Reason>> {
    let Some(family) = &task.family else { return Ok(vec![]) };
    let children = children::open(db, task.id.0, CHILDREN_MAX)?;
    Ok(vec![Reason::Waiting { open: family.open, failed: family.failed + family.cancelled, children }])
}

fn waiting(db: &Connection, task: &TaskView, now: i64) -> rusqlite::Result<Vec<Reason>> {
    let mut reasons: Vec<_> = due(task).into_iter().collect();
    let place = db.first(PLACE, [task.id.0], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    let Some((queue, lane)) = place else { return Ok(reasons) };
    reasons.extend(pauses(db, task)?);
    reasons.extend(of_lane(db, task, lane, now)?);
    reasons.extend(of_workers(db, task, now)?);
    if task.state == State::Pending {
        reasons.extend(behind(db, task, queue, lane)?);
        if reasons.is_empty() {
            reasons.push(Reason::Claimable);
        }
    }
    Ok(reasons)
}

fn pauses(db: &Connection, task: &TaskView) -> rusqlite::Result<Vec<Reason>> {
    // What can be paused is a lane of top-level tasks; that of children with the same key is another one.
    let lane = task.lane.as_ref().filter(|_| task.parent.is_none()).map(|key| key.as_str());
    db.all(PAUSES, params![task.queue.as_str(), task.kind.as_str(), lane], |row| {
        let since = row::timestamp(row.get(1)?)?;
        let until = row.get::<_, Option<i64>>(3)?.map(row::timestamp).transpose()?;
        let paused = Paused { since, by: row.get(2)?, until };
        Ok(match row.get_ref(0)?.as_str()? {
            "queue" => Reason::QueuePaused(paused),
            "kind" => Reason::KindPaused(paused),
            _ => Reason::LanePaused(paused),
        })
    })
}

fn due(task: &TaskView) -> Option<Reason> {
    let Some(until) = task.due_at else {
        return task.options.after.filter(|_| task.state == State::Later).map(|task| Reason::After { task });
    };
    Some(match &task.error {
        Some(error) if task.attempt > 0 => {
            Reason::BackOff { until, attempt: task.attempt, error: Some(error.clone()) }
        }
        _ => Reason::Due { at: until },
    })
}

fn of_lane(db: &Connection, task: &TaskView, lane: i64, now: i64) -> rusqlite::Result<Vec<Reason>> {
    let mut reasons = Vec::new();
    let found = db.first(LANE, [lane], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, bool>(1)?, row.get::<_, Option<i64>>(2)?))
    })?;
    let Some((limit, halted, next_start)) = found else { return Ok(reasons) };
    if halted {
        reasons.push(Reason::LaneHalted);
    }
    if let Some(until) = next_start.filter(|until| *until > now) {
        reasons.push(Reason::LaneRests { until: row::timestamp(until)? });
    }
    let mut held_by = db.all(HOLDERS, [lane], |row| {
        let session: Option<Vec<u8>> = row.get(1)?;
        Ok(Holder {
            task: TaskId(row.get(0)?),
            state: row.get_ref(4)?.as_str()?.parse().map_err(unreadable)?,
            worker: session.map(|bytes| row::uuid(&bytes)).transpose()?,
            name: row.get(2)?,
            at: row::timestamp(row.get(3)?)?,
        })
    })?;
    held_by.retain(|holder| holder.task != task.id);
    if held_by.len() >= limit as usize {
        held_by.truncate(NAMED_MAX as usize);
        reasons.push(Reason::LaneFull { limit, held_by });
    }
    Ok(reasons)
}

fn of_workers(db: &Connection, task: &TaskView, now: i64) -> rusqlite::Result<Option<Reason>> {
    let mut serving = look::workers(db)?;
    let silent = now - micros(SESSION_SILENCE_MAX);
    serving.retain(|worker| worker.queues.contains(&task.queue) && worker.seen_at.as_microsecond() > silent);
    let handles = |worker: &&WorkerView| match &worker.kinds {
        Kinds::All => true,
        Kinds::Only(kinds) => kinds.contains(&task.kind),
    };
    let able: Vec<_> = serving.iter().filter(handles).collect();
    if able.is_empty() {
        let serving = serving.into_iter().take(NAMED_MAX as usize).map(shown).collect();
        return Ok(Some(Reason::NoWorker { serving }));
    }
    let has_room = able.iter().any(|worker| !worker.capacity.draining && worker.capacity.free > 0);
    Ok((!has_room).then_some(Reason::NoFreeSlot))
}

fn shown(worker: WorkerView) -> Serving {
    let kinds = match worker.kinds {
        Kinds::All => None,
        Kinds::Only(kinds) => Some(kinds),
    };
    Serving { worker: worker.session.0, name: worker.name, kinds }
}

fn behind(db: &Connection, task: &TaskView, queue: i64, lane: i64) -> rusqlite::Result<Option<Reason>> {
    let values = params![queue, lane, task.priority, task.id.0, AHEAD_MAX as i64 + 1];
    let ahead = db.first(AHEAD, values, |row| row::count(row, 0))?.unwrap_or(0);
    let reason = Reason::Behind { ahead: ahead.min(AHEAD_MAX), more: ahead > AHEAD_MAX };
    Ok((ahead > 0).then_some(reason))
}
