//! Opening a PostgreSQL store: migrations, addresses, TLS, and servers that are not as they should be.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{check, open, state, total, whole_message, worker};
use futures_util::future::join_all;
use laneway_core::{Advance, Outcome, QueueName, State, Store, StoreError, TaskId};
use laneway_postgres::{PostgresOptions, PostgresStore, SCHEMA_VERSION, migration_script};
use laneway_testkit::cluster::{Cluster, ClusterOptions, Database};
use laneway_testkit::store::{a_task, soon, until};
use laneway_testkit::worker::{TestWorker, ids};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

async fn empty_database() -> Database {
    Cluster::shared().await.empty_database().await.unwrap()
}

async fn migrated_database() -> Database {
    Cluster::shared().await.database().await.unwrap()
}

/// The refusal of an address or a server.
async fn refused(options: PostgresOptions) -> StoreError {
    let opened = soon("an answer", PostgresStore::open(options)).await;
    opened.expect_err("opening should have been refused")
}

/// A port of 127.0.0.1 on which nobody listens.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Enqueues, claims and completes one task.
async fn works(store: &PostgresStore) {
    let id = store.enqueue(a_task().lane("a").into()).await.unwrap().id;
    let mut worker = worker(store).await;
    let claimed = worker.claim(10).await;
    assert!(ids(&claimed).contains(&id));
    worker.complete(&claimed).await;
    worker.deregister().await;
    assert_eq!(state(store, id).await, Some(State::Completed));
    check(store).await;
}

// ---- Migrations ----------------------------------------------------------------------------------------------

#[tokio::test]
async fn eight_stores_open_an_empty_database_at_once() {
    let database = empty_database().await;

    let stores = join_all((0..8).map(|_| open(&database.url))).await;

    for store in &stores {
        store.enqueue(a_task().into()).await.unwrap();
    }
    assert_eq!(total(&stores[0]).await, 8);
    let applied = "select count(*) from laneway.migration";
    let applied: i64 = database.connect().await.unwrap().query_one(applied, &[]).await.unwrap().get(0);
    assert_eq!(applied, i64::from(laneway_postgres::SCHEMA_VERSION));
}

#[tokio::test]
async fn two_schemas_of_one_database_do_not_see_each_other() {
    let database = empty_database().await;
    let in_schema = async |schema: &str| {
        let options = PostgresOptions::new(&database.url).schema(schema).pool_size(2);
        PostgresStore::open(options).await.unwrap()
    };
    let (first, second) = tokio::join!(in_schema("first_tasks"), in_schema("second_tasks"));

    let id = first.enqueue(a_task().lane("a").into()).await.unwrap().id;
    first.enqueue_many(vec![a_task().into(); 300]).await.unwrap();

    assert_eq!((total(&first).await, total(&second).await), (301, 0));
    assert!(worker(&second).await.claim(10).await.is_empty());
    assert!(ids(&worker(&first).await.claim(10).await).contains(&id));
    works(&second).await;
    let tables = "select count(*) from pg_tables where schemaname in ('public', 'laneway')";
    let strays: i64 = database.connect().await.unwrap().query_one(tables, &[]).await.unwrap().get(0);
    assert_eq!(strays, 0);
}

#[tokio::test]
async fn hints_stay_in_their_schema() {
    let database = empty_database().await;
    let in_schema = async |schema: &str| {
        let options = PostgresOptions::new(&database.url).schema(schema).pool_size(2);
        PostgresStore::open(options).await.unwrap()
    };
    let (first, second) = tokio::join!(in_schema("first_tasks"), in_schema("second_tasks"));
    let (mut here, mut there) = (first.hints(), second.hints());
    until("both listen", async || first.is_listening() && second.is_listening()).await;
    here.clear();
    there.clear();
    for store in [&first, &second] {
        let sleeper = worker(store).await.session();
        let sleep = laneway_core::Sleep {
            session: sleeper,
            queues: vec![QueueName::default()],
            at_most: Duration::from_secs(60),
        };
        store.fall_asleep(sleep).await.unwrap();
    }

    first.enqueue(a_task().into()).await.unwrap();

    soon("a hint", here.next()).await;
    assert!(!there.is_pending());
}

#[tokio::test]
async fn bad_schema_names_are_refused() {
    let database = empty_database().await;
    let long = "x".repeat(42);
    for schema in ["", "A", "1a", "a-b", "a b", "a\"b", "pg_tasks", "a; drop schema public", &long] {
        let error = refused(PostgresOptions::new(&database.url).schema(schema)).await;

        assert_eq!(error.code(), "invalid_schema", "{schema}");
        assert_eq!(migration_script(schema).unwrap_err().code(), "invalid_schema", "{schema}");
    }
    open_in(&database, &"x".repeat(41)).await;
}

async fn open_in(database: &Database, schema: &str) -> PostgresStore {
    PostgresStore::open(PostgresOptions::new(&database.url).schema(schema)).await.unwrap()
}

#[tokio::test]
async fn a_store_that_may_not_migrate_says_that_the_tables_are_missing() {
    let database = empty_database().await;

    let error = refused(PostgresOptions::new(&database.url).migrate(false)).await;

    assert_eq!(error.code(), "not_migrated");
    assert_eq!(
        error.to_string(),
        format!(
            "the store has schema version 0, this program needs {SCHEMA_VERSION}; run `laneway store migrate`"
        )
    );
    let schemas = "select count(*) from pg_namespace where nspname = 'laneway'";
    let made: i64 = database.connect().await.unwrap().query_one(schemas, &[]).await.unwrap().get(0);
    assert_eq!(made, 0);
    open(&database.url).await;
    PostgresStore::open(PostgresOptions::new(&database.url).migrate(false)).await.unwrap();
}

async fn add_migrations(database: &Database, rows: &str) {
    let insert = format!("insert into laneway.migration (version, name, breaking, program) values {rows}");
    database.connect().await.unwrap().batch_execute(&insert).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_that_breaks_names_the_version_to_install() {
    let database = migrated_database().await;
    add_migrations(&database, "(98, 'apart', true, '7.8.9'), (99, 'more', false, '8.0.0')").await;

    for migrate in [true, false] {
        let error = refused(PostgresOptions::new(&database.url).migrate(migrate)).await;

        assert_eq!(error.code(), "program_too_old");
        assert_eq!(
            error.to_string(),
            format!(
                "the store has schema version 99, this program knows {SCHEMA_VERSION}; install laneway 7.8.9 or newer"
            )
        );
    }
}

#[tokio::test]
async fn a_newer_schema_that_does_not_break_is_used_as_it_is() {
    let database = migrated_database().await;
    add_migrations(&database, "(99, 'more', false, '8.0.0')").await;

    works(&open(&database.url).await).await;
    works(&PostgresStore::open(PostgresOptions::new(&database.url).migrate(false)).await.unwrap()).await;
}

#[tokio::test]
async fn the_migration_script_runs_as_it_is() {
    let database = empty_database().await;
    let client = database.connect().await.unwrap();

    client.batch_execute(&migration_script("by_hand").unwrap()).await.unwrap();

    let options = PostgresOptions::new(&database.url).schema("by_hand");
    works(&PostgresStore::open(options.clone().migrate(false)).await.unwrap()).await;
    works(&PostgresStore::open(options).await.unwrap()).await;
    let days =
        "select count(*) from pg_tables where schemaname = 'by_hand' and tablename ~ '^ended_[0-9]{8}$'";
    let days: i64 = client.query_one(days, &[]).await.unwrap().get(0);
    assert_eq!(days, 3);
}

/// The address of `database` for another user.
fn as_user(database: &Database, user: &str) -> String {
    database.url.replace("postgres@", &format!("{user}@"))
}

#[tokio::test]
async fn a_user_without_the_right_to_create_works_with_tables_that_exist() {
    let database = migrated_database().await;
    let user = format!("app_{}", database.name);
    let grants = format!(
        "create role {user} login;
         grant usage on schema laneway to {user};
         grant select, insert, update, delete on all tables in schema laneway to {user};
         grant usage on all sequences in schema laneway to {user};"
    );
    database.connect().await.unwrap().batch_execute(&grants).await.unwrap();

    let store = open(&as_user(&database, &user)).await;

    works(&store).await;
    store.maintain().await.unwrap();
    // Days for which only an owner could make tables.
    let next_week = "create or replace function laneway.clock() returns timestamptz language sql
                     as $$ select clock_timestamp() + interval '7 days' $$";
    database.connect().await.unwrap().batch_execute(next_week).await.unwrap();
    store.maintain().await.unwrap();
    works(&store).await;
    add_migrations(&database, "(99, 'more', false, '8.0.0')").await;
    works(&open(&as_user(&database, &user)).await).await;
}

#[tokio::test]
async fn a_user_who_owns_the_schema_but_may_not_create_one_makes_the_tables() {
    let database = empty_database().await;
    let user = format!("owner_{}", database.name);
    let grants = format!("create role {user} login; create schema laneway authorization {user}");
    database.connect().await.unwrap().batch_execute(&grants).await.unwrap();

    works(&open(&as_user(&database, &user)).await).await;
}

// ---- Servers that are not as they should be ------------------------------------------------------------------

#[tokio::test]
async fn a_server_that_is_down_is_named_without_the_password() {
    let port = dead_port();

    let error =
        refused(PostgresOptions::new(format!("postgres://app:topsecret@127.0.0.1:{port}/shop"))).await;

    assert_eq!(error.code(), "unavailable");
    assert!(error.is_transient());
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach the database at 127.0.0.1:{port}/shop; check that it is running and that the address is right"
        )
    );
    assert!(!format!("{error:?} {}", whole_message(&error)).contains("topsecret"));
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_unavailable() {
    let error = refused(PostgresOptions::new("postgres://app:topsecret@no.such.host.invalid/shop")).await;

    assert_eq!(error.code(), "unavailable");
    assert!(error.to_string().contains("no.such.host.invalid:5432/shop"), "{error}");
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_a_refused_connection() {
    let error = refused(PostgresOptions::new(Cluster::shared().await.url("nowhere"))).await;

    assert_eq!(error.code(), "connection_refused");
    assert!(error.to_string().contains("check user, password, database name"), "{error}");
    assert!(whole_message(&error).contains("\"nowhere\" does not exist"), "{}", whole_message(&error));
}

#[tokio::test]
async fn a_wrong_password_is_a_refused_connection() {
    let secured = Secured::shared().await;

    let error = refused(PostgresOptions::new(secured.url("app:wrongsecret", "127.0.0.1", ""))).await;

    assert_eq!(error.code(), "connection_refused");
    assert!(!format!("{error:?} {}", whole_message(&error)).contains("wrongsecret"));
    works(&open(&secured.url("app:rightsecret", "127.0.0.1", "")).await).await;
}

#[tokio::test]
async fn a_read_only_database_refuses_what_writes_and_works_again_once_it_may() {
    let database = migrated_database().await;
    let admin = database.connect().await.unwrap();
    let read_only = async |value: &str| {
        let set = format!("alter database {} set default_transaction_read_only = {value}", database.name);
        admin.batch_execute(&format!("set default_transaction_read_only = off; {set}")).await.unwrap();
    };
    read_only("on").await;
    let store = open(&database.url).await;

    let single = store.enqueue(a_task().into()).await.unwrap_err();
    let several = store.enqueue_many(vec![a_task().into(); 2]).await.unwrap_err();
    let bulk = store.enqueue_many(vec![a_task().into(); 300]).await.unwrap_err();
    let registration = TestWorker::unregistered(Arc::new(store.clone())).registration();
    let register = store.register(registration).await.unwrap_err();
    for error in [single, several, bulk, register] {
        assert_eq!(error.code(), "read_only", "{error:?}");
        assert!(error.to_string().contains("target_session_attrs=read-write"), "{error}");
    }
    assert_eq!(total(&store).await, 0, "looking is allowed");

    read_only("off").await;
    let others = "select pg_terminate_backend(pid) from pg_stat_activity \
                  where datname = current_database() and pid <> pg_backend_pid()";
    admin.batch_execute(others).await.unwrap();
    until("the store has noticed", async || store.enqueue(a_task().into()).await.is_ok()).await;
    works(&store).await;
}

#[tokio::test]
async fn an_empty_database_that_is_read_only_cannot_be_migrated() {
    let database = empty_database().await;
    let set = format!("alter database {} set default_transaction_read_only = on", database.name);
    database.connect().await.unwrap().batch_execute(&set).await.unwrap();

    assert_eq!(refused(PostgresOptions::new(&database.url)).await.code(), "read_only");
}

#[tokio::test]
async fn a_database_whose_default_is_serializable_works() {
    let database = empty_database().await;
    let set = format!("alter database {} set default_transaction_isolation = serializable", database.name);
    database.connect().await.unwrap().batch_execute(&set).await.unwrap();

    let store = open(&database.url).await;

    works(&store).await;
    store.enqueue_many(vec![a_task().lane("b").into(); 300]).await.unwrap();
    works(&store).await;
    store.sweep().await.unwrap();
    store.maintain().await.unwrap();
}

// ---- Several hosts -------------------------------------------------------------------------------------------

/// An address with two hosts of which the second is the database.
fn second_of_two(database: &Database, first: u16) -> String {
    let hosts = format!("127.0.0.1:{first},127.0.0.1:{}", port_of(&database.url));
    format!("postgres://postgres@{hosts}/{}?target_session_attrs=read-write", database.name)
}

fn port_of(url: &str) -> &str {
    url.rsplit_once(':').unwrap().1.split('/').next().unwrap()
}

#[tokio::test]
async fn the_second_host_is_used_when_the_first_is_dead() {
    let database = migrated_database().await;

    works(&open(&second_of_two(&database, dead_port())).await).await;
}

#[tokio::test]
async fn the_second_host_is_used_when_the_first_is_read_only() {
    let database = migrated_database().await;
    let standby = Cluster::start(ClusterOptions::default()).await.unwrap();
    let admin = connect(&standby.url("postgres")).await;
    admin.batch_execute(&format!("create database {}", database.name)).await.unwrap();
    admin.batch_execute("alter system set default_transaction_read_only = on").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    until("it is read-only", async || {
        let row = connect(&standby.url("postgres"))
            .await
            .query_one("show transaction_read_only", &[])
            .await
            .unwrap();
        row.get::<_, &str>(0) == "on"
    })
    .await;

    works(&open(&second_of_two(&database, standby.port())).await).await;

    // With nobody to write to, the message tells why.
    let alone = format!("{}?target_session_attrs=read-write", standby.url(&database.name));
    assert_eq!(refused(PostgresOptions::new(alone)).await.code(), "read_only");
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

// ---- TLS -----------------------------------------------------------------------------------------------------

/// A server with TLS, whose certificate is for 127.0.0.1 only, and a user with a password.
struct Secured {
    cluster: Cluster,
    database: Database,
}

const MAKE_CERTIFICATES: &str = "
    make_key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes' &&
    openssl req -x509 $make_key -days 2 -keyout ca.key -out ca.crt -subj /CN=authority &&
    openssl req -x509 $make_key -days 2 -keyout other.key -out other.crt -subj /CN=another-authority &&
    openssl req $make_key -keyout server.key -out server.csr -subj /CN=database &&
    printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' >extensions &&
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out server.crt";

impl Secured {
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Secured> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
        let database = cluster.empty_database().await.unwrap();
        let admin = database.connect().await.unwrap();
        // Run by the server, in its data directory: so the key belongs to the user that the server wants it to.
        let program = |script: &str| format!("copy (select 1) to program '{}'", script.replace('\'', "''"));
        admin
            .batch_execute(&program(&format!("({MAKE_CERTIFICATES}) >>openssl.log 2>&1")))
            .await
            .unwrap_or_else(|error| {
                panic!("openssl is needed to make certificates (apt-get install openssl): {error:?}")
            });
        let guard = "sed -i '1i host all app 127.0.0.1/32 scram-sha-256' pg_hba.conf";
        admin.batch_execute(&program(guard)).await.unwrap();
        admin.batch_execute("create role app superuser login password 'rightsecret'").await.unwrap();
        admin.batch_execute("alter system set ssl = on").await.unwrap();
        admin.batch_execute("select pg_reload_conf()").await.unwrap();
        let secured = Self { cluster, database };
        until("the server speaks TLS", async || {
            PostgresStore::open(PostgresOptions::new(secured.url("postgres", "127.0.0.1", "sslmode=require")))
                .await
                .is_ok()
        })
        .await;
        secured
    }

    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{user}@{host}:{}/{}?{parameters}", self.cluster.port(), self.database.name)
    }

    fn file(&self, name: &str) -> String {
        self.cluster.directory().join("data").join(name).display().to_string()
    }

    /// Opens with these parameters and tells whether the connection is encrypted.
    async fn is_encrypted(&self, parameters: &str) -> bool {
        let name = format!("tls-{}", fastrand::u64(..));
        let parameters = format!("{parameters}&application_name={name}");
        let store = open(&self.url("postgres", "127.0.0.1", &parameters)).await;
        works(&store).await;
        let look = "select bool_and(s.ssl) from pg_stat_ssl s join pg_stat_activity a using (pid) where application_name = $1";
        let admin = self.database.connect().await.unwrap();
        admin.query_one(look, &[&name]).await.unwrap().get(0)
    }
}

#[tokio::test]
async fn tls_is_used_as_the_address_says() {
    let secured = Secured::shared().await;
    let root = format!("sslrootcert={}", secured.file("ca.crt"));

    assert!(!secured.is_encrypted("sslmode=disable").await);
    assert!(secured.is_encrypted("sslmode=prefer").await);
    assert!(secured.is_encrypted("sslmode=require").await);
    assert!(secured.is_encrypted(&format!("sslmode=verify-ca&{root}")).await);
    assert!(secured.is_encrypted(&format!("sslmode=verify-full&{root}")).await);
}

#[tokio::test]
async fn a_certificate_that_does_not_hold_is_refused_and_says_why() {
    let secured = Secured::shared().await;
    let (right, wrong) = (secured.file("ca.crt"), secured.file("other.crt"));
    let cases = [
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={wrong}"), "UnknownIssuer"),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={wrong}"), "UnknownIssuer"),
        ("localhost", format!("sslmode=verify-full&sslrootcert={right}"), "not valid for name \"localhost\""),
    ];
    for (host, parameters, says) in cases {
        let error = refused(PostgresOptions::new(secured.url("postgres", host, &parameters))).await;

        let message = whole_message(&error);
        assert_eq!(error.code(), "connection_refused", "{message}");
        assert!(message.contains(says) && message.contains(host), "{host} {parameters}: {message}");
    }
    // The host's name is not looked at.
    open(&secured.url("postgres", "localhost", &format!("sslmode=verify-ca&sslrootcert={right}"))).await;
    open(&secured.url("postgres", "localhost", "sslmode=require")).await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_when_tls_is_required() {
    let database = migrated_database().await;

    let error = refused(PostgresOptions::new(format!("{}?sslmode=require", database.url))).await;

    assert_eq!(error.code(), "connection_refused");
    assert!(whole_message(&error).contains("does not support TLS"), "{}", whole_message(&error));
}

// ---- A server that goes down and comes back ------------------------------------------------------------------

/// A worker that never gives up: what went unanswered is asked again.
async fn work_until_stopped(
    store: PostgresStore,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> Vec<TaskId> {
    let session = worker(&store).await.session();
    let (mut number, mut settles, mut done) = (0, vec![], vec![]);
    loop {
        number += 1;
        let mut advance = Advance { settles: std::mem::take(&mut settles), ..Advance::new(session, number) };
        advance = advance.claim(QueueName::default(), 20);
        let advanced = loop {
            match store.advance(advance.clone()).await {
                Ok(advanced) => break advanced,
                Err(error) => {
                    assert_eq!(error.code(), "unavailable", "{}", whole_message(&error));
                    advance.again = true;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        done.extend(advanced.settled.iter().map(|settled| settled.task));
        settles = advanced.claimed.iter().map(|claimed| claimed.settle(Outcome::completed())).collect();
        if settles.is_empty() && *stop.borrow_and_update() {
            return done;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_survives_its_servers_crash_without_losing_or_doubling_a_task() {
    let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
    let database = cluster.database().await.unwrap();
    let admin = database.connect().await.unwrap();
    // The throwaway server does not wait for its log otherwise, and may forget what it has acknowledged.
    admin.batch_execute("alter system set synchronous_commit = on").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    let store = open(&database.url).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let workers: Vec<_> =
        (0..2).map(|_| tokio::spawn(work_until_stopped(store.clone(), stopped.clone()))).collect();

    let mut accepted = HashSet::new();
    let mut unanswered = 0;
    for round in 0..2 {
        let before = accepted.len();
        while accepted.len() < before + 60 {
            accepted.insert(
                store
                    .enqueue(a_task().lane_of(&format!("lane {}", accepted.len() % 7), 2).into())
                    .await
                    .unwrap()
                    .id,
            );
        }
        cluster.stop_immediately().await.unwrap();
        let error = store.enqueue(a_task().into()).await.unwrap_err();
        assert_eq!(error.code(), "unavailable", "{}", whole_message(&error));
        cluster.restart().await.unwrap();
        until("the store works again", async || match store.enqueue(a_task().into()).await {
            Ok(stored) => accepted.insert(stored.id),
            Err(error) => {
                assert_eq!(error.code(), "unavailable", "round {round}: {}", whole_message(&error));
                unanswered += 1;
                false
            }
        })
        .await;
    }
    until("all is done", async || {
        let counts = store.counts().await.unwrap();
        counts.iter().all(|count| count.state == State::Completed)
    })
    .await;
    stop.send(true).unwrap();

    let mut done = vec![];
    for worker in workers {
        done.extend(worker.await.unwrap());
    }
    let settled: HashSet<_> = done.iter().copied().collect();
    assert_eq!(done.len(), settled.len(), "something was settled twice");
    let lost: Vec<_> = accepted.difference(&settled).collect();
    assert!(lost.is_empty(), "accepted and lost: {lost:?}");
    let stored = total(&store).await as usize;
    assert!((accepted.len()..=accepted.len() + unanswered + 2).contains(&stored), "{stored} tasks");
    check(&store).await;
}

#[tokio::test]
async fn a_listener_comes_back_after_its_servers_crash() {
    let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
    let database = cluster.database().await.unwrap();
    let store = open(&database.url).await;
    let mut hints = store.hints();
    until("the listener hears", async || store.is_listening()).await;
    hints.clear();

    cluster.restart().await.unwrap();

    soon("a hint after the crash", hints.next()).await;
    until("the listener hears again", async || store.is_listening()).await;
}
