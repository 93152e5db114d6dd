//! Settings that change while the worker runs.

use std::time::Duration;

use laneway::core::State as TaskState;
use laneway::{Memory, Tuned};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    more_slots_are_used_at_once,
    with_fewer_slots_nothing_is_claimed_until_enough_attempts_have_ended_and_none_is_cancelled,
    a_smaller_claim_counts_from_the_next_claim_on,
    a_worker_that_stopped_for_memory_goes_on_when_it_may_use_more,
    a_shorter_poll_interval_begins_at_once,
    settings_that_are_not_allowed_change_nothing,
}

async fn more_slots_are_used_at_once(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(10, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 2));
    recorder.until("both slots are taken", |log| log.running == 2).await;

    worker.tuning.set(Tuned { slots: 7, ..worker.tuning.get() }).unwrap();

    let log = recorder.until("all seven are taken", |log| log.running == 7).await;
    assert_eq!((log.peak, log.dropped), (7, 0));
    assert_eq!(worker.metrics.value("worker_slots"), 7.0);
    until("the store knows", async || store.workers().await.unwrap()[0].capacity.slots == 7).await;
    recorder.open_gate();
    recorder.until("all have run", |log| log.ended.len() == 10).await;
    assert_eq!(worker.stopped().await.completed, 10);
}

async fn with_fewer_slots_nothing_is_claimed_until_enough_attempts_have_ended_and_none_is_cancelled(
    store: &TestStore,
) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(8, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 4));
    recorder.until("all slots are taken", |log| log.running == 4).await;

    worker.tuning.set(Tuned { slots: 2, ..worker.tuning.get() }).unwrap();
    worker.until_metric("worker_slots", |slots| slots == 2.0).await;
    // The gate lets jobs pass in their order, and ends are settled with the next claim, if there is one.
    recorder.open_gate_below(2);
    until("two ends are recorded", async || count(&**store, TaskState::Completed).await == 2).await;
    assert_eq!(recorder.log().started.len(), 4, "both slots are still taken");
    recorder.open_gate_below(3);

    let log = recorder.until("one more has started", |log| log.started.len() == 5).await;
    assert_eq!((log.running, log.dropped), (2, 0));
    recorder.open_gate();
    recorder.until("all have run", |log| log.ended.len() == 8).await;
    let summary = worker.stopped().await;
    assert_eq!((summary.completed, summary.given_back, summary.cancelled), (8, 0, 0));
    assert_eq!(recorder.log().started_more_than_once(), []);
}

async fn a_smaller_claim_counts_from_the_next_claim_on(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    let worker = start(a_worker(probe.handle(), &recorder, 10));
    until("it has looked", async || probe.calls("advance") > 0).await;

    worker.tuning.set(Tuned { claim_size: 3, ..worker.tuning.get() }).unwrap();
    worker.until_metric("worker_claim_limit", |limit| limit == 3.0).await;
    client(store).enqueue_many(jobs(9, What::Nothing)).await.unwrap();
    recorder.until("all have run", |log| log.ended.len() == 9).await;

    let claimed = probe.claimed();
    assert!(claimed.iter().all(|tasks| *tasks <= 3), "{claimed:?}");
    worker.stopped().await;
}

async fn a_worker_that_stopped_for_memory_goes_on_when_it_may_use_more(store: &TestStore) {
    let recorder = Recorder::default();
    let probe = || Some(Memory { used: 60, limit: 100 });
    let worker =
        start(a_worker(store.handle(), &recorder, 2).memory_high(0.5).memory_stop(0.5).memory_probe(probe));
    worker.until_metric(r#"worker_backpressure_factor{signal="memory"}"#, |factor| factor == 0.0).await;
    client(store).enqueue(job(1)).await.unwrap();

    worker.tuning.set(Tuned { memory_high: 0.9, memory_stop: 0.9, ..worker.tuning.get() }).unwrap();

    recorder.until("it has run", |log| log.ended.len() == 1).await;
    worker.stopped().await;
}

async fn a_shorter_poll_interval_begins_at_once(store: &TestStore) {
    let recorder = Recorder::default();
    let (hour, probe) = (secs(3_600), Probe::new(store.handle()));
    probe.set_deaf(true);
    let rare = a_worker(probe.handle(), &recorder, 2).poll_interval(hour).poll_interval_max(hour);
    let worker = start(rare);
    until("it has looked in vain", async || probe.calls("advance") > 0).await;
    client(store).enqueue(job(1)).await.unwrap();

    let short = Duration::from_millis(5);
    worker
        .tuning
        .set(Tuned { poll_interval: short, poll_interval_max: short, ..worker.tuning.get() })
        .unwrap();
    recorder.until("it has run", |log| log.ended.len() == 1).await;
    client(store).enqueue(job(2)).await.unwrap();

    recorder.until("it polls on", |log| log.ended.len() == 2).await;
    worker.stopped().await;
}

async fn settings_that_are_not_allowed_change_nothing(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 3));
    let before = worker.tuning.get();

    let refused = worker.tuning.set(Tuned { slots: 0, claim_size: 20_000, memory_stop: 0.1, ..before });

    let expected = [
        "slots is 0; allowed is 1 to 1000000",
        "claim_size is 20000; allowed is 1 to 10000",
        "memory_stop is 0.1, which is less than memory_high (0.8)",
    ];
    assert_eq!(refused.unwrap_err().problems, expected);
    assert_eq!(worker.tuning.get(), before);
    client(store).enqueue_many(jobs(3, What::Nothing)).await.unwrap();
    recorder.until("it runs as before", |log| log.ended.len() == 3).await;
    worker.stopped().await;
}
