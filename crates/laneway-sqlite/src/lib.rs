//! Laneway in one file: the store that needs no set-up.
//!
//! Same behaviour as `laneway-postgres`, kept in an SQLite file that several processes of one machine may share.
//! One thread writes, in transactions that are shared by all callers that happen to wait (`writer.rs`); looks go
//! over connections of their own (`reader.rs`). Because there is one writer at a time, nothing has to be skipped,
//! marked or looked at twice: the line of turns (`turn.rs`, `line.rs`) is exact after every command.
//!
//! Read `migrations/0001_tables.sql` first, then `turn.rs`, then the verbs, one file each: `enqueue.rs`,
//! `advance.rs` (`settle.rs`, `due.rs`, `claim.rs`, `pick.rs`), `renew.rs`, `sweep.rs`, `cancel.rs`, `lane.rs`, `queue.rs`,
//! `schedule.rs`, and what operators do: `act.rs`, `pause.rs`, `bulk.rs`, `audit.rs`.
//!
//! Always true:
//! - An answer means that the change is committed and flushed to disk.
//! - All time comes from one [`Clock`], which each command reads once.
//!
//! Not here: when to claim, how long to back off, what to run.

mod act;
mod advance;
mod audit;
mod bulk;
mod cancel;
mod changes;
mod children;
mod claim;
mod claimable;
mod clock;
mod count;
mod due;
mod end;
mod enqueue;
mod error;
mod family;
mod file;
mod filter;
mod fold;
mod follow_up;
mod keep;
mod lane;
mod lanes;
mod line;
mod list;
mod look;
mod maintain;
mod migrate;
mod options;
mod pause;
mod pick;
mod progress;
mod queue;
mod reader;
mod renew;
mod row;
mod schedule;
mod settle;
mod sleep;
mod spawn;
mod store;
mod sweep;
mod token;
mod turn;
mod unique;
mod verify;
mod why;
mod writer;

pub use clock::Clock;
pub use migrate::SCHEMA_VERSION;
pub use options::SqliteOptions;
pub use store::SqliteStore;
