//! SQLite under test: a file of its own for every test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use laneway_core::{Limits, Store};
use laneway_sqlite::{Clock, SqliteOptions, SqliteStore};
use tempfile::TempDir;

use crate::store::{Backend, TestStore};

/// A fresh SQLite store.
pub async fn fresh() -> TestStore {
    let directory = tempfile::tempdir().expect("a temporary directory");
    TestStore::on(File { directory, clock: Clock::shifted() }).await
}

/// A file in a directory that is removed after the test.
struct File {
    directory: TempDir,
    clock: Clock,
}

#[async_trait]
impl Backend for File {
    async fn open(&self, limits: Limits) -> Arc<dyn Store> {
        let path = self.directory.path().join("laneway.db");
        let options = SqliteOptions::new(path).limits(limits).clock(self.clock.clone());
        Arc::new(SqliteStore::open(options).await.expect("a fresh file opens"))
    }

    async fn advance_clock(&self, by: Duration) {
        self.clock.advance(by);
    }
}
