//! How a store is: its version, and how much room its tables take.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

/// A store as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreHealth {
    /// The database and its version: `PostgreSQL 15.8`, `SQLite 3.51.3`.
    pub database: String,
    /// The version of the tables.
    pub schema_version: i32,
    /// The tables, largest first. Days of history are told together. SQLite tells its `file` and its `wal` instead.
    pub tables: Vec<TableHealth>,
    /// The age of the oldest open transaction that we may see, of any program: it keeps dead rows alive. Always none with
    /// SQLite.
    #[serde(
        rename = "oldest_transaction_seconds",
        serialize_with = "seconds",
        deserialize_with = "from_seconds"
    )]
    pub oldest_transaction: Option<Duration>,
}

/// A table as it is now. Rows are the database's estimates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableHealth {
    /// Its name, without the schema.
    pub table: String,
    /// Rows.
    pub rows: u64,
    /// Rows that were deleted or changed and are not cleaned up yet.
    pub dead_rows: u64,
    /// What it takes on disk, with its indexes.
    pub bytes: u64,
}

fn seconds<S: serde::Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

fn from_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(serde::de::Error::custom)
}
