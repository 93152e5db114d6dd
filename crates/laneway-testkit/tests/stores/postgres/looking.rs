//! The change feed and the counts of history against transactions that are open meanwhile, step by step.

use crate::support::{Fixture, fixture, open};
use laneway_core::{
    Acted, Action, Actor, Keep, Position, QueueName, QueueSettings, State, Store, TaskId, Watch,
};
use laneway_testkit::store::{a_task, secs, soon, until};
use laneway_testkit::worker::failed;
use tokio::task::JoinSet;
use tokio_postgres::Client;

const ENQUEUE: &str = "select laneway.enqueue('work')";

impl Fixture {
    /// A connection in a transaction that has an id and has done nothing yet.
    async fn begun(&self) -> Client {
        let client = self.connect().await;
        client.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
        client
    }

    async fn is_ready(&self, watch: Watch) -> bool {
        self.store.fence_passed(watch.fence).await.unwrap()
    }

    async fn a_ready_watch(&self) -> Watch {
        let watch = self.store.watch(secs(60)).await.unwrap();
        until("the watch is ready", async || self.is_ready(watch).await).await;
        watch
    }

    /// What is told behind `position`, which moves on.
    async fn told(&self, watch: Watch, position: &mut Position) -> Vec<TaskId> {
        let read = self.store.changes(watch.watcher, *position, 500).await.unwrap();
        assert!(!read.gap);
        *position = read.position;
        read.changes.into_iter().flat_map(|change| change.tasks).map(|(task, _)| task).collect()
    }

    /// The same until `expected` tasks were told.
    async fn told_in_time(&self, watch: Watch, position: &mut Position, expected: &[TaskId]) {
        let mut told = vec![];
        until("everything is told", async || {
            told.extend(self.told(watch, position).await);
            told.len() >= expected.len()
        })
        .await;
        assert_eq!(told, expected);
    }

    /// A task that has failed.
    async fn a_failed_task(&self) -> TaskId {
        let id = self.given(a_task().queue("q")).await;
        let mut worker = self.worker().await;
        let claimed = worker.claim_from("q", 1).await;
        worker.settle(&claimed[0], failed()).await;
        worker.deregister().await;
        id
    }

    async fn failed_tasks(&self) -> u64 {
        let counts = self.store.counts().await.unwrap();
        counts.iter().filter(|count| count.state == State::Failed).map(|count| count.tasks).sum()
    }

    async fn fold(&self) {
        self.connect().await.batch_execute("select laneway.fold_history()").await.unwrap();
    }

    /// True when the fold has passed the transaction that recorded the end of `task`.
    async fn has_folded(&self, task: TaskId) -> bool {
        let query = "select not exists (select from laneway.ended e, laneway.folded f where e.tx >= f.tx and e.id = $1)";
        self.connect().await.query_one(query, &[&task.0]).await.unwrap().get(0)
    }

    async fn fold_past(&self, task: TaskId) {
        // Other tests of this process have transactions under way, too.
        until("the fold has passed the task", async || {
            self.fold().await;
            self.has_folded(task).await
        })
        .await;
    }
}

fn delete(task: TaskId) -> String {
    format!("select laneway.act('ann', null, 'delete', array[{task}]::bigint[], null, null)")
}

async fn enqueued(client: &Client) -> TaskId {
    TaskId(client.query_one(ENQUEUE, &[]).await.unwrap().get(0))
}

#[tokio::test]
async fn a_writer_that_is_open_while_a_watch_begins_keeps_it_from_being_ready() {
    let fixture = fixture().await;
    let before = fixture.begun().await;
    let silent = enqueued(&before).await; // nobody watches yet
    let during = fixture.begun().await;

    let watch = fixture.store.watch(secs(60)).await.unwrap();
    let told = enqueued(&during).await;
    assert!(!fixture.is_ready(watch).await, "two writers may not have seen the watcher");
    before.batch_execute("commit").await.unwrap();
    assert!(!fixture.is_ready(watch).await, "one may not have");
    during.batch_execute("commit").await.unwrap();
    until("the watch is ready", async || fixture.is_ready(watch).await).await;

    // What committed before it was ready is in the look, what commits now in the feed.
    for task in [silent, told] {
        assert_eq!(fixture.state(task).await, Some(State::Pending));
    }
    let mut position = watch.position;
    let next = fixture.given(a_task()).await;
    fixture.told_in_time(watch, &mut position, &[next]).await;
}

#[tokio::test]
async fn a_claim_that_began_before_a_watch_and_writes_after_it_is_told() {
    let fixture = fixture().await;
    let task = fixture.given(a_task()).await;
    let mut worker = fixture.worker().await;
    let gate = fixture.connect().await;
    gate.batch_execute("begin; lock table laneway.task in exclusive mode").await.unwrap();
    let claiming = tokio::spawn(async move { worker.claim(1).await });
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    until("the claim waits for its first row", async || fixture.value::<bool>(waits).await).await;

    // It has no transaction id yet, so nothing keeps the watch from being ready.
    let watch = fixture.a_ready_watch().await;
    gate.batch_execute("commit").await.unwrap();
    assert_eq!(claiming.await.unwrap().len(), 1);

    let mut position = watch.position;
    fixture.told_in_time(watch, &mut position, &[task]).await;
}

#[tokio::test]
async fn a_transaction_that_commits_late_holds_back_what_came_after_it_and_is_not_skipped() {
    let fixture = fixture().await;
    let watch = fixture.a_ready_watch().await;
    let mut position = watch.position;
    let slow = fixture.begun().await;
    let first = enqueued(&slow).await;
    let second = fixture.given(a_task()).await;

    assert_eq!(fixture.told(watch, &mut position).await, []);
    assert_eq!(fixture.told(watch, &mut position).await, [], "a second look does not step over it either");
    slow.batch_execute("commit").await.unwrap();

    fixture.told_in_time(watch, &mut position, &[first, second]).await;
    assert_eq!(fixture.told(watch, &mut position).await, []);
}

#[tokio::test]
async fn what_is_rolled_back_is_never_told() {
    let fixture = fixture().await;
    let watch = fixture.a_ready_watch().await;
    let mut position = watch.position;
    let undone = fixture.begun().await;
    enqueued(&undone).await;
    let kept = fixture.given(a_task()).await;
    undone.batch_execute("rollback").await.unwrap();

    fixture.told_in_time(watch, &mut position, &[kept]).await;
}

#[tokio::test]
async fn a_reader_that_resumes_from_a_position_misses_no_commit_and_repeats_none() {
    let fixture = fixture().await;
    let watch = fixture.a_ready_watch().await;
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let client = fixture.connect().await;
        writers.spawn(async move {
            let mut kept = vec![];
            for n in 0..30 {
                client.batch_execute("begin").await.unwrap();
                let (one, two) = (enqueued(&client).await, enqueued(&client).await);
                let end = if (n + writer) % 3 == 0 { "rollback" } else { "commit" };
                client.batch_execute(end).await.unwrap();
                kept.extend([one, two].into_iter().filter(|_| end == "commit"));
            }
            kept
        });
    }

    let other = open(&fixture.database.url).await;
    let (mut position, mut seen, mut kept) = (watch.position, vec![], vec![]);
    until("everything that was committed is read", async || {
        // One process goes on from the position that another one has written down.
        for reader in [&fixture.store, &other].into_iter().cycle().take(20) {
            let read = reader.changes(watch.watcher, position, 3).await.unwrap();
            assert!(!read.gap);
            seen.extend(read.changes.into_iter().flat_map(|change| change.tasks).map(|(task, _)| task));
            position = read.position.to_string().parse().unwrap();
        }
        while let Some(ended) = writers.try_join_next() {
            kept.extend(ended.unwrap());
        }
        writers.is_empty() && seen.len() >= kept.len()
    })
    .await;

    assert_eq!(fixture.told(watch, &mut position).await, []);
    seen.sort();
    kept.sort();
    assert_eq!(seen, kept);
}

#[tokio::test]
async fn counts_stay_exact_when_a_deletion_is_open_while_its_task_is_folded() {
    for (end, left) in [("commit", 0), ("rollback", 1)] {
        let fixture = fixture().await;
        let task = fixture.a_failed_task().await;
        let client = fixture.begun().await;
        client.batch_execute(&delete(task)).await.unwrap();

        fixture.fold_past(task).await;
        assert_eq!(fixture.failed_tasks().await, 1);
        client.batch_execute(end).await.unwrap();
        assert_eq!(fixture.failed_tasks().await, left);

        fixture.fold().await;
        assert_eq!(fixture.failed_tasks().await, left);
        fixture.check().await;
    }
}

#[tokio::test]
async fn counts_stay_exact_when_a_task_is_gone_before_the_fold_has_passed_it() {
    let fixture = fixture().await;
    let oldest = fixture.begun().await; // the fold cannot pass it
    let (gone, kept) = (fixture.a_failed_task().await, fixture.a_failed_task().await);
    let done = fixture.store.act(&Actor::program(), Action::Delete, &[gone]).await.unwrap();
    assert_eq!(done, [Acted::Done]);

    fixture.fold().await;
    assert_eq!((fixture.failed_tasks().await, fixture.has_folded(kept).await), (1, false));
    oldest.batch_execute("commit").await.unwrap();
    fixture.fold_past(kept).await;

    assert_eq!(fixture.failed_tasks().await, 1);
    fixture.check().await;
}

#[tokio::test]
async fn counts_stay_exact_when_a_task_is_deleted_while_a_fold_is_under_way() {
    for end in ["commit", "rollback"] {
        let fixture = fixture().await;
        let task = fixture.a_failed_task().await;
        let folder = fixture.connect().await;
        folder.batch_execute("begin; select laneway.fold_history()").await.unwrap();

        let done = fixture.store.act(&Actor::program(), Action::Delete, &[task]).await.unwrap();
        assert_eq!((done, fixture.failed_tasks().await), (vec![Acted::Done], 0));
        folder.batch_execute(end).await.unwrap();

        assert_eq!(fixture.failed_tasks().await, 0);
        fixture.fold().await;
        assert_eq!(fixture.failed_tasks().await, 0);
        fixture.check().await;
    }
}

#[tokio::test]
async fn counts_stay_exact_when_retention_and_an_operator_remove_the_same_task() {
    for end in ["commit", "rollback"] {
        let fixture = fixture().await;
        let settings = QueueSettings { keep_failed: Some(Keep::Days(1)), ..Default::default() };
        fixture.store.set_queue(&QueueName::new("q").unwrap(), settings).await.unwrap();
        let (task, other) = (fixture.a_failed_task().await, fixture.a_failed_task().await);
        fixture.fold_past(other).await;
        // Two days later; another queue still keeps something of that day, so rows are deleted and no partition is dropped.
        let later = "create or replace function laneway.clock() returns timestamptz
            language sql as $$ select clock_timestamp() + interval '2 days' $$;
            insert into laneway.ended_count (day, queue, state, kind, n)
            select (now() at time zone 'utc')::date, 'kept', 'failed', 'work', 1";
        fixture.connect().await.batch_execute(later).await.unwrap();
        let operator = fixture.begun().await;
        operator.batch_execute(&delete(task)).await.unwrap();

        let client = fixture.connect().await;
        let retention =
            tokio::spawn(async move { client.batch_execute("select laneway.drop_history(1000)").await });
        until("retention waits for the operator", async || {
            let waits = "select exists (select from pg_stat_activity
                         where datname = current_database() and wait_event_type = 'Lock')";
            fixture.value(waits).await
        })
        .await;
        operator.batch_execute(end).await.unwrap();
        soon("retention", retention).await.unwrap().unwrap();

        // Both are gone, whoever it was, and the row that stands for the other queue is the only one that counts.
        for _ in 0..2 {
            assert_eq!(fixture.failed_tasks().await, 1);
            fixture.fold().await;
        }
        for task in [task, other] {
            assert_eq!(fixture.state(task).await, None);
        }
    }
}
