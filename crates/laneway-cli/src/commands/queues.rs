//! `laneway queues`: look at queues, pause and set them.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use laneway_core::{
    Counts, Keep, KindCounts, LaneLimit, Pausable, QueueName, QueueSettings, QueueView, Serial, State, Store,
    parse_span,
};
use serde::Serialize;

use crate::context::Context;
use crate::output::{Column, column, right, text, wide};
use crate::problem::{Exit, Outcome, Problem};

/// How often a queue that drains is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks at queues, pauses and sets them.
#[derive(Debug, Subcommand)]
pub enum Queues {
    /// List queues, with the age of their oldest runnable task
    Ls,
    /// One queue, by kind and state
    Show {
        /// Its name
        name: String,
    },
    /// Claim nothing from a queue; what runs goes on
    Pause {
        /// Its name
        name: String,
        /// Only for this long, such as 1h
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<String>,
    },
    /// Go on with a queue
    Resume {
        /// Its name
        name: String,
    },
    /// Claim nothing from a queue, and wait until nothing of it runs
    Drain(Drain),
    /// Change a queue's settings
    Set(Set),
}

/// Pauses a queue and waits until nothing of it runs.
#[derive(Args, Debug)]
pub struct Drain {
    /// Its name
    pub name: String,
    /// Pause it only for this long, such as 1h
    #[arg(long = "for", value_name = "SPAN")]
    pub span: Option<String>,
    /// Wait at most this long
    #[arg(long, value_name = "SPAN", default_value = "1m")]
    pub within: String,
}

/// Changes a queue's settings.
#[derive(Args, Debug)]
pub struct Set {
    /// Its name
    pub name: String,
    /// How long ended tasks are kept, in whatever state: days such as 7d, or `default`
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["keep_completed", "keep_failed", "keep_cancelled"])]
    pub retention: Option<String>,
    /// How long completed tasks are kept: days such as 7d, `none`, or `default`
    #[arg(long, value_name = "DAYS")]
    pub keep_completed: Option<String>,
    /// How long failed tasks are kept
    #[arg(long, value_name = "DAYS")]
    pub keep_failed: Option<String>,
    /// How long cancelled tasks are kept
    #[arg(long, value_name = "DAYS")]
    pub keep_cancelled: Option<String>,
    /// Run its top-level tasks one at a time, and so many of their children at once; `off` ends that
    #[arg(long, value_name = "CHILDREN", num_args = 0..=1, default_missing_value = "4")]
    pub serial: Option<String>,
    /// The limit of lanes that are made from now on and given none; `unlimited` is one
    #[arg(long, value_name = "N")]
    pub lane_limit: Option<String>,
    /// Whether statistics per minute are gathered
    #[arg(long, value_name = "BOOL")]
    pub statistics: Option<bool>,
}

/// A queue with its counts.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    queue: QueueView,
    counts: Vec<StateCount>,
}

#[derive(Serialize)]
struct StateCount {
    state: State,
    tasks: u64,
    more: bool,
}

impl Row {
    fn count(&self, state: State) -> String {
        let found = self.counts.iter().find(|count| count.state == state);
        found.map_or("0".into(), |count| text::count(count.tasks, count.more))
    }
}

/// How long something is so; `-` when nothing is.
fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or("-".into(), |since| text::span(text::since(since, now)))
}

const COLUMNS: &[Column<Row>] = &[
    column("QUEUE", |row: &Row, _| row.queue.queue.to_string()),
    column("OLDEST READY", |row, now| age(row.queue.oldest_ready_at, now)),
    right(column("PENDING", |row, _| row.count(State::Pending))),
    right(column("RUNNING", |row, _| row.count(State::Leased))),
    right(column("WAITING", |row, _| row.count(State::Waiting))),
    right(column("LATER", |row, _| row.count(State::Later))),
    right(column("FAILED", |row, _| row.count(State::Failed))),
    wide(right(column("COMPLETED", |row, _| row.count(State::Completed)))),
    wide(right(column("CANCELLED", |row, _| row.count(State::Cancelled)))),
    column("PAUSED", |row, now| row.queue.paused_at.map_or(String::new(), |since| text::ago(since, now))),
];

const KIND_COLUMNS: &[Column<KindCounts>] = &[
    column("KIND", |count: &KindCounts, _| count.kind.to_string()),
    column("STATE", |count, _| count.state.to_string()),
    right(column("TASKS", |count, _| text::count(count.tasks, count.more))),
];

impl Queues {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        let opened = context.store().await?;
        let store = &*opened.store;
        match self {
            Self::Ls => {
                context.out.list("queues", &rows(store).await?, COLUMNS, None)?;
                Ok(Exit::Done)
            }
            Self::Show { name } => show(store, name, context).await,
            Self::Pause { name, span } => pause(store, name, span.as_deref(), context).await,
            Self::Resume { name } => resume(store, name, context).await,
            Self::Drain(drain) => drain.run(store, context).await,
            Self::Set(set) => set.run(store, context).await,
        }
    }
}

async fn rows(store: &dyn Store) -> Result<Vec<Row>, Problem> {
    let counts = store.counts().await?;
    let of = |queue: &QueueName| {
        let own = counts.iter().filter(|count| count.queue == *queue);
        own.map(|Counts { state, tasks, more, .. }| StateCount { state: *state, tasks: *tasks, more: *more })
            .collect()
    };
    let queues = store.queues().await?;
    Ok(queues.into_iter().map(|queue| Row { counts: of(&queue.queue), queue }).collect())
}

async fn show(store: &dyn Store, name: &str, context: &Context) -> Outcome {
    let name = QueueName::new(name)?;
    let row = rows(store).await?.into_iter().find(|row| row.queue.queue == name);
    let row = row.ok_or_else(|| Problem::nothing(format!("there is no queue `{name}`")))?;
    let now = Timestamp::now();
    let QueueView { keep_completed, keep_failed, keep_cancelled, .. } = row.queue;
    let kept = |keep, state| match keep {
        Keep::Default => format!("{} days (default)", Keep::default_days(state)),
        Keep::Days(days) => format!("{days} days"),
        Keep::Nothing => "not at all".into(),
    };
    let mut fields = vec![
        ("queue", name.to_string()),
        ("paused", row.queue.paused_at.map(|since| text::moment(since, now)).unwrap_or_default()),
        ("oldest ready", age(row.queue.oldest_ready_at, now)),
        ("oldest waiting", age(row.queue.oldest_waiting_at, now)),
        ("keeps completed", kept(keep_completed, State::Completed)),
        ("keeps failed", kept(keep_failed, State::Failed)),
        ("keeps cancelled", kept(keep_cancelled, State::Cancelled)),
        ("serial", serial_shown(row.queue.serial)),
        ("lane limit", lane_limit_shown(row.queue.lane_limit)),
        ("statistics", if row.queue.statistics { "on" } else { "off" }.into()),
    ];
    fields
        .extend(row.counts.iter().map(|count| (count.state.as_str(), text::count(count.tasks, count.more))));
    context.out.one("queue", &row, name.as_str(), &fields)?;
    if matches!(context.out.format, crate::output::Format::Table | crate::output::Format::Wide) {
        context.out.data("\n")?;
        context.out.list("kinds", &store.counts_by_kind(&name).await?, KIND_COLUMNS, None)?;
    }
    Ok(Exit::Done)
}

/// Nothing for the ordinary one.
fn lane_limit_shown(limit: LaneLimit) -> String {
    if limit == LaneLimit::ONE { String::new() } else { limit.to_string() }
}

fn serial_shown(serial: Serial) -> String {
    match serial {
        Serial::Off => String::new(),
        Serial::Children(at_once) => format!("one task at a time, {at_once} of its children at once"),
    }
}

/// What a change to something named did.
#[derive(Serialize)]
pub struct Changed<'a> {
    pub name: &'a str,
    pub changed: bool,
}

async fn pause(store: &dyn Store, name: &str, span: Option<&str>, context: &Context) -> Outcome {
    let expires = span.map(|span| parse_span("for", span)).transpose()?;
    let changed = store.pause(&context.actor, &Pausable::Queue(QueueName::new(name)?), expires).await?;
    let says =
        if changed { "is paused; what runs goes on" } else { "was paused before; it now lasts as you say" };
    context.out.answer(&Changed { name, changed }, name, &format!("queue {name} {says}"))?;
    Ok(Exit::Done)
}

async fn resume(store: &dyn Store, name: &str, context: &Context) -> Outcome {
    let changed = store.resume(&context.actor, &Pausable::Queue(QueueName::new(name)?)).await?;
    let says = if changed { "goes on" } else { "was not paused" };
    context.out.answer(&Changed { name, changed }, name, &format!("queue {name} {says}"))?;
    Ok(if changed { Exit::Done } else { Exit::NothingMatched })
}

impl Drain {
    async fn run(&self, store: &dyn Store, context: &Context) -> Outcome {
        let name = QueueName::new(&self.name)?;
        let expires = self.span.as_deref().map(|span| parse_span("for", span)).transpose()?;
        let deadline = Instant::now() + parse_span("within", &self.within)?;
        store.pause(&context.actor, &Pausable::Queue(name.clone()), expires).await?;
        loop {
            let counts = store.counts().await?;
            let is_running = |count: &&Counts| count.queue == name && count.state == State::Leased;
            let running: u64 = counts.iter().filter(is_running).map(|count| count.tasks).sum();
            let is_over = running == 0 || Instant::now() >= deadline;
            if is_over {
                let says = match running {
                    0 => "is paused, and nothing of it runs".to_owned(),
                    running => format!("is paused; {} still run", text::tasks(running)),
                };
                let drained = Drained { name: name.as_str(), running };
                context.out.answer(&drained, name.as_str(), &format!("queue {name} {says}"))?;
                return Ok(if running == 0 { Exit::Done } else { Exit::Partial });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What a queue that takes nothing new still runs.
#[derive(Serialize)]
struct Drained<'a> {
    name: &'a str,
    running: u64,
}

impl Set {
    async fn run(&self, store: &dyn Store, context: &Context) -> Outcome {
        let all = self.retention.as_deref().map(|text| keep("retention", text)).transpose()?;
        let kept = |field, text: &Option<String>| match text {
            Some(text) => keep(field, text).map(Some),
            None => Ok(all),
        };
        let settings = QueueSettings {
            keep_completed: kept("keep-completed", &self.keep_completed)?,
            keep_failed: kept("keep-failed", &self.keep_failed)?,
            keep_cancelled: kept("keep-cancelled", &self.keep_cancelled)?,
            statistics: self.statistics,
            serial: self.serial.as_deref().map(serial).transpose()?,
            lane_limit: self.lane_limit.as_deref().map(lane_limit).transpose()?,
        };
        if settings == QueueSettings::default() {
            return Err(Problem::usage(
                "there is nothing to set; say --retention, --keep-completed, --keep-failed, --keep-cancelled, --serial, --lane-limit or --statistics",
            ));
        }
        let name = QueueName::new(&self.name)?;
        store.set_queue_by(&context.actor, &name, settings).await?;
        context.out.answer(
            &Changed { name: name.as_str(), changed: true },
            name.as_str(),
            &format!("queue {name} is set"),
        )?;
        Ok(Exit::Done)
    }
}

/// How long something is kept: `7d`, `none`, `default`.
fn keep(field: &str, text: &str) -> Result<Keep, Problem> {
    let days = || text.strip_suffix('d').unwrap_or(text).parse().ok();
    match text {
        "none" => Ok(Keep::Nothing),
        "default" => Ok(Keep::Default),
        _ => days().map(Keep::Days).ok_or_else(|| {
            Problem::usage(format!(
                "{field} `{}` is none; days such as 7d, none, or default",
                text.escape_debug()
            ))
        }),
    }
}

/// The limit of a lane.
fn lane_limit(text: &str) -> Result<LaneLimit, Problem> {
    if text == "unlimited" {
        return Ok(LaneLimit::UNLIMITED);
    }
    let limit = text.parse().map_err(|_| {
        Problem::usage(format!("lane-limit `{}` is none; a number, or unlimited", text.escape_debug()))
    })?;
    Ok(LaneLimit::at(limit)?)
}

/// Whether tasks run one at a time: how many children at once, or `off`.
fn serial(text: &str) -> Result<Serial, Problem> {
    if text == "off" {
        return Ok(Serial::Off);
    }
    text.parse().map(Serial::Children).map_err(|_| {
        Problem::usage(format!("serial `{}` is none; a number of children, or off", text.escape_debug()))
    })
}
