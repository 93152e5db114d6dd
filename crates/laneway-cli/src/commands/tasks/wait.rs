//! `laneway tasks wait`: waits until tasks have ended.

use std::time::Duration;

use clap::Args;
use laneway::{Client, WaitError};
use laneway_core::{State, TaskId, TaskView, parse_span};

use super::show::not_found;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};

/// Waits until tasks have ended. 0 when all completed, 1 when one did not or time ran out.
#[derive(Args, Debug)]
pub struct Wait {
    /// Their numbers
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Give up after this long, such as 30s
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<String>,
}

const COLUMNS: &[Column<TaskView>] = &[
    right(column("ID", |task: &TaskView, _| task.id.to_string())),
    column("STATE", |task, _| task.state.to_string()),
    column("RESULT", |task, _| {
        let result = task.result.as_ref().map(|result| result.as_str().to_owned());
        result.or(task.error.clone()).map(|text| text::first_line(&text, 200)).unwrap_or_default()
    }),
];

impl Wait {
    pub async fn run(&self, context: &Context) -> Outcome {
        let ids: Vec<TaskId> = self.ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
        let timeout = self.timeout.as_deref().map(|text| parse_span("timeout", text)).transpose()?;
        let client = Client::new(context.store().await?.handle);
        let all = all(&client, &ids);
        let tasks = tokio::time::timeout(timeout.unwrap_or(Duration::MAX), all)
            .await
            .map_err(|_| Problem::new(Exit::Error, "not all have ended in time"))??;
        context.out.list("tasks", &tasks, COLUMNS, None)?;
        let completed = tasks.iter().all(|task| task.state == State::Completed);
        Ok(if completed { Exit::Done } else { Exit::Error })
    }
}

async fn all(client: &Client, ids: &[TaskId]) -> Result<Vec<TaskView>, Problem> {
    let mut tasks = vec![];
    for id in ids {
        let ended = client.wait(*id).await.map_err(|error| match error {
            WaitError::Store(error) => error.into(),
            _ => not_found(*id),
        })?;
        tasks.push(ended.view().clone());
    }
    Ok(tasks)
}
