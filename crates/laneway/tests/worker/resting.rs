//! Falling asleep and waking up.

use std::time::Duration;

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

/// Tasks come one by one, in every way in which they become runnable, while three workers are about to fall asleep, are asleep or wake
/// up. The functions of the database dawdle between their statements: whoever looks too early, or tells too early, is not told, and what
/// came waits for a poll, in an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hint_is_lost_between_two_statements() {
    let store = laneway_testkit::postgres::dawdling().await;
    let recorder = Recorder::default();
    let mut workers = vec![];
    for _ in 0..3 {
        workers.push(start(a_worker(store.another().await, &recorder, 2).poll_interval_max(secs(3_600))));
    }
    let client = client(&store);
    let mut wanted = 0;
    for n in 0..60 {
        let wave = fastrand::u64(1..=3);
        wanted += wave;
        let few = Duration::from_millis(fastrand::u64(1..40));
        let enqueue = |what| client.enqueue(Job { n, what });
        for _ in 0..wave {
            match n % 5 {
                0 => enqueue(What::Nothing),
                1 => enqueue(What::Millis(3)).lane("a"),
                2 => enqueue(What::Nothing).lane("b").limit(2),
                3 => enqueue(What::Nothing).delay(few),
                _ => enqueue(What::Fail).lane("c").max_attempts(1).delay(few),
            }
            .await
            .unwrap();
        }
        recorder.until("all have run", |log| log.ended.len() as u64 == wanted).await;
        // A worker falls asleep a tenth of a second after its last claim.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(60..250))).await;
    }
    let mut hints = 0.0;
    for worker in workers {
        hints += worker.metrics.value(r#"worker_wakeups_total{source="notify"}"#);
        worker.stopped().await;
    }
    assert!(hints > 0.0, "nobody slept so deeply that a hint woke him");
    store.check().await;
}
