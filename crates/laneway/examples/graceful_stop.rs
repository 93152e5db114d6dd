//! Ctrl-C (or SIGTERM) once: what runs may finish within the grace time. Twice: it is dropped and given back. Either way
//! nothing is lost and no attempt is charged.

use std::time::Duration;

use laneway::{Attempt, Client, Failure, Payload, SqliteStore, StopReason, StoreHandle, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Export {
    rows: u64,
}

impl Payload for Export {
    const KIND: &'static str = "export";
}

async fn export(export: Export, attempt: Attempt) -> Result<(), Failure> {
    for row in 0..export.rows {
        tokio::select! {
            reason = attempt.cancelled() => {
                println!("task {} stops at row {row}: {reason:?}", attempt.id());
                // After `WorkerStops` an error gives the task back without charging the attempt.
                let note = if reason == StopReason::WorkerStops { "the worker stops" } else { "stopped" };
                return Err(Failure::retry(note));
            }
            () = tokio::time::sleep(Duration::from_millis(100)) => (),
        }
    }
    println!("task {} is done", attempt.id());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::from(SqliteStore::temporary().await?);
    let client = Client::new(&store);
    client.enqueue_many([10, 30, 600].map(|rows| Export { rows })).await?;

    println!("press Ctrl-C to stop");
    let worker = Worker::builder(&store).grace(Duration::from_secs(5)).handle(export).build()?;
    println!("{}", worker.run().await?);
    println!("left behind: {:?}", store.counts().await?);
    Ok(())
}
