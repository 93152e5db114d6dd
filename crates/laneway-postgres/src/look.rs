//! Reading what the looking functions return.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Change, Changes, Counts, Cursor, FailedAttempt, FamilyView, Histogram, Json, Keep, KindCounts, Kinds,
    LaneLimit, LaneView, Listing, Looked, Maintained, OnFailure, Page, Place, Point, Position, ProgressView,
    QueueView, Serial, Series, SessionId, State, StoreError, StoreHealth, TableHealth, TaskId, TaskView,
    Totals, Why,
};
use tokio_postgres::Row;

use crate::advance::{Text, options, stored_name};

pub(crate) fn task_view(row: &Row) -> TaskView {
    let json = |column| row.get::<_, Option<Text<'_>>>(column).map(|text| Json::trusted(text.0));
    let extra = row.get::<_, Option<Text<'_>>>("extra").map(|text| text.0);
    TaskView {
        id: TaskId(row.get("id")),
        kind: stored_name(row.get("kind")),
        queue: stored_name(row.get("queue")),
        lane: row.get::<_, Option<String>>("lane").map(stored_name),
        priority: row.get::<_, i16>("priority").into(),
        state: state(row.get("state")),
        attempt: row.get::<_, i32>("attempt") as u32,
        max_attempts: row.get::<_, i16>("max_attempts") as u32,
        crashes: row.get::<_, i16>("crashes") as u32,
        parent: row.get::<_, Option<i64>>("parent_id").map(TaskId),
        depth: row.get::<_, i16>("depth") as u32,
        enqueued_at: row.get("enqueued_at"),
        due_at: row.get("due_at"),
        started_at: row.get("started_at"),
        ended_at: row.get("ended_at"),
        worker: row.get::<_, Option<uuid::Uuid>>("session").map(SessionId),
        payload: json("payload"),
        result: json("result"),
        error: row.get("error"),
        cancel_requested: row.get("cancel_requested"),
        progress: progress(row),
        family: json("family")
            .map_or_else(|| FamilyView::from_stored(extra), |json| serde_json::from_str(json.as_str()).ok()),
        options: options(extra),
    }
}

pub(crate) fn totals(row: &Row) -> Totals {
    let count = |column| row.get::<_, i64>(column) as u64;
    Totals {
        queue: stored_name(row.get("queue")),
        enqueued: count("enqueued"),
        started: count("started"),
        completed: count("completed"),
        failed: count("failed"),
        cancelled: count("cancelled"),
    }
}

pub(crate) fn health(rows: &[Row]) -> Result<StoreHealth, StoreError> {
    let none = || StoreError::Unexpected { doing: "look at the store", source: "it has no tables".into() };
    let first = rows.first().ok_or_else(none)?;
    let count = |row: &Row, column| row.get::<_, i64>(column).max(0) as u64;
    let table = |row: &Row| TableHealth {
        table: row.get("name"),
        rows: count(row, "live"),
        dead_rows: count(row, "dead"),
        bytes: count(row, "bytes"),
    };
    let oldest = first.get::<_, Option<f64>>("oldest_s");
    Ok(StoreHealth {
        database: format!("PostgreSQL {}", first.get::<_, String>("server")),
        schema_version: first.get("version"),
        tables: rows.iter().map(table).collect(),
        oldest_transaction: oldest.map(|secs| Duration::from_secs_f64(secs.max(0.0))),
    })
}

pub(crate) fn maintained(row: &Row) -> Result<Maintained, StoreError> {
    let removed: BTreeMap<State, u64> = serde_json::from_str(row.get::<_, Text<'_>>("removed").0)
        .map_err(|error| StoreError::Unexpected { doing: "drop history", source: error.into() })?;
    Ok(Maintained { removed: removed.into_iter().filter(|(_, tasks)| *tasks > 0).collect() })
}

fn progress(row: &Row) -> Option<ProgressView> {
    let fraction = row.get::<_, Option<f64>>("progress_fraction")?;
    Some(ProgressView { fraction, note: row.get("progress_note"), at: row.get("progress_at") })
}

/// The kinds that a worker handles; null stands for all.
pub(crate) fn kinds(names: Option<Vec<String>>) -> Kinds {
    names.map_or(Kinds::All, |names| Kinds::Only(names.into_iter().map(stored_name).collect()))
}

pub(crate) fn state(text: &str) -> State {
    text.parse().expect("the database has a check on states")
}

pub(crate) fn place_name(place: Place) -> &'static str {
    match place {
        Place::Pending => "pending",
        Place::Later => "later",
        Place::Leased => "leased",
        Place::Waiting => "waiting",
        Place::Ended => "ended",
    }
}

/// Makes a page of one row more than it shall have. A last row without a state says where the look ended.
pub(crate) fn page(listing: &Listing, looked: u32, rows: &[Row]) -> Page {
    let (found, end) = match rows.split_last() {
        Some((end, found)) if end.get::<_, Option<&str>>("state").is_none() => (found, Some(end)),
        _ => (rows, None),
    };
    let limit = listing.limit as usize;
    let last = found.get(..limit + 1).map(|page| &page[limit - 1]);
    let looked = match (last, end) {
        (Some(_), _) => Looked::UntilFull,
        (None, Some(_)) => Looked::Rows(looked),
        (None, None) => Looked::ToTheEnd,
    };
    let tasks = found.iter().take(limit).map(task_view).collect();
    Page { tasks, next: last.or(end).map(|row| cursor(listing.place, row)), looked }
}

fn cursor(place: Place, row: &Row) -> Cursor {
    let at = |column| row.get::<_, Option<Timestamp>>(column).map(|at| at.as_microsecond());
    let micros = match place {
        Place::Later => at("due_at").unwrap_or(i64::MAX), // a follow-up comes behind all times
        Place::Ended => at("ended_at").unwrap_or(0),
        _ => 0,
    };
    Cursor { micros, id: TaskId(row.get("id")) }
}

pub(crate) fn counts(row: &Row) -> Counts {
    Counts {
        queue: stored_name(row.get("queue")),
        state: state(row.get("state")),
        tasks: row.get::<_, i64>("tasks") as u64,
        more: row.get("more"),
    }
}

pub(crate) fn kind_counts(row: &Row) -> KindCounts {
    KindCounts {
        kind: stored_name(row.get("kind")),
        state: state(row.get("state")),
        tasks: row.get::<_, i64>("tasks") as u64,
        more: row.get("more"),
    }
}

pub(crate) fn queue_view(row: &Row) -> QueueView {
    let keep = |column| Keep::from_stored(row.get(column));
    QueueView {
        queue: stored_name(row.get("queue")),
        paused_at: row.get("paused_at"),
        oldest_ready_at: row.get("oldest_ready_at"),
        oldest_waiting_at: row.get("oldest_waiting_at"),
        keep_completed: keep("keep_completed_days"),
        keep_failed: keep("keep_failed_days"),
        keep_cancelled: keep("keep_cancelled_days"),
        statistics: row.get("statistics"),
        serial: Serial::from_stored(row.get::<_, Option<i32>>("serial").unwrap_or(0)),
        lane_limit: LaneLimit::from_stored(row.get::<_, Option<i32>>("lane_limit").unwrap_or(1)),
    }
}

/// The points of a series; steps without a row stay empty.
pub(crate) fn points(series: &Series, rows: &[Row]) -> Vec<Point> {
    let mut points = series.empty();
    for row in rows {
        let number = |column| row.get::<_, i64>(column) as u64;
        let times = |column| {
            let counts: Vec<i64> = row.get(column);
            Histogram::from_counts(counts.into_iter().map(|n| n as u64))
        };
        if let Some(point) = points.get_mut(row.get::<_, i64>("step") as usize) {
            point.enqueued = number("enqueued");
            point.started = number("started");
            point.completed = number("completed");
            point.failed = number("failed");
            point.cancelled = number("cancelled");
            (point.waits, point.runs) = (times("waits"), times("runs"));
        }
    }
    points
}

/// Why a task does not run; the reasons are JSON.
pub(crate) fn why(task: TaskId, rows: &[Row]) -> Result<Option<Why>, StoreError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let unreadable =
        |source: serde_json::Error| StoreError::Unexpected { doing: "look why", source: source.into() };
    let reasons =
        rows.iter().map(|row| serde_json::from_str(row.get::<_, &str>("reason")).map_err(unreadable));
    let reasons = reasons.collect::<Result<_, _>>()?;
    Ok(Some(Why { task, state: state(first.get("state")), reasons }))
}

/// Changes; the last row tells where to go on.
pub(crate) fn changes(rows: &[Row]) -> Changes {
    let (end, read) = rows.split_last().expect("a last row is always sent");
    let number = |column| end.get::<_, i64>(column) as u64;
    let changes = read.iter().map(|row| {
        let (ids, kinds): (Vec<i64>, Vec<String>) = (row.get("task_ids"), row.get("kinds"));
        let tasks = ids.into_iter().map(TaskId).zip(kinds.into_iter().map(stored_name)).collect();
        Change {
            at: row.get("at"),
            queue: stored_name(row.get("queue")),
            state: state(row.get("state")),
            deleted: row.get("deleted"),
            tasks,
        }
    });
    Changes {
        changes: changes.collect(),
        position: Position { tx: number("tx"), seq: number("seq") },
        gap: end.get("gap"),
    }
}

pub(crate) fn failed_attempt(row: &Row) -> FailedAttempt {
    FailedAttempt { attempt: row.get::<_, i32>("attempt") as u32, at: row.get("at"), error: row.get("error") }
}

pub(crate) fn lane_view(row: &Row) -> LaneView {
    LaneView {
        key: stored_name(row.get("key")),
        limit: LaneLimit::from_stored(row.get("lim")),
        interval: Duration::from_millis(row.get::<_, i64>("interval_ms") as u64),
        on_failure: if row.get("halts") { OnFailure::Halt } else { OnFailure::Continue },
        halted: row.get("halted"),
        paused: row.get("paused"),
        pending: row.get::<_, i64>("pending") as u64,
        more: row.get("more"),
        held: row.get::<_, i64>("held") as u64,
    }
}
