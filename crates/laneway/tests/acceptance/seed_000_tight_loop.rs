//! Seed 000: workers drain the queue without waiting between claims, and wait without busy loops when it is empty.

use laneway::core::State as TaskState;

use crate::on_both_stores;
use crate::one_that_must_not_wait;
use crate::support::*;

on_both_stores! {
    drain_queue_continuously_when_work_is_available,
    test_tight_loop_drains_queue,
    multi_worker_coordination_remains_safe,
    test_multi_worker_no_duplicates,
    no_busy_wait_when_queue_is_empty,
    test_no_busy_wait_on_empty,
    immediate_wake_up_for_new_work,
    backpressure_when_all_slots_are_busy,
    test_waits_for_slot,
    metrics_count_batches_empty_receives_and_notification_wakeups,
    low_volume_behaves_as_before,
    other_coroutines_are_not_starved,
}

/// 100 commands at concurrency 4: batches of at most 4, one after the other, and rest only after an empty claim.
async fn drain_queue_continuously_when_work_is_available(store: &TestStore) {
    drains(store, 100).await;
}

/// 1,000 commands at concurrency 4.
async fn test_tight_loop_drains_queue(store: &TestStore) {
    drains(store, 1_000).await;
}

async fn drains(store: &TestStore, commands: u64) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(commands, What::Nothing)).await.unwrap();

    let worker = start(one_that_must_not_wait(&probe, &recorder, 4));
    let log = recorder.until("all have run", |log| log.ended.len() as u64 == commands).await;

    assert_eq!(log.started_more_than_once(), []);
    assert!(log.peak <= 4, "{}", log.peak);
    for advance in probe.advances() {
        assert!(advance.claims.iter().all(|claim| claim.max <= 4), "{advance:?}");
    }
    let full = worker.metrics.value(r#"worker_claims_total{queue="default",result="full"}"#);
    assert!(full >= commands as f64 / 4.0 - 1.0, "{full}");
    worker.stopped().await;
}

async fn multi_worker_coordination_remains_safe(store: &TestStore) {
    ten_workers_share(store, What::Millis(1)).await;
}

async fn test_multi_worker_no_duplicates(store: &TestStore) {
    ten_workers_share(store, What::Nothing).await;
}

/// Ten workers and 1,000 commands: each runs exactly once, and every worker gets some.
async fn ten_workers_share(store: &TestStore, what: What) {
    let recorder = Recorder::default();
    let queue = laneway::core::QueueName::default();
    store.pause_queue(&queue).await.unwrap();
    client(store).enqueue_many(jobs(1_000, what)).await.unwrap();
    let workers: Vec<_> =
        (0..10).map(|_| start(a_worker(store.handle(), &recorder, 4).claim_size(4))).collect();
    until("all are registered", async || store.workers().await.unwrap().len() == 10).await;

    store.resume_queue(&queue).await.unwrap();
    let log = recorder.until("all have run", |log| log.ended.len() == 1_000).await;

    assert_eq!((log.started.len(), log.started_more_than_once()), (1_000, vec![]));
    assert!(log.peak <= 40);
    for worker in workers {
        let summary = worker.stopped().await;
        assert!(summary.completed > 0 && summary.completed < 1_000, "{summary}");
    }
    assert_eq!(count(&**store, TaskState::Completed).await, 1_000);
}

async fn no_busy_wait_when_queue_is_empty(store: &TestStore) {
    idle_workers_only_poll(store, 10).await;
}

async fn test_no_busy_wait_on_empty(store: &TestStore) {
    idle_workers_only_poll(store, 1).await;
}

/// Idle workers send one statement per poll and nothing else, except that they announce their sleep every 5 s.
async fn idle_workers_only_poll(store: &TestStore, workers: usize) {
    let _hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    let probes: Vec<_> = (0..workers).map(|_| Probe::new(store.handle())).collect();
    let recorder = Recorder::default();
    let poll = std::time::Duration::from_millis(200);
    let running: Vec<_> = probes
        .iter()
        .map(|probe| start(a_worker(probe.handle(), &recorder, 4).poll_interval_max(poll)))
        .collect();
    until("all sleep", async || probes.iter().all(|probe| probe.calls("is_claimable") > 0)).await;
    let (began, before): (_, Vec<_>) = (
        std::time::Instant::now(),
        probes.iter().map(|probe| (probe.all_calls(), house_keeping(probe))).collect(),
    );

    let advances = probes[0].calls("advance");
    until("the first has polled five times", async || probes[0].calls("advance") >= advances + 5).await;

    for (probe, (all, house)) in std::iter::zip(&probes, before) {
        let sent = (probe.all_calls() - all) - (house_keeping(probe) - house);
        // Polls are jittered by a tenth; one more may be under way, and one announcement may have been renewed.
        let polls = began.elapsed().as_secs_f64() / (poll.as_secs_f64() * 0.9);
        assert!(sent as f64 <= polls + 2.0, "{sent} statements in {polls} polls: {}", probe.seen());
    }
    for worker in running {
        worker.stopped().await;
    }
}

/// What a worker does for others, and to stay alive, whatever the queue.
fn house_keeping(probe: &Probe) -> usize {
    ["sweep", "maintain", "renew", "lane", "fire_due"].iter().map(|verb| probe.calls(verb)).sum()
}

async fn immediate_wake_up_for_new_work(store: &TestStore) {
    let _hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    // Only a hint can wake it: the next poll is an hour away.
    let worker = start(a_worker(probe.handle(), &recorder, 4).poll_interval_max(secs(3_600)));
    until("it sleeps", async || probe.calls("is_claimable") > 0).await;

    client(store).enqueue_many(jobs(100, What::Nothing)).await.unwrap();

    recorder.until("all available work is done", |log| log.ended.len() == 100).await;
    until("it sleeps again", async || probe.calls("fall_asleep") > probe.calls("wake_up")).await;
    worker.stopped().await;
}

async fn backpressure_when_all_slots_are_busy(store: &TestStore) {
    waits_for_a_slot(store, 20).await;
}

async fn test_waits_for_slot(store: &TestStore) {
    waits_for_a_slot(store, 5).await;
}

/// With all slots busy nothing is asked for; each slot that frees is filled at once, and nothing is dropped.
async fn waits_for_a_slot(store: &TestStore, commands: u64) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(commands, What::Gate)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 4));
    recorder.until("all slots are busy", |log| log.running == 4).await;
    let advances = probe.calls("advance");

    for done in 1..=commands - 4 {
        assert_eq!(recorder.log().running, 4);
        recorder.open_gate_below(done);
        recorder.until("the slot is filled again", |log| log.started.len() as u64 == 4 + done).await;
    }
    assert!(probe.calls("advance") <= advances + 2 * commands as usize, "{}", probe.seen());
    recorder.open_gate();
    recorder.until("nothing was dropped", |log| log.ended.len() as u64 == commands).await;
    worker.stopped().await;
}

async fn metrics_count_batches_empty_receives_and_notification_wakeups(store: &TestStore) {
    let _hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let worker = start(a_worker(probe.handle(), &recorder, 4));
    until("it sleeps", async || probe.calls("is_claimable") > 0).await;

    client(store).enqueue_many(jobs(8, What::Nothing)).await.unwrap();
    recorder.until("all have run", |log| log.ended.len() == 8).await;

    worker
        .until_metric(r#"worker_claims_total{queue="default",result="full"}"#, |batches| batches >= 1.0)
        .await;
    worker.until_metric(r#"worker_claims_total{queue="default",result="empty"}"#, |empty| empty >= 1.0).await;
    worker.until_metric("worker_wakeups_total", |wakeups| wakeups >= 2.0).await;
    worker.stopped().await;
}

/// Single commands are run one by one as they come.
async fn low_volume_behaves_as_before(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 4));

    for n in 1..=5 {
        client(store).enqueue(job(n)).await.unwrap();
        recorder.until("it has run", |log| log.ended.len() as u64 == n).await;
    }

    assert_eq!(recorder.log().numbers(), [1, 2, 3, 4, 5]);
    worker.stopped().await;
}

/// While a backlog drains, other code of the same runtime goes on.
async fn other_coroutines_are_not_starved(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(2_000, What::Nothing)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 50));
    let mut steps = 0;
    while recorder.log().ended.len() < 2_000 {
        tokio::task::yield_now().await;
        steps += 1;
    }

    assert!(steps > 10, "{steps}");
    worker.stopped().await;
}
