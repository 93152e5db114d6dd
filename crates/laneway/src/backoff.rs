//! Pauses between tries while the store does not answer.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(10);

/// Grows with every failure in a row and is forgotten with the first success. Jittered, so that a fleet does not return
/// in step.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// When the first of the failures was, how many there were, and when the next try may be.
    state: Option<(Instant, u32, Instant)>,
}

impl Backoff {
    /// Takes note of a failure, and returns how long to pause.
    pub(crate) fn failed(&mut self, now: Instant) -> Duration {
        let (since, failures, _) = self.state.unwrap_or((now, 0, now));
        let longest = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
        let pause = longest.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.state = Some((since, failures + 1, now + pause));
        pause
    }

    /// Takes note of a success, and returns how long there was none.
    pub(crate) fn succeeded(&mut self) -> Option<Duration> {
        self.state.take().map(|(since, ..)| since.elapsed())
    }

    /// When the next try may be, if not now.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        self.state.map(|(_, _, until)| until).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_ten_seconds_and_vary() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());

        let pauses: Vec<_> = (0..12).map(|_| backoff.failed(now)).collect();

        assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST, "{pauses:?}");
        assert!(pauses[11] >= LONGEST / 2 && pauses[11] <= LONGEST, "{pauses:?}");
        assert!(backoff.until(now).is_some());
        assert!(backoff.succeeded().is_some() && backoff.until(now).is_none());
    }
}
