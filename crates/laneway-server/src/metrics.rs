//! What a scrape is told: requests, what the store has measured, its gauges (`gauges.rs`), and the worker's own metrics where one
//! runs in the process.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway::Timings;
use laneway_core::{Meter, Store, TIME_BOUNDS};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::access::{Caller, Read};
use crate::gauges::Gauges;
use crate::routes::App;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByRequest {
    route: String,
    method: &'static str,
    code: u16,
}

type Times = fn() -> Histogram;

fn times() -> Histogram {
    Histogram::new(TIME_BOUNDS)
}

/// What the server counts.
pub(crate) struct Metrics {
    requests: Family<ByRequest, Counter>,
    durations: Family<ByRequest, Histogram, Times>,
    /// Requests that are being answered.
    pub under_way: Gauge,
    /// Open streams of changes.
    pub stream_clients: Gauge,
    registry: Registry,
    worker: Option<laneway::Metrics>,
    gauges: Gauges,
}

/// Counts something as long as it is there.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn in_gauge(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new(worker: Option<laneway::Metrics>, meter: Meter) -> Self {
        let requests = Family::default();
        let durations = Family::new_with_constructor(times as Times);
        let (under_way, stream_clients) = (Gauge::default(), Gauge::default());
        let mut registry = Registry::default();
        registry.register("server_requests", "Requests that were answered", requests.clone());
        registry.register("server_request_duration_seconds", "How long answers took", durations.clone());
        registry.register("server_requests_under_way", "Requests that are being answered", under_way.clone());
        registry.register("server_stream_clients", "Open streams of changes", stream_clients.clone());
        // The worker may have connections of its own; what the process asks of the store is told together.
        let timings = Timings::statements(meter);
        let timings = match &worker {
            Some(worker) => timings.and(worker.meter()),
            None => timings,
        };
        registry.register_collector(Box::new(timings));
        Self { requests, durations, under_way, stream_clients, registry, worker, gauges: Gauges::default() }
    }

    /// Counts an answer.
    pub(crate) fn request(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        let labels = ByRequest { route: route.to_owned(), method: known(method), code: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    async fn render(&self, store: &dyn Store) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        if let Some(worker) = &self.worker {
            text += &worker.render();
        }
        text += &self.gauges.render(store).await;
        text
    }
}

/// A method that nobody has heard of is no label.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        _ => "other",
    }
}

/// Metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health", security(("token" = ["read"])),
    responses((status = 200, description = "The metrics as text", body = String, content_type = "text/plain"))
)]
pub(crate) async fn scrape(_: Caller<Read>, State(app): State<App>, headers: HeaderMap) -> Response {
    let text = app.metrics.render(&*app.store).await;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.contains("application/openmetrics-text") {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return ([(header::CONTENT_TYPE, content_type)], as_open_metrics(&text)).into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], as_plain(&text)).into_response()
}

/// Several registries as one: a single end.
fn as_open_metrics(text: &str) -> String {
    let lines = text.lines().filter(|line| *line != "# EOF");
    lines.chain(["# EOF"]).map(|line| format!("{line}\n")).collect()
}

/// The older format, in which the header of a counter has its full name, and there are no exemplars.
fn as_plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut lines = text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT")).peekable();
    while let Some(line) = lines.next() {
        let next_is_counter = lines.peek().is_some_and(|next| is_counter(next));
        let full = if is_counter(line) || (line.starts_with("# HELP ") && next_is_counter) {
            with_total(line)
        } else {
            line.split(" # {trace_id=\"").next().unwrap_or(line).to_owned()
        };
        plain += &full;
        plain.push('\n');
    }
    plain
}

fn is_counter(line: &str) -> bool {
    line.starts_with("# TYPE ") && line.ends_with(" counter")
}

/// `# HELP name rest` with `name_total`.
fn with_total(line: &str) -> String {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().unwrap_or_default();
    format!("{} {} {}_total {}", word(), word(), word(), word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_full_name_in_the_older_format() {
        let metrics = Metrics::new(None, Meter::default());
        metrics.request("/livez", &Method::GET, StatusCode::OK, Duration::from_millis(3));
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();

        let plain = as_plain(&text);

        assert!(plain.contains("# HELP server_requests_total Requests that were answered"), "{plain}");
        assert!(plain.contains("# TYPE server_requests_total counter"), "{plain}");
        assert!(
            plain.contains(r#"server_requests_total{route="/livez",method="GET",code="200"} 1"#),
            "{plain}"
        );
        assert!(!plain.contains("# EOF"));
        assert!(as_open_metrics(&text).ends_with("# EOF\n"));
    }
}
