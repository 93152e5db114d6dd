//! Tasks that start later: delays, due times, back-off.

use jiff::Timestamp;

use super::words::*;

pub async fn a_delayed_task_waits_in_later_and_says_until_when(store: &TestStore) {
    let id = store.given_one(a_task().delay(secs(90)).payload("[1]")).await;

    let view = store.view(id).await;

    assert_eq!((view.state, view.attempt), (State::Later, 0));
    let waits = view.due_at.unwrap().duration_since(view.enqueued_at);
    assert_eq!(waits.as_secs(), 90);
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
}

pub async fn a_delayed_task_starts_no_earlier_than_it_is_due(store: &TestStore) {
    let id = store.given_one(a_task().delay(secs(20))).await;
    let mut worker = store.worker().await;

    assert!(worker.claim(1).await.is_empty());
    store.advance_clock(secs(18)).await;
    assert!(worker.claim(1).await.is_empty());
    store.advance_clock(secs(3)).await;

    assert_eq!(ids(&worker.claim(1).await), [id]);
}

pub async fn a_task_can_be_given_a_due_time(store: &TestStore) {
    let due = Timestamp::now() + secs(3_600);
    let id = store.given_one(a_task().with(|task| task.at(due))).await;
    let mut worker = store.worker().await;

    let view = store.view(id).await;
    assert_eq!(view.state, State::Later);
    assert_eq!(view.due_at.unwrap().as_microsecond(), due.as_microsecond());
    assert!(worker.claim(1).await.is_empty());
    store.advance_clock(secs(3_601)).await;

    worker.stay_alive().await;
    assert_eq!(ids(&worker.claim(1).await), [id]);
}

pub async fn a_due_time_in_the_past_and_no_delay_mean_at_once(store: &TestStore) {
    let past = "2001-02-03T04:05:06Z".parse().unwrap();
    let [old, none] = store.given([a_task().with(|task| task.at(past)), a_task().delay(secs(0))]).await;

    assert_eq!(store.state(old).await, State::Pending);
    assert_eq!(store.state(none).await, State::Pending);
    assert_eq!(ids(&store.worker().await.claim(2).await), [old, none]);
}

pub async fn due_tasks_run_by_priority_and_id_like_all_others(store: &TestStore) {
    let [slow, quick, urgent] = store
        .given([a_task().delay(secs(20)), a_task().delay(secs(5)), a_task().delay(secs(10)).priority(-1)])
        .await;
    let now = store.given_one(a_task()).await;
    store.advance_clock(secs(21)).await;

    assert_eq!(ids(&store.worker().await.claim(10).await), [urgent, slow, quick, now]);
}

pub async fn an_advance_of_any_queue_moves_due_tasks(store: &TestStore) {
    let [free, laned] =
        store.given([a_task().queue("a").delay(secs(5)), a_task().queue("b").lane("x").delay(secs(5))]).await;
    store.advance_clock(secs(6)).await;

    store.worker().await.claim_from("unrelated", 1).await;

    assert_eq!(store.state(free).await, State::Pending);
    assert_eq!(store.state(laned).await, State::Pending);
}

pub async fn an_unfilled_claim_tells_when_the_next_task_is_due(store: &TestStore) {
    store
        .given([a_task().queue("elsewhere").delay(secs(500)), a_task().queue("elsewhere").delay(secs(60))])
        .await;

    let advanced = store.worker().await.advance(|advance| advance.claim(queue("default"), 1)).await;

    let next = advanced.next_due.expect("something is due some day");
    assert!(next > secs(50) && next <= secs(60), "{next:?}");
}

pub async fn a_claim_with_nothing_scheduled_tells_no_due_time(store: &TestStore) {
    let advanced = store.worker().await.advance(|advance| advance.claim(queue("default"), 1)).await;

    assert_eq!(advanced.next_due, None);
}

pub async fn a_filled_claim_tells_no_due_time(store: &TestStore) {
    store.given([a_task(), a_task().delay(secs(60))]).await;

    let advanced = store.worker().await.advance(|advance| advance.claim(queue("default"), 1)).await;

    assert_eq!((advanced.claimed.len(), advanced.next_due), (1, None));
}

pub async fn a_lane_that_waits_for_its_interval_counts_as_due(store: &TestStore) {
    store.change_lane("a", LaneSettings { interval: Some(secs(30)), ..Default::default() }).await;
    store.given([a_task().lane_of("a", 5), a_task().lane_of("a", 5)]).await;
    let mut worker = store.worker().await;

    let advanced = worker.advance(|advance| advance.claim(queue("default"), 5)).await;

    assert_eq!(advanced.claimed.len(), 1);
    let next = advanced.next_due.expect("the lane goes on some day");
    assert!(next > secs(20) && next <= secs(30), "{next:?}");
}

pub async fn a_delayed_task_holds_no_turn_of_its_lane(store: &TestStore) {
    let [late, now] = store.given([a_task().lane("a").delay(secs(10)), a_task().lane("a")]).await;
    let mut worker = store.worker().await;

    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [now]);
    worker.complete(&claimed).await;
    store.advance_clock(secs(11)).await;

    assert_eq!(ids(&worker.claim(10).await), [late]);
}

pub async fn a_delayed_task_waits_for_its_lane_when_it_is_due(store: &TestStore) {
    let [late, now] = store.given([a_task().lane("a").delay(secs(10)), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let running = worker.claim(10).await;
    assert_eq!(ids(&running), [now]);

    store.advance_clock(secs(11)).await;
    assert!(worker.claim(10).await.is_empty());
    worker.complete(&running).await;

    assert_eq!(ids(&worker.claim(10).await), [late]);
}

pub async fn a_due_task_keeps_its_place_by_id_in_its_lane(store: &TestStore) {
    let [late, first, second] =
        store.given([a_task().lane("a").delay(secs(10)), a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let running = worker.claim(10).await;
    assert_eq!(ids(&running), [first]);

    store.advance_clock(secs(11)).await;
    worker.complete(&running).await;
    let next = worker.claim(10).await;
    assert_eq!(ids(&next), [late]);
    worker.complete(&next).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}
