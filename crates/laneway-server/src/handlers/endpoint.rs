//! Handles a kind by posting its payloads to one URL.
//!
//! The answer's status says how the attempt ended: 2xx completed it, and the body is its result; 408, 425, 429 and 5xx are
//! tried again, after `Retry-After` if there is one; everything else has failed for good.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use laneway::core::Json;
use laneway::{Attempt, Failure, WorkerBuilder};
use serde_json::Value;
use url::Url;

use super::SetupError;
use super::call::{self, Call, Caller, HttpOptions};

/// An address that handles tasks of one kind.
#[derive(Clone)]
pub struct Endpoint {
    kind: String,
    url: Url,
    caller: Caller,
    timeout: Duration,
}

impl Endpoint {
    /// Posts tasks of `kind` to `url`. The operator names the address, so give [`Reach::Any`](super::Reach::Any) if it may be a
    /// private one.
    ///
    /// # Errors
    /// When the URL cannot be called or TLS cannot be set up.
    pub fn new(kind: impl Into<String>, url: &str, options: HttpOptions) -> Result<Self, SetupError> {
        let refused = |problem: String| SetupError::Url { url: url.to_owned(), problem };
        let parsed = Url::parse(url).map_err(|error| refused(error.to_string()))?;
        let url = call::checked(parsed).map_err(refused)?;
        Ok(Self { kind: kind.into(), url, caller: Caller::new(options)?, timeout: Duration::from_secs(30) })
    }

    /// How long one call may take. 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Lets a worker handle the kind.
    pub fn add_to(self, worker: WorkerBuilder) -> WorkerBuilder {
        let kind = self.kind.clone();
        worker.handle_kind(kind, move |payload: Json, attempt: Attempt| {
            let endpoint = self.clone();
            async move { endpoint.post(payload, &attempt).await }
        })
    }

    async fn post(&self, payload: Json, attempt: &Attempt) -> Result<Value, Failure> {
        let call = Call {
            method: Method::POST,
            url: self.url.clone(),
            headers: headers(attempt),
            body: Bytes::from(payload.as_str().to_owned()),
            timeout: self.timeout,
        };
        let answer = self.caller.call(call, attempt).await?;
        if !answer.status.is_success() {
            return Err(call::unwanted(&answer));
        }
        if answer.truncated {
            return Err(Failure::discard("the answer is longer than what may be kept as a result"));
        }
        Ok(call::as_json(&answer.body))
    }
}

/// Which attempt of which task it is. The task's number is the same in every attempt: a key for idempotence.
fn headers(attempt: &Attempt) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("laneway-task", HeaderValue::from(attempt.id().0));
    headers.insert("laneway-attempt", HeaderValue::from(attempt.number()));
    let trace = attempt.trace().iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
    });
    headers.extend(trace);
    if let Ok(kind) = HeaderValue::from_str(attempt.task().kind.as_str()) {
        headers.insert("laneway-kind", kind);
    }
    headers
}
