//! `laneway schedules`: tasks that come again and again.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use laneway_core::{
    Json, Kind, Missed, NewTask, Overlap, Ran, Rule, Schedule, ScheduleName, ScheduleView, Store, parse_span,
};
use serde::Serialize;

use super::queues::Changed;
use crate::context::Context;
use crate::output::{Column, column, text, wide};
use crate::problem::{Exit, Outcome, Problem};
use crate::task_flags::TaskFlags;

/// Schedules of one page.
const PAGE: u32 = 500;
/// Fires that `show` tells.
const FIRES: usize = 5;

/// Tasks that come again and again.
#[derive(Debug, Subcommand)]
pub enum Schedules {
    /// List schedules
    Ls,
    /// Make a schedule, or change the one of that name
    Add(Box<Add>),
    /// One schedule, with its next fires
    Show {
        /// Its name
        name: String,
    },
    /// Let a schedule not fire until it is resumed
    Pause {
        /// Its name
        name: String,
    },
    /// Go on with a schedule at its next fire
    Resume {
        /// Its name
        name: String,
    },
    /// Enqueue the task of a schedule now
    Run {
        /// Its name
        name: String,
    },
    /// Remove a schedule; its tasks stay
    Rm {
        /// Its name
        name: String,
    },
    /// When a cron expression fires, without storing anything
    Next(Next),
}

/// Makes a schedule.
#[derive(Args, Debug)]
pub struct Add {
    /// Its name
    pub name: String,
    /// The kind of its tasks
    pub kind: String,
    /// What each task is given, as JSON [default: {}]
    #[arg(value_name = "JSON")]
    pub payload: Option<String>,
    #[command(flatten)]
    pub rule: RuleFlags,
    /// What becomes of fires that nobody was there for: skip, once, or all:N for the last N
    #[arg(long, value_name = "RULE", default_value = "skip")]
    pub missed: String,
    /// Skip a fire while the task of the one before is open
    #[arg(long)]
    pub no_overlap: bool,
    #[command(flatten)]
    pub task: TaskFlags,
}

/// When it fires.
#[derive(Args, Debug)]
#[group(skip)]
pub struct RuleFlags {
    /// By the clock: five fields, or six with seconds first, such as '0 7 * * MON-FRI'
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "every", conflicts_with = "every")]
    pub cron: Option<String>,
    /// The time zone of --cron
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub zone: String,
    /// At this interval, such as 5m
    #[arg(long, value_name = "SPAN")]
    pub every: Option<String>,
}

/// Says when an expression fires.
#[derive(Args, Debug)]
pub struct Next {
    /// Five fields, or six with seconds first
    pub expression: String,
    /// Its time zone
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub zone: String,
    /// How many fires
    #[arg(short = 'n', long, value_name = "N", default_value_t = FIRES)]
    pub count: usize,
}

const COLUMNS: &[Column<ScheduleView>] = &[
    column("NAME", |view: &ScheduleView, _| view.schedule.name.to_string()),
    column("RULE", |view, _| rule(&view.schedule.rule)),
    column("KIND", |view, _| view.schedule.task.kind.to_string()),
    column("QUEUE", |view, _| view.schedule.task.queue.to_string()),
    column("NEXT", |view, now| view.next_fire_at.map_or("paused".into(), |next| next_fire(view, next, now))),
    column("LAST", |view, now| view.last_fire_at.map_or("-".into(), |last| text::ago(last, now))),
    wide(column("LAST TASK", |view, _| view.last_task.map_or("-".into(), |task| task.to_string()))),
];

fn rule(rule: &Rule) -> String {
    match rule {
        Rule::Cron { expression, zone } => format!("{expression} {zone}"),
        Rule::Every(interval) => format!("every {}", text::span(*interval)),
    }
}

fn next_fire(view: &ScheduleView, next: Timestamp, now: Timestamp) -> String {
    match view.overdue {
        Some(overdue) if overdue.as_secs() > 60 => {
            format!("overdue {}; is a worker running?", text::span(overdue))
        }
        _ => text::until(next, now),
    }
}

impl Schedules {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
    }

    /// True when it changes something.
    pub fn operates(&self) -> bool {
        !self.is_look() && !matches!(self, Self::Next(_))
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Next(next) => next.run(context),
            Self::Add(add) => add.run(context).await,
            _ => {
                let opened = context.store().await?;
                self.on(&*opened.store, context).await
            }
        }
    }

    async fn on(&self, store: &dyn Store, context: &Context) -> Outcome {
        let (name, changed, says, not) = match self {
            Self::Ls => return ls(store, context).await,
            Self::Show { name } => return show(store, name, context).await,
            Self::Run { name } => return run(store, name, context).await,
            Self::Pause { name } => (
                name,
                store.pause_schedule_by(&context.actor, &named(name)?).await?,
                "is paused",
                "is paused already, or not there",
            ),
            Self::Resume { name } => (
                name,
                store.resume_schedule_by(&context.actor, &named(name)?).await?,
                "goes on",
                "is not paused, or not there",
            ),
            Self::Rm { name } => (
                name,
                store.remove_schedule_by(&context.actor, &named(name)?).await?,
                "is removed",
                "is not there",
            ),
            Self::Add(_) | Self::Next(_) => unreachable!("dealt with before"),
        };
        let says = if changed { says } else { not };
        context.out.answer(&Changed { name, changed }, name, &format!("schedule {name} {says}"))?;
        Ok(if changed { Exit::Done } else { Exit::NothingMatched })
    }
}

fn named(name: &str) -> Result<ScheduleName, Problem> {
    Ok(ScheduleName::new(name)?)
}

fn not_found(name: &str) -> Problem {
    Problem::nothing(format!("there is no schedule `{name}`"))
}

async fn ls(store: &dyn Store, context: &Context) -> Outcome {
    let mut all: Vec<ScheduleView> = vec![];
    loop {
        let after = all.last().map(|view| view.schedule.name.clone());
        let page = store.schedules(after.as_ref(), PAGE).await?;
        let is_last = page.len() < PAGE as usize;
        all.extend(page);
        if is_last {
            break;
        }
    }
    context.out.list("schedules", &all, COLUMNS, None)?;
    Ok(Exit::Done)
}

async fn show(store: &dyn Store, name: &str, context: &Context) -> Outcome {
    let view = store.schedule(&named(name)?).await?.ok_or_else(|| not_found(name))?;
    let now = Timestamp::now();
    let fires = view.preview(FIRES)?.into_iter().map(|fire| text::moment(fire, now)).collect::<Vec<_>>();
    let task = &view.schedule.task;
    let fields = [
        ("schedule", name.to_owned()),
        ("rule", rule(&view.schedule.rule)),
        ("kind", task.kind.to_string()),
        ("payload", task.payload.as_str().to_owned()),
        ("queue", task.queue.to_string()),
        ("lane", task.lane.as_ref().map(|lane| lane.key.to_string()).unwrap_or_default()),
        ("missed", text::stored(&view.schedule.missed)),
        ("overlap", text::stored(&view.schedule.overlap)),
        ("paused", view.paused_at.map(|since| text::moment(since, now)).unwrap_or_default()),
        ("last", view.last_fire_at.map(|last| text::moment(last, now)).unwrap_or_default()),
        ("last task", view.last_task.map(|task| task.to_string()).unwrap_or_default()),
        ("next", fires.join("\n")),
    ];
    context.out.one("schedule", &view, name, &fields)?;
    Ok(Exit::Done)
}

async fn run(store: &dyn Store, name: &str, context: &Context) -> Outcome {
    #[derive(Serialize)]
    struct Answer {
        task: i64,
        enqueued: bool,
    }
    let (task, enqueued) = match store.run_schedule_by(&context.actor, &named(name)?).await? {
        Ran::NotFound => return Err(not_found(name)),
        Ran::Enqueued(task) => (task, true),
        Ran::Open(task) => (task, false),
    };
    let says = match enqueued {
        true => format!("{task}  enqueued by schedule {name}"),
        false => format!("nothing was enqueued: task {task} of schedule {name} is open"),
    };
    context.out.answer(&Answer { task: task.0, enqueued }, &task.to_string(), &says)?;
    Ok(if enqueued { Exit::Done } else { Exit::NothingMatched })
}

impl Add {
    async fn run(&self, context: &Context) -> Outcome {
        let payload = self.payload.as_deref().map_or(Ok(Json::default()), Json::parse)?;
        let task = self.task.apply(NewTask::new(Kind::new(&self.kind)?, payload))?;
        let overlap = if self.no_overlap { Overlap::SkipWhileOpen } else { Overlap::Allow };
        let schedule = Schedule::new(named(&self.name)?, self.rule.read()?, task)
            .missed(missed(&self.missed)?)
            .overlap(overlap);
        schedule.check(&Default::default())?;
        let opened = context.store_to_fill().await?;
        let view = opened.store.put_schedule_by(&context.actor, schedule).await?;
        let next = view.next_fire_at.map_or("is paused".into(), |next| {
            format!("fires next {}", text::moment(next, Timestamp::now()))
        });
        context.out.answer(&view, &self.name, &format!("schedule {} {next}", self.name))?;
        Ok(Exit::Done)
    }
}

impl RuleFlags {
    fn read(&self) -> Result<Rule, Problem> {
        match (&self.cron, &self.every) {
            (Some(cron), _) => Ok(Rule::cron(cron, &self.zone)),
            (None, every) => Ok(Rule::Every(parse_span("every", every.as_deref().unwrap_or_default())?)),
        }
    }
}

fn missed(text: &str) -> Result<Missed, Problem> {
    let cap = || text.strip_prefix("all:")?.parse().ok();
    match text {
        "skip" => Ok(Missed::Skip),
        "once" => Ok(Missed::Once),
        _ => cap().map(|cap| Missed::All { cap }).ok_or_else(|| {
            Problem::usage(format!(
                "missed `{}` is none; skip, once, or all:N such as all:10",
                text.escape_debug()
            ))
        }),
    }
}

impl Next {
    fn run(&self, context: &Context) -> Outcome {
        #[derive(Serialize)]
        struct Fire {
            at: Timestamp,
        }
        let fires = Rule::cron(&self.expression, &self.zone).preview(Timestamp::now(), self.count)?;
        let fires: Vec<_> = fires.into_iter().map(|at| Fire { at }).collect();
        let columns = [
            column("AT", |fire: &Fire, _| text::whole_seconds(fire.at)),
            column("IN", |fire, now| text::span(text::since(now, fire.at))),
        ];
        context.out.list("fires", &fires, &columns, None)?;
        Ok(Exit::Done)
    }
}
