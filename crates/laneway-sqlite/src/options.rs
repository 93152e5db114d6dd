//! Where a store is kept, and what may be set about it.

use std::path::PathBuf;

use laneway_core::Limits;

use crate::clock::Clock;

/// How to open a store.
///
/// ```
/// use laneway_core::{Limits, Store};
/// use laneway_sqlite::{SqliteOptions, SqliteStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("tasks.db");
/// let options = SqliteOptions::new(path)
///     .limits(Limits { payload_bytes_max: 64 * 1024, ..Default::default() });
/// let store = SqliteStore::open(options).await?;
/// assert_eq!(store.name(), "sqlite");
/// # Ok::<(), laneway_core::StoreError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    pub(crate) path: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
}

impl SqliteOptions {
    /// The store in the file at `path`, which is made if it does not exist. Its directory must exist, and must
    /// be on a local disk: file locks cannot be trusted over a network.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), limits: Limits::default(), clock: Clock::system() }
    }

    /// How large payloads and bulk enqueues may be.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Another clock than the machine's, for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}
