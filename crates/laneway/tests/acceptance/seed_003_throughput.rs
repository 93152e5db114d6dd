//! Seed 003: many tasks per worker, limits per job that always hold, a fair share for every job.

use std::collections::HashMap;

use laneway::core::State as TaskState;
use laneway::{Profile, SqliteStore, task};

use crate::logs::Logs;
use crate::on_both_stores;
use crate::one_that_must_not_wait;
use crate::support::*;

on_both_stores! {
    single_worker_processes_multiple_tasks_concurrently,
    slow_requests_do_not_block_other_task_processing,
    graceful_shutdown_waits_for_in_flight_tasks,
    claiming_is_separate_from_processing,
    error_handling_does_not_block_claiming,
    a_jobs_limit_and_running_tasks_are_tracked,
    jobs_with_concurrency_3_never_exceed_3_concurrent_tasks,
    the_worker_pool_respects_limits_across_workers,
    jobs_below_their_quota_come_first,
    concurrency_slots_are_always_released_even_on_panic,
    no_concurrency_slot_leaks,
    jobs_process_new_tasks_immediately_after_completion,
    unit_1_worker_processes_multiple_tasks_concurrently,
    unit_2_worker_respects_concurrency_semaphore,
    unit_3_graceful_shutdown_waits_for_in_flight_tasks,
    unit_4_panic_in_one_task_does_not_affect_others,
    unit_5_job_concurrency_limits_are_enforced,
    unit_6_concurrency_slots_are_released_on_error,
    load_test_62_jobs_at_concurrency_3,
    every_job_gets_its_share,
    queue_weights_share_a_worker,
    metrics_of_slots_lanes_and_claims,
}

async fn single_worker_processes_multiple_tasks_concurrently(store: &TestStore) {
    runs_at_once(store, 10).await;
}

async fn unit_1_worker_processes_multiple_tasks_concurrently(store: &TestStore) {
    runs_at_once(store, 5).await;
}

/// So many slots, so many in flight.
async fn runs_at_once(store: &TestStore, slots: usize) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(30, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, slots));

    recorder.until("all slots are busy", |log| log.running == slots).await;

    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 30).await;
    worker.stopped().await;
}

async fn slow_requests_do_not_block_other_task_processing(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(4, What::Gate)).await.unwrap();
    client(store).enqueue_many(jobs(100, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 5));

    recorder.until("all quick ones have ended", |log| log.ended.len() == 100 && log.running == 4).await;

    recorder.open_gate();
    worker.stopped().await;
}

async fn graceful_shutdown_waits_for_in_flight_tasks(store: &TestStore) {
    shutdown_waits(store, 3).await;
}

async fn unit_3_graceful_shutdown_waits_for_in_flight_tasks(store: &TestStore) {
    shutdown_waits(store, 10).await;
}

async fn shutdown_waits(store: &TestStore, slots: usize) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(20, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, slots));
    recorder.until("all slots are busy", |log| log.running == slots).await;

    worker.stop.drain();
    recorder.open_gate();
    let summary = worker.ended().await;

    assert_eq!((summary.completed as usize, summary.given_back), (slots, 0));
    assert_eq!(count(&**store, TaskState::Leased).await, 0);
}

/// Claims go on while everything that was claimed before is still running.
async fn claiming_is_separate_from_processing(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(40, What::Gate)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 40).claim_size(10));

    recorder.until("all run", |log| log.running == 40).await;

    assert!(probe.calls("advance") >= 4);
    recorder.open_gate();
    worker.stopped().await;
}

async fn error_handling_does_not_block_claiming(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let failing = jobs(50, What::Fail).into_iter().map(|job| task(job).max_attempts(1));
    client(store).enqueue_many(failing).await.unwrap();
    client(store).enqueue_many(jobs(50, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 2));

    recorder.until("all have run", |log| log.ended.len() == 100).await;

    assert_eq!(worker.stopped().await.failed, 50);
}

/// 1.3: the numbers of the three environments.
#[tokio::test]
async fn configuration_is_environment_aware() {
    for (profile, slots) in [(Profile::Development, 10), (Profile::Staging, 60), (Profile::Production, 500)] {
        let store = SqliteStore::temporary().await.unwrap();
        let worker = a_worker(store, &Recorder::default(), 1_000).profile(profile).build().unwrap();
        assert_eq!(worker.slots(), slots);
    }
}

/// 1.3: the total is logged at the start.
#[tokio::test]
async fn logs_show_total_concurrency_clearly() {
    let (logs, _guard) = Logs::collect();
    let store = SqliteStore::temporary().await.unwrap();
    let worker = a_worker(store, &Recorder::default(), 1_000).profile(Profile::Production).build().unwrap();

    worker.run_until_empty().await.unwrap();

    assert!(logs.contain("the worker starts with 500 slots (100 × 5, profile production)"));
}

/// 2.1: the store knows a job's limit and how many of its tasks are in progress.
async fn a_jobs_limit_and_running_tasks_are_tracked(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(wave(0, 1, 5, 3)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 10));
    recorder.until("three run", |log| log.running == 3).await;

    let lane = store.lane_view("lane:0").await;
    assert_eq!((lane.limit.stored(), lane.held, lane.pending), (3, 3, 2));

    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 5).await;
    worker.stopped().await;
    assert_eq!(store.lane_view("lane:0").await.held, 0);
}

async fn jobs_with_concurrency_3_never_exceed_3_concurrent_tasks(store: &TestStore) {
    limits_hold(store, 1, 8).await;
}

async fn unit_5_job_concurrency_limits_are_enforced(store: &TestStore) {
    limits_hold(store, 1, 1).await;
}

async fn the_worker_pool_respects_limits_across_workers(store: &TestStore) {
    limits_hold(store, 3, 8).await;
}

async fn limits_hold(store: &TestStore, workers: usize, lanes: u64) {
    let recorder = Recorder::default();
    let drafts = (0..lanes * 25).map(|n| task(job(n)).lane(format!("job:{}", n % lanes)).limit(3));
    client(store).enqueue_many(drafts).await.unwrap();
    let running: Vec<_> = (0..workers).map(|_| start(a_worker(store.handle(), &recorder, 50))).collect();

    let log = recorder.until("all have ended", |log| log.ended.len() as u64 == lanes * 25).await;

    assert!(log.peak_in_lane.values().all(|peak| *peak <= 3), "{:?}", log.peak_in_lane);
    for worker in running {
        worker.stopped().await;
    }
}

/// 2.2: a full job does not keep others from running.
async fn jobs_below_their_quota_come_first(store: &TestStore) {
    let recorder = Recorder::default();
    client(store)
        .enqueue_many((0..50).map(|n| task(Job { n, what: What::Gate }).lane("large").limit(3)))
        .await
        .unwrap();
    client(store)
        .enqueue_many((0..3).map(|n| task(Job { n, what: What::Gate }).lane("small").limit(3)))
        .await
        .unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 10));

    let log = recorder.until("six run", |log| log.running == 6).await;

    assert_eq!(log.running_in_lane, HashMap::from([("large".into(), 3), ("small".into(), 3)]));
    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 53).await;
    worker.stopped().await;
}

/// 2.2: log lines when a job hits its limit and when it leaves it.
#[tokio::test]
async fn logs_show_when_jobs_hit_and_release_limits_on_sqlite() {
    limits_are_logged(&laneway_testkit::sqlite::fresh().await).await;
}

#[tokio::test]
async fn logs_show_when_jobs_hit_and_release_limits_on_postgres() {
    limits_are_logged(&laneway_testkit::postgres::fresh().await).await;
}

async fn limits_are_logged(store: &TestStore) {
    let (logs, _guard) = Logs::collect();
    let recorder = Recorder::default();
    client(store).enqueue_many(wave(0, 1, 6, 3)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 10).poll_interval_max(secs(1) / 5));

    until("the limit is hit", async || logs.contain("a lane has hit its limit")).await;
    worker.until_metric("worker_lanes_at_limit", |lanes| lanes == 1.0).await;
    recorder.open_gate();
    until("the limit is left", async || logs.contain("a lane is below its limit again")).await;

    assert_eq!(worker.metrics.value("worker_lane_limit_hits_total"), 1.0);
    worker.stopped().await;
}

/// 2.3: error, panic, cancel, timeout and stop all release the slot and the turn.
async fn concurrency_slots_are_always_released_even_on_panic(store: &TestStore) {
    let recorder = Recorder::default();
    let all = [What::Fail, What::Panic, What::Discard, What::Stubborn, What::UntilStopped];
    let drafts =
        all.map(|what| task(Job { n: 0, what }).lane("job").limit(5).max_attempts(1).timeout(secs(1) / 2));
    let tasks = client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 5));
    client(store).cancel(tasks[4]).await.unwrap();

    until("all have ended", async || {
        count(&**store, TaskState::Failed).await + count(&**store, TaskState::Cancelled).await == 5
    })
    .await;

    assert_eq!(recorder.log().running, 0);
    worker.until_metric("worker_in_flight_tasks", |running| running == 0.0).await;
    worker.stopped().await;
    assert_eq!(store.lane_view("job").await.held, 0);
}

/// After many tasks of all kinds every slot and every turn is there.
async fn no_concurrency_slot_leaks(store: &TestStore) {
    let recorder = Recorder::default();
    let what = |n: u64| if n.is_multiple_of(3) { What::Panic } else { What::Fail };
    let drafts = (0..90).map(|n| task(Job { n, what: what(n) }).lane("job").limit(3).max_attempts(1));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 6));
    until("all have failed", async || count(&**store, TaskState::Failed).await == 90).await;

    client(store).enqueue_many(wave(100, 2, 3, 3)).await.unwrap();
    recorder
        .until("all six slots run the last ones", |log| log.running == 6 && log.started.len() == 96)
        .await;

    recorder.open_gate();
    assert_eq!(worker.stopped().await.completed, 6);
}

async fn jobs_process_new_tasks_immediately_after_completion(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let drafts = (0..9).map(|n| task(Job { n, what: What::Gate }).lane("job").limit(3));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 20));
    recorder.until("three run", |log| log.running == 3).await;

    for done in 1..=6 {
        recorder.open_gate_below(done);
        recorder.until("three run again", |log| log.running == 3 && log.ended.len() as u64 == done).await;
    }

    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 9).await;
    worker.stopped().await;
}

async fn unit_2_worker_respects_concurrency_semaphore(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(500, What::Nothing)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 5));

    let log = recorder.until("all have ended", |log| log.ended.len() == 500).await;

    assert!(log.peak <= 5, "{}", log.peak);
    worker.stopped().await;
}

async fn unit_4_panic_in_one_task_does_not_affect_others(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(4, What::Gate)).await.unwrap();
    client(store).enqueue(Job { n: 9, what: What::Panic }).max_attempts(1).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 5));
    recorder.until("one has panicked, four run", |log| log.dropped == 1 && log.running == 4).await;

    recorder.open_gate();
    recorder.until("the others end well", |log| log.ended.len() == 4).await;

    let summary = worker.stopped().await;
    assert_eq!((summary.completed, summary.failed), (4, 1));
}

async fn unit_6_concurrency_slots_are_released_on_error(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let drafts = (0..20).map(|n| task(Job { n, what: What::Fail }).lane("job").limit(2).max_attempts(1));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 2));

    recorder.until("all have run", |log| log.ended.len() == 20).await;

    worker.stopped().await;
    assert_eq!(count(&**store, TaskState::Failed).await, 20);
}

/// 3.2: 62 jobs of limit 3 keep 186 tasks in flight, wave after wave, and never one more.
async fn load_test_62_jobs_at_concurrency_3(store: &TestStore) {
    let recorder = Recorder::default();
    for n in 0..4 {
        client(store).enqueue_many(wave(n, 62, 3, 3)).await.unwrap();
    }
    let worker = start(a_worker(store.handle(), &recorder, 500));

    for waves in 1..=4 {
        let log =
            recorder.until("186 run", |log| log.running == 186 && log.started.len() == 186 * waves).await;
        assert_eq!(log.running_in_lane.len(), 62);
        assert!(log.running_in_lane.values().all(|running| *running == 3));
        recorder.open_gate_below(waves as u64);
    }
    let log = recorder.until("all have ended", |log| log.ended.len() == 744).await;

    assert_eq!(log.peak, 186, "no limit is violated at any moment");
    assert!(log.peak_in_lane.values().all(|peak| *peak == 3));
    // 500 slots were never all in use: the pool was not saturated.
    assert_eq!(worker.metrics.value("worker_no_slot_total"), 0.0);
    worker.stopped().await;
}

/// With fewer slots than jobs the jobs take turns.
async fn every_job_gets_its_share(store: &TestStore) {
    let recorder = Recorder::default();
    let drafts = (0..62 * 8).map(|n| task(job(n)).lane(format!("job:{}", n / 8)).limit(3));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 20).claim_size(20));

    let log = recorder.until("all have ended", |log| log.ended.len() == 62 * 8).await;

    // When half of all tasks have started, every job has started some.
    let mut shares: HashMap<_, usize> = HashMap::new();
    log.started.iter().take(62 * 4).for_each(|(_, _, lane)| *shares.entry(lane).or_default() += 1);
    assert_eq!(shares.len(), 62);
    assert!(shares.values().all(|share| *share >= 2), "{shares:?}");
    worker.stopped().await;
}

/// Of two queues with weights 3 and 1 the first gets three of four slots while both have work.
async fn queue_weights_share_a_worker(store: &TestStore) {
    let recorder = Recorder::default();
    for queue in ["much", "little"] {
        client(store)
            .enqueue_many((0..200).map(|n| task(Job { n, what: What::Gate }).queue(queue)))
            .await
            .unwrap();
    }
    let queues =
        a_worker(store.handle(), &recorder, 40).weighted_queue("much", 3).weighted_queue("little", 1);
    let worker = start(queues.claim_size(8));

    recorder.until("all slots are busy", |log| log.running == 40).await;
    worker.until_metric(r#"worker_in_flight_tasks{queue="much"}"#, |running| running == 30.0).await;
    worker.until_metric(r#"worker_in_flight_tasks{queue="little"}"#, |running| running == 10.0).await;

    recorder.open_gate();
    recorder.until("all have ended, also when one queue is dry", |log| log.ended.len() == 400).await;
    worker.stopped().await;
}

/// 3.3.
async fn metrics_of_slots_lanes_and_claims(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(wave(0, 2, 4, 2)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 8).poll_interval_max(secs(1) / 5));
    recorder.until("four run", |log| log.running == 4).await;

    worker.until_metric("worker_slots_used_ratio", |used| used == 0.5).await;
    worker.until_metric("worker_lane_used_ratio", |used| used == 1.0).await;
    worker
        .until_metric(r#"worker_claims_total{queue="default",result="blocked"}"#, |blocked| blocked >= 1.0)
        .await;
    assert_eq!(worker.metrics.value("worker_slots"), 8.0);

    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 8).await;
    let completed = r#"worker_tasks_completed_total{queue="default",kind="job"}"#;
    worker.until_metric(completed, |completed| completed == 8.0).await;
    worker.until_metric("worker_flush_size_count", |flushes| flushes >= 1.0).await;
    worker.until_metric("worker_settle_duration_seconds_count", |settles| settles >= 1.0).await;
    worker.stopped().await;
}
