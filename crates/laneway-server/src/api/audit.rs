//! Who did what.

use axum::Json;
use axum::extract::State;
use laneway_core::{AuditEntry, AuditPage};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Read};
use crate::input::Asked;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// Which entries are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Only those before this number.
    before: Option<i64>,
    /// How many: 1 to 500. 100.
    limit: Option<u32>,
}

/// What operators did, newest first.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Audit {
    /// `id`, `at`, `actor`, `action`, `subject`, `tasks`, `before` and `after` of each.
    #[schema(value_type = Vec<Object>)]
    pub entries: Vec<AuditEntry>,
}

/// What operators did, newest first.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "audit", security(("token" = ["read"])), params(AuditQuery),
    responses((status = 200, body = Audit), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Json<Audit>, Problem> {
    let page = AuditPage { before: query.before, limit: query.limit.unwrap_or(100) };
    Ok(Json(Audit { entries: app.store.audit(page).await? }))
}
