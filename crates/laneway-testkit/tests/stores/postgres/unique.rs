//! Unique keys on PostgreSQL: what two sessions do to one another, step by step, and the keys of plain SQL.

use std::time::Duration;

use crate::support::{Fixture, fixture, new_tasks};
use laneway_core::{
    Effect, Enqueued, Json, KeyScope, NewTask, OnConflict, State, Store, StoreError, TaskId, Unique,
};
use laneway_testkit::store::{ATask, a_task, ids_of, secs, soon, unique_key, until};
use laneway_testkit::worker::{ids, retry_after};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

fn key() -> Unique {
    Unique::new(unique_key("k"))
}

fn existing(id: TaskId) -> Enqueued {
    Enqueued { id, effect: Effect::Existing }
}

impl Fixture {
    /// A caller with an open transaction in which it has enqueued `task`.
    async fn holding_key_of(&self, task: ATask) -> (Client, TaskId) {
        let client = self.connect().await;
        client.batch_execute("begin").await.unwrap();
        let answer = self.store.enqueue_in(&client, vec![task.into()]).await.unwrap();
        (client, answer[0].id)
    }

    /// An enqueue that is under way.
    fn enqueuing(&self, task: ATask) -> JoinHandle<Result<Enqueued, StoreError>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.enqueue(task.into()).await })
    }
}

#[tokio::test]
async fn when_the_winner_rolls_back_the_loser_is_stored() {
    let fixture = fixture().await;
    let (winner, gone) = fixture.holding_key_of(a_task().unique("k")).await;
    let loser = fixture.enqueuing(a_task().unique("k"));
    fixture.until_somebody_waits().await;

    winner.batch_execute("rollback").await.unwrap();

    let stored = loser.await.unwrap().unwrap();
    assert!(stored.is_new() && stored.id > gone);
    assert_eq!(ids(&fixture.worker().await.claim(10).await), [stored.id]);
    fixture.check().await;
}

#[tokio::test]
async fn when_the_winner_commits_the_loser_is_told_of_it() {
    let fixture = fixture().await;
    let (winner, first) = fixture.holding_key_of(a_task().unique("k")).await;
    let loser = fixture.enqueuing(a_task().unique("k"));
    fixture.until_somebody_waits().await;

    winner.batch_execute("commit").await.unwrap();

    assert_eq!(loser.await.unwrap().unwrap(), existing(first));
    assert_eq!(fixture.total().await, 1);
    fixture.check().await;
}

#[tokio::test]
async fn a_key_that_is_held_for_long_delays_its_own_enqueues_only() {
    let fixture = fixture().await;
    let mut worker = fixture.worker().await;
    let (holder, _) = fixture.holding_key_of(a_task().unique("k")).await;
    // More callers than the store has connections.
    let waiting: Vec<_> = (0..10).map(|_| fixture.enqueuing(a_task().unique("k"))).collect();
    fixture.until_somebody_waits().await;

    soon("everybody else goes on", async {
        for n in 0..20 {
            assert!(
                fixture.store.enqueue(a_task().unique(&format!("other {n}")).into()).await.unwrap().is_new()
            );
            fixture.given(a_task()).await;
            let bulk = vec![NewTask::from(a_task().unique(&format!("bulk {n}"))); 250];
            fixture.store.enqueue_many(bulk).await.unwrap();
            let claimed = worker.claim(10).await;
            worker.complete(&claimed).await;
        }
    })
    .await;
    holder.batch_execute("rollback").await.unwrap();

    let mut new = 0;
    for call in waiting {
        match call.await.unwrap() {
            Ok(answer) => new += u32::from(answer.is_new()),
            Err(error) => assert_eq!(error.code(), "busy"),
        }
    }
    assert!(new <= 1);
    fixture.check().await;
}

#[tokio::test]
async fn a_caller_is_told_when_a_key_is_held_for_too_long() {
    let fixture = fixture().await;
    let (holder, _) = fixture.holding_key_of(a_task().unique("k")).await;

    let alone = fixture.store.enqueue(a_task().unique("k").into()).await.unwrap_err();
    let bulk = vec![NewTask::from(a_task().unique("k")); 250];
    let in_bulk = fixture.store.enqueue_many(bulk).await.unwrap_err();

    assert_eq!([alone.code(), in_bulk.code()], ["busy"; 2]);
    assert!(alone.is_transient());
    holder.batch_execute("rollback").await.unwrap();
    assert_eq!(fixture.total().await, 0);
}

#[tokio::test]
async fn two_bulks_with_the_same_keys_in_opposite_order_do_not_lock_one_another_up() {
    let fixture = fixture().await;
    for round in 0..5 {
        let task = |n: usize| NewTask::from(a_task().unique(&format!("{round} {n}")));
        let forth: Vec<_> = (0..300).map(task).collect();
        let back: Vec<_> = (0..300).rev().map(task).collect();

        let (forth, back) = soon("both bulks", async {
            tokio::join!(fixture.store.enqueue_many(forth), fixture.store.enqueue_many(back))
        })
        .await;

        let (forth, mut back) = (ids_of(&forth.unwrap()), ids_of(&back.unwrap()));
        back.reverse();
        assert_eq!(forth, back);
    }
    assert_eq!(fixture.total().await, 1_500);
    fixture.check().await;
}

#[tokio::test]
async fn a_unique_task_is_retried_while_a_new_one_arrives() {
    let fixture = fixture().await;
    let pending = || a_task().unique_as(key().scope(KeyScope::WhilePending));
    let first = fixture.given(pending()).await;
    let mut worker = fixture.worker().await;
    let claimed = worker.claim_one().await;
    let (newcomer, second) = fixture.holding_key_of(pending()).await;

    // Neither the retry nor the sweep waits for the newcomer's transaction.
    soon("a retry", worker.settle(&claimed, retry_after(secs(0)))).await;
    let claimed = soon("a claim", worker.claim(5)).await;
    assert_eq!(ids(&claimed), [first]);
    fixture.silence(&worker).await;
    soon("a sweep", fixture.store.sweep()).await.unwrap();
    newcomer.batch_execute("commit").await.unwrap();

    assert_eq!(fixture.store.enqueue(pending().into()).await.unwrap(), existing(second));
    assert_eq!(ids(&fixture.worker().await.claim(10).await), [first, second]);
    fixture.check().await;
}

#[tokio::test]
async fn a_task_that_ends_in_an_open_transaction_delays_the_next_of_its_key() {
    let fixture = fixture().await;
    for (end, is_new) in [("rollback", false), ("commit", true)] {
        let first = fixture.store.enqueue(a_task().unique("k").into()).await.unwrap().id;
        let mut worker = fixture.worker().await;
        let claimed = worker.claim_one().await;
        let client = fixture.connect().await;
        client.batch_execute("begin").await.unwrap();
        fixture.store.complete_in(&client, worker.session(), &claimed).await.unwrap();

        let next = fixture.enqueuing(a_task().unique("k"));
        fixture.until_somebody_waits().await;
        client.batch_execute(end).await.unwrap();

        let next = next.await.unwrap().unwrap();
        assert_eq!((next.is_new(), next.id == first), (is_new, !is_new));
        worker.deregister().await;
    }
    fixture.check().await;
}

#[tokio::test]
async fn a_payload_that_is_being_replaced_keeps_no_worker_waiting() {
    let fixture = fixture().await;
    let replace = |payload: &str| a_task().payload(payload).unique_as(key().on_conflict(OnConflict::Replace));
    for (end, payload) in [("rollback", "[1]"), ("commit", "[2]")] {
        let first = fixture.given(replace("[1]")).await;
        let other = fixture.given(a_task()).await;
        let (editor, edited) = fixture.holding_key_of(replace("[2]")).await;
        assert_eq!(edited, first);
        let mut worker = fixture.worker().await;

        let meanwhile = soon("a claim", worker.claim(10)).await;
        let answer = soon("an enqueue", fixture.store.enqueue(replace("[3]").into())).await.unwrap();
        editor.batch_execute(end).await.unwrap();
        let after = worker.claim_one().await;

        assert_eq!((ids(&meanwhile), answer), (vec![other], existing(first)));
        assert_eq!((after.task.id, after.task.payload.as_str()), (first, payload));
        worker.complete(&[after]).await;
        worker.complete(&meanwhile).await;
    }
    fixture.check().await;
}

#[tokio::test]
async fn a_worker_that_takes_a_task_is_not_waited_for() {
    let fixture = fixture().await;
    let replace = || a_task().unique_as(key().on_conflict(OnConflict::Replace)).payload("[2]");
    let first = fixture.given(a_task().unique("k").payload("[1]")).await;
    let claimer = fixture.connect().await;
    claimer.batch_execute("begin; select from laneway.task for update").await.unwrap();

    let answer = soon("an enqueue", fixture.store.enqueue(replace().into())).await.unwrap();
    claimer.batch_execute("rollback").await.unwrap();

    assert_eq!(answer, existing(first));
    assert_eq!(fixture.store.get(first).await.unwrap().unwrap().payload, Some(Json::trusted("[1]")));
    assert_eq!(fixture.store.enqueue(replace().into()).await.unwrap().effect, Effect::Replaced);
}

#[tokio::test]
async fn an_expired_key_that_is_taken_over_keeps_no_worker_waiting() {
    let fixture = fixture().await;
    let short = || a_task().unique_as(key().scope(KeyScope::Within(Duration::from_millis(1))));
    let first = fixture.given(short()).await;
    let mut worker = fixture.worker().await;
    let claimed = worker.claim(1).await;
    let over = "select expires_at < clock_timestamp() from laneway.unique_key";
    until("the key is over", async || fixture.value(over).await).await;
    let (newcomer, second) = fixture.holding_key_of(short()).await;

    soon("a settle", worker.complete(&claimed)).await;
    soon("maintenance", fixture.store.maintain()).await.unwrap();
    newcomer.batch_execute("commit").await.unwrap();

    assert!(second > first);
    assert_eq!(fixture.state(first).await, Some(State::Completed));
    fixture.store.maintain().await.unwrap();
    until("the key is removed", async || {
        fixture.store.maintain().await.unwrap();
        fixture.value::<i64>("select count(*) from laneway.unique_key").await == 0
    })
    .await;
    fixture.check().await;
}

#[tokio::test]
async fn a_refused_key_leaves_the_callers_transaction_usable() {
    let fixture = fixture().await;
    let first = fixture.given(a_task().unique("k")).await;
    let reject = || a_task().unique_as(key().on_conflict(OnConflict::Reject));
    let mut client = fixture.connect().await;

    let transaction = client.transaction().await.unwrap();
    let refused = fixture.store.enqueue_in(&transaction, new_tasks([a_task().unique("l"), reject()])).await;
    let kept =
        fixture.store.enqueue_in(&transaction, new_tasks([a_task().unique("l"), a_task()])).await.unwrap();
    transaction.commit().await.unwrap();

    assert!(matches!(refused, Err(StoreError::KeyTaken { holder, .. }) if holder == first));
    assert!(kept.iter().all(|answer| answer.is_new()));
    assert_eq!(fixture.total().await, 3);
    fixture.check().await;
}

#[tokio::test]
async fn keys_are_exact_above_read_committed() {
    for level in ["repeatable read", "serializable"] {
        let fixture = fixture().await;
        let mut worker = fixture.worker().await;
        let old = fixture.given(a_task().unique("old")).await;
        let client = fixture.connect().await;
        client.batch_execute(&format!("begin isolation level {level}; select 1")).await.unwrap();
        let enqueue =
            |key: &'static str| fixture.store.enqueue_in(&client, new_tasks([a_task().unique(key)]));
        assert!(enqueue("mine").await.unwrap()[0].is_new(), "the snapshot is taken");

        // Given up after the snapshot, so free; taken after the snapshot, so neither seen nor free.
        let claimed = worker.claim(1).await;
        worker.complete(&claimed).await;
        let again = enqueue("old").await.unwrap()[0];
        fixture.given(a_task().unique("taken")).await;
        let taken = enqueue("taken").await.unwrap_err();
        client.batch_execute("rollback").await.unwrap();

        assert!(again.is_new() && again.id > old);
        assert_eq!(taken.code(), "busy");
        fixture.check().await;
    }
}

#[tokio::test]
async fn sqlx_knows_keys_too() {
    use sqlx::Connection;
    let fixture = fixture().await;
    let first = fixture.given(a_task().unique("k")).await;
    let mut connection = sqlx::PgConnection::connect(&fixture.database.url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();

    let tasks = new_tasks([a_task().unique("k"), a_task(), a_task().unique("l").delay(secs(9))]);
    let answers = fixture.store.enqueue_in_sqlx(&mut transaction, tasks).await.unwrap();
    let reject = new_tasks([a_task().unique_as(key().on_conflict(OnConflict::Reject))]);
    let refused = fixture.store.enqueue_in_sqlx(&mut transaction, reject).await.unwrap_err();
    transaction.commit().await.unwrap();

    assert_eq!(answers[0], existing(first));
    assert!(answers[1].is_new() && answers[2].is_new());
    assert_eq!(refused.code(), "unique_conflict");
    fixture.check().await;
}

#[tokio::test]
async fn plain_sql_enqueues_with_keys() {
    let fixture = fixture().await;
    let enqueue =
        async |more: &str| fixture.value::<i64>(&format!("select laneway.enqueue('work', {more})")).await;

    let first = enqueue("unique_key => 'k'").await;
    assert_eq!(enqueue("unique_key => 'k', payload => '[1]'").await, first);
    assert_eq!(enqueue("unique_key => 'k', payload => '{\"a\": 1}', on_conflict => 'merge'").await, first);
    let pending = enqueue("unique_key => 'p', unique_while => 'pending'").await;
    let timed = enqueue("unique_key => 't', unique_for => '1 hour'").await;
    let once = enqueue("idempotency_key => 'i', lane => 'a'").await;
    assert_eq!(enqueue("idempotency_key => 'i', lane => 'a'").await, once);

    let view = async |id: i64| fixture.store.get(TaskId(id)).await.unwrap().unwrap();
    assert_eq!(view(first).await.payload, Some(Json::trusted(r#"{"a":1}"#)));
    let scope = async |id| view(id).await.options.unique.unwrap().scope;
    assert_eq!(scope(first).await, KeyScope::WhileOpen);
    assert_eq!(scope(pending).await, KeyScope::WhilePending);
    assert_eq!(scope(timed).await, KeyScope::Within(secs(3600)));
    assert_eq!(scope(once).await, KeyScope::Within(secs(24 * 3600)));
    assert_eq!(fixture.store.enqueue(a_task().unique("k").into()).await.unwrap(), existing(TaskId(first)));
    fixture.check().await;
}

#[tokio::test]
async fn plain_sql_is_told_of_keys_that_are_taken_or_not_valid() {
    let fixture = fixture().await;
    let client = fixture.connect().await;
    let first: i64 = fixture.value("select laneway.enqueue('work', unique_key => 'k')").await;
    let second: i64 = fixture.value("select laneway.enqueue('work', idempotency_key => 'k')").await;

    for (arguments, sqlstate, code, says) in [
        (
            "unique_key => 'k', on_conflict => 'reject'",
            "23505",
            "unique_conflict",
            format!(
                "the key `k` is held by task {first}; wait until it has ended, or enqueue with another conflict rule"
            ),
        ),
        (
            "idempotency_key => 'k', priority => 1",
            "23505",
            "idempotency_conflict",
            format!(
                "the idempotency key `k` was used for task {second}, which is a different one; use a new key for a new task"
            ),
        ),
        (
            "unique_key => ''",
            "22023",
            "invalid_name",
            "unique.key is empty; a name has 1 to 200 bytes".into(),
        ),
        (
            "unique_key => 'l', unique_for => '31 days'",
            "22023",
            "out_of_range",
            "unique.within is 2678400000; allowed is 1 to 2592000000 ms".into(),
        ),
        (
            "unique_key => 'l', unique_while => 'ever'",
            "22023",
            "invalid_name",
            "unique_while `ever` is unknown; one of: open, pending".into(),
        ),
        (
            "unique_key => 'l', on_conflict => 'x'",
            "22023",
            "invalid_name",
            "on_conflict `x` is unknown; one of: existing, replace, merge, reject".into(),
        ),
        (
            "unique_key => 'l', idempotency_key => 'l'",
            "22023",
            "invalid_name",
            "unique_key and idempotency_key exclude one another: a task has one key".into(),
        ),
    ] {
        let error =
            client.query_one(&format!("select laneway.enqueue('work', {arguments})"), &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.message()), (sqlstate, says.as_str()), "{arguments}");
        assert_eq!(error.detail(), Some(format!("code: {code}").as_str()));
    }
    assert_eq!(fixture.total().await, 2);
}

#[tokio::test]
async fn tasks_without_keys_never_touch_the_table_of_keys() {
    let fixture = fixture().await;
    fixture.connect().await.batch_execute("drop table laneway.unique_key").await.unwrap();

    let tasks =
        || new_tasks([a_task(), a_task().lane("a"), a_task().delay(secs(60)), a_task().max_attempts(1)]);
    fixture.store.enqueue_many(tasks()).await.unwrap();
    fixture.store.enqueue_many(vec![a_task().into(); 250]).await.unwrap();
    let late = fixture.given(a_task().delay(secs(60))).await;
    let mut worker = fixture.worker().await;
    let claimed = worker.claim(300).await;
    worker.settle(&claimed[0], retry_after(secs(60))).await;
    worker.settle(&claimed[1], laneway_testkit::worker::failed()).await;
    worker.complete(&claimed[2..]).await;
    fixture.store.cancel(late).await.unwrap();

    assert_eq!(claimed.len(), 253);
}
