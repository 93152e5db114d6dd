//! What an attempt knows about itself, and how it learns that it should stop.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use laneway_core::{Claimed, Json, Progress, Report, SessionId, Spawned, Task, TaskId};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::handler::Registered;
use crate::shared::Shared;
use crate::state::States;
use crate::store_handle::StoreHandle;
use crate::trace::TraceContext;

/// One run of one task, as its handler sees it. Cheap to clone.
///
/// ```
/// use laneway::{Attempt, Failure};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Import { rows: u64 }
/// # impl laneway::Payload for Import { const KIND: &'static str = "import"; }
/// # async fn import_row(row: u64) {}
///
/// async fn import(import: Import, attempt: Attempt) -> Result<(), Failure> {
///     for row in 0..import.rows {
///         if attempt.is_cancelled() {
///             return Err(Failure::retry("stopped half-way"));
///         }
///         import_row(row).await;
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Attempt(Arc<Inner>);

struct Inner {
    claimed: Claimed,
    session: SessionId,
    shared: Arc<Shared>,
    cancelled: CancellationToken,
    reason: OnceLock<StopReason>,
    /// What the handler has spawned; none once that was sent with the attempt's end.
    spawned: Mutex<Option<Spawned>>,
}

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody cancelled the task.
    Cancelled,
    /// The worker stops. The task is given back and runs elsewhere, uncharged.
    WorkerStops,
    /// The worker could not tell that it lives, or was taken for dead: the task runs elsewhere, or soon will.
    LeaseEnds,
    /// The attempt took longer than the task's timeout.
    TimedOut,
}

impl Attempt {
    pub(crate) fn new(claimed: Claimed, session: SessionId, shared: Arc<Shared>) -> Self {
        let cancelled = CancellationToken::new();
        let (reason, spawned) = (OnceLock::new(), Mutex::new(Some(Spawned::default())));
        Self(Arc::new(Inner { claimed, session, shared, cancelled, reason, spawned }))
    }

    /// The task's number.
    pub fn id(&self) -> TaskId {
        self.task().id
    }

    /// Number of this attempt, from 1.
    pub fn number(&self) -> u32 {
        self.task().attempt
    }

    /// True when the task has failed for good if this attempt fails.
    pub fn is_last(&self) -> bool {
        self.task().attempt >= self.task().max_attempts
    }

    /// Everything about the task.
    pub fn task(&self) -> &Task {
        &self.0.claimed.task
    }

    /// The trace context of the code that enqueued the task.
    pub fn trace(&self) -> &TraceContext {
        &self.task().options.trace
    }

    /// A client of the worker's store, to enqueue more. What it enqueues belongs to the same trace.
    pub fn client(&self) -> Client {
        Client::new(&self.0.shared.store)
    }

    /// Tells how far it is: a share from 0 to 1, done of a total, or a [`Progress`] with a note. Operators see it with the task
    /// while it runs. Call it as often as you like; the last word is passed on about once a second.
    ///
    /// ```
    /// # use laneway::{Attempt, Progress};
    /// # fn example(attempt: Attempt) {
    /// attempt.progress(0.25);
    /// attempt.progress((3, 12));
    /// attempt.progress(Progress::of(3, 12).note("reading pages"));
    /// # }
    /// ```
    pub fn progress(&self, progress: impl Into<Progress>) {
        let (task, lease) = (self.id(), self.claimed().lease.id);
        self.0.shared.board.tell(Report { task, lease, progress: progress.into() });
    }

    /// Resolves when the attempt should stop. A handler that goes on has a few seconds; then its future is dropped.
    ///
    /// # Cancel safety
    /// Safe in `select!`.
    pub async fn cancelled(&self) -> StopReason {
        self.0.cancelled.cancelled().await;
        self.stop_reason().expect("the reason is set before the token is cancelled")
    }

    /// True when the attempt should stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }

    /// Why it should stop, once it should.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.0.reason.get().copied()
    }

    /// A token that is cancelled when the attempt should stop, for code that takes one.
    pub fn token(&self) -> CancellationToken {
        self.0.cancelled.child_token()
    }

    /// Tells the handler to stop. The first reason stands.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.0.reason.set(reason);
        self.0.cancelled.cancel();
    }

    pub(crate) fn payload(&self) -> &Json {
        &self.task().payload
    }

    pub(crate) fn claimed(&self) -> &Claimed {
        &self.0.claimed
    }

    /// What runs its kind.
    pub(crate) fn handler(&self) -> Option<&Registered> {
        self.0.shared.handlers.get(&self.task().kind)
    }

    pub(crate) fn states(&self) -> &States {
        &self.0.shared.states
    }

    pub(crate) fn session(&self) -> SessionId {
        self.0.session
    }

    pub(crate) fn spawned(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.0.spawned.lock().expect("no code panics while it holds this")
    }

    pub(crate) fn store(&self) -> &StoreHandle {
        &self.0.shared.store
    }
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attempt({} {} #{})", self.task().kind, self.id(), self.number())
    }
}
