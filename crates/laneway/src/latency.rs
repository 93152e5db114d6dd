//! How long attempts take: the 99th percentile of the last half minute or so.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

/// How long one window collects before it becomes the previous one.
const WINDOW: Duration = Duration::from_secs(15);
/// How long an answer is used before it is computed anew.
const FRESH: Duration = Duration::from_millis(100);
/// Attempts beyond this are counted as this long: an hour.
const LONGEST_MICROS: u64 = 3_600_000_000;

/// Two rotating windows: a slow minute of yesterday says nothing about now, and a new window is not without memory.
pub(crate) struct Latency {
    current: Histogram<u64>,
    previous: Histogram<u64>,
    since: Instant,
    answer: (Instant, Duration),
}

impl Latency {
    pub(crate) fn new(now: Instant) -> Self {
        let window = || Histogram::new_with_bounds(1, LONGEST_MICROS, 2).expect("the bounds are valid");
        Self { current: window(), previous: window(), since: now, answer: (now, Duration::ZERO) }
    }

    pub(crate) fn record(&mut self, now: Instant, took: Duration) {
        self.rotate(now);
        self.current.saturating_record(took.as_micros().clamp(1, LONGEST_MICROS.into()) as u64);
    }

    /// The longest that 99 of 100 attempts took; zero when none has ended lately.
    pub(crate) fn p99(&mut self, now: Instant) -> Duration {
        if now - self.answer.0 >= FRESH {
            self.rotate(now);
            let both = self.current.value_at_quantile(0.99).max(self.previous.value_at_quantile(0.99));
            self.answer = (now, Duration::from_micros(both));
        }
        self.answer.1
    }

    fn rotate(&mut self, now: Instant) {
        if now - self.since < WINDOW {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.reset();
        if now - self.since >= 2 * WINDOW {
            self.previous.reset();
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_is_forgotten_after_two_windows() {
        let start = Instant::now();
        let mut latency = Latency::new(start);
        (0..100).for_each(|_| latency.record(start, Duration::from_secs(2)));

        let soon = start + Duration::from_secs(1);
        assert!(latency.p99(soon) >= Duration::from_secs(2));

        let later = start + WINDOW + Duration::from_secs(1);
        latency.record(later, Duration::from_millis(5));
        assert!(latency.p99(later) >= Duration::from_secs(2), "the previous window still counts");

        let much_later = later + 2 * WINDOW;
        latency.record(much_later, Duration::from_millis(5));
        assert!(latency.p99(much_later) < Duration::from_millis(6));
    }
}
