//! What tests share, mostly those of the PostgreSQL store: a database of their own, the store on it, and plain connections.

use std::sync::Arc;

use laneway_core::{FamilyPolicy, NewTask, State, Store, TaskId};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::store::{ATask, until};
use laneway_testkit::worker::TestWorker;
use tokio_postgres::Client;

/// A store in a database of its own, and the way past it.
pub struct Fixture {
    pub store: PostgresStore,
    pub database: Database,
}

/// A fresh store on the server that all tests of the process share.
pub async fn fixture() -> Fixture {
    let database = Cluster::shared().await.database().await.unwrap();
    Fixture { store: open(&database.url).await, database }
}

/// The store at `url`.
pub async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(PostgresOptions::new(url).pool_size(3)).await.unwrap()
}

impl Fixture {
    /// A plain connection.
    pub async fn connect(&self) -> Client {
        self.database.connect().await.unwrap()
    }

    pub async fn until_somebody_waits(&self) {
        until_somebody_waits(&self.database).await;
    }

    pub async fn worker(&self) -> TestWorker {
        worker(&self.store).await
    }

    pub async fn given(&self, task: ATask) -> TaskId {
        self.store.enqueue(task.into()).await.unwrap().id
    }

    pub async fn state(&self, task: TaskId) -> Option<State> {
        state(&self.store, task).await
    }

    pub async fn total(&self) -> u64 {
        total(&self.store).await
    }

    /// One value of one row.
    pub async fn value<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, query: &str) -> T {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Makes a worker's session look silent for too long.
    pub async fn silence(&self, worker: &TestWorker) {
        let long_ago =
            "update laneway.worker set seen_at = seen_at - interval '31 seconds' where session = $1";
        self.connect().await.execute(long_ago, &[&worker.session().0]).await.unwrap();
    }

    /// Fails the test when the store's invariants do not hold.
    pub async fn check(&self) {
        check(&self.store).await;
    }
}

pub async fn worker(store: &PostgresStore) -> TestWorker {
    TestWorker::register(Arc::new(store.clone())).await
}

pub async fn state(store: &PostgresStore, task: TaskId) -> Option<State> {
    store.get(task).await.unwrap().map(|view| view.state)
}

pub async fn total(store: &PostgresStore) -> u64 {
    store.counts().await.unwrap().iter().map(|count| count.tasks).sum()
}

pub async fn check(store: &PostgresStore) {
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new(), "the invariants do not hold");
}

/// The numbers of families that have ended add up, and nobody has completed in spite of a child that has not.
pub async fn check_families(store: &dyn Store) {
    for id in 1.. {
        let Some(view) = store.get(TaskId(id)).await.unwrap() else {
            if store.counts().await.unwrap().iter().map(|count| count.tasks).sum::<u64>() < id as u64 {
                return;
            }
            continue;
        };
        let Some(family) = view.family.filter(|_| view.state.has_ended()) else { continue };
        let ends = family.completed + family.failed + family.cancelled;
        assert_eq!((family.total, family.open), (ends, 0), "the family of task {id}: {family:?}");
        let is_bad = family.has_failed() && family.policy != FamilyPolicy::Ignore;
        assert!(!is_bad || view.state != State::Completed, "task {id} has completed: {family:?}");
    }
}

/// Tasks as a store takes them.
pub fn new_tasks<const N: usize>(tasks: [ATask; N]) -> Vec<NewTask> {
    tasks.into_iter().map(NewTask::from).collect()
}

/// What an error says, with all that is behind it.
pub fn whole_message(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        message = format!("{message}: {inner}");
        source = inner.source();
    }
    message
}

/// Waits until some statement in `database` waits for a lock.
pub async fn until_somebody_waits(database: &Database) {
    let client = database.connect().await.unwrap();
    let waits = "select exists (select from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock')";
    until("somebody waits for a lock", async || client.query_one(waits, &[]).await.unwrap().get(0)).await;
}
