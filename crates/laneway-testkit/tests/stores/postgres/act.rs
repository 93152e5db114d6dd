//! Operators against workers on PostgreSQL: what they do to one another, step by step and all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{Fixture, fixture};
use laneway_core::{
    Acted, Action, Actor, ActorName, BulkState, LaneKey, NewBulk, Outcome, Pausable, QueueName, Skip, State,
    Store, StoreError, TaskId,
};
use laneway_postgres::PostgresStore;
use laneway_testkit::store::{a_task, secs, soon, until};
use laneway_testkit::worker::{failed, ids};
use tokio::task::{JoinHandle, JoinSet};

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap())
}

impl Fixture {
    /// An action that is under way.
    fn acting(&self, action: Action, task: TaskId) -> JoinHandle<Result<Vec<Acted>, StoreError>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.act(&ann(), action, &[task]).await })
    }

    async fn act(&self, action: Action, task: TaskId) -> Acted {
        soon("an action", self.store.act(&ann(), action, &[task])).await.unwrap()[0]
    }

    /// A connection in a transaction that has run `sql`.
    async fn holding(&self, sql: &str) -> tokio_postgres::Client {
        let client = self.connect().await;
        client.batch_execute(&format!("set search_path = laneway; begin; {sql}")).await.unwrap();
        client
    }

    /// A task that has failed.
    async fn failed(&self) -> TaskId {
        let id = self.given(a_task()).await;
        let mut worker = self.worker().await;
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, failed()).await;
        worker.deregister().await;
        id
    }
}

#[tokio::test]
async fn a_cancel_that_meets_a_claim_follows_the_task_into_its_lease() {
    for (end, expected) in [("commit", Acted::Requested), ("rollback", Acted::Done)] {
        let fixture = fixture().await;
        let id = fixture.given(a_task().lane("a")).await;
        let mut worker = fixture.worker().await;
        let step = format!(
            "select advance('{}', 1, false, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', \
             '{{default}}', '{{5}}', array[null]::text[], array[null]::text[], null)",
            worker.session()
        );
        let claimer = fixture.holding(&step).await;

        let cancel = fixture.acting(Action::Cancel, id);
        fixture.until_somebody_waits().await;
        claimer.batch_execute(end).await.unwrap();

        assert_eq!(cancel.await.unwrap().unwrap(), [expected]);
        if expected == Acted::Requested {
            worker.renew(vec![]).await;
            fixture.silence(&worker).await;
            fixture.store.sweep().await.unwrap();
        }
        assert_eq!(fixture.state(id).await, Some(State::Cancelled));
        fixture.check().await;
    }
}

#[tokio::test]
async fn a_cancel_that_meets_a_settle_stands_behind_it() {
    for (end, expected) in
        [("commit", Acted::Skipped(Skip::Ended(State::Completed))), ("rollback", Acted::Requested)]
    {
        let fixture = fixture().await;
        let id = fixture.given(a_task()).await;
        let mut worker = fixture.worker().await;
        let claimed = worker.claim_one().await;
        let client = fixture.holding("").await;
        fixture.store.complete_in(&client, worker.session(), &claimed).await.unwrap();

        let cancel = fixture.acting(Action::Cancel, id);
        fixture.until_somebody_waits().await;
        client.batch_execute(end).await.unwrap();

        assert_eq!(cancel.await.unwrap().unwrap(), [expected]);
        worker.deregister().await;
        fixture.check().await;
    }
}

#[tokio::test]
async fn a_cancel_that_meets_a_sweep_finds_the_task_that_came_back() {
    let fixture = fixture().await;
    let id = fixture.given(a_task().lane("a")).await;
    let mut worker = fixture.worker().await;
    let _claimed = worker.claim_one().await;
    fixture.silence(&worker).await;
    let sweeper = fixture.holding("select sweep()").await;

    let cancel = fixture.acting(Action::Cancel, id);
    fixture.until_somebody_waits().await;
    sweeper.batch_execute("commit").await.unwrap();

    assert_eq!(cancel.await.unwrap().unwrap(), [Acted::Done]);
    assert_eq!(fixture.state(id).await, Some(State::Cancelled));
    let next = fixture.given(a_task().lane("a")).await;
    assert_eq!(ids(&fixture.worker().await.claim(5).await), [next]);
    fixture.check().await;
}

#[tokio::test]
async fn what_another_transaction_holds_is_skipped_and_not_waited_for() {
    let fixture = fixture().await;
    let ended = fixture.failed().await;
    let (pending, later) = (fixture.given(a_task()).await, fixture.given(a_task().delay(secs(60))).await);
    let holder = fixture
        .holding("select from task for update; select from later for update; select from ended for update")
        .await;

    let busy = Acted::Skipped(Skip::Busy);
    for action in [Action::Snooze(secs(9)), Action::SetPriority(3), Action::Delete] {
        assert_eq!([fixture.act(action, pending).await, fixture.act(action, later).await], [busy; 2]);
    }
    for action in [Action::Retry, Action::Delete] {
        assert_eq!(fixture.act(action, ended).await, busy);
    }
    holder.batch_execute("rollback").await.unwrap();

    assert_eq!(fixture.act(Action::Retry, ended).await, Acted::Done);
    assert!(
        fixture.store.audit(Default::default()).await.unwrap().len() == 1,
        "what did nothing is not recorded"
    );
    fixture.check().await;
}

#[tokio::test]
async fn of_many_retries_of_one_task_one_counts() {
    let fixture = fixture().await;
    let id = fixture.failed().await;

    let calls: Vec<_> = (0..8).map(|_| fixture.acting(Action::Retry, id)).collect();
    let mut done = 0;
    for call in calls {
        match call.await.unwrap().unwrap()[0] {
            Acted::Done => done += 1,
            Acted::Skipped(Skip::Open | Skip::Busy) => (),
            other => panic!("{other:?}"),
        }
    }

    assert_eq!((done, fixture.state(id).await), (1, Some(State::Pending)));
    fixture.check().await;
}

#[tokio::test]
async fn a_retry_waits_for_a_key_but_not_for_long() {
    let fixture = fixture().await;
    let first = fixture.given(a_task().unique("k")).await;
    let mut worker = fixture.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    let holder = fixture.holding("select enqueue('work', unique_key => 'k')").await;

    let refused = fixture.store.act(&ann(), Action::Retry, &[first]).await.unwrap_err();
    let retry = fixture.acting(Action::Retry, first);
    fixture.until_somebody_waits().await;
    holder.batch_execute("rollback").await.unwrap();

    assert_eq!(refused.code(), "busy");
    assert_eq!(retry.await.unwrap().unwrap(), [Acted::Done]);
    fixture.check().await;
}

#[tokio::test]
async fn an_expired_pause_of_a_lane_that_somebody_holds_ends_with_the_next_advance() {
    let fixture = fixture().await;
    let lane = Pausable::Lane(QueueName::default(), LaneKey::new("a").unwrap());
    let id = fixture.given(a_task().lane("a")).await;
    let mut worker = fixture.worker().await;
    fixture.store.pause(&ann(), &lane, Some(std::time::Duration::from_millis(1))).await.unwrap();
    let over = "select expires_at < clock_timestamp() from laneway.pause";
    until("the pause is over", async || fixture.value(over).await).await;
    let operator = fixture.holding("select from lane for update").await;

    assert!(soon("a claim", worker.claim(5)).await.is_empty());
    operator.batch_execute("rollback").await.unwrap();

    assert_eq!(ids(&worker.claim(5).await), [id]);
    fixture.check().await;
}

/// Claims and ends tasks until told to stop: every attempt of a first life fails, every other completes.
async fn work(store: PostgresStore, stop: Arc<AtomicBool>, completed: Arc<AtomicUsize>) {
    let mut worker = crate::support::worker(&store).await;
    while !stop.load(Ordering::SeqCst) {
        let claimed = worker.claim(7).await;
        let mut settles = vec![];
        for one in &claimed {
            let view = store.get(one.task.id).await.unwrap().unwrap();
            let outcome = if view.error.is_none() { failed() } else { Outcome::completed() };
            completed.fetch_add(usize::from(outcome != failed()), Ordering::SeqCst);
            settles.push(one.settle(outcome));
        }
        worker.settle_all(settles).await;
        tokio::task::yield_now().await;
    }
    worker.deregister().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_retries_and_workers_do_not_disturb_one_another() {
    const TASKS: usize = 240;
    let fixture = fixture().await;
    let (stop, completed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut crew = JoinSet::new();
    for _ in 0..3 {
        crew.spawn(work(
            crate::support::open(&fixture.database.url).await,
            Arc::clone(&stop),
            Arc::clone(&completed),
        ));
    }
    let tasks = (0..TASKS).map(|n| a_task().lane_of(&format!("lane {}", n % 9), 1 + n as u32 % 3).into());
    fixture.store.enqueue_many(tasks.collect()).await.unwrap();

    // Two operators retry whatever has failed, again and again, until every task has had its second life.
    let operator = || {
        let (store, completed) = (fixture.store.clone(), Arc::clone(&completed));
        async move {
            while completed.load(Ordering::SeqCst) < TASKS {
                let retry = NewBulk::new(Action::Retry, "state:failed".parse().unwrap());
                let bulk = store.start_bulk(&ann(), retry).await.unwrap();
                while store.bulk_step(bulk.id).await.unwrap().unwrap().state == BulkState::Running {}
            }
        }
    };
    tokio::time::timeout(secs(120), async { tokio::join!(operator(), operator()) })
        .await
        .expect("all complete");
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = crew.join_next().await {
        ended.unwrap();
    }

    assert_eq!(completed.load(Ordering::SeqCst), TASKS, "each task completed once");
    let counts = fixture.store.counts().await.unwrap();
    assert_eq!(
        counts.iter().map(|count| (count.state, count.tasks)).collect::<Vec<_>>(),
        [(State::Completed, TASKS as u64)]
    );
    fixture.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_that_come_and_go_lose_nothing() {
    const TASKS: usize = 200;
    let fixture = fixture().await;
    let done = Arc::new(AtomicUsize::new(0));
    let mut crew = JoinSet::new();
    for _ in 0..3 {
        let (store, done) = (crate::support::open(&fixture.database.url).await, Arc::clone(&done));
        crew.spawn(async move {
            let mut worker = crate::support::worker(&store).await;
            while done.load(Ordering::SeqCst) < TASKS {
                let claimed = worker.claim(3).await;
                worker.complete(&claimed).await;
                done.fetch_add(claimed.len(), Ordering::SeqCst);
            }
            worker.deregister().await;
        });
    }
    let lane = |n: usize| format!("lane {}", n % 5);
    let tasks = (0..TASKS).map(|n| a_task().lane_of(&lane(n), 1 + n as u32 % 2).into()).collect();
    fixture.store.enqueue_many(tasks).await.unwrap();

    let operate = async {
        let mut round = 0;
        while done.load(Ordering::SeqCst) < TASKS {
            let what = match round % 3 {
                0 => Pausable::Lane(QueueName::default(), LaneKey::new(lane(round)).unwrap()),
                1 => Pausable::Queue(QueueName::default()),
                _ => Pausable::Kind(laneway_testkit::store::kind("work")),
            };
            let expires = (round % 2 == 0).then_some(std::time::Duration::from_millis(3));
            fixture.store.pause(&ann(), &what, expires).await.unwrap();
            if expires.is_none() {
                fixture.store.resume(&ann(), &what).await.unwrap();
            }
            round += 1;
        }
    };
    tokio::time::timeout(secs(120), operate).await.expect("all tasks run between the pauses");
    while let Some(ended) = crew.join_next().await {
        ended.unwrap();
    }

    assert_eq!(done.load(Ordering::SeqCst), TASKS);
    fixture.check().await;
}
