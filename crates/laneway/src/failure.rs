//! How a handler says that it did not complete.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why an attempt did not complete, and what shall happen to its task.
///
/// Any error becomes one by `?` and means: try again, by the task's retry policy. The constructors say something else.
///
/// ```
/// use std::time::Duration;
/// use laneway::Failure;
///
/// fn answer(status: u16) -> Result<(), Failure> {
///     match status {
///         200 => Ok(()),
///         404 => Err(Failure::discard("the address does not exist")),
///         423 => Err(Failure::snooze(Duration::from_secs(60))),
///         429 => Err(Failure::retry_after(Duration::from_secs(5), "too many requests")),
///         other => Err(format!("status {other}").into()),
///     }
/// }
/// assert_eq!(answer(404).unwrap_err().to_string(), "the address does not exist");
/// ```
///
/// It does not implement [`Error`] itself, so that every error can become one.
#[derive(Debug)]
pub struct Failure {
    pub(crate) what: Next,
    pub(crate) error: String,
}

/// What happens next to the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Runs again after the delay of its policy.
    Retry,
    /// Runs again after this delay; the attempt is charged.
    RetryAfter(Duration),
    /// Has failed for good.
    Discard,
    /// Runs again after this delay; nothing is charged.
    Snooze(Duration),
}

impl Failure {
    /// The attempt failed; the task runs again by its retry policy while it has attempts left.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self { what: Next::Retry, error: error.to_string() }
    }

    /// The attempt failed; the task runs again after `delay` while it has attempts left.
    pub fn retry_after(delay: Duration, error: impl fmt::Display) -> Self {
        Self { what: Next::RetryAfter(delay), error: error.to_string() }
    }

    /// The task has failed for good, whatever attempts are left.
    pub fn discard(error: impl fmt::Display) -> Self {
        Self { what: Next::Discard, error: error.to_string() }
    }

    /// Not now: the task runs again after `delay`, and no attempt is charged.
    pub fn snooze(delay: Duration) -> Self {
        Self { what: Next::Snooze(delay), error: format!("snoozed for {delay:?}") }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            text = format!("{text}: {inner}");
            source = inner.source();
        }
        Self { what: Next::Retry, error: text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_became_a_failure_tells_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("could not send")]
        struct Outer(#[source] std::io::Error);

        let failure = Failure::from(Outer(std::io::Error::other("connection reset")));

        assert_eq!(failure.to_string(), "could not send: connection reset");
        assert_eq!(failure.what, Next::Retry);
    }
}
