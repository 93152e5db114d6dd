//! What every request passes: is it for us, does it come from where it may, how long may it take; and it is counted.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use tracing::Instrument as _;

use crate::access::bearer;
use crate::input::media_type;
use crate::metrics::Counted;
use crate::problem::Problem;
use crate::routes::App;

/// How long a request may take. Longer than the longest wait for a result.
const REQUEST_WITHIN: Duration = Duration::from_secs(45);

/// Names a request, in the answer and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 100;

pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let (started, _counted) = (Instant::now(), Counted::in_gauge(&app.metrics.under_way));
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let id = request_id(request.headers());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default());
    let mut response = match check(&app, &request) {
        Ok(()) => answer(request, next).instrument(span).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let route = app.base_path.route(route.as_ref().map_or("none", MatchedPath::as_str));
    app.metrics.request(route, &method, response.status(), started.elapsed());
    response
}

/// The caller's name for the request, if it fits into a log line; one of our own otherwise.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    let own = || {
        HeaderValue::try_from(uuid::Uuid::new_v4().simple().to_string())
            .expect("digits are valid in a header")
    };
    headers.get(REQUEST_ID).filter(fits).cloned().unwrap_or_else(own)
}

/// Answers in time. A stream of tasks takes as long as it takes; it is bounded piece by piece.
async fn answer(request: Request, next: Next) -> Response {
    if media_type(request.headers()) == "application/x-ndjson" {
        return next.run(request).await;
    }
    match tokio::time::timeout(REQUEST_WITHIN, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("this took more than {} s; try again", REQUEST_WITHIN.as_secs());
            Problem::new("timeout", detail).into_response()
        }
    }
}

fn check(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    check_host(app, headers)?;
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if app.read_only {
        let detail = "this server changes nothing (server.read_only); ask one that may";
        return Err(Problem::new("server_read_only", detail));
    }
    if bearer(headers).is_some() { Ok(()) } else { check_origin(headers) }
}

/// On loopback only names of this machine are answered: a page of another site that has its name resolved to 127.0.0.1
/// would otherwise be our page.
fn check_host(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(allowed) = &app.hosts else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = host.parse::<Authority>().map(|authority| authority.host().to_ascii_lowercase());
    if name.is_ok_and(|name| allowed.contains(&name)) {
        return Ok(());
    }
    let detail = format!(
        "`{}` is not a name of this server; use localhost or 127.0.0.1, or allow the name",
        host.escape_debug()
    );
    Err(Problem::new("host_not_allowed", detail).field("Host"))
}

/// Without a token, a browser may change something only from a page that we have served ourselves.
fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let site_is_ours = matches!(text("sec-fetch-site"), None | Some("same-origin" | "none"));
    let origin_is_ours = match text("origin") {
        None => true,
        Some(origin) => origin.split_once("://").map(|(_, host)| host) == text("host"),
    };
    if site_is_ours && origin_is_ours {
        return Ok(());
    }
    let detail = "the request comes from a page of another site; use a token, or call from the same site";
    Err(Problem::new("cross_site", detail).field("Origin"))
}
