//! The helpers that users test with.

use laneway::{Client, testing};
use laneway_testkit::store::soon;

use crate::support::*;

#[tokio::test]
async fn what_was_enqueued_can_be_looked_at() {
    let store = testing::store().await;
    let client = Client::new(&store);

    client.enqueue(job(2)).delay(secs(60)).await.unwrap();
    client.enqueue(job(1)).lane("a").await.unwrap();

    let numbers: Vec<_> = testing::enqueued::<Job>(&store).await.iter().map(|job| job.n).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
#[should_panic(expected = "expected one task of kind `job`, found 2")]
async fn two_tasks_are_not_the_only_one() {
    let store = testing::store().await;
    Client::new(&store).enqueue_many([job(1), job(2)]).await.unwrap();

    testing::only::<Job>(&store).await;
}

#[tokio::test]
async fn one_task_runs_inline_without_being_stored() {
    let store = testing::store().await;
    let recorder = Recorder::default();
    let worker = a_worker(&store, &recorder, 1).build().unwrap();

    let done: Result<(), _> = testing::run_inline(&worker, job(7)).await;
    let failed: Result<(), _> = testing::run_inline(&worker, Job { n: 8, what: What::Discard }).await;

    assert!(done.is_ok());
    assert_eq!(failed.unwrap_err().to_string(), "never works");
    assert_eq!(recorder.log().numbers(), [7, 8]);
    assert_eq!(store.counts().await.unwrap(), []);
}

#[tokio::test]
async fn a_worker_that_fell_asleep_meanwhile_ends_with_its_last_task() {
    let store = testing::store().await;
    let recorder = Recorder::default();
    Client::new(&store).enqueue(Job { n: 1, what: What::Millis(500) }).await.unwrap();
    // Nobody comes to wake it.
    let worker = a_worker(&store, &recorder, 2).poll_interval_max(secs(600)).build().unwrap();

    let summary = soon("its end", worker.run_until_empty()).await.unwrap();

    assert_eq!(summary.completed, 1);
}
