//! Health, for whoever restarts processes and routes requests. Needs no token.

use axum::extract::State;

use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// The process lives.
///
/// Says nothing about the database: a restart would not bring it back.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200, body = String)))]
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

/// Requests can be answered: the store is reached and has our tables.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, body = String), (status = 503, body = ProblemBody))
)]
pub(crate) async fn readyz(State(app): State<App>) -> Result<&'static str, Problem> {
    app.store.pauses().await?;
    Ok("ready\n")
}
