//! Which tasks a claim takes, and what it says about the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::words::*;

pub async fn the_oldest_task_goes_first(store: &TestStore) {
    let [first, second, third] = store.given([a_task(), a_task(), a_task()]).await;
    let mut worker = store.worker().await;

    assert_eq!(ids(&worker.claim(2).await), [first, second]);
    assert_eq!(ids(&worker.claim(2).await), [third]);
}

pub async fn a_lower_priority_number_goes_first(store: &TestStore) {
    let [lazy, plain, urgent] =
        store.given([a_task().priority(1_000), a_task(), a_task().priority(-1_000)]).await;
    let mut worker = store.worker().await;

    assert_eq!(ids(&worker.claim(1).await), [urgent]);
    assert_eq!(ids(&worker.claim(1).await), [plain]);
    assert_eq!(ids(&worker.claim(1).await), [lazy]);
}

pub async fn an_urgent_task_that_arrives_later_goes_first(store: &TestStore) {
    let [first, second] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    assert_eq!(ids(&worker.claim(1).await), [first]);

    let urgent = store.given_one(a_task().priority(-1)).await;

    assert_eq!(ids(&worker.claim(2).await), [urgent, second]);
}

pub async fn a_claim_is_ordered_by_priority_then_id_with_lanes_mixed_in(store: &TestStore) {
    let [free, laned, urgent_laned, urgent] = store
        .given([a_task(), a_task().lane("a"), a_task().lane("b").priority(-1), a_task().priority(-1)])
        .await;

    let claimed = store.worker().await.claim(10).await;

    assert_eq!(ids(&claimed), [urgent_laned, urgent, free, laned]);
}

pub async fn a_claim_takes_no_more_than_it_asked_for(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 5)).await;
    store.given_all((0..5).map(|n| a_task().lane(&n.to_string()))).await;

    for asked in [0, 1, 3] {
        assert_eq!(store.worker().await.claim(asked).await.len(), asked as usize);
    }
}

pub async fn a_claim_hands_out_the_task_as_it_was_enqueued(store: &TestStore) {
    let timeout = |task: NewTask| task.timeout(secs(9)).tag(Tag::new("blue").unwrap());
    let task =
        a_task().kind("mail").payload(r#"{"n": 1}"#).lane("a").priority(3).max_attempts(4).with(timeout);
    let id = store.given_one(task).await;

    let task = store.worker().await.claim_one().await.task;

    assert_eq!((task.id, task.kind, task.queue), (id, kind("mail"), queue("default")));
    assert_eq!(task.payload.as_str(), r#"{"n": 1}"#);
    assert_eq!((task.lane, task.priority), (Some(lane_key("a")), 3));
    assert_eq!((task.attempt, task.max_attempts, task.crashes), (1, 4, 0));
    assert_eq!((task.parent, task.depth), (None, 0));
    assert_eq!(task.options.timeout_ms, Some(9_000));
    assert_eq!(task.options.tags, [Tag::new("blue").unwrap()]);
    assert_eq!(task.enqueued_at, store.view(id).await.enqueued_at);
}

pub async fn a_claimed_task_is_leased_to_its_worker(store: &TestStore) {
    let id = store.given_one(a_task().payload("[1]")).await;
    let mut worker = store.worker().await;

    let _claimed = worker.claim_one().await;

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt), (State::Leased, 1));
    assert_eq!(view.worker, Some(worker.session()));
    assert!(view.started_at.unwrap() >= view.enqueued_at);
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
    assert_eq!((view.ended_at, view.due_at), (None, None));
}

pub async fn a_claimed_task_is_not_claimed_again(store: &TestStore) {
    store.given([a_task(), a_task().lane("a")]).await;
    assert_eq!(store.worker().await.claim(10).await.len(), 2);

    let another = store.another().await;

    assert!(store.worker().await.claim(10).await.is_empty());
    assert!(TestWorker::register(another).await.claim(10).await.is_empty());
}

pub async fn two_workers_share_a_queue_without_overlap(store: &TestStore) {
    let stored: BTreeSet<_> = store
        .given_all((0..200).map(|n| if n % 3 == 0 { a_task().lane(&n.to_string()) } else { a_task() }))
        .await
        .into_iter()
        .collect();
    let mut one = store.worker().await;
    let mut two = TestWorker::register(store.another().await).await;

    let mut claimed = Vec::new();
    until("all tasks are claimed", async || {
        let (first, second) = tokio::join!(one.claim(10), two.claim(10));
        claimed.extend(ids(&first));
        claimed.extend(ids(&second));
        claimed.len() >= stored.len()
    })
    .await;

    assert_eq!(claimed.len(), stored.len(), "a task was claimed twice");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), stored);
}

pub async fn several_queues_are_served_in_the_order_of_the_request(store: &TestStore) {
    let [a, b, urgent_a] =
        store.given([a_task().queue("a"), a_task().queue("b"), a_task().queue("a").priority(-5)]).await;
    let mut worker = store.worker().await;

    let both = |advance: Advance| advance.claim(queue("b"), 5).claim(queue("a"), 5);
    let advanced = worker.advance(both).await;

    assert_eq!(ids(&advanced.claimed), [b, urgent_a, a]);
}

pub async fn every_queue_of_a_request_has_a_maximum_of_its_own(store: &TestStore) {
    store.given_all(tasks_like(a_task().queue("a"), 3)).await;
    store.given_all(tasks_like(a_task().queue("b").lane_of("x", 9), 3)).await;

    let both = |advance: Advance| advance.claim(queue("a"), 1).claim(queue("b"), 2);
    let advanced = store.worker().await.advance(both).await;

    let queues: Vec<_> = advanced.claimed.iter().map(|one| one.task.queue.as_str()).collect();
    assert_eq!(queues, ["a", "b", "b"]);
}

pub async fn a_queue_that_was_not_asked_for_is_left_alone(store: &TestStore) {
    let id = store.given_one(a_task().queue("other")).await;

    assert!(store.worker().await.claim(10).await.is_empty());
    assert_eq!(store.state(id).await, State::Pending);
}

pub async fn kinds_that_the_worker_cannot_run_stay_where_they_are(store: &TestStore) {
    let [one, two, three] =
        store.given([a_task().kind("x"), a_task().kind("y"), a_task().kind("z").priority(-1)]).await;
    let mut worker = store.worker().await;

    assert_eq!(ids(&worker.claim_kinds(&["x", "z"], 10).await), [three, one]);
    assert_eq!(store.state(two).await, State::Pending);
    assert_eq!(ids(&worker.claim_kinds(&["y"], 10).await), [two]);
}

pub async fn no_kinds_at_all_claim_nothing(store: &TestStore) {
    store.given([a_task(), a_task().lane("a"), a_task().lane_of("b", 2)]).await;

    assert!(store.worker().await.claim_kinds(&[], 10).await.is_empty());
}

pub async fn many_tasks_of_other_kinds_do_not_hide_one_that_can_run(store: &TestStore) {
    store.given_all(tasks_like(a_task().kind("other"), 500)).await;
    let mine = store.given_one(a_task().kind("mine")).await;

    assert_eq!(ids(&store.worker().await.claim_kinds(&["mine"], 1).await), [mine]);
}

pub async fn an_unknown_session_claims_nothing_and_is_told(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut stranger = TestWorker::unregistered(store.handle());

    let advanced = stranger.advance(|advance| advance.claim(queue("default"), 1)).await;

    assert!(advanced.session_lost);
    assert!(advanced.claimed.is_empty());
    assert_eq!(store.state(id).await, State::Pending);
}

pub async fn a_known_session_is_not_told_that_it_is_lost(store: &TestStore) {
    let advanced = store.worker().await.advance(|advance| advance.claim(queue("default"), 1)).await;

    assert!(!advanced.session_lost);
}

pub async fn a_filled_claim_says_that_there_is_probably_more(store: &TestStore) {
    store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;

    let filled = worker.advance(|advance| advance.claim(queue("default"), 1)).await;
    let emptied = worker.advance(|advance| advance.claim(queue("default"), 2)).await;

    assert_eq!((filled.left, emptied.left), (Left::More, Left::Nothing));
}

pub async fn a_claim_says_when_what_is_left_is_blocked(store: &TestStore) {
    store.given([a_task().queue("lane").lane("a"), a_task().queue("lane").lane("a")]).await;
    store.given([a_task().queue("kind").kind("x")]).await;
    store.given([a_task().queue("paused")]).await;
    store.pause_queue(&queue("paused")).await.unwrap();
    let mut worker = store.worker().await;

    let at_limit = worker.advance(|advance| advance.claim(queue("lane"), 5)).await;
    let unknown_kind =
        Advance { claims: vec![claim_of_kinds("kind", &["y"], 5)], ..Advance::new(worker.session(), 9) };
    let unknown_kind = store.advance(unknown_kind).await.unwrap();
    let paused = worker.advance(|advance| advance.claim(queue("paused"), 5)).await;
    let elsewhere = worker.advance(|advance| advance.claim(queue("empty"), 5)).await;

    assert_eq!((at_limit.claimed.len(), at_limit.left), (1, Left::Blocked));
    assert_eq!((unknown_kind.claimed.len(), unknown_kind.left), (0, Left::Blocked));
    assert_eq!((paused.claimed.len(), paused.left), (0, Left::Blocked));
    assert_eq!(elsewhere.left, Left::Nothing);
}

pub async fn nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(store: &TestStore) {
    let here = queue("default");
    let [free, laned] = store.given([a_task(), a_task().lane("a")]).await;
    let mut worker = store.worker().await;

    assert!(store.pause_queue(&here).await.unwrap());
    assert!(!store.pause_queue(&here).await.unwrap(), "it was paused before");
    assert!(worker.claim(10).await.is_empty());
    assert!(store.resume_queue(&here).await.unwrap());
    assert!(!store.resume_queue(&here).await.unwrap(), "it was not paused");

    assert_eq!(ids(&worker.claim(10).await), [free, laned]);
}

pub async fn a_queue_can_be_paused_before_it_has_tasks(store: &TestStore) {
    assert!(store.pause_queue(&queue("new")).await.unwrap());
    store.given_one(a_task().queue("new")).await;
    let other = store.given_one(a_task().queue("other")).await;
    let mut worker = store.worker().await;

    let both = |advance: Advance| advance.claim(queue("new"), 5).claim(queue("other"), 5);

    assert_eq!(ids(&worker.advance(both).await.claimed), [other]);
}

pub async fn resuming_a_queue_that_nobody_knows_changes_nothing(store: &TestStore) {
    assert!(!store.resume_queue(&queue("unknown")).await.unwrap());
}

pub async fn a_paused_queue_accepts_tasks_and_results_and_keeps_its_clock(store: &TestStore) {
    store.given([a_task(), a_task().delay(secs(10))]).await;
    let mut worker = store.worker().await;
    let running = worker.claim(10).await;
    store.pause_queue(&queue("default")).await.unwrap();

    let late = store.given_one(a_task().delay(secs(10))).await;
    worker.complete(&running).await;
    store.advance_clock(secs(11)).await;
    worker.stay_alive().await;
    assert!(worker.claim(10).await.is_empty());

    assert_eq!(store.state(late).await, State::Pending);
    assert_eq!(store.state(running[0].task.id).await, State::Completed);
}

pub async fn a_lease_says_how_many_tasks_it_holds_or_nothing(store: &TestStore) {
    store.given_all((0..7).map(|n| if n % 2 == 0 { a_task() } else { a_task().lane(&n.to_string()) })).await;

    let claimed = store.worker().await.claim(10).await;

    let mut sizes = BTreeMap::new();
    for one in &claimed {
        *sizes.entry(one.lease.id).or_insert(0) += 1;
    }
    assert_eq!(claimed.len(), 7);
    let says_so = |one: &Claimed| one.lease.tasks == 0 || one.lease.tasks == sizes[&one.lease.id];
    assert!(claimed.iter().all(says_so), "{claimed:?}");
}

pub async fn kinds_that_run_alone_get_a_lease_each(store: &TestStore) {
    store.given_all(tasks_like(a_task().kind("transfer"), 3)).await;
    store.given_all(tasks_like(a_task().kind("mail"), 3)).await;
    store.given_one(a_task().kind("transfer").lane("a")).await;
    let mut worker = store.worker().await;

    let claim = Claim { queue: queue("default"), max: 10, kinds: Kinds::All, alone: vec![kind("transfer")] };
    let claimed = worker.advance(|advance| Advance { claims: vec![claim], ..advance }).await.claimed;

    let (alone, together): (Vec<_>, Vec<_>) =
        claimed.into_iter().partition(|one| one.task.kind == kind("transfer"));
    assert_eq!((alone.len(), together.len()), (4, 3));
    assert!(alone.iter().all(|one| one.lease.tasks <= 1));
    let leases: BTreeSet<_> = alone.iter().chain(&together).map(|one| one.lease.id).collect();
    assert_eq!(leases.len(), 5, "four of their own and one for the rest");
    worker.complete(&alone).await;
    worker.complete(&together).await;
}

pub async fn an_advance_settles_before_it_claims(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let running = worker.claim_one().await;
    assert_eq!(running.task.id, first);

    let step =
        |advance: Advance| advance.settle(running.settle(Outcome::completed())).claim(queue("default"), 1);
    let advanced = worker.advance(step).await;

    assert_eq!(advanced.settled[0].verdict, Verdict::Completed);
    assert_eq!(ids(&advanced.claimed), [second]);
}

pub async fn a_queue_may_be_claimed_from_twice_in_one_advance(store: &TestStore) {
    let mut worker = store.worker().await;
    let lane = || a_task().lane("a");
    let tasks = store.given([lane(), lane(), lane(), a_task(), a_task()]).await;
    let first = worker.claim_one().await;

    let done = first.settle(Outcome::completed());
    let twice = |advance: Advance| advance.settle(done).claim(queue("default"), 2).claim(queue("default"), 5);
    let advanced = worker.advance(twice).await;

    assert_eq!(ids(&advanced.claimed), [tasks[1], tasks[3], tasks[4]]);
    store.check().await;
    worker.complete(&advanced.claimed).await;
    assert_eq!(ids(&worker.claim(10).await), tasks[2..3]);
}

/// A quick look may miss for a second what came back behind the place where the last one stopped, never longer.
pub async fn a_quick_look_finds_everything_in_the_end(store: &TestStore) {
    let stored = store.given_all((0..20).map(|n| a_task().priority(n % 3))).await;
    let mut worker = store.worker().await;
    let first = worker.claim(5).await;
    worker.settle(&first[0], Outcome::GivenBack).await;
    let urgent = store.given_one(a_task().priority(-1)).await;

    let mut found = Vec::new();
    until("everything is claimed", async || {
        let quick = |advance: Advance| Advance { scan: Scan::Auto, ..advance.claim(queue("default"), 100) };
        found.extend(ids(&worker.advance(quick).await.claimed));
        found.len() > stored.len() - 4
    })
    .await;

    assert!(found.contains(&first[0].task.id) && found.contains(&urgent));
}
