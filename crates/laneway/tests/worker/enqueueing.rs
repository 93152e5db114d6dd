//! What a client can say about a task, and how it learns of its end.

use std::time::Duration;

use laneway::core::{LaneLimit, RetryPolicy, State as TaskState};
use laneway::{Attempt, Client, Failure, Payload, ResultError, WaitError, Worker, task};
use serde::{Deserialize, Serialize};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    everything_that_is_said_about_a_task_is_stored,
    a_bulk_is_stored_whole_and_in_order,
    a_mistake_names_the_field_and_stores_nothing,
    the_result_of_a_task_can_be_waited_for_and_read,
    a_failed_task_has_no_result_but_an_error,
    waiting_for_a_task_that_does_not_exist_is_an_error,
    what_an_attempt_enqueues_belongs_to_its_trace,
    a_unique_key_is_answered_with_the_task_that_holds_it,
    an_enqueue_with_an_idempotency_key_can_be_repeated,
}

async fn a_unique_key_is_answered_with_the_task_that_holds_it(store: &TestStore) {
    let client = client(store);

    let first = client.enqueue(job(1)).unique("customer:7").await.unwrap();
    let second = client.enqueue(job(2)).unique("customer:7").await.unwrap();

    assert!(first.is_new() && !second.is_new());
    assert_eq!((first.id, store.total().await), (second.id, 1));
}

async fn an_enqueue_with_an_idempotency_key_can_be_repeated(store: &TestStore) {
    let client = client(store);

    let first = client.enqueue(job(1)).idempotency_key("order 7").await.unwrap();
    let again = client.enqueue(job(1)).idempotency_key("order 7").await.unwrap();
    let other = client.enqueue(job(2)).idempotency_key("order 7").await;

    assert_eq!(first.id, again.id);
    assert!(other.is_err(), "{other:?}");
}

async fn everything_that_is_said_about_a_task_is_stored(store: &TestStore) {
    let task = client(store)
        .enqueue(job(7))
        .queue("mail")
        .lane("customer:7")
        .limit(3)
        .priority(-5)
        .delay(secs(60))
        .max_attempts(4)
        .retry(RetryPolicy::List { delays_ms: vec![10] })
        .timeout(secs(9))
        .tag("nightly")
        .trace("traceparent", "00-1-2-01")
        .await
        .unwrap();

    let view = store.view(task.id).await;
    assert_eq!((view.kind.as_str(), view.queue.as_str(), view.priority), ("job", "mail", -5));
    assert_eq!(view.state, TaskState::Later);
    assert_eq!((view.max_attempts, view.options.timeout_ms), (4, Some(9_000)));
    assert_eq!(view.options.tags[0].as_str(), "nightly");
    assert_eq!(view.options.trace["traceparent"], "00-1-2-01");
    store.advance_clock(secs(61)).await;
    let claimed = store.worker().await.claim_from("mail", 1).await;
    assert_eq!(claimed[0].task.lane.as_ref().unwrap().as_str(), "customer:7");
    let mail = laneway::core::QueueName::new("mail").unwrap();
    let lane = store.lane(&mail, claimed[0].task.lane.as_ref().unwrap()).await.unwrap().unwrap();
    assert_eq!(lane.limit, LaneLimit::at(3).unwrap());
}

async fn a_bulk_is_stored_whole_and_in_order(store: &TestStore) {
    let client = client(store);

    let payloads = client.enqueue_many((0..3).map(job)).await.unwrap();
    let drafts = client.enqueue_many([task(job(3)).lane("a"), task(job(4)).priority(1)]).await.unwrap();

    assert!(payloads.iter().chain(&drafts).is_sorted());
    assert_eq!(store.total().await, 5);
}

async fn a_mistake_names_the_field_and_stores_nothing(store: &TestStore) {
    let client = client(store);
    for (mistake, says) in [
        (client.enqueue(job(1)).queue("").await, "queue is empty"),
        (client.enqueue(job(1)).limit(3).await, "lane.limit belongs to a lane"),
        (client.enqueue(job(1)).lane("a").limit(0).await, "lane.limit"),
        (client.enqueue(job(1)).priority(5_000).await, "priority"),
        (client.enqueue(job(1)).tag("\u{0}").await, "tag"),
    ] {
        let error = mistake.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let bulk = client.enqueue_many([task(job(1)), task(job(2)).lane("")]).await;
    assert!(bulk.unwrap_err().to_string().contains("task 1:"));
    assert_eq!(store.total().await, 0);
}

#[derive(Serialize, Deserialize)]
struct Add(i64, i64);
impl Payload for Add {
    const KIND: &'static str = "add";
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sum {
    total: i64,
}

async fn add(Add(a, b): Add) -> Result<Sum, Failure> {
    a.checked_add(b).map(|total| Sum { total }).ok_or_else(|| Failure::discard("too large"))
}

async fn the_result_of_a_task_can_be_waited_for_and_read(store: &TestStore) {
    let worker = start(Worker::builder(store.handle()).handle(add));
    let client = client(store);

    let ended = client.wait(client.enqueue(Add(2, 3)).await.unwrap()).await.unwrap();

    assert_eq!(ended.result::<Sum>().unwrap(), Sum { total: 5 });
    assert!(matches!(ended.result::<String>(), Err(ResultError::Mismatch { .. })));
    worker.stopped().await;
}

async fn a_failed_task_has_no_result_but_an_error(store: &TestStore) {
    let worker = start(Worker::builder(store.handle()).handle(add));
    let client = client(store);

    let ended = client.wait(client.enqueue(Add(i64::MAX, 1)).await.unwrap()).await.unwrap();

    assert_eq!(ended.state(), TaskState::Failed);
    let error = ended.result::<Sum>().unwrap_err().to_string();
    assert!(error.ends_with("has no result, it ended as failed: too large"), "{error}");
    worker.stopped().await;
}

async fn waiting_for_a_task_that_does_not_exist_is_an_error(store: &TestStore) {
    let missing = client(store).wait(laneway::TaskId(404)).await;

    assert!(matches!(missing, Err(WaitError::NotFound { .. })), "{missing:?}");
}

#[derive(Serialize, Deserialize)]
struct Outer;
impl Payload for Outer {
    const KIND: &'static str = "outer";
}

async fn what_an_attempt_enqueues_belongs_to_its_trace(store: &TestStore) {
    async fn outer(_: Outer, attempt: Attempt) -> Result<(), Failure> {
        assert_eq!(attempt.trace()["traceparent"], "00-a-b-01");
        attempt.client().enqueue(job(1)).await?;
        Ok(())
    }
    let recorder = Recorder::default();
    let worker = a_worker(store.handle(), &recorder, 2).handle(outer).build().unwrap();
    client(store).enqueue(Outer).trace("traceparent", "00-a-b-01").await.unwrap();

    worker.run_until_empty().await.unwrap();

    let inner = recorder.log().started[0].0;
    // A plain success keeps no options, so the trace is looked at through a task that is still there.
    assert_eq!(store.view(inner).await.state, TaskState::Completed);
    client(store).enqueue(Outer).trace("traceparent", "00-a-b-01").await.unwrap();
    let only_outer = Worker::builder(store.handle()).handle(outer).build().unwrap();
    only_outer.run_until_empty().await.unwrap();
    let pending = store.list(laneway::core::Listing::of(laneway::core::Place::Pending)).await.unwrap();
    assert_eq!(pending.tasks[0].options.trace["traceparent"], "00-a-b-01");
}

/// A client that is moved into a spawned task must be `Send`, and so must its futures.
#[test]
fn a_client_can_be_used_from_any_task() {
    fn is_send<T: Send>(_: T) {}
    fn check(client: Client) {
        is_send(async move { client.enqueue(job(1)).delay(Duration::from_secs(1)).await });
    }
    let _ = check;
}
