//! The advance call: outcomes on their way in, leases on their way out.
//!
//! Not here: what outcomes spawn (`family.rs`), large families (`fan_out.rs`).

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Advance, Advanced, Claim, Claimed, Json, Kind, Kinds, LaneKey, LeaseId, LeaseRef, LeaseToken, Left,
    Outcome, QueueName, Scan, Settle, Settled, Spawned, StoreError, Task, TaskId, TaskOptions, Verdict,
};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::bounds::{Look, NUMBERS};
use crate::error::{is_data_error, translate};
use crate::family::{IdRange, Spawns, refuse_spawned};
use crate::statement::Connection;
use crate::store::{Parameter, PostgresStore};
use crate::unique::WAIT_MS;

/// Separates the kinds of one claim; names cannot contain it.
const UNIT_SEPARATOR: &str = "\x1f";

/// A part of a larger lease is not looked for in its arrays: that takes time by the square of their length.
const PART_OF: usize = 500;

/// Ids in one row of `ended_plain` lie within this of each other.
const HISTORY_SPAN: i64 = 16_384;

/// An outcome as `settle.sql` takes it.
pub(crate) struct Wire {
    pub outcome: &'static str,
    pub delay_ms: i64,
    pub report: Option<String>,
    pub result: Option<String>,
}

impl Wire {
    pub fn of(outcome: Outcome) -> Self {
        let millis = |delay: Duration| delay.as_millis() as i64;
        let (outcome, delay_ms, report, result) = match outcome {
            Outcome::Completed { result } => {
                ("completed", 0, None, result.map(|json| json.as_str().to_owned()))
            }
            Outcome::Retry { after, error } => ("retry", millis(after), Some(error), None),
            Outcome::Snooze { after } => ("snooze", millis(after), None, None),
            Outcome::Failed { error } => ("failed", 0, Some(error), None),
            Outcome::Cancelled { reason } => ("cancelled", 0, reason, None),
            // The enum may grow; what this store does not know is given back unharmed.
            _ => ("back", 0, None, None),
        };
        Self { outcome, delay_ms, report, result }
    }
}

/// A verdict as `settle.sql` writes it.
pub(crate) fn verdict(text: &str) -> Verdict {
    match text {
        "completed" => Verdict::Completed,
        "failed" => Verdict::Failed,
        "cancelled" => Verdict::Cancelled,
        "later" => Verdict::Later,
        "pending" => Verdict::Pending,
        "waiting" => Verdict::Waiting,
        "already" => Verdict::Already,
        _ => Verdict::Stale,
    }
}

/// Settles as parallel arrays. Plain successes of one lease are one entry: its task is their number below zero, their ids are in `ids`, and
/// its `delays` says where they begin.
#[derive(Default)]
struct Entries<'a> {
    leases: Vec<i64>,
    tokens: Vec<Uuid>,
    tasks: Vec<i64>,
    outcomes: Vec<&'static str>,
    delays: Vec<i64>,
    reports: Vec<Option<String>>,
    results: Vec<Option<String>>,
    ids: Vec<i64>,
    /// Per settle of the request the entry that answers it, and its place in that.
    entry_of: Vec<(usize, usize)>,
    /// Per entry what it spawns.
    spawned: Vec<Option<&'a Spawned>>,
}

impl<'a> Entries<'a> {
    /// `shorten`: whether plain successes of one lease become one entry.
    fn of(settles: &'a [Settle], shorten: bool) -> Self {
        let plain = if shorten { plain_successes(settles) } else { HashMap::new() };
        let mut entries = Self::default();
        let mut entry_of_lease = HashMap::new();
        for settle in settles {
            let lease = settle.lease.id;
            let Some(tasks) = plain.get(&lease) else {
                let entry = entries.push(settle, settle.task.0);
                entries.entry_of.push((entry, 0));
                continue;
            };
            let entry = *entry_of_lease.entry(lease).or_insert_with(|| {
                let entry = entries.push(settle, -(tasks.len() as i64));
                entries.delays[entry] = entries.ids.len() as i64;
                entries.ids.extend(tasks.iter().map(|task| task.0));
                entry
            });
            entries.entry_of.push((entry, tasks.binary_search(&settle.task).unwrap_or_default()));
        }
        entries
    }

    fn push(&mut self, settle: &'a Settle, task: i64) -> usize {
        let wire = Wire::of(settle.outcome.clone());
        self.leases.push(settle.lease.id.0);
        self.tokens.push(settle.lease.token.0);
        self.tasks.push(task);
        self.outcomes.push(wire.outcome);
        self.delays.push(wire.delay_ms);
        self.reports.push(wire.report);
        self.results.push(wire.result);
        self.spawned.push(settle.spawned.as_deref());
        self.leases.len() - 1
    }
}

/// The tasks of leases from which nothing but plain successes is settled now, in order: completed without a result.
fn plain_successes(settles: &[Settle]) -> HashMap<LeaseId, Vec<TaskId>> {
    let mut plain: HashMap<LeaseId, (LeaseRef, Option<Vec<TaskId>>)> = HashMap::new();
    for settle in settles {
        let (lease, tasks) = plain.entry(settle.lease.id).or_insert((settle.lease, Some(vec![])));
        let is_plain = settle.outcome == Outcome::completed() && settle.spawned.is_none();
        if !is_plain || settle.lease != *lease {
            *tasks = None;
        }
        if let Some(tasks) = tasks {
            tasks.push(settle.task);
        }
    }
    let plain = plain.into_iter().filter_map(|(id, (lease, tasks))| {
        let mut tasks = tasks?;
        tasks.sort_unstable();
        tasks.dedup();
        let size = lease.tasks as usize;
        (tasks.len() == size || tasks.len() < size && size <= PART_OF).then_some((id, tasks))
    });
    plain.collect()
}

/// Claims as parallel arrays.
struct Wishes {
    queues: Vec<String>,
    maxes: Vec<i32>,
    kinds: Vec<Option<String>>,
    alone: Vec<Option<String>>,
    bounds: Option<Vec<i64>>,
}

impl Wishes {
    fn of(claims: &[Claim], starts: &[Option<[i64; NUMBERS]>]) -> Self {
        let join = |kinds: &[Kind]| kinds.iter().map(Kind::as_str).collect::<Vec<_>>().join(UNIT_SEPARATOR);
        // Either all queues start from their bounds or all from the beginning.
        let bounds: Option<Vec<_>> = starts.iter().copied().collect();
        Self {
            queues: claims.iter().map(|claim| claim.queue.as_str().to_owned()).collect(),
            maxes: claims.iter().map(|claim| claim.max.min(i32::MAX as u32) as i32).collect(),
            kinds: claims
                .iter()
                .map(|claim| match &claim.kinds {
                    Kinds::All => None,
                    Kinds::Only(kinds) => Some(join(kinds)),
                })
                .collect(),
            alone: claims.iter().map(|claim| (!claim.alone.is_empty()).then(|| join(&claim.alone))).collect(),
            bounds: bounds.map(|bounds| bounds.concat()),
        }
    }
}

impl PostgresStore {
    /// Makes of each outcome what a store takes.
    pub(crate) fn clean(&self, request: &mut Advance) {
        for settle in &mut request.settles {
            settle.outcome = std::mem::replace(&mut settle.outcome, Outcome::GivenBack).cleaned();
            refuse_spawned(settle, &self.limits);
        }
    }

    pub(crate) async fn advance_on(
        &self,
        client: &impl Connection,
        mut request: Advance,
    ) -> Result<Advanced, StoreError> {
        match self.try_advance(client, &request, &HashMap::new()).await {
            Err(error) if is_data_error(&error) && request.settles.len() > 1 => {
                self.split(client, request).await
            }
            Err(error) if is_data_error(&error) && request.settles.len() == 1 => {
                // Should an outcome be something that the database does not take, the task fails with that message.
                request.settles[0].outcome =
                    Outcome::Failed { error: format!("the outcome cannot be stored: {error}") };
                request.settles[0].spawned = None;
                self.try_advance(client, &request, &HashMap::new())
                    .await
                    .map_err(|error| translate(&self.target, "advance", error))
            }
            other => other.map_err(|error| translate(&self.target, "advance", error)),
        }
    }

    /// One bad settle must not hold up the others for ever: settles each half by itself, then claims.
    async fn split(&self, client: &impl Connection, mut request: Advance) -> Result<Advanced, StoreError> {
        let claims = std::mem::take(&mut request.claims);
        let second = request.settles.split_off(request.settles.len() / 2);
        let mut settled = vec![];
        for settles in [std::mem::take(&mut request.settles), second] {
            let half = Advance { settles, ..request.clone() };
            settled.extend(Box::pin(self.advance_on(client, half)).await?.settled);
        }
        let rest = Advance { claims, ..request };
        let advanced = self
            .try_advance(client, &rest, &HashMap::new())
            .await
            .map_err(|error| translate(&self.target, "advance", error))?;
        Ok(Advanced { settled, ..advanced })
    }

    /// `born`: the children that this transaction has stored already, by their parent.
    pub(crate) async fn try_advance(
        &self,
        client: &impl Connection,
        request: &Advance,
        born: &HashMap<TaskId, IdRange>,
    ) -> Result<Advanced, tokio_postgres::Error> {
        let entries = Entries::of(&request.settles, !request.again);
        let starts: Vec<_> = request
            .claims
            .iter()
            .map(|claim| self.bounds.start(request.session, &claim.queue, request.scan))
            .collect();
        let wishes = Wishes::of(&request.claims, &starts);
        let from_start = wishes.bounds.is_none() || request.scan == Scan::Full;
        let born: Vec<_> = entries.tasks.iter().map(|task| born.get(&TaskId(*task)).copied()).collect();
        let spawns = Spawns::of(&entries.spawned, &born, &self.limits, Some(WAIT_MS));
        let spawn = spawns.as_ref().map(|_| Spawns::argument(&self.schema, 17)).unwrap_or_default();
        let text = format!(
            "select * from {}.advance(p_session => $1, p_number => $2, p_again => $3, p_leases => $4, p_tokens => $5, \
             p_tasks => $6, p_outcomes => $7, p_delays => $8, p_reports => $9, p_results => $10, p_ids => $11, \
             p_queues => $12, p_maxes => $13, p_kinds => $14, p_alone => $15, p_bounds => $16{spawn})",
            self.schema
        );
        let number = request.number as i64;
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&request.session.0, Type::UUID),
            (&number, Type::INT8),
            (&request.again, Type::BOOL),
            (&entries.leases, Type::INT8_ARRAY),
            (&entries.tokens, Type::UUID_ARRAY),
            (&entries.tasks, Type::INT8_ARRAY),
            (&entries.outcomes, Type::TEXT_ARRAY),
            (&entries.delays, Type::INT8_ARRAY),
            (&entries.reports, Type::TEXT_ARRAY),
            (&entries.results, Type::TEXT_ARRAY),
            (&entries.ids, Type::INT8_ARRAY),
            (&wishes.queues, Type::TEXT_ARRAY),
            (&wishes.maxes, Type::INT4_ARRAY),
            (&wishes.kinds, Type::TEXT_ARRAY),
            (&wishes.alone, Type::TEXT_ARRAY),
            (&wishes.bounds, Type::INT8_ARRAY),
        ];
        parameters.extend(spawns.iter().flat_map(Spawns::parameters));
        let rows = client.rows(&text, &parameters).await?;
        let answer = Answer::read(&rows);
        for (queue, numbers, got) in answer.bounds {
            let claim = request.claims.iter().find(|claim| claim.queue == queue);
            let wanted = claim.map_or(0, |claim| claim.max as usize);
            self.bounds.moved(request.session, queue, Look { numbers: &numbers, from_start, wanted, got });
        }
        let order: HashMap<_, _> =
            request.claims.iter().enumerate().rev().map(|(place, claim)| (&claim.queue, place)).collect();
        let mut claimed = answer.claimed;
        claimed.sort_by_key(|claimed| {
            (order.get(&claimed.task.queue).copied().unwrap_or(0), claimed.task.priority, claimed.task.id)
        });
        let settled = std::iter::zip(&request.settles, &entries.entry_of)
            .map(|(settle, (entry, place))| {
                let verdicts = &answer.verdicts[*entry]; // one for all, or one for each
                let text = verdicts.split(',').nth(*place).unwrap_or(verdicts);
                Settled { task: settle.task, verdict: verdict(text) }
            })
            .collect();
        Ok(Advanced {
            settled: first_counts(settled),
            claimed,
            left: answer.left,
            next_due: answer.next_due,
            session_lost: answer.session_lost,
        })
    }
}

/// Plain successes of a lease are one entry, so a task that was named twice in it is told apart here: the first one counts.
fn first_counts(mut settled: Vec<Settled>) -> Vec<Settled> {
    let mut seen = std::collections::HashSet::with_capacity(settled.len());
    for entry in settled.iter_mut().filter(|entry| entry.verdict.is_recorded()) {
        if !seen.insert(entry.task) {
            entry.verdict = Verdict::Already;
        }
    }
    settled
}

/// The rows of an advance, read.
#[derive(Default)]
struct Answer {
    claimed: Vec<Claimed>,
    bounds: Vec<(QueueName, Vec<i64>, usize)>,
    verdicts: Vec<String>,
    left: Left,
    next_due: Option<Duration>,
    session_lost: bool,
}

impl Answer {
    fn read(rows: &[Row]) -> Self {
        let mut answer = Self::default();
        let mut tasks = 0;
        for row in rows {
            let is_lease = row.get::<_, Option<i64>>("lease_id").is_some();
            if is_lease {
                let leased = read_lease(row);
                tasks += leased.len();
                answer.claimed.extend(leased);
            }
            if let Some(numbers) = row.get::<_, Option<Vec<i64>>>("bounds") {
                answer.bounds.push((stored_name(row.get("queue")), numbers, tasks));
                tasks = 0;
            } else if !is_lease {
                answer.read_last(row);
            }
        }
        answer
    }

    fn read_last(&mut self, row: &Row) {
        self.verdicts = row.get::<_, Option<Vec<String>>>("verdicts").unwrap_or_default();
        self.left = match row.get::<_, Option<&str>>("remaining") {
            Some("more") => Left::More,
            Some("blocked") => Left::Blocked,
            _ => Left::Nothing,
        };
        self.next_due =
            row.get::<_, Option<i64>>("next_due_ms").map(|millis| Duration::from_millis(millis as u64));
        self.session_lost = row.get::<_, Option<bool>>("session_lost").unwrap_or_default();
    }
}

/// A name that was checked before it was stored.
pub(crate) fn stored_name<T: TryFrom<String, Error = laneway_core::InvalidInput>>(text: String) -> T {
    T::try_from(text).expect("stored names were checked when they were enqueued")
}

/// The key of a lane as users know it: lanes of children have a prefix, those of serial queues are nothing else.
fn shown_lane(key: &str) -> Option<LaneKey> {
    let key = key.trim_start_matches(['\x01', '\x02', '\x03']);
    (!key.is_empty()).then(|| stored_name(key.to_owned()))
}

fn read_lease(row: &Row) -> Vec<Claimed> {
    let ids: Vec<i64> = row.get("task_ids");
    let kinds: Vec<String> = row.get("kinds");
    let enqueued_ats: Vec<Timestamp> = row.get("enqueued_ats");
    let ready_ats: Option<Vec<Option<Timestamp>>> = row.get("ready_ats");
    let claimed_at: Timestamp = row.get("claimed_at");
    let lanes: Option<Vec<i64>> = row.get("lanes");
    let priorities: Option<Vec<i16>> = row.get("priorities");
    let attempts: Option<Vec<i16>> = row.get("attempts");
    let max_attempts: Option<Vec<i16>> = row.get("max_attempts");
    let crashes: Option<Vec<i16>> = row.get("crashes");
    let depths: Option<Vec<i16>> = row.get("depths");
    let parents: Option<Vec<Option<i64>>> = row.get("parent_ids");
    let payloads: Vec<Option<Text>> = row.get("payloads");
    let extras: Option<Vec<Option<Text>>> = row.get("extras");
    let queue: QueueName = stored_name(row.get("queue"));
    let keys = lookup(row.get("lane_ids"), row.get("lane_keys"));
    let bodies = lookup(row.get("body_ids"), row.get("bodies"));
    // Plain tasks with ids close together: history takes the whole lease as it is.
    let is_close =
        ids.iter().max().zip(ids.iter().min()).is_some_and(|(last, first)| last - first < HISTORY_SPAN);
    // A task that had children is kept in a row of its own.
    let had_family = extras.iter().flatten().flatten().any(|extra| extra.0.contains("\"family\""));
    let is_plain = is_close && attempts.is_none() && crashes.is_none() && !had_family;
    let lease = LeaseRef {
        id: LeaseId(row.get("lease_id")),
        token: LeaseToken(row.get("token")),
        tasks: if is_plain { ids.len() as u32 } else { 0 },
    };
    let number =
        |column: &Option<Vec<i16>>, place: usize, default: i16| column.as_ref().map_or(default, |c| c[place]);
    std::iter::zip(ids, kinds)
        .zip(payloads)
        .enumerate()
        .map(|(place, ((id, kind), payload))| {
            let lane = lanes.as_ref().map_or(0, |lanes| lanes[place]);
            let payload = payload.or_else(|| bodies.get(&id).copied());
            let extra = extras.as_ref().and_then(|extras| extras[place]).map(|text| text.0);
            let task = Task {
                id: TaskId(id),
                kind: stored_name(kind),
                payload: Json::trusted(payload.map_or("null", |text| text.0)),
                queue: queue.clone(),
                lane: keys.get(&lane).and_then(|key: &&str| shown_lane(key)),
                priority: number(&priorities, place, 0).into(),
                attempt: number(&attempts, place, 0) as u32 + 1,
                max_attempts: number(&max_attempts, place, 25) as u32,
                crashes: number(&crashes, place, 0) as u32,
                parent: parents.as_ref().and_then(|parents| parents[place]).map(TaskId),
                depth: number(&depths, place, 0) as u32,
                enqueued_at: enqueued_ats[place],
                options: options(extra),
            };
            let ready_at = ready_ats.as_ref().and_then(|ready| ready[place]).unwrap_or(task.enqueued_at);
            let waited = claimed_at.duration_since(ready_at).try_into().unwrap_or_default();
            Claimed { task, lease, waited }
        })
        .collect()
}

/// The options of a stored task. Whoever wrote to the table by hand gets the defaults.
pub(crate) fn options(extra: Option<&str>) -> TaskOptions {
    TaskOptions::from_stored(extra).unwrap_or_default()
}

fn lookup<V>(keys: Option<Vec<i64>>, values: Option<Vec<V>>) -> HashMap<i64, V> {
    std::iter::zip(keys.unwrap_or_default(), values.unwrap_or_default()).collect()
}

/// The text of a `json` value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a>(pub &'a str);

impl<'a> FromSql<'a> for Text<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }
}
