//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use laneway_core::Store;

use crate::probes;

/// What every handler may use.
#[derive(Clone)]
pub(crate) struct App {
    pub store: Arc<dyn Store>,
}

pub(crate) fn router(app: App) -> Router {
    Router::new().route("/livez", get(probes::livez)).route("/readyz", get(probes::readyz)).with_state(app)
}
