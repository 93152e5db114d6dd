//! Workers in processes of their own. Each is this test program started again: [`worker_process`] finds its orders in the
//! environment and runs until its standard input is closed.

use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use laneway::core::{QueueName, State as TaskState, Store};
use laneway::{Client, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Stop};
use laneway_testkit::cluster::{Cluster, Database};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::*;

/// If this is set, the worker stops by signals, with a grace time of so many milliseconds.
const GRACE: &str = "LANEWAY_TEST_GRACE";
/// Where the processes meet: `postgres <address>` or `sqlite <file>`.
const STORE: &str = "LANEWAY_TEST_STORE";

pub enum Place {
    Postgres(Database),
    Sqlite(tempfile::TempDir),
}

impl Place {
    pub async fn postgres() -> Self {
        Self::Postgres(Cluster::shared().await.database().await.unwrap())
    }

    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn told(&self) -> String {
        match self {
            Self::Postgres(database) => format!("postgres {}", database.url),
            Self::Sqlite(directory) => format!("sqlite {}", file(directory).display()),
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        open(&self.told()).await
    }

    /// Makes all sessions look as if they had been silent for long.
    async fn let_time_pass(&self) {
        match self {
            Self::Postgres(database) => {
                let age = "update laneway.worker set seen_at = seen_at - interval '31 seconds'";
                database.connect().await.unwrap().execute(age, &[]).await.unwrap();
            }
            Self::Sqlite(directory) => {
                let path = file(directory);
                let age = "update worker set seen_at = seen_at - 31000000";
                let aged = move || rusqlite::Connection::open(path)?.execute(age, []);
                tokio::task::spawn_blocking(aged).await.unwrap().unwrap();
            }
        }
    }
}

fn file(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("laneway.db")
}

async fn open(told: &str) -> Arc<dyn Store> {
    match told.split_once(' ').unwrap() {
        ("postgres", url) => {
            Arc::new(PostgresStore::open(PostgresOptions::new(url).pool_size(3)).await.unwrap())
        }
        (_, path) => Arc::new(SqliteStore::open(SqliteOptions::new(path)).await.unwrap()),
    }
}

/// Not a test but a worker, when the environment says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Ok(told) = std::env::var(STORE) else { return };
    let (stop, recorder) = (Stop::default(), Recorder::default());
    let builder = a_worker(open(&told).await, &recorder, 10).claim_size(5);
    if let Ok(grace) = std::env::var(GRACE) {
        let grace = std::time::Duration::from_millis(grace.parse().unwrap());
        let summary = builder.grace(grace).build().unwrap().run().await.unwrap();
        println!("\nstopped: {summary}");
        return;
    }
    let worker = builder.build().unwrap();
    let told_to_stop = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told_to_stop.drain();
    });
    let summary = worker.run_until(stop).await.unwrap();
    println!("\ncompleted {}", summary.completed);
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(place: &Place) -> Self {
        Self::spawn(place, Command::new(std::env::current_exe().unwrap()))
    }

    /// One that stops by signals.
    fn with_grace(place: &Place, millis: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(GRACE, millis.to_string());
        Self::spawn(place, command)
    }

    /// Sends it a signal: `TERM` or `INT`.
    async fn signal(&self, signal: &str) {
        let process = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Waits for its end, which must be in order, and returns what it says about it.
    async fn summary(mut self) -> String {
        let told = async {
            let mut summary = String::new();
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(told) = line.strip_prefix("stopped: ") {
                    summary = told.to_owned();
                }
            }
            assert!(self.child.wait().await.unwrap().success());
            summary
        };
        tokio::time::timeout(PATIENCE, told).await.expect("the process should end")
    }

    fn spawn(place: &Place, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "processes::worker_process", "--nocapture"])
            .env(STORE, place.told())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Stops it in an orderly way, and returns how many tasks it has completed.
    async fn stopped(mut self) -> u64 {
        drop(self.child.stdin.take());
        let told = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(completed) = line.strip_prefix("completed ") {
                    return completed.parse().unwrap();
                }
            }
            panic!("the process ended without telling what it has done");
        };
        let completed = tokio::time::timeout(PATIENCE, told).await.expect("the process should end");
        self.child.wait().await.unwrap();
        completed
    }
}

/// All start before the first task can be claimed. The whole takes six seconds or more, so that a moment in which one of the processes
/// gets no processor is a small part of it.
pub async fn three_share(place: &Place) {
    let store = place.open().await;
    let queue = QueueName::default();
    store.pause_queue(&queue).await.unwrap();
    Client::new(Arc::clone(&store)).enqueue_many(jobs(3_000, What::Millis(60))).await.unwrap();
    let processes: Vec<_> = (0..3).map(|_| Process::start(place)).collect();
    until("all are registered", async || store.workers().await.unwrap().len() == 3).await;

    store.resume_queue(&queue).await.unwrap();
    until("all tasks have completed", async || count(&*store, TaskState::Completed).await == 3_000).await;

    let mut shares = vec![];
    for process in processes {
        shares.push(process.stopped().await);
    }
    assert_eq!(shares.iter().sum::<u64>(), 3_000);
    assert!(shares.iter().all(|share| (850..=1_150).contains(share)), "{shares:?}");
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

pub async fn a_killed_workers_task_is_completed_by_another(place: &Place) {
    let store = place.open().await;
    let client = Client::new(Arc::clone(&store));
    let task = client.enqueue(Job { n: 0, what: What::Gate }).lane("workflow").await.unwrap();
    let behind = client.enqueue(job(1)).lane("workflow").await.unwrap();
    let mut doomed = Process::start(place);
    until("it runs in the process", async || {
        store.get(task.id).await.unwrap().unwrap().state == TaskState::Leased
    })
    .await;

    doomed.child.kill().await.unwrap();
    place.let_time_pass().await;
    let recorder = Recorder::default();
    recorder.open_gate();
    let worker = start(a_worker(Arc::clone(&store), &recorder, 10));

    let ended =
        tokio::time::timeout(PATIENCE, client.wait(task)).await.expect("another completes it").unwrap();
    assert_eq!((ended.state(), ended.view().crashes), (TaskState::Completed, 1));
    client.wait(behind).await.unwrap();
    assert_eq!(recorder.log().numbers(), [0, 1]);
    worker.stopped().await;
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// A task that runs in a process of its own.
async fn a_running_task(place: &Place, what: What, grace: u64) -> (Arc<dyn Store>, Process, laneway::TaskId) {
    let store = place.open().await;
    let task = Client::new(Arc::clone(&store)).enqueue(Job { n: 0, what }).lane("a").await.unwrap().id;
    let process = Process::with_grace(place, grace);
    until("it runs in the process", async || {
        store.get(task).await.unwrap().unwrap().state == TaskState::Leased
    })
    .await;
    (store, process, task)
}

async fn is_back_uncharged(store: &dyn Store, task: laneway::TaskId) {
    let view = store.get(task).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempt, view.crashes), (TaskState::Pending, 0, 0));
    assert_eq!(store.workers().await.unwrap(), []);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

async fn the_first_signal_lets_attempts_finish(place: &Place, signal: &str) {
    let (store, process, task) = a_running_task(place, What::Millis(1_000), 30_000).await;

    process.signal(signal).await;

    let summary = process.summary().await;
    assert!(summary.starts_with("1 completed, 0 failed in "), "{summary}");
    assert_eq!(store.get(task).await.unwrap().unwrap().state, TaskState::Completed);
    assert_eq!(store.workers().await.unwrap(), []);
}

async fn what_is_unfinished_after_the_grace_time_is_given_back_uncharged(place: &Place, signal: &str) {
    let (store, process, task) = a_running_task(place, What::UntilStopped, 100).await;

    process.signal(signal).await;

    let summary = process.summary().await;
    assert!(summary.starts_with("0 completed, 0 failed, 1 given back in "), "{summary}");
    is_back_uncharged(&*store, task).await;
}

/// The grace time would last longer than the test.
async fn the_second_signal_stops_at_once(place: &Place, signal: &str) {
    let (store, process, task) = a_running_task(place, What::Stubborn, 600_000).await;

    process.signal(signal).await;
    until("it drains", async || store.workers().await.unwrap().iter().any(|worker| worker.capacity.draining))
        .await;
    process.signal(signal).await;

    let summary = process.summary().await;
    assert!(summary.starts_with("0 completed, 0 failed, 1 given back in "), "{summary}");
    is_back_uncharged(&*store, task).await;
}

macro_rules! signals {
    ($($test:ident,)*) => {
        mod sigterm_on_postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Place::postgres().await, "TERM").await;
            })*
        }
        mod sigint_on_sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Place::sqlite(), "INT").await;
            })*
        }
        mod sigterm_on_sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Place::sqlite(), "TERM").await;
            })*
        }
    };
}

signals! {
    the_first_signal_lets_attempts_finish,
    what_is_unfinished_after_the_grace_time_is_given_back_uncharged,
    the_second_signal_stops_at_once,
}
