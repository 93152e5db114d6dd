//! Enqueue: one task at a time with shared commits, or many by COPY.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use deadpool_postgres::Pool;
use jiff::Timestamp;
use laneway_core::{Enqueued, Limits, Meter, NewTask, StoreError, TaskId, TaskOptions, When};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row, Transaction};

use crate::error::{is_data_error, translate, translate_pool};
use crate::listener::Listener;
use crate::options::Statements;
use crate::statement::{Connection, Session};
use crate::store::{Parameter, read_committed};
use crate::unique::{KeyColumns, answers};

/// Payloads from this size on are kept in `body`. The functions in `enqueue.sql` know the same number.
const BODY_BYTES_MIN: usize = 1_000;
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
        let ids = draw_ids(transaction, self.schema, tasks.len()).await.map_err(failed)?;
        if !has_keys {
            let all: Vec<_> = std::iter::zip(ids.iter().copied(), tasks).collect();
            copy_tasks(transaction, self.schema, &all, None).await.map_err(failed)?;
            return Ok(ids.into_iter().map(|id| Enqueued::made(TaskId(id))).collect());
        }
        let keys = KeyColumns::of(tasks, self.limits, Some(self.key_wait_ms));
        let row = keys.take(transaction, self.schema, tasks, &ids).await.map_err(failed)?;
        let answers = answers(tasks, &row)?;
        let new = std::iter::zip(&answers, tasks).filter(|(answer, _)| answer.is_new());
        let new: Vec<_> = new.map(|(answer, task)| (answer.id.0, task)).collect();
        copy_tasks(transaction, self.schema, &new, None).await.map_err(failed)?;
        Ok(answers)
    }
}

pub(crate) async fn draw_ids(
    transaction: &Transaction<'_>,
    schema: &str,
    tasks: usize,
) -> Result<Vec<i64>, tokio_postgres::Error> {
    let text = format!("select {schema}.bulk_ids(p_tasks => $1)");
    let rows = transaction.query_typed(&text, &[(&(tasks as i32), Type::INT4)]).await?;
    Ok(rows[0].get(0))
}

/// Whose children tasks are, and how deep that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub parent: i64,
    pub depth: i16,
}

/// Stores tasks, with marks and hints. Ids are drawn by the caller.
pub(crate) async fn copy_tasks(
    transaction: &Transaction<'_>,
    schema: &str,
    new: &[(i64, &NewTask)],
    birth: Option<Birth>,
) -> Result<(), tokio_postgres::Error> {
    let lanes = DistinctLanes::of(new);
    let parent = birth.map(|birth| birth.parent);
    let begun = transaction
        .query_typed(
            &format!(
                "select lanes, keys, limits, at from {schema}.bulk_begin(p_queues => $1, p_lanes => $2, p_parent => $3)"
            ),
            &[(&lanes.queues, Type::TEXT_ARRAY), (&lanes.keys, Type::TEXT_ARRAY), (&parent, Type::INT8)],
        )
        .await?
        .remove(0);
    let lane_ids: Vec<i64> = begun.get(0);
    let keys: Vec<Option<&str>> = begun.get(1);
    let limits: Vec<Option<i32>> = begun.get(2);
    let now: Timestamp = begun.get(3);
    let rows: Vec<_> = std::iter::zip(new, &lanes.of_task)
        .map(|((id, task), lane)| CopyRow::new(*id, task, (lane_ids[*lane], keys[*lane]), now, birth))
        .collect();
    let (runnable, later): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.due_at.is_none());
    let large: Vec<_> = rows.iter().filter(|row| row.is_large()).collect();
    copy_rows(transaction, schema, "task", &runnable).await?;
    copy_rows(transaction, schema, "later", &later).await?;
    copy_bodies(transaction, schema, &large).await?;

    let mut marks = Marks::default();
    for (row, place) in std::iter::zip(&rows, &lanes.of_task) {
        // A limit counts from now on, also that of a task for later.
        let limit = row.task.lane.as_ref().and_then(|lane| lane.limit).map(|limit| limit.stored());
        let limit = limit.or(limits[*place]);
        if row.key.is_some() && (row.due_at.is_none() || limit.is_some()) {
            marks.add(*place, limit, row.due_at.is_none().then_some(row.task.priority as i16));
        }
    }
    let mark_queues: Vec<_> = marks.places.iter().map(|place| lanes.queues[*place]).collect();
    let mark_keys: Vec<_> = marks.places.iter().map(|place| keys[*place]).collect();
    let mut per_queue: BTreeMap<&str, i32> = BTreeMap::new();
    for (_, task) in new {
        *per_queue.entry(task.queue.as_str()).or_default() += 1;
    }
    let (queues, counts): (Vec<_>, Vec<_>) = per_queue.into_iter().unzip();
    let ids: Vec<_> = new.iter().map(|(id, _)| *id).collect();
    transaction
        .query_typed(
            &format!(
                "select {schema}.bulk_end(p_mark_queues => $1, p_mark_keys => $2, p_mark_counts => $3, \
                 p_mark_limits => $4, p_mark_priorities => $5, p_mark_slowests => $6, p_queues => $7, p_counts => $8, p_ids => $9)"
            ),
            &[
                (&mark_queues, Type::TEXT_ARRAY),
                (&mark_keys, Type::TEXT_ARRAY),
                (&marks.counts, Type::INT4_ARRAY),
                (&marks.limits, Type::INT4_ARRAY),
                (&marks.priorities, Type::INT2_ARRAY),
                (&marks.slowests, Type::INT2_ARRAY),
                (&queues, Type::TEXT_ARRAY),
                (&counts, Type::INT4_ARRAY),
                (&ids, Type::INT8_ARRAY),
            ],
        )
        .await
        .map(drop)
}

/// Every lane of a bulk once, in order of appearance; for tasks without one, their queue.
struct DistinctLanes<'a> {
    queues: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    /// Per task the place of its lane.
    of_task: Vec<usize>,
}

impl<'a> DistinctLanes<'a> {
    fn of(tasks: &[(i64, &'a NewTask)]) -> Self {
        let mut places = HashMap::new();
        let mut lanes = Self { queues: vec![], keys: vec![], of_task: Vec::with_capacity(tasks.len()) };
        for (_, task) in tasks {
            let key = task.lane.as_ref().map(|lane| lane.key.as_str());
            let place = *places.entry((task.queue.as_str(), key)).or_insert_with(|| {
                lanes.queues.push(task.queue.as_str());
                lanes.keys.push(key);
                lanes.keys.len() - 1
            });
            lanes.of_task.push(place);
        }
        lanes
    }
}

/// One mark per lane: how many tasks, the last limit that was named, the most and the least urgent priority.
#[derive(Default)]
struct Marks {
    places: Vec<usize>,
    counts: Vec<i32>,
    limits: Vec<Option<i32>>,
    priorities: Vec<i16>,
    slowests: Vec<i16>,
    of_lane: HashMap<usize, usize>,
}

impl Marks {
    /// `runnable`: the priority of a task that may start now.
    fn add(&mut self, lane: usize, limit: Option<i32>, runnable: Option<i16>) {
        let mark = *self.of_lane.entry(lane).or_insert_with(|| {
            self.places.push(lane);
            self.counts.push(0);
            self.limits.push(None);
            self.priorities.push(i16::MAX);
            self.slowests.push(i16::MIN);
            self.places.len() - 1
        });
        self.counts[mark] += i32::from(runnable.is_some());
        self.limits[mark] = limit.or(self.limits[mark]);
        self.priorities[mark] = self.priorities[mark].min(runnable.unwrap_or(i16::MAX));
        self.slowests[mark] = self.slowests[mark].max(runnable.unwrap_or(i16::MIN));
    }
}

struct CopyRow<'a> {
    id: i64,
    lane: i64,
    key: Option<&'a str>,
    task: &'a NewTask,
    now: Timestamp,
    due_at: Option<Timestamp>,
    birth: Option<Birth>,
}

impl<'a> CopyRow<'a> {
    fn new(
        id: i64,
        task: &'a NewTask,
        (lane, key): (i64, Option<&'a str>),
        now: Timestamp,
        birth: Option<Birth>,
    ) -> Self {
        let due_at = match task.when {
            When::Now => None,
            When::After(delay) => now.checked_add(delay).ok().filter(|due| *due > now),
            When::At(due) => Some(due).filter(|due| *due > now),
        };
        Self { id, lane, key, task, now, due_at, birth }
    }

    fn is_large(&self) -> bool {
        self.task.payload.as_str().len() >= BODY_BYTES_MIN
    }
}

async fn copy_rows(
    transaction: &Transaction<'_>,
    schema: &str,
    table: &str,
    rows: &[&CopyRow<'_>],
) -> Result<(), tokio_postgres::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let (later, born) = (table == "later", rows[0].birth.is_some());
    let due_columns = if later { ", due_at, lane_key" } else { "" };
    let birth_columns = if born { ", parent_id, depth" } else { "" };
    let statement = format!(
        "copy {schema}.{table} (id, lane, enqueued_at, size, priority, max_attempts, queue, kind, payload, extra{due_columns}{birth_columns}) \
         from stdin binary"
    );
    let mut types = vec![
        Type::INT8,
        Type::INT8,
        Type::TIMESTAMPTZ,
        Type::INT4,
        Type::INT2,
        Type::INT2,
        Type::TEXT,
        Type::TEXT,
        Type::JSON,
        Type::JSON,
    ];
    if later {
        types.extend([Type::TIMESTAMPTZ, Type::TEXT]);
    }
    if born {
        types.extend([Type::INT8, Type::INT2]);
    }
    let mut writer = pin!(BinaryCopyInWriter::new(transaction.copy_in(&statement).await?, &types));
    for row in rows {
        let payload = (!row.is_large()).then(|| JsonText(row.task.payload.as_str()));
        let extra = TaskOptions::stored(row.task);
        let extra = extra.as_deref().map(JsonText);
        let size = row.task.payload.as_str().len() as i32;
        let (priority, max_attempts) = (row.task.priority as i16, row.task.max_attempts as i16);
        let (queue, kind) = (row.task.queue.as_str(), row.task.kind.as_str());
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &row.id,
            &row.lane,
            &row.now,
            &size,
            &priority,
            &max_attempts,
            &queue,
            &kind,
            &payload,
            &extra,
        ];
        if later {
            values.extend([&row.due_at as &(dyn ToSql + Sync), &row.key]);
        }
        if let Some(birth) = &row.birth {
            values.extend([&birth.parent as &(dyn ToSql + Sync), &birth.depth]);
        }
        writer.as_mut().write(&values).await?;
    }
    writer.finish().await?;
    Ok(())
}

async fn copy_bodies(
    transaction: &Transaction<'_>,
    schema: &str,
    rows: &[&CopyRow<'_>],
) -> Result<(), tokio_postgres::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let statement = format!("copy {schema}.body (task_id, payload) from stdin binary");
    let sink = transaction.copy_in(&statement).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT8, Type::JSON]));
    for row in rows {
        writer.as_mut().write(&[&row.id, &JsonText(row.task.payload.as_str())]).await?;
    }
    writer.finish().await?;
    Ok(())
}

/// JSON text on its way into a `json` column.
#[derive(Debug)]
struct JsonText<'a>(&'a str);

impl ToSql for JsonText<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }

    to_sql_checked!();
}
