//! Stopping: what runs may finish, what does not is given back uncharged, nothing is lost.

use std::time::Duration;

use laneway::core::State as TaskState;

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    a_draining_worker_finishes_what_runs_and_takes_nothing_new,
    after_the_grace_time_attempts_are_told_and_given_back_uncharged,
    a_second_signal_drops_what_runs_and_gives_it_back,
    a_stopped_worker_is_deregistered_and_its_ends_are_recorded,
    what_a_claim_brings_while_the_worker_stops_is_given_back,
}

async fn a_draining_worker_finishes_what_runs_and_takes_nothing_new(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(5, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 2));
    recorder.until("both slots are taken", |log| log.running == 2).await;

    worker.stop.drain();
    until("the store knows that it drains", async || {
        store.workers().await.unwrap().iter().all(|worker| worker.capacity.draining)
    })
    .await;
    recorder.open_gate();
    let summary = worker.ended().await;

    assert_eq!((summary.completed, summary.given_back), (2, 0));
    assert_eq!(count(&**store, TaskState::Pending).await, 3);
}

async fn after_the_grace_time_attempts_are_told_and_given_back_uncharged(store: &TestStore) {
    let recorder = Recorder::default();
    let tasks = client(store)
        .enqueue_many([What::UntilStopped, What::Stubborn].map(|what| Job { n: 0, what }))
        .await
        .unwrap();
    let short = Duration::from_millis(20);
    let worker = start(a_worker(store.handle(), &recorder, 2).grace(short).patience(short));
    recorder.until("both run", |log| log.running == 2).await;

    let summary = worker.stopped().await;

    let log = recorder.log();
    assert_eq!((summary.given_back, log.ended.len(), log.dropped), (2, 1, 1));
    for task in tasks {
        let view = store.view(task.id).await;
        assert_eq!((view.state, view.attempt, view.crashes), (TaskState::Pending, 0, 0));
    }
}

async fn a_second_signal_drops_what_runs_and_gives_it_back(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(3, What::Stubborn)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 3));
    recorder.until("all run", |log| log.running == 3).await;

    worker.stop.again();
    worker.stop.again();
    let summary = worker.ended().await;

    assert_eq!((summary.given_back, recorder.log().dropped), (3, 3));
    assert_eq!(count(&**store, TaskState::Pending).await, 3);
}

async fn a_stopped_worker_is_deregistered_and_its_ends_are_recorded(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 10));
    client(store).enqueue_many(jobs(20, What::Nothing)).await.unwrap();
    recorder.until("all have run", |log| log.ended.len() == 20).await;

    let summary = worker.stopped().await;

    assert_eq!(summary.completed, 20);
    assert_eq!(count(&**store, TaskState::Completed).await, 20);
    assert_eq!(store.workers().await.unwrap(), []);
    assert!(summary.to_string().starts_with("20 completed, 0 failed in"), "{summary}");
}

async fn what_a_claim_brings_while_the_worker_stops_is_given_back(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    client(store).enqueue_many(jobs(3, What::Nothing)).await.unwrap();
    let gate = probe.gate_advances();
    let worker = start(a_worker(probe.handle(), &recorder, 3));
    until("it is registered", async || probe.calls("register") == 1).await;

    worker.stop.drain();
    gate.add_permits(100);
    let metrics = worker.metrics.clone();
    let summary = worker.ended().await;

    assert_eq!(recorder.log().started.len(), 0);
    assert_eq!(summary.completed, 0);
    assert_eq!(metrics.value("worker_tasks_released_total"), summary.given_back as f64);
    assert_eq!(count(&**store, TaskState::Pending).await, 3);
}
