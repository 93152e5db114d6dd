//! Falling asleep and waking up.

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    an_idle_worker_announces_its_sleep_once_and_then_only_polls,
    a_hint_wakes_a_sleeping_worker_which_takes_its_announcement_back,
    a_worker_without_hints_polls_and_announces_nothing,
    a_task_that_becomes_due_wakes_a_sleeping_worker,
}

async fn asleep(probe: &Probe) {
    until("it has fallen asleep", async || probe.calls("is_claimable") > probe.calls("wake_up")).await;
}

/// PostgreSQL's listener needs a moment to connect.
async fn listening(store: &TestStore) {
    let _receiver = store.hints();
    until("hints arrive", async || store.is_listening()).await;
}

async fn an_idle_worker_announces_its_sleep_once_and_then_only_polls(store: &TestStore) {
    listening(store).await;
    let probe = Probe::new(store.handle());
    let worker = start(a_worker(probe.handle(), &Recorder::default(), 4).poll_interval_max(secs(1) / 5));
    asleep(&probe).await;
    let (announced, advances) = (probe.calls("fall_asleep"), probe.calls("advance"));

    until("it has polled three times", async || probe.calls("advance") >= advances + 3).await;

    assert_eq!(
        (announced, probe.calls("fall_asleep"), probe.calls("wake_up")),
        (1, 1, 0),
        "{}",
        probe.seen()
    );
    worker.stopped().await;
}

async fn a_hint_wakes_a_sleeping_worker_which_takes_its_announcement_back(store: &TestStore) {
    listening(store).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    // Polls alone would take an hour.
    let worker = start(a_worker(probe.handle(), &recorder, 4).poll_interval_max(secs(3_600)));
    asleep(&probe).await;

    client(store).enqueue(job(1)).await.unwrap();

    recorder.until("it has run", |log| log.ended.len() == 1).await;
    until("the announcement was taken back", async || probe.calls("wake_up") == 1).await;
    worker.until_metric(r#"worker_wakeups_total{source="notify"}"#, |hints| hints >= 1.0).await;
    worker.stopped().await;
}

async fn a_worker_without_hints_polls_and_announces_nothing(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    probe.set_deaf(true);
    let worker = start(a_worker(probe.handle(), &recorder, 4).poll_interval(secs(1) / 50));
    until("it has polled", async || probe.calls("advance") >= 5).await;

    client(store).enqueue(job(1)).await.unwrap();

    recorder.until("it has run", |log| log.ended.len() == 1).await;
    assert_eq!(probe.calls("fall_asleep"), 0);
    worker.stopped().await;
}

async fn a_task_that_becomes_due_wakes_a_sleeping_worker(store: &TestStore) {
    listening(store).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue(job(1)).delay(secs(1) / 2).await.unwrap();
    let worker = start(a_worker(probe.handle(), &recorder, 4).poll_interval_max(secs(3_600)));
    asleep(&probe).await;

    recorder.until("it has run", |log| log.ended.len() == 1).await;

    worker.until_metric(r#"worker_wakeups_total{source="due"}"#, |due| due >= 1.0).await;
    worker.stopped().await;
}
