//! Races on PostgreSQL that a simpler design loses, driven step by step: transactions are left open at the moment
//! that matters, while others do what they would do then. Nothing may be lost, doubled, stranded or overtaken, and nobody
//! may wait who should not.

use std::sync::Arc;
use std::time::Duration;

use crate::support::until_somebody_waits;
use laneway_core::{
    Acted, Action, Actor, Advance, Cancel, Capacity, Claim, Claimed, Edit, Fence, Kinds, LaneSettings,
    NewTask, OnFailure, Outcome, QueueName, Renewal, Renewed, Skip, Sleep, State, Store, TaskId, Verdict,
};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::store::{ATask, a_task, ids_of, kind, lane_key, queue, secs, soon, tasks_like, until};
use laneway_testkit::worker::{TestWorker, ids, retry_after};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use uuid::Uuid;

/// A worker's step as plain SQL, so that it can be left uncommitted: settles at most one task, claims up to `p_max` from
/// the default queue and returns what was claimed.
const STEP: &str = "
create function public.step(
    p_session uuid, p_number bigint, p_max int, p_lease bigint default null, p_token uuid default null,
    p_task bigint default null, p_outcome text default 'completed'
) returns bigint[] language sql volatile as $$
    select coalesce(array_agg(t order by t), '{}')
    from laneway.advance(
        p_session, p_number, false,
        array_remove(array[p_lease], null), array_remove(array[p_token], null), array_remove(array[p_task], null),
        array[p_outcome], array[0], array[null]::text[], array[null]::text[], '{}',
        array['default'], array[p_max], array[null]::text[], array[null]::text[], null
    ) a
    cross join unnest(a.task_ids) t
$$;";

struct Trap {
    database: Database,
    store: PostgresStore,
}

impl Trap {
    async fn set() -> Self {
        let database = Cluster::shared().await.database().await.unwrap();
        database.connect().await.unwrap().batch_execute(STEP).await.unwrap();
        let store = PostgresStore::open(PostgresOptions::new(&database.url).pool_size(4)).await.unwrap();
        Self { database, store }
    }

    async fn worker(&self) -> TestWorker {
        TestWorker::register(Arc::new(self.store.clone())).await
    }

    async fn enqueue(&self, task: ATask) -> TaskId {
        soon("an enqueue waits for nobody", self.store.enqueue(task.into())).await.unwrap().id
    }

    async fn enqueue_all(&self, tasks: Vec<ATask>) -> Vec<TaskId> {
        ids_of(&self.store.enqueue_many(tasks.into_iter().map(NewTask::from).collect()).await.unwrap())
    }

    /// Somebody with a transaction that is open.
    async fn begin(&self) -> Open {
        let client = self.database.connect().await.unwrap();
        client.batch_execute("set search_path = laneway, public; begin").await.unwrap();
        Open(client)
    }

    async fn is_claimable(&self) -> bool {
        self.store.is_claimable(&[QueueName::default()], &Kinds::All).await.unwrap()
    }

    async fn fall_asleep(&self, worker: &TestWorker) -> Fence {
        let sleep =
            Sleep { session: worker.session(), queues: vec![QueueName::default()], at_most: secs(60) };
        self.store.fall_asleep(sleep).await.unwrap()
    }

    /// Makes a session look as if it had been silent for too long.
    async fn let_time_pass(&self, worker: &TestWorker) {
        let client = self.database.connect().await.unwrap();
        let age = "update laneway.worker set seen_at = seen_at - interval '31 seconds' where session = $1";
        assert_eq!(client.execute(age, &[&worker.session().0]).await.unwrap(), 1);
    }

    /// Everything that is notified from now on.
    async fn listen(&self) -> mpsc::UnboundedReceiver<String> {
        let (client, mut connection) = tokio_postgres::connect(&self.database.url, NoTls).await.unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(notification) = message
                    && sender.send(notification.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        client.batch_execute(r#"listen "laneway:laneway""#).await.unwrap();
        // Dropping the client would close the connection.
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(client)
        });
        receiver
    }

    async fn until_somebody_waits(&self) {
        until_somebody_waits(&self.database).await;
    }

    async fn check(&self) {
        let violations = self.store.verify().await.unwrap();
        assert!(violations.is_empty(), "the invariants do not hold:\n{}", violations.join("\n"));
    }

    /// Claims and completes until nothing is left, and returns the tasks in the order of their starts.
    async fn work_off(&self, worker: &mut TestWorker) -> Vec<TaskId> {
        let mut done = vec![];
        loop {
            let claimed = soon("a claim", worker.claim(10)).await;
            if claimed.is_empty() {
                return done;
            }
            worker.complete(&claimed).await;
            done.extend(ids(&claimed));
        }
    }

    /// A lane whose turn stands in line for priority 0, though its only task has 5.
    async fn turn_in_front(&self, lane: &str) {
        self.enqueue(a_task().lane(lane).priority(5)).await;
        let withdrawn = self.enqueue(a_task().lane(lane).priority(0)).await;
        self.take_up().await;
        assert_eq!(self.store.cancel(withdrawn).await.unwrap(), Cancel::Cancelled);
    }

    /// While somebody's claim is open `worker` starts a task of these lanes, of priority 3, and then, before the other, the urgent one.
    async fn next_but_one(&self, worker: &mut TestWorker, lanes: [&str; 2], open: Open, urgent: TaskId) {
        let others = lanes.map(|lane| a_task().lane(lane).priority(3)).to_vec();
        let others = self.enqueue_all(others).await;
        assert_eq!(ids(&worker.claim(1).await), others[..1]);
        open.commit().await;

        assert_eq!(ids(&worker.claim(1).await), [urgent]);
        self.check().await;
    }

    /// Gives all lanes that have new tasks their turns.
    async fn take_up(&self) {
        let taking_up = self.begin().await;
        taking_up.run("select take_up_all('default', 100)").await;
        taking_up.commit().await;
    }

    /// A worker that runs the only task of lane `a`.
    async fn running(&self, lane: &str) -> (TestWorker, Claimed) {
        self.enqueue(a_task().lane(lane)).await;
        let mut worker = self.worker().await;
        let claimed = worker.claim_one().await;
        (worker, claimed)
    }
}

type Parameters<'a> = [&'a (dyn tokio_postgres::types::ToSql + Sync)];

/// A connection inside a transaction.
struct Open(Client);

impl Open {
    async fn run(&self, sql: &str) {
        soon("a statement", self.0.batch_execute(sql)).await.unwrap();
    }

    /// An advance that is not committed yet.
    async fn claim(&self, session: Uuid, number: i64, max: i32) -> Vec<TaskId> {
        let step = "select step($1, $2, $3)";
        self.ids("a claim waits for nobody", step, &[&session, &number, &max]).await
    }

    /// The same, with a task that has completed.
    async fn complete_and_claim(&self, worker: &TestWorker, claimed: &Claimed, max: i32) -> Vec<TaskId> {
        let number = worker.advance_number() as i64 + 1;
        let (lease, token, task) = (claimed.lease.id.0, claimed.lease.token.0, claimed.task.id.0);
        let call = "select step($1, $2, $3, $4, $5, $6)";
        let session = worker.session().0;
        let parameters: &Parameters<'_> = &[&session, &number, &max, &lease, &token, &task];
        self.ids("a step waits for nobody", call, parameters).await
    }

    /// The end of an attempt inside the application's transaction.
    async fn settle(&self, worker: &TestWorker, claimed: &Claimed, outcome: &str) -> String {
        let (lease, token, task) = (claimed.lease.id.0, claimed.lease.token.0, claimed.task.id.0);
        let call = "select settle($1, $2, $3, $4, $5)";
        let session = worker.session().0;
        let parameters: &Parameters<'_> = &[&session, &lease, &token, &task, &outcome];
        soon("a settle", self.0.query_one(call, parameters)).await.unwrap().get(0)
    }

    async fn ids(&self, what: &str, call: &str, parameters: &Parameters<'_>) -> Vec<TaskId> {
        let ids: Vec<i64> = soon(what, self.0.query_one(call, parameters)).await.unwrap().get(0);
        ids.into_iter().map(TaskId).collect()
    }

    async fn enqueue(&self, lane: &str) -> TaskId {
        let call = "select enqueue(kind => 'work', lane => $1)";
        TaskId(soon("an enqueue waits for nobody", self.0.query_one(call, &[&lane])).await.unwrap().get(0))
    }

    async fn commit(self) {
        self.run("commit").await;
    }

    async fn rollback(self) {
        self.run("rollback").await;
    }
}

// Falling asleep: the fence, the look after the write, and who is told.

#[tokio::test]
async fn the_fence_waits_for_an_enqueue_that_could_not_see_the_sleeper() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    // The announcement has an id and is not committed; the enqueuer gets the next id and sees nobody.
    let announcing = trap.begin().await;
    announcing.0.execute("select fall_asleep($1, '{default}', 60000)", &[&worker.session().0]).await.unwrap();
    let enqueuer = trap.begin().await;
    enqueuer.enqueue("a").await;
    announcing.commit().await;
    let fence: i64 = trap.begin().await.0.query_one("select fence()", &[]).await.unwrap().get(0);
    let fence = Fence(fence as u64);

    let passed_early = trap.store.fence_passed(fence).await.unwrap();
    enqueuer.commit().await;

    assert!(!passed_early, "the worker would sleep while a silent enqueue is open");
    until("the fence is passed", async || trap.store.fence_passed(fence).await.unwrap()).await;
    assert!(trap.is_claimable().await);
}

#[tokio::test]
async fn an_enqueue_looks_for_sleepers_after_it_has_written() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let mut notified = trap.listen().await;
    // The gate: the enqueue has written and has an id, and cannot read who sleeps.
    let gate = trap.begin().await;
    gate.run("lock table sleeper in access exclusive mode").await;
    gate.0.execute("select fall_asleep($1, '{default}', 60000)", &[&worker.session().0]).await.unwrap();
    let store = trap.store.clone();
    let enqueuing = tokio::spawn(async move { store.enqueue(a_task().into()).await.unwrap() });
    trap.until_somebody_waits().await;

    gate.commit().await;

    soon("the enqueue", enqueuing).await.unwrap();
    let hint = soon("the hint", notified.recv()).await.unwrap();
    assert!(hint.contains("default"), "{hint}");
}

#[tokio::test]
async fn an_enqueue_above_read_committed_tells_everybody() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let mut notified = trap.listen().await;
    let application = trap.begin().await;
    application.run("set transaction isolation level repeatable read").await;
    application.run("select 1 from task").await;
    // Its snapshot is older than the announcement.
    trap.fall_asleep(&worker).await;

    application.enqueue("a").await;
    application.commit().await;

    let hint = soon("the hint", notified.recv()).await.unwrap();
    assert!(hint.ends_with('*'), "{hint}");
}

#[tokio::test]
async fn all_sleepers_are_told_and_a_dead_one_only_for_as_long_as_it_meant_to_sleep() {
    let trap = Trap::set().await;
    let [dead, alive] = [trap.worker().await, trap.worker().await];
    let mut notified = trap.listen().await;
    trap.fall_asleep(&dead).await;
    trap.fall_asleep(&alive).await;

    trap.enqueue(a_task()).await;
    let hint = soon("the hint", notified.recv()).await.unwrap();
    assert!(hint.starts_with("2\t"), "both are told: {hint}");

    trap.store.wake_up(alive.session()).await.unwrap();
    let client = trap.database.connect().await.unwrap();
    client
        .batch_execute("update laneway.sleeper set idle_until = now() - interval '1 second'")
        .await
        .unwrap();
    trap.enqueue(a_task()).await;
    client.batch_execute(r#"notify "laneway:laneway", 'the next'"#).await.unwrap();
    assert_eq!(soon("a notification", notified.recv()).await.unwrap(), "the next");
}

#[tokio::test]
async fn a_retry_hints_a_sleeper_that_would_oversleep_it() {
    let trap = Trap::set().await;
    trap.enqueue(a_task()).await;
    let mut busy = trap.worker().await;
    let claimed = busy.claim_one().await;
    let sleeper = trap.worker().await;
    trap.fall_asleep(&sleeper).await;
    let mut notified = trap.listen().await;

    // Its worker may be full, or stop, before the task is due.
    busy.settle(&claimed, retry_after(secs(5))).await;

    let hint = soon("the hint", notified.recv()).await.unwrap();
    assert!(hint.contains("default"), "{hint}");
}

#[tokio::test]
async fn a_delayed_task_hints_nobody_who_wakes_before_it() {
    let trap = Trap::set().await;
    let sleeper = trap.worker().await;
    trap.fall_asleep(&sleeper).await;
    let mut notified = trap.listen().await;

    trap.enqueue(a_task().delay(secs(3600))).await;
    trap.enqueue(a_task().delay(secs(30))).await;

    soon("the hint", notified.recv()).await.unwrap();
    let client = trap.database.connect().await.unwrap();
    client.batch_execute(r#"notify "laneway:laneway", 'the next'"#).await.unwrap();
    assert_eq!(soon("a notification", notified.recv()).await.unwrap(), "the next");
}

// "Nothing claimed" does not mean "nothing there".

#[tokio::test]
async fn a_task_that_another_claim_holds_is_claimable_still() {
    let trap = Trap::set().await;
    let (rival, mut worker) = (trap.worker().await, trap.worker().await);
    for task in [a_task(), a_task().lane("a")] {
        let id = trap.enqueue(task).await;
        let holding = trap.begin().await;
        assert_eq!(holding.claim(rival.session().0, 1, 1).await, [id]);

        assert_eq!(ids(&soon("a claim", worker.claim(1)).await), []);
        assert!(trap.is_claimable().await, "the rival may roll back");

        holding.rollback().await;
        assert_eq!(trap.work_off(&mut worker).await, [id]);
    }
    trap.check().await;
}

#[tokio::test]
async fn a_mark_whose_lane_is_locked_is_claimable() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    trap.enqueue(a_task().lane("a")).await;
    trap.work_off(&mut worker).await;
    let locking = trap.begin().await;
    locking.run("select from lane for update").await;

    let id = trap.enqueue(a_task().lane("a")).await;
    assert_eq!(ids(&soon("a claim", worker.claim(1)).await), []);
    assert!(trap.is_claimable().await);

    locking.rollback().await;
    assert_eq!(trap.work_off(&mut worker).await, [id]);
    trap.check().await;
}

/// The retiring worker has looked for the last time and hints nobody; if the others slept now, the task would wait for a
/// poll.
#[tokio::test]
async fn a_mark_whose_lane_is_giving_up_its_last_turn_is_claimable() {
    for priority in [0, -10] {
        let trap = Trap::set().await;
        let (retiring, last) = trap.running("a").await;
        let open = trap.begin().await;
        assert_eq!(open.complete_and_claim(&retiring, &last, 1).await, []);

        let id = trap.enqueue(a_task().lane("a").priority(priority)).await;
        let mut worker = trap.worker().await;
        assert_eq!(ids(&soon("a claim", worker.claim(1)).await), []);
        assert!(trap.is_claimable().await, "with priority {priority}");

        open.commit().await;
        assert_eq!(trap.work_off(&mut worker).await, [id]);
        trap.check().await;
    }
}

/// The other side of it: who waits for a busy lane may sleep.
#[tokio::test]
async fn tasks_behind_a_busy_lane_are_not_claimable() {
    let trap = Trap::set().await;
    let (_busy, _running) = trap.running("a").await;
    let mut worker = trap.worker().await;

    trap.enqueue(a_task().lane("a")).await;
    trap.enqueue(a_task().lane("a").priority(-10)).await;
    assert_eq!(ids(&worker.claim(1).await), []);

    assert!(!trap.is_claimable().await);
}

// Turns: none is lost, none is too many.

#[tokio::test]
async fn a_task_enqueued_while_its_lanes_turn_is_being_retired_is_found() {
    let trap = Trap::set().await;
    let (retiring, last) = trap.running("a").await;
    let open = trap.begin().await;
    assert_eq!(open.complete_and_claim(&retiring, &last, 1).await, []);

    let id = trap.enqueue(a_task().lane("a")).await;
    let mut worker = trap.worker().await;
    assert_eq!(ids(&soon("a claim", worker.claim(1)).await), [], "the lane is locked");
    open.commit().await;

    assert_eq!(trap.work_off(&mut worker).await, [id]);
    trap.check().await;
}

#[tokio::test]
async fn a_turn_is_not_retired_when_a_task_arrived_after_the_lane_looked_empty() {
    let trap = Trap::set().await;
    let (worker, last) = trap.running("a").await;
    let finishing = trap.begin().await;
    finishing.settle(&worker, &last, "completed").await;
    finishing.commit().await;
    // A claim has the lane's turn and has found nothing for it.
    let claiming = trap.begin().await;
    claiming.run("select from turn for update").await;
    let seen: i64 = claiming.0.query_one("select count(*) from task", &[]).await.unwrap().get(0);
    assert_eq!(seen, 0);

    // Meanwhile a task arrives and its mark is taken up: the lane has its turn, so none is issued.
    let id = trap.enqueue(a_task().lane("a")).await;
    let rival = trap.begin().await;
    rival.run("select take_up_all('default', 10)").await;
    rival.commit().await;
    claiming.run("delete from turn").await;
    claiming
        .run("select retire('default', array(select id from lane), array[0::smallint], array[null::bigint])")
        .await;
    claiming.commit().await;

    let mut worker = trap.worker().await;
    assert_eq!(trap.work_off(&mut worker).await, [id]);
    trap.check().await;
}

/// A claim reads which turns wait for a task, and then looks at these tasks, in two statements.
#[tokio::test]
async fn a_turn_is_kept_when_the_task_that_it_waits_for_is_cancelled_while_a_claim_looks_at_it() {
    const HOLD_UP: &str = r#"
        alter function laneway.look_bound rename to look_bound_then;
        create function laneway.look_bound(
            p_kinds text[], p_lanes bigint[], p_bound bigint[], p_fates "char"[], p_waited bigint[],
            out places bigint[], out tids tid[], out heads smallint[], out stay bigint[], out over bigint[], out paced bigint[]
        ) language plpgsql as $$
        begin
            perform pg_advisory_xact_lock(1);
            select * into places, tids, heads, stay, over, paced from look_bound_then(p_kinds, p_lanes, p_bound, p_fates, p_waited);
        end $$"#;
    for limit in [1, 3] {
        let trap = Trap::set().await;
        let (mut first, mut second) = (trap.worker().await, trap.worker().await);
        let tasks = trap.enqueue_all(tasks_like(a_task().lane_of("a", limit), 2)).await;
        let claimed = first.claim_one().await;
        first.settle(&claimed, Outcome::GivenBack).await;
        let holding_up = trap.begin().await;
        holding_up.run("select pg_advisory_xact_lock(1)").await;
        trap.database.connect().await.unwrap().batch_execute(HOLD_UP).await.unwrap();

        let claiming = tokio::spawn(async move { ids(&second.claim(1).await) });
        trap.until_somebody_waits().await;
        assert_eq!(trap.store.cancel(tasks[0]).await.unwrap(), Cancel::Cancelled);
        holding_up.commit().await;
        let started = claiming.await.unwrap();
        trap.check().await;

        // What that claim did not start, the next one does.
        assert_eq!([started, trap.work_off(&mut first).await].concat(), tasks[1..], "limit {limit}");
    }
}

/// Such turns come to be when one that is bound to a task is parked, and the task, taken by another turn, is given back.
#[tokio::test]
async fn two_turns_that_are_bound_to_one_task_are_both_of_use() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let tasks = trap.enqueue_all(tasks_like(a_task().lane_of("a", 2), 3)).await;
    let claimed = worker.claim(2).await;
    assert_eq!(ids(&claimed), tasks[..2]);
    let given_back = claimed.iter().map(|claimed| claimed.settle(Outcome::GivenBack)).collect();
    worker.settle_all(given_back).await;
    let bind = trap.begin().await;
    bind.run(&format!("update turn set task_id = {} where task_id = {}", tasks[0], tasks[1])).await;
    bind.commit().await;

    let mut started = worker.claim(2).await;
    assert!(ids(&started).contains(&tasks[0]));
    trap.check().await;
    started.extend(worker.claim(2).await);

    assert_eq!(started.len(), 2, "one turn is lost, or there is one too many");
    worker.complete(&started).await;
    trap.check().await;
    assert_eq!(trap.work_off(&mut worker).await.len(), 1);
}

/// A claim finds that a turn stands too far in front and moves it back, just when a task comes that needs it there.
#[tokio::test]
async fn an_urgent_task_moves_a_turn_up_that_another_claim_is_moving_back() {
    let trap = Trap::set().await;
    let (first, mut second) = (trap.worker().await, trap.worker().await);
    trap.turn_in_front("a").await;
    let other = trap.enqueue(a_task().lane("b").priority(3)).await;
    let claiming = trap.begin().await;
    assert_eq!(claiming.claim(first.session().0, 1, 1).await, [other]);

    let urgent = trap.enqueue(a_task().lane("a").priority(0)).await;
    trap.next_but_one(&mut second, ["c", "d"], claiming, urgent).await;
}

/// A claim that cannot run a task keeps the turn that is bound to it.
#[tokio::test]
async fn a_task_is_moved_up_when_no_claim_holds_its_turn() {
    let trap = Trap::set().await;
    let (mut worker, claimed) = trap.running("a").await;
    worker.settle(&claimed, Outcome::GivenBack).await;
    let claiming = trap.begin().await;
    claiming.run("select from turn where task_id is not null for update").await;
    let (me, task) = (Actor::program(), claimed.task.id);
    let up = || trap.store.act(&me, Action::SetPriority(-5), std::slice::from_ref(&task));

    let busy = Acted::Skipped(Skip::Busy);
    assert_eq!(soon("an answer", up()).await.unwrap(), [busy]);
    let edit = Edit { payload: None, priority: Some(-5) };
    assert_eq!(soon("an answer", trap.store.edit(&me, task, edit)).await.unwrap(), busy);
    claiming.commit().await;

    assert_eq!(up().await.unwrap(), [Acted::Done]);
    let place = "do $$ begin assert -5 = (select priority from turn where task_id is not null); end $$";
    trap.begin().await.run(place).await;
    trap.check().await;
}

/// A claim counts on a turn that stands in front, for an urgent task that came due in its own transaction; another moves it back.
#[tokio::test]
async fn an_urgent_task_that_just_came_due_moves_a_turn_up_that_another_claim_moves_back() {
    let trap = Trap::set().await;
    let (first, mut second) = (trap.worker().await, trap.worker().await);
    trap.turn_in_front("a").await;
    let urgent = trap.enqueue(a_task().lane("a").priority(0).delay(secs(60))).await;
    let clock = trap.begin().await;
    clock.run("update later set due_at = clock()").await;
    clock.commit().await;
    let most_urgent = trap.enqueue(a_task().lane("y").priority(-5)).await;
    let claiming = trap.begin().await;
    assert_eq!(claiming.claim(first.session().0, 1, 1).await, [most_urgent]);

    trap.next_but_one(&mut second, ["b", "c"], claiming, urgent).await;
}

/// That many turns stand in front for urgent tasks is counted, and no more.
#[tokio::test]
async fn a_claim_keeps_no_turns_of_a_wide_lane_that_it_only_counts() {
    let trap = Trap::set().await;
    let (first, mut second) = (trap.worker().await, trap.worker().await);
    let lane = || a_task().lane_of("a", 40);
    for (tasks, priority) in [(3, 5), (60, 0)] {
        trap.enqueue_all(tasks_like(lane().priority(priority), tasks)).await;
        trap.take_up().await;
    }
    trap.enqueue(lane()).await;
    let claiming = trap.begin().await;
    assert_eq!(claiming.claim(first.session().0, 8, 1).await.len(), 1); // every eighth looks for what has come

    assert_eq!(second.claim(20).await.len(), 20);
    claiming.commit().await;
    trap.check().await;
}

/// A failure halts a lane by a row that an operator, who has just said that failures should not, cannot see yet.
#[tokio::test]
async fn a_failure_in_a_lane_that_is_just_told_not_to_halt_stops_nobody() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let set = async |on_failure| {
        let settings = LaneSettings { on_failure: Some(on_failure), ..Default::default() };
        trap.store.set_lane(&QueueName::default(), &lane_key("a"), settings).await.unwrap();
    };
    let tasks = trap.enqueue_all(tasks_like(a_task().lane_of("a", 2), 3)).await;
    set(OnFailure::Halt).await;
    let claimed = worker.claim(2).await;
    let failing = trap.begin().await;
    assert_eq!(failing.settle(&worker, &claimed[0], "failed").await, "failed");

    set(OnFailure::Continue).await;
    failing.commit().await;
    worker.settle(&claimed[1], Outcome::GivenBack).await;

    assert!(trap.is_claimable().await);
    let why = trap.store.why(tasks[2]).await.unwrap().unwrap();
    assert!(!format!("{why:?}").contains("Halted"), "{why:?}");
    let mut rest = trap.work_off(&mut worker).await;
    rest.sort_unstable();
    assert_eq!(rest, tasks[1..]);
}

#[tokio::test]
async fn a_settle_in_the_applications_transaction_strands_nothing() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let trap = Trap::set().await;
        let (worker, last) = trap.running("a").await;
        let application = trap.begin().await;
        application.run(&format!("set transaction isolation level {isolation}; select from task")).await;

        // Its snapshot may be older than this task.
        let id = trap.enqueue(a_task().lane("a")).await;
        assert_eq!(application.settle(&worker, &last, "completed").await, "completed");
        let mut other = trap.worker().await;
        assert_eq!(ids(&soon("a claim", other.claim(1)).await), []);
        application.commit().await;

        assert_eq!(trap.work_off(&mut other).await, [id], "{isolation}");
        trap.check().await;
    }
}

#[tokio::test]
async fn only_missing_turns_are_issued() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    trap.enqueue_all(tasks_like(a_task().lane_of("a", 3), 3)).await;
    let first = worker.claim(3).await;
    // One goes on running, two turns are retired.
    worker.complete(&first[1..]).await;
    assert_eq!(worker.claim(3).await.len(), 0);

    trap.enqueue_all(tasks_like(a_task().lane_of("a", 3), 5)).await;
    trap.enqueue(a_task().lane_of("a", 3)).await;
    let [first_take_up, second_take_up] = [trap.begin().await, trap.begin().await];
    first_take_up.run("select take_up_all('default', 10)").await;
    second_take_up.run("select take_up_all('default', 10)").await;
    first_take_up.commit().await;
    second_take_up.commit().await;

    let mut others = [trap.worker().await, trap.worker().await, trap.worker().await];
    let mut running = 1;
    for other in &mut others {
        running += other.claim(2).await.len();
    }
    assert_eq!(running, 3);
    trap.check().await;
}

#[tokio::test]
async fn two_open_claims_do_not_exceed_a_limit_together() {
    let trap = Trap::set().await;
    let [one, other] = [trap.worker().await, trap.worker().await];
    trap.enqueue_all(tasks_like(a_task().lane_of("a", 3), 9)).await;

    let [first, second] = [trap.begin().await, trap.begin().await];
    let running =
        first.claim(one.session().0, 1, 2).await.len() + second.claim(other.session().0, 1, 5).await.len();
    first.commit().await;
    second.commit().await;
    let more = trap.worker().await.claim(9).await.len();

    assert!(running <= 3, "{running} in two open claims");
    assert_eq!(running + more, 3);
    trap.check().await;
}

#[tokio::test]
async fn a_lower_limit_waits_for_open_claims_and_binds_all_later_ones() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    trap.enqueue_all(tasks_like(a_task().lane_of("a", 3), 9)).await;
    let claiming = trap.begin().await;
    let started = claiming.claim(worker.session().0, 1, 3).await;
    assert_eq!(started.len(), 3);

    let store = trap.store.clone();
    let lowering = tokio::spawn(async move {
        let settings = LaneSettings { limit: Some(laneway_core::LaneLimit::ONE), ..Default::default() };
        store.set_lane(&QueueName::default(), &lane_key("a"), settings).await.unwrap();
    });
    // It waits for the lane's row or for the turns, or finds both free; in any case it must not go wrong.
    tokio::task::yield_now().await;
    claiming.commit().await;
    soon("the new limit", lowering).await.unwrap();

    // What ran goes on; the lane goes down to one as the three end.
    let again =
        worker.advance(|advance| Advance { number: 1, again: true, ..advance.claim(queue("default"), 3) });
    let running = again.await.claimed;
    assert_eq!(ids(&running), started);
    let mut next = trap.worker().await;
    for one in &running[..2] {
        worker.settle(one, Outcome::completed()).await;
        assert_eq!(next.claim(3).await.len(), 0, "two or one of the three still run");
    }
    worker.settle(&running[2], Outcome::completed()).await;
    assert_eq!(next.claim(3).await.len(), 1);
    trap.check().await;
}

// Order in lanes of limit 1.

#[tokio::test]
async fn a_locked_head_stops_an_ordered_lane() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let tasks = trap.enqueue_all(tasks_like(a_task().lane("a"), 2)).await;
    let locking = trap.begin().await;
    locking.run(&format!("select from task where id = {} for update", tasks[0])).await;

    assert_eq!(ids(&soon("a claim", worker.claim(2)).await), []);
    locking.rollback().await;

    assert_eq!(trap.work_off(&mut worker).await, tasks);
    trap.check().await;
}

#[tokio::test]
async fn a_head_that_is_being_cancelled_stops_an_ordered_lane_until_that_is_decided() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let tasks = trap.enqueue_all(tasks_like(a_task().lane("a"), 2)).await;
    let cancelling = trap.begin().await;
    cancelling.run(&format!("select cancel({})", tasks[0])).await;

    assert_eq!(ids(&soon("a claim", worker.claim(2)).await), []);
    cancelling.commit().await;

    assert_eq!(trap.work_off(&mut worker).await, tasks[1..]);
    trap.check().await;
}

#[tokio::test]
async fn a_task_that_comes_back_is_not_overtaken_by_one_with_a_lower_id_that_was_committed_late() {
    for way in ["retry", "snooze", "give-back", "stop", "death"] {
        let trap = Trap::set().await;
        let late = trap.begin().await;
        let lower = late.enqueue("a").await;
        let higher = trap.enqueue(a_task().lane("a")).await;
        let mut worker = trap.worker().await;
        let claimed = worker.claim_one().await;
        assert_eq!(claimed.task.id, higher);

        late.commit().await;
        match way {
            "retry" => _ = worker.settle(&claimed, retry_after(Duration::ZERO)).await,
            "snooze" => _ = worker.settle(&claimed, Outcome::Snooze { after: Duration::ZERO }).await,
            "give-back" => _ = worker.settle(&claimed, Outcome::GivenBack).await,
            "stop" => worker.deregister().await,
            _ => {
                trap.let_time_pass(&worker).await;
                assert_eq!(trap.store.sweep().await.unwrap().given_back, 1);
            }
        }

        let mut next = trap.worker().await;
        assert_eq!(trap.work_off(&mut next).await, [higher, lower], "{way}");
        trap.check().await;
    }
}

#[tokio::test]
async fn a_lower_id_that_is_committed_late_does_not_run_beside_a_higher_one() {
    let trap = Trap::set().await;
    let late = trap.begin().await;
    let lower = late.enqueue("a").await;
    let higher = trap.enqueue(a_task().lane("a")).await;
    let mut worker = trap.worker().await;
    let running = worker.claim(2).await;
    assert_eq!(ids(&running), [higher]);

    late.commit().await;

    assert_eq!(ids(&trap.worker().await.claim(2).await), []);
    worker.complete(&running).await;
    assert_eq!(ids(&worker.claim(2).await), [lower]);
}

/// A step while looks from the beginning are slow: completes a lease of one task, claims one task from its bound, and returns
/// the new lease.
const SLOW_STEP: &str = "
create function public.slow_step(p_session uuid, p_number bigint, inout lease bigint, inout token uuid, inout task bigint)
language sql volatile as $$
    select a.lease_id, a.token, a.task_ids[1]
    from laneway.advance(
        p_session, p_number, false,
        array_remove(array[lease], null), array_remove(array[token], null), array[-1],
        array['completed'], array[0], array[null]::text[], array[null]::text[], array[task],
        array['default'], array[1], array[null]::text[], array[null]::text[],
        array[-32768, 0, -32768, -9223372036854775807]
    ) a
    where a.lease_id is not null
$$;";

#[tokio::test]
async fn a_lower_id_that_is_committed_late_stays_in_front_of_what_is_enqueued_after_it() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let client = trap.database.connect().await.unwrap();
    client.batch_execute(SLOW_STEP).await.unwrap();
    let late = trap.begin().await;
    let lower = late.enqueue("a").await;
    let first = trap.enqueue(a_task().lane("a")).await;
    let second = trap.enqueue(a_task().lane("a")).await;

    let mut ran = vec![];
    let mut lease: (Option<i64>, Option<Uuid>, Option<i64>) = (None, None, None);
    let mut late = Some(late);
    let mut third = None;
    for number in 1..=4_i64 {
        let parameters: &Parameters<'_> = &[&worker.session().0, &number, &lease.0, &lease.1, &lease.2];
        let call = "select * from slow_step($1, $2, $3, $4, $5)";
        let row = soon("a step", client.query_one(call, parameters)).await.unwrap();
        lease = (row.get(0), row.get(1), row.get(2));
        ran.push(TaskId(lease.2.expect("there is a task to claim")));
        if let Some(late) = late.take() {
            // The lane has run its first task; only now can the lower one be seen, and then another is enqueued.
            late.commit().await;
            third = Some(trap.enqueue(a_task().lane("a")).await);
        }
    }

    // The second one was enqueued before the lower one was committed, so no order is promised between these two.
    let place = |id| ran.iter().position(|ran| *ran == id).expect("every task ran");
    assert_eq!((ran.len(), place(first)), (4, 0));
    assert!(place(lower) < place(third.expect("it was enqueued")), "{ran:?}");
    assert!(place(second) < place(third.expect("it was enqueued")), "{ran:?}");
    trap.check().await;
}

/// While looks are slow, a turn with nothing behind its lane's last task is given up without a look from the beginning. Giving up
/// looks there, and finds the task.
#[tokio::test]
async fn a_lower_id_that_is_committed_late_is_found_though_nothing_comes_behind_the_last_task() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let client = trap.database.connect().await.unwrap();
    client.batch_execute(SLOW_STEP).await.unwrap();
    let late = trap.begin().await;
    let lower = late.enqueue("a").await;
    let higher = trap.enqueue(a_task().lane("a")).await;
    let call = "select * from slow_step($1, $2, $3, $4, $5)";
    let nothing: (Option<i64>, Option<Uuid>, Option<i64>) = (None, None, None);
    let parameters: &Parameters<'_> = &[&worker.session().0, &1_i64, &nothing.0, &nothing.1, &nothing.2];
    let row = client.query_one(call, parameters).await.unwrap();
    let lease: (Option<i64>, Option<Uuid>, Option<i64>) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(lease.2, Some(higher.0));

    late.commit().await;
    let parameters: &Parameters<'_> = &[&worker.session().0, &2_i64, &lease.0, &lease.1, &lease.2];
    client.query(call, parameters).await.unwrap();

    assert!(trap.store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap());
    assert_eq!(ids(&worker.claim(1).await), [lower]);
    trap.check().await;
}

/// Turns know the last task of their lane only if all that are written together do. A list of lanes beside a shorter list
/// of last tasks made a claim take one lane's last task for another's, and pass over what came first.
#[tokio::test]
async fn a_whole_lease_and_a_single_task_that_end_together_leave_turns_that_agree() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let client = trap.database.connect().await.unwrap();
    for lane in ["a", "b", "b", "c"] {
        trap.enqueue(a_task().lane(lane)).await;
    }
    let session = worker.session().0;
    let claim = "select lease_id, token, task_ids from laneway.advance($1, $2, false, '{}', '{}', '{}', '{}', '{}', '{}',
        '{}', '{}', array['default'], array[$3::int], array[null], array[null],
        array[-32768, 0, -32768, -9223372036854775807]) where lease_id is not null";
    let whole = client.query_one(claim, &[&session, &1_i64, &1_i32]).await.unwrap();
    let shared = client.query_one(claim, &[&session, &2_i64, &2_i32]).await.unwrap();
    // A mark, for which every eighth advance puts freed turns into the line.
    let last = trap.enqueue(a_task().lane("d")).await;

    let settle = "select count(*) from laneway.advance($1, 8, false, array[$2::bigint, $4], array[$3::uuid, $5],
        array[null, ($7::bigint[])[1]], array['completed', 'completed'], array[0, 0], array[null, null]::text[],
        array[null, null]::text[], $6, array['default'], array[1], array[null], array[null],
        array[-32768, 0, -32768, -9223372036854775807])";
    let (lease, token, tasks): (i64, Uuid, Vec<i64>) = (whole.get(0), whole.get(1), whole.get(2));
    let (other, other_token, others): (i64, Uuid, Vec<i64>) = (shared.get(0), shared.get(1), shared.get(2));
    client
        .query_one(settle, &[&session, &lease, &token, &other, &other_token, &tasks, &others])
        .await
        .unwrap();

    let ended = trap.store.get(TaskId(others[0])).await.unwrap().unwrap();
    assert_eq!(ended.state, State::Completed);
    assert!(!trap.store.get(last).await.unwrap().unwrap().state.has_ended());
    trap.check().await;
}

/// A claim that starts where the last one stopped passes over what came back behind it. It must not pass over anything else.
#[tokio::test]
async fn a_claim_from_a_bound_sees_what_is_more_urgent_and_what_has_a_lane() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let client = trap.database.connect().await.unwrap();
    let [behind, bound, next] =
        [trap.enqueue(a_task()).await, trap.enqueue(a_task()).await, trap.enqueue(a_task()).await];
    let mut number = 0_i64;
    let mut claim = async |position: Option<Vec<i64>>| {
        number += 1;
        let claim = "select task_ids, bounds from laneway.advance($1, $2, false, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
            array['default'], array[1], array[null], array[null], $3) where task_ids is not null";
        let row = client.query_opt(claim, &[&worker.session().0, &number, &position]).await.unwrap();
        row.map(|row| TaskId(row.get::<_, Vec<i64>>(0)[0]))
    };
    let position = Some(vec![0, bound.0, -32768, -9_223_372_036_854_775_807]);

    assert_eq!(claim(position.clone()).await, Some(next));
    assert_eq!(claim(position.clone()).await, None);
    let urgent = trap.enqueue(a_task().priority(-1)).await;
    assert_eq!(claim(position.clone()).await, Some(urgent));
    let laned = trap.enqueue(a_task().lane("a")).await;
    assert_eq!(claim(position.clone()).await, Some(laned));
    let later = trap.enqueue(a_task().priority(5)).await;
    assert_eq!(claim(position).await, Some(later));
    assert_eq!(claim(None).await, Some(behind));
    assert_eq!(claim(None).await, Some(bound));
    trap.check().await;
}

#[tokio::test]
async fn ids_are_handed_out_one_by_one() {
    let trap = Trap::set().await;
    let client = trap.database.connect().await.unwrap();

    let cached = "select max(seqcache) from pg_sequence where seqrelid::regclass::text in
                  ('laneway.task_id_seq', 'laneway.turn_seq')";
    let cached: i64 = client.query_one(cached, &[]).await.unwrap().get(0);

    assert_eq!(cached, 1, "a session would hand out old ids after newer ones have been committed");
}

// Leases that nobody owns, and settles that come twice.

#[tokio::test]
async fn a_claim_that_commits_after_its_session_was_swept_is_found() {
    let trap = Trap::set().await;
    let slow = trap.worker().await;
    let id = trap.enqueue(a_task().lane("a")).await;
    let claiming = trap.begin().await;
    assert_eq!(claiming.claim(slow.session().0, 1, 1).await, [id]);
    trap.let_time_pass(&slow).await;
    assert_eq!(trap.store.sweep().await.unwrap().sessions, 1);

    claiming.commit().await;

    assert_eq!(trap.store.sweep().await.unwrap().given_back, 1);
    assert_eq!(trap.work_off(&mut trap.worker().await).await, [id]);
    trap.check().await;
}

#[tokio::test]
async fn a_lease_that_a_sweep_could_not_lock_is_found_by_the_next() {
    let trap = Trap::set().await;
    let (worker, claimed) = trap.running("a").await;
    let settling = trap.begin().await;
    settling.settle(&worker, &claimed, "completed").await;
    trap.let_time_pass(&worker).await;

    let swept = soon("a sweep waits for nobody", trap.store.sweep()).await.unwrap();
    assert_eq!((swept.sessions, swept.given_back), (1, 0));
    settling.rollback().await;

    assert_eq!(trap.store.sweep().await.unwrap().given_back, 1);
    assert_eq!(trap.work_off(&mut trap.worker().await).await, [claimed.task.id]);
    trap.check().await;
}

#[tokio::test]
async fn two_open_sweeps_give_a_task_back_once() {
    let trap = Trap::set().await;
    let (worker, claimed) = trap.running("a").await;
    trap.let_time_pass(&worker).await;
    let [first, second] = [trap.begin().await, trap.begin().await];

    first.run("select sweep()").await;
    second.run("select sweep()").await;
    first.commit().await;
    second.commit().await;

    assert_eq!(trap.store.get(claimed.task.id).await.unwrap().unwrap().crashes, 1);
    assert_eq!(trap.work_off(&mut trap.worker().await).await, [claimed.task.id]);
    trap.check().await;
}

#[tokio::test]
async fn a_renewal_gives_back_a_lost_answer_and_leaves_a_claim_alone_that_is_under_way() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    trap.enqueue(a_task().lane("a")).await;
    let claiming = trap.begin().await;
    claiming.claim(worker.session().0, 7, 1).await;
    let renew = async |advance_number| {
        let renewal = Renewal {
            session: worker.session(),
            capacity: Capacity::default(),
            leases: vec![],
            advance_number,
        };
        match soon("a renewal", trap.store.renew(renewal)).await.unwrap() {
            Renewed::Alive(orders) => orders.given_back,
            Renewed::Lost => panic!("the session lives"),
        }
    };

    assert_eq!(renew(6).await, 0);
    claiming.commit().await;
    assert_eq!(renew(6).await, 0, "its answer may be on the way");
    assert_eq!(renew(7).await, 1);
    trap.check().await;
}

#[tokio::test]
async fn a_second_settle_waits_for_the_first_and_then_changes_nothing() {
    let trap = Trap::set().await;
    let (mut worker, claimed) = trap.running("a").await;
    let next = trap.enqueue(a_task().lane("a")).await;
    let first = trap.begin().await;
    assert_eq!(first.settle(&worker, &claimed, "completed").await, "completed");
    let task = claimed.task.id;
    let second =
        tokio::spawn(async move { worker.settle(&claimed, Outcome::Failed { error: "no".into() }).await });
    trap.until_somebody_waits().await;

    first.commit().await;

    assert_eq!(soon("the second settle", second).await.unwrap(), Verdict::Stale);
    assert_eq!(trap.store.get(task).await.unwrap().unwrap().state, State::Completed);
    assert_eq!(ids(&trap.worker().await.claim(2).await), [next], "one turn came back, not two");
    trap.check().await;
}

#[tokio::test]
async fn a_second_settle_of_a_lease_with_open_tasks_is_told_that_it_was_recorded_already() {
    let trap = Trap::set().await;
    let tasks =
        trap.enqueue_all(vec![a_task().lane_of("a", 2), a_task().lane_of("a", 2), a_task().lane("a")]).await;
    let mut worker = trap.worker().await;
    let claimed = worker.claim(2).await;
    let first = trap.begin().await;
    first.settle(&worker, &claimed[0], "failed").await;
    let session = worker.session();
    let (again, store) = (claimed[0].settle(Outcome::completed()), trap.store.clone());
    let second =
        tokio::spawn(
            async move { store.advance(Advance::new(session, 2).settle(again)).await.unwrap().settled },
        );
    trap.until_somebody_waits().await;

    first.commit().await;

    assert_eq!(soon("the second settle", second).await.unwrap()[0].verdict, Verdict::Already);
    assert_eq!(trap.store.get(tasks[0]).await.unwrap().unwrap().state, State::Failed);
    assert_eq!(ids(&worker.claim(5).await), [tasks[2]], "one turn came back, not two");
    trap.check().await;
}

#[tokio::test]
async fn a_settle_after_one_that_was_rolled_back_counts() {
    let trap = Trap::set().await;
    let (mut worker, claimed) = trap.running("a").await;
    let first = trap.begin().await;
    first.settle(&worker, &claimed, "completed").await;
    let second = tokio::spawn(async move { worker.settle(&claimed, Outcome::completed()).await });
    trap.until_somebody_waits().await;

    first.rollback().await;

    assert_eq!(soon("the second settle", second).await.unwrap(), Verdict::Completed);
    trap.check().await;
}

#[tokio::test]
async fn an_open_settle_holds_up_only_its_own_lease_when_its_kind_is_leased_alone() {
    let trap = Trap::set().await;
    let tasks = trap.enqueue_all(vec![a_task().kind("pay"), a_task(), a_task().kind("pay"), a_task()]).await;
    let mut worker = trap.worker().await;
    let claim = Claim { queue: queue("default"), max: 4, kinds: Kinds::All, alone: vec![kind("pay")] };
    let claimed = worker.advance(|advance| Advance { claims: vec![claim], ..advance }).await.claimed;
    assert_eq!(ids(&claimed), tasks);
    let application = trap.begin().await;
    application.settle(&worker, &claimed[0], "completed").await;

    soon("the neighbours' settles", worker.complete(&claimed[1..])).await;
    application.commit().await;

    assert_eq!(trap.store.get(tasks[0]).await.unwrap().unwrap().state, State::Completed);
    trap.check().await;
}

// Nobody waits who should not.

#[tokio::test]
async fn two_lanes_retired_and_taken_up_in_opposite_order_deadlock_nobody() {
    let trap = Trap::set().await;
    let (first_worker, last_of_a) = trap.running("a").await;
    let (second_worker, last_of_b) = trap.running("b").await;
    let [first, second] = [trap.begin().await, trap.begin().await];
    assert_eq!(first.complete_and_claim(&first_worker, &last_of_a, 1).await, []);
    assert_eq!(second.complete_and_claim(&second_worker, &last_of_b, 1).await, []);

    // Each now takes up a mark of the lane that the other has locked.
    let mut tasks = trap.enqueue_all(vec![a_task().lane("b"), a_task().lane("a")]).await;
    let mut done = first.claim(first_worker.session().0, 50, 5).await;
    done.extend(second.claim(second_worker.session().0, 50, 5).await);
    first.commit().await;
    second.commit().await;

    done.extend(trap.work_off(&mut trap.worker().await).await);
    done.sort();
    tasks.sort();
    assert_eq!(done, tasks);
    trap.check().await;
}

#[tokio::test]
async fn a_claim_does_not_wait_for_another_that_makes_the_same_lane() {
    let trap = Trap::set().await;
    let (rival, mut worker) = (trap.worker().await, trap.worker().await);
    let first = trap.enqueue(a_task().lane("new")).await;
    let making = trap.begin().await;
    assert_eq!(making.claim(rival.session().0, 1, 1).await, [first]);
    let [second, loner] = [trap.enqueue(a_task().lane("new")).await, trap.enqueue(a_task()).await];

    let claimed = soon("a claim waits for nobody", worker.claim(5)).await;
    assert_eq!(ids(&claimed), [loner]);
    making.rollback().await;

    worker.complete(&claimed).await;
    assert_eq!(trap.work_off(&mut worker).await, [first, second]);
    trap.check().await;
}

#[tokio::test]
async fn a_claim_does_not_wait_for_an_operator_who_sets_up_a_lane() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let operator = trap.begin().await;
    operator.run("select set_lane('default', 'new', 3, null, null)").await;
    let (laned, loner) = (trap.enqueue(a_task().lane("new")).await, trap.enqueue(a_task()).await);

    let claimed = soon("a claim waits for nobody", worker.claim(5)).await;
    assert_eq!(ids(&claimed), [loner]);
    operator.commit().await;

    assert_eq!(ids(&worker.claim(5).await), [laned]);
    trap.check().await;
}

#[tokio::test]
async fn an_enqueue_waits_for_nobody() {
    let trap = Trap::set().await;
    let (worker, claimed) = trap.running("a").await;
    let retiring = trap.begin().await;
    retiring.complete_and_claim(&worker, &claimed, 1).await;
    let operator = trap.begin().await;
    operator.run("select set_lane('default', 'b', 3, null, null)").await;
    let other = trap.begin().await;
    other.enqueue("c").await;
    other.enqueue("a").await;

    for lane in ["a", "b", "c"] {
        trap.enqueue(a_task().lane(lane)).await;
    }
    retiring.commit().await;
    operator.commit().await;
    other.commit().await;

    assert_eq!(trap.work_off(&mut trap.worker().await).await.len(), 5);
    trap.check().await;
}

#[tokio::test]
async fn a_lane_set_up_while_a_janitor_removes_it_keeps_its_settings() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    trap.enqueue(a_task().lane("a")).await;
    trap.work_off(&mut worker).await;
    let client = trap.database.connect().await.unwrap();
    client.batch_execute("update laneway.lane set used_at = now() - interval '1 hour'").await.unwrap();
    let janitor = trap.begin().await;
    janitor.run("select remove_idle_lanes(10)").await;

    let store = trap.store.clone();
    let setting = tokio::spawn(async move {
        let limit = Some(laneway_core::LaneLimit::at(3).unwrap());
        let settings = LaneSettings { limit, ..Default::default() };
        store.set_lane(&QueueName::default(), &lane_key("a"), settings).await.unwrap();
    });
    trap.until_somebody_waits().await;
    janitor.commit().await;
    soon("the settings", setting).await.unwrap();

    let key = lane_key("a");
    let lane = trap.store.lane(&QueueName::default(), &key).await.unwrap().expect("the lane was set up");
    assert_eq!(lane.limit, laneway_core::LaneLimit::at(3).unwrap());
}

#[tokio::test]
async fn a_task_that_arrives_while_its_lane_is_removed_is_found() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    trap.enqueue(a_task().lane("a")).await;
    trap.work_off(&mut worker).await;
    let client = trap.database.connect().await.unwrap();
    client.batch_execute("update laneway.lane set used_at = now() - interval '1 hour'").await.unwrap();
    let janitor = trap.begin().await;
    let removed: i32 = janitor.0.query_one("select remove_idle_lanes(10)", &[]).await.unwrap().get(0);
    assert_eq!(removed, 1);

    let id = trap.enqueue(a_task().lane("a")).await;
    assert_eq!(ids(&soon("a claim", worker.claim(1)).await), []);
    assert!(trap.is_claimable().await);
    janitor.commit().await;

    assert_eq!(trap.work_off(&mut worker).await, [id]);
    trap.check().await;
}

// Long transactions of others starve nobody.

#[tokio::test]
async fn urgent_tasks_that_somebody_holds_do_not_keep_lanes_from_running() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let urgent = trap.enqueue_all(tasks_like(a_task().priority(-10), 3)).await;
    let laned = trap.enqueue(a_task().lane("a")).await;
    // An operator cancels them and does not commit for an hour.
    let operator = trap.begin().await;
    for id in &urgent {
        operator.run(&format!("select cancel({id})")).await;
    }

    let claimed = soon("a claim", worker.claim(3)).await;

    assert_eq!(ids(&claimed), [laned]);
}

#[tokio::test]
async fn a_task_that_somebody_holds_does_not_keep_a_wide_lane_from_running() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let tasks = trap.enqueue_all(tasks_like(a_task().lane_of("a", 3), 5)).await;
    let operator = trap.begin().await;
    operator.run(&format!("select cancel({})", tasks[0])).await;

    let mut started = vec![];
    for _ in 0..3 {
        started.extend(ids(&soon("a claim", worker.claim(1)).await));
    }

    assert!(started.len() >= 2, "only {started:?} of the five could start");
}

// The rest.

#[tokio::test]
async fn a_task_that_somebody_updates_by_hand_is_claimed_once() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let tasks = trap.enqueue_all(vec![a_task().lane("a"), a_task().lane("a"), a_task()]).await;
    let editing = trap.begin().await;
    editing.run(r#"update task set payload = '{"edited": true}'"#).await;

    assert_eq!(ids(&soon("a claim", worker.claim(3)).await), []);
    editing.commit().await;

    let mut done = trap.work_off(&mut worker).await;
    done.sort();
    assert_eq!(done, tasks);
    trap.check().await;
}

#[tokio::test]
async fn a_cancel_follows_its_task_into_a_claim() {
    for (end, answer, state) in
        [("commit", Cancel::Requested, State::Leased), ("rollback", Cancel::Cancelled, State::Cancelled)]
    {
        let trap = Trap::set().await;
        let worker = trap.worker().await;
        let id = trap.enqueue(a_task().lane("a")).await;
        let claiming = trap.begin().await;
        claiming.claim(worker.session().0, 1, 1).await;
        let store = trap.store.clone();
        let cancelling = tokio::spawn(async move { store.cancel(id).await.unwrap() });
        trap.until_somebody_waits().await;

        claiming.run(end).await;

        assert_eq!(soon("the cancel", cancelling).await.unwrap(), answer, "{end}");
        assert_eq!(trap.store.get(id).await.unwrap().unwrap().state, state, "{end}");
        trap.check().await;
    }
}

#[tokio::test]
async fn a_cancel_follows_its_task_into_history() {
    let trap = Trap::set().await;
    let (worker, claimed) = trap.running("a").await;
    let settling = trap.begin().await;
    settling.settle(&worker, &claimed, "completed").await;
    let (store, task) = (trap.store.clone(), claimed.task.id);
    let cancelling = tokio::spawn(async move { store.cancel(task).await.unwrap() });
    trap.until_somebody_waits().await;

    settling.commit().await;

    assert_eq!(soon("the cancel", cancelling).await.unwrap(), Cancel::Ended(State::Completed));
    trap.check().await;
}

#[tokio::test]
async fn a_prepared_transaction_may_enqueue_when_it_switches_hints_off() {
    let trap = Trap::set().await;
    let mut worker = trap.worker().await;
    let fence = trap.fall_asleep(&worker).await;
    let client = trap.database.connect().await.unwrap();
    let prepared = format!("laneway_{}", worker.session());

    let loud = client
        .batch_execute(&format!("begin; select laneway.enqueue('work'); prepare transaction '{prepared}'"))
        .await;
    assert!(loud.is_err(), "a hint cannot be prepared");
    client.batch_execute("rollback").await.unwrap();
    client
        .batch_execute(&format!(
            "begin; set local laneway.hint = off; select laneway.enqueue('work'); prepare transaction '{prepared}'"
        ))
        .await
        .unwrap();
    assert_eq!(ids(&worker.claim(1).await), []);
    client.batch_execute(&format!("commit prepared '{prepared}'")).await.unwrap();

    until("the fence is passed", async || trap.store.fence_passed(fence).await.unwrap()).await;
    assert_eq!(worker.claim(1).await.len(), 1);
    trap.check().await;
}

#[tokio::test]
async fn the_fence_waits_for_a_prepared_transaction() {
    let trap = Trap::set().await;
    let worker = trap.worker().await;
    let client = trap.database.connect().await.unwrap();
    let prepared = format!("laneway_{}", worker.session());
    client
        .batch_execute(&format!("begin; select laneway.enqueue('work'); prepare transaction '{prepared}'"))
        .await
        .unwrap();
    let fence = trap.fall_asleep(&worker).await;

    assert!(!trap.store.fence_passed(fence).await.unwrap());
    client.batch_execute(&format!("commit prepared '{prepared}'")).await.unwrap();

    until("the fence is passed", async || trap.store.fence_passed(fence).await.unwrap()).await;
}

#[tokio::test]
async fn a_task_behind_hundreds_of_lanes_that_this_worker_cannot_run_is_found() {
    let trap = Trap::set().await;
    let foreign = (0..600).map(|lane| a_task().kind("foreign").lane(&lane.to_string())).collect();
    trap.enqueue_all(foreign).await;
    let mut worker = trap.worker().await;
    let mine = [kind("mine")];
    let is_claimable =
        async || trap.store.is_claimable(&[queue("default")], &Kinds::Only(mine.to_vec())).await.unwrap();
    assert_eq!(ids(&worker.claim_kinds(&["mine"], 10).await), []);
    assert!(!is_claimable().await);

    for max in [1, 10] {
        let laned = trap.enqueue(a_task().kind("mine").lane("own")).await;
        assert!(is_claimable().await);
        let claimed = worker.claim_kinds(&["mine"], max).await;
        assert_eq!(ids(&claimed), [laned], "claiming {max}");
        worker.complete(&claimed).await;

        let loner = trap.enqueue(a_task().kind("mine")).await;
        let claimed = worker.claim_kinds(&["mine"], max).await;
        assert_eq!(ids(&claimed), [loner], "claiming {max}");
        worker.complete(&claimed).await;
    }
    assert_eq!(trap.work_off(&mut worker).await.len(), 600);
    trap.check().await;
}

#[tokio::test]
async fn one_settle_that_cannot_be_stored_holds_up_no_other() {
    let trap = Trap::set().await;
    let tasks = trap.enqueue_all(tasks_like(a_task(), 7)).await;
    let mut worker = trap.worker().await;
    let claimed = worker.claim(7).await;
    let bad = tasks[4];
    let client = trap.database.connect().await.unwrap();
    client
        .batch_execute(&format!(
            "create function public.refuse() returns trigger language plpgsql as $$ begin
                 if new.id = {bad} and new.state = 'completed' then
                     raise 'no such value' using errcode = 'data_exception';
                 end if;
                 return new;
             end $$;
             create trigger refuse before insert on laneway.ended for each row execute function public.refuse()"
        ))
        .await
        .unwrap();

    let result = laneway_core::Json::parse("7").unwrap();
    let outcome = Outcome::Completed { result: Some(result) };
    let settles = claimed.iter().map(|one| one.settle(outcome.clone())).collect();
    let verdicts = worker.settle_all(settles).await;

    for (task, verdict) in std::iter::zip(tasks, verdicts) {
        assert_eq!(verdict, if task == bad { Verdict::Failed } else { Verdict::Completed });
    }
    let error = trap.store.get(bad).await.unwrap().unwrap().error.unwrap();
    assert!(error.contains("cannot be stored"), "{error}");
    trap.check().await;
}

#[tokio::test]
async fn an_advance_above_read_committed_is_refused() {
    for isolation in ["repeatable read", "serializable"] {
        let trap = Trap::set().await;
        let worker = trap.worker().await;
        trap.enqueue(a_task().lane("a")).await;
        let open = trap.begin().await;
        open.run(&format!("set transaction isolation level {isolation}")).await;

        let refused = open.0.query_one("select step($1, 1, 1)", &[&worker.session().0]).await.unwrap_err();

        let message = refused.as_db_error().unwrap().message().to_owned();
        assert!(message.contains("read committed"), "{message}");
    }
}

#[tokio::test]
async fn a_store_works_in_a_database_whose_default_is_serializable() {
    let trap = Trap::set().await;
    let client = trap.database.connect().await.unwrap();
    let name = &trap.database.name;
    client
        .batch_execute(&format!("alter database {name} set default_transaction_isolation = 'serializable'"))
        .await
        .unwrap();
    let store = PostgresStore::open(PostgresOptions::new(&trap.database.url).pool_size(2)).await.unwrap();
    let id = store.enqueue(a_task().lane("a").into()).await.unwrap().id;
    let mut worker = TestWorker::register(Arc::new(store.clone())).await;

    let claimed = worker.claim(2).await;

    assert_eq!(ids(&claimed), [id]);
    worker.complete(&claimed).await;
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// Claims find tasks by a number for their queue, which every way into the table has to write.
#[tokio::test]
async fn a_task_where_no_claim_would_look_is_noticed() {
    let trap = Trap::set().await;
    let id = trap.enqueue(a_task()).await;
    trap.check().await;
    let client = trap.database.connect().await.unwrap();

    client.batch_execute("update laneway.task set queue_id = laneway.queue_id('other')").await.unwrap();

    let violations = trap.store.verify().await.unwrap();
    assert_eq!(violations, [format!("task {id} is not where claims look for tasks of queue default")]);
}
