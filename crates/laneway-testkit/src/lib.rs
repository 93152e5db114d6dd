//! What Laneway is tested with.
//!
//! - [`cluster`] and [`pgbouncer`]: throwaway servers that never touch a running one and are gone when the test
//!   process is gone.
//! - [`postgres`] and [`sqlite`]: fresh stores of either kind.
//! - [`store`] and [`worker`]: a store under test with a clock that can be moved, and a worker in slow motion.
//! - [`checker`]: what parallel workers did, and whether it was right.
//! - [`model`]: a random script against a model of the contract.
//! - [`pages`]: the shell blocks of README and docs.
//! - [`suite`]: the behaviours that every store must show, made into tests by [`store_suite!`].

pub mod checker;
pub mod cluster;
pub mod model;
pub mod pages;
pub mod pgbouncer;
pub mod postgres;
pub mod sqlite;
pub mod store;
pub mod suite;
mod throwaway;
pub mod worker;
