//! Workers that live, stop, and die.

use super::words::*;

pub async fn a_registered_worker_is_listed(store: &TestStore) {
    let worker = TestWorker::unregistered(store.handle());
    let capacity = Capacity { slots: 50, free: 20, memory_percent: 70, draining: true };
    let queues = vec![queue("a"), queue("b")];
    let kinds = Kinds::Only(vec![kind("mail.receipt"), kind("mail.digest")]);
    let registration = Registration {
        name: "host-1".into(),
        queues: queues.clone(),
        kinds: kinds.clone(),
        capacity,
        ..worker.registration()
    };

    store.register(registration).await.unwrap();

    let [seen] = &store.workers().await.unwrap()[..] else { panic!("one worker is registered") };
    assert_eq!((seen.session, seen.name.as_str()), (worker.session(), "host-1"));
    assert_eq!((&seen.queues, &seen.kinds, seen.capacity), (&queues, &kinds, capacity));
    assert!(seen.seen_at >= seen.started_at);
}

pub async fn registering_twice_renews(store: &TestStore) {
    let mut worker = store.worker().await;
    let before = store.workers().await.unwrap();
    store.advance_clock(secs(20)).await;

    worker.stay_alive().await;

    let after = store.workers().await.unwrap();
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].started_at, before[0].started_at);
    assert!(after[0].seen_at.duration_since(before[0].seen_at).as_secs() >= 20);
}

pub async fn workers_are_listed_in_the_order_of_their_start(store: &TestStore) {
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(store.worker().await.session());
        store.advance_clock(secs(1)).await;
    }

    let seen: Vec<_> = store.workers().await.unwrap().iter().map(|worker| worker.session).collect();

    assert_eq!(seen, expected);
}

pub async fn a_renewal_tells_capacity_and_time(store: &TestStore) {
    let mut worker = store.worker().await;
    let before = &store.workers().await.unwrap()[0];
    store.advance_clock(secs(10)).await;

    let orders = worker.orders(&[]).await;

    assert_eq!(orders, Orders::default());
    let after = &store.workers().await.unwrap()[0];
    assert_eq!((before.capacity.free, after.capacity.free), (10, 7));
    assert!(after.seen_at > before.seen_at);
}

pub async fn an_unknown_session_that_renews_is_lost(store: &TestStore) {
    assert_eq!(TestWorker::unregistered(store.handle()).renew(vec![]).await, Renewed::Lost);
    assert!(store.workers().await.unwrap().is_empty());
}

pub async fn a_renewal_keeps_the_leases_that_the_worker_knows(store: &TestStore) {
    let [id, _] = store.given([a_task(), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    assert_eq!(worker.orders(&claimed).await.given_back, 0);

    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&claimed).await;
}

pub async fn a_lease_that_its_worker_does_not_know_is_given_back(store: &TestStore) {
    let [first, second, third] = store.given([a_task(), a_task().lane("a"), a_task()]).await;
    let mut worker = store.worker().await;
    let lost = worker.claim(2).await;
    let known = worker.claim(2).await;
    assert_eq!((ids(&lost), ids(&known)), (vec![first, second], vec![third]));

    assert_eq!(worker.orders(&known).await.given_back, 2);

    let view = store.view(second).await;
    assert_eq!((view.state, view.attempt, view.crashes), (State::Pending, 0, 0));
    assert_eq!(store.state(third).await, State::Leased);
    assert_eq!(worker.settle(&lost[0], Outcome::completed()).await, Verdict::Stale);
    assert_eq!(ids(&worker.claim(10).await), [first, second]);
}

pub async fn a_lease_of_an_advance_whose_answer_is_on_its_way_is_left_alone(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let before = worker.advance_number();
    let claimed = worker.claim(1).await;

    let renewal = Renewal {
        session: worker.session(),
        capacity: Capacity::default(),
        leases: vec![],
        advance_number: before,
    };
    let renewed = store.renew(renewal).await.unwrap();

    assert_eq!(renewed, Renewed::Alive(Orders::default()));
    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&claimed).await;
}

pub async fn a_worker_that_stops_gives_everything_back_uncharged(store: &TestStore) {
    let [first, second, done] = store.given([a_task().max_attempts(1), a_task().lane("a"), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(10).await;
    let completed = claimed.iter().find(|one| one.task.id == done).unwrap();
    worker.complete(std::slice::from_ref(completed)).await;

    worker.deregister().await;

    assert!(store.workers().await.unwrap().is_empty());
    for id in [first, second] {
        let view = store.view(id).await;
        assert_eq!((view.state, view.attempt, view.crashes), (State::Pending, 0, 0));
    }
    assert_eq!(store.state(done).await, State::Completed);
    let again = store.worker().await.claim(10).await;
    assert_eq!(ids(&again), [first, second]);
    assert_eq!(again[0].task.attempt, 1);
}

pub async fn a_worker_that_has_stopped_is_unknown(store: &TestStore) {
    let mut worker = store.worker().await;
    store.deregister(worker.session()).await.unwrap();

    assert_eq!(worker.renew(vec![]).await, Renewed::Lost);
    assert!(worker.advance(|advance| advance).await.session_lost);
}

pub async fn stopping_a_worker_that_nobody_knows_is_harmless(store: &TestStore) {
    store.deregister(SessionId::random()).await.unwrap();
}

pub async fn a_sweep_leaves_living_workers_alone(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;

    store.advance_clock(secs(25)).await;
    assert_eq!(store.sweep().await.unwrap(), Swept::default());
    worker.orders(&claimed).await;
    store.advance_clock(secs(25)).await;
    assert_eq!(store.sweep().await.unwrap(), Swept::default());

    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&claimed).await;
}

pub async fn a_dead_workers_tasks_run_again(store: &TestStore) {
    let [first, second, third] = store.given([a_task(), a_task().lane("a"), a_task()]).await;
    let _lost = store.worker().await.claim(2).await;

    let swept = store.sweep_all_but(&mut []).await;

    assert_eq!(
        swept,
        Swept { sessions: 1, given_back: 2, poisoned: 0, rescued: [(queue("default"), 2)].into() }
    );
    let view = store.view(first).await;
    assert_eq!((view.state, view.attempt, view.crashes, view.worker), (State::Pending, 0, 1, None));
    let again = store.worker().await.claim(10).await;
    assert_eq!(ids(&again), [first, second, third]);
    let counted: Vec<_> = again.iter().map(|one| (one.task.attempt, one.task.crashes)).collect();
    assert_eq!(counted, [(1, 1), (1, 1), (1, 0)]);
}

pub async fn a_sweep_gives_back_only_what_is_not_settled(store: &TestStore) {
    let [first, second, third] = store.given([a_task(), a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    worker.settle(&claimed[0], Outcome::completed()).await;
    worker.settle(&claimed[2], retry_after(secs(600))).await;

    let swept = store.sweep_all_but(&mut []).await;

    assert_eq!(
        swept,
        Swept { sessions: 1, given_back: 1, poisoned: 0, rescued: [(queue("default"), 1)].into() }
    );
    assert_eq!(store.state(first).await, State::Completed);
    assert_eq!(store.state(second).await, State::Pending);
    assert_eq!(store.state(third).await, State::Later);
}

pub async fn a_sweep_of_an_idle_worker_gives_nothing_back(store: &TestStore) {
    let _idle = store.worker().await;

    assert_eq!(store.sweep_all_but(&mut []).await, Swept { sessions: 1, ..Swept::default() });
    assert_eq!(store.sweep().await.unwrap(), Swept::default());
}

pub async fn a_task_whose_workers_died_three_times_has_failed(store: &TestStore) {
    let poison = store.given_one(a_task().payload("[1]")).await;

    for crash in 1..=3 {
        assert_eq!(ids(&store.worker().await.claim(1).await), [poison]);
        let swept = store.sweep_all_but(&mut []).await;
        assert_eq!((swept.given_back, swept.poisoned), if crash < 3 { (1, 0) } else { (0, 1) });
        assert_eq!(store.view(poison).await.crashes, crash);
    }

    let view = store.view(poison).await;
    assert_eq!(view.state, State::Failed);
    assert!(view.error.unwrap().contains("worker died 3 times"));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
    assert!(store.worker().await.claim(1).await.is_empty());
}

pub async fn a_success_after_a_crash_keeps_its_history(store: &TestStore) {
    let id = store.given_one(a_task().payload("[1]")).await;
    let _lost = store.worker().await.claim(1).await;
    store.sweep_all_but(&mut []).await;

    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.crashes), (State::Completed, 1, 1));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
}

pub async fn two_sweepers_share_the_work(store: &TestStore) {
    let stored = store.given_all((0..40).map(|n| a_task().lane(&n.to_string()))).await;
    for _ in 0..8 {
        assert_eq!(store.worker().await.claim(5).await.len(), 5);
    }
    let another = store.another().await;
    store.advance_clock(secs(31)).await;

    let (mut sessions, mut given_back) = (0, 0);
    until("all tasks are back", async || {
        let (one, two) = tokio::join!(store.sweep(), another.sweep());
        for swept in [one.unwrap(), two.unwrap()] {
            sessions += swept.sessions;
            given_back += swept.given_back;
        }
        given_back >= 40
    })
    .await;

    assert_eq!((sessions, given_back), (8, 40));
    for id in stored {
        assert_eq!(store.view(id).await.crashes, 1);
    }
}

pub async fn a_worker_that_was_swept_is_told_so(store: &TestStore) {
    let mut worker = store.worker().await;
    store.sweep_all_but(&mut []).await;

    assert_eq!(worker.renew(vec![]).await, Renewed::Lost);
}

pub async fn a_silent_worker_that_comes_back_before_a_sweep_keeps_its_tasks(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;

    let swept = store.sweep_all_but(&mut [&mut worker]).await;

    assert_eq!(swept, Swept::default());
    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&claimed).await;
}
