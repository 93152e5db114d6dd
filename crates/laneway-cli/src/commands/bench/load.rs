//! The loads, and what is measured of each.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use laneway::{Client, Draft, EnqueueError, Metrics, State, Stop, Summary, Worker, WorkerError, task};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::recorder::{Item, Recorder};
use super::report::Figures;
use super::{Load, Place};
use crate::problem::{Exit, Problem};

/// Tasks that are stored by one call.
const CHUNK: u64 = 1_000;
/// A single task that is not started within this time never will be.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured; none when it was interrupted.
type Measured = Result<Option<Figures>, Problem>;

/// Stores all tasks, as fast as one caller can.
pub async fn enqueue(place: &Place, load: &Load, interrupted: &CancellationToken) -> Measured {
    let tasks = load.tasks("enqueue");
    let took = store_all(place, load, &Recorder::default(), tasks, interrupted).await?;
    Ok(took.map(|took| Figures::default().rate("enqueue", tasks, took)))
}

/// Stores all tasks, and then has a worker run them.
pub async fn drain(place: &Place, load: &Load, interrupted: &CancellationToken) -> Measured {
    let (recorder, tasks) = (Arc::new(Recorder::default()), load.tasks("drain"));
    let Some(stored_in) = store_all(place, load, &recorder, tasks, interrupted).await? else {
        return Ok(None);
    };
    let worker = Running::start(place, load, &recorder)?;
    let done = interrupted.run_until_cancelled(recorder.until_started(tasks)).await;
    let metrics = worker.metrics.clone();
    let began = worker.end(done.is_none()).await?;
    if done.is_none() {
        return Ok(None);
    }
    let took = recorder.last_start().map_or(Duration::ZERO, |last| last.duration_since(began));
    let figures = Figures::default().rate("enqueue", tasks, stored_in).rate("drain", tasks, took);
    let claims = ["full", "partial"].map(|result| {
        let queue = &place.queue;
        metrics.value(&format!(r#"worker_claims_total{{queue="{queue}",result="{result}"}}"#))
    });
    let claims = claims.iter().sum::<f64>().max(1.0);
    let figures = figures.add("claims", claims).add("tasks_per_claim", tasks as f64 / claims);
    Ok(Some(figures.times("wait", recorder.waits())))
}

/// Stores one task at a time while a worker waits for it.
pub async fn latency(place: &Place, load: &Load, interrupted: &CancellationToken) -> Measured {
    let (recorder, client) = (Arc::new(Recorder::default()), Client::new(&place.store));
    let worker = Running::start(place, load, &recorder)?;
    let mut commits = vec![];
    // The first one waits for the worker to come up, and is not counted.
    for n in 0..=load.tasks("latency") {
        recorder.storing(1);
        let began = Instant::now();
        described(client.enqueue(Item { n }), place, load, n).await.map_err(failed)?;
        commits.push(began.elapsed());
        let started = tokio::time::timeout(PATIENCE, recorder.until_started(n + 1));
        match interrupted.run_until_cancelled(started).await {
            None => {
                worker.end(true).await?;
                return Ok(None);
            }
            Some(started) => started.map_err(|_| {
                Problem::new(Exit::Error, format!("a task was not started within {PATIENCE:?}"))
            })?,
        }
        if n == 0 {
            commits.clear();
            recorder.forget_waits();
        }
    }
    worker.end(false).await?;
    Ok(Some(Figures::default().times("commit", commits).times("start", recorder.waits())))
}

async fn note(item: Item, State(recorder): State<Arc<Recorder>>) -> Result<(), Infallible> {
    recorder.started(&item);
    Ok(())
}

/// A worker of this process. It is told to stop when it is dropped.
struct Running {
    metrics: Metrics,
    began: Instant,
    stop: Stop,
    running: JoinHandle<Result<Summary, WorkerError>>,
}

impl Running {
    fn start(place: &Place, load: &Load, recorder: &Arc<Recorder>) -> Result<Self, Problem> {
        let worker = Worker::builder(&place.store)
            .queue(place.queue.as_str())
            .name("bench")
            .slots(load.slots as usize)
            .state(Arc::clone(recorder))
            .handle(note)
            .build()
            .map_err(|error| Problem::because("the worker cannot be built", &error))?;
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let running = tokio::spawn(worker.run_until(stop.clone()));
        Ok(Self { metrics, began: Instant::now(), stop, running })
    }

    /// Ends it, and answers when it began.
    async fn end(mut self, now: bool) -> Result<Instant, Problem> {
        if now {
            self.stop.now()
        } else {
            self.stop.drain()
        }
        let ended = (&mut self.running).await.expect("a worker does not panic");
        ended.map_err(|error| Problem::because("the worker failed", &error))?;
        Ok(self.began)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.now();
    }
}

/// Stores all tasks and answers how long that took; none when it was interrupted.
async fn store_all(
    place: &Place,
    load: &Load,
    recorder: &Recorder,
    tasks: u64,
    interrupted: &CancellationToken,
) -> Result<Option<Duration>, Problem> {
    let (client, began) = (Client::new(&place.store), Instant::now());
    for first in (0..tasks).step_by(CHUNK as usize) {
        if interrupted.is_cancelled() {
            return Ok(None);
        }
        let chunk = first..tasks.min(first + CHUNK);
        recorder.storing((chunk.end - chunk.start) as usize);
        let chunk = chunk.map(|n| described(task(Item { n }), place, load, n));
        client.enqueue_many(chunk).await.map_err(failed)?;
    }
    Ok(Some(began.elapsed()))
}

/// A task of the load with its queue and lane.
fn described<C>(draft: Draft<C>, place: &Place, load: &Load, n: u64) -> Draft<C> {
    let draft = draft.queue(place.queue.as_str());
    match load.lanes {
        0 => draft,
        lanes => draft.lane(format!("bench:{}", n % u64::from(lanes))),
    }
}

fn failed(error: EnqueueError) -> Problem {
    match error {
        EnqueueError::Store(error) => error.into(),
        other => Problem::new(Exit::Error, other.to_string()),
    }
}
