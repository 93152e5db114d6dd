//! The lanes of a queue as a list.

use super::words::*;

fn lanes_of_default(order: LaneOrder) -> LaneListing {
    LaneListing::of(queue("default")).order(order)
}

fn keys(lanes: &[LaneView]) -> Vec<&str> {
    lanes.iter().map(|lane| lane.key.as_str()).collect()
}

/// Lanes `a`, `b` and `c` with backlogs of 1, 4 and 2 behind 1, 1 and 3 running tasks.
async fn three_lanes(store: &TestStore) -> TestWorker {
    store.given_all(tasks_like(a_task().lane("a"), 2)).await;
    store.given_all(tasks_like(a_task().lane("b"), 5)).await;
    store.given_all(tasks_like(a_task().lane_of("c", 3), 5)).await;
    let mut worker = store.worker().await;
    assert_eq!(worker.claim(100).await.len(), 5);
    worker
}

pub async fn lanes_are_listed_by_backlog_by_held_and_by_key(store: &TestStore) {
    three_lanes(store).await;

    let backlog = store.lanes(lanes_of_default(LaneOrder::Backlog)).await.unwrap();
    let held = store.lanes(lanes_of_default(LaneOrder::Held)).await.unwrap();
    let by_key = store.lanes(lanes_of_default(LaneOrder::Key)).await.unwrap();

    assert_eq!(keys(&backlog.lanes), ["b", "c", "a"]);
    assert_eq!(keys(&held.lanes), ["c", "a", "b"]);
    assert_eq!(keys(&by_key.lanes), ["a", "b", "c"]);
    let numbers: Vec<_> = by_key.lanes.iter().map(|lane| (lane.pending, lane.more, lane.held)).collect();
    assert_eq!(numbers, [(1, false, 1), (4, false, 1), (2, false, 3)]);
    assert!(!backlog.partial && !held.partial && !by_key.partial);
}

pub async fn a_listed_lane_is_what_a_look_at_it_shows(store: &TestStore) {
    three_lanes(store).await;
    let settings =
        LaneSettings { interval: Some(secs(9)), on_failure: Some(OnFailure::Halt), ..Default::default() };
    store.change_lane("b", settings).await;
    let pausable = Pausable::Lane(queue("default"), lane_key("c"));
    store.pause(&Actor::program(), &pausable, None).await.unwrap();

    let page = store.lanes(lanes_of_default(LaneOrder::Key)).await.unwrap();

    for lane in &page.lanes {
        assert_eq!(*lane, store.lane_view(lane.key.as_str()).await);
    }
    let paused: Vec<_> = page.lanes.iter().map(|lane| lane.paused).collect();
    assert_eq!(paused, [false, false, true]);
    assert_eq!(page.lanes[1].interval, secs(9));
}

pub async fn a_listed_lane_tells_whether_a_failure_has_halted_it(store: &TestStore) {
    store.change_lane("a", LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() }).await;
    store.given([a_task().lane("a"), a_task().lane("a"), a_task().lane("b")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    for claimed in &claimed {
        worker.settle(claimed, failed()).await;
    }

    let page = store.lanes(lanes_of_default(LaneOrder::Backlog)).await.unwrap();

    assert_eq!((page.lanes[0].key.as_str(), page.lanes[0].halted), ("a", true));
    assert!(page.lanes[1..].iter().all(|lane| !lane.halted && !lane.paused));
}

pub async fn pages_of_lanes_neither_skip_nor_repeat(store: &TestStore) {
    let tasks = (0..60).map(|n| a_task().lane(&format!("lane {:02}", n % 23)));
    store.given_all(tasks).await;
    store.worker().await.claim(5).await;

    for order in [LaneOrder::Backlog, LaneOrder::Held, LaneOrder::Key] {
        let whole = store.lanes(lanes_of_default(order)).await.unwrap();
        let mut seen = vec![];
        let mut listing = lanes_of_default(order).limit(4);
        loop {
            let page = store.lanes(listing.clone()).await.unwrap();
            assert!(page.lanes.len() <= 4);
            seen.extend(page.lanes);
            let Some(next) = page.next else { break };
            // As users carry it from page to page.
            listing = listing.after(next.to_string().parse().unwrap());
        }
        assert_eq!(seen.len(), 23, "{order:?}");
        assert_eq!((seen, whole.next), (whole.lanes, None), "{order:?}");
    }
}

pub async fn a_lane_is_listed_before_any_worker_has_looked_at_it(store: &TestStore) {
    store.given([a_task().lane_of("new", 7), a_task().lane("new"), a_task()]).await;

    let page = store.lanes(lanes_of_default(LaneOrder::Backlog)).await.unwrap();

    let lane = &page.lanes[0];
    assert_eq!((keys(&page.lanes), lane.limit, lane.pending, lane.held), (vec!["new"], limit_of(7), 2, 0));
}

pub async fn lanes_of_other_queues_are_not_listed(store: &TestStore) {
    store.given([a_task().lane("a"), a_task().queue("other").lane("b")]).await;
    store.worker().await.claim(1).await;

    let other = store.lanes(LaneListing::of(queue("other"))).await.unwrap();
    let unknown = store.lanes(LaneListing::of(queue("unknown"))).await.unwrap();

    assert_eq!(keys(&other.lanes), ["b"]);
    assert_eq!(unknown, LanePage { lanes: vec![], next: None, partial: false });
}

pub async fn a_long_backlog_is_counted_up_to_a_bound(store: &TestStore) {
    let bound = LANE_COUNT_MAX as usize;
    store.given_all(tasks_like(a_task().lane("long"), bound + 1)).await;
    store.given_all(tasks_like(a_task().lane("short"), 3)).await;
    store.worker().await.claim(1).await;
    store.given_one(a_task().lane("long")).await;

    let page = store.lanes(lanes_of_default(LaneOrder::Backlog)).await.unwrap();

    let numbers: Vec<_> = page.lanes.iter().map(|lane| (lane.pending, lane.more)).collect();
    assert_eq!(numbers, [(LANE_COUNT_MAX, true), (3, false)]);
    assert_eq!(store.lane_view("long").await, page.lanes[0]);
}

pub async fn of_many_long_lanes_the_longest_goes_first(store: &TestStore) {
    let bound = LANE_COUNT_MAX as usize;
    store.given_all(tasks_like(a_task().lane("a"), bound)).await;
    store.given_all(tasks_like(a_task().lane("b"), bound + 5)).await;

    let page = store.lanes(lanes_of_default(LaneOrder::Backlog).limit(1)).await.unwrap();
    let next = page.next.clone().unwrap();
    let rest = store.lanes(lanes_of_default(LaneOrder::Backlog).after(next)).await.unwrap();

    assert_eq!((keys(&page.lanes), page.lanes[0].more), (vec!["b"], true));
    assert_eq!((keys(&rest.lanes), rest.lanes[0].more), (vec!["a"], false));
}

pub async fn a_page_of_lanes_has_between_one_and_five_hundred(store: &TestStore) {
    for limit in [0, 501] {
        let refused = refusal(store.lanes(lanes_of_default(LaneOrder::Key).limit(limit)).await);
        assert_eq!((refused.code, refused.field), (Code::OutOfRange, "limit"));
    }
    assert!(store.lanes(lanes_of_default(LaneOrder::Key).limit(500)).await.is_ok());
}
