//! The change feed of the store, read once per process and told to every stream.
//!
//! A store writes changes only while somebody watches, so the feed watches only while there are streams, and half a minute
//! longer, in which a client that comes back finds what it missed. States:
//!
//! ```text
//! idle ──a stream comes──▶ beginning ──the fence has passed──▶ live ──no stream for 30 s──▶ idle
//!                              ▲──────── gap, store failed ─────┘
//! ```
//!
//! Always true: while the feed is live, `recent` holds everything from `since` to the last batch told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use laneway_core::{Change, Position, Store, StoreError, Watch};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

/// Batches that a slow stream may be behind before it has a gap.
const BEHIND_MAX: usize = 256;
/// What is kept for clients that come back: batches, and tasks in them.
const RECENT_BATCHES: usize = 2_000;
const RECENT_TASKS: usize = 200_000;
/// The watch lapses when nothing is read for this long.
const KEEP: Duration = Duration::from_secs(60);
const READ_EVERY: Duration = Duration::from_millis(100);
const READ_MAX: u32 = 500;
/// How long the feed goes on without streams.
const LINGER: Duration = Duration::from_secs(30);
/// Without changes, streams are told the position this often.
const POSITION_EVERY: Duration = Duration::from_secs(5);
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// What streams are told.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// The feed begins here. Whoever followed it before has a gap.
    Begun(Position),
    /// What happened, and the position behind it.
    Batch(Arc<Batch>),
}

/// Changes that were read together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub changes: Vec<Change>,
    pub position: Position,
}

/// What a stream begins with.
pub(crate) struct Followed {
    /// What it missed; none when that is not known any more.
    pub missed: Option<Vec<Arc<Batch>>>,
    /// Where the feed is, if it is live.
    pub position: Option<Position>,
    pub news: broadcast::Receiver<News>,
}

#[derive(Default)]
struct Recent {
    /// From where on everything is in `batches`; none while the feed is not live.
    since: Option<Position>,
    position: Position,
    batches: VecDeque<Arc<Batch>>,
    tasks: usize,
}

/// The feed; streams and the task that reads it share it.
pub(crate) struct Feed {
    store: Arc<dyn Store>,
    recent: Mutex<Recent>,
    news: broadcast::Sender<News>,
    wanted: Notify,
}

impl Feed {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let (news, _) = broadcast::channel(BEHIND_MAX);
        Self { store, recent: Mutex::default(), news, wanted: Notify::new() }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stream, from behind `after` if it is given and still known.
    pub(crate) fn follow(&self, after: Option<Position>) -> Followed {
        let recent = self.recent();
        // Under the lock, so that nothing is told between the look and the subscription.
        let news = self.news.subscribe();
        self.wanted.notify_one();
        let position = recent.since.map(|_| recent.position);
        let missed = match (recent.since, after) {
            (Some(since), Some(after)) if since <= after => {
                Some(recent.batches.iter().filter(|batch| batch.position > after).cloned().collect())
            }
            _ => None,
        };
        Followed { missed, position, news }
    }

    /// Reads the feed while there are streams, until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.wanted.notified(), if self.news.receiver_count() == 0 => (),
                () = std::future::ready(()), if self.news.receiver_count() > 0 => (),
            }
            if let Err(error) = self.read(&stop).await {
                tracing::warn!(%error, "the change feed rests");
                tokio::select! {
                    () = stop.cancelled() => (),
                    () = tokio::time::sleep(RETRY_EVERY) => (),
                }
            }
            *self.recent() = Recent::default();
        }
    }

    /// One watch, from its beginning until nobody follows, there is a gap, or the store fails.
    async fn read(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let watch = self.store.watch(KEEP).await?;
        let read = self.read_watch(stop, &watch).await;
        if let Err(error) = self.store.unwatch(watch.watcher).await {
            tracing::debug!(%error, "a watch lapses by itself");
        }
        read
    }

    async fn read_watch(&self, stop: &CancellationToken, watch: &Watch) -> Result<(), StoreError> {
        self.until_ready(watch).await?;
        self.begin(watch.position);
        let (mut position, mut followed_at, mut told_at) = (watch.position, Instant::now(), Instant::now());
        while !stop.is_cancelled() {
            let read = self.store.changes(watch.watcher, position, READ_MAX).await?;
            if read.gap {
                return Ok(());
            }
            position = read.position;
            let is_full = read.changes.len() == READ_MAX as usize;
            if !read.changes.is_empty() || told_at.elapsed() >= POSITION_EVERY {
                self.tell(Batch { changes: read.changes, position });
                told_at = Instant::now();
            }
            if self.news.receiver_count() > 0 {
                followed_at = Instant::now();
            } else if followed_at.elapsed() >= LINGER {
                return Ok(());
            }
            if !is_full {
                tokio::select! {
                    () = stop.cancelled() => (),
                    () = tokio::time::sleep(READ_EVERY) => (),
                }
            }
        }
        Ok(())
    }

    /// Waits until every transaction that may not have seen the watch has ended.
    async fn until_ready(&self, watch: &Watch) -> Result<(), StoreError> {
        let mut pause = Duration::from_millis(1);
        while !self.store.fence_passed(watch.fence).await? {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(READ_EVERY);
        }
        Ok(())
    }

    fn begin(&self, position: Position) {
        let mut recent = self.recent();
        *recent = Recent { since: Some(position), position, ..Recent::default() };
        // Nobody listening is no mistake.
        let _ = self.news.send(News::Begun(position));
    }

    fn tell(&self, batch: Batch) {
        let mut recent = self.recent();
        recent.position = batch.position;
        let batch = Arc::new(batch);
        if !batch.changes.is_empty() {
            recent.keep(Arc::clone(&batch));
        }
        let _ = self.news.send(News::Batch(batch));
    }
}

impl Recent {
    fn keep(&mut self, batch: Arc<Batch>) {
        self.tasks += batch.tasks();
        self.batches.push_back(batch);
        while self.batches.len() > RECENT_BATCHES || self.tasks > RECENT_TASKS {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.tasks -= oldest.tasks();
            self.since = Some(oldest.position);
        }
    }
}

impl Batch {
    fn tasks(&self) -> usize {
        self.changes.iter().map(|change| change.tasks.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64, tasks: usize) -> Arc<Batch> {
        let change = Change {
            at: jiff::Timestamp::UNIX_EPOCH,
            queue: laneway_core::QueueName::default(),
            state: laneway_core::State::Pending,
            deleted: false,
            tasks: vec![(laneway_core::TaskId(1), laneway_core::Kind::new("work").unwrap()); tasks],
        };
        Arc::new(Batch { changes: vec![change], position: Position { tx: 0, seq } })
    }

    #[test]
    fn what_is_kept_for_those_who_come_back_is_bounded() {
        let mut recent = Recent { since: Some(Position::default()), ..Recent::default() };
        for seq in 1..=5 {
            recent.keep(batch(seq, RECENT_TASKS / 2));
        }

        assert_eq!(recent.batches.len(), 2);
        assert_eq!(recent.since, Some(Position { tx: 0, seq: 3 }));
    }
}
