//! Workers.

use jiff::Timestamp;
use laneway_core::{Capacity, Code, InvalidInput, Kind, Kinds, QueueName, SessionId, WorkerView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The living workers.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Workers {
    pub workers: Vec<Worker>,
}

/// A living worker.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
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

/// A session as text.
pub(crate) fn session(text: &str) -> Result<SessionId, InvalidInput> {
    let refused = |_| {
        let problem = format!("`{}` is not a session; sessions are UUIDs", text.escape_debug());
        InvalidInput::new(Code::InvalidId, "session", problem)
    };
    text.parse().map(SessionId).map_err(refused)
}

impl TryFrom<Worker> for WorkerView {
    type Error = InvalidInput;

    fn try_from(worker: Worker) -> Result<Self, InvalidInput> {
        let named = |kinds: Vec<String>| kinds.into_iter().map(Kind::new).collect::<Result<_, _>>();
        Ok(Self {
            session: session(&worker.session)?,
            name: worker.name,
            queues: worker.queues.into_iter().map(QueueName::new).collect::<Result<_, _>>()?,
            kinds: worker.kinds.map(named).transpose()?.map_or(Kinds::All, Kinds::Only),
            capacity: Capacity {
                slots: worker.slots,
                free: worker.free,
                memory_percent: worker.memory_percent,
                draining: worker.draining,
            },
            started_at: worker.started_at,
            seen_at: worker.seen_at,
        })
    }
}
