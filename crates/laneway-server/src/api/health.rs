//! How the store and this process are.

use axum::Json;
use axum::extract::State;
use laneway_core::StoreHealth;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Caller, Operate, Read};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::server::ShownSetting;

/// The store's versions, and what its tables take.
#[utoipa::path(
    get, path = "/api/v1/health/store", tag = "health", security(("token" = ["read"])),
    responses(
        (status = 200, body = Object,
         description = "`database`, `schema_version`, `oldest_transaction_seconds`, and `tables` with `rows`, `dead_rows` and `bytes`"),
        (status = "5XX", body = ProblemBody)
    )
)]
pub(crate) async fn store(_: Caller<Read>, State(app): State<App>) -> Result<Json<StoreHealth>, Problem> {
    Ok(Json(app.store.health().await?))
}

/// The settings of this process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Settings {
    /// `key`, `value`, where it came `from`, and whether it is `live`.
    #[schema(value_type = Vec<Object>)]
    settings: Vec<ShownSetting>,
}

/// The settings of this process, and where they came from. Passwords are not shown.
#[utoipa::path(
    get, path = "/api/v1/settings", tag = "health", security(("token" = ["operate"])),
    responses((status = 200, body = Settings), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn settings(_: Caller<Operate>, State(app): State<App>) -> Json<Settings> {
    Json(Settings { settings: app.settings.clone() })
}
