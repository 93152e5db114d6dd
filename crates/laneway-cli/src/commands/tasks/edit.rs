//! `laneway tasks edit`: another payload or priority for a task that waits.

use clap::Args;
use laneway_core::{Acted, Edit, Json, Skip, TaskId};
use serde::Serialize;

use crate::commands::enqueue::read_payload;
use crate::context::Context;
use crate::problem::{Exit, Outcome, Problem};

/// Changes a task that waits. One that runs is left alone.
#[derive(Args, Debug)]
pub struct EditTask {
    /// Its number
    pub id: String,
    /// What the handler is given from now on, as JSON; - reads it from standard input
    #[arg(long, value_name = "JSON", required_unless_present = "priority")]
    pub payload: Option<String>,
    /// Lower runs first, -1000 to 1000
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
}

#[derive(Serialize)]
struct Answer {
    id: i64,
    changed: bool,
}

impl EditTask {
    pub async fn run(&self, context: &Context) -> Outcome {
        let id: TaskId = self.id.parse()?;
        let payload: Option<Json> = self.payload.as_deref().map(read_payload).transpose()?;
        let opened = context.store().await?;
        let edit = Edit { payload, priority: self.priority };
        let (changed, says) = match opened.store.edit(&context.actor, id, edit).await? {
            Acted::Skipped(Skip::Unchanged) => (false, "is as it should be already"),
            Acted::Skipped(skip) => {
                let problem = Problem::nothing(format!("task {id} {skip}"));
                return Err(Problem { code: Some(skip.code()), ..problem });
            }
            _ => (true, "is changed"),
        };
        context.out.answer(&Answer { id: id.0, changed }, &id.to_string(), &format!("task {id} {says}"))?;
        Ok(if changed { Exit::Done } else { Exit::NothingMatched })
    }
}
