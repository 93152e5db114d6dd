//! A worker that runs out of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use laneway::Memory;
use laneway::core::State as TaskState;

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    nothing_is_claimed_while_memory_is_all_but_used_up,
}

async fn nothing_is_claimed_while_memory_is_all_but_used_up(store: &TestStore) {
    let (probe, recorder, used) =
        (Probe::new(store.handle()), Recorder::default(), Arc::new(AtomicU64::new(96)));
    let measured = Arc::clone(&used);
    let memory = move || Some(Memory { used: measured.load(Ordering::SeqCst), limit: 100 });
    let worker = start(a_worker(probe.handle(), &recorder, 10).memory_probe(memory));
    worker.until_metric("worker_memory_usage_ratio", |ratio| ratio > 0.95).await;
    until("the worker is there", async || probe.calls("register") == 1).await;

    let task = client(store).enqueue(job(0)).await.unwrap();
    let chores = probe.calls("fire_due");
    until("it had time to claim", async || probe.calls("fire_due") >= chores + 2).await;
    assert_eq!(store.state(task.id).await, TaskState::Pending);
    assert_eq!(worker.metrics.value("worker_backpressure_factor{signal=\"memory\"}"), 0.0);

    used.store(94, Ordering::SeqCst);
    client(store).wait(task).await.unwrap();
    assert_eq!(recorder.log().numbers(), [0]);
    worker.stopped().await;
}
