//! Actions on tasks: on those that are named, or on all that a query means.
//!
//! Tasks that are named are acted on at once, and each is answered. An action by query is a bulk of the store: it is counted
//! first, asked about, and then carried out step by step; somebody else can watch it, stop it and go on with it.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use laneway_core::{
    ACT_MAX, Acted, Action, Bulk, BulkId, BulkState, Filter, NewBulk, Store, TaskId, parse_span,
};
use serde::Serialize;

use crate::ask::confirm;
use crate::commands::bulk::BulkShown;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};

/// Which tasks are meant.
#[derive(Args, Debug)]
pub struct Which {
    /// Their numbers
    #[arg(value_name = "ID", required_unless_present_any = ["filter", "all"])]
    pub ids: Vec<String>,
    /// All that this means, such as 'state:failed kind:email.*'
    #[arg(long = "where", value_name = "QUERY", conflicts_with = "ids", allow_hyphen_values = true)]
    pub filter: Option<String>,
    /// Really all, where the query is empty
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// Only count
    #[arg(long, conflicts_with = "ids")]
    pub dry_run: bool,
    /// With a query, at most so many tasks a second
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    pub pace: Option<u32>,
}

macro_rules! action {
    ($(#[$doc:meta])* $name:ident, $action:expr) => {
        $(#[$doc])*
        #[derive(Args, Debug)]
        pub struct $name {
            #[command(flatten)]
            pub which: Which,
        }

        impl $name {
            pub async fn run(&self, context: &Context) -> Outcome {
                self.which.act($action, context).await
            }
        }
    };
}

action!(
    /// Ends tasks.
    Cancel,
    Action::Cancel
);
action!(
    /// Removes tasks.
    Delete,
    Action::Delete
);

/// Lets tasks start anew.
#[derive(Args, Debug)]
pub struct Retry {
    /// Only their failed and cancelled children; the tasks wait for them again
    #[arg(long)]
    pub children: bool,
    #[command(flatten)]
    pub which: Which,
}

impl Retry {
    pub async fn run(&self, context: &Context) -> Outcome {
        let action = if self.children { Action::RetryChildren } else { Action::Retry };
        self.which.act(action, context).await
    }
}

/// Puts tasks off.
#[derive(Args, Debug)]
pub struct Snooze {
    /// Until this long from now, such as 10m
    #[arg(long = "for", value_name = "SPAN")]
    pub span: String,
    #[command(flatten)]
    pub which: Which,
}

impl Snooze {
    pub async fn run(&self, context: &Context) -> Outcome {
        let action = Action::Snooze(parse_span("for", &self.span)?);
        self.which.act(action, context).await
    }
}

/// Gives tasks another priority.
#[derive(Args, Debug)]
pub struct Priority {
    /// Lower runs first, -1000 to 1000
    #[arg(long = "to", value_name = "N", allow_negative_numbers = true)]
    pub priority: i32,
    #[command(flatten)]
    pub which: Which,
}

impl Priority {
    pub async fn run(&self, context: &Context) -> Outcome {
        self.which.act(Action::SetPriority(self.priority), context).await
    }
}

/// What became of one task.
#[derive(Serialize)]
struct Row {
    id: i64,
    done: bool,
    /// The stable code of a skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    answer: String,
}

const COLUMNS: &[Column<Row>] =
    &[right(column("ID", |row: &Row, _| row.id.to_string())), column("ANSWER", |row, _| row.answer.clone())];

impl Which {
    /// True when the tasks are named.
    pub fn names_tasks(&self) -> bool {
        !self.ids.is_empty()
    }

    async fn act(&self, action: Action, context: &Context) -> Outcome {
        action.check()?;
        if !self.ids.is_empty() {
            return self.by_id(action, context).await;
        }
        let filter: Filter = self.filter.as_deref().unwrap_or_default().parse()?;
        if filter.is_empty() && !self.all {
            return Err(Problem::usage(
                "the query is empty, which means every task; say --all if you mean that",
            ));
        }
        self.by_query(action, filter, context).await
    }

    async fn by_id(&self, action: Action, context: &Context) -> Outcome {
        let ids: Vec<TaskId> = self.ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
        let opened = context.store().await?;
        let mut rows = vec![];
        for ids in ids.chunks(ACT_MAX) {
            let acted = opened.store.act(&context.actor, action, ids).await?;
            rows.extend(ids.iter().zip(acted).map(|(id, acted)| row(action, *id, acted)));
        }
        context.out.list("tasks", &rows, COLUMNS, None)?;
        let done = rows.iter().filter(|row| row.done).count();
        Ok(match done {
            0 => Exit::NothingMatched,
            done if done < rows.len() => Exit::Partial,
            _ => Exit::Done,
        })
    }

    async fn by_query(&self, action: Action, filter: Filter, context: &Context) -> Outcome {
        let new = NewBulk { pace: self.pace, ..NewBulk::new(action, filter) };
        new.check()?;
        let opened = context.store().await?;
        let counted =
            opened.store.start_bulk(&context.actor, NewBulk { pace: None, ..new.clone() }.dry_run()).await?;
        let counted = carry_out(&*opened.store, counted.id, &ProgressBar::hidden()).await?;
        if counted.matched == 0 {
            return Err(Problem::nothing("no task matches"));
        }
        let tasks = text::tasks(counted.matched);
        if self.dry_run {
            let sentence = format!("would {} {tasks}", verb(action));
            context.out.answer(&BulkShown::of(&counted), &counted.id.0.to_string(), &sentence)?;
            return Ok(Exit::Done);
        }
        context.out.note(&format!("{} {tasks}", verb(action)));
        confirm(&format!("{} {tasks}?", verb(action)), context.yes)?;
        let bulk = opened.store.start_bulk(&context.actor, new).await?;
        let bulk = carry_out(&*opened.store, bulk.id, &progress(context, counted.matched)).await?;
        tell(&bulk, context)
    }
}

/// Takes step after step until the bulk runs no more.
pub async fn carry_out(store: &dyn Store, id: BulkId, progress: &ProgressBar) -> Result<Bulk, Problem> {
    loop {
        let bulk = store.bulk_step(id).await?;
        let bulk = bulk.ok_or_else(|| Problem::nothing(format!("there is no bulk {}", id.0)))?;
        progress.set_position(bulk.matched);
        if bulk.state != BulkState::Running {
            progress.finish_and_clear();
            return Ok(bulk);
        }
        tokio::time::sleep(bulk.pause()).await;
    }
}

fn progress(context: &Context, total: u64) -> ProgressBar {
    if !context.out.is_watched() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len}").expect("a valid template");
    ProgressBar::new(total).with_style(style)
}

/// Says what a bulk did.
fn tell(bulk: &Bulk, context: &Context) -> Outcome {
    let skipped = bulk.matched - bulk.done;
    let sentence =
        format!("bulk {}: {} done, {} skipped", bulk.id.0, text::number(bulk.done), text::number(skipped));
    context.out.answer(&BulkShown::of(bulk), &bulk.id.0.to_string(), &sentence)?;
    Ok(match (bulk.state, skipped) {
        (BulkState::Finished, 0) => Exit::Done,
        _ => Exit::Partial,
    })
}

/// What is done, as a verb.
pub fn verb(action: Action) -> String {
    match action {
        Action::Snooze(span) => format!("snooze for {}:", text::span(span)),
        Action::SetPriority(priority) => format!("set priority {priority} for"),
        Action::RetryChildren => "retry the failed children of".to_owned(),
        other => other.name().to_owned(),
    }
}

fn row(action: Action, id: TaskId, acted: Acted) -> Row {
    let answer = match acted {
        Acted::Requested => "its worker is told to stop it".into(),
        Acted::Skipped(skip) => format!("skipped: it {skip}"),
        _ => done(action).to_owned(),
    };
    let code = match acted {
        Acted::Skipped(skip) => Some(skip.code()),
        _ => None,
    };
    Row { id: id.0, done: acted.is_done(), code, answer }
}

fn done(action: Action) -> &'static str {
    match action {
        Action::Cancel => "cancelled",
        Action::Retry => "runs again",
        Action::RetryChildren => "waits for its failed children again",
        Action::Snooze(_) => "snoozed",
        Action::Delete => "deleted",
        Action::SetPriority(_) => "has its new priority",
        _ => "done",
    }
}
