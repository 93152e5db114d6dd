//! How much to claim: free slots, and less of it under pressure.
//!
//! Three signals (seed 001): too few free slots, memory in use, slow attempts. Each is a factor that is shown as a metric.
//! Memory and latency make claims smaller but not empty, so that a small worker under pressure still gets on; only when
//! memory is all but used up nothing is claimed.

use std::time::Duration;

use tokio::time::Instant;

use crate::latency::Latency;
use crate::tuning::Tuned;

/// Under this many slots a share of free slots is too coarse to be kept free.
const SLOTS_FOR_RATIO: usize = 20;
const MEMORY_FACTOR: f64 = 0.5;
const LATENCY_FACTOR: f64 = 0.7;

/// The claim limit and what made it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClaimLimit {
    /// Tasks to claim at most. 0: no slot, or no memory.
    pub tasks: usize,
    pub slots: f64,
    pub memory: f64,
    pub latency: f64,
}

/// What the signals are measured against.
pub(crate) struct Pressure {
    tuned: Tuned,
    latency: Latency,
}

impl Pressure {
    pub(crate) fn new(tuned: Tuned, now: Instant) -> Self {
        Self { tuned, latency: Latency::new(now) }
    }

    /// From now on the signals are measured against these.
    pub(crate) fn retune(&mut self, tuned: Tuned) {
        self.tuned = tuned;
    }

    /// An attempt took this long.
    pub(crate) fn record(&mut self, now: Instant, took: Duration) {
        if self.tuned.latency_threshold.is_some() {
            self.latency.record(now, took);
        }
    }

    /// The limit for a claim with `free` slots while `memory` (0 to 1) is in use.
    pub(crate) fn claim_limit(&mut self, now: Instant, free: usize, memory: f64) -> ClaimLimit {
        let slots = if self.is_saturated(free) { 0.0 } else { 1.0 };
        let memory = self.memory_factor(memory);
        let slow = self.tuned.latency_threshold.is_some_and(|threshold| self.latency.p99(now) > threshold);
        let latency = if slow { LATENCY_FACTOR } else { 1.0 };
        let wanted = (self.tuned.claim_size as f64 * memory * latency) as usize;
        let tasks = if slots == 0.0 || memory == 0.0 { 0 } else { wanted.max(1).min(free) };
        ClaimLimit { tasks, slots, memory, latency }
    }

    fn memory_factor(&self, used: f64) -> f64 {
        match used {
            used if used >= self.tuned.memory_stop => 0.0,
            used if used > self.tuned.memory_high => MEMORY_FACTOR,
            _ => 1.0,
        }
    }

    fn is_saturated(&self, free: usize) -> bool {
        let Tuned { slots, min_free_ratio, .. } = self.tuned;
        let kept_free = min_free_ratio * slots as f64;
        free == 0 || (slots >= SLOTS_FOR_RATIO && (free as f64) < kept_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(change: impl FnOnce(&mut Tuned)) -> Pressure {
        let mut tuned = Tuned::default();
        change(&mut tuned);
        Pressure::new(tuned, Instant::now())
    }

    fn limit(pressure: &mut Pressure, free: usize, memory: f64) -> usize {
        pressure.claim_limit(Instant::now() + Duration::from_secs(1), free, memory).tasks
    }

    #[test]
    fn a_claim_is_never_larger_than_the_free_slots_or_the_claim_size() {
        let mut pressure = pressure(|_| ());

        assert_eq!(limit(&mut pressure, 1_000, 0.1), 50);
        assert_eq!(limit(&mut pressure, 7, 0.1), 7);
        assert_eq!(limit(&mut pressure, 0, 0.1), 0);
    }

    #[test]
    fn memory_halves_and_latency_takes_a_third_off() {
        let mut pressure = pressure(|tuned| tuned.latency_threshold = Some(Duration::from_millis(10)));
        (0..100).for_each(|_| pressure.record(Instant::now(), Duration::from_millis(500)));

        assert_eq!(limit(&mut pressure, 1_000, 0.5), 35);
        assert_eq!(limit(&mut pressure, 1_000, 0.81), 17);

        pressure.retune(Tuned::default());
        assert_eq!(limit(&mut pressure, 1_000, 0.81), 25);
    }

    #[test]
    fn nothing_is_claimed_when_memory_is_all_but_used_up() {
        let mut pressure = pressure(|tuned| tuned.memory_stop = 0.9);

        assert_eq!(limit(&mut pressure, 1_000, 0.89), 25);
        assert_eq!(limit(&mut pressure, 1_000, 0.9), 0);
    }

    #[test]
    fn a_share_of_free_slots_is_kept_by_large_workers_only() {
        let ratio = |slots| pressure(|tuned| (tuned.slots, tuned.min_free_ratio) = (slots, 0.1));

        assert_eq!(limit(&mut ratio(1_000), 99, 0.1), 0);
        assert_eq!(limit(&mut ratio(1_000), 100, 0.1), 50);
        assert_eq!(limit(&mut ratio(2), 1, 0.1), 1);
    }

    #[test]
    fn a_small_worker_under_all_pressure_still_claims() {
        let mut pressure = pressure(|tuned| {
            tuned.slots = 2;
            tuned.claim_size = 1;
            tuned.latency_threshold = Some(Duration::from_millis(1));
        });
        (0..100).for_each(|_| pressure.record(Instant::now(), Duration::from_secs(1)));

        assert_eq!(limit(&mut pressure, 1, 0.94), 1);
    }
}
