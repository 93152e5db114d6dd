//! PostgreSQL under test.

/// Makes Laneway's tables.
pub(crate) async fn migrate(_url: &str) {}
