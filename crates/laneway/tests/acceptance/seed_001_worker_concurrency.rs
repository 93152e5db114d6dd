//! Seed 001: thousands of concurrent tasks per worker, order per workflow, claims that follow capacity.

use std::collections::HashMap;
use std::time::Duration;

use laneway::core::State as TaskState;
use laneway::{Memory, task};

use crate::on_both_stores;
use crate::one_that_must_not_wait;
use crate::processes::{self, Place};
use crate::support::*;

on_both_stores! {
    parallel_execution_across_workflows,
    workflow_level_sequential_guarantee,
    semaphore_based_concurrency_limit,
    task_spawning_model,
    capacity_aware_claiming,
    smaller_claims_faster_polls,
    semaphore_saturation_stops_claiming,
    memory_pressure_halves_the_claim_size,
    task_latency_reduces_the_claim_size_by_a_third,
    metrics_export,
    heartbeat_with_capacity_reporting,
    sequential_guarantee_test,
    parallel_execution_test,
    backpressure_test,
}

/// A workflow is a lane of limit 1.
fn step(workflow: &str, n: u64, what: What) -> laneway::Draft {
    task(Job { n, what }).lane(workflow)
}

/// 1.1: A1 and B1 start together; A2 starts when A1 has completed.
async fn parallel_execution_across_workflows(store: &TestStore) {
    let recorder = Recorder::default();
    let steps = [("A", 1), ("A", 2), ("A", 3), ("B", 11), ("B", 12)];
    client(store).enqueue_many(steps.map(|(workflow, n)| step(workflow, n, What::Gate))).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 10));

    recorder.until("A1 and B1 run", |log| log.running == 2).await;
    assert_eq!(sorted(recorder.log().numbers()), [1, 11]);
    recorder.open_gate_below(2);
    recorder.until("A2 has started", |log| log.started.len() == 3).await;
    assert_eq!(recorder.log().numbers()[2], 2);
    recorder.open_gate();

    recorder.until("all have ended", |log| log.ended.len() == 5).await;
    assert!(recorder.log().peak_in_lane.values().all(|peak| *peak == 1));
    worker.stopped().await;
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

/// 1.2: also when several workers share the workflows.
async fn workflow_level_sequential_guarantee(store: &TestStore) {
    let recorder = Recorder::default();
    let steps = (0..200).map(|n| step(&format!("workflow:{}", n % 10), n, What::Nothing));
    client(store).enqueue_many(steps).await.unwrap();
    let workers: Vec<_> = (0..3).map(|_| start(a_worker(store.handle(), &recorder, 20))).collect();

    let log = recorder.until("all have ended", |log| log.ended.len() == 200).await;

    assert!(log.peak_in_lane.values().all(|peak| *peak == 1), "{:?}", log.peak_in_lane);
    assert_steps_in_order(&log);
    for worker in workers {
        worker.stopped().await;
    }
}

fn assert_steps_in_order(log: &Log) {
    let mut last: HashMap<&Option<String>, u64> = HashMap::new();
    for (_, n, lane) in &log.started {
        let before = last.insert(lane, *n);
        assert!(before.is_none_or(|before| before < *n), "{lane:?}: {before:?} before {n}");
    }
}

/// 1.3: never more in flight than `MAX_CONCURRENT_TASKS`.
async fn semaphore_based_concurrency_limit(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(100, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 30));

    recorder.until("all slots are busy", |log| log.running == 30).await;
    recorder.open_gate();
    let log = recorder.until("all have ended", |log| log.ended.len() == 100).await;

    assert_eq!(log.peak, 30);
    worker.stopped().await;
}

/// 1.4: every claimed task runs on its own; one that is stuck keeps nobody waiting.
async fn task_spawning_model(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue(Job { n: 0, what: What::Gate }).await.unwrap();
    client(store).enqueue_many(jobs(50, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 2));

    recorder.until("all but the stuck one have ended", |log| log.ended.len() == 50).await;

    recorder.open_gate();
    assert_eq!(worker.stopped().await.completed, 51);
}

/// 1.5: the new defaults.
#[tokio::test]
async fn configuration_changes() {
    let store = laneway::SqliteStore::temporary().await.unwrap();
    let worker = laneway::Worker::builder(store).state(Recorder::default()).handle(work).build().unwrap();

    assert_eq!(worker.slots(), 1_000);
}

/// 2.1: no claim asks for more than there are free slots at that moment.
async fn capacity_aware_claiming(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(300, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 7));

    recorder.until("all have ended", |log| log.ended.len() == 300).await;
    worker.stopped().await;

    let mut unsettled = 0;
    for (advance, claimed) in std::iter::zip(probe.advances(), probe.claimed()) {
        unsettled -= advance.settles.len();
        let asked: usize = advance.claims.iter().map(|claim| claim.max as usize).sum();
        assert!(unsettled + asked <= 7, "{asked} asked while {unsettled} were out");
        unsettled += claimed;
    }
    assert!(recorder.log().peak <= 7);
}

/// 2.2: claims are small even when there is room for more, so that others get a share.
async fn smaller_claims_faster_polls(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(200, What::Gate)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 1_000));

    recorder.until("all run", |log| log.running == 200).await;

    let largest = probe.advances().iter().flat_map(|advance| &advance.claims).map(|claim| claim.max).max();
    assert_eq!(largest, Some(50));
    recorder.open_gate();
    worker.stopped().await;
}

/// 2.3, signal 1, with the share of the seed: with less than a tenth of the slots free nothing is claimed.
async fn semaphore_saturation_stops_claiming(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many((0..60).map(|n| Job { n, what: What::Gate })).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 40).claim_size(5).min_free_ratio(0.1));

    recorder.until("nine tenths are busy", |log| log.running == 40).await;
    worker.until_metric(r#"worker_backpressure_factor{signal="slots"}"#, |factor| factor == 0.0).await;
    recorder.open_gate_below(1);
    recorder.until("one has ended", |log| !log.ended.is_empty()).await;
    until("its end is settled", async || probe.advances().iter().any(|one| one.settles.len() == 1)).await;
    let settling = probe.advances().into_iter().find(|advance| !advance.settles.is_empty()).unwrap();
    assert_eq!(settling.claims, [], "one free slot of forty is less than a tenth");

    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 60).await;
    worker.stopped().await;
}

/// 2.3, signal 2.
async fn memory_pressure_halves_the_claim_size(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let full = || Some(Memory { used: 81, limit: 100 });
    let worker = start(a_worker(probe.handle(), &recorder, 1_000).memory_probe(full));
    worker.until_metric(r#"worker_backpressure_factor{signal="memory"}"#, |factor| factor == 0.5).await;
    let before = probe.advances().len();

    client(store).enqueue_many(jobs(100, What::Nothing)).await.unwrap();
    recorder.until("all have ended", |log| log.ended.len() == 100).await;

    let claims = probe.advances().into_iter().skip(before + 1).flat_map(|advance| advance.claims);
    assert!(claims.map(|claim| claim.max).all(|max| max == 25));
    worker.stopped().await;
}

/// 2.3, signal 3.
async fn task_latency_reduces_the_claim_size_by_a_third(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let threshold = Duration::from_millis(5);
    let worker = start(a_worker(probe.handle(), &recorder, 1_000).latency_threshold(threshold));

    client(store).enqueue_many(jobs(20, What::Millis(20))).await.unwrap();
    recorder.until("slow ones have ended", |log| log.ended.len() == 20).await;

    worker.until_metric(r#"worker_backpressure_factor{signal="latency"}"#, |factor| factor == 0.7).await;
    until("claims are smaller", async || {
        probe.advances().last().unwrap().claims.iter().any(|claim| claim.max == 35)
    })
    .await;
    worker.stopped().await;
}

/// 2.4: the five names, as they are scraped.
async fn metrics_export(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 10));
    client(store).enqueue_many(jobs(3, What::Nothing)).await.unwrap();
    client(store).enqueue(Job { n: 9, what: What::Gate }).await.unwrap();
    recorder.until("one runs", |log| log.ended.len() == 3 && log.running == 1).await;

    let completed = r#"worker_tasks_completed_total{queue="default",kind="job"}"#;
    worker.until_metric(completed, |completed| completed == 3.0).await;
    assert_eq!(worker.metrics.value(r#"worker_in_flight_tasks{queue="default"}"#), 1.0);
    let duration = r#"worker_task_duration_seconds_count{queue="default",kind="job",outcome="completed"}"#;
    assert_eq!(worker.metrics.value(duration), 3.0);
    assert!(worker.metrics.value("worker_claims_total") >= 1.0);
    assert!(worker.metrics.value("worker_claim_size_count") >= 1.0);
    recorder.open_gate();
    worker.stopped().await;
}

/// 2.5: free slots, all slots and memory in use are visible through the store.
async fn heartbeat_with_capacity_reporting(store: &TestStore) {
    let recorder = Recorder::default();
    let memory = || Some(Memory { used: 42, limit: 100 });
    let worker = start(a_worker(store.handle(), &recorder, 10).memory_probe(memory));
    client(store).enqueue_many(jobs(4, What::Gate)).await.unwrap();
    recorder.until("four run", |log| log.running == 4).await;

    until("the store knows", async || {
        let capacity = store.workers().await.unwrap()[0].capacity;
        (capacity.slots, capacity.free, capacity.memory_percent) == (10, 6, 42)
    })
    .await;
    recorder.open_gate();
    worker.stopped().await;
}

/// Testing requirement 1: a workflow of 10 tasks keeps its order.
async fn sequential_guarantee_test(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many((0..10).map(|n| step("workflow", n, What::Millis(1)))).await.unwrap();
    let workers: Vec<_> = (0..2).map(|_| start(a_worker(store.handle(), &recorder, 10))).collect();

    let log = recorder.until("all have ended", |log| log.ended.len() == 10).await;

    assert_eq!((log.numbers(), log.peak), ((0..10).collect(), 1));
    for worker in workers {
        worker.stopped().await;
    }
}

/// Testing requirement 2: 100 workflows run at the same time.
async fn parallel_execution_test(store: &TestStore) {
    let recorder = Recorder::default();
    let steps = (0..200).map(|n| step(&format!("workflow:{}", n % 100), n, What::Gate));
    client(store).enqueue_many(steps).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 1_000));

    let log = recorder.until("one step of each runs", |log| log.running == 100).await;
    assert_eq!(log.peak_in_lane.len(), 100);
    recorder.open_gate();

    let log = recorder.until("all have ended", |log| log.ended.len() == 200).await;
    assert!(log.peak_in_lane.values().all(|peak| *peak == 1));
    worker.stopped().await;
}

/// Testing requirement 3: with a backlog of 10,000 the worker holds no more tasks than it has slots.
async fn backpressure_test(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(10_000, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 100));

    recorder.until("half of it is done", |log| log.ended.len() >= 5_000).await;
    let held = count(&**store, TaskState::Leased).await;
    let log = recorder.until("all have ended", |log| log.ended.len() == 10_000).await;

    assert!(held <= 100 && log.peak <= 100, "{held} leased, {} at once", log.peak);
    assert_eq!(worker.stopped().await.completed, 10_000);
}

/// Testing requirement 4: three processes share 3,000 tasks, each within 15 % of a third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distribution_test_on_postgres() {
    processes::three_share(&Place::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distribution_test_on_sqlite() {
    processes::three_share(&Place::sqlite()).await;
}

/// Testing requirement 5: a worker process is killed in mid-task; the task is taken back and completed by another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_recovery_test_on_postgres() {
    processes::a_killed_workers_task_is_completed_by_another(&Place::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_recovery_test_on_sqlite() {
    processes::a_killed_workers_task_is_completed_by_another(&Place::sqlite()).await;
}
