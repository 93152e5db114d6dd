//! The documents that the worker grew from, scenario by scenario, criterion by criterion, on both stores.
//!
//! The tests assert what happened: order, counts, peaks, calls of the store, slots idle while work was there. Where a worker
//! must not wait, its poll interval is an hour and it gets no hints, so that a worker that waits hangs and fails the
//! test; no test measures time.

#[path = "../support/mod.rs"]
mod support;

mod logs;
mod processes;
mod seed_000_tight_loop;
mod seed_001_worker_concurrency;
mod seed_002_demand_driven;
mod seed_003_throughput;
mod seed_004_structured_concurrency;

use laneway::WorkerBuilder;

use crate::support::{Probe, Recorder, a_worker, secs};

/// A worker that finds work only by not waiting for it: it gets no hints and polls once an hour.
fn one_that_must_not_wait(probe: &Probe, recorder: &Recorder, slots: usize) -> WorkerBuilder {
    probe.set_deaf(true);
    a_worker(probe.handle(), recorder, slots).poll_interval(secs(3_600)).poll_interval_max(secs(3_600))
}
