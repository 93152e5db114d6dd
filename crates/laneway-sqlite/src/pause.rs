//! Pauses of queues, kinds and lanes, and orders to drain.

use std::borrow::Cow;
use std::time::Duration;

use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use laneway_core::{Actor, Claim, Kind, Kinds, Pausable, Pause, SessionId};

use crate::audit::{self, Record};
use crate::clock::micros;
use crate::error::unreadable;
use crate::row::{self, Sql};
use crate::writer::Step;
use crate::{lane, line, queue};

const FIND: &str = "
select paused_at,
       expires_at,
       who
from pause
where what = ?1
  and queue = ?2
  and name = ?3";

const PAUSE: &str = "
insert into pause (what, queue, name, paused_at, expires_at, who, reason)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (what, queue, name) do update
set expires_at = excluded.expires_at,
    who = excluded.who,
    reason = excluded.reason";

const DELETE: &str = "delete from pause where what = ?1 and queue = ?2 and name = ?3";

const LIST: &str = "
select what,
       queue,
       name,
       who,
       reason,
       paused_at,
       expires_at
from pause
order by paused_at, what, queue, name";

const EXPIRED: &str = "select what, queue, name from pause where expires_at <= ?1";
const IS_EXPIRED: &str = "select 1 from pause where expires_at <= ?1 limit 1";
const PAUSED_KINDS: &str = "select name from pause where what = 'kind' and queue = ''";

const KINDS_IN_QUEUE: &str = "
select kind from task where queue = ?1
union
select kind from later where queue = ?1";

const SET_LANE: &str = "update lane set paused = ?2 where id = ?1";
const DRAIN: &str = "update worker set drain_ordered = 1 where session = ?1 and drain_ordered = 0";
const STOP: &str = "update worker set stop_ordered = 1 where session = ?1 and stop_ordered = 0";

/// Stops claims. False when it was paused before; then the pause lasts as this call says.
pub(crate) fn pause(
    step: &mut Step<'_>,
    actor: &Actor,
    what: &Pausable,
    expires: Option<Duration>,
) -> rusqlite::Result<bool> {
    let (sort, queue, name) = what.stored();
    let expires_at = expires.map(|expires| step.now.saturating_add(micros(expires)));
    let before = step.db.first(FIND, [sort, queue, name], shown)?;
    let who = actor.who.as_str();
    step.db.run(PAUSE, params![sort, queue, name, step.now, expires_at, who, actor.reason])?;
    hold(step, what, true)?;
    let after = step.db.first(FIND, [sort, queue, name], shown)?;
    let is_new = before.is_none();
    audit::record(
        step,
        actor,
        Record { action: "pause", subject: subject(what), tasks: &[], before, after },
    )?;
    if let Some(expires_at) = expires_at {
        step.news.due(expires_at);
    }
    Ok(is_new)
}

/// Ends a pause. False when there was none.
pub(crate) fn resume(step: &mut Step<'_>, actor: &Actor, what: &Pausable) -> rusqlite::Result<bool> {
    let (sort, queue, name) = what.stored();
    let before = step.db.first(FIND, [sort, queue, name], shown)?;
    if before.is_none() {
        return Ok(false);
    }
    end(step, what)?;
    let record = Record { action: "resume", subject: subject(what), tasks: &[], before, after: None };
    audit::record(step, actor, record)?;
    Ok(true)
}

/// Ends pauses whose time is over.
pub(crate) fn end_expired(step: &mut Step<'_>) -> rusqlite::Result<()> {
    let expired = step.db.all(EXPIRED, [step.now], pausable)?;
    expired.iter().try_for_each(|what| end(step, what))
}

/// True when some pause is over.
pub(crate) fn is_expired(db: &Connection, now: i64) -> rusqlite::Result<bool> {
    db.any(IS_EXPIRED, [now])
}

fn end(step: &mut Step<'_>, what: &Pausable) -> rusqlite::Result<()> {
    let (sort, queue, name) = what.stored();
    step.db.run(DELETE, [sort, queue, name])?;
    hold(step, what, false)
}

/// Holds what is paused, or lets it go on.
fn hold(step: &mut Step<'_>, what: &Pausable, paused: bool) -> rusqlite::Result<()> {
    match what {
        Pausable::Queue(name) => {
            let queue = queue::find_or_make(step.db, name)?;
            step.news.runnable(queue);
            queue::set_paused(step, queue, paused)
        }
        Pausable::Kind(_) => {
            let queues: Vec<i64> = step.db.all("select id from queue", [], |row| row.get(0))?;
            queues.into_iter().for_each(|queue| step.news.runnable(queue));
            Ok(())
        }
        Pausable::Lane(queue, key) => {
            let queue = queue::find_or_make(step.db, queue)?;
            let lane = lane::find_or_make(step.db, queue, key.as_str())?;
            step.db.run(SET_LANE, params![lane, paused])?;
            line::refresh(step, lane)
        }
    }
}

/// Everything that is paused, oldest pause first.
pub(crate) fn list(db: &Connection) -> rusqlite::Result<Vec<Pause>> {
    db.all(LIST, [], |row| {
        Ok(Pause {
            what: pausable(row)?,
            actor: row::actor(row.get(3)?, row.get(4)?)?,
            paused_at: row::timestamp(row.get(5)?)?,
            expires_at: row.get::<_, Option<i64>>(6)?.map(row::timestamp).transpose()?,
        })
    })
}

/// `claim` without the kinds that are paused.
pub(crate) fn open_claim<'a>(
    db: &Connection,
    queue: i64,
    claim: &'a Claim,
) -> rusqlite::Result<Cow<'a, Claim>> {
    let paused: Vec<String> = db.all(PAUSED_KINDS, [], |row| row.get(0))?;
    if paused.is_empty() {
        return Ok(Cow::Borrowed(claim));
    }
    let mut kinds: Vec<Kind> = match &claim.kinds {
        Kinds::Only(kinds) => kinds.clone(),
        // Claims know only what to take, not what to leave.
        Kinds::All => db.all(KINDS_IN_QUEUE, [queue], |row| row::kind(row.get(0)?))?,
    };
    kinds.retain(|kind| !paused.iter().any(|paused| paused == kind.as_str()));
    Ok(Cow::Owned(Claim { kinds: Kinds::Only(kinds), ..claim.clone() }))
}

/// Tells a worker to take nothing new. False when it is not known, or was told before.
pub(crate) fn drain(step: &mut Step<'_>, actor: &Actor, session: SessionId) -> rusqlite::Result<bool> {
    order(step, actor, session, ("drain", DRAIN))
}

/// Tells a worker to end. False when it is not known, or was told before.
pub(crate) fn stop(step: &mut Step<'_>, actor: &Actor, session: SessionId) -> rusqlite::Result<bool> {
    order(step, actor, session, ("stop", STOP))
}

fn order(
    step: &mut Step<'_>,
    actor: &Actor,
    session: SessionId,
    (what, sql): (&'static str, &'static str),
) -> rusqlite::Result<bool> {
    if step.db.run(sql, [session.0.as_bytes().as_slice()])? == 0 {
        return Ok(false);
    }
    let record = Record {
        action: what,
        subject: format!("worker {session}"),
        tasks: &[],
        before: Some(json!({what: false})),
        after: Some(json!({what: true})),
    };
    audit::record(step, actor, record)?;
    step.news.orders(session);
    Ok(true)
}

fn pausable(row: &Row<'_>) -> rusqlite::Result<Pausable> {
    let what: String = row.get(0)?;
    Pausable::from_stored(&what, row.get(1)?, row.get(2)?).map_err(unreadable)
}

fn shown(row: &Row<'_>) -> rusqlite::Result<Value> {
    let mut shown = json!({"paused_at": row::timestamp(row.get(0)?)?, "by": row.get::<_, String>(2)?});
    if let Some(expires_at) = row.get::<_, Option<i64>>(1)? {
        shown["expires_at"] = json!(row::timestamp(expires_at)?);
    }
    Ok(shown)
}

fn subject(what: &Pausable) -> String {
    match what {
        Pausable::Queue(queue) => format!("queue {queue}"),
        Pausable::Kind(kind) => format!("kind {kind}"),
        Pausable::Lane(queue, lane) => format!("lane {queue}/{lane}"),
    }
}
