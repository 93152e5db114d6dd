//! What the tests of the library share: both stores, a probe in front of them, a kind of task that records what happened.
#![allow(dead_code, unused_imports, reason = "each test target uses its own part")]

pub mod probe;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::core::{State as TaskState, Store};
use laneway::{
    Attempt, Client, Failure, Payload, State, Stop, StoreHandle, Summary, TaskId, Worker, WorkerBuilder,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use laneway_testkit::store::{PATIENCE, TestStore, secs, until};
pub use probe::Probe;

/// Makes a test of each function for either store. Each gets a store of its own, whose invariants are checked afterwards.
#[macro_export]
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* $test:ident,)*) => {
        mod on_sqlite {
            $($(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let store = laneway_testkit::sqlite::fresh().await;
                super::$test(&store).await;
                store.check().await;
            })*
        }
        mod on_postgres {
            $($(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let store = laneway_testkit::postgres::fresh().await;
                super::$test(&store).await;
                store.check().await;
            })*
        }
    };
}

/// The ordinary task of these tests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Job {
    pub n: u64,
    /// What the handler shall do.
    #[serde(default)]
    pub what: What,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum What {
    /// Ends at once.
    #[default]
    Nothing,
    /// Sleeps.
    Millis(u64),
    /// Waits until the recorder's gate opens for its number.
    Gate,
    /// Returns an error.
    Fail,
    /// Fails for good.
    Discard,
    Panic,
    /// Waits until it is told to stop, then returns an error.
    UntilStopped,
    /// Waits for ever and does not care.
    Stubborn,
}

impl Payload for Job {
    const KIND: &'static str = "job";
}

pub fn job(n: u64) -> Job {
    Job { n, what: What::Nothing }
}

pub fn jobs(n: u64, what: What) -> Vec<Job> {
    (0..n).map(|n| Job { n, what: what.clone() }).collect()
}

/// What the handlers of a test did. Clones are the same recorder.
#[derive(Clone)]
pub struct Recorder(Arc<Recorded>);

struct Recorded {
    log: Mutex<Log>,
    changed: watch::Sender<u64>,
    /// Jobs below this number may pass.
    gate: watch::Sender<u64>,
}

#[derive(Clone, Default, Debug)]
pub struct Log {
    /// Tasks in the order of their starts, with their lanes.
    pub started: Vec<(TaskId, u64, Option<String>)>,
    pub ended: Vec<(TaskId, u64)>,
    pub running: usize,
    pub peak: usize,
    pub running_in_lane: HashMap<String, usize>,
    pub peak_in_lane: HashMap<String, usize>,
    /// Attempts whose futures were dropped before they returned.
    pub dropped: usize,
}

impl Log {
    /// The numbers of the jobs in the order of their starts.
    pub fn numbers(&self) -> Vec<u64> {
        self.started.iter().map(|(_, n, _)| *n).collect()
    }

    pub fn started_more_than_once(&self) -> Vec<TaskId> {
        let mut counts = HashMap::new();
        self.started.iter().for_each(|(task, ..)| *counts.entry(*task).or_insert(0) += 1);
        counts.into_iter().filter(|(_, count)| *count > 1).map(|(task, _)| task).collect()
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self(Arc::new(Recorded {
            log: Mutex::default(),
            changed: watch::Sender::new(0),
            gate: watch::Sender::new(0),
        }))
    }
}

impl Recorder {
    pub fn log(&self) -> Log {
        self.0.log.lock().unwrap().clone()
    }

    fn change(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.0.log.lock().unwrap());
        self.0.changed.send_modify(|changes| *changes += 1);
    }

    /// Lets every job that waits at the gate go on, and all that come later.
    pub fn open_gate(&self) {
        self.open_gate_below(u64::MAX);
    }

    /// Lets jobs with lower numbers go on.
    pub fn open_gate_below(&self, n: u64) {
        self.0.gate.send_replace(n);
    }

    /// Waits until the log is as wanted. Fails after half a minute and tells what was seen.
    pub async fn until(&self, what: &str, mut condition: impl FnMut(&Log) -> bool) -> Log {
        let mut changes = self.0.changed.subscribe();
        let wanted = async {
            loop {
                let log = self.log();
                if condition(&log) {
                    return log;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wanted).await.unwrap_or_else(|_| {
            let Log { started, ended, running, peak, .. } = self.log();
            let seen =
                format!("{} started, {} ended, {running} running, peak {peak}", started.len(), ended.len());
            panic!("waited in vain until {what}; seen: {seen}")
        })
    }

    fn begin(&self, attempt: &Attempt, n: u64) -> Running {
        let lane = attempt.task().lane.as_ref().map(ToString::to_string);
        self.change(|log| {
            log.started.push((attempt.id(), n, lane.clone()));
            log.running += 1;
            log.peak = log.peak.max(log.running);
            if let Some(lane) = &lane {
                let running = log.running_in_lane.entry(lane.clone()).or_default();
                *running += 1;
                let running = *running;
                let peak = log.peak_in_lane.entry(lane.clone()).or_default();
                *peak = running.max(*peak);
            }
        });
        Running { recorder: self.clone(), task: attempt.id(), n, lane, returned: false }
    }
}

/// One attempt; notices when its future is dropped.
struct Running {
    recorder: Recorder,
    task: TaskId,
    n: u64,
    lane: Option<String>,
    returned: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (task, n, returned) = (self.task, self.n, self.returned);
        let lane = self.lane.take();
        self.recorder.change(|log| {
            log.running -= 1;
            if let Some(lane) = lane {
                *log.running_in_lane.get_mut(&lane).unwrap() -= 1;
            }
            if returned {
                log.ended.push((task, n));
            } else {
                log.dropped += 1;
            }
        });
    }
}

/// Does what the job says and records it.
pub async fn work(job: Job, attempt: Attempt, State(recorder): State<Recorder>) -> Result<(), Failure> {
    let mut running = recorder.begin(&attempt, job.n);
    let answer = perform(&job, &attempt, &recorder).await;
    running.returned = true;
    answer
}

async fn perform(job: &Job, attempt: &Attempt, recorder: &Recorder) -> Result<(), Failure> {
    match job.what {
        What::Nothing => Ok(()),
        What::Millis(millis) => {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok(())
        }
        What::Gate => {
            let mut gate = recorder.0.gate.subscribe();
            gate.wait_for(|open| job.n < *open).await.map(drop).map_err(Failure::from)
        }
        What::Fail => Err(Failure::retry("did not work")),
        What::Discard => Err(Failure::discard("never works")),
        What::Panic => panic!("job {} panics", job.n),
        What::UntilStopped => Err(Failure::retry(format!("stopped: {:?}", attempt.cancelled().await))),
        What::Stubborn => std::future::pending().await,
    }
}

/// A worker that runs in the background.
pub struct RunningWorker {
    pub stop: Stop,
    pub metrics: laneway::Metrics,
    pub tuning: laneway::Tuning,
    running: JoinHandle<Result<Summary, laneway::WorkerError>>,
}

impl RunningWorker {
    /// Waits for its end.
    pub async fn ended(self) -> Summary {
        let ended = tokio::time::timeout(PATIENCE, self.running).await;
        ended.expect("the worker should have ended").unwrap().expect("the worker should have run")
    }

    /// Stops it in an orderly way and waits for its end.
    pub async fn stopped(self) -> Summary {
        self.stop.drain();
        self.ended().await
    }

    /// Waits until a metric is as wanted.
    pub async fn until_metric(&self, name: &str, condition: impl Fn(f64) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !condition(self.metrics.value(name)) {
            let seen = self.metrics.value(name);
            assert!(tokio::time::Instant::now() < deadline, "waited in vain for {name}; it is {seen}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Starts a worker.
pub fn start(builder: WorkerBuilder) -> RunningWorker {
    let worker = builder.build().unwrap();
    let (stop, metrics, tuning) = (Stop::default(), worker.metrics(), worker.tuning());
    RunningWorker { running: tokio::spawn(worker.run_until(stop.clone())), stop, metrics, tuning }
}

/// A worker for jobs, with this many slots.
pub fn a_worker(store: impl Into<StoreHandle>, recorder: &Recorder, slots: usize) -> WorkerBuilder {
    Worker::builder(store).slots(slots).state(recorder.clone()).handle(work)
}

pub fn client(store: &TestStore) -> Client {
    Client::new(store.handle())
}

/// How many tasks are in a state.
pub async fn count(store: &dyn Store, state: TaskState) -> u64 {
    let counts = store.counts().await.unwrap();
    counts.iter().filter(|count| count.state == state).map(|count| count.tasks).sum()
}

/// Jobs of one wave in every lane: `per_lane` in each of `lanes` lanes of this limit.
pub fn wave(n: u64, lanes: usize, per_lane: usize, limit: u32) -> Vec<laneway::Draft> {
    let lanes = (0..lanes * per_lane).map(|place| format!("lane:{}", place / per_lane));
    lanes.map(|lane| laneway::task(Job { n, what: What::Gate }).lane(lane).limit(limit)).collect()
}
