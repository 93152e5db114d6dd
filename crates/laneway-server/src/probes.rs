//! Health, for whoever restarts processes and routes requests.

use axum::extract::State;
use axum::http::StatusCode;

use crate::routes::App;

/// The process lives. Says nothing about the database: a restart would not bring it back.
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

/// Requests can be answered: the store is reached and has our tables.
pub(crate) async fn readyz(State(app): State<App>) -> (StatusCode, String) {
    match app.store.pauses().await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error.code())),
    }
}
