//! Leaves the store as it was: tasks of the load that have not run are run by a worker that does nothing, and leave no row.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use laneway::Worker;

use super::Place;
use super::recorder::Item;
use crate::context::Context;
use crate::problem::{Exit, Problem};

const SLOTS: usize = 500;
/// Tasks that are left after this time are somebody else's to run.
const PATIENCE: Duration = Duration::from_secs(300);

async fn nothing(_: Item) -> Result<(), Infallible> {
    Ok(())
}

/// Removes all tasks of the load.
///
/// # Errors
/// When some may be left; the message says how to remove them.
pub async fn up(place: &Place, context: &Context) -> Result<(), Problem> {
    let queue = &place.queue;
    let left = |why: String| {
        format!(
            "{why}; some tasks may be left: `laneway tasks delete --where queue:{queue} --yes` removes them"
        )
    };
    tokio::select! {
        tidied = remove(place, context) => {
            tidied.map_err(|problem| Problem { message: left(problem.message), ..problem })
        }
        _ = tokio::signal::ctrl_c() => Err(Problem::new(Exit::Interrupted, left("interrupted again".into()))),
    }
}

async fn remove(place: &Place, context: &Context) -> Result<(), Problem> {
    let worker = Worker::builder(&place.store)
        .queue(place.queue.as_str())
        .name("bench")
        .slots(SLOTS)
        .claim_size(SLOTS)
        .handle(nothing)
        .build()
        .map_err(|error| Problem::because("the worker that cleans up cannot be built", &error))?;
    let deadline = Instant::now() + PATIENCE;
    let mut open = open_tasks(place).await?;
    if open > 0 {
        context.out.note("cleaning up");
    }
    while open > 0 {
        if Instant::now() > deadline {
            return Err(Problem::new(Exit::Partial, format!("cleaning up took more than {PATIENCE:?}")));
        }
        let ran = worker.run_until_empty().await;
        ran.map_err(|error| Problem::because("cleaning up failed", &error))?;
        open = open_tasks(place).await?;
    }
    Ok(())
}

async fn open_tasks(place: &Place) -> Result<u64, Problem> {
    let counts = place.store.counts().await?;
    let of_load = counts.iter().filter(|count| count.queue == place.queue && !count.state.has_ended());
    Ok(of_load.map(|count| count.tasks).sum())
}
