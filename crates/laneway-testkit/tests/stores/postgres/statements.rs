//! Statements that the server keeps: seen in its log, where a kept one has a name.

use std::time::SystemTime;

use crate::support::worker;
use laneway_core::Store;
use laneway_postgres::{PostgresOptions, PostgresStore, Statements};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::store::{a_task, until};
use laneway_testkit::worker::ids;

/// A database whose statements are logged, and a schema whose name finds them.
async fn scene() -> (Database, String) {
    let database = Cluster::shared().await.database().await.unwrap();
    let log = format!("alter database {} set log_statement = 'all'", database.name);
    database.connect().await.unwrap().batch_execute(&log).await.unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (database, format!("kept_{}", now.as_nanos()))
}

async fn listening(options: PostgresOptions) -> PostgresStore {
    let store = PostgresStore::open(options.pool_size(2)).await.unwrap();
    let _hints = store.hints();
    until("the listener hears", async || store.is_listening()).await;
    store
}

/// Enqueues and works for a while.
async fn use_it(store: &PostgresStore) {
    let mut worker = worker(store).await;
    for _ in 0..5 {
        let id = store.enqueue(a_task().into()).await.unwrap().id;
        let claimed = worker.claim(1).await;
        assert_eq!(ids(&claimed), [id]);
        worker.complete(&claimed).await;
    }
}

/// How the calls of `function` were sent: the names of their statements.
async fn names_of(schema: &str, function: &str) -> Vec<String> {
    let call = format!("{schema}.{function}(");
    let log = std::fs::read(Cluster::shared().await.directory().join("server.log")).unwrap();
    let log = String::from_utf8_lossy(&log);
    let calls = log.lines().filter(|line| line.contains(&call));
    let names = calls.filter_map(|line| Some(line.split_once("execute ")?.1.split_once(": ")?.0));
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn hot_statements_are_kept_where_a_connection_is_a_session() {
    let (database, schema) = scene().await;
    let store = listening(PostgresOptions::new(&database.url).schema(&schema)).await;

    use_it(&store).await;

    for function in ["advance", "enqueue_many"] {
        let names = names_of(&schema, function).await;
        assert!(names.len() >= 5, "{function}: {names:?}");
        assert!(names.iter().all(|name| name != "<unnamed>"), "{function}: {names:?}");
    }
}

#[tokio::test]
async fn without_a_sign_of_sessions_statements_are_sent_whole() {
    let (database, schema) = scene().await;
    let options = PostgresOptions::new(&database.url).schema(&schema).hints(false);
    use_it(&PostgresStore::open(options).await.unwrap()).await;
    // What is listened to elsewhere says nothing about the connections of the pool.
    let direct = PostgresOptions::new(&database.url).schema(&schema).direct_url(&database.url);
    use_it(&listening(direct).await).await;

    for function in ["advance", "enqueue_many"] {
        let names = names_of(&schema, function).await;
        assert!(names.len() >= 10, "{function}: {names:?}");
        assert!(names.iter().all(|name| name == "<unnamed>"), "{function}: {names:?}");
    }
}

#[tokio::test]
async fn who_knows_better_says_so() {
    let (database, schema) = scene().await;
    let named = PostgresOptions::new(&database.url).schema(&schema).hints(false);
    use_it(&PostgresStore::open(named.statements(Statements::Named)).await.unwrap()).await;
    let names = names_of(&schema, "advance").await;
    assert!(names.len() >= 5 && names.iter().all(|name| name != "<unnamed>"), "{names:?}");

    let (database, schema) = scene().await;
    let unnamed = PostgresOptions::new(&database.url).schema(&schema).statements(Statements::Unnamed);
    use_it(&listening(unnamed).await).await;
    let names = names_of(&schema, "advance").await;
    assert!(names.len() >= 5 && names.iter().all(|name| name == "<unnamed>"), "{names:?}");
}

#[tokio::test]
async fn a_worker_goes_on_when_a_migration_changes_what_a_kept_statement_answers() {
    let (database, schema) = scene().await;
    let store = listening(PostgresOptions::new(&database.url).schema(&schema)).await;
    use_it(&store).await;

    let newer = format!(
        "alter type {schema}.advance_row alter attribute remaining type varchar;
         set check_function_bodies = off;
         do $$
         declare definition text;
         begin
             for definition in
                 select pg_get_functiondef(oid) from pg_proc
                 where pronamespace = '{schema}'::regnamespace and prokind in ('f', 'p')
             loop
                 execute definition;
             end loop;
         end $$"
    );
    database.connect().await.unwrap().batch_execute(&newer).await.unwrap();
    use_it(&store).await;

    let names = names_of(&schema, "advance").await;
    assert!(names.iter().any(|name| name == "<unnamed>"), "it was not noticed: {names:?}");
    assert!(names.last().is_some_and(|name| name != "<unnamed>"), "it was not kept anew: {names:?}");
}
