//! What a worker counts, by names that dashboards rely on.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use laneway_core::{Meter, Store, TIME_BOUNDS};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::timings::Timings;

const SIZES: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
/// Kinds that have lines of their own. The others are counted together as `other`.
const KINDS_MAX: usize = 200;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByQueue {
    pub queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByKind {
    pub queue: String,
    pub kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByOutcome {
    pub queue: String,
    pub kind: String,
    pub outcome: &'static str,
}

/// What an exemplar points at.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Traced {
    pub trace_id: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByClaim {
    pub queue: String,
    pub result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct BySource {
    pub source: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct BySignal {
    pub signal: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByReason {
    pub reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByResult {
    pub result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByOp {
    pub op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Info {
    version: &'static str,
    store: &'static str,
    profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ByState {
    pub state: &'static str,
}

type Ratio = Gauge<f64, AtomicU64>;
type Sizes = fn() -> Histogram;

fn seconds() -> Histogram {
    Histogram::new(TIME_BOUNDS)
}

fn traced_seconds() -> HistogramWithExemplars<Traced> {
    HistogramWithExemplars::new(TIME_BOUNDS.into_iter())
}

fn sizes() -> Histogram {
    Histogram::new(SIZES)
}

/// Everything that is counted. Clones count together.
#[derive(Clone)]
pub(crate) struct Counted {
    pub in_flight: Family<ByQueue, Gauge>,
    pub slots: Gauge,
    pub slots_used: Ratio,
    pub started: Family<ByKind, Counter>,
    pub completed: Family<ByKind, Counter>,
    pub failed: Family<ByOutcome, Counter>,
    pub duration: Family<ByOutcome, HistogramWithExemplars<Traced>, fn() -> HistogramWithExemplars<Traced>>,
    pub wait: Family<ByQueue, Histogram, Sizes>,
    pub claims: Family<ByClaim, Counter>,
    pub claim_size: Family<ByQueue, Histogram, Sizes>,
    pub claim_limit: Gauge,
    pub no_slot: Counter,
    pub claim_seconds: Histogram,
    pub settle_seconds: Histogram,
    pub flush_size: Family<ByOp, Histogram, Sizes>,
    pub flush_seconds: Family<ByOp, Histogram, Sizes>,
    pub backpressure: Family<BySignal, Ratio>,
    pub wakeups: Family<BySource, Counter>,
    pub released: Family<ByReason, Counter>,
    pub leases_lost: Counter,
    pub heartbeats: Family<ByResult, Counter>,
    pub memory: Ratio,
    pub memory_limit: Gauge,
    pub connections: Family<ByState, Gauge>,
    pub lanes_at_limit: Gauge,
    pub queue_lanes_at_limit: Family<ByQueue, Gauge>,
    pub rescued: Family<ByQueue, Counter>,
    pub fires: Family<ByResult, Counter>,
    pub removed: Family<ByState, Counter>,
    pub lane_limit_hits: Counter,
    pub lane_used: Ratio,
    kinds: Arc<Mutex<HashSet<String>>>,
}

impl Counted {
    /// A call has settled or renewed so many at once. One that had nothing to tell does not count.
    pub fn flushed(&self, op: &'static str, size: usize, took: Duration) {
        if size > 0 {
            self.flush_size.get_or_create(&ByOp { op }).observe(size as f64);
            self.flush_seconds.get_or_create(&ByOp { op }).observe(took.as_secs_f64());
        }
    }

    /// The kind as a label: itself, or `other` when there are too many.
    pub fn kind(&self, kind: &str) -> String {
        let mut known = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(kind) || known.len() < KINDS_MAX {
            known.insert(kind.to_owned());
            return kind.to_owned();
        }
        "other".to_owned()
    }
}

/// The metrics of one worker, to be scraped.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Ping;
/// # impl laneway::Payload for Ping { const KIND: &'static str = "ping"; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use laneway::{SqliteStore, Worker};
///
/// async fn ping(_: Ping) -> Result<(), std::io::Error> { Ok(()) }
///
/// let worker = Worker::builder(SqliteStore::temporary().await?).slots(7).handle(ping).build()?;
/// assert!(worker.metrics().render().contains("worker_slots 7"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    meter: Meter,
    pub(crate) counted: Counted,
}

impl Metrics {
    /// `profile` is none where the slots were set otherwise.
    pub(crate) fn new(store: &dyn Store, profile: Option<String>) -> Self {
        let counted = Counted {
            in_flight: Family::default(),
            slots: Gauge::default(),
            slots_used: Ratio::default(),
            started: Family::default(),
            completed: Family::default(),
            failed: Family::default(),
            duration: Family::new_with_constructor(traced_seconds),
            wait: Family::new_with_constructor(seconds),
            claims: Family::default(),
            claim_size: Family::new_with_constructor(sizes),
            claim_limit: Gauge::default(),
            no_slot: Counter::default(),
            claim_seconds: seconds(),
            settle_seconds: seconds(),
            flush_size: Family::new_with_constructor(sizes),
            flush_seconds: Family::new_with_constructor(seconds),
            backpressure: Family::default(),
            wakeups: Family::default(),
            released: Family::default(),
            leases_lost: Counter::default(),
            heartbeats: Family::default(),
            memory: Ratio::default(),
            memory_limit: Gauge::default(),
            connections: Family::default(),
            lanes_at_limit: Gauge::default(),
            queue_lanes_at_limit: Family::default(),
            rescued: Family::default(),
            fires: Family::default(),
            removed: Family::default(),
            lane_limit_hits: Counter::default(),
            lane_used: Ratio::default(),
            kinds: Arc::default(),
        };
        let mut registry = registry(&counted);
        registry.register_collector(Box::new(Timings::waits(store.meter())));
        let info = Family::<Info, Gauge>::default();
        let profile = profile.unwrap_or_else(|| "none".to_owned());
        info.get_or_create(&Info { version: env!("CARGO_PKG_VERSION"), store: store.name(), profile }).set(1);
        registry.register("worker_info", "1: a worker of this version", info);
        Self { registry: Arc::new(registry), meter: store.meter(), counted }
    }

    /// What the worker's store has measured about its calls.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// All metrics in the OpenMetrics text format, as a scrape answers them. Buckets of `worker_task_duration_seconds` have an
    /// exemplar: the trace of the last attempt in them that belongs to a sampled one.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }

    /// The value of one line, such as `worker_tasks_completed_total{queue="mail",kind="mail.receipt"}`; a name
    /// without labels sums all its lines. 0 when there is none. For tests and small dashboards.
    pub fn value(&self, name: &str) -> f64 {
        let rendered = self.render();
        let figures = rendered.lines().filter_map(|line| line.split(" # {trace_id=\"").next());
        let lines = figures.filter_map(|line| line.rsplit_once(' '));
        let asked = |found: &str| found == name || found.split('{').next() == Some(name);
        lines.filter(|(found, _)| asked(found)).filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }
}

/// One flat list of names. The encoder adds `_total` to counters.
fn registry(counted: &Counted) -> Registry {
    let mut registry = Registry::default();
    let all = &mut registry;
    all.register("worker_in_flight_tasks", "Attempts that run now", counted.in_flight.clone());
    all.register("worker_slots", "Attempts that may run at once", counted.slots.clone());
    all.register("worker_slots_used_ratio", "Share of slots in use", counted.slots_used.clone());
    all.register("worker_tasks_started", "Attempts that were started", counted.started.clone());
    all.register("worker_tasks_completed", "Attempts that completed their task", counted.completed.clone());
    all.register("worker_tasks_failed", "Attempts that ended otherwise", counted.failed.clone());
    all.register("worker_task_duration_seconds", "How long handlers ran", counted.duration.clone());
    all.register("worker_claims", "Claims, by what they brought", counted.claims.clone());
    all.register("worker_claim_size", "Tasks per claim", counted.claim_size.clone());
    all.register("worker_claim_limit", "Claim size after backpressure", counted.claim_limit.clone());
    all.register("worker_no_slot", "Times that all slots became busy", counted.no_slot.clone());
    all.register(
        "worker_task_wait_seconds",
        "How long tasks were runnable until claimed",
        counted.wait.clone(),
    );
    let help = "Time from asking the store to settle and claim until its answer";
    all.register("worker_claim_duration_seconds", help, counted.claim_seconds.clone());
    let help = "Time from the end of an attempt until it was recorded";
    all.register("worker_settle_duration_seconds", help, counted.settle_seconds.clone());
    let help = "Attempts that were settled, or leases that were renewed, together";
    all.register("worker_flush_size", help, counted.flush_size.clone());
    let help = "How long the calls took that settled or renewed";
    all.register("worker_flush_duration_seconds", help, counted.flush_seconds.clone());
    all.register("worker_backpressure_factor", "1: no pressure", counted.backpressure.clone());
    all.register("worker_wakeups", "Looks for work, by what caused them", counted.wakeups.clone());
    all.register("worker_tasks_released", "Tasks that were given back unfinished", counted.released.clone());
    all.register("worker_leases_lost", "Attempts that ended too late to count", counted.leases_lost.clone());
    all.register("worker_heartbeats", "Renewals of the session", counted.heartbeats.clone());
    all.register("worker_memory_usage_ratio", "Share of memory in use", counted.memory.clone());
    all.register("worker_memory_limit_bytes", "Memory that may be used", counted.memory_limit.clone());
    all.register("worker_db_connections", "Connections of the pool", counted.connections.clone());
    all.register(
        "worker_lanes_at_limit",
        "Lanes seen at their limit with tasks waiting",
        counted.lanes_at_limit.clone(),
    );
    let help = "The same by queue";
    all.register("queue_lanes_at_limit", help, counted.queue_lanes_at_limit.clone());
    let help = "Tasks that this worker took back from dead workers";
    all.register("queue_rescued", help, counted.rescued.clone());
    let help = "Fires that this worker found due, by what became of them";
    all.register("schedule_fires", help, counted.fires.clone());
    let help = "Ended tasks that this worker removed because their time was over";
    all.register("store_retention_deleted", help, counted.removed.clone());
    all.register(
        "worker_lane_limit_hits",
        "Times that a lane was seen to hit its limit",
        counted.lane_limit_hits.clone(),
    );
    all.register("worker_lane_used_ratio", "Turns in use of the lanes seen", counted.lane_used.clone());
    registry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beyond_two_hundred_kinds_the_rest_is_counted_together() {
        let store = crate::testing::store().await;
        let metrics = Metrics::new(&*store, None);
        for number in 0..300 {
            let kind = metrics.counted.kind(&format!("kind.{number}"));
            metrics.counted.started.get_or_create(&ByKind { queue: "default".into(), kind }).inc();
        }

        assert_eq!(metrics.value(r#"worker_tasks_started_total{queue="default",kind="kind.199"}"#), 1.0);
        assert_eq!(metrics.value(r#"worker_tasks_started_total{queue="default",kind="other"}"#), 100.0);
    }
}
