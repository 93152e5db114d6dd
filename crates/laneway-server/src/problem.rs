//! What is answered when something is wrong: `application/problem+json` with the engine's stable codes.
//!
//! [`STATUSES`] is the one place where a code gets its HTTP status. `docs/http.md` shows the same table, and a test compares.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_core::{InvalidInput, Scope, Skip, State, StoreError, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::bulk::in_the_way;

/// Codes by status. What is not here is a refused input (400) or our mistake (500).
pub(crate) const STATUSES: &[(u16, &[&str])] = &[
    (
        400,
        &[
            "invalid_filter",
            "invalid_id",
            "invalid_json",
            "invalid_name",
            "invalid_request",
            "invalid_schedule",
            "invalid_type",
            "invalid_unicode",
            "filter_too_long",
            "missing_field",
            "nul_not_allowed",
            "number_out_of_range",
            "out_of_range",
            "payload_too_deep",
            "time_out_of_range",
            "time_without_zone",
            "unknown_field",
        ],
    ),
    (401, &["unauthorized"]),
    (403, &["cross_site", "forbidden", "host_not_allowed", "server_read_only"]),
    (404, &["no_route", "not_found"]),
    (405, &["method_not_allowed"]),
    (
        409,
        &[
            "bulk_ended",
            "idempotency_conflict",
            "invalid_settings",
            "no_failed_children",
            "plain_success",
            "schedule_exists",
            "schedule_open",
            "serial_queue",
            "task_ended",
            "task_open",
            "task_running",
            "task_waiting",
            "unique_conflict",
        ],
    ),
    (412, &["precondition_failed"]),
    (413, &["body_too_large", "bulk_too_large", "payload_too_large"]),
    (415, &["unsupported_media_type"]),
    (500, &["internal"]),
    (
        503,
        &[
            "busy",
            "connection_refused",
            "not_migrated",
            "program_too_old",
            "read_only",
            "timeout",
            "unavailable",
        ],
    ),
    (507, &["storage_full"]),
];

/// Seconds after which a client may try again.
const RETRY_AFTER_SECS: &str = "1";

/// Why a request was not carried out.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<Box<str>>,
    about: Box<About>,
    line: Option<u64>,
    stored: Option<u64>,
}

/// What a problem is about, for programs.
#[derive(Debug, Default)]
struct About {
    task: Option<TaskId>,
    state: Option<State>,
    key: Option<Box<str>>,
    scope: Option<Scope>,
}

/// Why a request was not carried out.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody<'a> {
    /// The HTTP status.
    pub status: u16,
    /// What that status is called.
    #[schema(value_type = String)]
    pub title: Cow<'a, str>,
    /// The stable name of the problem.
    #[schema(value_type = String)]
    pub code: Cow<'a, str>,
    /// What is wrong with what, and what is allowed.
    #[schema(value_type = String)]
    pub detail: Cow<'a, str>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub hint: Option<Cow<'a, str>>,
    /// The field, header or parameter that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub field: Option<Cow<'a, str>>,
    /// The task that is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<i64>,
    /// How the task has ended, when that is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub state: Option<State>,
    /// The key that is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<Cow<'a, str>>,
    /// The scope that the caller's token would need.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub scope: Option<Scope>,
    /// Of a stream of tasks: the line that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Of a stream of tasks: how many lines are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
}

impl Problem {
    /// A problem whose message may end in a remedy: `…; do this`.
    pub(crate) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self::with_status(status_of(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code, detail.into())
    }

    fn with_status(status: StatusCode, code: &'static str, detail: String) -> Self {
        Self { status, code, detail, field: None, about: Box::default(), line: None, stored: None }
    }

    /// What is answered.
    pub(crate) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            status: self.status.as_u16(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            code: self.code.into(),
            detail: self.detail.as_str().into(),
            hint: self.detail.rsplit_once("; ").map(|(_, hint)| hint.into()),
            field: self.field.as_deref().map(Cow::from),
            task: self.about.task.map(|task| task.0),
            state: self.about.state,
            key: self.about.key.as_deref().map(Cow::from),
            scope: self.about.scope,
            line: self.line,
            stored: self.stored,
        }
    }

    /// Names what is wrong.
    pub(crate) fn field(mut self, field: impl Into<Box<str>>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Names the task that is in the way.
    pub(crate) fn task(mut self, task: TaskId) -> Self {
        self.about.task = Some(task);
        self
    }

    /// Names the scope that the caller lacks.
    pub(crate) fn scope(mut self, scope: Scope) -> Self {
        self.about.scope = Some(scope);
        self
    }

    /// Names the line of a stream of tasks that is wrong.
    pub(crate) fn line(mut self, line: Option<u64>) -> Self {
        self.line = line;
        self
    }

    /// Says how many lines of a stream are stored.
    pub(crate) fn stored(mut self, lines: u64) -> Self {
        self.stored = Some(lines);
        self
    }

    /// Nothing of this kind has this name or number.
    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new("not_found", format!("{what} does not exist"))
    }

    /// An action on `task` that did nothing.
    pub(crate) fn skipped(task: TaskId, skip: Skip) -> Self {
        let mut problem = Self::new(skip.code(), format!("task {task} {skip}"));
        (problem.about.state, problem.about.task) = in_the_way(skip);
        problem
    }

    fn is_transient(&self) -> bool {
        matches!(self.status.as_u16(), 503 | 507)
    }
}

/// The status of a code.
pub(crate) fn status_of(code: &str) -> Option<StatusCode> {
    let row = STATUSES.iter().find(|(_, codes)| codes.contains(&code))?;
    StatusCode::from_u16(row.0).ok()
}

impl From<InvalidInput> for Problem {
    fn from(refused: InvalidInput) -> Self {
        let code = refused.code.as_str();
        let status = status_of(code).unwrap_or(StatusCode::BAD_REQUEST);
        Self::with_status(status, code, refused.message).field(refused.field)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = error.code();
        match error {
            StoreError::Invalid(refused) => refused.into(),
            StoreError::KeyTaken { ref key, holder }
            | StoreError::IdempotencyConflict { ref key, holder } => {
                let mut problem = Self::new(code, error.to_string()).task(holder);
                problem.about.key = Some(key.as_str().into());
                problem
            }
            error if error.is_transient() => Self::new(code, error.to_string()),
            // Host names and the words of a driver are for the log, not for whoever asks.
            error => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(code, error = %error, source, "a request failed");
                Self::new(code, "the store cannot do this; its log says why")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self.body()).expect("strings and numbers can be encoded");
        let mut response =
            (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let headers = response.headers_mut();
        if self.is_transient() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_status() {
        let codes: Vec<_> = STATUSES.iter().flat_map(|(_, codes)| *codes).collect();
        let distinct: std::collections::BTreeSet<_> = codes.iter().collect();
        assert_eq!(codes.len(), distinct.len());
    }

    #[test]
    fn an_action_that_does_nothing_is_not_our_mistake() {
        for skip in [
            Skip::NotFound,
            Skip::Ended(laneway_core::State::Failed),
            Skip::Open,
            Skip::Running,
            Skip::Waiting,
            Skip::NoFailedChildren,
            Skip::KeyHeld(TaskId(7)),
            Skip::Plain,
            Skip::Busy,
        ] {
            assert_ne!(Problem::skipped(TaskId(1), skip).body().status, 500, "{skip:?}");
        }
    }

    #[test]
    fn the_remedy_is_the_hint() {
        let problem = Problem::new("not_found", "task 7 does not exist; look again");
        assert_eq!((problem.body().status, problem.body().hint), (404, Some("look again".into())));
    }
}
