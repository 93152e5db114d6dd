//! The throwaway servers themselves.

use laneway_testkit::cluster::{Cluster, ClusterOptions};
use laneway_testkit::pgbouncer::PgBouncer;

#[tokio::test]
async fn every_database_is_its_own() {
    let cluster = Cluster::shared().await;
    let first = cluster.database().await.unwrap();
    let second = cluster.database().await.unwrap();

    first.connect().await.unwrap().batch_execute("create table mine (id int)").await.unwrap();

    let tables = "select count(*) from pg_tables where tablename = 'mine'";
    let seen: i64 = second.connect().await.unwrap().query_one(tables, &[]).await.unwrap().get(0);
    assert_eq!(seen, 0);
}

#[tokio::test]
async fn a_database_is_reached_through_the_socket_too() {
    let database = Cluster::shared().await.empty_database().await.unwrap();

    let (client, connection) =
        tokio_postgres::connect(&database.socket_url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);

    let name: String = client.query_one("select current_database()::text", &[]).await.unwrap().get(0);
    assert_eq!(name, database.name);
}

#[tokio::test]
async fn a_stopped_server_comes_back_with_what_was_committed() {
    let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
    let database = cluster.empty_database().await.unwrap();
    let client = database.connect().await.unwrap();
    client.batch_execute("create table kept (id int)").await.unwrap();
    client.batch_execute("checkpoint").await.unwrap();

    cluster.stop_immediately().await.unwrap();
    assert!(database.connect().await.is_err());
    cluster.restart().await.unwrap();

    database.connect().await.unwrap().batch_execute("select id from kept").await.unwrap();
}

#[tokio::test]
async fn a_dropped_cluster_leaves_nothing_behind() {
    let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
    let (directory, url) = (cluster.directory().to_owned(), cluster.url("postgres"));

    drop(cluster);

    assert!(!directory.exists());
    assert!(tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err());
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_hands_out_connections_per_transaction() {
    let cluster = Cluster::shared().await;
    let database = cluster.empty_database().await.unwrap();
    let pooler = PgBouncer::start(cluster).await.unwrap();
    let connect = async || {
        let url = pooler.url(&database.name);
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let (first, second) = (connect().await, connect().await);

    first.simple_query("select set_config('laneway.mine', 'yes', false)").await.unwrap();

    let mine = second.simple_query("select current_setting('laneway.mine', true)").await.unwrap();
    let shared = mine.iter().any(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("yes"),
        _ => false,
    });
    assert!(shared, "both clients should have used the one server connection");
}
