//! Handlers that are functions or procedures in the database: see `handler.sql`.

use deadpool_postgres::Object;
use laneway_core::{Claimed, Kind, SessionId, StoreError, Verdict};
use tokio_postgres::types::Type;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::advance::{stored_name, verdict};
use crate::error::translate;
use crate::store::{Parameter, PostgresStore};

/// Why an attempt that ran in the database has not completed. What it did there is undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The handler raised an error, or what it spawned was refused.
    #[error("{0}")]
    Raised(String),
    /// The database could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PostgresStore {
    /// The kinds that have a handler in the database: those that `register_handler` was called for.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn handler_kinds(&self) -> Result<Vec<Kind>, StoreError> {
        let rows = self.call("list handlers", "handler_kinds()", &[]).await?;
        Ok(rows[0].get::<_, Vec<String>>(0).into_iter().map(stored_name).collect())
    }

    /// Runs an attempt with its kind's handler in the database. The handler's effects, the end of the task and what
    /// it spawned are one transaction: they happen together and once, or not at all.
    ///
    /// Up to half of the store's connections run handlers.
    ///
    /// # Errors
    /// When the handler raised an error, or the attempt is not this session's any more.
    ///
    /// # Cancel safety
    /// When the future is dropped the server is asked to stop. If that comes too late, the task has completed.
    pub async fn run_handler(&self, session: SessionId, claimed: &Claimed) -> Result<Verdict, HandlerError> {
        let _turn = self.handler_slots.acquire().await.map_err(|_| StoreError::Closed)?;
        let running = Running { client: Some(self.client().await?), tls: self.tls() };
        let text = format!("select {}.run_handler($1, $2, $3, $4)", self.schema);
        let parameters: &[Parameter<'_>] = &[
            (&session.0, Type::UUID),
            (&claimed.lease.id.0, Type::INT8),
            (&claimed.lease.token.0, Type::UUID),
            (&claimed.task.id.0, Type::INT8),
        ];
        let answer = running.client().query_typed(&text, parameters).await;
        running.done();
        let rows = answer.map_err(|error| raised(&self.target, error))?;
        Ok(verdict(rows[0].get(0)))
    }
}

fn raised(target: &str, error: tokio_postgres::Error) -> HandlerError {
    match error.as_db_error() {
        // The server's own troubles: out of connections, memory or disk, shut down.
        Some(database) if !matches!(&database.code().code()[..2], "08" | "53" | "57" | "58") => {
            HandlerError::Raised(database.message().to_owned())
        }
        _ => HandlerError::Store(translate(target, "run a handler", error)),
    }
}

/// A connection on which a handler runs. Dropped before its time, it is not given back: the next user would be hit
/// by the request to stop, or wait behind the handler.
struct Running {
    client: Option<Object>,
    tls: MakeRustlsConnect,
}

impl Running {
    fn client(&self) -> &Object {
        self.client.as_ref().expect("it is there until `done`")
    }

    fn done(mut self) {
        self.client = None;
    }
}

impl Drop for Running {
    /// Spawns the request to stop; it ends with the connection.
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let (client, tls) = (Object::take(client), self.tls.clone());
        let token = client.cancel_token();
        tokio::spawn(async move {
            let _ = token.cancel_query(tls).await; // without it the handler ends by itself
            drop(client);
        });
    }
}
