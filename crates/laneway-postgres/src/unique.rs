//! Tasks with keys: what is sent beside the columns of `enqueue.rs`, and what is answered.

use laneway_core::{
    Effect, Enqueued, Limits, NewTask, OnConflict, StoreError, TaskId, UniqueKey, content_hash,
};
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::enqueue::Columns;
use crate::store::Parameter;

/// How long a call of the store waits for a key that another transaction is just taking.
pub(crate) const WAIT_MS: i32 = 2_000;
/// How long the first try waits, before the call joins those that wait.
pub(crate) const FIRST_WAIT_MS: i32 = 20;

/// The keys of tasks, as the parallel arrays that `take_keys` takes. A task without a key has nulls.
#[derive(Default)]
pub(crate) struct KeyColumns {
    pub keys: Vec<Option<String>>,
    pub scopes: Vec<Option<&'static str>>,
    pub windows_ms: Vec<Option<i64>>,
    pub conflicts: Vec<Option<&'static str>>,
    pub hashes: Vec<Option<i64>>,
    pub bytes_max: i32,
    pub wait_ms: Option<i32>,
}

/// The call that both drivers make.
pub(crate) fn enqueue_keyed_sql(schema: &str) -> String {
    format!(
        "select ids, effects from {schema}.enqueue_keyed({}, {})",
        Columns::ARGUMENTS,
        KeyColumns::ARGUMENTS
    )
}

impl KeyColumns {
    /// The arguments by which a function takes these columns, after [`Columns::ARGUMENTS`].
    pub const ARGUMENTS: &str = "p_keys => $11, p_scopes => $12, p_windows_ms => $13, p_conflicts => $14, \
         p_hashes => $15, p_bytes_max => $16, p_wait_ms => $17";

    /// `wait_ms`: how long to wait for a key; none: as long as the transaction's own settings allow.
    pub fn of(tasks: &[NewTask], limits: &Limits, wait_ms: Option<i32>) -> Self {
        let bytes_max = i32::try_from(limits.payload_bytes_max).unwrap_or(i32::MAX);
        let mut columns = Self { bytes_max, wait_ms, ..Self::default() };
        for task in tasks {
            let unique = task.unique.as_ref();
            columns.keys.push(unique.map(|unique| unique.key.as_str().to_owned()));
            columns.scopes.push(unique.map(|unique| unique.scope.stored()));
            let window = unique.and_then(|unique| unique.scope.window());
            columns.windows_ms.push(window.map(|window| window.as_millis() as i64));
            columns.conflicts.push(unique.map(|unique| unique.on_conflict.stored()));
            columns.hashes.push(unique.map(|_| content_hash(task)));
        }
        columns
    }

    /// Stores tasks of which some have keys.
    pub async fn send(
        &self,
        client: &impl GenericClient,
        schema: &str,
        tasks: &[NewTask],
        failed: impl Fn(tokio_postgres::Error) -> StoreError,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let columns = Columns::of(tasks);
        let parameters = [&columns.parameters()[..], &self.parameters()].concat();
        let rows = client.query_typed(&enqueue_keyed_sql(schema), &parameters).await.map_err(failed)?;
        answers(tasks, &rows[0])
    }

    /// The values of [`KeyColumns::ARGUMENTS`].
    pub fn parameters(&self) -> [Parameter<'_>; 7] {
        [
            (&self.keys, Type::TEXT_ARRAY),
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.windows_ms, Type::INT8_ARRAY),
            (&self.conflicts, Type::TEXT_ARRAY),
            (&self.hashes, Type::INT8_ARRAY),
            (&self.bytes_max, Type::INT4),
            (&self.wait_ms, Type::INT4),
        ]
    }

    /// Takes the keys of tasks that are stored next, under these ids. Payloads are sent where they may be needed.
    pub async fn take(
        &self,
        client: &impl GenericClient,
        schema: &str,
        tasks: &[NewTask],
        ids: &[i64],
    ) -> Result<Row, tokio_postgres::Error> {
        let queues: Vec<_> = tasks.iter().map(|task| task.queue.as_str()).collect();
        let kinds: Vec<_> = tasks.iter().map(|task| task.kind.as_str()).collect();
        let changes = |task: &NewTask| {
            let conflict = task.unique.as_ref().map(|unique| unique.on_conflict);
            matches!(conflict, Some(OnConflict::Replace | OnConflict::Merge))
        };
        let payloads: Vec<_> =
            tasks.iter().map(|task| changes(task).then(|| task.payload.as_str())).collect();
        let text = format!(
            "select ids, effects from {schema}.bulk_keys(p_ids => $1, p_queues => $2, p_kinds => $3, p_payloads => $4, \
             p_keys => $5, p_scopes => $6, p_windows_ms => $7, p_conflicts => $8, p_hashes => $9, p_bytes_max => $10, \
             p_wait_ms => $11)"
        );
        let mut rows = client
            .query_typed(
                &text,
                &[
                    (&ids, Type::INT8_ARRAY),
                    (&queues, Type::TEXT_ARRAY),
                    (&kinds, Type::TEXT_ARRAY),
                    (&payloads, Type::TEXT_ARRAY),
                    (&self.keys, Type::TEXT_ARRAY),
                    (&self.scopes, Type::TEXT_ARRAY),
                    (&self.windows_ms, Type::INT8_ARRAY),
                    (&self.conflicts, Type::TEXT_ARRAY),
                    (&self.hashes, Type::INT8_ARRAY),
                    (&self.bytes_max, Type::INT4),
                    (&self.wait_ms, Type::INT4),
                ],
            )
            .await?;
        Ok(rows.remove(0))
    }
}

/// Reads ids and effects.
///
/// # Errors
/// The first key that may not be taken.
pub(crate) fn answers(tasks: &[NewTask], row: &Row) -> Result<Vec<Enqueued>, StoreError> {
    answers_of(tasks, row.get("ids"), row.get("effects"))
}

/// The same for values that were read by another driver.
pub(crate) fn answers_of(
    tasks: &[NewTask],
    ids: Vec<i64>,
    effects: Vec<String>,
) -> Result<Vec<Enqueued>, StoreError> {
    let answer = |((task, id), effect): ((&NewTask, i64), String)| {
        let holder = TaskId(id);
        let effect = match &*effect {
            "made" => Effect::Made,
            "replaced" => Effect::Replaced,
            "merged" => Effect::Merged,
            "rejected" => return Err(StoreError::KeyTaken { key: key_of(task), holder }),
            "different" => return Err(StoreError::IdempotencyConflict { key: key_of(task), holder }),
            _ => Effect::Existing,
        };
        Ok(Enqueued { id: holder, effect })
    };
    let answers: Vec<_> = tasks.iter().zip(ids).zip(effects).map(answer).collect();
    answers.into_iter().collect()
}

fn key_of(task: &NewTask) -> UniqueKey {
    task.unique.as_ref().expect("only a task with a key meets another one").key.clone()
}
