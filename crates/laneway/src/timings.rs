//! What a store has measured, as metrics.

use laneway_core::{Meter, TIME_BOUNDS, Times};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// The times that a store has measured, for a registry of `prometheus-client`.
///
/// ```
/// use laneway::{SqliteStore, Store, Timings};
/// use prometheus_client::registry::Registry;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = SqliteStore::temporary().await?;
/// store.counts().await?;
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(Timings::statements(store.meter())));
///
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains(r#"store_statement_duration_seconds_count{op="count_tasks"} 1"#));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Timings {
    meter: Meter,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Statements,
    Waits,
}

impl Timings {
    /// `store_statement_duration_seconds`: how long calls took, by what they did.
    pub fn statements(meter: Meter) -> Self {
        Self { meter, what: What::Statements }
    }

    /// `worker_db_wait_seconds`: how long callers waited for a connection.
    pub fn waits(meter: Meter) -> Self {
        Self { meter, what: What::Waits }
    }
}

impl Collector for Timings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let histogram = MetricType::Histogram;
        match self.what {
            What::Waits => {
                let help = "How long callers waited for a connection";
                let metric = encoder.encode_descriptor("worker_db_wait_seconds", help, None, histogram)?;
                encode(metric, &self.meter.waits())
            }
            What::Statements => {
                let (name, help) = ("store_statement_duration_seconds", "How long calls of the store took");
                let mut metric = encoder.encode_descriptor(name, help, None, histogram)?;
                self.meter.statements().iter().try_for_each(|(op, times)| {
                    let labels = [("op", op.replace([' ', '-'], "_"))];
                    encode(metric.encode_family(&labels)?, times)
                })
            }
        }
    }
}

fn encode(mut metric: MetricEncoder<'_>, times: &Times) -> Result<(), std::fmt::Error> {
    let bounds = TIME_BOUNDS.into_iter().chain([f64::MAX]);
    let buckets: Vec<_> = bounds.zip(times.counts).collect();
    metric.encode_histogram::<NoLabelSet>(times.sum, times.count(), &buckets, None)
}
