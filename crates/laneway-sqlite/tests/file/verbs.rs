//! Each verb, in the cases where lanes, turns and leases meet.

use crate::support::*;
use laneway_core::*;

#[tokio::test]
async fn turns_and_lane_less_tasks_alternate_within_one_priority() {
    let f = fixture().await;
    let tasks = vec![a_task(), a_task(), a_task(), in_lane("a"), in_lane("b"), a_task().priority(-1)];
    f.store.enqueue_many(tasks).await.unwrap();
    let worker = worker(&f.store).await;

    // The urgent one, then turn a, a lane-less one, turn b, and the next lane-less one; sorted for the start.
    assert_eq!(ids(&worker.claim(3).await), [6, 1, 4]);
    assert_eq!(ids(&worker.claim(3).await), [2, 3, 5]);
}

#[tokio::test]
async fn a_turn_follows_the_priority_of_its_lanes_head() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane_of("a", 3), in_lane("b").priority(-5), in_lane("a")]).await.unwrap();
    let worker = worker(&f.store).await;

    f.store.enqueue(in_lane("a").priority(-9)).await.unwrap();

    assert_eq!(ids(&worker.claim(1).await), [4]);
    assert_eq!(ids(&worker.claim(1).await), [2]);
    assert_eq!(ids(&worker.claim(5).await), [1, 3]);
    f.assert_sound().await;
}

#[tokio::test]
async fn an_ordered_lane_waits_for_a_retry_and_nothing_overtakes_it() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane("a"), in_lane("a")]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(5).await;

    assert_eq!(worker.settle(&claimed[0], retry(10)).await, Verdict::Later);
    f.store.enqueue(in_lane("a").priority(-100)).await.unwrap();
    let advanced = worker.advance(worker.next().claim(queue(), 5)).await;
    assert_eq!((advanced.claimed.len(), advanced.left), (0, Left::Blocked));
    assert!(advanced.next_due.unwrap() <= secs(10));

    f.clock.advance(secs(10));
    let claimed = worker.claim(5).await;
    assert_eq!(ids(&claimed), [1]);
    assert_eq!(claimed[0].task.attempt, 2);
    worker.settle(&claimed[0], Outcome::completed()).await;
    assert_eq!(ids(&worker.claim(5).await), [3]);
    f.assert_sound().await;
}

#[tokio::test]
async fn a_retry_in_a_wider_lane_lets_others_go() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane_of("a", 2), in_lane("a"), in_lane("a")]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(5).await;
    assert_eq!(ids(&claimed), [1, 2]);

    worker.settle(&claimed[0], retry(10)).await;
    assert_eq!(ids(&worker.claim(5).await), [3]);
    f.clock.advance(secs(10));
    assert_eq!(ids(&worker.claim(5).await), [0; 0]);
    worker.settle(&claimed[1], Outcome::completed()).await;
    assert_eq!(ids(&worker.claim(5).await), [1]);
    f.assert_sound().await;
}

#[tokio::test]
async fn the_last_attempt_fails_for_good_and_keeps_what_is_asked_for_later() {
    let f = fixture().await;
    let id = f.store.enqueue(a_task().max_attempts(1).priority(7)).await.unwrap().id;
    let worker = worker(&f.store).await;
    let claimed = worker.claim(1).await;

    assert_eq!(worker.settle(&claimed[0], retry(1)).await, Verdict::Failed);

    let view = f.store.get(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempt, view.priority), (State::Failed, 1, 7));
    assert_eq!((view.payload, view.error.as_deref()), (Some(Json::default()), Some("boom")));
}

#[tokio::test]
async fn a_plain_success_keeps_neither_payload_nor_options() {
    let f = fixture().await;
    let plain = f.store.enqueue(a_task().timeout(secs(9)).priority(7)).await.unwrap().id;
    let with_result = f.store.enqueue(a_task().timeout(secs(9))).await.unwrap().id;
    let worker = worker(&f.store).await;
    let claimed = worker.claim(2).await;
    assert_eq!(claimed[0].task.options.timeout_ms, Some(9_000));

    let by_id = |id: TaskId| claimed.iter().find(|claimed| claimed.task.id == id).unwrap();
    worker.settle(by_id(plain), Outcome::completed()).await;
    worker.settle(by_id(with_result), Outcome::Completed { result: Some(Json::trusted("1")) }).await;

    let view = f.store.get(plain).await.unwrap().unwrap();
    assert_eq!((view.payload, view.options, view.priority), (None, TaskOptions::default(), 0));
    let view = f.store.get(with_result).await.unwrap().unwrap();
    assert_eq!((view.payload, view.result), (Some(Json::default()), Some(Json::trusted("1"))));
    assert_eq!(view.options.timeout_ms, Some(9_000));
}

#[tokio::test]
async fn a_settle_is_judged_by_lease_token_and_session() {
    let f = fixture().await;
    f.store.enqueue_many(vec![a_task(), a_task()]).await.unwrap();
    let (worker, other) = (worker(&f.store).await, worker(&f.store).await);
    let claimed = worker.claim(2).await;
    let done = |claimed: &Claimed| claimed.settle(Outcome::completed());

    let mut forged = claimed[0].clone();
    forged.lease.token = LeaseToken(SessionId::random().0);
    let mut stranger = claimed[0].clone();
    stranger.task.id = TaskId(99);
    assert_eq!(other.settle(&claimed[0], Outcome::completed()).await, Verdict::Stale);
    assert_eq!(worker.settle(&forged, Outcome::completed()).await, Verdict::Stale);
    assert_eq!(worker.settle(&stranger, Outcome::completed()).await, Verdict::Stale);

    let twice = worker.next().settle(done(&claimed[0])).settle(claimed[0].settle(failed()));
    let verdicts: Vec<_> =
        worker.advance(twice).await.settled.iter().map(|settled| settled.verdict).collect();
    assert_eq!(verdicts, [Verdict::Completed, Verdict::Already]);
    assert_eq!(worker.settle(&claimed[0], failed()).await, Verdict::Already);

    let last = worker.next().settle(done(&claimed[1]));
    worker.advance(last.clone()).await;
    assert_eq!(worker.settle(&claimed[1], failed()).await, Verdict::Stale);
    let repeated = worker.advance(Advance { again: true, ..last }).await;
    assert_eq!(repeated.settled[0].verdict, Verdict::Already);
    f.assert_sound().await;
}

#[tokio::test]
async fn a_repeated_advance_hands_out_what_the_first_try_claimed() {
    let f = fixture().await;
    f.store.enqueue_many(vec![a_task(), in_lane("a"), a_task()]).await.unwrap();
    let worker = worker(&f.store).await;
    let advance = worker.next().claim(queue(), 2);

    let first = worker.advance(advance.clone()).await;
    let again = worker.advance(Advance { again: true, ..advance }).await;

    assert_eq!(first.claimed, again.claimed);
    assert_eq!(first.claimed.len(), 2);
}

#[tokio::test]
async fn kinds_that_settle_alone_get_a_lease_each() {
    let f = fixture().await;
    f.store.enqueue_many(vec![a_task(), a_task()]).await.unwrap();
    let worker = worker(&f.store).await;
    let mut advance = worker.next().claim(queue(), 2);
    advance.claims[0].alone = vec![Kind::new("test.kind").unwrap()];

    let advanced = worker.advance(advance).await;

    assert_eq!(advanced.leases().len(), 2);
    assert!(advanced.claimed.iter().all(|claimed| claimed.lease.tasks == 1));
}

#[tokio::test]
async fn kinds_that_nobody_runs_hold_up_ordered_lanes_only() {
    let f = fixture().await;
    let other = Kind::new("other").unwrap();
    let of_other = |task: NewTask| NewTask { kind: other.clone(), ..task };
    f.store
        .enqueue_many(vec![of_other(in_lane("a")), in_lane("a"), of_other(in_lane_of("b", 2)), in_lane("b")])
        .await
        .unwrap();
    let worker = worker(&f.store).await;
    let kinds = Kinds::Only(vec![Kind::new("test.kind").unwrap()]);
    let mut advance = worker.next().claim(queue(), 9);
    advance.claims[0].kinds = kinds.clone();

    assert!(f.store.is_claimable(&[queue()], &kinds).await.unwrap());
    assert_eq!(ids(&worker.advance(advance).await.claimed), [4]);
    assert!(!f.store.is_claimable(&[queue()], &kinds).await.unwrap());
    assert!(f.store.is_claimable(&[queue()], &Kinds::All).await.unwrap());
    f.assert_sound().await;
}

#[tokio::test]
async fn a_running_task_is_told_to_stop_and_then_ends_as_cancelled() {
    let f = fixture().await;
    let id = f.store.enqueue(in_lane("a")).await.unwrap().id;
    let next = f.store.enqueue(in_lane("a")).await.unwrap().id;
    let worker = worker(&f.store).await;
    let claimed = worker.claim(2).await;

    assert_eq!(f.store.cancel(id).await.unwrap(), Cancel::Requested);
    assert_eq!(f.store.cancel(id).await.unwrap(), Cancel::Requested);
    let renewal = Renewal { leases: vec![claimed[0].lease.id], ..worker.renewal() };
    let Renewed::Alive(orders) = f.store.renew(renewal).await.unwrap() else { panic!("the session lives") };
    assert_eq!(orders.cancel, [id]);
    assert!(f.store.get(id).await.unwrap().unwrap().cancel_requested);

    assert_eq!(worker.settle(&claimed[0], retry(1)).await, Verdict::Cancelled);
    assert_eq!(f.store.cancel(id).await.unwrap(), Cancel::Ended(State::Cancelled));
    assert_eq!(f.store.get(id).await.unwrap().unwrap().error.as_deref(), Some("cancelled"));
    assert_eq!(ids(&worker.claim(2).await), [next.0]);
    f.assert_sound().await;
}

#[tokio::test]
async fn cancelling_what_waits_frees_its_turn() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane("a"), in_lane("a"), in_lane("a").delay(secs(5))]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(1).await;
    worker.settle(&claimed[0], retry(10)).await;

    assert_eq!(f.store.cancel(TaskId(1)).await.unwrap(), Cancel::Cancelled);
    assert_eq!(f.store.cancel(TaskId(3)).await.unwrap(), Cancel::Cancelled);
    assert_eq!(f.store.cancel(TaskId(4)).await.unwrap(), Cancel::NotFound);
    assert_eq!(ids(&worker.claim(1).await), [2]);
    f.assert_sound().await;
}

#[tokio::test]
async fn what_a_dead_worker_ran_comes_back_first_and_is_poison_the_third_time() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane("a"), in_lane("a"), in_lane("b")]).await.unwrap();
    for crashes in 1..=3 {
        let dead = worker(&f.store).await;
        assert_eq!(ids(&dead.claim(1).await), [1]);
        f.clock.advance(secs(31));
        let swept = f.store.sweep().await.unwrap();
        let poisoned = u32::from(crashes == 3);
        assert_eq!((swept.sessions, swept.given_back, swept.poisoned), (1, 1 - poisoned, poisoned));
        assert_eq!(f.store.renew(dead.renewal()).await.unwrap(), Renewed::Lost);
        f.assert_sound().await;
    }

    let view = f.store.get(TaskId(1)).await.unwrap().unwrap();
    assert_eq!((view.state, view.crashes), (State::Failed, 3));
    assert!(view.error.unwrap().contains("worker died 3 times"));
    assert_eq!(ids(&worker(&f.store).await.claim(9).await), [2, 3]);
}

#[tokio::test]
async fn a_renewal_gives_back_what_the_worker_does_not_know_of() {
    let f = fixture().await;
    f.store.enqueue_many(vec![in_lane("a"), a_task()]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(2).await;

    let earlier = Renewal { advance_number: 0, ..worker.renewal() };
    let known = Renewal { leases: vec![claimed[0].lease.id], ..worker.renewal() };
    for renewal in [earlier, known] {
        assert_eq!(f.store.renew(renewal).await.unwrap(), Renewed::Alive(Orders::default()));
    }
    let Renewed::Alive(orders) = f.store.renew(worker.renewal()).await.unwrap() else { panic!("it lives") };
    assert_eq!(orders.given_back, 2);
    assert_eq!(worker.settle(&claimed[0], Outcome::completed()).await, Verdict::Stale);

    assert_eq!(ids(&worker.claim(2).await), [1, 2]);
    f.store.deregister(worker.session).await.unwrap();
    assert_eq!(f.store.counts().await.unwrap()[0].state, State::Pending);
    assert!(f.store.workers().await.unwrap().is_empty());
    let advanced = worker.advance(worker.next().claim(queue(), 2)).await;
    assert!(advanced.session_lost && advanced.claimed.is_empty());
    f.assert_sound().await;
}

#[tokio::test]
async fn a_failure_halts_a_lane_that_was_told_so() {
    let f = fixture().await;
    let settings = LaneSettings { on_failure: Some(OnFailure::Halt), ..LaneSettings::default() };
    f.store.set_lane(&queue(), &key("a"), settings).await.unwrap();
    f.store.enqueue_many(vec![in_lane("a"), in_lane("a")]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(9).await;

    worker.settle(&claimed[0], failed()).await;
    assert!(worker.claim(9).await.is_empty());
    assert!(f.store.lane(&queue(), &key("a")).await.unwrap().unwrap().halted);
    f.assert_sound().await;

    assert!(f.store.resume_lane(&queue(), &key("a")).await.unwrap());
    assert!(!f.store.resume_lane(&queue(), &key("a")).await.unwrap());
    assert_eq!(ids(&worker.claim(9).await), [2]);
}

#[tokio::test]
async fn an_interval_spaces_the_starts_of_a_lane() {
    let f = fixture().await;
    let settings = LaneSettings {
        limit: Some(LaneLimit::at(3).unwrap()),
        interval: Some(secs(100)),
        ..LaneSettings::default()
    };
    f.store.set_lane(&queue(), &key("a"), settings).await.unwrap();
    f.store.enqueue_many(vec![in_lane("a"), in_lane("a"), in_lane("a")]).await.unwrap();
    let worker = worker(&f.store).await;

    assert_eq!(ids(&worker.claim(9).await), [1]);
    let advanced = worker.advance(worker.next().claim(queue(), 9)).await;
    assert!(advanced.claimed.is_empty() && advanced.next_due.unwrap() > secs(40));
    f.assert_sound().await;
    f.clock.advance(secs(100));
    assert_eq!(ids(&worker.claim(9).await), [2]);

    let none = LaneSettings { interval: Some(secs(0)), ..LaneSettings::default() };
    f.store.set_lane(&queue(), &key("a"), none).await.unwrap();
    assert_eq!(ids(&worker.claim(9).await), [3]);
    f.assert_sound().await;
}

#[tokio::test]
async fn limits_can_be_moved_while_tasks_run() {
    let f = fixture().await;
    let limit = |n| LaneSettings { limit: Some(LaneLimit::at(n).unwrap()), ..LaneSettings::default() };
    f.store.enqueue_many((0..9).map(|_| in_lane_of("a", 3)).collect()).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(9).await;
    assert_eq!(ids(&claimed), [1, 2, 3]);

    f.store.set_lane(&queue(), &key("a"), limit(2)).await.unwrap();
    worker.settle(&claimed[0], Outcome::completed()).await;
    assert!(worker.claim(9).await.is_empty());
    worker.settle(&claimed[1], Outcome::completed()).await;
    assert_eq!(ids(&worker.claim(9).await), [4]);

    // An operator's limit is not changed by enqueues.
    f.store.enqueue(in_lane_of("a", 9)).await.unwrap();
    assert!(worker.claim(9).await.is_empty());
    let unlimited = LaneSettings { limit: Some(LaneLimit::UNLIMITED), ..LaneSettings::default() };
    f.store.set_lane(&queue(), &key("a"), unlimited).await.unwrap();
    assert_eq!(worker.claim(9).await.len(), 6);
    let view = f.store.lane(&queue(), &key("a")).await.unwrap().unwrap();
    assert_eq!((view.limit, view.pending, view.held), (LaneLimit::UNLIMITED, 0, 8));
    f.assert_sound().await;
}

#[tokio::test]
async fn a_paused_queue_hands_out_nothing() {
    let f = fixture().await;
    f.store.enqueue(a_task()).await.unwrap();
    let worker = worker(&f.store).await;

    assert!(f.store.pause_queue(&queue()).await.unwrap());
    assert!(!f.store.pause_queue(&queue()).await.unwrap());
    let advanced = worker.advance(worker.next().claim(queue(), 9)).await;
    assert_eq!((advanced.claimed.len(), advanced.left), (0, Left::Blocked));
    assert!(!f.store.is_claimable(&[queue()], &Kinds::All).await.unwrap());

    assert!(f.store.resume_queue(&queue()).await.unwrap());
    assert!(!f.store.resume_queue(&queue()).await.unwrap());
    assert_eq!(worker.claim(9).await.len(), 1);
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat_rows_of_one_instant() {
    let f = fixture().await;
    let mail = QueueName::new("mail").unwrap();
    f.store.enqueue_many((0..7).map(|_| a_task().delay(secs(5))).collect()).await.unwrap();
    f.store.enqueue_many((0..7).map(|_| a_task().queue(mail.clone())).collect()).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.advance(worker.next().claim(mail.clone(), 4)).await.claimed;
    let mut settle = worker.next();
    settle.settles = claimed.iter().map(|claimed| claimed.settle(failed())).collect();
    worker.advance(settle).await;

    for (place, queue, expected) in [
        (Place::Later, None, vec![1, 2, 3, 4, 5, 6, 7]),
        (Place::Later, Some(mail.clone()), vec![]),
        (Place::Pending, None, vec![12, 13, 14]),
        (Place::Pending, Some(mail.clone()), vec![12, 13, 14]),
        (Place::Leased, None, vec![]),
        (Place::Waiting, None, vec![]),
        (Place::Ended, None, vec![11, 10, 9, 8]),
        (Place::Ended, Some(mail), vec![11, 10, 9, 8]),
    ] {
        let mut listing = Listing::of(place).limit(2);
        if let Some(queue) = queue {
            listing = listing.queue(queue);
        }
        let mut found = vec![];
        loop {
            let page = f.store.list(listing.clone()).await.unwrap();
            found.extend(page.tasks.iter().map(|task| task.id.0));
            let Some(next) = page.next else { break };
            listing = listing.after(next);
        }
        assert_eq!(found, expected, "{listing:?}");
    }
}

#[tokio::test]
async fn maintenance_forgets_idle_lanes_and_keeps_an_operators() {
    let f = fixture().await;
    let settings = LaneSettings { limit: Some(LaneLimit::ONE), ..LaneSettings::default() };
    f.store.set_lane(&queue(), &key("own"), settings).await.unwrap();
    f.store.enqueue_many(vec![in_lane("idle"), in_lane("busy").delay(secs(5_000))]).await.unwrap();
    let worker = worker(&f.store).await;
    let claimed = worker.claim(1).await;
    worker.settle(&claimed[0], Outcome::completed()).await;
    f.clock.advance(secs(601));

    f.store.maintain().await.unwrap();

    for (lane, known) in [("idle", false), ("busy", true), ("own", true)] {
        assert_eq!(f.store.lane(&queue(), &key(lane)).await.unwrap().is_some(), known, "{lane}");
    }
    assert_eq!(f.store.get(TaskId(1)).await.unwrap().unwrap().lane, None);
}

#[tokio::test]
async fn a_bulk_enqueue_is_all_or_nothing() {
    let f = fixture().await;

    let refused = f.store.enqueue_many(vec![a_task(), a_task().priority(5_000)]).await.unwrap_err();

    assert_eq!(refused.code(), "out_of_range");
    assert!(f.store.counts().await.unwrap().is_empty());
    assert_eq!(f.store.enqueue_many(vec![]).await.unwrap(), []);
}

/// Where the children of a task are is kept as long as the task, and goes with it.
#[tokio::test]
async fn retention_forgets_where_children_were() {
    let f = fixture().await;
    f.store.enqueue(a_task()).await.unwrap();
    let worker = worker(&f.store).await;
    let parent = worker.claim(1).await.remove(0);
    let spawned = Spawned { children: vec![a_task(), a_task()], ..Default::default() };
    worker.advance(worker.next().settle(parent.settle(Outcome::completed()).spawning(spawned))).await;
    for child in worker.claim(2).await {
        worker.settle(&child, Outcome::completed()).await;
    }
    let broods = || {
        let file = rusqlite::Connection::open(f.directory.path().join("tasks.db")).unwrap();
        file.query_row("select count(*) from brood", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    f.store.maintain().await.unwrap();
    assert_eq!((broods(), f.store.children(Children::of(parent.task.id)).await.unwrap().len()), (1, 2));

    f.clock.advance(secs(9 * 86_400));
    f.store.maintain().await.unwrap();

    assert_eq!((f.store.get(parent.task.id).await.unwrap(), broods()), (None, 0));
    f.assert_sound().await;
}
