//! The commands, one file per group.

pub mod bench;
pub mod bulk;
pub mod completions;
pub mod config;
pub mod demo;
pub mod dev;
pub mod enqueue;
pub mod lanes;
pub mod man;
pub mod queues;
pub mod schedules;
pub mod serve;
pub mod store;
pub mod tasks;
pub mod token;
pub mod worker;
