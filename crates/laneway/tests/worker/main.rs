//! The library's own tests: its interface, how attempts end, outages, and stopping.

#[path = "../support/mod.rs"]
mod support;

mod attempts;
mod building;
mod enqueueing;
mod families;
mod liveness;
mod memory;
mod outages;
mod pages;
mod resting;
mod schedules;
mod sql_handlers;
mod stopping;
mod testing;
#[cfg(feature = "otel")]
mod tracing_context;
mod transactions;
mod tuning;
