//! The children of a task: looking at them, stopping them, letting them start anew. They are found by ranges of ids.

use rusqlite::{Connection, params};

use laneway_core::{Children, FamilyView, OpenChild, State, TaskId, TaskView};

use crate::act::{self, Anew};
use crate::row::Sql;
use crate::writer::Step;
use crate::{cancel, look};

/// Tasks that follow another one and are shown.
const FOLLOW_UPS_MAX: usize = 100;

const RANGES: &str = "
select first,
       last
from brood
where parent = ?1
  and follow_ups = ?2
  and last > ?3
order by first";

const OPEN: &str = "
select id, 0 from task where id between ?1 and ?2 and parent = ?3
union all
select id, 1 from later where id between ?1 and ?2 and parent = ?3
union all
select id, 2 from leased where id between ?1 and ?2 and parent = ?3
union all
select id, 3 from waiting where id between ?1 and ?2 and parent = ?3
order by 1
limit ?4";

const IS_KNOWN: &str =
    "select 1 from brood where parent = ?1 and follow_ups = 0 and ?2 between first and last";
const INSERT: &str = "insert into brood (parent, first, last, follow_ups) values (?1, ?2, ?3, ?4)";
const FORGET: &str = "delete from brood where parent = ?1 and follow_ups = 0";

const FAILED: &str = "
select id,
       options
from ended
where id between ?1 and ?2
  and parent = ?3
  and state <> 1
order by id";

fn ranges(db: &Connection, parent: i64, follow_ups: bool, after: i64) -> rusqlite::Result<Vec<(i64, i64)>> {
    db.all(RANGES, params![parent, follow_ups, after], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// A page of children, by id.
pub(crate) fn page(db: &Connection, page: Children) -> rusqlite::Result<Vec<TaskView>> {
    let (parent, after, limit) = (page.parent.0, page.after.map_or(0, |id| id.0), page.limit as usize);
    let mut found = Vec::new();
    for (first, last) in ranges(db, parent, false, after)? {
        if found.len() < limit {
            let left = (limit - found.len()) as i64;
            found.extend(look::children(db, parent, (first.max(after + 1), last), left)?);
        }
    }
    Ok(found)
}

/// The first tasks that follow `task`. Of plain successes nothing tells any more that they did.
pub(crate) fn follow_ups(db: &Connection, task: TaskId) -> rusqlite::Result<Vec<TaskView>> {
    let mut found = Vec::new();
    for (first, last) in ranges(db, task.0, true, 0)? {
        for id in first..=last {
            let view = look::get(db, TaskId(id))?.filter(|view| view.options.after == Some(task));
            found.extend(view);
            if found.len() == FOLLOW_UPS_MAX {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// The first open children.
pub(crate) fn open(db: &Connection, parent: i64, max: i64) -> rusqlite::Result<Vec<OpenChild>> {
    const STATES: [State; 4] = [State::Pending, State::Later, State::Leased, State::Waiting];
    let mut found = Vec::new();
    for (first, last) in ranges(db, parent, false, 0)? {
        let left = max - found.len() as i64;
        found.extend(db.all(OPEN, [first, last, parent, left], |row| {
            Ok(OpenChild { task: TaskId(row.get(0)?), state: STATES[row.get::<_, i64>(1)? as usize] })
        })?);
    }
    Ok(found)
}

/// How many children are open.
pub(crate) fn count_open(db: &Connection, parent: i64) -> rusqlite::Result<u64> {
    open(db, parent, i64::MAX).map(|open| open.len() as u64)
}

/// Notes that the children of a task, or those that follow it, are among these ids.
pub(crate) fn remember(
    step: &Step<'_>,
    parent: i64,
    (first, last): (i64, i64),
    follow_ups: bool,
) -> rusqlite::Result<()> {
    step.db.run(INSERT, params![parent, first, last, follow_ups]).map(|_| ())
}

/// When a task starts over, and before it waits for new children: forgets those that it had, except for some that were retried
/// by themselves and are open. It will wait for them too; returns how many.
pub(crate) fn forget(step: &Step<'_>, parent: i64) -> rusqlite::Result<u64> {
    let open = open(step.db, parent, i64::MAX)?;
    step.db.run(FORGET, [parent])?;
    for stretch in open.chunk_by(|a, b| a.task.0 + 1 == b.task.0) {
        remember(step, parent, (stretch[0].task.0, stretch[stretch.len() - 1].task.0), false)?;
    }
    Ok(open.len() as u64)
}

/// A child that had ended is of its parent's family again, also when that has another one by now.
pub(crate) fn rejoin(step: &mut Step<'_>, parent: i64, child: i64, was: State) -> rusqlite::Result<()> {
    if step.db.any(IS_KNOWN, [parent, child])? {
        step.families.reopened(parent, was);
    } else {
        remember(step, parent, (child, child), false)?;
        step.families.added(parent, 1);
    }
    Ok(())
}

/// Ends children that do not run as cancelled, and has the workers of the others told; likewise with their children.
pub(crate) fn cancel(step: &mut Step<'_>, parent: i64) -> rusqlite::Result<()> {
    for child in open(step.db, parent, i64::MAX)? {
        cancel::stop(step, child.task.0)?;
    }
    Ok(())
}

/// Lets the failed and cancelled children start anew. One that failed because of its own children does so in the same way.
pub(crate) fn reopen(step: &mut Step<'_>, parent: i64) -> rusqlite::Result<()> {
    for (first, last) in ranges(step.db, parent, false, 0)? {
        let failed: Vec<(i64, Option<String>)> =
            step.db.all(FAILED, [first, last, parent], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (id, options) in failed {
            act::start_anew(step, id, resumed_if_parent(options.as_deref()))?;
        }
    }
    Ok(())
}

fn resumed_if_parent(options: Option<&str>) -> Anew {
    match FamilyView::from_stored(options) {
        Some(family) if family.has_failed() => Anew::Children,
        _ => Anew::Whole,
    }
}
