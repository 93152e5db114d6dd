//! A store that does not answer: no busy loop, nothing lost, nothing doubled, no restart needed.

use laneway::core::State as TaskState;

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    a_worker_that_starts_while_the_store_is_down_waits_for_it,
    an_outage_is_waited_out_and_what_ended_meanwhile_is_recorded,
    a_lost_answer_is_asked_for_again_and_nothing_runs_twice,
    tries_become_rare_while_the_store_is_down,
    a_worker_that_was_taken_for_dead_starts_a_new_session,
}

async fn a_worker_that_starts_while_the_store_is_down_waits_for_it(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    client(store).enqueue(job(1)).await.unwrap();
    probe.set_down(true);
    let worker = start(a_worker(probe.handle(), &recorder, 1));
    until("it has tried", async || probe.calls("register") >= 2).await;

    probe.set_down(false);

    recorder.until("the job has run", |log| log.ended.len() == 1).await;
    worker.stopped().await;
}

async fn an_outage_is_waited_out_and_what_ended_meanwhile_is_recorded(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    client(store).enqueue_many(jobs(4, What::Gate)).await.unwrap();
    let worker = start(a_worker(probe.handle(), &recorder, 2));
    recorder.until("two run", |log| log.running == 2).await;

    probe.set_down(true);
    recorder.open_gate();
    recorder.until("two have ended", |log| log.ended.len() == 2).await;
    probe.set_down(false);

    recorder.until("all have ended", |log| log.ended.len() == 4).await;
    assert_eq!(worker.stopped().await.completed, 4);
    assert_eq!(recorder.log().started_more_than_once(), []);
    assert_eq!(count(&**store, TaskState::Completed).await, 4);
}

async fn a_lost_answer_is_asked_for_again_and_nothing_runs_twice(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    client(store).enqueue_many(jobs(30, What::Nothing)).await.unwrap();
    probe.lose_answers(3);

    let worker = start(a_worker(probe.handle(), &recorder, 10));

    recorder.until("all have ended", |log| log.ended.len() == 30).await;
    let summary = worker.stopped().await;
    assert_eq!((summary.completed, summary.lost), (30, 0));
    assert_eq!(recorder.log().started_more_than_once(), []);
    assert!(probe.advances().iter().filter(|advance| advance.again).count() >= 3);
}

async fn tries_become_rare_while_the_store_is_down(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    let worker = start(a_worker(probe.handle(), &recorder, 1));
    until("it works", async || probe.calls("advance") >= 1).await;

    probe.set_down(true);
    let began = std::time::Instant::now();
    let before = probe.calls("advance") + probe.calls("fall_asleep") + probe.calls("fence_passed");
    until("it has tried four times", async || {
        let tries = probe.calls("advance") + probe.calls("fall_asleep") + probe.calls("fence_passed");
        tries >= before + 4
    })
    .await;

    // Pauses of at least 25, 50 and 100 ms lie between the tries.
    assert!(
        began.elapsed() >= std::time::Duration::from_millis(150),
        "{:?} {}",
        began.elapsed(),
        probe.seen()
    );
    probe.set_down(false);
    client(store).enqueue(job(1)).await.unwrap();
    recorder.until("it works again", |log| log.ended.len() == 1).await;
    worker.stopped().await;
}

async fn a_worker_that_was_taken_for_dead_starts_a_new_session(store: &TestStore) {
    let (recorder, probe) = (Recorder::default(), Probe::new(store.handle()));
    client(store).enqueue(Job { n: 1, what: What::Gate }).await.unwrap();
    let worker = start(a_worker(probe.handle(), &recorder, 1));
    recorder.until("it runs", |log| log.running == 1).await;
    let before = store.workers().await.unwrap()[0].session;

    probe.set_mute(true);
    store.advance_clock(secs(31)).await;
    store.sweep().await.unwrap();
    probe.set_mute(false);

    // The attempt of the old session is dropped; the task runs again in a new one.
    recorder
        .until("it was dropped and started again", |log| log.dropped == 1 && log.started.len() == 2)
        .await;
    assert_ne!(store.workers().await.unwrap()[0].session, before);
    recorder.open_gate();
    recorder.until("it has ended", |log| log.ended.len() == 1).await;
    let summary = worker.stopped().await;
    assert_eq!((summary.completed, summary.lost), (1, 1));
}
