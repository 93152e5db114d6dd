//! PostgreSQL behind PgBouncer in transaction mode: nothing may live in a session.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{check, new_tasks, state, total, worker};
use futures_util::future::join_all;
use laneway_core::{
    Cancel, Hint, Kinds, LaneKey, Listing, NewTask, Outcome, Place, Scan, Sleep, State, Store, TaskId,
    Verdict,
};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::pgbouncer::PgBouncer;
use laneway_testkit::store::{a_task, ids_of, queue, secs, soon, until};
use laneway_testkit::worker::{ids, retry_after};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

/// The pooler that all tests of this process share.
async fn pooler() -> &'static PgBouncer {
    static SHARED: OnceCell<PgBouncer> = OnceCell::const_new();
    SHARED.get_or_init(|| async { PgBouncer::start(Cluster::shared().await).await.unwrap() }).await
}

async fn database() -> Database {
    Cluster::shared().await.database().await.unwrap()
}

/// The store of a database by way of the pooler.
async fn through_the_pooler(database: &Database) -> PostgresStore {
    PostgresStore::open(PostgresOptions::new(pooler().await.url(&database.name)).pool_size(6)).await.unwrap()
}

/// A plain connection by way of the pooler.
async fn connect(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&pooler().await.url(&database.name), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Claims and completes until `stop` tasks are done by all together.
async fn work(store: &PostgresStore, total: &std::sync::atomic::AtomicUsize, stop: usize) -> Vec<TaskId> {
    use std::sync::atomic::Ordering::Relaxed;
    let mut worker = worker(store).await;
    let mut done = vec![];
    while total.load(Relaxed) < stop {
        let claimed = worker
            .advance(|advance| {
                laneway_core::Advance { scan: Scan::Auto, ..advance }.claim(queue("default"), 40)
            })
            .await
            .claimed;
        worker.complete(&claimed).await;
        total.fetch_add(claimed.len(), Relaxed);
        done.extend(ids(&claimed));
    }
    worker.deregister().await;
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_workers_and_enqueuers_share_the_pooler() {
    let database = database().await;
    let store = through_the_pooler(&database).await;
    let lane = |i: usize| NewTask::from(a_task().lane_of(&format!("lane {}", i % 5), 3));
    let enqueue = async {
        let copied = store.enqueue_many((0..1_000).map(lane).collect()).await.unwrap();
        let few = store.enqueue_many((0..50).map(lane).collect()).await.unwrap();
        let singles = join_all((0..200).map(|_| store.enqueue(a_task().into()))).await;
        let singles = singles.into_iter().map(Result::unwrap).collect();
        let mut client = connect(&database).await;
        let transaction = client.transaction().await.unwrap();
        let own =
            store.enqueue_in(&transaction, new_tasks([a_task(), a_task().lane("lane 1")])).await.unwrap();
        transaction.commit().await.unwrap();
        ids_of(&[copied, few, singles, own].concat())
    };

    let total_done = std::sync::atomic::AtomicUsize::new(0);
    let workers = join_all((0..4).map(|_| work(&store, &total_done, 1_252)));
    let (stored, done) = soon("the work", async { tokio::join!(enqueue, workers) }).await;

    let done = done.concat();
    assert_eq!(done.len(), 1_252, "something was done twice");
    assert_eq!(done.into_iter().collect::<HashSet<_>>(), stored.into_iter().collect());
    check(&store).await;
}

#[tokio::test]
async fn an_empty_database_is_migrated_through_the_pooler() {
    let database = Cluster::shared().await.empty_database().await.unwrap();

    let stores = join_all((0..4).map(|_| through_the_pooler(&database))).await;

    for store in &stores {
        store.enqueue(a_task().into()).await.unwrap();
    }
    assert_eq!(total(&stores[0]).await, 4);
}

#[tokio::test]
async fn settles_in_a_transaction_go_through_the_pooler() {
    let database = database().await;
    let store = through_the_pooler(&database).await;
    let id = store.enqueue(a_task().into()).await.unwrap().id;
    let mut worker = worker(&store).await;
    let claimed = worker.claim_one().await;
    let mut client = connect(&database).await;

    let transaction = client.transaction().await.unwrap();
    store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let verdict = store.complete_in(&transaction, worker.session(), &claimed).await.unwrap();
    transaction.commit().await.unwrap();

    assert_eq!(verdict, Verdict::Completed);
    assert_eq!(state(&store, id).await, Some(State::Completed));
}

#[tokio::test]
async fn every_look_and_order_goes_through_the_pooler() {
    let database = database().await;
    let store = through_the_pooler(&database).await;
    let (default, lane) = (queue("default"), LaneKey::new("a").unwrap());
    let tasks = new_tasks([a_task(), a_task().lane("a"), a_task().delay(secs(60)), a_task().lane("a")]);
    let stored = ids_of(&store.enqueue_many(tasks).await.unwrap());
    let mut worker = worker(&store).await;

    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), stored[..2]);
    assert_eq!(store.cancel(stored[1]).await.unwrap(), Cancel::Requested);
    assert_eq!(worker.orders(&claimed).await.cancel, [stored[1]]);
    assert_eq!(worker.settle(&claimed[0], retry_after(secs(60))).await, Verdict::Later);
    assert_eq!(worker.settle(&claimed[1], Outcome::GivenBack).await, Verdict::Cancelled);

    for (place, rows) in [(Place::Pending, 1), (Place::Later, 2), (Place::Leased, 0), (Place::Ended, 1)] {
        assert_eq!(store.list(Listing::of(place)).await.unwrap().tasks.len(), rows, "{place:?}");
    }
    assert_eq!(store.workers().await.unwrap().len(), 1);
    assert_eq!(store.lane(&default, &lane).await.unwrap().unwrap().pending, 1);
    assert!(store.is_claimable(std::slice::from_ref(&default), &Kinds::All).await.unwrap());
    assert!(store.pause_queue(&default).await.unwrap());
    assert!(worker.claim(10).await.is_empty());
    assert!(store.resume_queue(&default).await.unwrap());
    assert_eq!(ids(&worker.claim(10).await), [stored[3]]);
    store.sweep().await.unwrap();
    store.maintain().await.unwrap();
    check(&store).await;
}

/// The functions set the planner up for themselves; that must not stay behind in a connection which others use next.
#[tokio::test]
async fn no_setting_stays_behind_in_the_poolers_connections() {
    let database = database().await;
    let store = through_the_pooler(&database).await;
    store.enqueue_many(vec![a_task().into(); 300]).await.unwrap();
    let mut worker = worker(&store).await;
    let claimed = worker.claim(10).await;
    worker.complete(&claimed).await;

    let settings = "select name || '=' || setting from pg_settings where source = 'session' \
                    and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')";
    let clients = join_all((0..10).map(|_| connect(&database))).await;
    let seen = join_all(clients.iter().map(|client| client.simple_query(settings))).await;

    for answer in seen {
        let left: Vec<_> = answer
            .unwrap()
            .into_iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => {
                    Some(row.get(0).unwrap_or_default().to_owned())
                }
                _ => None,
            })
            .collect();
        assert_eq!(left, Vec::<String>::new());
    }
}

#[tokio::test]
async fn without_a_direct_address_workers_poll() {
    let database = database().await;
    let store = through_the_pooler(&database).await;
    let hints = store.hints();
    let mut sleeper = worker(&store).await;
    let sleep = Sleep { session: sleeper.session(), queues: vec![queue("default")], at_most: secs(60) };
    let fence = store.fall_asleep(sleep).await.unwrap();
    until("the fence is passed", async || store.fence_passed(fence).await.unwrap()).await;

    let id = store.enqueue(a_task().into()).await.unwrap().id;

    assert_eq!(ids(&sleeper.claim(1).await), [id], "a poll finds it");
    // A probe is given five seconds to come back; behind the pooler it never does.
    let patience = tokio::time::Instant::now() + Duration::from_secs(6);
    while tokio::time::Instant::now() < patience {
        assert!(!store.is_listening() && !hints.is_pending());
        store.enqueue(a_task().into()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn with_a_direct_address_hints_arrive() {
    let database = database().await;
    let options =
        PostgresOptions::new(pooler().await.url(&database.name)).direct_url(&database.url).pool_size(6);
    let store = PostgresStore::open(options).await.unwrap();
    let mut hints = store.hints();
    until("the listener hears", async || store.is_listening()).await;
    hints.clear();
    let sleeper = worker(&store).await;
    let sleep = Sleep { session: sleeper.session(), queues: vec![queue("default")], at_most: secs(60) };
    store.fall_asleep(sleep).await.unwrap();

    store.enqueue(a_task().into()).await.unwrap();

    let hint = soon("a hint", hints.next()).await;
    assert_eq!(hint, Some(Hint::of(queue("default"), 1)));
}
