//! Enqueues tasks, cancels them, and waits for their ends.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use laneway_core::{
    Cancel, Enqueued, FamilyView, InvalidInput, NewTask, State, StoreError, TaskId, TaskView, Tree,
};
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::draft::Draft;
use crate::payload::Payload;
use crate::store_handle::StoreHandle;

/// How often a waiting caller looks, at first and at last.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// The side that has work to be done. Cheap to clone.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Receipt { order: u64 }
/// # impl laneway::Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use laneway::{Client, SqliteStore};
///
/// let client = Client::new(SqliteStore::temporary().await?);
/// let receipt = client.enqueue(Receipt { order: 7 }).queue("mail").lane("customer:7").await?;
/// println!("task {} is stored", receipt.id);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    store: StoreHandle,
}

/// Why tasks could not be enqueued. Nothing was stored, unless the database broke off in the middle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// Something about a task is not acceptable.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The store could not.
    #[error(transparent)]
    Store(StoreError),
    /// The caller's transaction is PostgreSQL's, the client's store is not.
    #[error(
        "cannot enqueue in a transaction: the client's store is {store}; make the client from a PostgresStore"
    )]
    NotPostgres {
        /// The kind of store.
        store: &'static str,
    },
}

impl From<StoreError> for EnqueueError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(invalid) => Self::Invalid(invalid),
            other => Self::Store(other),
        }
    }
}

impl EnqueueError {
    /// True when the same call may succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }
}

impl Client {
    /// A client of `store`.
    pub fn new(store: impl Into<StoreHandle>) -> Self {
        Self { store: store.into() }
    }

    /// The store, for everything that is not said here.
    pub fn store(&self) -> &StoreHandle {
        &self.store
    }

    /// Describes one task; awaiting it enqueues it. When that returns, the task is committed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the task stored or not stored.
    pub fn enqueue<P: Payload>(&self, payload: P) -> Draft<&Self> {
        Draft::new(self, payload)
    }

    /// Enqueues all of `tasks` or none, and answers in their order. Takes payloads, or drafts made with
    /// [`task`](crate::task).
    ///
    /// # Errors
    /// The first mistake; the message names the task's place.
    pub async fn enqueue_many<T: Into<Draft>>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        Ok(self.store.enqueue_many(described(tasks)?).await?)
    }

    /// Enqueues in the caller's PostgreSQL transaction: the tasks exist if and only if it commits.
    ///
    /// ```no_run
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Receipt { order: u64 }
    /// # impl laneway::Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
    /// # async fn example(client: laneway::Client, db: &mut tokio_postgres::Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = db.transaction().await?;
    /// transaction.execute("insert into orders (id) values (7)", &[]).await?;
    /// client.enqueue_in(&transaction, [Receipt { order: 7 }]).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A refused task leaves the transaction usable; a database error leaves it failed.
    #[cfg(feature = "postgres")]
    pub async fn enqueue_in<T: Into<Draft>>(
        &self,
        transaction: &impl tokio_postgres::GenericClient,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let tasks = described(tasks)?;
        Ok(self.postgres()?.enqueue_in(transaction, tasks).await?)
    }

    /// [`enqueue_in`](Self::enqueue_in) for a sqlx transaction.
    ///
    /// # Errors
    /// As [`enqueue_in`](Self::enqueue_in).
    #[cfg(feature = "sqlx")]
    pub async fn enqueue_in_sqlx<T: Into<Draft>>(
        &self,
        transaction: &mut sqlx::postgres::PgConnection,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let tasks = described(tasks)?;
        Ok(self.postgres()?.enqueue_in_sqlx(transaction, tasks).await?)
    }

    #[cfg(feature = "postgres")]
    fn postgres(&self) -> Result<&laneway_postgres::PostgresStore, EnqueueError> {
        self.store.postgres().ok_or_else(|| EnqueueError::NotPostgres { store: self.store.name() })
    }

    /// Ends a task that is not running, or tells its worker to stop it.
    ///
    /// # Errors
    /// When the store could not.
    pub async fn cancel(&self, task: impl Into<TaskId>) -> Result<Cancel, StoreError> {
        self.store.cancel(task.into()).await
    }

    /// The latest children of a task, counted: how far it is. None when it never had any.
    ///
    /// # Errors
    /// When the store could not.
    pub async fn family(&self, task: impl Into<TaskId>) -> Result<Option<FamilyView>, StoreError> {
        self.store.family(task.into()).await
    }

    /// A task with its children and theirs, a hundred of them: what is open or has failed first, the rest counted. None when
    /// there is no such task.
    ///
    /// # Errors
    /// When the store could not.
    pub async fn tree(&self, task: impl Into<TaskId>) -> Result<Option<Tree>, StoreError> {
        self.store.tree(task.into(), 100).await
    }

    /// Waits until a task has ended, however long that takes: put a timeout around it.
    ///
    /// # Errors
    /// [`WaitError::NotFound`] when there is no such task or its history is gone.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn wait(&self, task: impl Into<TaskId>) -> Result<EndedTask, WaitError> {
        let task = task.into();
        let mut pause = LOOK_FIRST;
        loop {
            match self.store.get(task).await? {
                None => return Err(WaitError::NotFound { task }),
                Some(view) if view.state.has_ended() => return Ok(EndedTask(view)),
                Some(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(LOOK_MAX);
        }
    }
}

fn described<T: Into<Draft>>(tasks: impl IntoIterator<Item = T>) -> Result<Vec<NewTask>, InvalidInput> {
    let drafts = tasks.into_iter().enumerate();
    drafts
        .map(|(place, draft)| {
            draft.into().task.map_err(|refused| InvalidInput {
                message: format!("task {place}: {}", refused.message),
                ..refused
            })
        })
        .collect()
}

impl<'a> IntoFuture for Draft<&'a Client> {
    type Output = Result<Enqueued, EnqueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let task = self.task?;
            let span = tracing::debug_span!("enqueue", kind = %task.kind, queue = %task.queue);
            Ok(self.client.store.enqueue(task).instrument(span).await?)
        })
    }
}

/// A task that has ended.
#[derive(Clone, Debug)]
pub struct EndedTask(TaskView);

impl EndedTask {
    pub(crate) fn of(view: TaskView) -> Self {
        Self(view)
    }

    /// How it ended.
    pub fn state(&self) -> State {
        self.0.state
    }

    /// Everything that is kept about it.
    pub fn view(&self) -> &TaskView {
        &self.0
    }

    /// What its handler returned.
    ///
    /// # Errors
    /// [`ResultError::NotCompleted`] when it failed or was cancelled, [`ResultError::Mismatch`] when what it
    /// returned is not a `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, ResultError> {
        if self.0.state != State::Completed {
            let error = self.0.error.clone().unwrap_or_default();
            return Err(ResultError::NotCompleted { task: self.0.id, state: self.0.state, error });
        }
        let result = self.0.result.as_ref().map_or("null", |result| result.as_str());
        serde_json::from_str(result).map_err(|source| ResultError::Mismatch { task: self.0.id, source })
    }
}

/// Why waiting for a task failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// There is no such task, or its history is gone.
    #[error("task {task} does not exist, or its history was removed")]
    NotFound {
        /// The task.
        task: TaskId,
    },
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a task has no result to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultError {
    /// It did not complete.
    #[error("task {task} has no result, it ended as {state}: {error}")]
    NotCompleted {
        /// The task.
        task: TaskId,
        /// How it ended.
        state: State,
        /// What went wrong.
        error: String,
    },
    /// It returned something else.
    #[error("the result of task {task} is not what was asked for")]
    Mismatch {
        /// The task.
        task: TaskId,
        /// What does not fit.
        source: serde_json::Error,
    },
}
