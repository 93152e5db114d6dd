//! Enqueue: one task at a time with shared commits, or many at once.
//!
//! Not here: how COPY stores very many (`copy.rs`), unique keys (`unique.rs`).

use std::sync::Arc;
use std::time::Instant;

use deadpool_postgres::Pool;
use jiff::Timestamp;
use laneway_core::{Enqueued, Limits, Meter, NewTask, StoreError, TaskId, TaskOptions, When};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::copy::{copy_all, copy_tasks, draw_ids};
use crate::error::{is_data_error, translate, translate_pool};
use crate::listener::Listener;
use crate::options::Statements;
use crate::statement::{Connection, Session};
use crate::store::{Parameter, read_committed};
use crate::unique::{KeyColumns, answers};

/// Single enqueues that share one commit at most.
const GROUP_MAX: usize = 500;
/// From this many tasks on COPY is faster than arrays.
const COPY_MIN: usize = 200;

/// Tasks as the parallel arrays that `enqueue_many` takes.
#[derive(Default)]
pub(crate) struct Columns {
    pub kinds: Vec<String>,
    pub payloads: Vec<String>,
    pub queues: Vec<String>,
    pub priorities: Vec<i16>,
    pub max_attempts: Vec<i16>,
    pub lanes: Vec<Option<String>>,
    pub lane_limits: Vec<Option<i32>>,
    pub delays_ms: Vec<Option<i64>>,
    pub dues: Vec<Option<Timestamp>>,
    pub extras: Vec<Option<String>>,
}

/// The call that both drivers make. `{schema}` is the only thing ever put into it.
pub(crate) fn enqueue_many_sql(schema: &str) -> String {
    format!("select ids from {schema}.enqueue_many({})", Columns::ARGUMENTS)
}

/// What [`enqueue_many_sql`] answers with.
pub(crate) fn made(rows: &[Row]) -> Vec<Enqueued> {
    rows[0].get::<_, Vec<i64>>(0).into_iter().map(|id| Enqueued::made(TaskId(id))).collect()
}

impl Columns {
    /// The arguments by which a function takes these columns, as its first ten parameters.
    pub const ARGUMENTS: &str = "p_kinds => $1, p_payloads => $2, p_queues => $3, p_priorities => $4, \
         p_max_attempts => $5, p_lanes => $6, p_lane_limits => $7, p_delays_ms => $8, p_dues => $9, p_extras => $10";

    pub fn of(tasks: &[NewTask]) -> Self {
        let mut columns = Self::default();
        for task in tasks {
            columns.push(task);
        }
        columns
    }

    pub fn push(&mut self, task: &NewTask) {
        self.kinds.push(task.kind.as_str().to_owned());
        self.payloads.push(task.payload.as_str().to_owned());
        self.queues.push(task.queue.as_str().to_owned());
        self.priorities.push(task.priority as i16);
        self.max_attempts.push(task.max_attempts as i16);
        self.lanes.push(task.lane.as_ref().map(|lane| lane.key.as_str().to_owned()));
        self.lane_limits.push(task.lane.as_ref().and_then(|lane| lane.limit).map(|limit| limit.stored()));
        let (delay, due) = match task.when {
            When::Now => (None, None),
            When::After(delay) => (Some(delay.as_millis() as i64), None),
            When::At(due) => (None, Some(due)),
        };
        self.delays_ms.push(delay);
        self.dues.push(due);
        self.extras.push(TaskOptions::stored(task));
    }

    pub async fn send(
        &self,
        client: &impl Connection,
        schema: &str,
    ) -> Result<Vec<Enqueued>, tokio_postgres::Error> {
        let rows = client.rows(&enqueue_many_sql(schema), &self.parameters()).await?;
        Ok(made(&rows))
    }

    /// The values of [`Columns::ARGUMENTS`].
    pub fn parameters(&self) -> [Parameter<'_>; 10] {
        [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.max_attempts, Type::INT2_ARRAY),
            (&self.lanes, Type::TEXT_ARRAY),
            (&self.lane_limits, Type::INT4_ARRAY),
            (&self.delays_ms, Type::INT8_ARRAY),
            (&self.dues, Type::TIMESTAMPTZ_ARRAY),
            (&self.extras, Type::TEXT_ARRAY),
        ]
    }
}

/// One waiting caller of a single enqueue.
pub(crate) struct Single {
    pub task: NewTask,
    pub answer: oneshot::Sender<Result<Enqueued, StoreError>>,
}

/// Commits single enqueues together: at once when idle, otherwise all that came in while the commit before was under
/// way. Ends when every sender is gone. Callers are answered after the commit of their task.
pub(crate) async fn group_singles(mut singles: mpsc::Receiver<Single>, to: Group) {
    let mut group = Vec::new();
    while singles.recv_many(&mut group, GROUP_MAX).await > 0 {
        let (tasks, answers): (Vec<_>, Vec<_>) =
            group.drain(..).map(|single| (single.task, single.answer)).unzip();
        let results = to.commit(&tasks).await;
        for (answer, result) in answers.into_iter().zip(results) {
            // A caller that has gone does not want to know.
            let _ = answer.send(result);
        }
    }
}

/// Where groups are committed.
pub(crate) struct Group {
    pub pool: Pool,
    pub listener: Arc<Listener>,
    pub statements: Statements,
    pub schema: String,
    pub target: String,
    pub meter: Meter,
}

impl Group {
    async fn commit(&self, tasks: &[NewTask]) -> Vec<Result<Enqueued, StoreError>> {
        let asked = Instant::now();
        let connection = self.pool.get().await;
        self.meter.wait(asked.elapsed());
        let client = match connection {
            Ok(client) => client,
            Err(error) => return repeat(translate_pool(&self.target, error), &self.target, tasks.len()),
        };
        let sent = Instant::now();
        let results = if self.statements.are_kept(&self.listener) {
            commit_group(tasks, &Session(&client), &self.schema, &self.target).await
        } else {
            commit_group(tasks, &**client, &self.schema, &self.target).await
        };
        self.meter.statement("enqueue", sent.elapsed());
        results
    }
}

async fn commit_group(
    tasks: &[NewTask],
    client: &impl Connection,
    schema: &str,
    target: &str,
) -> Vec<Result<Enqueued, StoreError>> {
    match Columns::of(tasks).send(client, schema).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) if is_data_error(&error) && tasks.len() > 1 => {
            // One task that the database does not take must not fail its neighbours.
            let mut results = Vec::with_capacity(tasks.len());
            for task in tasks {
                let sent = Columns::of(std::slice::from_ref(task)).send(client, schema).await;
                results.push(
                    sent.map(|answers| answers[0]).map_err(|error| translate(target, "enqueue", error)),
                );
            }
            results
        }
        Err(error) => repeat(translate(target, "enqueue", error), target, tasks.len()),
    }
}

/// The same failure for every caller of a group.
fn repeat(error: StoreError, target: &str, callers: usize) -> Vec<Result<Enqueued, StoreError>> {
    let copy = |error: &StoreError| {
        let source =
            || std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string).into();
        let target = target.to_owned();
        match error {
            StoreError::Unavailable { .. } => StoreError::Unavailable { target, source: source() },
            StoreError::Refused { .. } => StoreError::Refused { target, source: source() },
            StoreError::ReadOnly { .. } => StoreError::ReadOnly { target, source: source() },
            StoreError::Full { .. } => StoreError::Full { target, source: source() },
            StoreError::NotMigrated { found, needs } => {
                StoreError::NotMigrated { found: *found, needs: *needs }
            }
            StoreError::Busy { what } => StoreError::Busy { what: what.clone() },
            _ => StoreError::Unexpected { doing: "enqueue", source: source() },
        }
    };
    let mut copies: Vec<_> = (1..callers).map(|_| Err(copy(&error))).collect();
    copies.push(Err(error));
    copies
}

/// How a bulk is stored.
pub(crate) struct BulkEnqueue<'a> {
    pub schema: &'a str,
    pub target: &'a str,
    pub limits: &'a Limits,
    /// How long to wait for each key that another transaction is just taking.
    pub key_wait_ms: i32,
}

impl BulkEnqueue<'_> {
    /// Stores all tasks or none, in one transaction.
    pub async fn enqueue(
        &self,
        client: &mut tokio_postgres::Client,
        tasks: &[NewTask],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let failed = |error| translate(self.target, "enqueue", error);
        let has_keys = tasks.iter().any(|task| task.unique.is_some());
        if tasks.len() < COPY_MIN && !has_keys {
            return Columns::of(tasks).send(client, self.schema).await.map_err(failed);
        }
        if tasks.len() < COPY_MIN {
            let keys = KeyColumns::of(tasks, self.limits, Some(self.key_wait_ms));
            return keys.send(&*client, self.schema, tasks, failed).await;
        }
        let transaction = read_committed(client).await.map_err(failed)?;
        let answers = self.copy(&transaction, tasks, has_keys).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(answers)
    }

    /// COPY into the tables, between `bulk_begin`, which hands out ids, and `bulk_end`, which writes marks and hints. Of
    /// tasks with keys only those are stored that got their key.
    async fn copy(
        &self,
        transaction: &Transaction<'_>,
        tasks: &[NewTask],
        has_keys: bool,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let failed = |error| translate(self.target, "enqueue", error);
        if !has_keys {
            let ids = copy_all(transaction, self.schema, tasks, None).await.map_err(failed)?;
            return Ok(ids.into_iter().map(|id| Enqueued::made(TaskId(id))).collect());
        }
        let ids = draw_ids(transaction, self.schema, tasks.len()).await.map_err(failed)?;
        let keys = KeyColumns::of(tasks, self.limits, Some(self.key_wait_ms));
        let row = keys.take(transaction, self.schema, tasks, &ids).await.map_err(failed)?;
        let answers = answers(tasks, &row)?;
        let new = std::iter::zip(&answers, tasks).filter(|(answer, _)| answer.is_new());
        let new: Vec<_> = new.map(|(answer, task)| (answer.id.0, task)).collect();
        copy_tasks(transaction, self.schema, &new).await.map_err(failed)?;
        Ok(answers)
    }
}
