//! What a server refuses, as the error that the store would have answered.

use laneway_core::{Code, InvalidInput, StoreError, TaskId, UniqueKey};

use super::link::{Answer, Link};
use crate::problem::{ProblemBody, STATUSES};

/// What was refused: in the server's words, and as an error.
pub(super) struct Refusal {
    /// None when the server did not say why, or was not reached.
    pub problem: Option<Box<ProblemBody<'static>>>,
    pub error: StoreError,
}

impl Refusal {
    /// True when the server answered this code.
    pub(super) fn is(&self, code: &str) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == code)
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self { problem: None, error }
    }
}

/// The answer, if it is not a refusal.
pub(super) fn accepted(link: &Link, answer: Answer) -> Result<Answer, Refusal> {
    if answer.status.is_success() && answer.content_type.starts_with("application/json") {
        return Ok(answer);
    }
    let problem = (answer.content_type == "application/problem+json")
        .then(|| serde_json::from_slice::<ProblemBody<'static>>(&answer.body).ok())
        .flatten();
    let Some(problem) = problem else { return Err(not_ours(link, &answer).into()) };
    let error = error(link, &problem);
    Err(Refusal { problem: Some(Box::new(problem)), error })
}

/// An answer that no Laneway server gives.
pub(super) fn not_ours(link: &Link, answer: &Answer) -> StoreError {
    let (status, content_type) = (answer.status, answer.content_type.escape_debug());
    let source = match status.as_u16() {
        502..=504 => format!("what is there answers {status}: the server behind it does not"),
        _ => format!("what is there answers {status} (`{content_type}`), which no Laneway server does"),
    };
    link.unavailable(source.into())
}

fn error(link: &Link, problem: &ProblemBody<'_>) -> StoreError {
    let message = problem.detail.to_string();
    if let Some(code) = Code::named(&problem.code) {
        return InvalidInput { code, field: field(problem.field.as_deref()), message }.into();
    }
    let key = problem.key.as_deref().and_then(|key| UniqueKey::new(key).ok());
    match (&*problem.code, key, problem.task.map(TaskId)) {
        ("unique_conflict", Some(key), Some(holder)) => StoreError::KeyTaken { key, holder },
        ("idempotency_conflict", Some(key), Some(holder)) => StoreError::IdempotencyConflict { key, holder },
        ("busy", ..) => {
            let what = message.strip_suffix(" is held by another transaction; try again");
            StoreError::Busy { what: what.unwrap_or(&message).to_owned() }
        }
        ("unauthorized" | "forbidden", ..) => not_allowed(link, problem),
        ("no_route" | "method_not_allowed", ..) => {
            let hint = "the base path belongs to the address, and an older server has fewer routes";
            link.unavailable(format!("{message}; {hint}").into())
        }
        (code, ..) => StoreError::Server { code: known(code), message },
    }
}

/// Says which token is needed, and how to come by one.
fn not_allowed(link: &Link, problem: &ProblemBody<'_>) -> StoreError {
    let (url, scope) = (link.url(), problem.scope.map_or("SCOPE", |scope| scope.as_str()));
    let what = match (&*problem.code, link.has_token()) {
        ("forbidden", _) => {
            let said = problem.detail.split("; ").next().unwrap_or_default();
            format!("the server at {url} does not allow it: {said}")
        }
        (_, true) => format!(
            "the server at {url} does not know the token; it was revoked, has expired or is of another store"
        ),
        (_, false) => format!("the server at {url} asks for a token with the scope `{scope}`"),
    };
    let remedy = format!(
        "make one where the store is, with `laneway token create NAME --scope {scope}`, and give it as server.token (LANEWAY_SERVER_TOKEN)"
    );
    StoreError::Server { code: known(&problem.code), message: format!("{what}; {remedy}") }
}

/// A code as our table has it.
fn known(code: &str) -> &'static str {
    let mut codes = STATUSES.iter().flat_map(|(_, codes)| codes.iter());
    codes.find(|known| **known == code).copied().unwrap_or("internal")
}

/// Fields that are refused by name. What is not among them belongs to the call as a whole.
fn field(name: Option<&str>) -> &'static str {
    const FIELDS: &[&str] = &[
        "actor",
        "cron",
        "cursor",
        "delay",
        "due",
        "edit",
        "every",
        "expires_at",
        "filter",
        "id",
        "keep_cancelled",
        "keep_completed",
        "keep_failed",
        "kind",
        "lane",
        "lane.interval",
        "lane.limit",
        "limit",
        "max_attempts",
        "max_rows",
        "missed.cap",
        "order",
        "pace",
        "pause.expires",
        "payload",
        "priority",
        "queue",
        "retry",
        "schedule",
        "scope",
        "scopes",
        "serial",
        "state",
        "tag",
        "tags",
        "task",
        "tasks",
        "timeout",
        "trace",
        "unique",
        "unique.scope",
        "unique.within",
    ];
    FIELDS.iter().find(|known| Some(**known) == name).copied().unwrap_or("request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;
    use crate::remote::RemoteOptions;

    fn answered(problem: &Problem) -> StoreError {
        let link = Link::new(&RemoteOptions::new("http://localhost:7420")).unwrap();
        let body = serde_json::to_vec(&problem.body()).unwrap();
        let read: ProblemBody<'static> = serde_json::from_slice(&body).unwrap();
        error(&link, &read)
    }

    #[test]
    fn every_code_comes_back_as_itself() {
        for (_, codes) in STATUSES {
            for code in *codes {
                let came_back = answered(&Problem::new(code, "it is so; do this"));
                let wanted =
                    if matches!(*code, "no_route" | "method_not_allowed") { "unavailable" } else { *code };
                assert_eq!(came_back.code(), wanted);
            }
        }
    }

    #[test]
    fn errors_of_a_store_come_back_with_their_words() {
        let key = || UniqueKey::new("k").unwrap();
        for sent in [
            StoreError::Busy { what: "lane `a`".into() },
            StoreError::KeyTaken { key: key(), holder: TaskId(7) },
            StoreError::IdempotencyConflict { key: key(), holder: TaskId(7) },
            StoreError::Full { target: "localhost:5432".into(), source: "full".into() },
            StoreError::Unavailable { target: "localhost:5432".into(), source: "gone".into() },
            InvalidInput::new(Code::OutOfRange, "priority", "is 5000; allowed is -1000 to 1000").into(),
        ] {
            let (words, code, is_transient) = (sent.to_string(), sent.code(), sent.is_transient());
            let came_back = answered(&Problem::from(sent));
            assert_eq!((came_back.to_string(), came_back.code()), (words, code));
            assert_eq!(came_back.is_transient(), is_transient, "{code}");
        }
    }
}
