//! Workers.

use jiff::Timestamp;
use laneway_core::WorkerView;
use serde::Serialize;
use utoipa::ToSchema;

/// A living worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Worker {
    /// Its session: a UUID, new for every start.
    pub session: String,
    /// Host and process.
    name: String,
    /// The queues that it serves.
    queues: Vec<String>,
    /// The kinds that it handles; none stands for all.
    kinds: Option<Vec<String>>,
    /// Attempts that it runs at once at most.
    slots: u32,
    /// Slots that were free when it was last heard of.
    free: u32,
    /// Memory use in percent of what the process may use.
    memory_percent: u8,
    /// True when it takes nothing new.
    draining: bool,
    /// When it registered.
    #[schema(value_type = String)]
    started_at: Timestamp,
    /// When it was last heard of.
    #[schema(value_type = String)]
    seen_at: Timestamp,
}

impl From<WorkerView> for Worker {
    fn from(view: WorkerView) -> Self {
        Self {
            session: view.session.to_string(),
            name: view.name,
            queues: view.queues.into_iter().map(Into::into).collect(),
            kinds: view.kinds.names().map(|kinds| kinds.into_iter().map(ToOwned::to_owned).collect()),
            slots: view.capacity.slots,
            free: view.capacity.free,
            memory_percent: view.capacity.memory_percent,
            draining: view.capacity.draining,
            started_at: view.started_at,
            seen_at: view.seen_at,
        }
    }
}
