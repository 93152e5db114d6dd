//! Durable tasks for PostgreSQL and SQLite: enqueue them, run thousands at once, lose none.
//!
//! ```
//! use laneway::{Client, Payload, SqliteStore, StoreHandle, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Receipt { order: u64 }
//! impl Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
//!
//! async fn send_receipt(receipt: Receipt) -> Result<(), std::io::Error> {
//!     println!("sending the receipt of order {}", receipt.order);
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = StoreHandle::from(SqliteStore::temporary().await?);
//! Client::new(&store).enqueue(Receipt { order: 7 }).lane("customer:7").await?;
//!
//! let worker = Worker::builder(&store).handle(send_receipt).build()?;
//! worker.run_until_empty().await?; // a service calls `run`, which ends with SIGTERM
//! # Ok(()) }
//! ```
//!
//! - [`Client`] enqueues: one, many, or inside the caller's PostgreSQL transaction; it cancels, and waits for results.
//! - A [`Payload`] is what a task carries; its kind selects the handler.
//! - A [`Handler`] is a plain async function from a payload to a `Result`. It may ask for shared [`State`], for its
//!   [`Attempt`], and for a [`Completion`]; with [`Failure`] it says what shall happen next.
//! - A handler spawns children, siblings and follow-ups through its [`Attempt`]: see [`Attempt::spawn`] and
//!   [`WorkerBuilder::handle_then`].
//! - A [`Worker`] runs handlers: one coordinator that settles and claims in one round trip, and as many attempts as it has
//!   slots. [`Stop`] ends it in an orderly way.
//!
//! The stores are `laneway-postgres` and `laneway-sqlite`; their words (`Lane`, `RetryPolicy`, `TaskView`, …) are in
//! [`core`].

mod attempt;
mod backoff;
mod board;
mod builder;
mod client;
mod completion;
#[cfg(feature = "postgres")]
mod connections;
mod coordinator;
mod draft;
mod failure;
mod family;
mod handler;
mod housekeeping;
mod lanes;
mod latency;
mod memory;
mod metrics;
mod options;
#[cfg(feature = "otel")]
mod otel;
mod payload;
mod pressure;
mod renew;
mod run;
mod share;
mod shared;
mod slots;
mod sql_handlers;
mod state;
mod stop;
mod store_handle;
mod summary;
pub mod testing;
mod timings;
mod trace;
mod tuning;
mod vitals;
mod worker;

pub use laneway_core as core;
pub use laneway_core::{
    Enqueued, FamilyPolicy, FamilyView, Progress, RetryPolicy, Store, StoreError, TaskId,
};
#[cfg(feature = "postgres")]
pub use laneway_postgres::{PostgresOptions, PostgresStore, Statements};
#[cfg(feature = "sqlite")]
pub use laneway_sqlite::{SqliteOptions, SqliteStore};

pub use attempt::{Attempt, StopReason};
pub use builder::{BuildError, WorkerBuilder};
pub use client::{Client, EndedTask, EnqueueError, ResultError, WaitError};
pub use completion::Completion;
pub use draft::{Draft, task};
pub use failure::Failure;
pub use handler::{FromAttempt, Handler, IntoAnswer, Setup};
pub use memory::Memory;
pub use metrics::Metrics;
pub use options::Profile;
pub use payload::Payload;
pub use state::State;
pub use stop::Stop;
pub use store_handle::StoreHandle;
pub use summary::Summary;
pub use timings::Timings;
pub use trace::TraceContext;
pub use tuning::{Tuned, Tuning, TuningError};
pub use worker::{Worker, WorkerError};

/// The examples of the README, which are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
