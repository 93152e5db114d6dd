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
    let worker = a_worker(open(&told).await, &recorder, 10).claim_size(5).build().unwrap();
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
        let mut child = Command::new(std::env::current_exe().unwrap())
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
        let completed = tokio::time::timeout(secs(30), told).await.expect("the process should end");
        self.child.wait().await.unwrap();
        completed
    }
}

/// All start before the first task can be claimed.
pub async fn three_share(place: &Place) {
    let store = place.open().await;
    let queue = QueueName::default();
    store.pause_queue(&queue).await.unwrap();
    Client::new(Arc::clone(&store)).enqueue_many(jobs(3_000, What::Millis(20))).await.unwrap();
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
        tokio::time::timeout(secs(30), client.wait(task)).await.expect("another completes it").unwrap();
    assert_eq!((ended.state(), ended.view().crashes), (TaskState::Completed, 1));
    client.wait(behind).await.unwrap();
    assert_eq!(recorder.log().numbers(), [0, 1]);
    worker.stopped().await;
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}
