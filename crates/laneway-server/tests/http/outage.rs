//! The database goes away and comes back, under load: the server lives, says so, and nothing that was accepted is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use laneway::core::{Store, TaskId};
use laneway::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, ClusterOptions};
use laneway_testkit::store::until;

use crate::client::Running;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_restarts_under_load_loses_nothing_that_was_accepted() {
    let cluster = Cluster::start(ClusterOptions::default().durable(true)).await.unwrap();
    let database = cluster.database().await.unwrap();
    let store = Arc::new(PostgresStore::open(PostgresOptions::new(&database.url)).await.unwrap());
    let server = Arc::new(Running::on(store.clone()).await);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..4).map(|_| tokio::spawn(post_until(Arc::clone(&server), Arc::clone(&done)))).collect();
    until("the server sees the database go or come", async || {
        store.counts().await.is_ok_and(|counts| counts.iter().any(|count| count.tasks > 50))
    })
    .await;

    cluster.stop_immediately().await.unwrap();
    until("the server sees the database go or come", async || server.get("/readyz").await.status == 503)
        .await;
    assert_eq!(server.get("/livez").await.status, 200);
    let refused = server.post("/api/v1/tasks", r#"{"kind": "a"}"#).await;
    assert_eq!(refused.problem().0, 503);
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert!(!refused.body.contains("postgres@"), "{}", refused.body);
    assert!(server.get("/metrics").await.body.contains("store_up 0"));

    cluster.restart().await.unwrap();
    until("the server sees the database go or come", async || server.get("/readyz").await.status == 200)
        .await;
    let before: u64 = store.counts().await.unwrap().iter().map(|count| count.tasks).sum();
    until("the server sees the database go or come", async || {
        store.counts().await.is_ok_and(|counts| counts.iter().any(|count| count.tasks > before + 20))
    })
    .await;
    done.store(true, Ordering::SeqCst);
    let mut accepted = BTreeSet::new();
    for client in clients {
        accepted.extend(client.await.unwrap());
    }

    assert!(accepted.len() > 70);
    for id in accepted {
        assert!(store.get(TaskId(id)).await.unwrap().is_some(), "task {id} was accepted and is gone");
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// Posts tasks one after the other and returns those that were accepted. Every other answer must be a 503.
async fn post_until(server: Arc<Running>, done: Arc<AtomicBool>) -> Vec<i64> {
    let mut accepted = vec![];
    while !done.load(Ordering::SeqCst) {
        let answer = server.post("/api/v1/tasks", r#"{"kind": "a"}"#).await;
        match answer.status {
            201 => accepted.push(answer.json()["id"].as_i64().unwrap()),
            status => assert_eq!(status, 503, "{}", answer.body),
        }
    }
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_outlives_an_outage_with_a_gap() {
    let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
    let database = cluster.database().await.unwrap();
    let store = Arc::new(PostgresStore::open(PostgresOptions::new(&database.url)).await.unwrap());
    let server = Running::on(store.clone()).await;
    let mut events = server.follow("", None).await;
    events.expect("ready").await;

    cluster.restart().await.unwrap();

    events.expect("gap").await;
    server.post("/api/v1/tasks", r#"{"kind": "a"}"#).await.expect(201);
    events.expect("changes").await;
}
