//! Serial queues: top-level tasks one at a time, children side by side.

use super::words::*;

async fn a_serial_queue(store: &TestStore, at_once: u32) {
    let settings = QueueSettings { serial: Some(Serial::Children(at_once)), ..Default::default() };
    store.set_queue(&QueueName::default(), settings).await.expect("a new queue can be made serial");
}

fn children(tasks: usize) -> Spawned {
    Spawned { children: vec![a_task().kind("child").into(); tasks], ..Default::default() }
}

async fn spawn(worker: &mut TestWorker, claimed: &Claimed, spawned: Spawned) -> Verdict {
    worker.settle_all(vec![claimed.settle(Outcome::completed()).spawning(spawned)]).await[0]
}

pub async fn top_level_tasks_run_one_at_a_time_in_order(store: &TestStore) {
    a_serial_queue(store, 4).await;
    let [first, second, urgent] = store.given([a_task(), a_task(), a_task().priority(-1)]).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);

    for expected in [urgent, first, second] {
        let claimed = one.claim(10).await;
        assert_eq!(ids(&claimed), [expected]);
        assert_eq!(claimed[0].task.lane, None);
        assert!(two.claim(10).await.is_empty());
        one.complete(&claimed).await;
    }
}

pub async fn nothing_else_starts_while_a_task_waits_for_its_children_or_is_in_back_off(store: &TestStore) {
    a_serial_queue(store, 2).await;
    let [parent, next] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(10))).await;
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(11)).await;
    worker.stay_alive().await;
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [parent]);

    assert_eq!(spawn(&mut worker, &claimed[0], children(5)).await, Verdict::Waiting);

    // Of its children two run at once.
    let mut left = 5;
    while left > 0 {
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), left.min(2));
        assert!(claimed.iter().all(|one| one.task.parent == Some(parent) && one.task.lane.is_none()));
        assert!(worker.claim(10).await.is_empty());
        worker.complete(&claimed).await;
        left -= claimed.len();
    }
    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(ids(&worker.claim(10).await), [next]);
}

pub async fn a_large_family_keeps_to_the_limit_of_a_serial_queue(store: &TestStore) {
    a_serial_queue(store, 3).await;
    let [parent, next] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!(spawn(&mut worker, &claimed, children(2_100)).await, Verdict::Waiting);

    let first = worker.claim(10).await;
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|one| one.task.parent == Some(parent)));
    let refused =
        worker.settle_all(vec![first[0].settle(Outcome::completed()).spawning(children(2_100))]).await;
    assert_eq!(refused, [Verdict::Failed]);
    assert!(
        store.view(first[0].task.id).await.error.unwrap().starts_with("serial_queue: children of a child")
    );
    assert_eq!(store.state(next).await, State::Pending);
    assert_eq!(store.total().await, 2_102);
}

pub async fn a_dead_worker_leaves_a_serial_queue_in_order(store: &TestStore) {
    a_serial_queue(store, 4).await;
    let [first, _second] = store.given([a_task(), a_task()]).await;
    let mut survivor = store.worker().await;
    let mut dead = store.worker().await;
    assert_eq!(ids(&dead.claim(10).await), [first]);

    store.sweep_all_but(&mut [&mut survivor]).await;

    assert_eq!(ids(&survivor.claim(10).await), [first]);
}

pub async fn follow_ups_run_after_it_in_order_of_priority(store: &TestStore) {
    a_serial_queue(store, 4).await;
    let [parent, other] = store.given([a_task().priority(-5), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    let follow_up = |kind: &str, priority| FollowUp {
        task: a_task().kind(kind).priority(priority).into(),
        on_failure: FollowUpOnFailure::Drop,
    };
    let follow_ups = vec![follow_up("flush", -5), follow_up("report", -5), follow_up("analyze", 5)];
    spawn(&mut worker, &claimed, Spawned { follow_ups, ..children(1) }).await;
    let child = worker.claim(10).await;
    assert_eq!(child.len(), 1);
    worker.complete(&child).await;
    assert_eq!(store.state(parent).await, State::Completed);

    for expected in ["flush", "report", "work", "analyze"] {
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].task.kind, kind(expected));
        assert_eq!(claimed[0].task.id == other, expected == "work");
        worker.complete(&claimed).await;
    }
}

pub async fn children_of_children_are_refused_in_a_serial_queue(store: &TestStore) {
    a_serial_queue(store, 4).await;
    store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    spawn(&mut worker, &claimed, children(1)).await;
    let child = worker.claim_one().await;

    assert_eq!(spawn(&mut worker, &child, children(1)).await, Verdict::Failed);

    let expected =
        "serial_queue: children of a child are refused in the serial queue `default`; spawn siblings instead";
    assert_eq!(store.view(child.task.id).await.error.as_deref(), Some(expected));
    assert_eq!(store.total().await, 2);
}

pub async fn lanes_are_refused_in_a_serial_queue(store: &TestStore) {
    a_serial_queue(store, 4).await;

    let refused = refusal(store.enqueue_many(vec![a_task().into(), a_task().lane("a").into()]).await);

    let expected = "lane `a` is refused in the serial queue `default`; leave it out";
    assert_eq!(
        (refused.code, refused.field, refused.message.as_str()),
        (Code::SerialQueue, "lane", expected)
    );
    assert_eq!(store.total().await, 0);
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    let laned = Spawned { children: vec![a_task().lane("a").into()], ..Default::default() };
    assert_eq!(spawn(&mut worker, &claimed, laned).await, Verdict::Failed);
    assert_eq!(store.view(id).await.error, Some(format!("serial_queue: {expected}")));
}

pub async fn a_queue_with_open_tasks_is_not_made_serial(store: &TestStore) {
    let [id] = store.given([a_task()]).await;
    let serial = QueueSettings { serial: Some(Serial::ON), ..Default::default() };

    let refused = refusal(store.set_queue(&QueueName::default(), serial).await);

    assert_eq!((refused.code, refused.field), (Code::SerialQueue, "serial"));
    store.cancel(id).await.unwrap();
    store.set_queue(&QueueName::default(), serial).await.unwrap();
    let shown = store.queues().await.unwrap();
    assert_eq!(shown.iter().map(|queue| queue.serial).collect::<Vec<_>>(), [Serial::Children(4)]);
    store.given([a_task()]).await;
    store.set_queue(&QueueName::default(), serial).await.expect("nothing changes");
    let off = QueueSettings { serial: Some(Serial::Off), ..Default::default() };
    assert_eq!(refusal(store.set_queue(&QueueName::default(), off).await).code, Code::SerialQueue);
    let none = QueueSettings { serial: Some(Serial::Children(0)), ..Default::default() };
    assert_eq!(refusal(store.set_queue(&QueueName::default(), none).await).code, Code::OutOfRange);
}

pub async fn a_full_serial_queue_says_who_is_waiting(store: &TestStore) {
    a_serial_queue(store, 4).await;
    let [parent, next] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    spawn(&mut worker, &claimed, children(1)).await;

    let why = store.why(next).await.unwrap().unwrap();

    let full = why.reasons.iter().find_map(|reason| match reason {
        Reason::LaneFull { limit, held_by } => Some((*limit, held_by[0].task, held_by[0].state)),
        _ => None,
    });
    assert_eq!(full, Some((1, parent, State::Waiting)));
}
