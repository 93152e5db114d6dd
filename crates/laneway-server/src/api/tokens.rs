//! Tokens, for those who may make them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use laneway_core::{ActorName, Scope, Token, TokenId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Changed;
use crate::access::{Admin, Caller};
use crate::input::{Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::tokens::{TokenRequest, issue};

/// A token that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// Who uses it: what it does is in the audit under this name.
    name: String,
    /// What it allows: `read`, `enqueue`, `operate`, `work`, `admin`.
    scopes: Vec<String>,
    /// When it ceases to be valid.
    #[schema(value_type = Option<String>)]
    expires_at: Option<Timestamp>,
}

/// A token that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MadeToken {
    /// `id`, `name`, `scopes`, `created_at`, `expires_at`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    token: Token,
    /// What its user sends as `Authorization: Bearer …`. Shown only here.
    text: String,
}

/// Every token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenList {
    /// `id`, `name`, `scopes`, `created_at`, `expires_at` and `expired` of each.
    #[schema(value_type = Vec<Object>)]
    tokens: Vec<Token>,
}

/// List tokens. Their secrets are not kept.
#[utoipa::path(
    get, path = "/api/v1/tokens", tag = "tokens", security(("token" = ["admin"])),
    responses((status = 200, body = TokenList))
)]
pub(crate) async fn list(_: Caller<Admin>, State(app): State<App>) -> Result<Json<TokenList>, Problem> {
    Ok(Json(TokenList { tokens: app.store.tokens().await? }))
}

/// Make a token. The answer is the only place where it is shown.
#[utoipa::path(
    post, path = "/api/v1/tokens", tag = "tokens", security(("token" = ["admin"])), request_body = NewToken,
    responses((status = 201, body = MadeToken), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn create(
    caller: Caller<Admin>,
    State(app): State<App>,
    Content(new): Content<NewToken>,
) -> Result<(StatusCode, Json<MadeToken>), Problem> {
    let scopes = new.scopes.iter().map(|scope| scope.parse()).collect::<Result<Vec<Scope>, _>>()?;
    let request = TokenRequest { name: ActorName::new(new.name)?, scopes, expires_at: new.expires_at };
    let issued = issue(&*app.store, &caller.actor, request).await?;
    Ok((StatusCode::CREATED, Json(MadeToken { token: issued.token, text: issued.text })))
}

/// Revoke a token. It is refused within seconds.
#[utoipa::path(
    delete, path = "/api/v1/tokens/{id}", tag = "tokens", security(("token" = ["admin"])),
    params(("id" = i64, Path, description = "The token's number")),
    responses((status = 200, body = Changed), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn revoke(
    caller: Caller<Admin>,
    State(app): State<App>,
    Segments(id): Segments<i64>,
) -> Result<Json<Changed>, Problem> {
    match app.store.revoke_token(&caller.actor, TokenId(id)).await? {
        true => Ok(Json(Changed { changed: true })),
        false => Err(Problem::not_found(format!("token {id}"))),
    }
}
