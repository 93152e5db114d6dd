//! A worker: a coordinator, the thread that renews its session, and the house-keeper.

use std::sync::Arc;

use laneway_core::StoreError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::builder::WorkerBuilder;
use crate::coordinator::Coordinator;
use crate::housekeeping::{self, keep_house};
use crate::metrics::Metrics;
use crate::renew::Renewer;
use crate::shared::Shared;
use crate::stop::{Signals, Stop};
use crate::store_handle::StoreHandle;
use crate::summary::Summary;
use crate::tuning::Tuning;
use crate::vitals::Vitals;

/// Orders that wait for the coordinator at most; they are repeated with every renewal.
const ORDERS_MAX: usize = 16;

/// Runs tasks: many at once in one process, on any number of processes.
///
/// ```
/// use laneway::{Client, Payload, SqliteStore, StoreHandle, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Greet { name: String }
/// impl Payload for Greet { const KIND: &'static str = "greet"; }
///
/// async fn greet(greet: Greet) -> Result<String, std::io::Error> {
///     Ok(format!("hello {}", greet.name))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = StoreHandle::from(SqliteStore::temporary().await?);
/// let client = Client::new(&store);
/// let task = client.enqueue(Greet { name: "Ann".into() }).await?;
///
/// let worker = Worker::builder(&store).handle(greet).build()?;
/// let summary = worker.run_until_empty().await?;
///
/// assert_eq!(summary.completed, 1);
/// assert_eq!(client.wait(task).await?.result::<String>()?, "hello Ann");
/// # Ok(()) }
/// ```
pub struct Worker {
    shared: Arc<Shared>,
}

/// Why a worker could not start. Once it has, it waits out whatever the store does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The store refused the worker.
    #[error("the worker could not start")]
    Store(#[from] StoreError),
    /// The system refused a thread or a signal handler.
    #[error("the worker could not start: the system refused a thread or a signal handler")]
    System(#[from] std::io::Error),
    /// The server does not allow as many connections as the worker's store may open.
    #[error(
        "the worker may open {needed} connections (pool, renewal and listener) but the server allows {allowed}; \
         lower the store's pool_size or raise max_connections"
    )]
    Connections {
        /// Pool, renewal and listener.
        needed: usize,
        /// `max_connections` less what is reserved.
        allowed: usize,
    },
}

impl Worker {
    /// Describes a worker of `store`.
    pub fn builder(store: impl Into<StoreHandle>) -> WorkerBuilder {
        WorkerBuilder::new(store.into())
    }

    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What it counts. Keep a clone to scrape it while it runs.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics.clone()
    }

    /// How many attempts it runs at once.
    pub fn slots(&self) -> usize {
        self.shared.tuning.get().slots
    }

    /// Changes it while it runs. Keep it, since running consumes the worker.
    pub fn tuning(&self) -> Tuning {
        self.shared.tuning.clone()
    }

    /// Runs until SIGTERM or SIGINT: the first one drains within the grace time, the second one stops now.
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start.
    pub async fn run(self) -> Result<Summary, WorkerError> {
        let (mut signals, stop) = (Signals::new()?, Stop::default());
        let mut running = std::pin::pin!(self.run_until(stop.clone()));
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                () = signals.next() => stop.again(),
            }
        }
    }

    /// Runs until told to stop by a token or a [`Stop`].
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start.
    ///
    /// # Cancel safety
    /// Dropping the future drops what runs; the tasks run again when the session has timed out. Stop it instead.
    pub async fn run_until(self, stop: impl Into<Stop>) -> Result<Summary, WorkerError> {
        self.start(stop.into(), false).await
    }

    /// Runs until nothing is left to do: nothing runs, nothing is runnable or due within a quarter of a second. Tasks that
    /// this worker cannot run, or that wait for others, are left. For tests and scripts.
    ///
    /// # Errors
    /// [`WorkerError`] when it cannot start.
    pub async fn run_until_empty(&self) -> Result<Summary, WorkerError> {
        let worker = Self { shared: Arc::clone(&self.shared) };
        worker.start(Stop::default(), true).await
    }

    /// Keeps house once: fires schedules, takes tasks back from dead workers, folds statistics and removes what is kept no longer.
    /// A worker that runs does so by itself every few seconds; this is for programs that only ever
    /// [`run_until_empty`](Self::run_until_empty).
    ///
    /// # Errors
    /// What the store answered. What was done before stays done.
    pub async fn keep_house(&self) -> Result<(), StoreError> {
        housekeeping::all_chores(&self.shared).await
    }

    async fn start(self, stop: Stop, until_empty: bool) -> Result<Summary, WorkerError> {
        self.shared.sql.refresh(&self.shared.store, &self.shared.kinds).await?;
        self.announce().await?;
        let vitals = Arc::new(Vitals::new(self.slots()));
        let (orders, received) = mpsc::channel(ORDERS_MAX);
        // Cancelled when the coordinator has ended, or when this future is dropped.
        let helpers_stop = CancellationToken::new();
        let _stop_helpers = helpers_stop.clone().drop_guard();
        let renewer = Renewer {
            store: self.shared.store.control().unwrap_or_else(|| self.shared.store.shared()),
            vitals: Arc::clone(&vitals),
            shared: Arc::clone(&self.shared),
            orders,
            counted: self.shared.metrics.counted.clone(),
            stop: helpers_stop.clone(),
        };
        let renewing = renewer.spawn_thread()?;
        let mut helpers = JoinSet::new();
        helpers.spawn(keep_house(Arc::clone(&self.shared), Arc::clone(&vitals), helpers_stop.clone()));

        let ended = Coordinator::new(self.shared, vitals, received, stop, until_empty).run().await;

        helpers_stop.cancel();
        helpers.join_all().await;
        // The thread only waits for its token now; joining it takes no time.
        let _ = tokio::task::spawn_blocking(move || renewing.join()).await;
        let summary = ended?;
        info!("the worker has ended: {summary}");
        Ok(summary)
    }

    /// Says what starts, and checks that there will be enough connections.
    async fn announce(&self) -> Result<(), WorkerError> {
        let (options, tuned) = (&self.shared.options, self.shared.tuning.get());
        let queues: Vec<_> =
            options.queues.iter().map(|(queue, weight)| format!("{queue}={weight}")).collect();
        info!(
            name = options.name,
            store = self.shared.store.name(),
            slots = tuned.slots,
            from = options.slots_because,
            claim_size = tuned.claim_size,
            queues = queues.join(","),
            kinds = self.shared.kinds.len(),
            "the worker starts with {} slots ({})",
            tuned.slots,
            options.slots_because
        );
        #[cfg(feature = "postgres")]
        crate::connections::check(&self.shared.store).await?;
        Ok(())
    }
}
