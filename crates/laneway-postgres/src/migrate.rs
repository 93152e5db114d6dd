//! Creates and updates the tables.
//!
//! Tables change by numbered migrations; the functions in `sql/` belong to the newest number and are replaced with it.
//! A program that finds a newer schema works with it unless a migration since its own is marked `-- breaking`.

use laneway_core::StoreError;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::error::translate;

/// The schema version that this program makes and needs.
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// One numbered change of the tables.
struct Migration {
    name: &'static str,
    sql: &'static str,
}

macro_rules! migrations {
    ($($name:literal),*) => {
        &[$(Migration { name: $name, sql: include_str!(concat!("../migrations/", $name, ".sql")) }),*]
    };
}
macro_rules! functions {
    ($($name:literal),*) => { &[$(include_str!(concat!("../sql/", $name, ".sql"))),*] };
}

const MIGRATIONS: &[Migration] = migrations![
    "0001_tables",
    "0002_unique_keys",
    "0003_schedules",
    "0004_statistics",
    "0005_changes",
    "0006_operators",
    "0007_families",
    "0008_tokens",
    "0009_progress"
];

/// The functions, each after those that it needs when it is created.
const FUNCTIONS: &[&str] = functions![
    "clock",
    "lane_id",
    "hint",
    "check_input",
    "unique",
    "changes",
    "enqueue",
    "line",
    "retire",
    "take_up",
    "pace",
    "pick",
    "claim",
    "record_ends",
    "settle",
    "family",
    "due",
    "give_back",
    "renew",
    "sweep",
    "sleep",
    "advance",
    "cancel",
    "lane",
    "audit",
    "pause",
    "act",
    "bulk",
    "token",
    "progress",
    "filter",
    "look",
    "list",
    "schedule",
    "fold",
    "why",
    "count",
    "keep",
    "health",
    "verify",
    "maintain",
    "handler",
    "jit"
];

/// The oldest server that works: `json` arrays with lz4, `pg_current_xact_id`, subscripted assignment.
const SERVER_MIN: i32 = 140_000;

/// Everything that opening a store in an empty database would run, for review, or to be run as it is by somebody who
/// may create schemas. It is one transaction.
///
/// ```
/// let script = laneway_postgres::migration_script("laneway").unwrap();
/// assert!(script.contains("create table task"));
/// ```
///
/// # Errors
/// `invalid_schema`.
pub fn migration_script(schema: &str) -> Result<String, StoreError> {
    laneway_core::validate::schema_name(schema)?;
    Ok(format!("begin;\n{};\n{}\ncommit;\n", prepare_sql(schema), upgrade_sql(0)))
}

/// Makes the schema and the list of what was applied, and makes the schema the current one.
fn prepare_sql(schema: &str) -> String {
    // `create schema if not exists` asks for the right to create one even when it exists.
    format!(
        "do $$ begin if to_regnamespace('{schema}') is null then create schema {schema}; end if; end $$;\n\
         set local search_path to {schema}, pg_temp;\n{REGISTER}"
    )
}

/// Brings the current schema from version `found` to the newest.
fn upgrade_sql(found: usize) -> String {
    let mut script = String::new();
    for (place, migration) in MIGRATIONS.iter().enumerate().skip(found) {
        let record = format!(
            "insert into migration (version, name, breaking, program) values ({}, '{}', {}, '{}');",
            place + 1,
            migration.name,
            migration.sql.starts_with("-- breaking"),
            env!("CARGO_PKG_VERSION"),
        );
        script = [&script, migration.sql, &record, "\n"].join("\n");
    }
    [&script, &FUNCTIONS.join("\n"), "select prepare_days();"].join("\n")
}

/// The list of what was applied. Read by every program, so it never changes.
const REGISTER: &str = "create table if not exists migration (
    version    int primary key,
    name       text not null,
    breaking   boolean not null,
    program    text not null,
    applied_at timestamptz not null default clock_timestamp()
)";

/// Brings the schema up to this program's version. Many processes may do so at once: one does, the others wait for it.
pub(crate) async fn migrate(client: &mut Client, schema: &str, target: &str) -> Result<(), StoreError> {
    let failed = |error| translate(target, "migrate", error);
    if installed(client, schema, target).await? >= SCHEMA_VERSION {
        return Ok(());
    }
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted)
        .start()
        .await
        .map_err(failed)?;
    transaction
        .execute_typed(
            "select pg_advisory_xact_lock(1281452377, hashtext($1))",
            &[(&schema, tokio_postgres::types::Type::TEXT)],
        )
        .await
        .map_err(failed)?;
    apply(&transaction, schema).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

async fn apply(transaction: &Transaction<'_>, schema: &str) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute(&prepare_sql(schema)).await?;
    let rows = transaction.query_typed("select coalesce(max(version), 0) from migration", &[]).await?;
    let found: i32 = rows[0].get(0);
    if found >= SCHEMA_VERSION {
        return Ok(()); // Somebody else was faster.
    }
    transaction.batch_execute(&upgrade_sql(found as usize)).await
}

/// Checks that this program can work with the server and the schema.
pub(crate) async fn check(client: &Client, schema: &str, target: &str) -> Result<(), StoreError> {
    let found = installed(client, schema, target).await?;
    if found < SCHEMA_VERSION {
        return Err(StoreError::NotMigrated { found, needs: SCHEMA_VERSION });
    }
    Ok(())
}

/// The version of the schema, 0 for none. Refuses a server that is too old, and a schema that is too new.
async fn installed(client: &Client, schema: &str, target: &str) -> Result<i32, StoreError> {
    let failed = |error| translate(target, "read the schema version", error);
    let text = "select current_setting('server_version_num')::int, current_setting('server_version'), \
                to_regclass($1) is not null";
    let name = format!("{schema}.migration");
    let row = client
        .query_typed(text, &[(&name, tokio_postgres::types::Type::TEXT)])
        .await
        .map_err(failed)?
        .remove(0);
    if row.get::<_, i32>(0) < SERVER_MIN {
        let found = format!("PostgreSQL {}", row.get::<_, String>(1));
        return Err(StoreError::Unsupported { found, needs: "PostgreSQL 14".into() });
    }
    if !row.get::<_, bool>(2) {
        return Ok(0);
    }
    let text = format!("select version, breaking, program from {name} order by version");
    let rows = client.query_typed(&text, &[]).await.map_err(failed)?;
    let newest = rows.last().map_or(0, |row| row.get(0));
    let breaking = rows.iter().rev().find(|row| row.get::<_, i32>(0) > SCHEMA_VERSION && row.get(1));
    match breaking {
        Some(row) => Err(StoreError::TooOld { found: newest, known: SCHEMA_VERSION, needs: row.get(2) }),
        None => Ok(newest),
    }
}
