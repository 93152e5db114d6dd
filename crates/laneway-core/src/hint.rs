//! Hints: lossy wake-ups. They only make things faster; the poll interval finds what they miss.

use tokio::sync::broadcast;

use crate::name::QueueName;

/// There may be work, or a worker has orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// In this queue; in any of them if none is named.
    pub queue: Option<QueueName>,
    /// How many workers were told. With more than one, each waits a few random milliseconds first, so that
    /// they do not all claim at once.
    pub told: u32,
    /// Not work but orders for the session that begins so: it should renew at once.
    pub orders: Option<String>,
}

impl Hint {
    /// Work anywhere, told to this process alone.
    pub fn any() -> Self {
        Self { queue: None, told: 1, orders: None }
    }

    /// Work in a queue.
    pub fn of(queue: QueueName, told: u32) -> Self {
        Self { queue: Some(queue), told, orders: None }
    }

    /// Orders for the session whose text begins like this.
    pub fn orders(session: impl Into<String>) -> Self {
        Self { orders: Some(session.into()), ..Self::any() }
    }
}

/// The sending side, held by a store.
#[derive(Clone, Debug)]
pub struct HintSender(broadcast::Sender<Hint>);

impl Default for HintSender {
    fn default() -> Self {
        Self(broadcast::Sender::new(64))
    }
}

impl HintSender {
    /// Tells every receiver. Nobody listening is fine.
    pub fn send(&self, hint: Hint) {
        // The error says that there is no receiver.
        let _ = self.0.send(hint);
    }

    /// A receiver of what is sent from now on.
    pub fn subscribe(&self) -> Hints {
        Hints(self.0.subscribe())
    }
}

/// The receiving side, held by a worker.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use laneway_core::{Hint, HintSender};
///
/// let sender = HintSender::default();
/// let mut hints = sender.subscribe();
/// sender.send(Hint::any());
/// assert_eq!(hints.next().await, Some(Hint::any()));
///
/// drop(sender);
/// assert_eq!(hints.next().await, None);
/// # });
/// ```
#[derive(Debug)]
pub struct Hints(broadcast::Receiver<Hint>);

impl Hints {
    /// The next hint; `None` once the store is gone. One that was lost because the receiver was slow arrives
    /// as a hint for all queues.
    ///
    /// # Cancel safety
    /// A dropped future loses no hint.
    pub async fn next(&mut self) -> Option<Hint> {
        match self.0.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::any()),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// Forgets what has arrived so far. A worker does so before it announces its sleep, never after.
    pub fn clear(&mut self) {
        self.0 = self.0.resubscribe();
    }

    /// True when a hint is waiting.
    pub fn is_pending(&self) -> bool {
        !self.0.is_empty()
    }
}
