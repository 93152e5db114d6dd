//! Why a task is not running.

use super::words::*;

async fn reasons(store: &TestStore, task: TaskId) -> Vec<Reason> {
    let why = store.why(task).await.unwrap().expect("the task is there");
    assert_eq!((why.task, why.state), (task, store.state(task).await));
    why.reasons
}

/// A worker that can take anything.
async fn an_able_worker(store: &TestStore) -> TestWorker {
    store.worker().await
}

pub async fn an_unknown_task_has_no_reasons(store: &TestStore) {
    assert_eq!(store.why(TaskId(77)).await.unwrap(), None);
}

pub async fn the_next_task_is_claimable_and_others_are_behind_it(store: &TestStore) {
    let [first, second, urgent] = store.given([a_task(), a_task(), a_task().priority(-1)]).await;
    let _worker = an_able_worker(store).await;

    assert_eq!(reasons(store, urgent).await, [Reason::Claimable]);
    assert_eq!(reasons(store, first).await, [Reason::Behind { ahead: 1, more: false }]);
    assert_eq!(reasons(store, second).await, [Reason::Behind { ahead: 2, more: false }]);
}

pub async fn tasks_ahead_are_counted_up_to_a_bound(store: &TestStore) {
    let tasks = store.given_all(tasks_like(a_task(), 1_002)).await;
    let _worker = an_able_worker(store).await;

    let last = reasons(store, tasks[1_001]).await;

    assert_eq!(last, [Reason::Behind { ahead: 1_000, more: true }]);
}

pub async fn a_scheduled_task_waits_for_its_time(store: &TestStore) {
    let task = store.given_one(a_task().delay(secs(60))).await;
    let _worker = an_able_worker(store).await;

    let due_at = store.view(task).await.due_at.unwrap();

    assert_eq!(reasons(store, task).await, [Reason::Due { at: due_at }]);
}

pub async fn a_task_in_back_off_says_after_which_error(store: &TestStore) {
    let task = store.given_one(a_task()).await;
    let mut worker = an_able_worker(store).await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::Retry { after: secs(60), error: "421".into() }).await;

    let until = store.view(task).await.due_at.unwrap();

    let expected = Reason::BackOff { until, attempt: 1, error: Some("421".into()) };
    assert_eq!(reasons(store, task).await, [expected]);
}

pub async fn pauses_of_queue_kind_and_lane_are_told_with_who(store: &TestStore) {
    let task = store.given_one(a_task().lane("a")).await;
    let _worker = an_able_worker(store).await;
    let ann = Actor::new(ActorName::new("ann").unwrap());
    for what in [
        Pausable::Queue(queue("default")),
        Pausable::Kind(kind("work")),
        Pausable::Lane(queue("default"), lane_key("a")),
    ] {
        store.pause(&ann, &what, None).await.unwrap();
    }

    let found = reasons(store, task).await;

    assert!(matches!(&found[0], Reason::QueuePaused(paused) if paused.by == "ann" && paused.until.is_none()));
    assert!(matches!(&found[1], Reason::LanePaused(paused) if paused.by == "ann"), "{found:?}");
    assert!(matches!(&found[2], Reason::KindPaused(paused) if paused.by == "ann"), "{found:?}");
    assert_eq!(found.len(), 3);
}

pub async fn a_full_lane_says_who_holds_it(store: &TestStore) {
    let [first, second, third] =
        store.given([a_task().lane("a"), a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = an_able_worker(store).await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, first);

    let found = reasons(store, second).await;

    let [Reason::LaneFull { limit: 1, held_by }] = &found[..] else { panic!("{found:?}") };
    let started = store.view(first).await.started_at.unwrap();
    let holder = Holder {
        task: first,
        state: State::Leased,
        worker: Some(worker.session().0),
        name: Some("test".into()),
        at: started,
    };
    assert_eq!(held_by, &[holder]);
    assert_eq!(reasons(store, third).await[1], Reason::Behind { ahead: 1, more: false });
}

pub async fn a_lane_can_be_held_by_a_task_in_back_off(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = an_able_worker(store).await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(60))).await;

    let found = reasons(store, second).await;

    let [Reason::LaneFull { held_by, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((held_by[0].task, held_by[0].state, held_by[0].worker), (first, State::Later, None));
    assert_eq!(held_by[0].at, store.view(first).await.due_at.unwrap());
}

pub async fn a_halted_lane_and_one_that_rests_say_so(store: &TestStore) {
    let settings = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
    store.change_lane("halts", settings).await;
    let settings = LaneSettings { interval: Some(secs(600)), ..Default::default() };
    store.change_lane("rests", settings).await;
    let [_, halted] = store.given([a_task().lane("halts"), a_task().lane("halts")]).await;
    let mut worker = an_able_worker(store).await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    let [_, resting] = store.given([a_task().lane("rests"), a_task().lane("rests")]).await;
    let claimed = worker.claim_one().await;
    worker.complete(&[claimed]).await;

    assert_eq!(reasons(store, halted).await, [Reason::LaneHalted]);
    let found = reasons(store, resting).await;
    assert!(matches!(found[..], [Reason::LaneRests { .. }]), "{found:?}");
}

pub async fn a_kind_that_nobody_handles_says_who_is_there(store: &TestStore) {
    let task = store.given_one(a_task().kind("mail")).await;
    assert_eq!(reasons(store, task).await, [Reason::NoWorker { serving: vec![] }]);

    let other = TestWorker::unregistered(store.handle());
    let kinds = Kinds::Only(vec![kind("sms")]);
    store.register(Registration { kinds, ..other.registration() }).await.unwrap();
    let serving = Serving { worker: other.session().0, name: "test".into(), kinds: Some(vec![kind("sms")]) };
    assert_eq!(reasons(store, task).await, [Reason::NoWorker { serving: vec![serving] }]);

    let able = TestWorker::unregistered(store.handle());
    let full = Capacity { slots: 1, free: 0, ..Default::default() };
    store.register(Registration { capacity: full, ..able.registration() }).await.unwrap();
    assert_eq!(reasons(store, task).await, [Reason::NoFreeSlot]);
    let _idle = an_able_worker(store).await;
    assert_eq!(reasons(store, task).await, [Reason::Claimable]);
}

pub async fn a_silent_worker_does_not_count(store: &TestStore) {
    let task = store.given_one(a_task()).await;
    let _worker = an_able_worker(store).await;

    store.advance_clock(secs(31)).await;

    assert_eq!(reasons(store, task).await, [Reason::NoWorker { serving: vec![] }]);
}

pub async fn a_running_task_says_where_and_an_ended_one_how(store: &TestStore) {
    let [running, ended] = store.given([a_task(), a_task()]).await;
    let mut worker = an_able_worker(store).await;
    let claimed = worker.claim(2).await;
    worker.settle(&claimed[1], failed()).await;
    store.cancel(running).await.unwrap();

    let view = store.view(running).await;
    let expected = Reason::Running {
        worker: worker.session().0,
        name: Some("test".into()),
        since: view.started_at.unwrap(),
        stopping: true,
    };
    assert_eq!(reasons(store, running).await, [expected]);
    let at = store.view(ended).await.ended_at.unwrap();
    let expected = Reason::Ended { state: State::Failed, at, error: Some("never works".into()) };
    assert_eq!(reasons(store, ended).await, [expected]);
}
