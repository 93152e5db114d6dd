//! PostgreSQL under test: a database of its own for every test, on the server that all tests of the process share.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use laneway_core::{Limits, Store};
use laneway_postgres::{PostgresOptions, PostgresStore};
use tokio::sync::OnceCell;
use tokio_postgres::Client;

use crate::cluster::{Cluster, Database};
use crate::store::{Backend, TestStore};

/// Replaces the database's only source of time by one that can be moved.
const MOVABLE_CLOCK: &str = "
create table public.test_clock (ahead interval not null);
insert into public.test_clock values ('0');
create or replace function laneway.clock() returns timestamptz
language sql volatile parallel safe as $$ select clock_timestamp() + ahead from public.test_clock $$;";

const MOVE_CLOCK: &str = "update public.test_clock set ahead = ahead + make_interval(secs => $1)";

/// A fresh PostgreSQL store.
///
/// # Panics
/// When PostgreSQL is not installed or does not start; the message says what to do.
pub async fn fresh() -> TestStore {
    let database = Cluster::shared().await.database().await.expect("a fresh database");
    TestStore::on(Data { database, clock: OnceCell::new() }).await
}

/// A fresh PostgreSQL store whose functions stop for some milliseconds between their statements now and then. Each statement sees
/// what others have committed before it; this makes time for that.
///
/// # Panics
/// As [`fresh`].
pub async fn dawdling() -> TestStore {
    let database = Cluster::shared().await.database().await.expect("a fresh database");
    let client = database.connect().await.expect("the test's database is there");
    client
        .batch_execute("set search_path to laneway")
        .await
        .expect("the functions name their types without a schema");
    let functions = client.query(FUNCTIONS, &[]).await.expect("the functions can be read");
    for row in functions {
        let function = with_stops(row.get(0));
        client.batch_execute(&function).await.unwrap_or_else(|error| panic!("{error:?}:\n{function}"));
    }
    TestStore::on(Data { database, clock: OnceCell::new() }).await
}

/// The functions that take a new snapshot for each of their statements.
const FUNCTIONS: &str = "
select pg_get_functiondef(p.oid)
from pg_proc p
join pg_language l on l.oid = p.prolang
where p.pronamespace = 'laneway'::regnamespace
  and l.lanname = 'plpgsql'
  and p.provolatile = 'v'
  and p.prokind = 'f'";

/// The text of a function with a stop, taken one time in twenty, before its first statement and behind each that another one follows.
fn with_stops(function: &str) -> String {
    // Not a statement with `perform`, which would say that something was found.
    const STOP: &str = "if random() < 0.05 and pg_sleep(random() * 0.004) is null then end if;";
    let mut lines = function.lines().map(str::to_owned).collect::<Vec<_>>();
    let Some(begin) = lines.iter().position(|line| line.trim_end() == "begin") else {
        return function.to_owned();
    };
    for n in begin..lines.len() {
        let next = lines[n + 1..].iter().find_map(|line| line.split_whitespace().next()).unwrap_or("end");
        let is_last = ["else", "elsif", "end", "exception", "when"].contains(&next.trim_end_matches(';'));
        let code = lines[n].split("--").next().unwrap_or_default().trim_end();
        if n == begin || code.ends_with(';') && !is_last {
            lines[n] = format!("{code} {STOP}");
        }
    }
    lines.join("\n")
}

/// Makes Laneway's tables in the database at `url`.
pub(crate) async fn migrate(url: &str) {
    let options = PostgresOptions::new(url).pool_size(1).hints(false);
    PostgresStore::open(options).await.expect("a fresh database can be migrated");
}

struct Data {
    database: Database,
    /// A connection to move the clock with, once that was asked for.
    clock: OnceCell<Client>,
}

impl Data {
    async fn movable_clock(&self) -> Client {
        let client = self.database.connect().await.expect("the test's database is there");
        client.batch_execute(MOVABLE_CLOCK).await.expect("the clock can be replaced");
        client
    }
}

#[async_trait]
impl Backend for Data {
    async fn open(&self, limits: Limits) -> Arc<dyn Store> {
        let options = PostgresOptions::new(&self.database.url).pool_size(3).limits(limits);
        Arc::new(PostgresStore::open(options).await.expect("the test's database opens"))
    }

    async fn advance_clock(&self, by: Duration) {
        let client = self.clock.get_or_init(|| self.movable_clock()).await;
        client.execute(MOVE_CLOCK, &[&by.as_secs_f64()]).await.expect("the clock can be moved");
    }
}
