//! Many tasks at once, by COPY, in a transaction of the caller: ids first, then rows, then marks and hints.
//!
//! A row costs by the column, so columns in which all rows have the default are left to the table. Rows are made while the server
//! stores those before them.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;

use jiff::Timestamp;
use laneway_core::{NewTask, TaskOptions, When};
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// Payloads from this size on are kept in `body`. The functions in `enqueue.sql` know the same number.
const BODY_BYTES_MIN: usize = 1_000;
/// What the table makes of a task that says nothing.
const MAX_ATTEMPTS: u32 = 25;

/// Draws ids for so many tasks, in ascending order.
pub(crate) async fn draw_ids(
    transaction: &Transaction<'_>,
    schema: &str,
    tasks: usize,
) -> Result<Vec<i64>, tokio_postgres::Error> {
    let text = format!("select first_id, ids from {schema}.bulk_ids(p_tasks => $1)");
    let row = transaction.query_typed(&text, &[(&(tasks as i32), Type::INT4)]).await?.remove(0);
    let first: i64 = row.get(0);
    Ok(row.get::<_, Option<_>>(1).unwrap_or_else(|| (first..first + tasks as i64).collect()))
}

/// Whose children tasks are, and how deep that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub parent: i64,
    pub depth: i16,
}

/// Stores all of these tasks, with marks and hints, and returns their ids, which ascend.
pub(crate) async fn copy_all(
    transaction: &Transaction<'_>,
    schema: &str,
    tasks: &[NewTask],
    birth: Option<Birth>,
) -> Result<Vec<i64>, tokio_postgres::Error> {
    // The server draws ids while we look.
    let (ids, survey) =
        tokio::join!(draw_ids(transaction, schema, tasks.len()), async { Survey::of(tasks.iter()) });
    let ids = ids?;
    let new: Vec<_> = std::iter::zip(ids.iter().copied(), tasks).collect();
    copy_surveyed(transaction, schema, &new, &survey, birth).await?;
    Ok(ids)
}

/// Stores tasks under ids that the caller has drawn, and that ascend; with marks and hints.
pub(crate) async fn copy_tasks(
    transaction: &Transaction<'_>,
    schema: &str,
    new: &[(i64, &NewTask)],
) -> Result<(), tokio_postgres::Error> {
    let survey = Survey::of(new.iter().map(|(_, task)| *task));
    copy_surveyed(transaction, schema, new, &survey, None).await
}

async fn copy_surveyed(
    transaction: &Transaction<'_>,
    schema: &str,
    new: &[(i64, &NewTask)],
    survey: &Survey<'_>,
    birth: Option<Birth>,
) -> Result<(), tokio_postgres::Error> {
    let parent = birth.map(|birth| birth.parent);
    let begun = transaction
        .query_typed(
            &format!(
                "select lanes, keys, limits, at, queue_ids from {schema}.bulk_begin(p_queues => $1, p_lanes => $2, p_parent => $3)"
            ),
            &[(&survey.queues, Type::TEXT_ARRAY), (&survey.keys, Type::TEXT_ARRAY), (&parent, Type::INT8)],
        )
        .await?
        .remove(0);
    let limits: Vec<Option<i32>> = begun.get(2);
    let bulk = Bulk {
        new,
        survey,
        queue_ids: begun.get(4),
        lane_ids: begun.get(0),
        keys: begun.get(1),
        now: begun.get(3),
        birth,
    };
    let shape = Shape::of(&bulk);
    copy_rows(transaction, schema, &bulk, shape).await?;
    if survey.later {
        copy_rows(transaction, schema, &bulk, Shape { later: true, ..shape }).await?;
    }
    if survey.large {
        copy_bodies(transaction, schema, &bulk).await?;
    }

    let mut marks = Marks::default();
    if bulk.keys.iter().any(Option::is_some) {
        for (n, place) in survey.of_task.iter().enumerate() {
            let row = bulk.row(n);
            // A limit counts from now on, also that of a task for later.
            let limit = row.task.lane.as_ref().and_then(|lane| lane.limit).map(|limit| limit.stored());
            let limit = limit.or(limits[*place]);
            if row.key.is_some() && (row.due_at.is_none() || limit.is_some()) {
                marks.add(*place, limit, row.due_at.is_none().then_some(row.task.priority as i16));
            }
        }
    }
    let mark_queues: Vec<_> = marks.places.iter().map(|place| survey.queues[*place]).collect();
    let mark_keys: Vec<_> = marks.places.iter().map(|place| bulk.keys[*place]).collect();
    let (queues, counts): (Vec<_>, Vec<_>) = survey.per_queue().into_iter().unzip();
    let (first, last) = (new.first().map(|(id, _)| *id), new.last().map(|(id, _)| *id));
    let is_range = last.zip(first).is_none_or(|(last, first)| last - first == new.len() as i64 - 1);
    let ids: Option<Vec<_>> = (!is_range).then(|| new.iter().map(|(id, _)| *id).collect());
    transaction
        .query_typed(
            &format!(
                "select {schema}.bulk_end(p_mark_queues => $1, p_mark_keys => $2, p_mark_counts => $3, \
                 p_mark_limits => $4, p_mark_priorities => $5, p_mark_slowests => $6, p_queues => $7, p_counts => $8, \
                 p_first_id => $9, p_last_id => $10, p_ids => $11)"
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
                (&first, Type::INT8),
                (&last, Type::INT8),
                (&ids, Type::INT8_ARRAY),
            ],
        )
        .await
        .map(drop)
}

/// What is stored together.
struct Bulk<'a> {
    new: &'a [(i64, &'a NewTask)],
    survey: &'a Survey<'a>,
    /// Per lane the id of its queue, its own, and the key that counts.
    queue_ids: Vec<i64>,
    lane_ids: Vec<i64>,
    keys: Vec<Option<&'a str>>,
    now: Timestamp,
    birth: Option<Birth>,
}

struct CopyRow<'a> {
    id: i64,
    queue_id: i64,
    lane: i64,
    key: Option<&'a str>,
    task: &'a NewTask,
    due_at: Option<Timestamp>,
}

impl Bulk<'_> {
    fn row(&self, n: usize) -> CopyRow<'_> {
        let ((id, task), lane) = (self.new[n], self.survey.of_task[n]);
        let due_at = match task.when {
            When::Now => None,
            When::After(delay) => self.now.checked_add(delay).ok(),
            When::At(due) => Some(due),
        };
        let due_at = due_at.filter(|due| *due > self.now);
        let (queue_id, key) = (self.queue_ids[lane], self.keys[lane]);
        CopyRow { id, queue_id, lane: self.lane_ids[lane], key, task, due_at }
    }
}

/// What there is in a bulk, seen in one pass: a hundred thousand tasks do not fit into a processor's cache.
#[derive(Default)]
struct Survey<'a> {
    /// Every lane once, in order of appearance; for tasks without one, their queue.
    queues: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    tasks: Vec<i32>,
    /// Per task the place of its lane.
    of_task: Vec<usize>,
    /// Some task has another priority than the table's default; and so on.
    priorities: bool,
    max_attempts: bool,
    extras: bool,
    /// Some may be for later, some have large payloads.
    later: bool,
    large: bool,
}

impl<'a> Survey<'a> {
    fn of(tasks: impl ExactSizeIterator<Item = &'a NewTask>) -> Self {
        let mut places = HashMap::new();
        let mut survey = Self { of_task: Vec::with_capacity(tasks.len()), ..Self::default() };
        let mut last = None;
        for task in tasks {
            let lane = (task.queue.as_str(), task.lane.as_ref().map(|lane| lane.key.as_str()));
            let place = match last {
                Some((same, place)) if same == lane => place,
                _ => *places.entry(lane).or_insert_with(|| {
                    survey.queues.push(lane.0);
                    survey.keys.push(lane.1);
                    survey.tasks.push(0);
                    survey.keys.len() - 1
                }),
            };
            last = Some((lane, place));
            survey.tasks[place] += 1;
            survey.of_task.push(place);
            survey.priorities |= task.priority != 0;
            survey.max_attempts |= task.max_attempts != MAX_ATTEMPTS;
            survey.extras = survey.extras || TaskOptions::are_set(task);
            survey.later |= task.when != When::Now;
            survey.large |= is_large(task);
        }
        survey
    }

    fn per_queue(&self) -> BTreeMap<&'a str, i32> {
        let mut per_queue = BTreeMap::new();
        for (queue, tasks) in std::iter::zip(&self.queues, &self.tasks) {
            *per_queue.entry(*queue).or_default() += tasks;
        }
        per_queue
    }
}

fn is_large(task: &NewTask) -> bool {
    task.payload.as_str().len() >= BODY_BYTES_MIN
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

/// What the rows of one COPY have beside what every task has.
#[derive(Clone, Copy)]
struct Shape {
    lanes: bool,
    priorities: bool,
    max_attempts: bool,
    extras: bool,
    later: bool,
    birth: Option<Birth>,
}

impl Shape {
    /// Of those that may start now.
    fn of(bulk: &Bulk<'_>) -> Self {
        Self {
            lanes: bulk.lane_ids.iter().any(|lane| *lane != 0),
            priorities: bulk.survey.priorities,
            max_attempts: bulk.survey.max_attempts,
            extras: bulk.survey.extras,
            later: false,
            birth: bulk.birth,
        }
    }

    /// In the order in which [`copy_rows`] writes them.
    fn columns(self) -> Vec<(&'static str, Type)> {
        let mut columns = vec![
            ("id", Type::INT8),
            ("enqueued_at", Type::TIMESTAMPTZ),
            ("size", Type::INT4),
            ("queue", Type::TEXT),
            ("kind", Type::TEXT),
            ("payload", Type::JSON),
        ];
        let more: [(bool, &[_]); 7] = [
            (!self.later, &[("queue_id", Type::INT8)]),
            (self.lanes, &[("lane", Type::INT8)]),
            (self.priorities, &[("priority", Type::INT2)]),
            (self.max_attempts, &[("max_attempts", Type::INT2)]),
            (self.extras, &[("extra", Type::JSON)]),
            (self.later, &[("due_at", Type::TIMESTAMPTZ), ("lane_key", Type::TEXT)]),
            (self.birth.is_some(), &[("parent_id", Type::INT8), ("depth", Type::INT2)]),
        ];
        more.into_iter()
            .filter(|(is_there, _)| *is_there)
            .for_each(|(_, more)| columns.extend_from_slice(more));
        columns
    }
}

async fn copy_rows(
    transaction: &Transaction<'_>,
    schema: &str,
    bulk: &Bulk<'_>,
    shape: Shape,
) -> Result<(), tokio_postgres::Error> {
    let (names, types): (Vec<_>, Vec<_>) = shape.columns().into_iter().unzip();
    let table = if shape.later { "later" } else { "task" };
    let statement = format!("copy {schema}.{table} ({}) from stdin binary", names.join(", "));
    let mut writer = pin!(BinaryCopyInWriter::new(transaction.copy_in(&statement).await?, &types));
    for n in 0..bulk.new.len() {
        let row = bulk.row(n);
        if row.due_at.is_some() != shape.later {
            continue;
        }
        let CopyRow { task, .. } = row;
        let payload = (!is_large(task)).then(|| JsonText(task.payload.as_str()));
        let size = task.payload.as_str().len() as i32;
        let (queue, kind) = (task.queue.as_str(), task.kind.as_str());
        let (priority, max_attempts) = (task.priority as i16, task.max_attempts as i16);
        let extra = shape.extras.then(|| TaskOptions::stored(task)).flatten();
        let extra = extra.as_deref().map(JsonText);
        let mut values: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(types.len());
        values.extend([&row.id as &(dyn ToSql + Sync), &bulk.now, &size, &queue, &kind, &payload]);
        if !shape.later {
            values.push(&row.queue_id);
        }
        if shape.lanes {
            values.push(&row.lane);
        }
        if shape.priorities {
            values.push(&priority);
        }
        if shape.max_attempts {
            values.push(&max_attempts);
        }
        if shape.extras {
            values.push(&extra);
        }
        if shape.later {
            values.extend([&row.due_at as &(dyn ToSql + Sync), &row.key]);
        }
        if let Some(birth) = &shape.birth {
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
    bulk: &Bulk<'_>,
) -> Result<(), tokio_postgres::Error> {
    let statement = format!("copy {schema}.body (task_id, payload) from stdin binary");
    let sink = transaction.copy_in(&statement).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT8, Type::JSON]));
    for (id, task) in bulk.new {
        if is_large(task) {
            writer.as_mut().write(&[id, &JsonText(task.payload.as_str())]).await?;
        }
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
