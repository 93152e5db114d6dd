//! What `dev`, `serve` and workers have in common: a worker from settings, and running until a signal.
//!
//! The first SIGTERM or SIGINT stops everything in an orderly way: the server takes nothing new, the worker drains within
//! its grace time. The second one stops the worker now; what it runs is given back. SIGHUP reads live settings again.

use std::time::Duration;

use laneway::{Stop, StoreHandle, Summary, Worker, WorkerBuilder, WorkerError};
use laneway_server::Bound;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::context::Context;
use crate::logging::Logs;
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::Settings;

/// A worker as the settings describe it, without handlers.
///
/// # Errors
/// When a secret cannot be read.
pub fn builder(store: &StoreHandle, settings: &Settings) -> Result<WorkerBuilder, Problem> {
    let millis = |key| settings.whole(key).map(Duration::from_millis);
    let mut builder = Worker::builder(store)
        .slots(settings.slots().0)
        .claim_size(settings.whole("worker.claim_batch_size").unwrap_or(50) as usize)
        .poll_interval(millis("worker.poll_interval_ms").unwrap_or_default())
        .poll_interval_max(millis("worker.poll_interval_max_ms").unwrap_or_default())
        .grace(Duration::from_secs(settings.whole("worker.shutdown_grace_s").unwrap_or(30)))
        .memory_high(settings.ratio("worker.memory_high").unwrap_or(0.8))
        .memory_stop(settings.ratio("worker.memory_stop").unwrap_or(0.95))
        .min_free_ratio(settings.ratio("worker.min_free_ratio").unwrap_or(0.0));
    for (queue, weight) in settings.queues() {
        builder = builder.weighted_queue(&queue, weight);
    }
    if let Some(threshold) = millis("worker.latency_threshold_ms") {
        builder = builder.latency_threshold(threshold);
    }
    if let Some(profile) = &settings.value("profile").text {
        builder = builder.profile_name(profile);
    }
    Ok(match settings.text("worker.name")? {
        Some(name) => builder.name(name),
        None => builder,
    })
}

/// Checks everything and makes the worker.
///
/// # Errors
/// All mistakes at once.
pub fn build(builder: WorkerBuilder) -> Result<Worker, Problem> {
    builder.build().map_err(|error| Problem::usage(error.to_string()))
}

/// What runs in this process.
#[derive(Default)]
pub struct Parts {
    pub worker: Option<Worker>,
    pub server: Option<Bound>,
    /// A server that only tells how the process is. It ends with the others.
    pub probes: Option<Bound>,
    /// Something that tells what happens, until its token is cancelled.
    pub narrator: Option<tokio::task::JoinHandle<()>>,
    /// Cancelled when the narrator shall end.
    pub closing: CancellationToken,
}

type Ended = Result<Option<Summary>, WorkerError>;

/// Runs until signals have stopped everything.
///
/// # Errors
/// When the worker cannot start.
pub async fn run(parts: Parts, context: &Context, logs: &Logs) -> Outcome {
    let mut signals =
        Signals::new().map_err(|error| Problem::because("signals cannot be handled", &error))?;
    let (stop, closing) = (Stop::default(), parts.closing);
    let mut running = JoinSet::<Ended>::new();
    if let Some(worker) = parts.worker {
        let stop = stop.clone();
        running.spawn(async move { worker.run_until(stop).await.map(Some) });
    }
    if let Some(server) = parts.server {
        let closing = closing.clone();
        running.spawn(async move {
            server.serve(closing).await;
            Ok(None)
        });
    }
    let probes = parts.probes.map(|probes| tokio::spawn(probes.serve(closing.clone())));
    let mut failed = None;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(ended) => {
                    if let Err(error) = ended.expect("neither worker nor server panics") {
                        failed = Some(error);
                        closing.cancel();
                    }
                }
            },
            event = signals.next() => match event {
                Event::Stop => {
                    info!("stopping; a second signal stops at once");
                    closing.cancel();
                    stop.again();
                }
                Event::Reload => reload(context, logs),
            },
        }
    }
    closing.cancel();
    if let Some(probes) = probes {
        probes.await.expect("a server does not panic");
    }
    if let Some(narrator) = parts.narrator {
        // It only looks at its token now and then, and may have been waiting for the store.
        let _ = tokio::time::timeout(Duration::from_secs(2), narrator).await;
    }
    logs.end().await;
    match failed {
        Some(WorkerError::Store(error)) => Err(error.into()),
        Some(error) => Err(Problem::because("the worker could not start", &error)),
        None => Ok(Exit::Done),
    }
}

/// Reads live settings again. A mistake in them is told, and nothing is changed.
fn reload(context: &Context, logs: &Logs) {
    match (context.reread)() {
        Ok(settings) => match logs.reload(&settings) {
            Ok(()) => info!(level = settings.value("log.level").text, "live settings were read again"),
            Err(error) => warn!(%error, "the log level cannot be changed"),
        },
        Err(problem) => warn!(problem = problem.message, "settings were not read again"),
    }
}

enum Event {
    Stop,
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.terminate.recv() => Event::Stop,
            _ = self.interrupt.recv() => Event::Stop,
            _ = self.hang_up.recv() => Event::Reload,
        }
    }
}
