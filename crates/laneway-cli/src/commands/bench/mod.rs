//! `laneway bench`: a load on the store that the settings name, in a queue of its own, and what it took.
//!
//! `load.rs` enqueues, `recorder.rs` is the handler's side, `tidy.rs` leaves the store as it was, `report.rs` has the figures and compares
//! them. No other queue is touched: the queue has a random name, keeps no history and counts no statistics.

mod diff;
mod load;
mod recorder;
mod report;
mod tidy;

use std::path::PathBuf;
use std::pin::pin;

use clap::{Args, Subcommand};
use laneway::StoreHandle;
use laneway_core::{Keep, QueueName, QueueSettings};
use tokio_util::sync::CancellationToken;

use self::diff::Diff;
use self::report::{Figures, Report};
use crate::context::Context;
use crate::problem::{Exit, Outcome, Problem};

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// How many tasks a second are stored
    Enqueue(Load),
    /// How many tasks a second a worker of this process runs, and how long they wait
    Drain(Load),
    /// How long it takes until a single task is started, on an idle worker
    Latency(Load),
    /// Compares two reports
    Diff(Diff),
}

/// How large the load is.
#[derive(Args, Debug)]
pub struct Load {
    /// How many tasks: 500, 100k, 2m; 10k unless given, latency 200
    #[arg(long, value_name = "N", value_parser = number)]
    pub tasks: Option<u64>,
    /// How many run at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub slots: u32,
    /// In how many lanes of limit 1 they are; 0: in none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub lanes: u32,
    /// Where the report is written; bench-WHAT-TIME.json unless given
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Most tasks of one load.
const TASKS_MAX: u64 = 10_000_000;

/// A number of tasks as people write it.
fn number(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1_000),
        None => lower.strip_suffix('m').map_or((lower.as_str(), 1), |digits| (digits, 1_000_000)),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number
        .filter(|number| (1..=TASKS_MAX).contains(number))
        .ok_or_else(|| format!("a number from 1 to {TASKS_MAX}, such as 500, 100k or 2m"))
}

/// Where a load runs.
struct Place {
    store: StoreHandle,
    queue: QueueName,
}

impl Bench {
    /// True when it works on a store.
    pub fn operates(&self) -> bool {
        !matches!(self, Self::Diff(_))
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Enqueue(load) => load.measure("enqueue", context).await,
            Self::Drain(load) => load.measure("drain", context).await,
            Self::Latency(load) => load.measure("latency", context).await,
            Self::Diff(diff) => diff.run(context),
        }
    }
}

impl Load {
    async fn measure(&self, what: &'static str, context: &Context) -> Outcome {
        let opened = context.store_to_serve().await?;
        let queue = QueueName::new(format!("bench-{:08x}", uuid::Uuid::new_v4().as_fields().0))?;
        let settings = QueueSettings {
            keep_completed: Some(Keep::Nothing),
            statistics: Some(false),
            ..QueueSettings::default()
        };
        opened.handle.set_queue(&queue, settings).await?;
        context.out.note(&format!("bench {what} on {}, queue {queue}", opened.shown));
        let place = Place { store: opened.handle, queue };

        let interrupted = CancellationToken::new();
        let mut figures = pin!(self.figures(what, &place, &interrupted));
        let measured = tokio::select! {
            measured = &mut figures => measured,
            _ = tokio::signal::ctrl_c() => {
                interrupted.cancel();
                figures.await
            }
        };
        // However it ended: nothing of it stays in the store.
        let tidied = tidy::up(&place, context).await;
        let measured = measured?;
        tidied?;
        let Some(figures) = measured else { return Ok(Exit::Interrupted) };
        let report = Report::new(what, &place, self, figures);
        report.show(context)?;
        report.write(self.report.as_deref(), context)
    }

    /// What was measured; none when it was interrupted.
    async fn figures(
        &self,
        what: &str,
        place: &Place,
        interrupted: &CancellationToken,
    ) -> Result<Option<Figures>, Problem> {
        match what {
            "enqueue" => load::enqueue(place, self, interrupted).await,
            "drain" => load::drain(place, self, interrupted).await,
            _ => load::latency(place, self, interrupted).await,
        }
    }

    fn tasks(&self, what: &str) -> u64 {
        self.tasks.unwrap_or(if what == "latency" { 200 } else { 10_000 })
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, expected) in [("1", 1), ("500", 500), ("100k", 100_000), ("2M", 2_000_000)] {
            assert_eq!(number(text), Ok(expected));
        }
        for text in ["", "0", "k", "1.5k", "-1", "11m", "99999999999999999999", "ten"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
