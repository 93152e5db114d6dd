//! Carries bulks out, step by step, until they are done or somebody stops them.
//!
//! A bulk is an object of the store: whoever dies leaves it where it was. So every server goes on with what it finds
//! unfinished, at its start and every few seconds, and two that do so at once do no harm.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use laneway_core::validate::PAGE_MAX;
use laneway_core::{BulkId, BulkPage, BulkState, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Bulks that wait for the driver at most; one that finds no room is found at the next look.
const WAITING_MAX: usize = 1_000;
/// How often the store is looked at for unfinished bulks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a bulk rests after the store has failed.
const REST: Duration = Duration::from_secs(1);

/// Hands bulks to the driver. The driver holds the other end; when it is gone, the server stops anyway.
#[derive(Clone)]
pub(crate) struct Bulks(mpsc::Sender<BulkId>);

impl Bulks {
    /// Has a bulk carried out.
    pub(crate) fn drive(&self, bulk: BulkId) {
        if self.0.try_send(bulk).is_err() {
            tracing::debug!(bulk = bulk.0, "the driver of bulks is busy; it finds this one later");
        }
    }
}

/// Runs bulks.
pub(crate) struct Driver {
    store: Arc<dyn Store>,
    waiting: mpsc::Receiver<BulkId>,
}

impl Driver {
    pub(crate) fn new(store: Arc<dyn Store>) -> (Bulks, Self) {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        (Bulks(sender), Self { store, waiting })
    }

    /// Runs until `stop`. A step that is under way is finished.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut running = JoinSet::new();
        let mut driven = HashSet::new();
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            let found = tokio::select! {
                () = stop.cancelled() => break,
                Some(bulk) = self.waiting.recv() => vec![bulk],
                Some(Ok(ended)) = running.join_next() => {
                    driven.remove(&ended);
                    continue;
                }
                _ = look.tick() => self.unfinished().await,
            };
            for bulk in found {
                if driven.insert(bulk) {
                    running.spawn(drive(Arc::clone(&self.store), bulk, stop.clone()));
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn unfinished(&self) -> Vec<BulkId> {
        let running = BulkPage { state: Some(BulkState::Running), limit: PAGE_MAX, ..BulkPage::default() };
        let bulks = self.store.bulks(running).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot look for bulks");
            vec![]
        });
        bulks.iter().map(|bulk| bulk.id).collect()
    }
}

/// Takes the steps of one bulk.
async fn drive(store: Arc<dyn Store>, bulk: BulkId, stop: CancellationToken) -> BulkId {
    while !stop.is_cancelled() {
        let pause = match store.bulk_step(bulk).await {
            Ok(Some(after)) if after.state == BulkState::Running => after.pause(),
            Ok(_) => break,
            Err(error) => {
                tracing::warn!(bulk = bulk.0, %error, "a bulk rests");
                REST
            }
        };
        tokio::select! {
            () = stop.cancelled() => (),
            () = tokio::time::sleep(pause) => (),
        }
    }
    bulk
}
