//! How attempts end, and what becomes of their tasks.

use std::time::Duration;

use laneway::core::{Json, Kind, NewTask, RetryPolicy, State as TaskState};
use laneway::{Failure, Payload, StopReason, Worker};
use serde::{Deserialize, Serialize};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    a_panic_is_a_failed_attempt_and_frees_its_slot,
    an_error_is_retried_by_the_tasks_policy_until_its_attempts_are_spent,
    a_failure_for_good_is_not_retried,
    a_payload_that_does_not_fit_fails_for_good_with_a_clear_error,
    an_attempt_that_takes_too_long_is_dropped_and_fails,
    snooze_charges_nothing_and_retry_after_keeps_its_delay,
    a_cancelled_attempt_is_told_within_two_seconds,
    a_cancel_does_not_wait_for_the_next_renewal,
    progress_is_seen_while_the_attempt_runs,
    an_attempt_that_ignores_its_cancel_is_dropped,
    kinds_without_a_handler_stay_where_they_are,
}

/// A policy without waiting.
fn at_once() -> RetryPolicy {
    RetryPolicy::List { delays_ms: vec![0] }
}

async fn a_panic_is_a_failed_attempt_and_frees_its_slot(store: &TestStore) {
    let recorder = Recorder::default();
    let [first, second] = [What::Panic, What::Nothing].map(|what| Job { n: 0, what });
    let panics = client(store).enqueue(first).max_attempts(1).await.unwrap();
    client(store).enqueue(second).await.unwrap();

    let summary = a_worker(store.handle(), &recorder, 1).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!((summary.failed, summary.completed), (1, 1));
    let view = store.view(panics.id).await;
    assert_eq!((view.state, view.error.as_deref()), (TaskState::Failed, Some("panicked: job 0 panics")));
}

async fn an_error_is_retried_by_the_tasks_policy_until_its_attempts_are_spent(store: &TestStore) {
    let recorder = Recorder::default();
    let fails = Job { n: 0, what: What::Fail };
    let task = client(store).enqueue(fails).max_attempts(3).retry(at_once()).await.unwrap();

    a_worker(store.handle(), &recorder, 4).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!(recorder.log().started.len(), 3);
    let view = store.view(task.id).await;
    assert_eq!(
        (view.state, view.attempt, view.error.as_deref()),
        (TaskState::Failed, 3, Some("did not work"))
    );
}

async fn a_failure_for_good_is_not_retried(store: &TestStore) {
    let recorder = Recorder::default();
    let task = client(store).enqueue(Job { n: 0, what: What::Discard }).retry(at_once()).await.unwrap();

    let summary = a_worker(store.handle(), &recorder, 4).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!((recorder.log().started.len(), summary.discarded), (1, 1));
    assert_eq!(store.view(task.id).await.error.as_deref(), Some("never works"));
}

async fn a_payload_that_does_not_fit_fails_for_good_with_a_clear_error(store: &TestStore) {
    let misfit = NewTask::new(Kind::new("job").unwrap(), Json::parse(r#"{"n": "seven"}"#).unwrap());
    let task = store.enqueue(misfit).await.unwrap();

    a_worker(store.handle(), &Recorder::default(), 1).build().unwrap().run_until_empty().await.unwrap();

    let view = store.view(task.id).await;
    let error = view.error.unwrap();
    assert_eq!((view.state, view.attempt), (TaskState::Failed, 1));
    assert!(
        error.starts_with("the payload does not fit what the handler of `job` takes: invalid type"),
        "{error}"
    );
}

async fn an_attempt_that_takes_too_long_is_dropped_and_fails(store: &TestStore) {
    let recorder = Recorder::default();
    let stubborn = Job { n: 0, what: What::Stubborn };
    let short = Duration::from_millis(50);
    let task = client(store).enqueue(stubborn).timeout(short).max_attempts(1).await.unwrap();

    a_worker(store.handle(), &recorder, 1).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!(recorder.log().dropped, 1);
    let view = store.view(task.id).await;
    assert_eq!((view.state, view.error.as_deref()), (TaskState::Failed, Some("timed out after 50ms")));
}

#[derive(Serialize, Deserialize)]
struct PutOff {
    snooze: bool,
}
impl Payload for PutOff {
    const KIND: &'static str = "put_off";
}

async fn put_off(put_off: PutOff) -> Result<(), Failure> {
    let hour = secs(3_600);
    Err(if put_off.snooze { Failure::snooze(hour) } else { Failure::retry_after(hour, "busy") })
}

async fn snooze_charges_nothing_and_retry_after_keeps_its_delay(store: &TestStore) {
    let snoozed = client(store).enqueue(PutOff { snooze: true }).await.unwrap();
    let retried = client(store).enqueue(PutOff { snooze: false }).await.unwrap();

    Worker::builder(store.handle()).handle(put_off).build().unwrap().run_until_empty().await.unwrap();

    for (task, charged) in [(snoozed, 0), (retried, 1)] {
        let view = store.view(task.id).await;
        assert_eq!((view.state, view.attempt), (TaskState::Later, charged));
        assert!(view.due_at.unwrap() > jiff::Timestamp::now() + jiff::SignedDuration::from_mins(55));
    }
}

async fn a_cancelled_attempt_is_told_within_two_seconds(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 2));
    let task = client(store).enqueue(Job { n: 0, what: What::UntilStopped }).await.unwrap();
    recorder.until("it runs", |log| log.running == 1).await;

    let asked = std::time::Instant::now();
    client(store).cancel(task).await.unwrap();
    recorder.until("it was told to stop", |log| log.ended.len() == 1).await;

    // Renewals come every 1.5 s; the rest is for slow machines.
    assert!(asked.elapsed() < secs(20), "{:?}", asked.elapsed());
    assert_eq!(client(store).wait(task).await.unwrap().state(), TaskState::Cancelled);
    assert_eq!(worker.stopped().await.cancelled, 1);
}

async fn an_attempt_that_ignores_its_cancel_is_dropped(store: &TestStore) {
    let recorder = Recorder::default();
    let worker = start(a_worker(store.handle(), &recorder, 2).patience(Duration::from_millis(20)));
    let task = client(store).enqueue(Job { n: 0, what: What::Stubborn }).await.unwrap();
    recorder.until("it runs", |log| log.running == 1).await;

    client(store).cancel(task).await.unwrap();

    recorder.until("it was dropped", |log| log.dropped == 1).await;
    assert_eq!(client(store).wait(task).await.unwrap().state(), TaskState::Cancelled);
    worker.stopped().await;
}

async fn kinds_without_a_handler_stay_where_they_are(store: &TestStore) {
    let task = client(store).enqueue(PutOff { snooze: true }).await.unwrap();

    let summary =
        a_worker(store.handle(), &Recorder::default(), 2).build().unwrap().run_until_empty().await.unwrap();

    assert_eq!((summary.completed, summary.failed), (0, 0));
    assert_eq!(store.view(task.id).await.state, TaskState::Pending);
}

/// The reasons are told apart by handlers that clean up differently.
#[test]
fn reasons_to_stop_can_be_compared() {
    assert_ne!(StopReason::Cancelled, StopReason::WorkerStops);
}

/// Renewals are 1.5 s apart while attempts run. Right after one, a cancel that had to wait for the next would take that long each
/// time; one that does not may do so once, on a machine that stands still for a moment.
async fn a_cancel_does_not_wait_for_the_next_renewal(store: &TestStore) {
    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let worker = start(a_worker(probe.handle(), &recorder, 1));
    until("hints arrive", async || store.is_listening()).await;

    let mut took = vec![];
    while took.last().is_none_or(|last| *last >= Duration::from_millis(1_200)) {
        assert!(took.len() < 5, "they took {took:?}");
        let task = client(store).enqueue(Job { n: 0, what: What::UntilStopped }).await.unwrap();
        recorder.until("it runs", |log| log.running == 1).await;
        let renewed = probe.calls("renew");
        until("the session was renewed just now", async || probe.calls("renew") > renewed).await;

        let asked = std::time::Instant::now();
        client(store).cancel(task.id).await.unwrap();
        recorder.until("it was told", |log| log.running == 0).await;
        took.push(asked.elapsed());

        assert_eq!(client(store).wait(task).await.unwrap().state(), TaskState::Cancelled);
    }
    worker.stopped().await;
}

#[derive(Serialize, Deserialize)]
struct Import;
impl Payload for Import {
    const KIND: &'static str = "import";
}

/// Tells far more often than it is passed on.
async fn import(_: Import, attempt: laneway::Attempt) -> Result<(), Failure> {
    for row in 1.. {
        attempt.progress(laneway::Progress::of(row.min(99), 100).note("rows"));
        if attempt.is_cancelled() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn progress_is_seen_while_the_attempt_runs(store: &TestStore) {
    let probe = Probe::new(store.handle());
    let task = client(store).enqueue(Import).await.unwrap();
    let began = std::time::Instant::now();
    let worker = start(Worker::builder(probe.handle()).handle(import));

    until("it is seen how far it is", async || {
        let progress = store.view(task.id).await.progress;
        progress.is_some_and(|progress| progress.fraction == 0.99 && progress.note.as_deref() == Some("rows"))
    })
    .await;

    assert!(probe.calls("report_progress") as u64 <= began.elapsed().as_secs() + 1, "at most one a second");
    client(store).cancel(task.id).await.unwrap();
    client(store).wait(task).await.unwrap();
    assert_eq!(store.view(task.id).await.progress, None);
    worker.stopped().await;
}
