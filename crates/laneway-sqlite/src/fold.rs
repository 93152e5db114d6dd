//! Adds up what a transaction has done, and writes the sums once, before it commits.
//!
//! Commands only count in memory, so the cost of counts and statistics does not grow with the number of tasks. A
//! command that is undone is not counted: its numbers are dropped with it.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Connection, params};

use laneway_core::{Histogram, State};

use crate::end::stored_state;
use crate::error::unreadable;
use crate::row::Sql;

const MINUTE: i64 = 60_000_000;
pub(crate) const DAY: i64 = 86_400_000_000;

const ADD_ENDED: &str = "
insert into ended_count (queue, state, kind, day, n)
values (?1, ?2, ?3, ?4, ?5)
on conflict (queue, state, kind, day) do update set n = n + excluded.n";

const HAS_STATISTICS: &str = "select 1 from queue where id = ?1 and statistics = 1";

const TIMES: &str = "select waits, runs from stat_minute where queue = ?1 and minute = ?2";

const ADD_MINUTE: &str = "
insert into stat_minute (queue, minute, enqueued, started, completed, failed, cancelled, waits, runs)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict (queue, minute) do update
set enqueued = enqueued + excluded.enqueued,
    started = started + excluded.started,
    completed = completed + excluded.completed,
    failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled,
    waits = excluded.waits,
    runs = excluded.runs";

/// What was done in one queue.
#[derive(Default)]
struct Minute {
    enqueued: u64,
    started: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    waits: Histogram,
    runs: Histogram,
}

/// How long an ended task had waited and run, in microseconds.
pub(crate) struct Times {
    pub(crate) ready_at: i64,
    pub(crate) started_at: i64,
}

/// What a command, or all commands of a transaction, have done.
#[derive(Default)]
pub(crate) struct Tally {
    minutes: HashMap<i64, Minute>,
    ended: HashMap<(i64, i64, String), u64>,
    /// Which queues write no history of successes, as far as that was asked.
    pub(crate) keeps_nothing: HashMap<i64, bool>,
}

impl Tally {
    pub(crate) fn enqueued(&mut self, queue: i64) {
        self.minute(queue).enqueued += 1;
    }

    pub(crate) fn started(&mut self, queue: i64, tasks: usize) {
        self.minute(queue).started += tasks as u64;
    }

    /// A task has left a row in history.
    pub(crate) fn kept(&mut self, queue: i64, state: State, kind: String) {
        *self.ended.entry((queue, stored_state(state), kind)).or_default() += 1;
    }

    /// A task has ended. `times` are those of its last attempt, if it had one.
    pub(crate) fn ended(&mut self, queue: i64, state: State, times: Option<Times>, now: i64) {
        let minute = self.minute(queue);
        match state {
            State::Completed => minute.completed += 1,
            State::Failed => minute.failed += 1,
            _ => minute.cancelled += 1,
        }
        if let Some(Times { ready_at, started_at }) = times {
            let micros = |from: i64, to: i64| Duration::from_micros((to - from).max(0) as u64);
            minute.waits.add(micros(ready_at, started_at), 1);
            minute.runs.add(micros(started_at, now), 1);
        }
    }

    fn minute(&mut self, queue: i64) -> &mut Minute {
        self.minutes.entry(queue).or_default()
    }

    /// Adds what another command has done.
    pub(crate) fn merge(&mut self, other: Self) {
        for (queue, theirs) in other.minutes {
            let mine = self.minute(queue);
            mine.enqueued += theirs.enqueued;
            mine.started += theirs.started;
            mine.completed += theirs.completed;
            mine.failed += theirs.failed;
            mine.cancelled += theirs.cancelled;
            mine.waits.merge(&theirs.waits);
            mine.runs.merge(&theirs.runs);
        }
        for (key, n) in other.ended {
            *self.ended.entry(key).or_default() += n;
        }
    }

    /// Writes the sums, inside the transaction that they are about.
    pub(crate) fn write(&self, db: &Connection, now: i64) -> rusqlite::Result<()> {
        for ((queue, state, kind), n) in &self.ended {
            db.run(ADD_ENDED, params![queue, state, kind, now / DAY, *n as i64])?;
        }
        for (queue, minute) in &self.minutes {
            if db.any(HAS_STATISTICS, [queue])? {
                minute.write(db, *queue, now / MINUTE)?;
            }
        }
        Ok(())
    }
}

impl Minute {
    fn write(&self, db: &Connection, queue: i64, minute: i64) -> rusqlite::Result<()> {
        let kept = db.first(TIMES, [queue, minute], |row| {
            Ok((histogram(row.get_ref(0)?.as_str()?)?, histogram(row.get_ref(1)?.as_str()?)?))
        })?;
        let (mut waits, mut runs) = kept.unwrap_or_default();
        waits.merge(&self.waits);
        runs.merge(&self.runs);
        let counts = [self.enqueued, self.started, self.completed, self.failed, self.cancelled];
        let [enqueued, started, completed, failed, cancelled] = counts.map(|n| n as i64);
        let (waits, runs) = (stored(&waits), stored(&runs));
        let values = params![queue, minute, enqueued, started, completed, failed, cancelled, waits, runs];
        db.run(ADD_MINUTE, values).map(|_| ())
    }
}

fn stored(times: &Histogram) -> String {
    serde_json::to_string(times).expect("numbers can be encoded")
}

/// A histogram as it is kept.
pub(crate) fn histogram(text: &str) -> rusqlite::Result<Histogram> {
    let counts: Vec<u64> = serde_json::from_str(text).map_err(unreadable)?;
    Ok(Histogram::from_counts(counts))
}
