//! The connections that only look.
//!
//! They see the last commit and are never held up by the writer. A look runs on a blocking thread, in one
//! read transaction, so that everything it reads is from the same moment.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::Semaphore;

use laneway_core::{Meter, StoreError};

use crate::error::store_error;
use crate::file;

/// Looks that run at the same time; further ones wait.
const READERS_MAX: usize = 4;

/// The pool of connections that look.
#[derive(Clone)]
pub(crate) struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
    room: Arc<Semaphore>,
    meter: Meter,
}

impl Readers {
    /// No connection yet; they are opened when they are needed.
    pub(crate) fn new(path: PathBuf, meter: Meter) -> Self {
        let room = Arc::new(Semaphore::new(READERS_MAX));
        Self { path: Arc::new(path), idle: Arc::default(), room, meter }
    }

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        (*self.path).clone()
    }

    /// Runs `look` in a read transaction.
    pub(crate) async fn look<T, F>(&self, doing: &'static str, look: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let asked = Instant::now();
        let permit = self.room.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        self.meter.wait(asked.elapsed());
        let readers = self.clone();
        let result = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let result = readers.look_blocking(look);
            readers.meter.statement(doing, began.elapsed());
            drop(permit);
            result.map_err(|error| store_error(doing, &file::shown(&readers.path), &error))
        });
        result.await.unwrap_or_else(|error| Err(StoreError::Unexpected { doing, source: error.into() }))
    }

    fn look_blocking<T>(&self, look: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => file::open_reader(&self.path)?,
        };
        let transaction = connection.unchecked_transaction()?;
        let value = look(&transaction)?;
        transaction.finish()?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(value)
    }
}
