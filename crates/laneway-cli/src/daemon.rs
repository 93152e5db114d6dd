//! What `dev`, `serve` and workers have in common: a worker from settings, and running until a signal.
//!
//! The first SIGTERM or SIGINT stops everything in an orderly way: the server takes nothing new, the worker drains within
//! its grace time. The second one stops the worker now; what it runs is given back. SIGHUP reads live settings again.

use std::time::Duration;

use laneway::{Stop, StoreHandle, Summary, Tuned, Worker, WorkerBuilder, WorkerError};
use laneway_server::Bound;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::live::Live;
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::Settings;

/// A worker as the settings describe it, without handlers.
///
/// # Errors
/// When a secret cannot be read.
pub fn builder(store: &StoreHandle, settings: &Settings) -> Result<WorkerBuilder, Problem> {
    let mut builder = Worker::builder(store)
        .tuned(tuned(settings))
        .grace(Duration::from_secs(settings.whole("worker.shutdown_grace_s").unwrap_or(30)));
    for (queue, weight) in settings.queues() {
        builder = builder.weighted_queue(&queue, weight);
    }
    if let Some(profile) = &settings.value("profile").text {
        builder = builder.profile_name(profile);
    }
    Ok(match settings.text("worker.name")? {
        Some(name) => builder.name(name),
        None => builder,
    })
}

/// What the settings say about a worker that can be changed while it runs.
pub fn tuned(settings: &Settings) -> Tuned {
    let default = Tuned::default();
    let millis = |key| settings.whole(key).map(Duration::from_millis);
    let ratio = |key, default| settings.ratio(key).unwrap_or(default);
    Tuned {
        slots: settings.slots().0,
        claim_size: settings
            .whole("worker.claim_batch_size")
            .map_or(default.claim_size, |size| size as usize),
        poll_interval: millis("worker.poll_interval_ms").unwrap_or(default.poll_interval),
        poll_interval_max: millis("worker.poll_interval_max_ms").unwrap_or(default.poll_interval_max),
        min_free_ratio: ratio("worker.min_free_ratio", default.min_free_ratio),
        memory_high: ratio("worker.memory_high", default.memory_high),
        memory_stop: ratio("worker.memory_stop", default.memory_stop),
        latency_threshold: millis("worker.latency_threshold_ms"),
    }
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
pub async fn run(parts: Parts, live: &Live) -> Outcome {
    let mut signals =
        Signals::new().map_err(|error| Problem::because("signals cannot be handled", &error))?;
    let (stop, closing) = (Stop::default(), parts.closing);
    let mut running = JoinSet::<Ended>::new();
    if let Some(worker) = parts.worker {
        live.tunes(worker.tuning());
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
                Event::Reload => live.hang_up(),
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
    live.logs().end().await;
    match failed {
        Some(WorkerError::Store(error)) => Err(error.into()),
        Some(error) => Err(Problem::because("the worker could not start", &error)),
        None => Ok(Exit::Done),
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
