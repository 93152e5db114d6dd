//! Brings the tables of a file up to date, whoever else opens it at the same time.
//!
//! Migrations are numbered, run once, in order, and all in one transaction. The file remembers them together with
//! the program that ran them, so that an older program can tell whether it may go on: it may, unless one
//! that it does not know is marked `-- breaking` in its first line.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use laneway_core::StoreError;

use crate::error::{foreign, store_error};
use crate::file::patiently;

/// The version of the tables that this program makes and needs.
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// The migrations in order; the first has version 1.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_tables.sql"),
    include_str!("../migrations/0002_unique_keys.sql"),
    include_str!("../migrations/0003_schedules.sql"),
    include_str!("../migrations/0004_statistics.sql"),
    include_str!("../migrations/0005_changes.sql"),
    include_str!("../migrations/0006_operators.sql"),
    include_str!("../migrations/0007_families.sql"),
    include_str!("../migrations/0008_tokens.sql"),
    include_str!("../migrations/0009_progress.sql"),
];

/// "LNWY": what tells our files from other programs' SQLite files.
const APPLICATION_ID: i32 = 0x4C4E_5759;

const CREATE_MIGRATION: &str = "
create table migration (
    version integer primary key,
    breaking integer not null check (breaking in (0, 1)),
    program text not null,
    applied_at integer not null
) strict";

const NEWEST: &str = "select coalesce(max(version), 0) from migration";

const NEWEST_BREAKING: &str = "
select program
from migration
where version > ?1
  and breaking = 1
order by version desc
limit 1";

const INSERT_MIGRATION: &str = "
insert into migration (version, breaking, program, applied_at)
values (?1, ?2, ?3, ?4)";

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody's: it is empty.
    Nobody,
    /// Ours.
    Laneway,
    /// Another program's.
    Stranger,
}

impl Owner {
    /// Refuses another program's file.
    pub(crate) fn refuse_strangers(self, shown: &str) -> Result<(), StoreError> {
        match self {
            Self::Stranger => Err(foreign(shown, "it is another program's SQLite database")),
            Self::Nobody | Self::Laneway => Ok(()),
        }
    }
}

/// Reads whose file it is, without changing it.
pub(crate) fn owner(connection: &Connection) -> rusqlite::Result<Owner> {
    let id: i32 = connection.query_row("pragma application_id", [], |row| row.get(0))?;
    let tables: i64 = connection.query_row("select count(*) from sqlite_schema", [], |row| row.get(0))?;
    Ok(match (id, tables) {
        (APPLICATION_ID, _) => Owner::Laneway,
        (0, 0) => Owner::Nobody,
        _ => Owner::Stranger,
    })
}

/// Runs the migrations that the file has not had.
pub(crate) fn migrate(connection: &mut Connection, shown: &str) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| store_error("migrate", shown, &error);
    patiently(|| connection.execute_batch("begin immediate")).map_err(failed)?;
    let result = migrate_locked(connection, shown);
    let end = if result.is_ok() { "commit" } else { "rollback" };
    connection.execute_batch(end).map_err(failed)?;
    result
}

/// What [`migrate`] does once no other process can.
fn migrate_locked(connection: &Connection, shown: &str) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| store_error("migrate", shown, &error);
    // Looked at again under the lock: another program may have taken the empty file meanwhile.
    let owner = owner(connection).map_err(failed)?;
    owner.refuse_strangers(shown)?;
    if owner == Owner::Nobody {
        connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        connection.execute_batch(CREATE_MIGRATION).map_err(failed)?;
    }

    let found: i32 = connection.query_row(NEWEST, [], |row| row.get(0)).map_err(failed)?;
    let known = SCHEMA_VERSION;
    let needs: Option<String> =
        connection.query_row(NEWEST_BREAKING, [known], |row| row.get(0)).optional().map_err(failed)?;
    if let Some(needs) = needs {
        return Err(StoreError::TooOld { found, known, needs });
    }
    (found + 1..=known).try_for_each(|version| apply(connection, version)).map_err(failed)
}

fn apply(connection: &Connection, version: i32) -> rusqlite::Result<()> {
    let statements = MIGRATIONS[version as usize - 1];
    connection.execute_batch(statements)?;
    let breaking = statements.starts_with("-- breaking");
    let applied_at = Timestamp::now().as_microsecond();
    connection
        .execute(INSERT_MIGRATION, params![version, breaking, env!("CARGO_PKG_VERSION"), applied_at])
        .map(|_| ())
}
