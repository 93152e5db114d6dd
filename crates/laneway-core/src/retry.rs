//! How long a failed task waits before its next attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::validate::{self, Code, InvalidInput, RETRY_STEPS_MAX};

/// When a task that failed runs again.
///
/// ```
/// use std::time::Duration;
/// use laneway_core::RetryPolicy;
///
/// let policy = RetryPolicy::Exponential { first_ms: 1_000, cap_ms: 60_000, jitter_percent: 0 };
/// assert_eq!(policy.delay(1, 0.5), Duration::from_secs(1));
/// assert_eq!(policy.delay(4, 0.5), Duration::from_secs(8));
/// assert_eq!(policy.delay(50, 0.5), Duration::from_secs(60));
///
/// let list = RetryPolicy::List { delays_ms: vec![100, 5_000] };
/// assert_eq!(list.delay(9, 0.5), Duration::from_secs(5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RetryPolicy {
    /// Doubles from `first_ms` up to `cap_ms`.
    Exponential {
        /// Delay after the first failed attempt.
        first_ms: u64,
        /// The longest delay.
        cap_ms: u64,
        /// Each delay is moved by a random share of itself, at most this much up or down. 0 to 100.
        jitter_percent: u8,
    },
    /// One delay per failed attempt; the last one is repeated.
    List {
        /// The delays, in order.
        delays_ms: Vec<u64>,
    },
}

impl Default for RetryPolicy {
    /// 1 s, 2 s, 4 s … up to an hour, each ±20 %.
    fn default() -> Self {
        Self::Exponential { first_ms: 1_000, cap_ms: 3_600_000, jitter_percent: 20 }
    }
}

impl RetryPolicy {
    /// The delay after failed attempt number `attempt` (from 1). `random` is in 0..1 and decides the jitter.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        match self {
            Self::Exponential { first_ms, cap_ms, jitter_percent } => {
                let doubled = first_ms.saturating_mul(1 << attempt.saturating_sub(1).min(62));
                let base = doubled.min(*cap_ms) as f64;
                let share = f64::from(*jitter_percent) / 100.0 * (2.0 * random - 1.0);
                Duration::from_millis((base * (1.0 + share)).round() as u64)
            }
            Self::List { delays_ms } => {
                let step = (attempt.max(1) as usize - 1).min(delays_ms.len().saturating_sub(1));
                Duration::from_millis(delays_ms.get(step).copied().unwrap_or(0))
            }
        }
    }

    /// The delay after failed attempt number `attempt`, with random jitter.
    pub fn jittered_delay(&self, attempt: u32) -> Duration {
        self.delay(attempt, fastrand::f64())
    }

    /// Checks that every delay is at most 30 days and that a list has 1 to 100 steps.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let wait = |ms: u64| validate::wait("retry", Duration::from_millis(ms));
        match self {
            Self::Exponential { first_ms, cap_ms, jitter_percent } => {
                wait(*first_ms)?;
                wait(*cap_ms)?;
                validate::in_range("retry.jitter_percent", *jitter_percent, 0..=100)
            }
            Self::List { delays_ms } if delays_ms.is_empty() || delays_ms.len() > RETRY_STEPS_MAX => {
                let problem = format!("has {} delays; allowed is 1 to {RETRY_STEPS_MAX}", delays_ms.len());
                Err(InvalidInput::new(Code::OutOfRange, "retry", problem))
            }
            Self::List { delays_ms } => delays_ms.iter().try_for_each(|ms| wait(*ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_inside_its_share() {
        let policy = RetryPolicy::Exponential { first_ms: 1_000, cap_ms: 10_000, jitter_percent: 20 };

        assert_eq!(policy.delay(1, 0.0), Duration::from_millis(800));
        assert_eq!(policy.delay(1, 1.0), Duration::from_millis(1_200));
    }

    #[test]
    fn bad_policies_are_refused() {
        let month = 31 * 24 * 3_600_000;
        for policy in [
            RetryPolicy::List { delays_ms: vec![] },
            RetryPolicy::List { delays_ms: vec![1; 101] },
            RetryPolicy::List { delays_ms: vec![month] },
            RetryPolicy::Exponential { first_ms: 1, cap_ms: month, jitter_percent: 0 },
            RetryPolicy::Exponential { first_ms: 1, cap_ms: 1, jitter_percent: 101 },
        ] {
            assert_eq!(policy.check().unwrap_err().code, Code::OutOfRange, "{policy:?}");
        }
    }
}
