//! What a worker was built with, shared by its parts.

use std::collections::HashMap;

use laneway_core::Kind;

use crate::board::Board;
use crate::handler::Registered;
use crate::lanes::LaneWatch;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::state::States;
use crate::store_handle::StoreHandle;

/// Never changes while the worker runs.
pub(crate) struct Shared {
    pub store: StoreHandle,
    pub options: Options,
    pub handlers: HashMap<Kind, Registered>,
    /// The kinds that have handlers.
    pub kinds: Vec<Kind>,
    /// Those whose tasks get a lease each.
    pub alone: Vec<Kind>,
    pub states: States,
    pub metrics: Metrics,
    pub lanes: LaneWatch,
    /// What attempts tell about themselves.
    pub board: Board,
}
