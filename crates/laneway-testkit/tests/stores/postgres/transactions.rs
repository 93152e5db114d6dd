//! Enqueue and settle inside the caller's own transaction: from tokio-postgres, from sqlx, and from plain SQL.

use std::time::Duration;

use crate::support::{Fixture, fixture, new_tasks};
use jiff::Timestamp;
use laneway_core::{
    Advance, Cancel, Claim, Claimed, InvalidInput, Json, Kind, Kinds, Lane, LaneKey, LaneLimit, NewTask,
    Outcome, QueueName, RetryPolicy, Sleep, State, Store, StoreError, Tag, TaskId, Verdict, validate,
};
use laneway_testkit::store::{a_task, ids_of, kind, queue, refusal, secs, soon, until};
use laneway_testkit::worker::{TestWorker, ids, retry_after};
use sqlx::{Connection, PgConnection};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};
use uuid::Uuid;

const EFFECTS: &str = "create table public.effect (task bigint)";
const HOW_MANY_EFFECTS: &str = "select count(*) from public.effect";
const ABOVE_READ_COMMITTED: [IsolationLevel; 2] =
    [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

impl Fixture {
    async fn sqlx(&self) -> PgConnection {
        PgConnection::connect(&self.database.url).await.unwrap()
    }

    /// A worker and one task that it runs under a lease of its own.
    async fn running(&self) -> (TestWorker, Claimed) {
        self.given(a_task()).await;
        let mut worker = self.worker().await;
        let claimed = worker.claim_one().await;
        (worker, claimed)
    }

    /// Lets somebody sleep on the default queue, so that producers hint.
    async fn somebody_sleeps(&self) {
        let sleeper = self.worker().await;
        let sleep = Sleep { session: sleeper.session(), queues: vec![queue("default")], at_most: secs(60) };
        self.store.fall_asleep(sleep).await.unwrap();
    }
}

async fn begin(client: &mut Client, isolation: IsolationLevel) -> Transaction<'_> {
    client.build_transaction().isolation_level(isolation).start().await.unwrap()
}

async fn leave_an_effect(transaction: &Transaction<'_>, task: TaskId) {
    transaction.execute("insert into public.effect values ($1)", &[&task.0]).await.unwrap();
}

#[tokio::test]
async fn enqueued_tasks_exist_if_and_only_if_the_transaction_commits() {
    let fixture = fixture().await;
    let mut client = fixture.connect().await;

    let transaction = client.transaction().await.unwrap();
    let gone = fixture.store.enqueue_in(&transaction, new_tasks([a_task(), a_task().lane("a")])).await;
    let gone = ids_of(&gone.unwrap());
    assert_eq!(fixture.total().await, 0, "nothing is visible before the commit");
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let kept = fixture.store.enqueue_in(&transaction, new_tasks([a_task(), a_task().lane("a")])).await;
    let kept = ids_of(&kept.unwrap());
    transaction.commit().await.unwrap();

    assert_eq!(fixture.state(gone[0]).await, None);
    assert_eq!(ids(&fixture.worker().await.claim(10).await), kept);
    fixture.check().await;
}

#[tokio::test]
async fn with_sqlx_enqueued_tasks_exist_if_and_only_if_the_transaction_commits() {
    let fixture = fixture().await;
    let mut connection = fixture.sqlx().await;
    let in_an_hour = Timestamp::now() + jiff::Span::new().hours(1);
    let tasks = || {
        let retry = RetryPolicy::List { delays_ms: vec![100, 5_000] };
        new_tasks([
            a_task().payload(r#"{"order": 7}"#).priority(-3),
            a_task().lane_of("a", 2).with(|task| task.retry(retry).timeout(secs(9))),
            a_task().with(|task| task.at(in_an_hour)),
            a_task().delay(secs(60)),
        ])
    };

    let mut transaction = connection.begin().await.unwrap();
    let gone = ids_of(&fixture.store.enqueue_in_sqlx(&mut transaction, tasks()).await.unwrap());
    transaction.rollback().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let kept = ids_of(&fixture.store.enqueue_in_sqlx(&mut transaction, tasks()).await.unwrap());
    transaction.commit().await.unwrap();

    assert_eq!(fixture.state(gone[0]).await, None);
    let claimed = fixture.worker().await.claim(10).await;
    assert_eq!(ids(&claimed), kept[..2]);
    assert_eq!(claimed[0].task.payload.as_str(), r#"{"order": 7}"#);
    assert_eq!(claimed[1].task.options.timeout_ms, Some(9_000));
    let scheduled = fixture.store.get(kept[2]).await.unwrap().unwrap();
    let off = scheduled.due_at.unwrap().duration_since(in_an_hour).unsigned_abs();
    assert!(off < Duration::from_millis(1), "the due time was stored {off:?} off");
    assert_eq!(fixture.state(kept[3]).await, Some(State::Later));
    fixture.check().await;
}

#[tokio::test]
async fn refused_input_leaves_the_transaction_usable() {
    let fixture = fixture().await;
    let (mut client, mut connection) = (fixture.connect().await, fixture.sqlx().await);

    let transaction = client.transaction().await.unwrap();
    let refused =
        refusal(fixture.store.enqueue_in(&transaction, new_tasks([a_task().priority(1_001)])).await);
    let kept = ids_of(&fixture.store.enqueue_in(&transaction, new_tasks([a_task()])).await.unwrap());
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    refusal(fixture.store.enqueue_in_sqlx(&mut transaction, new_tasks([a_task().priority(1_001)])).await);
    let also_kept = fixture.store.enqueue_in_sqlx(&mut transaction, new_tasks([a_task()])).await;
    let also_kept = ids_of(&also_kept.unwrap());
    transaction.commit().await.unwrap();

    assert_eq!(refused.code.as_str(), "out_of_range");
    assert_eq!(ids(&fixture.worker().await.claim(10).await), [kept, also_kept].concat());
}

#[tokio::test]
async fn a_settle_is_recorded_if_and_only_if_the_transaction_commits() {
    let fixture = fixture().await;
    let (worker, claimed) = fixture.running().await;
    let mut client = fixture.connect().await;

    let transaction = client.transaction().await.unwrap();
    let verdict = fixture.store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
    assert_eq!(verdict, Verdict::Completed);
    transaction.rollback().await.unwrap();
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Leased));
    let transaction = client.transaction().await.unwrap();
    let verdict = fixture.store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
    transaction.commit().await.unwrap();

    assert_eq!(verdict, Verdict::Completed);
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Completed));
    fixture.check().await;
}

#[tokio::test]
async fn with_sqlx_a_settle_is_recorded_if_and_only_if_the_transaction_commits() {
    let fixture = fixture().await;
    let (worker, claimed) = fixture.running().await;
    let mut connection = fixture.sqlx().await;
    let result = Json::parse(r#"{"sent": true}"#).unwrap();
    let settle = claimed.settle(Outcome::Completed { result: Some(result.clone()) });

    let mut transaction = connection.begin().await.unwrap();
    fixture.store.settle_in_sqlx(&mut transaction, worker.session(), settle.clone()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Leased));
    let mut transaction = connection.begin().await.unwrap();
    let verdict =
        fixture.store.settle_in_sqlx(&mut transaction, worker.session(), settle.clone()).await.unwrap();
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let second = fixture.store.settle_in_sqlx(&mut transaction, worker.session(), settle).await.unwrap();

    assert_eq!((verdict, second), (Verdict::Completed, Verdict::Stale));
    assert_eq!(fixture.store.get(claimed.task.id).await.unwrap().unwrap().result, Some(result));
}

#[tokio::test]
async fn every_outcome_can_be_settled_in_a_transaction() {
    let fixture = fixture().await;
    let mut worker = fixture.worker().await;
    let mut client = fixture.connect().await;
    let failed = Outcome::Failed { error: "no\0pe".into() };
    let cases = [
        (retry_after(secs(60)), Verdict::Later, Some("did not work")),
        (Outcome::Snooze { after: secs(60) }, Verdict::Later, None),
        (failed, Verdict::Failed, Some("no\u{FFFD}pe")),
        (Outcome::Cancelled { reason: Some("asked".into()) }, Verdict::Cancelled, Some("asked")),
        (Outcome::GivenBack, Verdict::Pending, None),
    ];
    for (outcome, expected, error) in cases {
        let id = fixture.given(a_task().priority(-1)).await;
        let claimed = worker.claim_one().await;

        let transaction = client.transaction().await.unwrap();
        let settle = claimed.settle(outcome.clone());
        let verdict = fixture.store.settle_in(&transaction, worker.session(), settle).await.unwrap();
        transaction.commit().await.unwrap();

        let view = fixture.store.get(id).await.unwrap().unwrap();
        assert_eq!((claimed.task.id, verdict), (id, expected), "{outcome:?}");
        assert_eq!(view.error.as_deref(), error, "{outcome:?}");
    }
    fixture.check().await;
}

#[tokio::test]
async fn an_attempt_that_settles_twice_leaves_its_effects_once() {
    let fixture = fixture().await;
    let (worker, claimed) = fixture.running().await;
    let (mut first, mut second) = (fixture.connect().await, fixture.connect().await);
    first.batch_execute(EFFECTS).await.unwrap();

    // Both have done their work; the second waits for the lease until the first has committed.
    let winner = first.transaction().await.unwrap();
    leave_an_effect(&winner, claimed.task.id).await;
    let recorded = fixture.store.complete_in(&winner, worker.session(), &claimed).await.unwrap();
    let loser = second.transaction().await.unwrap();
    leave_an_effect(&loser, claimed.task.id).await;
    let (verdict, ()) = tokio::join!(fixture.store.complete_in(&loser, worker.session(), &claimed), async {
        let waits = "select exists (select from pg_locks where not granted)";
        until("the second waits", async || fixture.value::<bool>(waits).await).await;
        winner.commit().await.unwrap();
    });
    let verdict = verdict.unwrap();
    assert!(!verdict.is_recorded(), "{verdict:?}");
    loser.rollback().await.unwrap();

    assert_eq!(recorded, Verdict::Completed);
    assert_eq!(fixture.value::<i64>(HOW_MANY_EFFECTS).await, 1);
    fixture.check().await;
}

#[tokio::test]
async fn a_settle_is_stale_when_its_worker_was_swept_while_the_transaction_was_open() {
    let fixture = fixture().await;
    let (dead, claimed) = fixture.running().await;
    let mut client = fixture.connect().await;
    client.batch_execute(EFFECTS).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    leave_an_effect(&transaction, claimed.task.id).await;

    fixture.silence(&dead).await;
    assert_eq!(fixture.store.sweep().await.unwrap().given_back, 1);
    let mut successor = fixture.worker().await;
    let again = successor.claim_one().await;
    let verdict = fixture.store.complete_in(&transaction, dead.session(), &claimed).await.unwrap();
    transaction.rollback().await.unwrap();

    assert_eq!(again.task.id, claimed.task.id);
    assert_eq!(verdict, Verdict::Stale);
    successor.complete(&[again]).await;
    assert_eq!(fixture.value::<i64>(HOW_MANY_EFFECTS).await, 0);
    fixture.check().await;
}

#[tokio::test]
async fn a_sweep_leaves_a_task_alone_whose_settle_is_about_to_commit() {
    let fixture = fixture().await;
    let (dead, claimed) = fixture.running().await;
    let mut client = fixture.connect().await;
    let transaction = client.transaction().await.unwrap();
    fixture.store.complete_in(&transaction, dead.session(), &claimed).await.unwrap();

    fixture.silence(&dead).await;
    let swept = fixture.store.sweep().await.unwrap();
    assert_eq!((swept.sessions, swept.given_back), (1, 0));
    transaction.commit().await.unwrap();

    assert_eq!(fixture.store.sweep().await.unwrap().given_back, 0);
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Completed));
    fixture.check().await;
}

#[tokio::test]
async fn a_sweep_finds_a_task_later_whose_settle_was_rolled_back() {
    let fixture = fixture().await;
    let (dead, claimed) = fixture.running().await;
    let mut client = fixture.connect().await;
    let transaction = client.transaction().await.unwrap();
    fixture.store.complete_in(&transaction, dead.session(), &claimed).await.unwrap();
    fixture.silence(&dead).await;
    fixture.store.sweep().await.unwrap();

    transaction.rollback().await.unwrap();

    assert_eq!(fixture.store.sweep().await.unwrap().given_back, 1);
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Pending));
    fixture.check().await;
}

#[tokio::test]
async fn a_lane_goes_on_when_a_settle_in_a_transaction_commits_and_not_before() {
    let fixture = fixture().await;
    let first = fixture.given(a_task().lane("a")).await;
    let second = fixture.given(a_task().lane("a")).await;
    let mut worker = fixture.worker().await;
    let claimed = worker.claim_one().await;
    let mut client = fixture.connect().await;

    let transaction = client.transaction().await.unwrap();
    fixture.store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
    let before = worker.claim(10).await;
    transaction.commit().await.unwrap();
    let after = worker.claim(10).await;

    assert_eq!(claimed.task.id, first);
    assert_eq!((ids(&before), ids(&after)), (vec![], vec![second]));
    worker.complete(&after).await;
    worker.claim(10).await;
    fixture.check().await;
}

#[tokio::test]
async fn tasks_of_kinds_apart_do_not_wait_for_a_neighbours_open_transaction() {
    let fixture = fixture().await;
    for _ in 0..3 {
        fixture.given(a_task()).await;
    }
    let mut worker = fixture.worker().await;
    let claim = Claim { queue: queue("default"), max: 3, kinds: Kinds::All, alone: vec![kind("work")] };
    let claimed = worker.advance(|advance| Advance { claims: vec![claim], ..advance }).await.claimed;
    let mut client = fixture.connect().await;
    let transaction = client.transaction().await.unwrap();
    fixture.store.complete_in(&transaction, worker.session(), &claimed[0]).await.unwrap();

    soon("the neighbours' settles", worker.complete(&claimed[1..])).await;

    transaction.commit().await.unwrap();
    assert_eq!(fixture.store.counts().await.unwrap()[0].tasks, 3);
    fixture.check().await;
}

#[tokio::test]
async fn an_enqueue_that_is_held_open_slows_nobody_down() {
    let fixture = fixture().await;
    let mut client = fixture.connect().await;
    let transaction = client.transaction().await.unwrap();
    let held = new_tasks([a_task(), a_task().lane("a"), a_task().lane("new"), a_task().delay(secs(60))]);
    let held = ids_of(&fixture.store.enqueue_in(&transaction, held).await.unwrap());

    let others = async {
        let (mut one, mut two) = (fixture.worker().await, fixture.worker().await);
        let mut done = 0;
        for _ in 0..5 {
            fixture.given(a_task()).await;
            fixture.store.enqueue_many(new_tasks([a_task().lane("a"), a_task().lane("new")])).await.unwrap();
            let bulk = vec![NewTask::from(a_task().lane("bulk")); 250];
            fixture.store.enqueue_many(bulk).await.unwrap();
            for worker in [&mut one, &mut two] {
                let claimed = worker.claim(100).await;
                done += claimed.len();
                worker.complete(&claimed).await;
            }
            fixture.store.sweep().await.unwrap();
        }
        done
    };
    let done = soon("workers and enqueuers", others).await;
    assert!(done >= 15, "only {done} tasks were done");
    transaction.commit().await.unwrap();

    assert_eq!(fixture.state(held[1]).await, Some(State::Pending));
    assert_eq!(fixture.state(held[3]).await, Some(State::Later));
    let mut worker = fixture.worker().await;
    until("the rest is done", async || {
        let claimed = worker.claim(500).await;
        worker.complete(&claimed).await;
        fixture.state(held[2]).await == Some(State::Completed)
    })
    .await;
    fixture.check().await;
}

#[tokio::test]
async fn callers_above_read_committed_enqueue_too() {
    let fixture = fixture().await;
    let mut client = fixture.connect().await;
    let mut stored = vec![];
    for isolation in ABOVE_READ_COMMITTED {
        let transaction = begin(&mut client, isolation).await;
        transaction.query("select 1", &[]).await.unwrap(); // the snapshot is taken

        let tasks = new_tasks([a_task(), a_task().lane("a")]);
        stored.extend(ids_of(&fixture.store.enqueue_in(&transaction, tasks).await.unwrap()));
        transaction.commit().await.unwrap();
    }

    let mut worker = fixture.worker().await;
    let mut done = vec![];
    for _ in 0..2 {
        let claimed = worker.claim(10).await;
        done.extend(ids(&claimed));
        worker.complete(&claimed).await;
    }
    done.sort_unstable();
    assert_eq!(done, stored);
    fixture.check().await;
}

#[tokio::test]
async fn callers_above_read_committed_settle_a_lease_of_one_task() {
    let fixture = fixture().await;
    for isolation in ABOVE_READ_COMMITTED {
        let id = fixture.given(a_task().lane("a")).await;
        let mut worker = fixture.worker().await;
        let claimed = worker.claim_one().await;
        let mut client = fixture.connect().await;

        let transaction = begin(&mut client, isolation).await;
        let verdict = fixture.store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
        transaction.commit().await.unwrap();

        assert_eq!(verdict, Verdict::Completed);
        assert_eq!(fixture.state(id).await, Some(State::Completed));
        fixture.check().await;
    }
}

#[tokio::test]
async fn a_settle_above_read_committed_fails_when_its_lease_has_gone_since_its_snapshot() {
    for isolation in ABOVE_READ_COMMITTED {
        let fixture = fixture().await;
        let (dead, claimed) = fixture.running().await;
        let mut client = fixture.connect().await;
        let transaction = begin(&mut client, isolation).await;
        transaction.query("select 1", &[]).await.unwrap();

        fixture.silence(&dead).await;
        fixture.store.sweep().await.unwrap();
        let answer = fixture.store.complete_in(&transaction, dead.session(), &claimed).await;
        transaction.rollback().await.unwrap();

        assert!(matches!(answer, Err(StoreError::Busy { .. })), "{answer:?}");
        let transaction = begin(&mut client, isolation).await;
        let again = fixture.store.complete_in(&transaction, dead.session(), &claimed).await;
        assert_eq!(again.unwrap(), Verdict::Stale);
        assert_eq!(fixture.state(claimed.task.id).await, Some(State::Pending));
    }
}

/// Nothing in the lease's row changes when one of several tasks is settled, so a transaction with an old snapshot could
/// not see that somebody has done so since, and would settle the same task again.
#[tokio::test]
async fn a_settle_above_read_committed_is_refused_when_the_lease_has_several_tasks() {
    for isolation in ABOVE_READ_COMMITTED {
        let fixture = fixture().await;
        fixture.store.enqueue_many(new_tasks([a_task(), a_task()])).await.unwrap();
        let mut worker = fixture.worker().await;
        let claimed = worker.claim(2).await;
        let mut client = fixture.connect().await;
        let transaction = begin(&mut client, isolation).await;
        transaction.query("select 1", &[]).await.unwrap();

        worker.complete(&claimed[..1]).await;
        let second = fixture.store.complete_in(&transaction, worker.session(), &claimed[0]).await;
        let recorded = matches!(&second, Ok(verdict) if verdict.is_recorded());
        transaction.rollback().await.unwrap();

        assert!(!recorded, "the same task was settled twice");
        let message = crate::support::whole_message(&second.unwrap_err());
        assert!(message.contains("a lease of its own"), "{message}");
        fixture.check().await;
    }
}

#[tokio::test]
async fn a_cancel_that_comes_after_the_snapshot_of_a_settle_is_not_overlooked() {
    for isolation in ABOVE_READ_COMMITTED {
        let fixture = fixture().await;
        let (worker, claimed) = fixture.running().await;
        let mut client = fixture.connect().await;
        let transaction = begin(&mut client, isolation).await;
        transaction.query("select 1", &[]).await.unwrap();

        assert_eq!(fixture.store.cancel(claimed.task.id).await.unwrap(), Cancel::Requested);
        let settle = claimed.settle(retry_after(secs(1)));
        let answer = fixture.store.settle_in(&transaction, worker.session(), settle.clone()).await;
        assert!(matches!(answer, Err(StoreError::Busy { .. })), "{answer:?}");
        transaction.rollback().await.unwrap();
        let transaction = begin(&mut client, isolation).await;
        let answer = fixture.store.settle_in(&transaction, worker.session(), settle).await;
        transaction.commit().await.unwrap();

        assert_eq!(answer.unwrap(), Verdict::Cancelled);
        fixture.check().await;
    }
}

#[tokio::test]
async fn with_sqlx_a_conflict_says_that_it_can_be_tried_again() {
    let fixture = fixture().await;
    let (dead, claimed) = fixture.running().await;
    let mut connection = fixture.sqlx().await;
    let mut transaction = connection.begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select 1").execute(&mut *transaction).await.unwrap();

    fixture.silence(&dead).await;
    fixture.store.sweep().await.unwrap();
    let settle = claimed.settle(Outcome::completed());
    let answer = fixture.store.settle_in_sqlx(&mut transaction, dead.session(), settle).await;

    assert!(matches!(answer, Err(StoreError::Busy { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_prepared_transaction_enqueues_when_hints_are_off() {
    let fixture = fixture().await;
    fixture.somebody_sleeps().await;
    let client = fixture.connect().await;

    client.batch_execute("begin; select laneway.enqueue(kind => 'work')").await.unwrap();
    let hinting = client.batch_execute("prepare transaction 'hinting'").await.unwrap_err();
    client
        .batch_execute("begin; set local laneway.hint = off; select laneway.enqueue(kind => 'work')")
        .await
        .unwrap();
    client.batch_execute("prepare transaction 'silent'").await.unwrap();
    let before = fixture.total().await;
    client.batch_execute("commit prepared 'silent'").await.unwrap();

    assert_eq!(hinting.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "NOTIFY forbids PREPARE TRANSACTION");
    assert_eq!(before, 0);
    assert_eq!(fixture.worker().await.claim(10).await.len(), 1);
}

#[tokio::test]
async fn plain_sql_enqueues_with_everything_that_a_task_can_have() {
    let fixture = fixture().await;
    let query = "select laneway.enqueue(
        kind => 'mail.receipt', payload => '{\"order\": 7}', queue => 'mail', lane => 'customer:7', lane_limit => 3,
        priority => -5, max_attempts => 4, timeout => '1 minute',
        retry => '{\"list\": {\"delays_ms\": [100, 5000]}}', tags => array['eu', 'paid'],
        trace => '{\"traceparent\": \"00-1-2-01\"}')";

    let id = TaskId(fixture.value(query).await);

    let claimed = fixture.worker().await.claim_from("mail", 1).await.pop().unwrap();
    assert_eq!(claimed.task.id, id);
    assert_eq!(claimed.task.kind.as_str(), "mail.receipt");
    assert_eq!(claimed.task.payload.as_str(), r#"{"order": 7}"#);
    assert_eq!(claimed.task.lane, Some(LaneKey::new("customer:7").unwrap()));
    assert_eq!((claimed.task.priority, claimed.task.max_attempts), (-5, 4));
    assert_eq!(claimed.task.options.timeout_ms, Some(60_000));
    assert_eq!(claimed.task.options.retry, Some(RetryPolicy::List { delays_ms: vec![100, 5_000] }));
    assert_eq!(claimed.task.options.tags, [Tag::new("eu").unwrap(), Tag::new("paid").unwrap()]);
    assert_eq!(claimed.task.options.trace["traceparent"], "00-1-2-01");
    let lane =
        fixture.store.lane(&queue("mail"), &LaneKey::new("customer:7").unwrap()).await.unwrap().unwrap();
    assert_eq!(lane.limit, LaneLimit::at(3).unwrap());
    fixture.check().await;
}

#[tokio::test]
async fn plain_sql_enqueues_with_defaults_delays_and_due_times() {
    let fixture = fixture().await;

    let plain = TaskId(fixture.value("select laneway.enqueue('work')").await);
    let delayed = TaskId(fixture.value("select laneway.enqueue('work', delay => '1 hour')").await);
    let due =
        TaskId(fixture.value("select laneway.enqueue('work', due_at => now() + interval '1 hour')").await);
    let past = TaskId(fixture.value("select laneway.enqueue('work', due_at => '2001-01-01')").await);

    let claimed = fixture.worker().await.claim(10).await;
    assert_eq!(ids(&claimed), [plain, past]);
    assert_eq!(claimed[0].task.payload.as_str(), "{}");
    assert_eq!(claimed[0].task.queue, QueueName::default());
    for id in [delayed, due] {
        assert_eq!(fixture.state(id).await, Some(State::Later));
    }
}

#[tokio::test]
async fn a_trigger_enqueues_in_the_transaction_of_the_statement_that_fired_it() {
    let fixture = fixture().await;
    let client = fixture.connect().await;
    let trigger = "
        create table public.orders (id bigint primary key);
        create function public.send_receipt() returns trigger language plpgsql as $$
        begin
            perform laneway.enqueue(kind => 'mail.receipt', payload => json_build_object('order', new.id), lane => 'mail');
            return new;
        end $$;
        create trigger receipt after insert on public.orders for each row execute function public.send_receipt();";
    client.batch_execute(trigger).await.unwrap();

    client.batch_execute("insert into public.orders values (1), (2)").await.unwrap();
    client.batch_execute("begin; insert into public.orders values (3); rollback").await.unwrap();
    client.batch_execute("insert into public.orders values (2)").await.unwrap_err();

    assert_eq!(fixture.total().await, 2);
    let mut worker = fixture.worker().await;
    let first = worker.claim_one().await;
    assert_eq!(first.task.payload.decode::<serde_json::Value>().unwrap()["order"], 1);
    worker.complete(&[first]).await;
    assert_eq!(worker.claim(10).await.len(), 1);
    fixture.check().await;
}

const SETTLE: &str =
    "select laneway.settle(session => $1, lease => $2, token => $3, task => $4, outcome => $5, error => $6)";

#[tokio::test]
async fn plain_sql_settles() {
    let fixture = fixture().await;
    let (worker, claimed) = fixture.running().await;
    let client = fixture.connect().await;
    let settle = async |token: Uuid, outcome: &str| -> String {
        let (session, lease, task) = (worker.session().0, claimed.lease.id.0, claimed.task.id.0);
        let row =
            client.query_one(SETTLE, &[&session, &lease, &token, &task, &outcome, &"why"]).await.unwrap();
        row.get(0)
    };

    assert_eq!(settle(Uuid::new_v4(), "failed").await, "stale");
    assert_eq!(settle(claimed.lease.token.0, "failed").await, "failed");
    assert_eq!(settle(claimed.lease.token.0, "completed").await, "stale");

    let view = fixture.store.get(claimed.task.id).await.unwrap().unwrap();
    assert_eq!((view.state, view.error.as_deref()), (State::Failed, Some("why")));
    fixture.check().await;
}

#[tokio::test]
async fn plain_sql_that_settles_with_an_unknown_outcome_is_refused() {
    let fixture = fixture().await;
    let (worker, claimed) = fixture.running().await;
    let client = fixture.connect().await;
    let (session, lease, token) = (worker.session().0, claimed.lease.id.0, claimed.lease.token.0);
    let cases: [(Option<&str>, Option<i64>, &str, &str); 3] = [
        (
            Some("done"),
            Some(claimed.task.id.0),
            "invalid_name",
            "outcome `done` is unknown; one of: completed, retry",
        ),
        (None, Some(claimed.task.id.0), "invalid_name", "is unknown; one of: completed, retry"),
        (Some("completed"), None, "invalid_id", "task is null; name the task to settle"),
    ];
    for (outcome, task, code, says) in cases {
        let answer = client.query_one(SETTLE, &[&session, &lease, &token, &task, &outcome, &"why"]).await;

        let error = answer.unwrap_err();
        let refused = error.as_db_error().unwrap();
        assert_eq!(refused.detail(), Some(format!("code: {code}").as_str()), "{outcome:?}");
        assert!(refused.message().contains(says), "{}", refused.message());
    }
    assert_eq!(fixture.state(claimed.task.id).await, Some(State::Leased));
}

/// Input that SQL refuses: the arguments, the code, and the whole sentence.
struct Refusal {
    arguments: String,
    code: &'static str,
    sentence: String,
}

fn refused_as(arguments: impl Into<String>, code: &'static str, sentence: impl Into<String>) -> Refusal {
    Refusal { arguments: arguments.into(), code, sentence: sentence.into() }
}

/// Input that laneway-core refuses as well, in the same words.
fn refused_like<T: std::fmt::Debug>(
    arguments: impl Into<String>,
    validated: Result<T, InvalidInput>,
) -> Refusal {
    let refused = validated.unwrap_err();
    refused_as(arguments, refused.code.as_str(), refused.message)
}

fn checked(task: NewTask) -> Result<(), InvalidInput> {
    task.check(&laneway_core::Limits::default())
}

fn bad_names() -> Vec<Refusal> {
    let long = "x".repeat(201);
    let mut refusals = vec![];
    for name in ["", &long, "a\nb", "a\u{7f}\"b", "\u{202e}a", " a", "a ", "\u{a0}a", "a\u{3000}"] {
        refusals.push(refused_like(format!("'{name}'"), Kind::new(name)));
        refusals.push(refused_like(format!("'work', queue => '{name}'"), QueueName::new(name)));
        refusals.push(refused_like(format!("'work', lane => '{name}'"), LaneKey::new(name)));
        refusals.push(refused_like(format!("'work', tags => array['{name}']"), Tag::new(name)));
        let trace = |task: NewTask| NewTask { trace: [(name.to_owned(), "x".to_owned())].into(), ..task };
        let arguments = format!("'work', trace => jsonb_build_object('{name}', 'x')");
        refusals.push(refused_like(arguments, checked(a_task().with(trace).into())));
    }
    refusals
}

fn bad_payloads() -> Vec<Refusal> {
    let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    let mixed = format!("{}1{}", r#"{"a":["#.repeat(33), "]}".repeat(33));
    let digits = "9".repeat(40);
    let payloads = [
        r#""a\u0000""#,
        r#""\\\u0000""#,
        r#"{"a\u0000b": 1}"#,
        r#""\ud800""#,
        r#""\uDBFF\u0041""#,
        r#""\\\udc00""#,
        r#""\ud800\ud83d\ude00""#,
        "9223372036854775808",
        "-9223372036854775809",
        &digits,
        "[1e309]",
        "-1.5E+400",
        "1e999999",
        &deep,
        &mixed,
    ];
    payloads.map(|text| refused_like(format!("'work', payload => '{text}'"), Json::parse(text))).into()
}

fn bad_numbers() -> Vec<Refusal> {
    let list = |delays_ms: Vec<u64>| a_task().with(|task| task.retry(RetryPolicy::List { delays_ms }));
    let exponential = |first_ms, cap_ms, jitter_percent| {
        a_task().with(|task| task.retry(RetryPolicy::Exponential { first_ms, cap_ms, jitter_percent }))
    };
    let month = 31 * 24 * 3_600_000;
    let ones = vec!["1"; 101].join(",");
    let tags = |n: usize| {
        (0..n).fold(a_task(), |task, i| task.with(|task| task.tag(Tag::new(i.to_string()).unwrap())))
    };
    let trace = (0..33).map(|i| (i.to_string(), String::new())).collect();
    let long_trace = [("a".to_owned(), "x".repeat(1_001))].into();
    let odd_trace = [("a".to_owned(), "x\ny".to_owned())].into();
    let cases = [
        ("'work', priority => 1001", a_task().priority(1_001)),
        ("'work', priority => -1001", a_task().priority(-1_001)),
        ("'work', max_attempts => 0", a_task().max_attempts(0)),
        ("'work', max_attempts => 1001", a_task().max_attempts(1_001)),
        ("'work', timeout => '0'", a_task().with(|task| task.timeout(secs(0)))),
        ("'work', timeout => '31 days'", a_task().with(|task| task.timeout(secs(31 * 86_400)))),
        ("'work', delay => '1831 days'", a_task().delay(secs(1_831 * 86_400))),
        (
            "'work', due_at => '1999-12-31 23:59:59.5Z'",
            a_task().with(|task| task.at("1999-12-31T23:59:59.5Z".parse().unwrap())),
        ),
        (
            "'work', due_at => '2999-12-31 12:00Z'",
            a_task().with(|task| task.at("2999-12-31T12:00:00Z".parse().unwrap())),
        ),
        ("'work', retry => '{\"list\": {\"delays_ms\": []}}'", list(vec![])),
        (&format!("'work', retry => '{{\"list\": {{\"delays_ms\": [{ones}]}}}}'"), list(vec![1; 101])),
        (&format!("'work', retry => '{{\"list\": {{\"delays_ms\": [1, {month}]}}}}'"), list(vec![1, month])),
        (
            &format!(
                "'work', retry => '{{\"exponential\": {{\"first_ms\": {month}, \"cap_ms\": 1, \"jitter_percent\": 0}}}}'"
            ),
            exponential(month, 1, 0),
        ),
        (
            &format!(
                "'work', retry => '{{\"exponential\": {{\"first_ms\": 1, \"cap_ms\": {month}, \"jitter_percent\": 0}}}}'"
            ),
            exponential(1, month, 0),
        ),
        (
            "'work', retry => '{\"exponential\": {\"first_ms\": 1, \"cap_ms\": 1, \"jitter_percent\": 101}}'",
            exponential(1, 1, 101),
        ),
        ("'work', tags => array(select i::text from generate_series(0, 32) i)", tags(33)),
        (
            "'work', trace => (select jsonb_object_agg(i, '') from generate_series(0, 32) i)",
            a_task().with(|task| NewTask { trace, ..task }),
        ),
        (
            "'work', trace => jsonb_build_object('a', repeat('x', 1001))",
            a_task().with(|task| NewTask { trace: long_trace, ..task }),
        ),
        ("'work', trace => '{\"a\": \"x\\ny\"}'", a_task().with(|task| NewTask { trace: odd_trace, ..task })),
        (
            "'work', payload => to_json(repeat('x', 1048575))",
            a_task().payload(&format!("\"{}\"", "x".repeat(1_048_575))),
        ),
    ];
    let mut refusals: Vec<_> =
        cases.map(|(arguments, task)| refused_like(arguments, checked(task.into()))).into();
    refusals.push(refused_like("'work', lane => 'a', lane_limit => 0", LaneLimit::at(0)));
    refusals.push(refused_like("'work', lane => 'a', lane_limit => 1000001", LaneLimit::at(1_000_001)));
    refusals.push(refused_like("'work', delay => '-1 second'", validate::delay_from_secs(-1.0)));
    refusals
}

/// What only SQL can say.
fn bad_shapes() -> Vec<Refusal> {
    let shape = "retry is neither {\"exponential\": {\"first_ms\", \"cap_ms\", \"jitter_percent\"}} nor {\"list\": \
                 {\"delays_ms\": [1 to 100 delays]}} with whole numbers";
    let nulls = "kind, queue, priority and max_attempts may not be null";
    let mut refusals: Vec<_> = [
        "null",
        "[]",
        "{}",
        r#"{"never": {}}"#,
        r#"{"list": [1]}"#,
        r#"{"list": {"delays_ms": [1.5]}}"#,
        r#"{"list": {"delays_ms": [-1]}}"#,
        r#"{"list": {"delays_ms": ["1 s"]}}"#,
        r#"{"list": {"delays_ms": [[1]]}}"#,
        r#"{"list": {"delays_ms": [1], "more": 1}}"#,
        r#"{"exponential": {"first_ms": 1, "cap_ms": 1}}"#,
        r#"{"exponential": {"first_ms": 1, "cap_ms": 1, "jitter_percent": []}}"#,
        r#"{"exponential": {"first_ms": 1, "cap_ms": 1, "jitter_percent": 1}, "list": {"delays_ms": [1]}}"#,
    ]
    .map(|retry| refused_as(format!("'work', retry => '{retry}'"), "out_of_range", shape))
    .into();
    refusals.extend([
        refused_as("null", "invalid_name", nulls),
        refused_as("'work', queue => null", "invalid_name", nulls),
        refused_as("'work', priority => null", "invalid_name", nulls),
        refused_as("'work', max_attempts => null", "invalid_name", nulls),
        refused_as("'work', payload => null", "invalid_json", "payload is null; send JSON, '{}' for none"),
        refused_as(
            "'work', tags => array['a', null]",
            "invalid_name",
            "tag is null; a name has 1 to 200 bytes",
        ),
        refused_as("'work', trace => '[]'", "invalid_name", "trace is not an object of strings"),
        refused_as("'work', trace => '{\"a\": 1}'", "invalid_name", "trace is not an object of strings"),
        refused_as(
            "'work', timeout => '-1 second'",
            "out_of_range",
            "timeout is -1000; allowed is 1 to 2592000000 ms",
        ),
        refused_as(
            "'work', due_at => 'infinity'",
            "time_out_of_range",
            "due is infinity; a task may be scheduled up to 5 years ahead",
        ),
        refused_as(
            "'work', due_at => '-infinity'",
            "time_out_of_range",
            "due is -infinity; the earliest due time is 2000-01-01T00:00:00Z",
        ),
    ]);
    refusals
}

#[tokio::test]
async fn sql_refuses_what_the_library_refuses_in_the_same_words() {
    let fixture = fixture().await;
    let client = fixture.connect().await;
    for Refusal { arguments, code, sentence } in
        [bad_names(), bad_payloads(), bad_numbers(), bad_shapes()].into_iter().flatten()
    {
        let answer = client.query_one(&format!("select laneway.enqueue({arguments})"), &[]).await;

        let short: String = arguments.chars().take(100).collect();
        let error = answer.map(|row| row.get::<_, i64>(0)).expect_err(&short);
        let refused = error.as_db_error().expect("an answer of the server");
        assert_eq!(refused.code(), &SqlState::INVALID_PARAMETER_VALUE, "{short}: {refused}");
        assert_eq!(refused.detail(), Some(format!("code: {code}").as_str()), "{short}");
        assert_eq!(refused.message(), sentence, "{short}");
    }
    assert_eq!(fixture.total().await, 0, "something was stored");
}

#[tokio::test]
async fn sql_accepts_what_the_library_accepts() {
    let fixture = fixture().await;
    let client = fixture.connect().await;
    let deep = format!("{}1{}", "[".repeat(64), "]".repeat(64));
    let flat = format!("[{}]", vec!["[[]]"; 200].join(","));
    let brackets = format!("\"{}\"", "[{".repeat(100));
    let payloads = [
        "null",
        r#""\\u0000 \\ud800 \ud83d\ude00""#,
        r#"{"a": "9223372036854775808 1e999"}"#,
        "9223372036854775807",
        "1e308",
        "1e-999",
        "10000000000000000000.0",
        "[0.10000000000000000000000001]",
        &deep,
        &flat,
        &brackets,
    ];
    for text in payloads {
        Json::parse(text).unwrap();
        let stored =
            client.query_one("select laneway.enqueue('work', payload => $1::text::json)", &[&text]).await;

        stored.unwrap_or_else(|error| panic!("{text:.60}: {error:?}"));
    }
    let names = ["x".repeat(200), "päckchen / ünïcode.1 \\ \"q\"".to_owned()];
    for name in &names {
        let query = "select laneway.enqueue($1, queue => $1, lane => $1, tags => array[$1], trace => jsonb_build_object($1::text, ''))";
        client.query_one(query, &[name]).await.unwrap();
    }

    let claimed = fixture.worker().await.claim(100).await;
    let texts: Vec<_> = claimed.iter().map(|one| one.task.payload.as_str()).collect();
    assert_eq!(texts, payloads);
    for name in &names {
        let claimed = fixture.worker().await.claim_from(name, 1).await;
        assert_eq!(claimed[0].task.kind.as_str(), name);
        assert_eq!(claimed[0].task.options.tags[0].as_str(), name);
    }
    fixture.check().await;
}

/// A task in a lane that another schema's or program's enqueue wrote is the lane's own, whatever wrote it.
#[tokio::test]
async fn sql_and_the_library_share_a_lane() {
    let fixture = fixture().await;
    let first = TaskId(fixture.value("select laneway.enqueue('work', lane => 'a')").await);
    let second = fixture.given(a_task().with(|task| task.lane(Lane::new(LaneKey::new("a").unwrap())))).await;
    let mut worker = fixture.worker().await;

    let claimed = worker.claim(10).await;
    worker.complete(&claimed).await;

    assert_eq!(ids(&claimed), [first]);
    assert_eq!(ids(&worker.claim(10).await), [second]);
    fixture.check().await;
}
