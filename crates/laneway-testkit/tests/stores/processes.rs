//! Real processes, killed for real. Workers (`test-worker`) run tasks while some of them get SIGKILL at random moments;
//! the survivors sweep. Nothing is lost, every task ends once, order holds, and each death is counted against what was
//! running.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use laneway_core::{Children, LeaseId, SessionId, State, Store, TaskId, TaskView, Verdict};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_sqlite::{SqliteOptions, SqliteStore};
use laneway_testkit::checker::{Event, History, Rules};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::store::{PATIENCE, a_task, ids_of, soon, until};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::support::until_somebody_waits;

const LANES: usize = 20;
const ROUNDS: usize = 25;
const LONERS: usize = 100;
const WORKERS: usize = 3;
const KILLS: usize = 8;

/// Where the processes meet.
#[async_trait]
trait Place: Send + Sync {
    /// The arguments of `test-worker`.
    fn arguments(&self) -> [String; 2];

    async fn open(&self) -> Arc<dyn Store>;

    /// Makes a session that is dead look as if it had been silent for long; the living keep their time.
    async fn let_time_pass_for(&self, session: SessionId);
}

struct Postgres(Database);

#[async_trait]
impl Place for Postgres {
    fn arguments(&self) -> [String; 2] {
        ["postgres".into(), self.0.url.clone()]
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::open(PostgresOptions::new(&self.0.url).pool_size(2)).await.unwrap())
    }

    async fn let_time_pass_for(&self, session: SessionId) {
        let age = "update laneway.worker set seen_at = seen_at - interval '31 seconds' where session = $1";
        assert_eq!(self.0.connect().await.unwrap().execute(age, &[&session.0]).await.unwrap(), 1);
    }
}

struct Sqlite(tempfile::TempDir);

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.0.path().join("laneway.db")
    }
}

#[async_trait]
impl Place for Sqlite {
    fn arguments(&self) -> [String; 2] {
        ["sqlite".into(), self.path().to_str().unwrap().into()]
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(SqliteOptions::new(self.path())).await.unwrap())
    }

    async fn let_time_pass_for(&self, session: SessionId) {
        let path = self.path();
        let aged = tokio::task::spawn_blocking(move || {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(PATIENCE).unwrap();
            let age = "update worker set seen_at = seen_at - 31000000 where session = ?1";
            connection.execute(age, [session.0.as_bytes().as_slice()]).unwrap()
        });
        assert_eq!(aged.await.unwrap(), 1);
    }
}

/// A process, and what it has told.
struct Worker {
    process: Child,
    session: SessionId,
    /// Reads until the process is gone.
    reader: JoinHandle<()>,
    told: Arc<Told>,
}

/// What one process told last.
#[derive(Default)]
struct Told {
    /// Attempts that run, by lease and task.
    running: Mutex<Vec<(LeaseId, TaskId)>>,
}

impl Worker {
    async fn start(place: &dyn Place, history: &Arc<History>) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_test-worker"))
            .args(place.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first =
            soon("a worker's first line", lines.next_line()).await.unwrap().expect("it tells its session");
        let session = SessionId(first.split(' ').nth(2).unwrap().parse().unwrap());
        let told = Arc::new(Told::default());
        let reader = tokio::spawn(read(lines, session, Arc::clone(history), Arc::clone(&told)));
        Self { process, session, reader, told }
    }

    fn runs_something(&self) -> bool {
        !self.told.running.lock().unwrap().is_empty()
    }

    /// Kills it and returns what it surely ran: claimed, and no settle on its way.
    async fn kill(mut self, history: &History) -> Vec<TaskId> {
        self.process.kill().await.unwrap();
        self.reader.await.unwrap();
        history.record_at(now(), Event::Stopped { session: self.session });
        self.told.running.lock().unwrap().iter().map(|(_, task)| *task).collect()
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

async fn read(
    mut lines: Lines<BufReader<ChildStdout>>,
    session: SessionId,
    history: Arc<History>,
    told: Arc<Told>,
) {
    while let Some(line) = lines.next_line().await.unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        let at = Duration::from_micros(words[0].parse().unwrap());
        let lease = LeaseId(words[2].parse().unwrap());
        let task = TaskId(words[3].parse().unwrap());
        let mut running = told.running.lock().unwrap();
        let event = match words[1] {
            "claimed" => {
                running.push((lease, task));
                let lane = (words[4] != "-").then(|| words[4].to_owned());
                Event::Claimed { session, lease, task, lane }
            }
            "settling" => {
                running.retain(|one| *one != (lease, task));
                Event::Settling { lease, task, ends: true }
            }
            "settled" => {
                let verdict = if words[4] == "completed" { Verdict::Completed } else { Verdict::Stale };
                Event::Settled { lease, task, verdict }
            }
            other => panic!("a worker told `{other}`"),
        };
        history.record_at(at, event);
    }
}

async fn killed_workers_lose_nothing(place: &dyn Place) {
    let store = place.open().await;
    let history = History::shared();
    let mut tasks = vec![];
    for _ in 0..ROUNDS {
        tasks.extend((0..LANES).map(|lane| a_task().lane(&lane.to_string()).into()));
    }
    tasks.extend((0..LONERS).map(|_| a_task().into()));
    let lanes: Vec<_> = tasks.iter().map(|task: &laneway_core::NewTask| task.lane.clone()).collect();
    let ids = ids_of(&store.enqueue_many(tasks).await.unwrap());
    for (id, lane) in std::iter::zip(&ids, lanes) {
        history.enqueued(*id, lane.as_ref().map(|lane| lane.key.as_str()));
    }

    let mut workers = vec![];
    for _ in 0..WORKERS {
        workers.push(Worker::start(place, &history).await);
    }
    let mut deaths: HashMap<TaskId, u32> = HashMap::new();
    let mut hits = 0; // kills that met something running
    let mut kills = 0;
    while kills < KILLS || hits < 2 {
        kills += 1;
        let victim = workers.swap_remove(fastrand::usize(..workers.len()));
        until("the victim runs something", async || victim.runs_something()).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..6_000))).await;
        let session = victim.session;
        let interrupted = victim.kill(&history).await;
        hits += usize::from(!interrupted.is_empty());
        for task in interrupted {
            *deaths.entry(task).or_default() += 1;
        }
        place.let_time_pass_for(session).await;
        workers.push(Worker::start(place, &history).await);
    }
    let everything = tokio::time::timeout(PATIENCE, async {
        while !is_done(&*store, ids.len()).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if everything.await.is_err() {
        panic!("not all ended: {:?}, {:?}", store.counts().await, store.verify().await);
    }
    for worker in workers {
        worker.kill(&history).await;
    }

    for (task, deaths) in deaths {
        let view = store.get(task).await.unwrap().unwrap();
        assert!(view.crashes >= deaths, "task {task} saw {deaths} deaths, {} were counted", view.crashes);
    }
    for task in ids {
        let view = store.get(task).await.unwrap().unwrap();
        if view.state == State::Failed {
            // Some sweep has ended it, at a time that nobody has told.
            assert_eq!(view.crashes, 3, "task {task} failed without a reason");
            history.record_at(Duration::ZERO, Event::MayEnd { task });
        }
    }
    history.check(&*store, &Rules::ordered()).await;
}

const PARENTS: usize = 12;
const CHILDREN: usize = 20;

/// Workers die while they fan out, run children, add siblings and fan in. Every family ends, with as many children as it was given:
/// nothing is spawned twice, and no parent waits for a child that has ended. Every fifth child adds a sibling, unless it fails.
async fn killed_workers_leave_no_family_behind(place: &dyn Place) {
    let store = place.open().await;
    let history = History::shared();
    let parent = || a_task().kind("parent").payload(&CHILDREN.to_string()).into();
    let parents = ids_of(&store.enqueue_many((0..PARENTS).map(|_| parent()).collect()).await.unwrap());

    let mut workers = vec![];
    for _ in 0..WORKERS {
        workers.push(Worker::start(place, &history).await);
    }
    for _ in 0..KILLS {
        let victim = workers.swap_remove(fastrand::usize(..workers.len()));
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..20_000))).await;
        let session = victim.session;
        victim.kill(&history).await;
        place.let_time_pass_for(session).await;
        workers.push(Worker::start(place, &history).await);
    }
    let everything = tokio::time::timeout(PATIENCE, async {
        while store.counts().await.unwrap().iter().any(|count| !count.state.has_ended()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if everything.await.is_err() {
        panic!("not all ended: {:?}, {:?}", store.counts().await, store.verify().await);
    }
    for worker in workers {
        worker.kill(&history).await;
    }

    for parent in parents {
        let view = store.get(parent).await.unwrap().unwrap();
        let Some(family) = view.family else {
            assert_eq!(view.crashes, 3, "only a parent whose workers all died has spawned nothing");
            continue;
        };
        let children = store.children(Children::of(parent)).await.unwrap();
        let failed: Vec<_> = children.iter().filter(|child| child.state == State::Failed).collect();
        assert!(failed.iter().all(|child| child.crashes == 3), "a child fails only with three workers");
        let childless = failed.iter().filter(|child| adds_a_sibling(child)).count();
        let total = CHILDREN + CHILDREN / 5 - childless;
        assert_eq!(children.len(), total, "children of {parent}");
        let expected = (total as u64, 0, failed.len() as u64);
        assert_eq!((family.total, family.open, family.failed), expected, "family of {parent}");
        let expected = if failed.is_empty() { State::Completed } else { State::Failed };
        assert_eq!(view.state, expected);
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// A large family goes into the database row by row in the transaction that settles its parent. A worker that dies half-way through
/// has spawned nothing, and the next one spawns each child once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_in_the_middle_of_a_large_fan_out_has_spawned_nothing() {
    const LARGE: usize = 2_500;
    let database = Cluster::shared().await.database().await.unwrap();
    let gate = database.connect().await.unwrap();
    gate.batch_execute(
        "create function public.wait_at_gate() returns trigger language plpgsql as $$
         begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
         create trigger gate before insert on laneway.task for each row
             when (new.kind = 'child' and new.payload::text = '1200') execute function public.wait_at_gate();
         select pg_advisory_lock(1)",
    )
    .await
    .unwrap();
    let place = Postgres(database);
    let (store, history) = (place.open().await, History::shared());
    let parent = store.enqueue(a_task().kind("parent").payload(&LARGE.to_string()).into()).await.unwrap().id;

    let doomed = Worker::start(&place, &history).await;
    until_somebody_waits(&place.0).await;
    let session = doomed.session;
    doomed.kill(&history).await;
    gate.batch_execute("select pg_advisory_unlock(1)").await.unwrap();
    let others = "select exists (select from pg_locks where locktype = 'advisory')";
    until("the dead worker's transaction is over", async || {
        !gate.query_one(others, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await;
    assert_eq!(
        store.counts().await.unwrap().iter().map(|count| count.tasks).sum::<u64>(),
        1,
        "the parent alone"
    );

    place.let_time_pass_for(session).await;
    let heir = Worker::start(&place, &history).await;
    until("the family is there", async || store.get(parent).await.unwrap().unwrap().state == State::Waiting)
        .await;
    heir.kill(&history).await;

    let view = store.get(parent).await.unwrap().unwrap();
    let total = view.family.unwrap().total as usize;
    assert_eq!(view.crashes, 1);
    assert!((LARGE..=LARGE + LARGE / 5).contains(&total), "{total} children and their siblings");
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// Whether a child that has failed would have added a sibling: see `test-worker`.
fn adds_a_sibling(failed: &TaskView) -> bool {
    let number: usize =
        failed.payload.as_ref().expect("a failed task keeps its payload").as_str().parse().unwrap();
    number > 0 && number.is_multiple_of(5)
}

async fn is_done(store: &dyn Store, tasks: usize) -> bool {
    let counts = store.counts().await.unwrap();
    let ended = counts.iter().filter(|count| count.state.has_ended()).map(|count| count.tasks);
    ended.sum::<u64>() == tasks as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_nothing_on_postgres() {
    let database = Cluster::shared().await.database().await.unwrap();
    killed_workers_lose_nothing(&Postgres(database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_leave_no_family_behind_on_postgres() {
    let database = Cluster::shared().await.database().await.unwrap();
    killed_workers_leave_no_family_behind(&Postgres(database)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_leave_no_family_behind_on_sqlite() {
    let place = Sqlite(tempfile::tempdir().unwrap());
    killed_workers_leave_no_family_behind(&place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_nothing_on_sqlite() {
    let place = Sqlite(tempfile::tempdir().unwrap());
    killed_workers_lose_nothing(&place).await;
}

#[test]
fn the_benchmark_of_the_stores_runs_as_the_pages_say() {
    let command = "cargo run --release -p laneway-testkit --bin store-bench";
    let tiny = ["--tasks", "200", "--only", "free", "--store", "sqlite"];

    let run =
        laneway_testkit::pages::run_benchmarks(command, env!("CARGO_BIN_EXE_store-bench").as_ref(), &tiny);

    assert_eq!(run, 3, "two in the README, one on the page about performance");
}
