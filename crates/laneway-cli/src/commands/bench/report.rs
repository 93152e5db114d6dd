//! The figures of a load: shown, and written to a file that `bench diff` reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Load, Place};
use crate::context::Context;
use crate::output::text;
use crate::problem::{Exit, Outcome, Problem};

/// Figures by name. Names end in their unit; those of rates in `_per_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<String, f64>);

impl Figures {
    pub fn add(mut self, name: &str, value: f64) -> Self {
        self.0.insert(name.to_owned(), (value * 1_000.0).round() / 1_000.0);
        self
    }

    /// So many tasks in this time.
    pub fn rate(self, name: &str, tasks: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64().max(1e-6);
        self.add(&format!("{name}_s"), seconds).add(&format!("{name}_per_s"), tasks as f64 / seconds)
    }

    /// The middle, the 99th percentile and the longest of some times.
    pub fn times(self, name: &str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share).ceil() as usize;
            times.get(place.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
        };
        let (middle, high, longest) = (at(0.5), at(0.99), at(1.0));
        self.add(&format!("{name}_p50_ms"), middle)
            .add(&format!("{name}_p99_ms"), high)
            .add(&format!("{name}_max_ms"), longest)
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// One run of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `enqueue`, `drain` or `latency`.
    pub bench: String,
    /// The version of the program.
    pub laneway: String,
    /// `postgres` or `sqlite`.
    pub store: String,
    pub at: Timestamp,
    pub tasks: u64,
    pub slots: u32,
    pub lanes: u32,
    pub figures: Figures,
}

impl Report {
    pub fn new(bench: &str, place: &Place, load: &Load, figures: Figures) -> Self {
        Self {
            bench: bench.to_owned(),
            laneway: env!("CARGO_PKG_VERSION").to_owned(),
            store: place.store.name().to_owned(),
            at: Timestamp::now(),
            tasks: load.tasks(bench),
            slots: load.slots,
            lanes: load.lanes,
            figures,
        }
    }

    /// Reads a report that was written before.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Problem::usage(format!("cannot read {shown}: {error}")))?;
        serde_json::from_str(&text).map_err(|error| {
            Problem::usage(format!(
                "{shown} is no report of `laneway bench`: {error}; name a file that it has written"
            ))
        })
    }

    /// Shows it to people and programs.
    pub fn show(&self, context: &Context) -> Result<(), Problem> {
        let (tasks, figure) = (text::number(self.tasks), |name: &str| self.figures.get(name));
        let mut fields = vec![];
        for name in ["enqueue", "drain"] {
            if let (Some(seconds), Some(rate)) =
                (figure(&format!("{name}_s")), figure(&format!("{name}_per_s")))
            {
                fields.push((name, format!("{tasks} in {seconds:.3} s, {}/s", text::number(rate as u64))));
            }
        }
        if let (Some(claims), Some(size)) = (figure("claims"), figure("tasks_per_claim")) {
            fields.push(("claims", format!("{}, {size:.1} tasks each", text::number(claims as u64))));
        }
        for name in ["commit", "start", "wait"] {
            let times = ["p50", "p99", "max"].map(|end| (end, figure(&format!("{name}_{end}_ms"))));
            if let [(_, Some(middle)), (_, Some(high)), (_, Some(longest))] = times {
                fields.push((name, format!("p50 {middle:.1} ms, p99 {high:.1} ms, longest {longest:.1} ms")));
            }
        }
        context.out.one("report", self, &self.bench, &fields)
    }

    /// Writes it to the file that was named, or to one with the time in its name.
    pub fn write(&self, file: Option<&Path>, context: &Context) -> Outcome {
        let own =
            || PathBuf::from(format!("bench-{}-{}.json", self.bench, self.at.strftime("%Y%m%dT%H%M%SZ")));
        let file = file.map_or_else(own, Path::to_owned);
        let text = serde_json::to_string_pretty(self).expect("a report can be encoded") + "\n";
        std::fs::write(&file, text)
            .map_err(|error| Problem::because(format!("cannot write {}", file.display()), &error))?;
        let shown = file.display();
        context.out.note(&format!("report written: {shown} (compare with: laneway bench diff A B)"));
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();

        let figures = Figures::default().times("wait", times);

        let expected = [("wait_max_ms", 200.0), ("wait_p50_ms", 100.0), ("wait_p99_ms", 198.0)];
        assert_eq!(figures.0, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn a_single_time_is_all_percentiles() {
        let figures = Figures::default().times("start", vec![Duration::from_millis(7)]);

        assert_eq!(figures.get("start_p50_ms"), Some(7.0));
        assert_eq!(figures.get("start_p99_ms"), Some(7.0));
    }
}
