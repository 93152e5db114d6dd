//! What a worker was built with, shared by its parts.

use std::collections::HashMap;

use laneway_core::{Kind, Kinds};

use crate::board::Board;
use crate::handler::Registered;
use crate::lanes::LaneWatch;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::sql_handlers::SqlKinds;
use crate::state::States;
use crate::store_handle::StoreHandle;
use crate::tuning::Tuning;

/// Never changes while the worker runs, but for its tuning and the kinds that have handlers in the database.
pub(crate) struct Shared {
    pub store: StoreHandle,
    pub options: Options,
    pub tuning: Tuning,
    pub handlers: HashMap<Kind, Registered>,
    /// The kinds that have handlers here.
    pub kinds: Vec<Kind>,
    /// Those whose tasks get a lease each.
    pub alone: Vec<Kind>,
    /// The kinds that have handlers in the database.
    pub sql: SqlKinds,
    pub states: States,
    pub metrics: Metrics,
    pub lanes: LaneWatch,
    /// What attempts tell about themselves.
    pub board: Board,
}

impl Shared {
    /// Everything that this worker can run.
    pub fn all_kinds(&self) -> Kinds {
        Kinds::Only([&self.kinds[..], &self.sql.get()].concat())
    }

    /// The kinds whose tasks get a lease each.
    pub fn kinds_alone(&self) -> Vec<Kind> {
        [&self.alone[..], &self.sql.get()].concat()
    }

    /// Whether tasks of this kind get a lease each.
    pub fn is_alone(&self, kind: &Kind) -> bool {
        self.alone.contains(kind) || self.sql.get().contains(kind)
    }

    /// What runs tasks of this kind.
    pub fn handler(&self, kind: &Kind) -> Option<Registered> {
        self.handlers.get(kind).cloned().or_else(|| self.sql.handler(kind))
    }
}
