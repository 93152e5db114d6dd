//! Lanes: limits, strict order, fair turns, and what an operator may change.

use std::collections::BTreeMap;

use super::words::*;

fn every(interval: u64) -> LaneSettings {
    LaneSettings { interval: Some(secs(interval)), ..Default::default() }
}

fn halting() -> LaneSettings {
    LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() }
}

fn in_lane<const N: usize>(key: &str) -> [ATask; N] {
    std::array::from_fn(|_| a_task().lane(key))
}

fn in_lane_of<const N: usize>(key: &str, limit: u32) -> [ATask; N] {
    std::array::from_fn(|_| a_task().lane_of(key, limit))
}

// Limits

pub async fn a_lane_without_a_limit_runs_one_at_a_time_in_order(store: &TestStore) {
    let [first, second, third] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;

    for expected in [first, second, third] {
        let claimed = worker.claim(10).await;
        assert_eq!(ids(&claimed), [expected]);
        assert!(worker.claim(10).await.is_empty());
        worker.complete(&claimed).await;
    }
    assert!(worker.claim(10).await.is_empty());
}

pub async fn a_lane_of_limit_three_runs_three_at_a_time(store: &TestStore) {
    let stored = store.given::<5>(in_lane_of("a", 3)).await;
    let mut worker = store.worker().await;

    let running = worker.claim(10).await;
    assert_eq!(ids(&running), stored[..3]);
    assert!(worker.claim(10).await.is_empty());
    worker.complete(&running[1..2]).await;
    assert_eq!(ids(&worker.claim(10).await), stored[3..4]);
}

pub async fn a_limit_is_filled_over_several_small_claims(store: &TestStore) {
    let stored = store.given::<4>(in_lane_of("a", 3)).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);

    assert_eq!(ids(&one.claim(1).await), stored[..1]);
    assert_eq!(ids(&two.claim(1).await), stored[1..2]);
    assert_eq!(ids(&one.claim(5).await), stored[2..3]);
    assert!(two.claim(1).await.is_empty());
}

pub async fn a_limit_holds_for_tasks_that_arrive_one_by_one(store: &TestStore) {
    let mut worker = store.worker().await;
    for _ in 0..6 {
        store.given_one(a_task().lane_of("a", 3)).await;
    }
    let running = worker.claim(10).await;
    assert_eq!(running.len(), 3);

    store.given_one(a_task().lane_of("a", 3)).await;
    assert!(worker.claim(10).await.is_empty());
    worker.complete(&running[..2]).await;
    store.given_one(a_task().lane_of("a", 3)).await;

    assert_eq!(worker.claim(10).await.len(), 2);
}

pub async fn an_unlimited_lane_runs_everything(store: &TestStore) {
    let unlimited = LaneSettings { limit: Some(LaneLimit::UNLIMITED), ..Default::default() };
    store.change_lane("a", unlimited).await;
    store.given::<40>(in_lane("a")).await;

    assert_eq!(store.worker().await.claim(100).await.len(), 40);
    assert_eq!(store.lane_view("a").await.limit, LaneLimit::UNLIMITED);
}

pub async fn a_claim_takes_from_hundreds_of_lanes_at_once(store: &TestStore) {
    store.given_all((0..600).map(|n| a_task().lane(&format!("l{}", n % 300)))).await;
    let mut worker = store.worker().await;

    let first = worker.claim(1_000).await;
    assert_eq!(first.len(), 300);
    worker.complete(&first).await;
    assert_eq!(worker.claim(1_000).await.len(), 300);
}

/// Two workers claim and settle at random; no limit is ever exceeded, and everything ends.
pub async fn limits_hold_whatever_two_workers_do(store: &TestStore) {
    let limits = [("a", 1), ("b", 2), ("c", 5)];
    for (key, limit) in limits {
        store.given_all(tasks_like(a_task().lane_of(key, limit), 20)).await;
    }
    let mut workers = [store.worker().await, TestWorker::register(store.another().await).await];
    let mut running: Vec<(usize, Claimed)> = Vec::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut ended = 0;

    for _ in 0..2_000 {
        let who = random.usize(..2);
        if random.bool() {
            let claimed = workers[who].claim(random.u32(1..5)).await;
            running.extend(claimed.into_iter().map(|one| (who, one)));
        } else if !running.is_empty() {
            let (who, one) = running.swap_remove(random.usize(..running.len()));
            let outcome =
                random.choice([Outcome::completed(), Outcome::GivenBack, retry_after(secs(0))]).unwrap();
            let verdict = workers[who].settle(&one, outcome).await;
            ended += usize::from(matches!(verdict, Verdict::Completed | Verdict::Failed));
        }
        let mut in_progress = BTreeMap::new();
        for (_, one) in &running {
            *in_progress.entry(one.task.lane.clone().unwrap()).or_insert(0) += 1;
        }
        for (key, limit) in limits {
            let count = in_progress.get(&lane_key(key)).copied().unwrap_or(0);
            assert!(count <= limit, "{count} of lane `{key}` are in progress, its limit is {limit}");
        }
        if ended == 60 {
            return;
        }
    }
    panic!("only {ended} of 60 tasks have ended");
}

pub async fn concurrent_claims_do_not_exceed_a_limit(store: &TestStore) {
    store.given_all(tasks_like(a_task().lane_of("a", 3), 30)).await;
    let mut one = store.worker().await;
    let mut two = TestWorker::register(store.another().await).await;

    for _ in 0..10 {
        let (first, second) = tokio::join!(one.claim(5), two.claim(5));
        assert!(first.len() + second.len() <= 3, "{} and {}", first.len(), second.len());
        let done = |claimed: &[Claimed]| claimed.iter().map(|one| one.settle(Outcome::completed())).collect();
        tokio::join!(one.settle_all(done(&first)), two.settle_all(done(&second)));
    }
}

pub async fn the_last_limit_given_by_an_enqueue_counts(store: &TestStore) {
    store.given([a_task().lane_of("a", 5)]).await;
    let mut worker = store.worker().await;
    let _running = worker.claim(10).await;
    assert_eq!(store.lane_view("a").await.limit, limit_of(5));

    store.given(in_lane_of::<4>("a", 2)).await;

    assert_eq!(worker.claim(10).await.len(), 1);
    assert_eq!(store.lane_view("a").await.limit, limit_of(2));
}

pub async fn an_enqueue_without_a_limit_leaves_the_lanes_limit(store: &TestStore) {
    store.given([a_task().lane_of("a", 3)]).await;
    let mut worker = store.worker().await;
    let _running = worker.claim(10).await;

    store.given(in_lane::<4>("a")).await;

    assert_eq!(worker.claim(10).await.len(), 2);
    assert_eq!(store.lane_view("a").await.limit, limit_of(3));
}

pub async fn an_operators_limit_is_not_changed_by_enqueues(store: &TestStore) {
    store.given(in_lane_of::<3>("a", 9)).await;
    store.limit_lane("a", 2).await;
    store.given(in_lane_of::<3>("a", 9)).await;

    let claimed = store.worker().await.claim(10).await;

    assert_eq!(claimed.len(), 2);
    assert_eq!(store.lane_view("a").await.limit, limit_of(2));
}

pub async fn a_raised_limit_lets_more_start(store: &TestStore) {
    let stored = store.given::<5>(in_lane("a")).await;
    let mut worker = store.worker().await;
    let _running = worker.claim(10).await;

    store.limit_lane("a", 4).await;

    assert_eq!(ids(&worker.claim(10).await), stored[1..4]);
}

pub async fn a_lowered_limit_lets_nothing_start_above_it(store: &TestStore) {
    let stored = store.given::<6>(in_lane_of("a", 3)).await;
    let mut worker = store.worker().await;
    let running = worker.claim(10).await;

    store.limit_lane("a", 1).await;
    worker.complete(&running[..1]).await;
    assert!(worker.claim(10).await.is_empty(), "two still run");
    worker.complete(&running[1..2]).await;
    assert!(worker.claim(10).await.is_empty(), "one still runs");
    worker.complete(&running[2..]).await;

    assert_eq!(ids(&worker.claim(10).await), stored[3..4]);
}

pub async fn a_lowered_limit_leaves_an_urgent_task_in_front(store: &TestStore) {
    let held = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(600))).await; // keeps its turn
    store.given([a_task().lane("b")]).await;
    let urgent = store.given_one(a_task().kind("other").lane_of("a", 2).priority(-1)).await;
    worker.claim_kinds(&["nobody's"], 1).await; // the second turn is in line, for the urgent one

    store.limit_lane("a", 1).await;
    store.cancel(held).await.unwrap();

    assert_eq!(ids(&worker.claim(1).await), [urgent]);
}

pub async fn a_limit_lowered_before_anything_runs_binds_the_next_claim(store: &TestStore) {
    store.given(in_lane_of::<6>("a", 5)).await;
    let mut worker = store.worker().await;
    let first = worker.claim(1).await;

    store.limit_lane("a", 2).await;

    assert_eq!(worker.claim(10).await.len(), 1);
    worker.complete(&first).await;
    assert_eq!(worker.claim(10).await.len(), 1);
}

pub async fn a_limit_may_go_down_and_up_again(store: &TestStore) {
    store.given(in_lane_of::<9>("a", 3)).await;
    let mut worker = store.worker().await;
    let running = worker.claim(10).await;
    store.limit_lane("a", 1).await;
    worker.complete(&running).await;
    assert_eq!(worker.claim(10).await.len(), 1);

    store.limit_lane("a", 3).await;

    assert_eq!(worker.claim(10).await.len(), 2);
}

pub async fn lanes_of_one_key_in_two_queues_are_two_lanes(store: &TestStore) {
    let [here, there] = store.given([a_task().lane("a"), a_task().queue("other").lane("a")]).await;
    store.limit_lane("a", 7).await;
    let mut worker = store.worker().await;

    let both = |advance: Advance| advance.claim(queue("default"), 5).claim(queue("other"), 5);
    assert_eq!(ids(&worker.advance(both).await.claimed), [here, there]);

    let other = store.lane(&queue("other"), &lane_key("a")).await.unwrap().unwrap();
    assert_eq!((other.limit, store.lane_view("a").await.limit), (LaneLimit::ONE, limit_of(7)));
}

// Order

pub async fn a_retried_task_holds_its_ordered_lane_until_it_has_ended(store: &TestStore) {
    let [first, second] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, retry_after(secs(20))).await;
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(21)).await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn a_snoozed_task_holds_its_ordered_lane(store: &TestStore) {
    let [first, second] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, Outcome::Snooze { after: secs(20) }).await;
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(21)).await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn a_task_given_back_is_the_first_of_its_lane_again(store: &TestStore) {
    let [first, second] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, Outcome::GivenBack).await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn a_dead_workers_task_is_the_first_of_its_lane_again(store: &TestStore) {
    let [first, second] = store.given(in_lane("a")).await;
    let _lost = store.worker().await.claim_one().await;

    store.sweep_all_but(&mut []).await;
    let mut worker = store.worker().await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn an_urgent_task_does_not_overtake_one_in_back_off_in_an_ordered_lane(store: &TestStore) {
    let first = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(20))).await;

    let urgent = store.given_one(a_task().lane("a").priority(-10)).await;
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(21)).await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [urgent]);
}

pub async fn an_urgent_task_does_not_overtake_one_that_came_back(store: &TestStore) {
    let first = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::GivenBack).await;

    let urgent = store.given_one(a_task().lane("a").priority(-10)).await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [urgent]);
}

pub async fn an_urgent_task_does_not_overtake_a_dead_workers_task(store: &TestStore) {
    let first = store.given_one(a_task().lane("a")).await;
    let _lost = store.worker().await.claim_one().await;
    let urgent = store.given_one(a_task().lane("a").priority(-10)).await;

    store.sweep_all_but(&mut []).await;
    let mut worker = store.worker().await;
    let again = worker.claim(10).await;
    assert_eq!(ids(&again), [first]);
    worker.complete(&again).await;

    assert_eq!(ids(&worker.claim(10).await), [urgent]);
}

pub async fn after_the_last_failed_attempt_an_ordered_lane_goes_on(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a").max_attempts(1), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, retry_after(secs(20))).await, Verdict::Failed);

    assert_eq!(ids(&worker.claim(10).await), [second]);
    assert_eq!(store.state(first).await, State::Failed);
}

pub async fn a_retried_task_frees_its_turn_in_a_wider_lane(store: &TestStore) {
    let [first, second, third] = store.given(in_lane_of("a", 2)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;

    worker.settle(&claimed[0], retry_after(secs(20))).await;
    assert_eq!(ids(&worker.claim(10).await), [third]);
    store.advance_clock(secs(21)).await;
    assert!(worker.claim(10).await.is_empty(), "two run");
    worker.complete(&claimed[1..]).await;

    assert_eq!(ids(&worker.claim(10).await), [first]);
    assert_eq!(store.state(second).await, State::Completed);
}

pub async fn a_task_given_back_in_a_wider_lane_is_next(store: &TestStore) {
    let [first, second, third] = store.given(in_lane_of("a", 2)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [first, second]);

    worker.settle(&claimed[1], Outcome::GivenBack).await;
    store.given_one(a_task().lane("a").priority(-5)).await;

    assert_eq!(ids(&worker.claim(10).await), [second]);
    assert_eq!(store.state(third).await, State::Pending);
}

pub async fn a_task_that_came_back_runs_before_those_behind_it(store: &TestStore) {
    let stored = store.given::<5>(in_lane_of("a", 3)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    worker.settle(&claimed[0], Outcome::GivenBack).await;

    worker.complete(&claimed[1..2]).await;
    assert_eq!(ids(&worker.claim(1).await), stored[..1]);
    worker.complete(&claimed[2..]).await;
    assert_eq!(ids(&worker.claim(9).await), stored[3..]);
}

pub async fn an_ordered_lane_that_becomes_wider_lets_others_start_beside_a_waiting_task(store: &TestStore) {
    let [first, second, third] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(60))).await;

    store.limit_lane("a", 2).await;
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [second], "the waiting task holds one of two turns");
    worker.complete(&claimed).await;
    assert_eq!(ids(&worker.claim(10).await), [third]);

    assert_eq!(store.state(first).await, State::Later);
}

// Priorities, kinds and fairness

pub async fn an_urgent_task_goes_first_in_its_lane(store: &TestStore) {
    let [first, second] = store.given(in_lane("a")).await;
    let urgent = store.given_one(a_task().lane("a").priority(-1)).await;
    let mut worker = store.worker().await;

    for expected in [urgent, first, second] {
        let claimed = worker.claim(10).await;
        assert_eq!(ids(&claimed), [expected]);
        worker.complete(&claimed).await;
    }
}

pub async fn a_lane_with_an_urgent_head_goes_before_other_lanes_and_free_tasks(store: &TestStore) {
    store.given([a_task().lane("a"), a_task().lane("b"), a_task()]).await;
    let urgent = store.given_one(a_task().lane("c").priority(-1)).await;

    assert_eq!(ids(&store.worker().await.claim(1).await), [urgent]);
}

pub async fn a_lanes_priority_is_that_of_its_head(store: &TestStore) {
    let lazy = store.given_one(a_task().lane("a").priority(5)).await;
    let plain = store.given_one(a_task().lane("b")).await;
    let mut worker = store.worker().await;
    assert_eq!(ids(&worker.claim(1).await), [plain]);
    let urgent = store.given_one(a_task().lane("a").priority(-5)).await;
    let other = store.given_one(a_task().lane("c")).await;

    let claimed = worker.claim(1).await;
    assert_eq!(ids(&claimed), [urgent]);
    worker.complete(&claimed).await;

    assert_eq!(ids(&worker.claim(1).await), [other]);
    assert_eq!(ids(&worker.claim(1).await), [lazy]);
}

pub async fn a_lane_that_has_lost_its_urgent_head_is_still_served(store: &TestStore) {
    let [urgent, next] = store.given([a_task().lane("a").priority(-2), a_task().lane("a")]).await;
    let free = store.given([a_task(), a_task(), a_task().priority(-1)]).await;

    store.cancel(urgent).await.unwrap();

    let claimed = store.worker().await.claim(5).await;
    assert_eq!(ids(&claimed), [free[2], next, free[0], free[1]]);
}

pub async fn a_lane_with_many_tasks_does_not_starve_its_neighbour(store: &TestStore) {
    store.given_all(tasks_like(a_task().lane_of("crowd", 100), 500)).await;
    let single = store.given_one(a_task().lane("single")).await;
    let mut worker = store.worker().await;

    for round in 1.. {
        assert!(round <= 101, "the single task should come within one round of turns");
        let claimed = worker.claim(1).await;
        let found = ids(&claimed) == [single];
        worker.complete(&claimed).await;
        if found {
            break;
        }
    }
}

pub async fn lanes_take_turns(store: &TestStore) {
    store.given(in_lane::<3>("a")).await;
    store.given(in_lane::<3>("b")).await;
    store.given(in_lane::<3>("c")).await;
    let mut worker = store.worker().await;

    let mut order = Vec::new();
    for _ in 0..9 {
        let claimed = worker.claim(1).await;
        order.push(claimed[0].task.lane.clone().unwrap());
        worker.complete(&claimed).await;
    }

    let mut round = order[..3].to_vec();
    assert_eq!(order[3..6], round);
    assert_eq!(order[6..], round);
    round.sort();
    assert_eq!(round, [lane_key("a"), lane_key("b"), lane_key("c")]);
}

pub async fn lanes_and_free_tasks_alternate(store: &TestStore) {
    store.given_all((0..10).map(|n| a_task().lane(&n.to_string()))).await;
    store.given_all(tasks_like(a_task(), 10)).await;
    let mut worker = store.worker().await;
    let laned = |claimed: &[Claimed]| claimed.iter().filter(|one| one.task.lane.is_some()).count();

    let four = worker.claim(4).await;
    let three = worker.claim(3).await;

    assert_eq!((four.len(), laned(&four)), (4, 2));
    assert!(three.len() == 3 && (1..=2).contains(&laned(&three)), "{three:?}");
}

pub async fn a_worker_with_one_slot_takes_lanes_and_free_tasks_alike(store: &TestStore) {
    store.given_all((0..10).map(|n| a_task().lane(&n.to_string()))).await;
    store.given_all(tasks_like(a_task(), 10)).await;
    let mut worker = store.worker().await;

    let mut laned = 0;
    let mut running: Option<Claimed> = None;
    for _ in 0..10 {
        let ended = running.iter().map(|one| one.settle(Outcome::completed())).collect();
        let step = |advance: Advance| Advance { settles: ended, ..advance.claim(queue("default"), 1) };
        running = worker.advance(step).await.claimed.pop();
        laned += usize::from(running.as_ref().is_some_and(|one| one.task.lane.is_some()));
    }

    assert!((4..=6).contains(&laned), "{laned} of 10 tasks came from lanes");
}

pub async fn what_lanes_cannot_fill_free_tasks_do_and_the_other_way_round(store: &TestStore) {
    store.given(in_lane::<5>("a")).await;
    store.given_all(tasks_like(a_task(), 4)).await;
    let mut worker = store.worker().await;
    assert_eq!(worker.claim(10).await.len(), 5);

    store.given_all((0..4).map(|n| a_task().lane(&n.to_string()))).await;
    store.given_one(a_task()).await;

    assert_eq!(worker.claim(10).await.len(), 5);
}

pub async fn in_an_ordered_lane_a_head_of_another_kind_holds_up_the_rest(store: &TestStore) {
    let [head, behind] = store.given([a_task().lane("a").kind("x"), a_task().lane("a").kind("y")]).await;
    let mut worker = store.worker().await;

    assert!(worker.claim_kinds(&["y"], 10).await.is_empty());
    let claimed = worker.claim_kinds(&["x"], 10).await;
    assert_eq!(ids(&claimed), [head]);
    worker.complete(&claimed).await;

    assert_eq!(ids(&worker.claim_kinds(&["y"], 10).await), [behind]);
}

pub async fn a_worker_leaves_a_lane_to_others_whose_next_task_it_cannot_run(store: &TestStore) {
    let [_, next] = store.given([a_task().lane("a").kind("x"), a_task().lane("a").kind("y")]).await;
    let mut worker = store.worker().await;
    let running = worker.claim_one().await;

    let step = |advance: Advance| Advance {
        settles: vec![running.settle(Outcome::completed())],
        claims: vec![claim_of_kinds("default", &["x"], 5)],
        ..advance
    };
    assert!(worker.advance(step).await.claimed.is_empty());

    let lane = store.lane_view("a").await;
    assert_eq!((lane.pending, lane.held), (1, 0));
    assert_eq!(ids(&store.worker().await.claim_kinds(&["y"], 5).await), [next]);
}

pub async fn in_a_wider_lane_tasks_of_other_kinds_are_passed_over(store: &TestStore) {
    let [first, second, third] = store
        .given([
            a_task().lane_of("a", 2).kind("x"),
            a_task().lane_of("a", 2).kind("y"),
            a_task().lane_of("a", 2).kind("y"),
        ])
        .await;
    let mut worker = store.worker().await;

    assert_eq!(ids(&worker.claim_kinds(&["y"], 10).await), [second, third]);
    assert!(worker.claim_kinds(&["x"], 10).await.is_empty(), "the lane is full");
    assert_eq!(store.state(first).await, State::Pending);
}

pub async fn lanes_whose_heads_cannot_run_do_not_hide_one_that_can(store: &TestStore) {
    store.given_all((0..200).map(|n| a_task().lane(&format!("other{n}")).kind("x"))).await;
    let mine = store.given_one(a_task().lane("mine").kind("y")).await;

    assert_eq!(ids(&store.worker().await.claim_kinds(&["y"], 1).await), [mine]);
}

pub async fn lanes_at_their_limit_do_not_hide_free_tasks_or_other_lanes(store: &TestStore) {
    store.given_all((0..50).flat_map(|n| tasks_like(a_task().lane(&n.to_string()), 3))).await;
    let mut worker = store.worker().await;
    assert_eq!(worker.claim(100).await.len(), 50);

    let [free, laned] = store.given([a_task(), a_task().lane("new")]).await;

    assert_eq!(ids(&worker.claim(100).await), [free, laned]);
}

// Intervals

pub async fn an_interval_spaces_the_starts_of_a_lane(store: &TestStore) {
    store.change_lane("a", every(20)).await;
    store.given(in_lane_of::<3>("a", 5)).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);

    assert_eq!(one.claim(10).await.len(), 1);
    assert!(two.claim(10).await.is_empty());
    store.advance_clock(secs(18)).await;
    assert!(two.claim(10).await.is_empty());
    store.advance_clock(secs(3)).await;
    assert_eq!(two.claim(10).await.len(), 1);
    assert!(one.claim(10).await.is_empty());
    assert_eq!(store.lane_view("a").await.interval, secs(20));
}

pub async fn an_interval_is_from_start_to_start_in_an_ordered_lane_too(store: &TestStore) {
    store.change_lane("a", every(20)).await;
    store.given(in_lane::<2>("a")).await;
    let mut worker = store.worker().await;

    let first = worker.claim(10).await;
    assert_eq!(first.len(), 1);
    store.advance_clock(secs(10)).await;
    worker.complete(&first).await;
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(11)).await;

    assert_eq!(worker.claim(10).await.len(), 1);
}

pub async fn an_interval_leaves_other_lanes_alone(store: &TestStore) {
    store.change_lane("a", every(20)).await;
    store.given(in_lane::<2>("a")).await;
    store.given(in_lane_of::<2>("b", 2)).await;

    assert_eq!(store.worker().await.claim(10).await.len(), 3);
}

pub async fn an_interval_of_zero_removes_it(store: &TestStore) {
    store.change_lane("a", every(600)).await;
    store.given(in_lane_of::<3>("a", 3)).await;
    let mut worker = store.worker().await;
    assert_eq!(worker.claim(10).await.len(), 1);

    store.change_lane("a", every(0)).await;

    assert_eq!(worker.claim(10).await.len(), 2);
    assert_eq!(store.lane_view("a").await.interval, secs(0));
}

// Halting

pub async fn a_failure_halts_a_lane_that_is_told_so(store: &TestStore) {
    store.change_lane("a", halting()).await;
    let [_, second] = store.given(in_lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    assert!(!store.lane_view("a").await.halted);

    worker.settle(&claimed, failed()).await;

    assert!(store.lane_view("a").await.halted);
    assert!(worker.claim(10).await.is_empty());
    store.given(in_lane::<1>("a")).await;
    assert!(worker.claim(10).await.is_empty(), "new tasks do not wake it");
    assert!(store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap());
    assert!(!store.lane_view("a").await.halted);
    assert_eq!(ids(&worker.claim(10).await), [second]);
}

pub async fn a_failure_does_not_halt_other_lanes(store: &TestStore) {
    store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, failed()).await;

    assert_eq!(worker.claim(10).await.len(), 1);
    assert_eq!(store.lane_view("a").await.on_failure, OnFailure::Continue);
}

pub async fn what_runs_in_a_lane_that_halts_goes_on(store: &TestStore) {
    store.change_lane("a", halting()).await;
    store.given(in_lane_of::<4>("a", 3)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;

    worker.complete(&claimed[1..]).await;

    assert!(worker.claim(10).await.is_empty());
    store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap();
    assert_eq!(worker.claim(10).await.len(), 1);
}

pub async fn spent_attempts_halt_a_lane_and_retries_do_not(store: &TestStore) {
    store.change_lane("a", halting()).await;
    store.given([a_task().lane("a").max_attempts(2)]).await;
    let mut worker = store.worker().await;

    let first = worker.claim_one().await;
    worker.settle(&first, retry_after(secs(0))).await;
    assert!(!store.lane_view("a").await.halted);
    let second = worker.claim_one().await;
    worker.settle(&second, retry_after(secs(0))).await;

    assert!(store.lane_view("a").await.halted);
}

pub async fn a_cancelled_task_does_not_halt_its_lane(store: &TestStore) {
    store.change_lane("a", halting()).await;
    store.given(in_lane::<2>("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, Outcome::Cancelled { reason: None }).await;

    assert_eq!(worker.claim(10).await.len(), 1);
}

pub async fn a_poisonous_task_halts_its_lane(store: &TestStore) {
    store.change_lane("a", halting()).await;
    let [poison, next] = store.given(in_lane("a")).await;

    for _ in 0..3 {
        let claimed = store.worker().await.claim(10).await;
        assert_eq!(ids(&claimed), [poison]);
        store.sweep_all_but(&mut []).await;
    }

    assert_eq!(store.state(poison).await, State::Failed);
    assert!(store.lane_view("a").await.halted);
    let mut worker = store.worker().await;
    assert!(worker.claim(10).await.is_empty());
    store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap();
    assert_eq!(ids(&worker.claim(10).await), [next]);
}

pub async fn resuming_a_lane_that_is_not_halted_is_harmless(store: &TestStore) {
    store.given(in_lane::<1>("a")).await;
    store.worker().await.claim(10).await;

    assert!(!store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap());
    assert!(!store.resume_lane(&queue("default"), &lane_key("unknown")).await.unwrap());
    assert!(!store.resume_lane(&queue("unknown"), &lane_key("a")).await.unwrap());
}

// Views

pub async fn an_unknown_lane_is_none(store: &TestStore) {
    store.given_one(a_task()).await;

    assert_eq!(store.lane(&queue("default"), &lane_key("a")).await.unwrap(), None);
    assert_eq!(store.lane(&queue("unknown"), &lane_key("a")).await.unwrap(), None);
}

pub async fn setting_a_lane_that_nobody_knows_makes_it(store: &TestStore) {
    let settings =
        LaneSettings { limit: Some(limit_of(4)), interval: Some(secs(9)), on_failure: Some(OnFailure::Halt) };
    store.change_lane("a", settings).await;

    let expected = LaneView {
        key: lane_key("a"),
        limit: limit_of(4),
        interval: secs(9),
        on_failure: OnFailure::Halt,
        halted: false,
        paused: false,
        pending: 0,
        more: false,
        held: 0,
    };
    assert_eq!(store.lane_view("a").await, expected);
}

pub async fn settings_that_are_not_named_stay(store: &TestStore) {
    store.limit_lane("a", 4).await;
    store.change_lane("a", every(9)).await;
    store.change_lane("a", halting()).await;

    let lane = store.lane_view("a").await;
    assert_eq!((lane.limit, lane.interval, lane.on_failure), (limit_of(4), secs(9), OnFailure::Halt));
}

pub async fn a_lane_shows_what_waits_and_what_is_in_progress(store: &TestStore) {
    store.given(in_lane_of::<5>("a", 2)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;

    let lane = store.lane_view("a").await;
    assert_eq!((lane.pending, lane.held), (3, 2));
    worker.complete(&claimed[..1]).await;
    let lane = store.lane_view("a").await;
    assert_eq!((lane.pending, lane.held), (3, 1));
}

pub async fn a_task_in_back_off_counts_as_in_progress_in_an_ordered_lane_only(store: &TestStore) {
    store.given(in_lane::<2>("ordered")).await;
    store.given(in_lane_of::<2>("wide", 2)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;

    worker.settle_all(claimed.iter().map(|one| one.settle(retry_after(secs(60)))).collect()).await;

    let (ordered, wide) = (store.lane_view("ordered").await, store.lane_view("wide").await);
    assert_eq!((ordered.pending, ordered.held), (1, 1));
    assert_eq!((wide.pending, wide.held), (0, 0));
}
