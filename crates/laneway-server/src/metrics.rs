//! What a scrape is told: requests, the store's gauges, and the worker's own metrics where one runs in the process.
//!
//! The store's gauges are asked for at most once in five seconds, however many scrape. Queues are labels up to a bound;
//! beyond it they are counted together as `other`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use laneway_core::{State as TaskState, Store, StoreError};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::access::{Caller, Read};
use crate::routes::App;

/// 1 ms to about a minute.
const SECONDS: [f64; 14] =
    [0.001, 0.0022, 0.0048, 0.011, 0.023, 0.052, 0.11, 0.25, 0.55, 1.2, 2.7, 5.8, 13.0, 45.0];
/// The store is asked again after this long.
const GAUGES_FOR: Duration = Duration::from_secs(5);
/// Queues with gauges of their own.
const QUEUES_MAX: usize = 200;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByRequest {
    route: String,
    method: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByRoute {
    route: String,
    method: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByQueue {
    queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    queue: String,
    state: &'static str,
}

type Times = fn() -> Histogram;

fn times() -> Histogram {
    Histogram::new(SECONDS)
}

/// What the server counts.
pub(crate) struct Metrics {
    requests: Family<ByRequest, Counter>,
    durations: Family<ByRoute, Histogram, Times>,
    /// Requests that are being answered.
    pub under_way: Gauge,
    /// Open streams of changes.
    pub stream_clients: Gauge,
    registry: Registry,
    worker: Option<laneway::Metrics>,
    gauges: Mutex<Option<(Instant, String)>>,
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
    pub(crate) fn new(worker: Option<laneway::Metrics>) -> Self {
        let requests = Family::default();
        let durations = Family::new_with_constructor(times as Times);
        let (under_way, stream_clients) = (Gauge::default(), Gauge::default());
        let mut registry = Registry::default();
        registry.register("server_requests", "Requests that were answered", requests.clone());
        registry.register("server_request_duration_seconds", "How long answers took", durations.clone());
        registry.register("server_requests_under_way", "Requests that are being answered", under_way.clone());
        registry.register("server_stream_clients", "Open streams of changes", stream_clients.clone());
        Self { requests, durations, under_way, stream_clients, registry, worker, gauges: Mutex::default() }
    }

    /// Counts an answer.
    pub(crate) fn request(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        let (route, method) = (route.to_owned(), known(method));
        let labels = ByRequest { route: route.clone(), method, code: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&ByRoute { route, method }).observe(took.as_secs_f64());
    }

    async fn render(&self, store: &dyn Store) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        if let Some(worker) = &self.worker {
            text += &worker.render();
        }
        text += &self.gauges(store).await;
        text
    }

    /// What the store says, or said a moment ago.
    async fn gauges(&self, store: &dyn Store) -> String {
        let lock = || self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, text)) = &*lock()
            && at.elapsed() < GAUGES_FOR
        {
            return text.clone();
        }
        let text = match ask(store).await {
            Ok(registry) => {
                let mut text = String::new();
                encode(&mut text, &registry).expect("writing to a string cannot fail");
                text
            }
            Err(_) => "# HELP store_up 1: the store answers\n# TYPE store_up gauge\nstore_up 0\n".to_owned(),
        };
        *lock() = Some((Instant::now(), text.clone()));
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

/// The store's gauges.
async fn ask(store: &dyn Store) -> Result<Registry, StoreError> {
    let (counts, queues, workers) = (store.counts().await?, store.queues().await?, store.workers().await?);
    let name = |queue: &str| match queues.iter().position(|view| view.queue.as_str() == queue) {
        Some(place) if place < QUEUES_MAX => queue.to_owned(),
        _ => "other".to_owned(),
    };
    let (tasks, paused) = (Family::<ByState, Gauge>::default(), Family::<ByQueue, Gauge>::default());
    let (serving, slots) = (Family::<ByQueue, Gauge>::default(), Family::<ByQueue, Gauge>::default());
    let oldest = Family::<ByQueue, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
    for count in counts.iter().filter(|count| !count.state.has_ended()) {
        let labels = ByState { queue: name(count.queue.as_str()), state: TaskState::as_str(count.state) };
        tasks.get_or_create(&labels).inc_by(count.tasks as i64);
    }
    let now = Timestamp::now();
    for view in &queues {
        let labels = ByQueue { queue: name(view.queue.as_str()) };
        paused.get_or_create(&labels).set(i64::from(view.paused_at.is_some()));
        let ready = view.oldest_ready_at.map_or(0.0, |at| now.duration_since(at).as_secs_f64().max(0.0));
        let gauge = oldest.get_or_create(&labels);
        gauge.set(gauge.get().max(ready));
    }
    let mut by_queue = BTreeMap::<String, (i64, i64)>::new();
    for worker in &workers {
        for queue in &worker.queues {
            let entry = by_queue.entry(name(queue.as_str())).or_default();
            *entry = (entry.0 + 1, entry.1 + i64::from(worker.capacity.slots));
        }
    }
    for (queue, (workers, count)) in by_queue {
        serving.get_or_create(&ByQueue { queue: queue.clone() }).set(workers);
        slots.get_or_create(&ByQueue { queue }).set(count);
    }
    let up = Gauge::<i64>::default();
    up.set(1);
    let mut registry = Registry::default();
    registry.register("store_up", "1: the store answers", up);
    registry.register("queue_tasks", "Open tasks; with very many, those that were counted", tasks);
    registry.register("queue_oldest_ready_seconds", "For how long the oldest ready task is ready", oldest);
    registry.register("queue_paused", "1: nothing is claimed", paused);
    registry.register("queue_workers", "Workers that serve the queue", serving);
    registry.register("queue_slots", "Slots of the workers that serve the queue", slots);
    Ok(registry)
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

/// The older format, in which the header of a counter has its full name.
fn as_plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut lines = text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT")).peekable();
    while let Some(line) = lines.next() {
        let next_is_counter = lines.peek().is_some_and(|next| is_counter(next));
        let full = if is_counter(line) || (line.starts_with("# HELP ") && next_is_counter) {
            with_total(line)
        } else {
            line.to_owned()
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
        let metrics = Metrics::new(None);
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
