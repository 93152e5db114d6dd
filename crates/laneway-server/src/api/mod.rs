//! The handlers: each reads its input, calls one verb of the store, and shows the answer.

pub(crate) mod act;
pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod enqueue;
pub(crate) mod health;
pub(crate) mod lanes;
mod lines;
pub(crate) mod overview;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod tasks;
pub(crate) mod tokens;
pub(crate) mod tree;
pub(crate) mod workers;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a call changed something.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Changed {
    /// False when it was as asked before.
    pub changed: bool,
}
