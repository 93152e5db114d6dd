//! Changes that must not undo what somebody else has changed: `ETag` and `If-Match`.
//!
//! A tag is made from the settings of a thing, not from what happens to it: a queue keeps its tag while tasks come and go. It is
//! compared before the change is made, not in its transaction; two that come within the same milliseconds may both pass.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use crate::problem::Problem;

/// Something that operators change.
pub(crate) trait Settled: Serialize {
    /// What they change about it, as JSON.
    fn settings(&self) -> serde_json::Value;

    fn tag(&self) -> String {
        let digest = Sha256::digest(self.settings().to_string());
        let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{hex}\"")
    }
}

/// An answer with its tag.
pub(crate) struct Tagged<T>(pub T);

impl<T: Settled> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let tag = HeaderValue::try_from(self.0.tag()).expect("digits and quotes are valid in a header");
        ([(header::ETAG, tag)], Json(self.0)).into_response()
    }
}

/// The condition of a change, for the description of routes.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)]
pub(crate) struct IfMatch {
    /// Only if it still has this `ETag`; `*`: only if it is there.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// The tags of which one must be that of the thing; none: any.
pub(crate) struct Expected(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for Expected {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let given = parts.headers.get(header::IF_MATCH);
        Ok(Self(given.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())))
    }
}

impl Expected {
    /// True when there is a condition.
    pub(crate) fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses a change of something that is not as the caller has seen it.
    pub(crate) fn check<T: Settled>(&self, found: Option<&T>) -> Result<(), Problem> {
        let Some(wanted) = &self.0 else { return Ok(()) };
        let tag = found.map(Settled::tag);
        let matches = |one: &str| tag.as_deref().is_some_and(|tag| one == "*" || one == tag);
        if wanted.split(',').any(|one| matches(one.trim())) {
            return Ok(());
        }
        let is = tag.map_or("it is not there".to_owned(), |tag| format!("its tag is {tag}"));
        let detail = format!("somebody has changed it, {is}; look at it again");
        Err(Problem::new("precondition_failed", detail).field("If-Match"))
    }
}
