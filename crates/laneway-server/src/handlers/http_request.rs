//! The kind `http.request`: sends the request that its payload describes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use laneway::{Attempt, Failure, Payload, WorkerBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::SetupError;
use super::call::{self, Answer, Call, Caller, HttpOptions};

const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Headers that say how the message is sent, which is our part.
const OURS: [HeaderName; 4] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];

/// A request. Only the URL has to be given.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// `GET` unless it says otherwise.
    #[serde(default = "get")]
    pub method: String,
    /// Where to.
    pub url: String,
    /// Headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Text is sent as it is, anything else as JSON.
    #[serde(default)]
    pub body: Option<Value>,
    /// The status codes that are a success; 200 to 299 unless some are given.
    #[serde(default)]
    pub expect: Vec<u16>,
    /// How long the whole call may take, 1 to 600,000 ms.
    #[serde(default = "half_a_minute")]
    pub timeout_ms: u64,
}

fn get() -> String {
    "GET".into()
}

fn half_a_minute() -> u64 {
    30_000
}

impl Payload for HttpRequest {
    const KIND: &'static str = "http.request";
}

/// The answer, kept as the task's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// Headers in small letters; those that are no text are left out.
    pub headers: BTreeMap<String, String>,
    /// The body: JSON if it is some, else text.
    pub body: Value,
    /// True when the body was longer than what is kept.
    pub truncated: bool,
}

/// The handler of `http.request`.
#[derive(Clone)]
pub struct HttpRequests(Caller);

impl HttpRequests {
    /// Sets it up.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(options: HttpOptions) -> Result<Self, SetupError> {
        Caller::new(options).map(Self)
    }

    /// Lets a worker handle `http.request`.
    pub fn add_to(self, worker: WorkerBuilder) -> WorkerBuilder {
        worker.handle(move |request: HttpRequest, attempt: Attempt| {
            let caller = self.0.clone();
            async move { send(&caller, request, &attempt).await }
        })
    }
}

async fn send(caller: &Caller, request: HttpRequest, attempt: &Attempt) -> Result<HttpResponse, Failure> {
    let call = described(&request).map_err(Failure::discard)?;
    let answer = caller.call(call, attempt).await?;
    if is_expected(&request.expect, answer.status) { Ok(kept(&answer)) } else { Err(call::unwanted(&answer)) }
}

/// The call that a payload describes, or what is wrong with it.
fn described(request: &HttpRequest) -> Result<Call, String> {
    let method = Method::from_bytes(request.method.to_uppercase().as_bytes())
        .map_err(|_| format!("`method` is `{}`, which is none", request.method.escape_debug()))?;
    let url = Url::parse(&request.url).map_err(|error| format!("`url` is no URL: {error}"))?;
    let url = call::checked(url).map_err(|problem| format!("`url` {problem}"))?;
    let timeout = Duration::from_millis(request.timeout_ms);
    if timeout.is_zero() || timeout > TIMEOUT_MAX {
        return Err(format!(
            "`timeout_ms` is {}; allowed is 1 to {}",
            request.timeout_ms,
            TIMEOUT_MAX.as_millis()
        ));
    }
    let mut headers = headers(&request.headers)?;
    let body = match &request.body {
        None => Bytes::new(),
        Some(Value::String(text)) => Bytes::from(text.clone()),
        Some(json) => {
            let json_type = HeaderValue::from_static("application/json");
            headers.entry(header::CONTENT_TYPE).or_insert(json_type);
            Bytes::from(json.to_string())
        }
    };
    Ok(Call { method, url, headers, body, timeout })
}

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let shown = name.escape_debug();
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{shown}` is no header"))?;
        if OURS.contains(&name) {
            return Err(format!("header `{shown}` cannot be given; it follows from url and body"));
        }
        let value =
            HeaderValue::from_str(value).map_err(|_| format!("the value of header `{shown}` is none"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn is_expected(expect: &[u16], status: StatusCode) -> bool {
    if expect.is_empty() { status.is_success() } else { expect.contains(&status.as_u16()) }
}

fn kept(answer: &Answer) -> HttpResponse {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    HttpResponse {
        status: answer.status.as_u16(),
        headers: answer.headers.iter().filter_map(text).collect(),
        body: call::as_json(&answer.body),
        truncated: answer.truncated,
    }
}
