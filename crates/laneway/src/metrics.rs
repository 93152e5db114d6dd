//! What a worker counts, by names that dashboards rely on.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// 1 ms to about 10 minutes, each 2.2 times the one before.
const SECONDS: [f64; 18] = [
    0.001, 0.0022, 0.0048, 0.011, 0.023, 0.052, 0.11, 0.25, 0.55, 1.2, 2.7, 5.8, 13.0, 28.0, 62.0, 137.0,
    301.0, 600.0,
];
const SIZES: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

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
pub(crate) struct ByState {
    pub state: &'static str,
}

type Ratio = Gauge<f64, AtomicU64>;
type Sizes = fn() -> Histogram;

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
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
    pub duration: Family<ByOutcome, Histogram, Sizes>,
    pub claims: Family<ByClaim, Counter>,
    pub claim_size: Family<ByQueue, Histogram, Sizes>,
    pub claim_limit: Gauge,
    pub no_slot: Counter,
    pub advance_seconds: Histogram,
    pub settle_seconds: Histogram,
    pub flush_size: Histogram,
    pub backpressure: Family<BySignal, Ratio>,
    pub wakeups: Family<BySource, Counter>,
    pub released: Family<ByReason, Counter>,
    pub leases_lost: Counter,
    pub heartbeats: Family<ByResult, Counter>,
    pub memory: Ratio,
    pub connections: Family<ByState, Gauge>,
    pub lanes_at_limit: Gauge,
    pub lane_limit_hits: Counter,
    pub lane_used: Ratio,
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
    pub(crate) counted: Counted,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let counted = Counted {
            in_flight: Family::default(),
            slots: Gauge::default(),
            slots_used: Ratio::default(),
            started: Family::default(),
            completed: Family::default(),
            failed: Family::default(),
            duration: Family::new_with_constructor(seconds),
            claims: Family::default(),
            claim_size: Family::new_with_constructor(sizes),
            claim_limit: Gauge::default(),
            no_slot: Counter::default(),
            advance_seconds: seconds(),
            settle_seconds: seconds(),
            flush_size: sizes(),
            backpressure: Family::default(),
            wakeups: Family::default(),
            released: Family::default(),
            leases_lost: Counter::default(),
            heartbeats: Family::default(),
            memory: Ratio::default(),
            connections: Family::default(),
            lanes_at_limit: Gauge::default(),
            lane_limit_hits: Counter::default(),
            lane_used: Ratio::default(),
        };
        Self { registry: Arc::new(registry(&counted)), counted }
    }

    /// All metrics in the OpenMetrics text format, as a scrape answers them.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }

    /// The value of one line, such as `worker_tasks_completed_total{queue="mail",kind="mail.receipt"}`; a name
    /// without labels sums all its lines. 0 when there is none. For tests and small dashboards.
    pub fn value(&self, name: &str) -> f64 {
        let rendered = self.render();
        let lines = rendered.lines().filter_map(|line| line.rsplit_once(' '));
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
    let help = "Time from asking the store to settle and claim until its answer";
    all.register("worker_advance_duration_seconds", help, counted.advance_seconds.clone());
    let help = "Time from the end of an attempt until it was recorded";
    all.register("worker_settle_duration_seconds", help, counted.settle_seconds.clone());
    all.register("worker_flush_size", "Attempts that were settled together", counted.flush_size.clone());
    all.register("worker_backpressure_factor", "1: no pressure", counted.backpressure.clone());
    all.register("worker_wakeups", "Looks for work, by what caused them", counted.wakeups.clone());
    all.register("worker_tasks_released", "Tasks that were given back unfinished", counted.released.clone());
    all.register("worker_leases_lost", "Attempts that ended too late to count", counted.leases_lost.clone());
    all.register("worker_heartbeats", "Renewals of the session", counted.heartbeats.clone());
    all.register("worker_memory_usage_ratio", "Share of memory in use", counted.memory.clone());
    all.register("worker_db_connections", "Connections of the pool", counted.connections.clone());
    all.register(
        "worker_lanes_at_limit",
        "Lanes seen at their limit with tasks waiting",
        counted.lanes_at_limit.clone(),
    );
    all.register(
        "worker_lane_limit_hits",
        "Times that a lane was seen to hit its limit",
        counted.lane_limit_hits.clone(),
    );
    all.register("worker_lane_used_ratio", "Turns in use of the lanes seen", counted.lane_used.clone());
    registry
}
