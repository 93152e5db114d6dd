//! `laneway lanes`: look at lanes, limit and halt them.

use clap::{Args, Subcommand};
use laneway_core::{
    LaneKey, LaneLimit, LaneListing, LaneSettings, LaneView, OnFailure, Pausable, QueueName, Store,
    parse_span,
};

use super::queues::Changed;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};

/// Looks at lanes, limits and halts them.
#[derive(Debug, Subcommand)]
pub enum Lanes {
    /// List the lanes of a queue, those with the most runnable tasks first
    Ls(Ls),
    /// One lane
    Show(Named),
    /// Change a lane, which is made if it does not exist
    Set(Set),
    /// Start nothing in a lane until it is resumed; what runs goes on
    Halt(Halt),
    /// Go on with a lane that was halted, by hand or by a failure
    Resume(Named),
}

/// Lists lanes.
#[derive(Args, Debug)]
pub struct Ls {
    /// Their queue
    pub queue: String,
    /// By backlog, held or key
    #[arg(long, value_name = "ORDER", default_value = "backlog")]
    pub order: String,
    /// At most this many, 1 to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,
    /// Go on after a page, with what it said
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

/// A lane by its name.
#[derive(Args, Debug)]
pub struct Named {
    /// Its queue
    pub queue: String,
    /// Its key
    pub key: String,
}

/// Changes a lane.
#[derive(Args, Debug)]
pub struct Set {
    #[command(flatten)]
    pub lane: Named,
    /// How many of its tasks run at once, over all workers: a number, or `none`
    #[arg(long, value_name = "N")]
    pub limit: Option<String>,
    /// The least time between two starts, such as 2s; 0s removes it
    #[arg(long, value_name = "SPAN")]
    pub every: Option<String>,
    /// What happens after a task has failed for good: continue or halt
    #[arg(long, value_name = "RULE")]
    pub on_failure: Option<String>,
}

/// Halts a lane.
#[derive(Args, Debug)]
pub struct Halt {
    #[command(flatten)]
    pub lane: Named,
    /// Only for this long, such as 1h
    #[arg(long = "for", value_name = "SPAN")]
    pub span: Option<String>,
}

const COLUMNS: &[Column<LaneView>] = &[
    column("LANE", |lane: &LaneView, _| lane.key.to_string()),
    right(column("HELD", |lane, _| format!("{}/{}", lane.held, lane.limit))),
    right(column("PENDING", |lane, _| text::count(lane.pending, lane.more))),
    column("EVERY", |lane, _| every(lane)),
    column("STATE", |lane, _| state(lane).into()),
];

fn every(lane: &LaneView) -> String {
    if lane.interval.is_zero() { String::new() } else { text::span(lane.interval) }
}

fn state(lane: &LaneView) -> &'static str {
    match (lane.halted, lane.paused) {
        (true, _) => "halted by a failure",
        (_, true) => "halted by hand",
        _ => "",
    }
}

impl Ls {
    async fn run(&self, store: &dyn Store, context: &Context) -> Outcome {
        let mut listing =
            LaneListing::of(QueueName::new(&self.queue)?).order(self.order.parse()?).limit(self.limit);
        if let Some(after) = &self.after {
            listing = listing.after(after.parse()?);
        }
        let page = store.lanes(listing).await?;
        let next = page.next.map(|next| next.to_string());
        context.out.list("lanes", &page.lanes, COLUMNS, next.as_deref())?;
        if page.partial {
            context.out.note("the queue has very many lanes, and not all of them were put in order; --order key has them all");
        }
        if let Some(next) = next {
            context.out.note(&format!("more with --after '{}'", text::clean(&next)));
        }
        Ok(Exit::Done)
    }
}

impl Named {
    fn names(&self) -> Result<(QueueName, LaneKey), Problem> {
        Ok((QueueName::new(&self.queue)?, LaneKey::new(&self.key)?))
    }
}

impl Lanes {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls(_) | Self::Show(_))
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        let opened = context.store().await?;
        let store = &*opened.store;
        match self {
            Self::Ls(ls) => ls.run(store, context).await,
            Self::Show(lane) => show(store, lane, context).await,
            Self::Set(set) => set.run(store, context).await,
            Self::Halt(halt) => halt.run(store, context).await,
            Self::Resume(lane) => resume(store, lane, context).await,
        }
    }
}

async fn show(store: &dyn Store, lane: &Named, context: &Context) -> Outcome {
    let (queue, key) = lane.names()?;
    let view = store.lane(&queue, &key).await?;
    let view =
        view.ok_or_else(|| Problem::nothing(format!("there is no lane `{key}` in queue `{queue}`")))?;
    context.out.one("lane", &view, key.as_str(), &fields(&queue, &view))?;
    Ok(Exit::Done)
}

fn fields(queue: &QueueName, lane: &LaneView) -> Vec<(&'static str, String)> {
    vec![
        ("lane", lane.key.to_string()),
        ("queue", queue.to_string()),
        ("limit", lane.limit.to_string()),
        ("held", lane.held.to_string()),
        ("pending", text::count(lane.pending, lane.more)),
        ("every", every(lane)),
        ("on failure", text::stored(&lane.on_failure)),
        ("state", state(lane).to_owned()),
    ]
}

impl Set {
    async fn run(&self, store: &dyn Store, context: &Context) -> Outcome {
        let settings = LaneSettings {
            limit: self.limit.as_deref().map(limit).transpose()?,
            interval: self.every.as_deref().map(|text| parse_span("every", text)).transpose()?,
            on_failure: self.on_failure.as_deref().map(on_failure).transpose()?,
        };
        if settings == LaneSettings::default() {
            return Err(Problem::usage("there is nothing to set; say --limit, --every or --on-failure"));
        }
        let (queue, key) = self.lane.names()?;
        store.set_lane_by(&context.actor, &queue, &key, settings).await?;
        answer(&key, true, "is set", context)
    }
}

fn limit(text: &str) -> Result<LaneLimit, Problem> {
    if text == "none" {
        return Ok(LaneLimit::UNLIMITED);
    }
    let number = text.parse().map_err(|_| {
        Problem::usage(format!(
            "limit `{}` is none; a number from 1 to 1000000, or none",
            text.escape_debug()
        ))
    })?;
    Ok(LaneLimit::at(number)?)
}

fn on_failure(text: &str) -> Result<OnFailure, Problem> {
    match text {
        "continue" => Ok(OnFailure::Continue),
        "halt" => Ok(OnFailure::Halt),
        other => {
            Err(Problem::usage(format!("on-failure `{}` is none; continue or halt", other.escape_debug())))
        }
    }
}

impl Halt {
    async fn run(&self, store: &dyn Store, context: &Context) -> Outcome {
        let (queue, key) = self.lane.names()?;
        let expires = self.span.as_deref().map(|span| parse_span("for", span)).transpose()?;
        let changed = store.pause(&context.actor, &Pausable::Lane(queue, key.clone()), expires).await?;
        let says = if changed {
            "is halted; what runs goes on"
        } else {
            "was halted before; it now lasts as you say"
        };
        answer(&key, changed, says, context)
    }
}

/// Ends both: a halt by hand, and one by a failure.
async fn resume(store: &dyn Store, lane: &Named, context: &Context) -> Outcome {
    let (queue, key) = lane.names()?;
    let by_failure = store.resume_lane_by(&context.actor, &queue, &key).await?;
    let by_hand = store.resume(&context.actor, &Pausable::Lane(queue, key.clone())).await?;
    let changed = by_failure || by_hand;
    answer(&key, changed, if changed { "goes on" } else { "was not halted" }, context)?;
    Ok(if changed { Exit::Done } else { Exit::NothingMatched })
}

fn answer(key: &LaneKey, changed: bool, says: &str, context: &Context) -> Outcome {
    context.out.answer(
        &Changed { name: key.as_str(), changed },
        key.as_str(),
        &format!("lane {key} {says}"),
    )?;
    Ok(Exit::Done)
}
