//! What the tests of this crate share: short names for ordinary things.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laneway_core::*;
use laneway_sqlite::{Clock, SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// A store in a directory of its own, with a clock that can be moved.
pub struct Fixture {
    pub store: SqliteStore,
    pub clock: Clock,
    pub directory: TempDir,
}

pub async fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::shifted();
    let options = SqliteOptions::new(directory.path().join("tasks.db")).clock(clock.clone());
    Fixture { store: SqliteStore::open(options).await.unwrap(), clock, directory }
}

impl Fixture {
    pub async fn assert_sound(&self) {
        assert_eq!(self.store.verify().await.unwrap(), Vec::<String>::new());
    }
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn queue() -> QueueName {
    QueueName::default()
}

pub fn key(text: &str) -> LaneKey {
    LaneKey::new(text).unwrap()
}

pub fn a_task() -> NewTask {
    NewTask::new(Kind::new("test.kind").unwrap(), Json::default())
}

/// A task in a lane of limit 1.
pub fn in_lane(lane: &str) -> NewTask {
    a_task().lane(Lane::new(key(lane)))
}

pub fn in_lane_of(lane: &str, limit: u32) -> NewTask {
    a_task().lane(Lane::new(key(lane)).limit(LaneLimit::at(limit).unwrap()))
}

pub fn retry(after: u64) -> Outcome {
    Outcome::Retry { after: secs(after), error: "boom".to_owned() }
}

pub fn failed() -> Outcome {
    Outcome::Failed { error: "broken".to_owned() }
}

/// A registered session that counts its advances.
pub struct Worker<'s> {
    pub store: &'s SqliteStore,
    pub session: SessionId,
    number: AtomicU64,
}

pub async fn worker(store: &SqliteStore) -> Worker<'_> {
    let worker = Worker { store, session: SessionId::random(), number: AtomicU64::new(0) };
    store.register(worker.registration()).await.unwrap();
    worker
}

impl Worker<'_> {
    pub fn registration(&self) -> Registration {
        let capacity = Capacity { slots: 10, free: 10, ..Capacity::default() };
        Registration {
            session: self.session,
            name: "test".to_owned(),
            queues: vec![queue()],
            kinds: Kinds::All,
            capacity,
        }
    }

    pub fn next(&self) -> Advance {
        Advance::new(self.session, self.number.fetch_add(1, Ordering::SeqCst) + 1)
    }

    pub async fn advance(&self, advance: Advance) -> Advanced {
        self.store.advance(advance).await.unwrap()
    }

    pub async fn claim(&self, max: u32) -> Vec<Claimed> {
        self.advance(self.next().claim(queue(), max)).await.claimed
    }

    pub async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> Verdict {
        self.advance(self.next().settle(claimed.settle(outcome))).await.settled[0].verdict
    }

    pub fn renewal(&self) -> Renewal {
        let advance_number = self.number.load(Ordering::SeqCst);
        Renewal { session: self.session, capacity: Capacity::default(), leases: vec![], advance_number }
    }
}

pub fn ids(claimed: &[Claimed]) -> Vec<i64> {
    claimed.iter().map(|claimed| claimed.task.id.0).collect()
}
