//! `laneway demo`: a mixed load on a store of its own, run before your eyes and checked.
//!
//! `load.rs` says what is enqueued, `handlers.rs` runs it, `checks.rs` watches order and limits from inside the handlers,
//! `report.rs` shows how it goes and how it went. The demo is an ordinary user of the library: what it does, a program
//! can do.

mod checks;
mod handlers;
mod load;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use laneway::{Client, SqliteStore, Stop, StoreHandle, Worker};
use laneway_core::{QueueName, ScheduleName, State as TaskState};

use self::checks::Checks;
use self::report::{Course, Live, Report};
use crate::context::Context;
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::Origin;

/// Workers of the demo; each has a claimer of its own, as two processes would have.
const WORKERS: usize = 2;
const SLOTS: usize = 100;
/// How often progress is shown and the end looked for.
const LOOK: Duration = Duration::from_millis(100);
/// A demo that takes longer has met something that it cannot get over.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows Laneway at work.
#[derive(Args, Debug)]
pub struct Demo {
    /// How much work: 1 is about 3,500 tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub scale: u32,
}

impl Demo {
    pub async fn run(&self, context: &Context) -> Outcome {
        let began = Instant::now();
        let (store, place) = store(context).await?;
        let queue = QueueName::new(format!("demo-{:08x}", uuid::Uuid::new_v4().as_fields().0))?;
        context.out.note(&format!("demo on {place}, queue {queue}, {WORKERS} workers of {SLOTS} slots"));
        let checks = Arc::new(Checks::default());
        let (stop, mut workers) = (Stop::default(), tokio::task::JoinSet::new());
        for number in 1..=WORKERS {
            let worker = worker(&store, &queue, number, &checks)?;
            workers.spawn(worker.run_until(stop.clone()));
        }

        let started = Instant::now();
        let tasks = load::enqueue(&Client::new(&store), &queue, self.scale).await?;
        let enqueued_in = started.elapsed();
        watch(&checks, tasks, context).await?;
        let schedule = ScheduleName::new(queue.as_str())?;
        store.remove_schedule(&schedule).await?;
        stop.drain();
        while let Some(ended) = workers.join_next().await {
            ended
                .expect("a worker does not panic")
                .map_err(|error| Problem::because("a worker failed", &error))?;
        }

        let took = started.elapsed();
        let open = open_tasks(&store, &queue).await?;
        let report = Report::new(&checks, Course { tasks, open, began, enqueued_in, took });
        report.show(&store, &queue, place.is_temporary, context)?;
        Ok(if report.is_right() { Exit::Done } else { Exit::Error })
    }
}

/// Where the demo runs.
struct Place {
    shown: String,
    is_temporary: bool,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// A store that was named with `--store`; otherwise a temporary one, whatever the settings say.
async fn store(context: &Context) -> Result<(StoreHandle, Place), Problem> {
    if matches!(context.settings.value("store.url").origin, Origin::Flag(_)) {
        let opened = context.store_to_serve().await?;
        return Ok((opened.handle, Place { shown: opened.shown, is_temporary: false }));
    }
    let store = SqliteStore::temporary().await?;
    Ok((store.into(), Place { shown: "a temporary SQLite store".into(), is_temporary: true }))
}

fn worker(
    store: &StoreHandle,
    queue: &QueueName,
    number: usize,
    checks: &Arc<Checks>,
) -> Result<Worker, Problem> {
    handlers::all(Worker::builder(store))
        .queue(queue.as_str())
        .name(format!("demo-{number}"))
        .slots(SLOTS)
        .state(Arc::clone(checks))
        .build()
        .map_err(|error| Problem::because("the demo's worker cannot be built", &error))
}

/// Waits until everything has ended, and shows how it goes.
async fn watch(checks: &Checks, expected: u64, context: &Context) -> Result<(), Problem> {
    let (started, mut live) = (Instant::now(), Live::new(expected, context));
    while checks.ended() < expected {
        if started.elapsed() > PATIENCE {
            let problem = format!(
                "{} of {expected} tasks have ended in {PATIENCE:?}; the demo gives up",
                checks.ended()
            );
            return Err(Problem::new(Exit::Error, problem));
        }
        live.show(checks, context);
        tokio::time::sleep(LOOK).await;
    }
    live.finish(checks, context);
    Ok(())
}

/// Tasks of the demo that have not ended: lost ones, if there were any.
async fn open_tasks(store: &StoreHandle, queue: &QueueName) -> Result<u64, Problem> {
    let counts = store.counts().await?;
    let open = |state: TaskState| !state.has_ended();
    Ok(counts
        .iter()
        .filter(|count| count.queue == *queue && open(count.state))
        .map(|count| count.tasks)
        .sum())
}
