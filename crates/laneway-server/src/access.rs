//! Who calls, and whether they may.
//!
//! Every handler takes a [`Caller`] with the scope that it needs, so a handler cannot forget to ask. Without tokens (on
//! loopback) everybody is who they say, or `http`.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use laneway_core::{Actor, ActorName, Scope, Token};

use crate::problem::Problem;
use crate::routes::App;
use crate::server::Tokens;

/// What a handler needs.
pub(crate) trait Needs {
    const SCOPE: Scope;
}

pub(crate) enum Read {}
pub(crate) enum Enqueue {}
pub(crate) enum Operate {}
pub(crate) enum Admin {}

impl Needs for Read {
    const SCOPE: Scope = Scope::Read;
}
impl Needs for Enqueue {
    const SCOPE: Scope = Scope::Enqueue;
}
impl Needs for Operate {
    const SCOPE: Scope = Scope::Operate;
}
impl Needs for Admin {
    const SCOPE: Scope = Scope::Admin;
}

/// Somebody who may do what needs `N`.
pub(crate) struct Caller<N> {
    /// Under this name it goes into the audit, with the reason of the header `X-Reason`.
    pub actor: Actor,
    _needs: PhantomData<N>,
}

impl<N: Needs> FromRequestParts<App> for Caller<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let who = match app.tokens {
            Tokens::Open => named(&parts.headers)?,
            Tokens::Required => allowed(app, &parts.headers, N::SCOPE).await?.name,
        };
        let mut actor = Actor::new(who);
        if let Some(reason) = parts.headers.get("x-reason") {
            actor = actor.because(String::from_utf8_lossy(reason.as_bytes()));
        }
        Ok(Self { actor, _needs: PhantomData })
    }
}

/// The caller's token, if it is valid and its scopes suffice.
async fn allowed(app: &App, headers: &HeaderMap, needed: Scope) -> Result<Token, Problem> {
    let Some(text) = bearer(headers) else {
        let detail = "this needs a token; send `Authorization: Bearer lw_…`";
        return Err(Problem::new("unauthorized", detail).field("Authorization").scope(needed));
    };
    let Some(token) = app.seen.find(&*app.store, text).await? else {
        let detail = "the token is unknown, was revoked or has expired; ask for a new one";
        return Err(Problem::new("unauthorized", detail).field("Authorization").scope(needed));
    };
    if token.allows(needed) {
        return Ok(token);
    }
    let has: Vec<_> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    let detail =
        format!("this needs the scope `{needed}`, the token has: {}; use another one", has.join(", "));
    Err(Problem::new("forbidden", detail).field("Authorization").scope(needed))
}

/// Who calls where everybody may: whoever the header `X-Actor` names. Where there are tokens, it is their name that counts.
fn named(headers: &HeaderMap) -> Result<ActorName, Problem> {
    let given = headers.get("x-actor").map(|name| String::from_utf8_lossy(name.as_bytes()));
    Ok(ActorName::new(given.as_deref().unwrap_or("http"))?)
}

/// The token of the header `Authorization`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, text) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| text.trim())
}
