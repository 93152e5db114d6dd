//! Describes a worker, and reports every mistake in the description at once.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use laneway_core::{Json, Kind, QueueName};

use crate::attempt::Attempt;
use crate::board::Board;
use crate::handler::{Handler, IntoAnswer, Registered, Setup};
use crate::lanes::LaneWatch;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::options::{Options, Profile, Sizing, read_environment};
use crate::shared::Shared;
use crate::sql_handlers::SqlKinds;
use crate::state::States;
use crate::store_handle::StoreHandle;
use crate::tuning::{Tuned, Tuning};
use crate::worker::Worker;

/// Describes a worker. Made by [`Worker::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct WorkerBuilder {
    store: StoreHandle,
    options: Options,
    tuned: Tuned,
    sizing: Sizing,
    queues: Vec<(String, u32)>,
    handlers: Vec<Registered>,
    states: States,
    sql_handlers: bool,
    profile_name: Option<String>,
    problems: Vec<String>,
}

/// Everything that is wrong with the description of a worker.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct BuildError {
    /// One sentence per mistake.
    pub problems: Vec<String>,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker cannot be built: {}", self.problems.join("; "))
    }
}

impl WorkerBuilder {
    pub(crate) fn new(store: StoreHandle) -> Self {
        Self {
            store,
            options: Options::default(),
            tuned: Tuned::default(),
            sizing: Sizing::default(),
            queues: vec![],
            handlers: vec![],
            states: States::default(),
            sql_handlers: false,
            profile_name: None,
            problems: vec![],
        }
    }

    /// Serves a queue. Without any, `default` is served.
    pub fn queue(self, queue: &str) -> Self {
        self.weighted_queue(queue, 1)
    }

    /// Serves a queue with a share of the slots: of two queues with weights 3 and 1 that both have work, the first
    /// gets three of four claims.
    pub fn weighted_queue(mut self, queue: &str, weight: u32) -> Self {
        self.queues.push((queue.into(), weight));
        self
    }

    /// Runs tasks of one kind with `handler`, an async function: see [`Handler`].
    pub fn handle<Arguments, H: Handler<Arguments>>(mut self, handler: H) -> Self {
        self.handlers.push(Registered::new(handler));
        self
    }

    /// Runs tasks of a kind that is known at run time only, for programs that pass tasks on. The handler gets the payload as it is.
    ///
    /// ```
    /// # use laneway::{core::Json, Attempt, Failure, SqliteStore, Worker};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let kind = String::from("mail.receipt"); // from the command line, say
    /// let worker = Worker::builder(SqliteStore::temporary().await?)
    ///     .handle_kind(kind, |payload: Json, _attempt: Attempt| async move {
    ///         println!("{}", payload.as_str());
    ///         Ok::<(), Failure>(())
    ///     })
    ///     .build()?;
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
    pub fn handle_kind<F, Fut>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Json, Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoAnswer> + Send + 'static,
    {
        self.handlers.push(Registered::of_kind(kind.into(), handler));
        self
    }

    /// Also runs the kinds that have a handler in the database: a function or procedure that was registered with
    /// `laneway.register_handler`. It is called in the transaction in which its task is settled, so what it does there
    /// happens exactly once. Which kinds these are is read at the start and every minute; a handler of the worker's own comes
    /// first.
    #[cfg(feature = "postgres")]
    pub fn sql_handlers(mut self) -> Self {
        self.sql_handlers = true;
        if !self.store.can_join_transactions() {
            let store = self.store.name();
            self.problems.push(format!("sql_handlers needs a PostgresStore; this worker's store is {store}"));
        }
        self
    }

    /// Runs tasks of one kind in steps: `split` spawns children, and when they have ended well, `reduce` runs under the same
    /// id and reads what they returned. Map and reduce in one place.
    ///
    /// ```
    /// use laneway::{Attempt, Failure};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Count { texts: Vec<String> }
    /// # impl laneway::Payload for Count { const KIND: &'static str = "count"; }
    /// # #[derive(Serialize, Deserialize)]
    /// # struct CountOne { text: String }
    /// # impl laneway::Payload for CountOne { const KIND: &'static str = "count.one"; }
    ///
    /// async fn split(count: Count, attempt: Attempt) -> Result<(), Failure> {
    ///     count.texts.into_iter().try_for_each(|text| attempt.spawn(CountOne { text }))
    /// }
    ///
    /// async fn reduce(_: Count, attempt: Attempt) -> Result<u64, Failure> {
    ///     Ok(attempt.results::<u64>().await?.into_iter().sum())
    /// }
    /// # fn builder() -> laneway::WorkerBuilder { unimplemented!() }
    /// # fn example() {
    /// builder().handle_then(split, reduce);
    /// # }
    /// ```
    pub fn handle_then<First, Later, S, R>(mut self, split: S, reduce: R) -> Self
    where
        S: Handler<First>,
        R: Handler<Later, Payload = S::Payload>,
    {
        self.handlers.push(Registered::new(split).then(Registered::new(reduce)));
        self
    }

    /// Gives handlers a value that they can ask for with [`State`](crate::State); one per type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// How many attempts may run at once. 1,000.
    pub fn slots(mut self, slots: usize) -> Self {
        self.sizing.ceiling = Some(slots);
        self
    }

    /// Takes the number of slots from a profile; a lower number of [`slots`](Self::slots) caps it.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.sizing.profile = Some(profile);
        self
    }

    /// Sets at once everything that can be changed while the worker runs: see [`Worker::tuning`].
    pub fn tuned(mut self, tuned: Tuned) -> Self {
        self.tuned = tuned;
        self
    }

    /// How many tasks one claim takes at most. 50: small claims share work evenly between workers; one worker alone
    /// with very short tasks does more with 500.
    pub fn claim_size(mut self, tasks: usize) -> Self {
        self.tuned.claim_size = tasks;
        self
    }

    /// How often the worker looks for work while no hints arrive. 100 ms.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.tuned.poll_interval = interval;
        self
    }

    /// How often it looks while hints arrive and nothing is there, in case one was lost. 1 s.
    pub fn poll_interval_max(mut self, interval: Duration) -> Self {
        self.tuned.poll_interval_max = interval;
        self
    }

    /// How long attempts may go on after the first signal to stop. 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// How long a handler that was told to stop may take before its future is dropped. 5 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Keeps this share of the slots free: with fewer, nothing is claimed. 0, because a free slot is there to be
    /// used; ignored below 20 slots, where it would stall the worker.
    pub fn min_free_ratio(mut self, ratio: f64) -> Self {
        self.tuned.min_free_ratio = ratio;
        self
    }

    /// Above this share of memory in use claims are halved. 0.8.
    pub fn memory_high(mut self, ratio: f64) -> Self {
        self.tuned.memory_high = ratio;
        self
    }

    /// From this share of memory in use on nothing is claimed; what runs goes on. 0.95.
    pub fn memory_stop(mut self, ratio: f64) -> Self {
        self.tuned.memory_stop = ratio;
        self
    }

    /// Another way to find out how much memory is in use than asking the system.
    pub fn memory_probe(mut self, probe: impl Fn() -> Option<Memory> + Send + Sync + 'static) -> Self {
        self.options.memory_probe = Arc::new(probe);
        self
    }

    /// When one attempt of a hundred takes longer than this, claims are 30 % smaller. None.
    pub fn latency_threshold(mut self, threshold: Duration) -> Self {
        self.tuned.latency_threshold = Some(threshold);
        self
    }

    /// The profile as the metric `worker_info` tells it, when whoever builds the worker has worked out its slots itself.
    pub fn profile_name(mut self, name: impl Into<String>) -> Self {
        self.profile_name = Some(name.into());
        self
    }

    /// The worker's name for humans. Host and process.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Lets the environment override what was set so far: `LANEWAY_PROFILE`, `WORKER_CONCURRENCY`,
    /// `MAX_CONCURRENT_TASKS`, `CLAIM_BATCH_SIZE`, `POLL_INTERVAL_MS`.
    pub fn environment(mut self) -> Self {
        let look = |name: &str| std::env::var(name);
        read_environment(look, &mut self.tuned, &mut self.sizing, &mut self.problems);
        self
    }

    /// Checks everything and makes the worker. Nothing runs yet.
    ///
    /// # Errors
    /// All mistakes at once: no handler, two for one kind, a handler that asks for what the worker does not have, names and
    /// numbers that are not allowed, bad values in the environment.
    pub fn build(mut self) -> Result<Worker, BuildError> {
        let (slots, slots_because) = self.sizing.slots(self.tuned.slots);
        self.tuned.slots = slots;
        self.problems.extend(self.tuned.problems());
        let queues = self.checked_queues();
        let handlers = self.checked_handlers();
        if !self.problems.is_empty() {
            return Err(BuildError { problems: self.problems });
        }
        let alone = handlers.iter().filter(|(_, handler)| handler.needs_own_lease);
        let profile = self.profile_name.or_else(|| self.sizing.profile.map(|profile| profile.to_string()));
        let metrics = Metrics::new(&*self.store, profile);
        metrics.counted.slots.set(slots as i64);
        let shared = Shared {
            store: self.store,
            options: Options { queues, slots_because, ..self.options },
            tuning: Tuning::new(self.tuned),
            kinds: handlers.keys().cloned().collect(),
            alone: alone.map(|(kind, _)| kind.clone()).collect(),
            handlers,
            sql: SqlKinds::new(self.sql_handlers),
            states: self.states,
            metrics,
            lanes: LaneWatch::default(),
            board: Board::default(),
        };
        Ok(Worker::new(shared))
    }

    fn checked_queues(&mut self) -> Vec<(QueueName, u32)> {
        if self.queues.is_empty() {
            return vec![(QueueName::default(), 1)];
        }
        let (mut names, mut queues) = (HashSet::new(), vec![]);
        for (text, weight) in std::mem::take(&mut self.queues) {
            match QueueName::new(&text) {
                Err(refused) => self.problems.push(refused.to_string()),
                Ok(name) if !names.insert(name.clone()) => {
                    self.problems.push(format!("queue `{name}` is named twice"));
                }
                Ok(name) if !(1..=1_000).contains(&weight) => {
                    self.problems
                        .push(format!("the weight of queue `{name}` is {weight}; allowed is 1 to 1000"));
                }
                Ok(name) => queues.push((name, weight)),
            }
        }
        queues
    }

    fn checked_handlers(&mut self) -> HashMap<Kind, Registered> {
        if self.handlers.is_empty() && !self.sql_handlers {
            self.problems.push("it has no handler; add one with `.handle(…)`".into());
        }
        let setup = Setup { states: &self.states, store: &self.store };
        let mut handlers = HashMap::new();
        for handler in std::mem::take(&mut self.handlers) {
            let name = handler.kind.clone();
            let missing = handler.missing(&setup);
            self.problems.extend(missing.into_iter().map(|what| format!("the handler of `{name}` {what}")));
            match Kind::new(name.as_ref()) {
                Err(refused) => self.problems.push(refused.to_string()),
                Ok(kind) => {
                    if handlers.insert(kind, handler).is_some() {
                        self.problems.push(format!("kind `{name}` has two handlers"));
                    }
                }
            }
        }
        handlers
    }
}
