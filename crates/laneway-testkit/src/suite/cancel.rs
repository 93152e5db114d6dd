//! Cancelling a task in every place where it can be.

use super::words::*;

pub async fn a_pending_task_is_cancelled_at_once(store: &TestStore) {
    let [id, laned] = store.given([a_task().payload("[1]"), a_task().lane("a")]).await;

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Cancelled);
    assert_eq!(store.cancel(laned).await.unwrap(), Cancel::Cancelled);

    let view = store.view(id).await;
    assert_eq!((view.state, view.error.as_deref()), (State::Cancelled, Some("cancelled")));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
    assert!(view.ended_at.is_some());
    assert!(store.worker().await.claim(10).await.is_empty());
}

pub async fn a_delayed_task_is_cancelled_at_once(store: &TestStore) {
    let [id, laned] = store.given([a_task().delay(secs(10)), a_task().delay(secs(10)).lane("a")]).await;

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Cancelled);
    assert_eq!(store.cancel(laned).await.unwrap(), Cancel::Cancelled);
    store.advance_clock(secs(11)).await;

    assert!(store.worker().await.claim(10).await.is_empty());
    assert_eq!(store.state(id).await, State::Cancelled);
}

pub async fn the_worker_of_a_running_task_is_told_until_it_settles(store: &TestStore) {
    let [id, _other] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Requested);
    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Requested);

    let view = store.view(id).await;
    assert_eq!((view.state, view.cancel_requested), (State::Leased, true));
    for _ in 0..2 {
        assert_eq!(worker.orders(&claimed).await.cancel, [id]);
    }
    worker.settle(&claimed[0], Outcome::Cancelled { reason: None }).await;
    assert_eq!(worker.orders(&claimed).await.cancel, []);
    assert_eq!(store.state(id).await, State::Cancelled);
}

pub async fn only_the_worker_of_the_task_is_told(store: &TestStore) {
    store.given([a_task(), a_task()]).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);
    let (first, second) = (one.claim(1).await, two.claim(1).await);

    store.cancel(first[0].task.id).await.unwrap();

    assert_eq!(two.orders(&second).await.cancel, []);
    assert_eq!(one.orders(&first).await.cancel, [first[0].task.id]);
}

pub async fn an_attempt_that_would_run_again_is_cancelled_instead(store: &TestStore) {
    store.given_all((0..3).map(|n| a_task().lane(&n.to_string()))).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    for one in &claimed {
        store.cancel(one.task.id).await.unwrap();
    }

    let outcomes = [retry_after(secs(5)), Outcome::Snooze { after: secs(5) }, Outcome::GivenBack];
    let settles = claimed.iter().zip(outcomes).map(|(one, outcome)| one.settle(outcome)).collect();

    assert_eq!(worker.settle_all(settles).await, [Verdict::Cancelled; 3]);
    for one in &claimed {
        let view = store.view(one.task.id).await;
        assert_eq!((view.state, view.cancel_requested), (State::Cancelled, false));
    }
}

pub async fn an_attempt_that_ends_first_stands(store: &TestStore) {
    let [done, gone] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    for one in &claimed {
        store.cancel(one.task.id).await.unwrap();
    }

    let verdicts =
        worker.settle_all(vec![claimed[0].settle(Outcome::completed()), claimed[1].settle(failed())]).await;

    assert_eq!(verdicts, [Verdict::Completed, Verdict::Failed]);
    assert_eq!(store.cancel(done).await.unwrap(), Cancel::Ended(State::Completed));
    assert_eq!(store.cancel(gone).await.unwrap(), Cancel::Ended(State::Failed));
}

pub async fn a_requested_cancel_meets_a_worker_that_stops(store: &TestStore) {
    let id = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let _claimed = worker.claim_one().await;
    store.cancel(id).await.unwrap();

    worker.deregister().await;

    assert_eq!(store.state(id).await, State::Cancelled);
}

pub async fn a_requested_cancel_meets_a_lease_that_its_worker_does_not_know(store: &TestStore) {
    let id = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let _claimed = worker.claim_one().await;
    store.cancel(id).await.unwrap();

    worker.orders(&[]).await;

    assert_eq!(store.state(id).await, State::Cancelled);
}

pub async fn a_requested_cancel_meets_a_worker_that_dies(store: &TestStore) {
    let [id, next] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let _claimed = store.worker().await.claim_one().await;
    store.cancel(id).await.unwrap();

    store.sweep_all_but(&mut []).await;

    assert_eq!(store.state(id).await, State::Cancelled);
    assert_eq!(ids(&store.worker().await.claim(10).await), [next]);
}

pub async fn an_ended_task_is_not_cancelled(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    store.cancel(id).await.unwrap();

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Ended(State::Cancelled));
}

pub async fn a_plain_success_is_not_cancelled(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Ended(State::Completed));
}

pub async fn an_unknown_task_is_not_found(store: &TestStore) {
    assert_eq!(store.cancel(TaskId(4_711)).await.unwrap(), Cancel::NotFound);
}

pub async fn a_cancelled_head_lets_its_lane_go_on(store: &TestStore) {
    let [first, second, third] =
        store.given([a_task().lane("a"), a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;

    store.cancel(first).await.unwrap();
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [second]);
    store.cancel(third).await.unwrap();
    worker.complete(&claimed).await;

    assert!(worker.claim(10).await.is_empty());
}

pub async fn a_cancelled_task_frees_the_turn_that_is_bound_to_it(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::GivenBack).await;

    assert_eq!(store.cancel(first).await.unwrap(), Cancel::Cancelled);

    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn a_cancelled_task_in_back_off_gives_its_turn_to_the_next(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(600))).await;
    assert!(worker.claim(10).await.is_empty());

    assert_eq!(store.cancel(first).await.unwrap(), Cancel::Cancelled);

    assert_eq!(ids(&worker.claim(10).await), [second]);
    assert_eq!(store.view(first).await.state, State::Cancelled);
}

pub async fn a_cancelled_task_in_back_off_leaves_an_empty_lane_usable(store: &TestStore) {
    let first = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::Snooze { after: secs(600) }).await;
    store.cancel(first).await.unwrap();

    let second = store.given_one(a_task().lane("a")).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}
