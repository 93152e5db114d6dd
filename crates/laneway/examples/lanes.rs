//! A workflow is a lane of limit 1: its steps run in order, while other workflows run beside it.

use std::time::Duration;

use laneway::{Attempt, Client, Payload, SqliteStore, StoreHandle, Worker, task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Step {
    name: String,
}

impl Payload for Step {
    const KIND: &'static str = "workflow.step";
}

async fn run_step(step: Step, attempt: Attempt) -> Result<(), std::io::Error> {
    let workflow = attempt.task().lane.as_ref().map(ToString::to_string).unwrap_or_default();
    println!("{workflow}: {} begins", step.name);
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("{workflow}: {} ends", step.name);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::from(SqliteStore::temporary().await?);
    let steps = |workflow: &'static str| {
        ["fetch", "parse", "store"].map(|name| task(Step { name: name.into() }).lane(workflow))
    };
    let client = Client::new(&store);
    client.enqueue_many(steps("A")).await?;
    client.enqueue_many(steps("B")).await?;

    let summary = Worker::builder(&store).handle(run_step).build()?.run_until_empty().await?;
    println!("{summary}");
    Ok(())
}
