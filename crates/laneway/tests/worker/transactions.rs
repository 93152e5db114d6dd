//! Enqueue and complete in the caller's own PostgreSQL transaction.

use laneway::core::State as TaskState;
use laneway::{
    Client, Completion, EnqueueError, Failure, Payload, PostgresOptions, PostgresStore, SqliteStore, State,
    StoreHandle, Worker,
};
use laneway_testkit::cluster::{Cluster, Database};
use serde::{Deserialize, Serialize};

use crate::support::*;

async fn database() -> (Database, StoreHandle) {
    let database = Cluster::shared().await.database().await.unwrap();
    let store = PostgresStore::open(PostgresOptions::new(&database.url).pool_size(3)).await.unwrap();
    database
        .connect()
        .await
        .unwrap()
        .batch_execute("create table account (cents int8 not null)")
        .await
        .unwrap();
    (database, store.into())
}

async fn accounts(database: &Database) -> i64 {
    database.connect().await.unwrap().query_one("select count(*) from account", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_task_exists_if_and_only_if_the_callers_transaction_commits() {
    let (database, store) = database().await;
    let (client, mut connection) = (Client::new(&store), database.connect().await.unwrap());

    let transaction = connection.transaction().await.unwrap();
    let lost = client.enqueue_in(&transaction, [job(1)]).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = connection.transaction().await.unwrap();
    let kept = client.enqueue_in(&transaction, [laneway::task(job(2)).lane("a")]).await.unwrap();
    transaction.commit().await.unwrap();

    assert!(store.get(lost[0].id).await.unwrap().is_none());
    assert_eq!(store.get(kept[0].id).await.unwrap().unwrap().state, TaskState::Pending);
}

#[tokio::test]
async fn a_client_of_another_store_cannot_join_a_transaction() {
    let (database, _) = database().await;
    let mut connection = database.connect().await.unwrap();
    let transaction = connection.transaction().await.unwrap();
    let client = Client::new(SqliteStore::temporary().await.unwrap());

    let refused = client.enqueue_in(&transaction, [job(1)]).await;

    assert!(matches!(refused, Err(EnqueueError::NotPostgres { store: "sqlite" })), "{refused:?}");
}

#[derive(Serialize, Deserialize)]
struct Pay {
    /// What happens after the effects were written.
    then: Then,
}
impl Payload for Pay {
    const KIND: &'static str = "pay";
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Then {
    Commit,
    /// The first attempt fails before its commit.
    FailFirst,
    /// It commits, and then returns an error all the same.
    CommitAndFail,
}

async fn pay(
    pay: Pay,
    attempt: laneway::Attempt,
    completion: Completion,
    State(url): State<String>,
) -> Result<(), Failure> {
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let transaction = client.transaction().await?;
    transaction.execute("insert into account values (100)", &[]).await?;
    completion.complete_in(&transaction).await?;
    if pay.then == Then::FailFirst && attempt.number() == 1 {
        return Err(Failure::retry_after(std::time::Duration::ZERO, "crashed before the commit"));
    }
    transaction.commit().await?;
    if pay.then == Then::CommitAndFail { Err(Failure::retry("too late to fail")) } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_in_the_transaction_that_completes_happen_exactly_once() {
    let (database, store) = database().await;
    let client = Client::new(&store);
    let kinds = [Then::Commit, Then::FailFirst, Then::CommitAndFail];
    let tasks = client.enqueue_many(kinds.map(|then| Pay { then })).await.unwrap();

    let worker = Worker::builder(&store).state(database.url.clone()).handle(pay).build().unwrap();
    worker.run_until_empty().await.unwrap();

    assert_eq!(accounts(&database).await, 3);
    for task in tasks {
        assert_eq!(client.wait(task).await.unwrap().state(), TaskState::Completed);
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// A parent that completes in its own transaction, and what it spawns goes with that.
async fn pay_in_shares(
    pay_this: Pay,
    attempt: laneway::Attempt,
    completion: Completion,
    State(url): State<String>,
) -> Result<(), Failure> {
    for number in [1, 2] {
        attempt.spawn(job(number))?;
    }
    attempt.follow_up(job(3))?;
    pay(pay_this, attempt, completion, State(url)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_completion_in_the_handlers_transaction_are_stored_once() {
    for then in [Then::Commit, Then::FailFirst, Then::CommitAndFail] {
        let (database, store) = database().await;
        let (client, recorder) = (Client::new(&store), Recorder::default());
        let parent = client.enqueue(Pay { then }).await.unwrap();

        let worker = a_worker(&store, &recorder, 4).state(database.url.clone()).handle(pay_in_shares);
        worker.build().unwrap().run_until_empty().await.unwrap();

        assert_eq!(client.wait(parent).await.unwrap().state(), TaskState::Completed);
        let family = client.family(parent).await.unwrap().unwrap();
        assert_eq!((family.total, family.completed), (2, 2));
        assert_eq!(recorder.log().ended.len(), 3, "two children and a follow-up ran");
        assert_eq!(count(&*store, TaskState::Completed).await, 4, "the parent, two children, one follow-up");
        assert_eq!(accounts(&database).await, 1);
        assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_after_the_lease_was_lost_is_refused_and_rolls_back() {
    let (database, store) = database().await;
    let client = Client::new(&store);
    let (gate, recorder) = (std::sync::Arc::new(tokio::sync::Semaphore::new(0)), Recorder::default());
    async fn late(
        pay_this: Pay,
        attempt: laneway::Attempt,
        completion: Completion,
        State(url): State<String>,
        State(gate): State<std::sync::Arc<tokio::sync::Semaphore>>,
    ) -> Result<(), Failure> {
        gate.acquire().await?.forget();
        pay(pay_this, attempt, completion, State(url)).await
    }
    let task = client.enqueue(Pay { then: Then::Commit }).await.unwrap();
    let builder =
        Worker::builder(&store).state(database.url.clone()).state(gate.clone()).state(recorder).handle(late);
    let worker = start(builder);
    until("it runs", async || store.get(task.id).await.unwrap().unwrap().state == TaskState::Leased).await;

    // Somebody else is given the task and completes it.
    let session = store.workers().await.unwrap()[0].session;
    store.deregister(session).await.unwrap();
    gate.add_permits(10);

    // The first attempt is refused or dropped; the worker's new session runs the task again.
    client.wait(task).await.unwrap();
    assert_eq!(accounts(&database).await, 1);
    worker.stopped().await;
}

#[tokio::test]
async fn a_worker_that_needs_more_connections_than_the_server_has_says_so() {
    let (database, _) = database().await;
    let options = PostgresOptions::new(&database.url).pool_size(1_000).hints(false);
    let store = PostgresStore::open(options).await.unwrap();

    let refused = a_worker(store, &Recorder::default(), 1).build().unwrap().run_until_empty().await;

    let error = refused.err().unwrap().to_string();
    assert!(
        error.starts_with(
            "the worker may open 1002 connections (pool, renewal and listener) but the server allows 297"
        ),
        "{error}"
    );
}

/// The same with sqlx.
#[cfg(feature = "sqlx")]
mod with_sqlx {
    use super::*;
    use sqlx::PgPool;

    #[derive(Serialize, Deserialize)]
    struct Book {
        then: Then,
    }
    impl Payload for Book {
        const KIND: &'static str = "book";
    }

    async fn book(
        book: Book,
        attempt: laneway::Attempt,
        completion: Completion,
        State(pool): State<PgPool>,
    ) -> Result<(), Failure> {
        let mut transaction = pool.begin().await?;
        sqlx::query("insert into account values (100)").execute(&mut *transaction).await?;
        attempt.client().enqueue_in_sqlx(&mut transaction, [job(7)]).await?;
        completion.complete_in_sqlx(&mut transaction).await?;
        if book.then == Then::FailFirst && attempt.number() == 1 {
            return Err(Failure::retry_after(std::time::Duration::ZERO, "crashed before the commit"));
        }
        transaction.commit().await?;
        if book.then == Then::CommitAndFail { Err(Failure::discard("too late")) } else { Ok(()) }
    }

    #[tokio::test]
    async fn a_task_exists_if_and_only_if_the_callers_transaction_commits() {
        let (database, store) = database().await;
        let (client, pool) = (Client::new(&store), PgPool::connect(&database.url).await.unwrap());

        let mut transaction = pool.begin().await.unwrap();
        let lost = client.enqueue_in_sqlx(&mut transaction, [job(1)]).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let kept = client.enqueue_in_sqlx(&mut transaction, [laneway::task(job(2)).lane("a")]).await.unwrap();
        transaction.commit().await.unwrap();

        assert!(store.get(lost[0].id).await.unwrap().is_none());
        assert_eq!(store.get(kept[0].id).await.unwrap().unwrap().state, TaskState::Pending);
    }

    #[tokio::test]
    async fn effects_and_completion_happen_together_and_once() {
        for then in [Then::Commit, Then::FailFirst, Then::CommitAndFail] {
            let (database, store) = database().await;
            let pool = PgPool::connect(&database.url).await.unwrap();
            let task = Client::new(&store).enqueue(Book { then }).await.unwrap();

            let worker = Worker::builder(&store).state(pool).handle(book).build().unwrap();
            worker.run_until_empty().await.unwrap();

            assert_eq!(store.get(task.id).await.unwrap().unwrap().state, TaskState::Completed);
            assert_eq!(accounts(&database).await, 1, "its effects happened once");
            assert_eq!(count(&*store, TaskState::Pending).await, 1, "and so did the task that it enqueued");
        }
    }
}
