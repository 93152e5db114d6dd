//! What a store has measured, as metrics.

use std::collections::BTreeMap;

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
    meters: Vec<Meter>,
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
        Self { meters: vec![meter], what: What::Statements }
    }

    /// `worker_db_wait_seconds`: how long callers waited for a connection.
    pub fn waits(meter: Meter) -> Self {
        Self { meters: vec![meter], what: What::Waits }
    }

    /// Counts what another store of this process has measured, too. The same one counts once.
    pub fn and(mut self, meter: Meter) -> Self {
        if !self.meters.iter().any(|known| known.is_same(&meter)) {
            self.meters.push(meter);
        }
        self
    }

    fn all_waits(&self) -> Times {
        let mut all = Times::default();
        self.meters.iter().for_each(|meter| all.merge(&meter.waits()));
        all
    }

    fn all_statements(&self) -> BTreeMap<&'static str, Times> {
        let mut all = BTreeMap::<_, Times>::new();
        for (op, times) in self.meters.iter().flat_map(Meter::statements) {
            all.entry(op).or_default().merge(&times);
        }
        all
    }
}

impl Collector for Timings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let histogram = MetricType::Histogram;
        match self.what {
            What::Waits => {
                let help = "How long callers waited for a connection";
                let metric = encoder.encode_descriptor("worker_db_wait_seconds", help, None, histogram)?;
                encode(metric, &self.all_waits())
            }
            What::Statements => {
                let (name, help) = ("store_statement_duration_seconds", "How long calls of the store took");
                let mut metric = encoder.encode_descriptor(name, help, None, histogram)?;
                self.all_statements().iter().try_for_each(|(op, times)| {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn several_stores_are_counted_together_and_the_same_one_once() {
        let (worker, looks) = (Meter::default(), Meter::default());
        worker.statement("claim", Duration::from_millis(3));
        worker.statement("list", Duration::from_millis(3));
        looks.statement("list", Duration::from_millis(700));

        let all =
            Timings::statements(looks.clone()).and(worker.clone()).and(looks).and(worker).all_statements();

        assert_eq!((all["claim"].count(), all["list"].count()), (1, 2));
        assert!((all["list"].sum - 0.703).abs() < 1e-9);
    }
}
