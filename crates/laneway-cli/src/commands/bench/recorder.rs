//! The handler of a load: it does nothing but to note when it was called.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use laneway::Payload;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// A task of a load.
#[derive(Serialize, Deserialize)]
pub struct Item {
    pub n: u64,
}

impl Payload for Item {
    const KIND: &'static str = "bench.item";
}

/// When tasks were stored and started.
#[derive(Default)]
pub struct Recorder {
    times: Mutex<Times>,
    /// How many have started.
    started: watch::Sender<u64>,
}

#[derive(Default)]
struct Times {
    /// By the number of the task.
    stored: Vec<Instant>,
    waits: Vec<Duration>,
    last_start: Option<Instant>,
}

impl Recorder {
    /// These many more tasks are about to be stored.
    pub fn storing(&self, tasks: usize) {
        let mut times = self.times();
        let all = times.stored.len() + tasks;
        times.stored.resize(all, Instant::now());
    }

    /// A task has started. A second attempt of one does not count.
    pub fn started(&self, item: &Item) {
        let now = Instant::now();
        let mut times = self.times();
        if let Some(stored) = times.stored.get(item.n as usize).copied() {
            times.waits.push(now.duration_since(stored));
            times.last_start = Some(now);
        }
        drop(times);
        self.started.send_modify(|started| *started += 1);
    }

    /// Resolves when so many have started.
    pub async fn until_started(&self, tasks: u64) {
        let mut started = self.started.subscribe();
        started.wait_for(|started| *started >= tasks).await.expect("we hold the sender");
    }

    /// How long tasks waited.
    pub fn waits(&self) -> Vec<Duration> {
        self.times().waits.clone()
    }

    /// Begins to note waits anew.
    pub fn forget_waits(&self) {
        self.times().waits.clear();
    }

    /// When the last one started.
    pub fn last_start(&self) -> Option<Instant> {
        self.times().last_start
    }

    fn times(&self) -> std::sync::MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
