//! A store under test: the store itself, a clock that can be moved, and words that keep tests short.
//!
//! ```text
//! let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
//! let mut worker = store.worker().await;
//!
//! let claimed = worker.claim(10).await;
//!
//! assert_eq!(ids(&claimed), [first]);
//! ```

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use laneway_core::{
    InvalidInput, LaneKey, LaneLimit, LaneSettings, LaneView, Limits, NewTask, QueueName, State, Store,
    StoreError, TaskId, TaskView, Unique, UniqueKey,
};

use crate::worker::TestWorker;

/// What the harness needs to know about one kind of store.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Opens the test's data. Every call gives a handle of its own, as another process would have it.
    async fn open(&self, limits: Limits) -> Arc<dyn Store>;

    /// Moves the store's clock forward, for all handles.
    async fn advance_clock(&self, by: Duration);
}

/// A fresh store. Its methods are those of [`Store`] and the helpers below.
pub struct TestStore {
    backend: Box<dyn Backend>,
    store: Arc<dyn Store>,
}

impl Deref for TestStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl TestStore {
    /// Opens the data of `backend`.
    pub async fn on(backend: impl Backend) -> Self {
        let store = backend.open(Limits::default()).await;
        Self { backend: Box::new(backend), store }
    }

    /// The store as the library holds it.
    pub fn handle(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// A second handle on the same data.
    pub async fn another(&self) -> Arc<dyn Store> {
        self.backend.open(Limits::default()).await
    }

    /// A second handle on the same data, with limits of its own.
    pub async fn with_limits(&self, limits: Limits) -> Arc<dyn Store> {
        self.backend.open(limits).await
    }

    /// Moves the store's clock forward.
    pub async fn advance_clock(&self, by: Duration) {
        self.backend.advance_clock(by).await;
    }

    /// Stores tasks in one bulk.
    pub async fn given<const N: usize>(&self, tasks: [ATask; N]) -> [TaskId; N] {
        let stored = self.given_all(tasks).await;
        stored.try_into().expect("a bulk answers one id per task")
    }

    /// Stores any number of tasks in one bulk.
    pub async fn given_all(&self, tasks: impl IntoIterator<Item = ATask>) -> Vec<TaskId> {
        let tasks = tasks.into_iter().map(NewTask::from).collect();
        let stored = self.store.enqueue_many(tasks).await.expect("the tasks are valid");
        stored.iter().map(|answer| answer.id).collect()
    }

    /// Stores one task.
    pub async fn given_one(&self, task: ATask) -> TaskId {
        self.store.enqueue(task.into()).await.expect("the task is valid").id
    }

    /// A registered worker.
    pub async fn worker(&self) -> TestWorker {
        TestWorker::register(self.handle()).await
    }

    /// Makes every session that does not renew meanwhile look dead, and sweeps. `survivors` renew.
    pub async fn sweep_all_but(&self, survivors: &mut [&mut TestWorker]) -> laneway_core::Swept {
        self.advance_clock(laneway_core::liveness::SESSION_SILENCE_MAX + secs(1)).await;
        for survivor in survivors {
            survivor.stay_alive().await;
        }
        self.store.sweep().await.expect("a sweep")
    }

    /// A task that must exist.
    pub async fn view(&self, task: TaskId) -> TaskView {
        let found = self.store.get(task).await.expect("a look at a task");
        found.unwrap_or_else(|| panic!("task {task} is not there"))
    }

    /// The state of a task that must exist.
    pub async fn state(&self, task: TaskId) -> State {
        self.view(task).await.state
    }

    /// How many tasks there are, in any state.
    pub async fn total(&self) -> u64 {
        let counts = self.store.counts().await.expect("counts");
        counts.iter().map(|count| count.tasks).sum()
    }

    /// A lane of the default queue that must exist.
    pub async fn lane_view(&self, key: &str) -> LaneView {
        let found = self.store.lane(&QueueName::default(), &lane_key(key)).await.expect("a look at a lane");
        found.unwrap_or_else(|| panic!("lane `{key}` is not there"))
    }

    /// Changes a lane of the default queue.
    pub async fn change_lane(&self, key: &str, settings: LaneSettings) {
        let changed = self.store.set_lane(&QueueName::default(), &lane_key(key), settings).await;
        changed.expect("the settings are valid");
    }

    /// Gives a lane of the default queue an operator's limit.
    pub async fn limit_lane(&self, key: &str, limit: u32) {
        self.change_lane(key, LaneSettings { limit: Some(limit_of(limit)), ..Default::default() }).await;
    }

    /// Fails the test when the store's invariants do not hold. Every behaviour ends with it.
    pub async fn check(&self) {
        let violations = self.store.verify().await.expect("a verification");
        assert!(violations.is_empty(), "the store's invariants do not hold:\n{}", violations.join("\n"));
    }
}

/// A task to be stored, described in short words. Everything that a test does not name has its default.
#[derive(Clone, Debug)]
pub struct ATask(NewTask);

/// A task of kind `work` with an empty payload.
pub fn a_task() -> ATask {
    ATask(NewTask::new(kind("work"), laneway_core::Json::default()))
}

impl ATask {
    /// Of this kind.
    pub fn kind(mut self, name: &str) -> Self {
        self.0.kind = kind(name);
        self
    }

    /// In this queue.
    pub fn queue(self, name: &str) -> Self {
        Self(self.0.queue(queue(name)))
    }

    /// In this lane, whose limit is left alone.
    pub fn lane(self, key: &str) -> Self {
        Self(self.0.lane(laneway_core::Lane::new(lane_key(key))))
    }

    /// In this lane, which gets this limit.
    pub fn lane_of(self, key: &str, limit: u32) -> Self {
        Self(self.0.lane(laneway_core::Lane::new(lane_key(key)).limit(limit_of(limit))))
    }

    /// With this JSON text as payload.
    pub fn payload(mut self, text: &str) -> Self {
        self.0.payload = laneway_core::Json::parse(text).expect("the test's payload is JSON");
        self
    }

    /// With anything else that a task can have.
    pub fn with(self, change: impl FnOnce(NewTask) -> NewTask) -> Self {
        Self(change(self.0))
    }

    /// With this priority.
    pub fn priority(self, priority: i32) -> Self {
        Self(self.0.priority(priority))
    }

    /// Delayed.
    pub fn delay(self, delay: Duration) -> Self {
        Self(self.0.delay(delay))
    }

    /// With a key, held until the task has ended.
    pub fn unique(self, key: &str) -> Self {
        self.unique_as(Unique::new(unique_key(key)))
    }

    /// With a key and rules for it.
    pub fn unique_as(self, unique: Unique) -> Self {
        Self(self.0.unique(unique))
    }

    /// With this many attempts.
    pub fn max_attempts(self, attempts: u32) -> Self {
        Self(self.0.max_attempts(attempts))
    }
}

impl From<ATask> for NewTask {
    fn from(task: ATask) -> Self {
        task.0
    }
}

/// `n` tasks alike.
pub fn tasks_like(task: ATask, n: usize) -> Vec<ATask> {
    vec![task; n]
}

/// A kind.
pub fn kind(name: &str) -> laneway_core::Kind {
    laneway_core::Kind::new(name).expect("the test's kind is valid")
}

/// A queue.
pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("the test's queue is valid")
}

/// A unique key.
pub fn unique_key(key: &str) -> UniqueKey {
    UniqueKey::new(key).expect("the test's key is valid")
}

/// A lane's key.
pub fn lane_key(key: &str) -> LaneKey {
    LaneKey::new(key).expect("the test's lane is valid")
}

/// A lane's limit.
pub fn limit_of(limit: u32) -> LaneLimit {
    LaneLimit::at(limit).expect("the test's limit is valid")
}

/// The ids that an enqueue answered with.
pub fn ids_of(answers: &[laneway_core::Enqueued]) -> Vec<TaskId> {
    answers.iter().map(|answer| answer.id).collect()
}

/// Seconds.
pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The refusal that a store must have answered with.
pub fn refusal<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> InvalidInput {
    match answer {
        Err(StoreError::Invalid(refused)) => refused,
        other => panic!("should have been refused as invalid input, but the answer was {other:?}"),
    }
}

/// How long a test waits for what should happen at once: only a failing test waits so long, and a slow machine does not make one.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits for a condition, looking again every few milliseconds. Fails when [`PATIENCE`] is over.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a future that should not take long. Fails when [`PATIENCE`] is over.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
