//! The Laneway store on PostgreSQL 14 and newer.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use laneway_core::{Json, Kind, NewTask, Store};
//! use laneway_postgres::{PostgresOptions, PostgresStore};
//!
//! let store = PostgresStore::open(PostgresOptions::new("postgres://localhost/app")).await?;
//! let id = store.enqueue(NewTask::new(Kind::new("mail.receipt")?, Json::parse(r#"{"order": 7}"#)?)).await?.id;
//! # Ok(()) }
//! ```
//!
//! Every transition is one SQL function in `sql/`, called in one round trip; the tables are in `migrations/`. The
//! functions are a public interface: `laneway.enqueue` and `laneway.settle` work from psql, a trigger or any driver,
//! inside the caller's transaction. From Rust the same is [`PostgresStore::enqueue_in`] and
//! [`PostgresStore::settle_in`].
//!
//! Nothing relies on session state, so a transaction-mode pooler may sit in between; only the listener for hints wants a connection of its
//! own ([`PostgresOptions::direct_url`]). Where none does, the server keeps the statements of the hot path ([`Statements`]).
//!
//! Not here: when to claim, how long to back off, what to run (crate `laneway`).

mod act;
mod advance;
mod bounds;
mod connect;
mod copy;
mod enqueue;
mod error;
mod family;
mod fan_out;
mod filter;
mod handler;
mod listener;
mod look;
mod migrate;
mod options;
mod schedule;
#[cfg(feature = "sqlx")]
mod sqlx;
mod statement;
mod store;
mod token;
mod transaction;
mod unique;

pub use handler::HandlerError;
pub use migrate::{SCHEMA_VERSION, migration_script};
pub use options::{PostgresOptions, Statements};
pub use store::{ConnectionRoom, PostgresStore};
