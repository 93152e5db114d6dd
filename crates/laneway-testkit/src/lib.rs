//! What Laneway is tested with.
//!
//! - [`cluster`] and [`pgbouncer`]: throwaway servers that never touch a running one and are gone when the test
//!   process is gone.

pub mod cluster;
pub mod pgbouncer;
mod postgres;
mod throwaway;
