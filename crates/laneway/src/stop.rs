//! How a worker is told to stop.

use tokio_util::sync::CancellationToken;

/// Stops a worker: first in an orderly way, then, if that takes too long, now. Clones stop the same worker.
///
/// ```
/// use laneway::Stop;
///
/// let stop = Stop::default();
/// stop.again(); // as the first SIGTERM does: what runs may finish within the grace time
/// stop.again(); // as the second one does: what runs is dropped and given back
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stop {
    drain: CancellationToken,
    now: CancellationToken,
}

impl Stop {
    /// Takes nothing new; what runs may finish within the grace time.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Drops what runs and gives it back.
    pub fn now(&self) {
        self.now.cancel();
    }

    /// The next step: the first call drains, the second one stops now.
    pub fn again(&self) {
        if self.drain.is_cancelled() { self.now() } else { self.drain() }
    }

    pub(crate) async fn drain_asked(&self) {
        self.drain.cancelled().await;
    }

    pub(crate) async fn now_asked(&self) {
        self.now.cancelled().await;
    }
}

impl From<CancellationToken> for Stop {
    /// Cancelling the token drains.
    fn from(drain: CancellationToken) -> Self {
        Self { drain, now: CancellationToken::new() }
    }
}

/// Resolves with the next SIGTERM or SIGINT (Ctrl-C).
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
