//! Schedules: read, compute in Rust, come back with what was seen.
//!
//! The fires of a schedule are computed between two statements. The second one names the revision and the next fire from
//! which they were computed (`schedule.sql`), so whatever happened in between makes it change nothing. Operators' verbs
//! then look again; a fire is left to whoever was faster, or to the next call.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Actor, Fired, Missed, NewTask, Overlap, Ran, Rule, Schedule, ScheduleName, ScheduleView, StoreError,
    TaskId,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::advance::{Text, stored_name};
use crate::enqueue::Columns;
use crate::store::{Parameter, PostgresStore};
use crate::unique::{FIRST_WAIT_MS, KeyColumns, WAIT_MS};

/// Schedules that one call fires at most.
const FIRE_MAX: usize = 100;
/// How often an operator's verb looks again when others change the same schedule.
const TRIES: usize = 5;

/// A schedule as it was seen, and when.
struct Seen {
    view: ScheduleView,
    revision: i64,
    now: Timestamp,
}

/// A rule as the table keeps it.
struct RuleColumns<'a> {
    cron: Option<&'a str>,
    zone: Option<&'a str>,
    every_us: Option<i64>,
}

impl<'a> RuleColumns<'a> {
    fn of(rule: &'a Rule) -> Self {
        match rule {
            Rule::Cron { expression, zone } => {
                Self { cron: Some(expression), zone: Some(zone), every_us: None }
            }
            Rule::Every(interval) => {
                Self { cron: None, zone: None, every_us: Some(interval.as_micros() as i64) }
            }
        }
    }
}

pub(crate) async fn fire_due(store: &PostgresStore) -> Result<Fired, StoreError> {
    let call = "due_schedules(p_limit => $1)";
    let rows = store.call("look for due schedules", call, &[(&(FIRE_MAX as i32), Type::INT4)]).await?;
    let mut fired = Fired::default();
    for row in &rows {
        match seen(row) {
            Ok(seen) => fire(store, seen, &mut fired).await?,
            Err(error) => stuck(stored_name(row.get("name")), &error, &mut fired),
        }
    }
    fired.more = rows.len() == FIRE_MAX && fired.stuck.len() < FIRE_MAX;
    Ok(fired)
}

async fn fire(store: &PostgresStore, seen: Seen, fired: &mut Fired) -> Result<(), StoreError> {
    let view = &seen.view;
    let (pending, due) = match (view.next_fire_at, view.due(seen.now)) {
        (Some(pending), Ok(Some(due))) => (pending, due),
        (_, Ok(_)) => return Ok(()),
        (_, Err(refused)) => {
            stuck(view.schedule.name.clone(), &refused, fired);
            return Ok(());
        }
    };
    let tasks: Vec<_> = due.fires.iter().map(|at| view.task(Some(*at))).collect();
    let last = due.fires.last().copied().unwrap_or(pending);
    let (columns, keys) = (Columns::of(&tasks), KeyColumns::of(&tasks, &store.limits, Some(FIRST_WAIT_MS)));
    let name = view.schedule.name.as_str();
    let call = format!(
        "fire_schedule({}, {}, p_name => $18, p_seen => $19, p_fire_at => $20, p_last => $21, p_next => $22)",
        Columns::ARGUMENTS,
        KeyColumns::ARGUMENTS
    );
    let mut parameters = [&columns.parameters()[..], &keys.parameters()].concat();
    parameters.extend::<[Parameter<'_>; 5]>([
        (&name, Type::TEXT),
        (&seen.revision, Type::INT8),
        (&pending, Type::TIMESTAMPTZ),
        (&last, Type::TIMESTAMPTZ),
        (&due.next, Type::TIMESTAMPTZ),
    ]);
    let rows = match store.call("fire a schedule", &call, &parameters).await {
        Ok(rows) => rows,
        // Another transaction is just taking its key: it stays due.
        Err(StoreError::Busy { .. }) => return Ok(()),
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => {
            stuck(view.schedule.name.clone(), &error, fired);
            return Ok(());
        }
    };
    match rows[0].get("verdict") {
        "fired" => fired.tasks.extend(rows[0].get::<_, Vec<i64>>("ids").into_iter().map(TaskId)),
        "skipped" => fired.skipped += 1,
        // Somebody else has fired or changed it.
        _ => (),
    }
    Ok(())
}

/// One schedule that cannot be computed must not hold up the others.
fn stuck(name: ScheduleName, error: &impl std::error::Error, fired: &mut Fired) {
    tracing::error!(schedule = %name, %error, "a schedule cannot fire");
    fired.stuck.push(name);
}

pub(crate) async fn put(
    store: &PostgresStore,
    actor: &Actor,
    schedule: Schedule,
) -> Result<ScheduleView, StoreError> {
    schedule.check(&store.limits)?;
    let schedule = schedule.stored();
    for _ in 0..TRIES {
        let (seen, now) = see(store, &schedule.name).await?;
        let revision = seen.as_ref().map(|seen| seen.revision);
        let seen_fire = seen.as_ref().and_then(|seen| seen.view.next_fire_at);
        let view = ScheduleView::put(seen.map(|seen| seen.view), schedule.clone(), now)?;
        if write(store, actor, &view, revision, seen_fire).await? {
            return Ok(view);
        }
    }
    Err(busy(&schedule.name))
}

async fn write(
    store: &PostgresStore,
    actor: &Actor,
    view: &ScheduleView,
    revision: Option<i64>,
    seen_fire: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let schedule = &view.schedule;
    let rule = RuleColumns::of(&schedule.rule);
    let (missed, cap) = match schedule.missed {
        Missed::Skip => ("skip", None),
        Missed::Once => ("once", None),
        Missed::All { cap } => ("all", Some(cap as i32)),
    };
    let task = serde_json::to_string(&schedule.task)
        .map_err(|error| StoreError::Unexpected { doing: "put a schedule", source: error.into() })?;
    let call = "put_schedule(p_name => $1, p_seen => $2, p_seen_fire => $3, p_cron => $4, p_zone => $5, \
                p_every_us => $6, p_anchor_at => $7, p_missed => $8, p_missed_cap => $9, p_skip_open => $10, \
                p_task => $11, p_next => $12, p_who => $13, p_reason => $14)";
    let parameters: &[Parameter<'_>] = &[
        (&schedule.name.as_str(), Type::TEXT),
        (&revision, Type::INT8),
        (&seen_fire, Type::TIMESTAMPTZ),
        (&rule.cron, Type::TEXT),
        (&rule.zone, Type::TEXT),
        (&rule.every_us, Type::INT8),
        (&view.anchor_at, Type::TIMESTAMPTZ),
        (&missed, Type::TEXT),
        (&cap, Type::INT4),
        (&(schedule.overlap == Overlap::SkipWhileOpen), Type::BOOL),
        (&task, Type::TEXT),
        (&view.next_fire_at, Type::TIMESTAMPTZ),
        (&actor.who.as_str(), Type::TEXT),
        (&actor.reason, Type::TEXT),
    ];
    Ok(store.call("put a schedule", call, parameters).await?[0].get(0))
}

/// Removes or pauses a schedule, by the function of that name.
pub(crate) async fn change(
    store: &PostgresStore,
    actor: &Actor,
    doing: &'static str,
    function: &str,
    name: &ScheduleName,
) -> Result<bool, StoreError> {
    let call = format!("{function}(p_who => $1, p_reason => $2, p_name => $3)");
    let parameters: &[Parameter<'_>] =
        &[(&actor.who.as_str(), Type::TEXT), (&actor.reason, Type::TEXT), (&name.as_str(), Type::TEXT)];
    Ok(store.call(doing, &call, parameters).await?[0].get(0))
}

pub(crate) async fn resume(
    store: &PostgresStore,
    actor: &Actor,
    name: &ScheduleName,
) -> Result<bool, StoreError> {
    for _ in 0..TRIES {
        let (Some(seen), now) = see(store, name).await? else { return Ok(false) };
        if seen.view.paused_at.is_none() {
            return Ok(false);
        }
        let next = seen.view.next_after(now)?;
        let call = "resume_schedule(p_who => $1, p_reason => $2, p_name => $3, p_seen => $4, p_next => $5)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&name.as_str(), Type::TEXT),
            (&seen.revision, Type::INT8),
            (&next, Type::TIMESTAMPTZ),
        ];
        if store.call("resume a schedule", call, parameters).await?[0].get(0) {
            return Ok(true);
        }
    }
    Err(busy(name))
}

pub(crate) async fn run(
    store: &PostgresStore,
    actor: &Actor,
    name: &ScheduleName,
) -> Result<Ran, StoreError> {
    for _ in 0..TRIES {
        let (Some(seen), _) = see(store, name).await? else { return Ok(Ran::NotFound) };
        let task = [seen.view.task(None)];
        let (columns, keys) = (Columns::of(&task), KeyColumns::of(&task, &store.limits, Some(WAIT_MS)));
        let call = format!(
            "run_schedule({}, {}, p_name => $18, p_seen => $19, p_who => $20, p_reason => $21)",
            Columns::ARGUMENTS,
            KeyColumns::ARGUMENTS
        );
        let mut parameters = [&columns.parameters()[..], &keys.parameters()].concat();
        let (text, who) = (name.as_str(), actor.who.as_str());
        parameters.extend::<[Parameter<'_>; 4]>([
            (&text, Type::TEXT),
            (&seen.revision, Type::INT8),
            (&who, Type::TEXT),
            (&actor.reason, Type::TEXT),
        ]);
        let rows = store.call("run a schedule", &call, &parameters).await?;
        let task = rows[0].get::<_, Option<i64>>("task").map(TaskId);
        match (rows[0].get("verdict"), task) {
            ("ran", Some(task)) => return Ok(Ran::Enqueued(task)),
            ("open", Some(task)) => return Ok(Ran::Open(task)),
            _ => (),
        }
    }
    Err(busy(name))
}

pub(crate) async fn find(
    store: &PostgresStore,
    name: &ScheduleName,
) -> Result<Option<ScheduleView>, StoreError> {
    Ok(see(store, name).await?.0.map(|seen| seen.view))
}

pub(crate) async fn page(
    store: &PostgresStore,
    after: Option<&ScheduleName>,
    limit: u32,
) -> Result<Vec<ScheduleView>, StoreError> {
    let after = after.map(ScheduleName::as_str);
    let call = "list_schedules(p_after => $1, p_limit => $2)";
    let parameters: &[Parameter<'_>] = &[(&after, Type::TEXT), (&(limit as i32), Type::INT4)];
    let rows = store.call("list schedules", call, parameters).await?;
    rows.iter().map(|row| seen(row).map(|seen| seen.view)).collect()
}

/// The schedule, if there is one, and the database's time.
async fn see(store: &PostgresStore, name: &ScheduleName) -> Result<(Option<Seen>, Timestamp), StoreError> {
    let call = "get_schedule(p_name => $1)";
    let rows = store.call("look at a schedule", call, &[(&name.as_str(), Type::TEXT)]).await?;
    let is_there = rows[0].get::<_, Option<&str>>("name").is_some();
    Ok((is_there.then(|| seen(&rows[0])).transpose()?, rows[0].get("now")))
}

fn seen(row: &Row) -> Result<Seen, StoreError> {
    let task: NewTask = serde_json::from_str(row.get::<_, Text<'_>>("task").0)
        .map_err(|error| StoreError::Unexpected { doing: "read a schedule", source: error.into() })?;
    let rule = match (row.get("cron"), row.get("zone")) {
        (Some::<String>(expression), Some::<String>(zone)) => Rule::Cron { expression, zone },
        _ => Rule::Every(Duration::from_micros(row.get::<_, i64>("every_us") as u64)),
    };
    let missed = match (row.get("missed"), row.get::<_, Option<i32>>("missed_cap")) {
        ("all", Some(cap)) => Missed::All { cap: cap as u32 },
        ("once", _) => Missed::Once,
        _ => Missed::Skip,
    };
    let overlap = if row.get("skip_open") { Overlap::SkipWhileOpen } else { Overlap::Allow };
    let name = stored_name(row.get("name"));
    let (now, next_fire_at) = (row.get("now"), row.get("next_fire_at"));
    let view = ScheduleView {
        schedule: Schedule { name, rule, task, missed, overlap },
        anchor_at: row.get("anchor_at"),
        paused_at: row.get("paused_at"),
        next_fire_at,
        last_fire_at: row.get("last_fire_at"),
        last_task: row.get::<_, Option<i64>>("last_task").map(TaskId),
        overdue: ScheduleView::overdue_at(next_fire_at, now),
    };
    Ok(Seen { view, revision: row.get("revision"), now })
}

fn busy(name: &ScheduleName) -> StoreError {
    StoreError::Busy { what: format!("schedule {name}") }
}
