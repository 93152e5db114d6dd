//! Lists of tasks, page by page.
//!
//! A page goes on after the last row of the one before, by id or by (time, id), so that rows of one instant are neither
//! skipped nor repeated. A filter is tried on a stretch of the list that has a bounded number of rows: its end is found
//! by an index alone, then the stretch is read.

use rusqlite::Connection;
use rusqlite::types::Value;

use laneway_core::{Cursor, Listing, Looked, Page, Place, State, TaskId, TaskView};

use crate::filter::{Condition, rows_max};
use crate::follow_up::NEVER;
use crate::look;
use crate::progress;
use crate::row::{self, Sql};

/// A list: its rows and its order. In `after` and `until` the first two parameters are time and id of a row.
struct List {
    state: State,
    rows: &'static str,
    /// Behind that row.
    after: &'static str,
    /// Not behind the row in parameters 3 and 4.
    until: &'static str,
    order: &'static str,
    /// Finds the last row of a stretch of as many rows as parameter 3 says, and one.
    end: &'static str,
}

const PENDING: List = List {
    state: State::Pending,
    rows: look::PENDING_ROWS,
    after: "at.id > ?2",
    until: "at.id <= ?4",
    order: "at.id",
    end: "select 0, id from task as at where at.id > ?2 order by at.id limit 1 offset ?3",
};

const LATER: List = List {
    state: State::Later,
    rows: look::LATER_ROWS,
    after: "(at.due_at, at.id) > (?1, ?2)",
    until: "(at.due_at, at.id) <= (?3, ?4)",
    order: "at.due_at, at.id",
    end: "select due_at, id from later as at where (at.due_at, at.id) > (?1, ?2)
          order by at.due_at, at.id limit 1 offset ?3",
};

const LEASED: List = List {
    state: State::Leased,
    rows: look::LEASED_ROWS,
    after: "at.id > ?2",
    until: "at.id <= ?4",
    order: "at.id",
    end: "select 0, id from leased as at where at.id > ?2 order by at.id limit 1 offset ?3",
};

const WAITING: List = List {
    state: State::Waiting,
    rows: look::WAITING_ROWS,
    end: "select 0, id from waiting as at where at.id > ?2 order by at.id limit 1 offset ?3",
    ..LEASED
};

const ENDED: List = List {
    state: State::Completed,
    rows: look::ENDED_ROWS,
    after: "(at.ended_at, at.id) < (?1, ?2)",
    until: "(at.ended_at, at.id) >= (?3, ?4)",
    order: "at.ended_at desc, at.id desc",
    end: "select ended_at, id from ended as at where (at.ended_at, at.id) < (?1, ?2)
          order by at.ended_at desc, at.id desc limit 1 offset ?3",
};

/// History without successes, which has an index of its own.
const ENDED_OTHERWISE: List = List {
    after: "at.state <> 1 and (at.ended_at, at.id) < (?1, ?2)",
    end: "select ended_at, id from ended as at where at.state <> 1 and (at.ended_at, at.id) < (?1, ?2)
          order by at.ended_at desc, at.id desc limit 1 offset ?3",
    ..ENDED
};

/// One page of a list.
pub(crate) fn list(db: &Connection, listing: &Listing, now: i64) -> rusqlite::Result<Page> {
    let states = listing.filter.states();
    let list = match listing.place {
        place if !states.iter().any(|state| Place::of(*state) == place) => return Ok(nothing()),
        Place::Pending => PENDING,
        Place::Later => LATER,
        Place::Leased => LEASED,
        Place::Waiting => WAITING,
        Place::Ended if states.contains(&State::Completed) => ENDED,
        Place::Ended => ENDED_OTHERWISE,
    };
    let from = first_row(listing, now)?;
    let rows = rows_max(&listing.filter);
    let end = stretch_end(db, listing, &list, from, rows)?.filter(|end| is_in_span(listing, *end, now));
    let mut tasks = read(db, listing, &list, from, end, now)?;
    tasks.iter_mut().try_for_each(|task| progress::add(db, task))?;
    Ok(page(tasks, listing, end.map(|end| (rows, end))))
}

fn nothing() -> Page {
    Page { tasks: vec![], next: None, looked: Looked::ToTheEnd }
}

/// Time and id behind which the page begins.
fn first_row(listing: &Listing, now: i64) -> rusqlite::Result<(i64, i64)> {
    if let Some(cursor) = listing.after {
        return Ok((cursor.micros, cursor.id.0));
    }
    let (_, until) = listing.filter.span(row::timestamp(now)?);
    Ok(match (listing.place, until) {
        (Place::Ended, Some(until)) => (until.as_microsecond(), i64::MIN),
        (Place::Ended, None) => (i64::MAX, i64::MAX),
        _ => (i64::MIN, i64::MIN),
    })
}

/// The last row of the stretch that is looked at; `None` when the list ends before.
fn stretch_end(
    db: &Connection,
    listing: &Listing,
    list: &List,
    from: (i64, i64),
    rows: u32,
) -> rusqlite::Result<Option<(i64, i64)>> {
    if listing.filter.is_empty() {
        return Ok(None);
    }
    db.first(list.end, (from.0, from.1, rows - 1), |row| Ok((row.get(0)?, row.get(1)?)))
}

/// False when nothing behind the end of the stretch can match, because it ended too early.
fn is_in_span(listing: &Listing, end: (i64, i64), now: i64) -> bool {
    let since = row::timestamp(now).ok().and_then(|now| listing.filter.span(now).0);
    listing.place != Place::Ended || since.is_none_or(|since| end.0 >= since.as_microsecond())
}

fn read(
    db: &Connection,
    listing: &Listing,
    list: &List,
    from: (i64, i64),
    end: Option<(i64, i64)>,
    now: i64,
) -> rusqlite::Result<Vec<TaskView>> {
    // Numbered parameters must come first: those of the condition are counted on from them.
    let mut values: Vec<Value> = vec![from.0.into(), from.1.into()];
    let mut bound = String::new();
    if let Some((micros, id)) = end {
        values.extend([Value::from(micros), Value::from(id)]);
        bound = format!("and {}", list.until);
    }
    let since = listing.filter.span(row::timestamp(now)?).0.filter(|_| listing.place == Place::Ended);
    if let Some(since) = since {
        values.push(since.as_microsecond().into());
        bound = format!("{bound} and at.ended_at >= ?{}", values.len());
    }
    let condition = Condition::of(&listing.filter, listing.place, now)?;
    values.extend(condition.values);
    let sql = format!(
        "{} where {} {bound} {} order by {} limit {}",
        list.rows,
        list.after,
        condition.text,
        list.order,
        listing.limit + 1
    );
    let mut statement = db.prepare(&sql)?;
    let rows = statement.query_map(rusqlite::params_from_iter(values), |row| look::view(row, list.state))?;
    rows.collect()
}

/// Cuts off the row that was read only to know whether there is another page.
fn page(mut tasks: Vec<TaskView>, listing: &Listing, end: Option<(u32, (i64, i64))>) -> Page {
    let limit = listing.limit as usize;
    let full = tasks.len() > limit;
    tasks.truncate(limit);
    let (next, looked) = match (full, end) {
        (true, _) => (tasks.last().map(|last| cursor(last, listing.place)), Looked::UntilFull),
        (false, Some((rows, (micros, id)))) => (Some(Cursor { micros, id: TaskId(id) }), Looked::Rows(rows)),
        (false, None) => (None, Looked::ToTheEnd),
    };
    Page { tasks, next, looked }
}

fn cursor(last: &TaskView, place: Place) -> Cursor {
    let micros = match place {
        // What follows another task has no due time and comes last.
        Place::Later => last.due_at.map_or(NEVER, |time| time.as_microsecond()),
        Place::Ended => last.ended_at.map_or(0, |time| time.as_microsecond()),
        Place::Pending | Place::Leased | Place::Waiting => 0,
    };
    Cursor { micros, id: last.id }
}
