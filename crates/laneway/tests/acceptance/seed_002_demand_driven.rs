//! Seed 002: one coordinator claims up to the free slots; nothing ever waits for a whole batch.

use laneway::core::{RetryPolicy, State as TaskState};
use laneway::task;

use crate::on_both_stores;
use crate::one_that_must_not_wait;
use crate::support::*;

on_both_stores! {
    a_single_coordinator_claims,
    a_claim_is_limited_to_the_available_slots,
    each_claimed_job_runs_individually,
    a_completed_job_releases_its_permit_and_wakes_the_coordinator,
    jobs_are_picked_up_immediately_as_slots_free,
    one_long_job_among_short_ones_leaves_no_slot_idle,
    a_single_claim_query_per_cycle_regardless_of_concurrency,
    no_thundering_herd_on_wake,
    unused_permits_are_returned_after_a_claim,
    concurrency_is_how_many_jobs_run_simultaneously,
    edge_case_failures_do_not_stop_the_worker,
    edge_case_every_job_fails,
    edge_case_concurrency_of_one,
    edge_case_fewer_jobs_than_slots,
    edge_case_jobs_that_arrive_while_others_run,
    edge_case_stop_while_idle,
    edge_case_stop_while_all_slots_are_busy,
    edge_case_stop_twice,
    edge_case_restart_after_stop,
    edge_case_wake_without_work,
}

async fn a_single_coordinator_claims(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(500, What::Nothing)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 20));

    recorder.until("all have ended", |log| log.ended.len() == 500).await;

    worker.stopped().await;
    assert_eq!(probe.advances_at_once(), 1);
}

async fn a_claim_is_limited_to_the_available_slots(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many((0..8).map(|n| Job { n, what: What::Gate })).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 5));
    recorder.until("all slots are busy", |log| log.running == 5).await;

    recorder.open_gate_below(1);
    recorder.until("the free slot is filled", |log| log.started.len() == 6).await;

    let asked: Vec<u32> =
        probe.advances().iter().flat_map(|one| &one.claims).map(|claim| claim.max).collect();
    assert_eq!(asked, [5, 1]);
    recorder.open_gate();
    worker.stopped().await;
}

async fn each_claimed_job_runs_individually(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many((0..5).map(|n| Job { n, what: What::Gate })).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 5));
    recorder.until("all run", |log| log.running == 5).await;

    for n in 1..=5 {
        recorder.open_gate_below(n);
        recorder.until("one more has ended", |log| log.ended.len() as u64 == n).await;
    }

    assert_eq!(worker.stopped().await.completed, 5);
}

async fn a_completed_job_releases_its_permit_and_wakes_the_coordinator(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many((0..10).map(|n| Job { n, what: What::Gate })).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 1));

    for n in 1..=10 {
        recorder.until("the next one runs", |log| log.started.len() as u64 == n && log.running == 1).await;
        recorder.open_gate_below(n);
    }

    recorder.until("all have ended", |log| log.ended.len() == 10).await;
    worker.stopped().await;
}

async fn jobs_are_picked_up_immediately_as_slots_free(store: &TestStore) {
    no_slot_is_idle(store, 5, 25).await;
}

/// One job of ten seconds among jobs of 200 ms, without the clock: the long one ends last of all, and after every end of a
/// short one all slots are busy again as long as jobs are pending.
async fn one_long_job_among_short_ones_leaves_no_slot_idle(store: &TestStore) {
    no_slot_is_idle(store, 5, 50).await;
}

async fn no_slot_is_idle(store: &TestStore, slots: usize, short: u64) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue(Job { n: 1_000_000, what: What::Gate }).await.unwrap();
    client(store).enqueue_many((0..short).map(|n| Job { n, what: What::Gate })).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, slots));

    for done in 0..=short - (slots as u64 - 1) {
        recorder.open_gate_below(done);
        recorder
            .until("all slots are busy", |log| log.ended.len() as u64 == done && log.running == slots)
            .await;
    }
    recorder.open_gate_below(short);
    recorder
        .until("only the long one is left", |log| log.ended.len() as u64 == short && log.running == 1)
        .await;

    recorder.open_gate();
    assert_eq!(worker.stopped().await.completed, short + 1);
}

async fn a_single_claim_query_per_cycle_regardless_of_concurrency(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many(jobs(200, What::Gate)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 200).claim_size(200));

    recorder.until("all run", |log| log.running == 200).await;

    assert_eq!(probe.calls("advance"), 1, "{}", probe.seen());
    recorder.open_gate();
    worker.stopped().await;
}

/// A hint wakes one coordinator, not two hundred slots.
async fn no_thundering_herd_on_wake(store: &TestStore) {
    let _hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let worker = start(a_worker(probe.handle(), &recorder, 200).poll_interval_max(secs(3_600)));
    until("it sleeps", async || probe.calls("is_claimable") > 0).await;
    let before = probe.calls("advance");

    client(store).enqueue(Job { n: 0, what: What::Gate }).await.unwrap();
    recorder.until("it runs", |log| log.running == 1).await;

    // A hint may come for the commit and for what it made due; each is one look.
    assert!(probe.calls("advance") - before <= 3, "{}", probe.seen());
    recorder.open_gate();
    worker.stopped().await;
}

async fn unused_permits_are_returned_after_a_claim(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 10));
    client(store).enqueue_many(jobs(3, What::Gate)).await.unwrap();
    recorder.until("three run", |log| log.running == 3).await;

    client(store).enqueue_many(jobs(20, What::Gate)).await.unwrap();

    recorder.until("the other seven slots are used", |log| log.running == 10).await;
    recorder.open_gate();
    recorder.until("all have ended", |log| log.ended.len() == 23).await;
    assert_eq!(recorder.log().peak, 10);
    worker.stopped().await;
}

async fn concurrency_is_how_many_jobs_run_simultaneously(store: &TestStore) {
    for slots in [1, 3, 17] {
        let recorder = Recorder::default();
        client(store).enqueue_many(jobs(40, What::Gate)).await.unwrap();
        let worker = start(a_worker(store.handle(), &recorder, slots).claim_size(2));
        recorder.until("all slots are busy", |log| log.running == slots).await;
        recorder.open_gate();
        let log = recorder.until("all have ended", |log| log.ended.len() == 40).await;
        assert_eq!(log.peak, slots);
        worker.stopped().await;
    }
}

async fn edge_case_failures_do_not_stop_the_worker(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let what = |n: u64| match n % 4 {
        0 => What::Panic,
        1 => What::Discard,
        2 => What::Fail,
        _ => What::Nothing,
    };
    let drafts = (0..40).map(|n| task(Job { n, what: what(n) }).max_attempts(1));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 3));

    recorder.until("all have run", |log| log.started.len() == 40 && log.running == 0).await;

    let summary = worker.stopped().await;
    assert_eq!((summary.completed, summary.failed, summary.discarded), (10, 20, 10));
    assert_eq!(count(&**store, TaskState::Failed).await, 30);
}

async fn edge_case_every_job_fails(store: &TestStore) {
    let recorder = Recorder::default();
    let at_once = RetryPolicy::List { delays_ms: vec![0] };
    let drafts = (0..10).map(|n| task(Job { n, what: What::Fail }).max_attempts(3).retry(at_once.clone()));
    client(store).enqueue_many(drafts).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 4));

    until("all have failed", async || count(&**store, TaskState::Failed).await == 10).await;

    assert_eq!(recorder.log().started.len(), 30);
    worker.stopped().await;
}

async fn edge_case_concurrency_of_one(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    client(store).enqueue_many((0..50).map(job)).await.unwrap();
    let worker = start(one_that_must_not_wait(&probe, &recorder, 1));

    let log = recorder.until("all have ended", |log| log.ended.len() == 50).await;

    assert_eq!((log.peak, log.numbers()), (1, (0..50).collect()));
    worker.stopped().await;
}

async fn edge_case_fewer_jobs_than_slots(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(3, What::Nothing)).await.unwrap();

    let summary = a_worker(store.handle(), &recorder, 500).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!((summary.completed, recorder.log().started.len()), (3, 3));
}

async fn edge_case_jobs_that_arrive_while_others_run(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 4));
    client(store).enqueue(Job { n: 0, what: What::Gate }).await.unwrap();
    recorder.until("it runs", |log| log.running == 1).await;

    for n in 1..=20 {
        client(store).enqueue(job(n)).await.unwrap();
    }

    recorder.until("the others have ended", |log| log.ended.len() == 20).await;
    recorder.open_gate();
    worker.stopped().await;
}

async fn edge_case_stop_while_idle(store: &TestStore) {
    let worker = start(a_worker(store.handle(), &Recorder::default(), 4));
    until("it is registered", async || store.workers().await.unwrap().len() == 1).await;

    let summary = worker.stopped().await;

    assert_eq!(summary.completed, 0);
    assert_eq!(store.workers().await.unwrap(), []);
}

async fn edge_case_stop_while_all_slots_are_busy(store: &TestStore) {
    let recorder = Recorder::default();
    client(store).enqueue_many(jobs(10, What::Gate)).await.unwrap();
    let worker = start(a_worker(store.handle(), &recorder, 4));
    recorder.until("all slots are busy", |log| log.running == 4).await;

    worker.stop.drain();
    recorder.open_gate();
    let summary = worker.ended().await;

    assert_eq!((summary.completed, count(&**store, TaskState::Pending).await), (4, 6));
}

async fn edge_case_stop_twice(store: &TestStore) {
    let worker = start(a_worker(store.handle(), &Recorder::default(), 4));

    worker.stop.drain();
    worker.stop.drain();

    worker.ended().await;
}

async fn edge_case_restart_after_stop(store: &TestStore) {
    let recorder = Recorder::default();
    for round in 1..=3 {
        let worker = start(a_worker(store.handle(), &recorder, 4));
        client(store).enqueue(job(round)).await.unwrap();
        recorder.until("it has ended", |log| log.ended.len() as u64 == round).await;
        worker.stopped().await;
    }

    assert_eq!(recorder.log().numbers(), [1, 2, 3]);
}

/// Hints that bring nothing are followed now and then, not one by one.
async fn edge_case_wake_without_work(store: &TestStore) {
    let _hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let worker = start(a_worker(probe.handle(), &recorder, 4).poll_interval_max(secs(3_600)));
    until("it sleeps", async || probe.calls("is_claimable") > 0).await;
    let (began, before) = (std::time::Instant::now(), probe.calls("advance"));

    let other = laneway::core::Kind::new("another.kind").unwrap();
    for _ in 0..50 {
        let task = laneway::core::NewTask::new(other.clone(), Default::default());
        store.enqueue(task).await.unwrap();
    }
    client(store).enqueue(job(1)).await.unwrap();

    recorder.until("its own job has run", |log| log.ended.len() == 1).await;
    // Besides: the first look, the claim of its job, its settle, and looks of a worker that is awake again.
    let allowed = began.elapsed().as_millis() / 5 + 6;
    assert!(((probe.calls("advance") - before) as u128) <= allowed, "{} > {allowed}", probe.seen());
    worker.stopped().await;
}
