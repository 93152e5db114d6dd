//! Tokens, for those who may make them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use laneway_core::{ActorName, Code, InvalidInput, Scope, Token, TokenHash, TokenId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Changed;
use crate::access::{Admin, Caller};
use crate::input::{Content, Segments};
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;
use crate::tokens::{TokenRequest, from_hex, hex, issue};

/// A token that is to be made.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// Who uses it: what it does is in the audit under this name.
    name: String,
    /// What it allows: `read`, `enqueue`, `operate`, `work`, `admin`.
    scopes: Vec<String>,
    /// When it ceases to be valid.
    #[schema(value_type = Option<String>)]
    expires_at: Option<Timestamp>,
    /// The SHA-256 of a secret that the caller has made, in hexadecimal, so that the secret itself is not sent. The token is then
    /// `lw_<id>_<secret>`, and the answer has no `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl From<&laneway_core::NewToken> for NewToken {
    fn from(token: &laneway_core::NewToken) -> Self {
        Self {
            name: token.name.to_string(),
            scopes: token.scopes.iter().map(ToString::to_string).collect(),
            expires_at: token.expires_at,
            sha256: Some(hex(&token.hash.0)),
        }
    }
}

/// A token that was made.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct MadeToken {
    /// `id`, `name`, `scopes`, `created_at`, `expires_at`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub token: Token,
    /// What its user sends as `Authorization: Bearer …`. Shown only here.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Every token.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TokenList {
    /// `id`, `name`, `scopes`, `created_at`, `expires_at` and `expired` of each.
    #[schema(value_type = Vec<Object>)]
    pub tokens: Vec<Token>,
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
    let (name, expires_at) = (ActorName::new(new.name)?, new.expires_at);
    let made = match new.sha256 {
        Some(sha256) => {
            let hash = from_hex(&sha256).map(TokenHash).ok_or_else(not_a_hash)?;
            let new = laneway_core::NewToken { name, scopes, hash, expires_at };
            MadeToken { token: app.store.create_token(&caller.actor, new).await?, text: None }
        }
        None => {
            let request = TokenRequest { name, scopes, expires_at };
            let issued = issue(&*app.store, &caller.actor, request).await?;
            MadeToken { token: issued.token, text: Some(issued.text) }
        }
    };
    Ok((StatusCode::CREATED, Json(made)))
}

fn not_a_hash() -> InvalidInput {
    InvalidInput::new(Code::OutOfRange, "sha256", "is no SHA-256; it has 64 hexadecimal digits")
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
