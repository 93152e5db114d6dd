//! Watches order and limits from inside the handlers, and measures.
//!
//! A handler holds a [`Running`] while it runs. All workers of the demo share one [`Checks`], so what it sees is what
//! happened over all of them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use laneway::Attempt;

use crate::output::text;

/// What has been seen so far.
#[derive(Default)]
pub struct Checks(Mutex<Seen>);

#[derive(Clone, Default)]
pub struct Seen {
    /// When the first attempt began.
    pub first_start: Option<Instant>,
    pub attempts: u64,
    pub failed: u64,
    pub ended: u64,
    pub running: u64,
    pub out_of_order: u64,
    pub over_limit: u64,
    /// Follow-ups that ran before all children of their family had ended.
    pub too_early: u64,
    /// How long first attempts of tasks that could run at once had waited.
    pub waits: Vec<Duration>,
    pub runs: Vec<Duration>,
    lanes: HashMap<String, SeenLane>,
    /// Parts that have ended, by batch.
    parts: HashMap<u32, u32>,
}

#[derive(Clone, Default)]
struct SeenLane {
    running: u32,
    /// The place of the step that is expected next.
    next: u32,
}

/// The lane of an attempt, and what is expected of it.
pub struct Lane {
    pub key: String,
    pub limit: u32,
    /// Its place among the tasks of the lane, where they run in order.
    pub place: Option<u32>,
}

/// An attempt that is running. Dropping it says that it has ended.
pub struct Running<'a> {
    checks: &'a Checks,
    lane: Option<String>,
    started: Instant,
    failed: std::cell::Cell<bool>,
}

impl Checks {
    /// An attempt begins.
    pub fn begin(&self, attempt: &Attempt, lane: Option<Lane>) -> Running<'_> {
        let task = attempt.task();
        let could_start = task.attempt == 1 && task.lane.is_none() && !task.kind.as_str().ends_with("later");
        let mut seen = self.lock();
        seen.first_start.get_or_insert_with(Instant::now);
        seen.attempts += 1;
        seen.running += 1;
        if could_start {
            seen.waits.push(text::since(task.enqueued_at, Timestamp::now()));
        }
        if let Some(lane) = &lane {
            seen.enter(lane);
        }
        let lane = lane.map(|lane| lane.key);
        Running { checks: self, lane, started: Instant::now(), failed: false.into() }
    }

    /// A child of a family has done its work.
    pub fn part_ends(&self, batch: u32) {
        *self.lock().parts.entry(batch).or_default() += 1;
    }

    /// What follows a family of so many children begins.
    pub fn joins(&self, batch: u32, parts: u32) {
        let mut seen = self.lock();
        seen.too_early += u64::from(seen.parts.get(&batch) != Some(&parts));
    }

    /// Tasks that have ended.
    pub fn ended(&self) -> u64 {
        self.lock().ended
    }

    /// Everything that has been seen.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    /// What is shown while it runs: attempts that failed, that run, and violations.
    pub fn now(&self) -> (u64, u64, u64, u64) {
        let seen = self.lock();
        (seen.ended, seen.running, seen.failed, seen.out_of_order + seen.over_limit + seen.too_early)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().expect("nobody panics while holding it")
    }
}

impl Seen {
    fn enter(&mut self, lane: &Lane) {
        let seen = self.lanes.entry(lane.key.clone()).or_default();
        seen.running += 1;
        self.over_limit += u64::from(seen.running > lane.limit);
        if let Some(place) = lane.place {
            self.out_of_order += u64::from(place != seen.next);
            seen.next = place + 1;
        }
    }
}

impl Running<'_> {
    /// The attempt fails; its task will run again.
    pub fn fails(&self) {
        self.failed.set(true);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut seen = self.checks.lock();
        seen.running -= 1;
        seen.runs.push(self.started.elapsed());
        if let Some(lane) = self.lane.as_ref().and_then(|key| seen.lanes.get_mut(key)) {
            lane.running -= 1;
        }
        if self.failed.get() { seen.failed += 1 } else { seen.ended += 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(seen: &mut Seen, limit: u32, place: Option<u32>) {
        seen.enter(&Lane { key: "lane".into(), limit, place });
    }

    #[test]
    fn a_step_that_overtakes_is_seen() {
        let mut seen = Seen::default();
        for place in [0, 2, 1] {
            enter(&mut seen, 9, Some(place));
        }
        assert_eq!(seen.out_of_order, 2);
    }

    #[test]
    fn more_than_the_limit_is_seen() {
        let mut seen = Seen::default();
        for _ in 0..4 {
            enter(&mut seen, 3, None);
        }
        assert_eq!(seen.over_limit, 1);
    }
}
