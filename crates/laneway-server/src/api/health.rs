//! How the store and this process are.

use axum::Json;
use axum::extract::State;
use laneway_core::StoreHealth;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{Admin, Caller, Operate, Read};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::settings::{self, ReloadError, ShownSetting};

/// A store as it is now.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Health {
    /// `postgres` or `sqlite`.
    pub store: String,
    #[serde(flatten)]
    pub health: StoreHealth,
}

/// The store's versions, and what its tables take.
#[utoipa::path(
    get, path = "/api/v1/health/store", tag = "health", security(("token" = ["read"])),
    responses(
        (status = 200, body = Object,
         description = "`store` (`postgres` or `sqlite`), `database`, `schema_version`, `oldest_transaction_seconds`, and `tables` with `rows`, `dead_rows` and `bytes`"),
        (status = "5XX", body = ProblemBody)
    )
)]
pub(crate) async fn store(_: Caller<Read>, State(app): State<App>) -> Result<Json<Health>, Problem> {
    let health = app.store.health().await?;
    Ok(Json(Health { store: app.store.name().to_owned(), health }))
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
    Json(Settings { settings: app.settings.shown() })
}

/// What came of reading settings again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reloaded {
    /// Keys whose new values count from now on.
    changed: Vec<String>,
    /// Keys that have new values which count after a restart only.
    needs_restart: Vec<String>,
}

/// Reads the settings of this process again, and applies those that are `live`.
#[utoipa::path(
    post, path = "/api/v1/settings/reload", tag = "health", security(("token" = ["admin"])),
    responses((status = 200, body = Reloaded), (status = "4XX", body = ProblemBody, description = "`invalid_settings`: nothing was changed"))
)]
pub(crate) async fn reload(
    Caller { actor, .. }: Caller<Admin>,
    State(app): State<App>,
) -> Result<Json<Reloaded>, Problem> {
    let reloaded = tokio::task::spawn_blocking(move || app.settings.reload()).await;
    let reloaded = reloaded.map_err(|error| Problem::new("internal", error.to_string()))?;
    let settings::Reloaded { changed, needs_restart } = reloaded.map_err(|error| match error {
        ReloadError::Unsupported => Problem::new("not_found", error.to_string()),
        ReloadError::Refused { .. } => Problem::new("invalid_settings", error.to_string()),
    })?;
    tracing::info!(actor = %actor.who, "settings were read again by request");
    Ok(Json(Reloaded { changed, needs_restart }))
}
