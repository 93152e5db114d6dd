//! How the demo goes, and how it went.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use laneway::StoreHandle;
use laneway_core::QueueName;
use serde::Serialize;

use super::checks::Checks;
use crate::context::Context;
use crate::output::text;
use crate::problem::Problem;

/// How often a pipe gets a line.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Shows how it goes: a bar on a terminal, a line a second in a pipe.
pub struct Live {
    bar: ProgressBar,
    expected: u64,
    last_line: Instant,
}

impl Live {
    pub fn new(expected: u64, context: &Context) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len}  {msg}")
            .expect("a valid template");
        let watched = context.out.is_watched();
        let bar = if watched { ProgressBar::new(expected).with_style(style) } else { ProgressBar::hidden() };
        Self { bar, expected, last_line: Instant::now() }
    }

    pub fn show(&mut self, checks: &Checks, context: &Context) {
        let (ended, running, failed, violations) = checks.now();
        let message = format!("{running} running  {failed} failed attempts  {violations} violations");
        if !self.bar.is_hidden() {
            self.bar.set_position(ended);
            self.bar.set_message(message);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            context.out.note(&format!(
                "{}/{} ended  {message}",
                text::number(ended),
                text::number(self.expected)
            ));
        }
    }

    pub fn finish(&mut self, checks: &Checks, context: &Context) {
        self.last_line -= LINE_EVERY.min(self.last_line.elapsed());
        self.show(checks, context);
        self.bar.finish_and_clear();
    }
}

/// How it went.
#[derive(Serialize)]
pub struct Report {
    tasks: u64,
    ended: u64,
    lost: u64,
    attempts: u64,
    retries: u64,
    order_violations: u64,
    limit_violations: u64,
    family_violations: u64,
    enqueued_per_s: u64,
    ended_per_s: u64,
    /// From the start of the command until the first task ran.
    first_start_ms: f64,
    wait_ms: Quantiles,
    run_ms: Quantiles,
    seconds: f64,
}

#[derive(Serialize)]
struct Quantiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Quantiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            let millis = times
                .get(place.min(times.len().saturating_sub(1)))
                .map_or(0.0, |time| time.as_secs_f64() * 1e3);
            (millis * 10.0).round() / 10.0
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }

    fn shown(&self) -> String {
        format!("p50 {} ms   p95 {} ms   p99 {} ms", self.p50, self.p95, self.p99)
    }
}

/// What the demo has measured besides its handlers.
pub struct Course {
    /// Tasks that were expected to end.
    pub tasks: u64,
    /// Of those, tasks that have not.
    pub open: u64,
    /// When the command began.
    pub began: Instant,
    pub enqueued_in: Duration,
    pub took: Duration,
}

impl Report {
    pub fn new(checks: &Checks, course: Course) -> Self {
        let Course { tasks, open, began, enqueued_in, took } = course;
        let seen = checks.seen();
        let first_start = seen.first_start.map_or(took, |first| first.duration_since(began));
        let per_second = |count: u64, time: Duration| (count as f64 / time.as_secs_f64().max(0.001)) as u64;
        Self {
            tasks,
            ended: seen.ended,
            lost: open,
            attempts: seen.attempts,
            retries: seen.failed,
            order_violations: seen.out_of_order,
            limit_violations: seen.over_limit,
            family_violations: seen.too_early,
            enqueued_per_s: per_second(tasks, enqueued_in),
            ended_per_s: per_second(seen.ended, took),
            first_start_ms: (first_start.as_secs_f64() * 10_000.0).round() / 10.0,
            wait_ms: Quantiles::of(seen.waits),
            run_ms: Quantiles::of(seen.runs),
            seconds: (took.as_secs_f64() * 100.0).round() / 100.0,
        }
    }

    /// True when nothing was lost and no rule was broken.
    pub fn is_right(&self) -> bool {
        self.ended >= self.tasks && self.lost + self.violations() == 0
    }

    fn violations(&self) -> u64 {
        self.order_violations + self.limit_violations + self.family_violations
    }

    pub fn show(
        &self,
        store: &StoreHandle,
        queue: &QueueName,
        is_temporary: bool,
        context: &Context,
    ) -> Result<(), Problem> {
        let fields = [
            ("store", store.name().to_owned()),
            ("tasks", format!("{} ended, {} lost", text::number(self.ended), self.lost)),
            (
                "attempts",
                format!("{}, of which {} failed and were retried", text::number(self.attempts), self.retries),
            ),
            ("enqueue", format!("{} tasks/s", text::number(self.enqueued_per_s))),
            ("throughput", format!("{} tasks/s over {:.1} s", text::number(self.ended_per_s), self.seconds)),
            ("first start", format!("{} ms after the command began", self.first_start_ms)),
            ("wait", self.wait_ms.shown()),
            ("run", self.run_ms.shown()),
            ("order", format!("{} violations in ordered lanes", self.order_violations)),
            ("limits", format!("{} violations in limited lanes", self.limit_violations)),
            (
                "families",
                format!("{} violations: follow-ups before all children had ended", self.family_violations),
            ),
        ];
        context.out.one("demo", self, queue.as_str(), &fields)?;
        context.out.note(&next_steps(queue, is_temporary));
        Ok(())
    }
}

fn next_steps(queue: &QueueName, is_temporary: bool) -> String {
    let look = match is_temporary {
        true => "  laneway demo --store postgres://localhost/app   the same on PostgreSQL".to_owned(),
        false => format!(
            "  laneway tasks ls --where queue:{queue}   what the demo left behind, with the same --store"
        ),
    };
    format!(
        "\nnext:\n{look}\n  laneway dev                                     a store, a worker and HTTP in this directory\n  laneway enqueue echo '\"hello\"'                  a task for it"
    )
}
