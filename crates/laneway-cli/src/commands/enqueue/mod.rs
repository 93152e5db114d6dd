//! `laneway enqueue`: one task, or many from a file.

mod lines;
mod many;

use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use laneway_core::{Effect, Enqueued, Json, Kind, Limits, NewTask, When};
use serde::Serialize;

use crate::context::Context;
use crate::output::text;
use crate::problem::{Exit, Outcome, Problem};
use crate::task_flags::TaskFlags;

/// Stores one task, or many.
#[derive(Args, Debug)]
pub struct Enqueue {
    /// Selects the handler, such as mail.receipt
    #[arg(required_unless_present = "many")]
    pub kind: Option<String>,
    /// What the handler is given, as JSON; - reads it from standard input [default: {}]
    #[arg(value_name = "JSON", conflicts_with = "many")]
    pub payload: Option<String>,
    /// Store a task per line of this file, - for standard input: payloads if a KIND is named, whole tasks otherwise
    #[arg(long, value_name = "FILE")]
    pub many: Option<PathBuf>,
    /// Only check, and store nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub task: TaskFlags,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    id: i64,
    effect: Effect,
}

impl Enqueue {
    pub async fn run(&self, context: &Context) -> Outcome {
        match &self.many {
            Some(file) if self.dry_run => many::check_only(file, self.template()?, context).await,
            Some(file) => many::run(file, self.template()?, context).await,
            None => self.one(context).await,
        }
    }

    /// The task that was described, with an empty payload; none when no kind was named.
    fn template(&self) -> Result<Option<NewTask>, Problem> {
        let Some(kind) = &self.kind else {
            let is_described = self.task != TaskFlags::default();
            let problem = "flags describe tasks of one KIND; name it, or write this into the lines";
            return if is_described { Err(Problem::usage(problem)) } else { Ok(None) };
        };
        Ok(Some(self.task.apply(NewTask::new(Kind::new(kind)?, Json::default()))?))
    }

    async fn one(&self, context: &Context) -> Outcome {
        let template = self.template()?.expect("a kind is required");
        let payload = self.payload.as_deref().map_or_else(|| Ok(Json::default()), read_payload)?;
        let task = NewTask { payload, ..template };
        if self.dry_run {
            // What depends on other tasks, such as a key that is held, is not looked at, so no store is needed.
            task.check(&Limits::default())?;
            let sentence =
                format!("would enqueue {} into queue={}; nothing was stored", task.kind, task.queue);
            context.out.answer(&Checked { checked: 1 }, "", &sentence)?;
            return Ok(Exit::Done);
        }
        let opened = context.store_to_fill().await?;
        let enqueued = opened.store.enqueue(task.clone()).await?;
        let answer = Answer { id: enqueued.id.0, effect: enqueued.effect };
        context.out.answer(&answer, &enqueued.id.to_string(), &sentence(enqueued, &task))?;
        Ok(Exit::Done)
    }
}

/// Tasks that would be accepted.
#[derive(Serialize)]
struct Checked {
    checked: u64,
}

/// A payload as it was written, or from standard input.
///
/// # Errors
/// What is not acceptable as one.
pub fn read_payload(text: &str) -> Result<Json, Problem> {
    match text {
        "-" => Ok(Json::parse(standard_input()?)?),
        text => Ok(Json::parse(text)?),
    }
}

fn standard_input() -> Result<String, Problem> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| {
        Problem::usage(format!("the payload cannot be read from standard input: {error}"))
    })?;
    Ok(text)
}

/// `1042  scheduled in 10m  queue=mail lane=order:7`
fn sentence(enqueued: Enqueued, task: &NewTask) -> String {
    let what = match enqueued.effect {
        Effect::Existing => "was there already, with the same key".into(),
        Effect::Replaced => "was there already and has the new payload".into(),
        Effect::Merged => "was there already and has the new payload merged in".into(),
        _ => match task.when {
            When::Now => "enqueued".into(),
            When::After(delay) => format!("scheduled in {}", text::span(delay)),
            When::At(due) => format!("scheduled at {due}"),
        },
    };
    let lane = task.lane.as_ref().map(|lane| format!(" lane={}", lane.key)).unwrap_or_default();
    format!("{}  {what}  queue={}{lane}", enqueued.id, task.queue)
}
