//! Measures the stores, as ratios within one run.
//!
//! ```text
//! cargo run --release -p laneway-testkit --bin store-bench            a table
//! cargo run --release -p laneway-testkit --bin store-bench -- --json  one JSON object per store
//! ```
//!
//! Every case runs on a fresh database of a throwaway server that syncs to disk. Two coordinators drain, each settling
//! what it claimed and claiming the next in one advance. Rates that are compared with one another are measured three times in
//! turns, each time on a fresh database, and the best of each is reported. Shares of families are the median of pairs: a family, then a
//! drain. The floor is what the bare server does with the same rows:
//! one `insert … select` and one `delete` per 500 rows, without leases, history or lanes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use laneway_core::{
    Action, Actor, Advance, Capacity, Claimed, Json, Kind, Kinds, Lane, LaneKey, LaneLimit, LaneListing,
    LaneOrder, Listing, NewTask, Outcome, Place, QueueName, QueueSettings, Registration, SessionId, Spawned,
    Store, StoreError, TaskId,
};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_sqlite::{SqliteOptions, SqliteStore};
use laneway_testkit::cluster::{Cluster, ClusterOptions, Database};
use serde_json::{Map, Value, json};

type Failure = Box<dyn std::error::Error>;

/// Coordinators that drain at the same time: one per core of the smallest machine that we care about.
const COORDINATORS: usize = 2;
/// Tasks of one bulk enqueue.
const BULK: usize = 10_000;
/// Callers of single enqueues.
const CALLERS: usize = 50;
/// Rounds under a held snapshot.
const ROUNDS: usize = 5;
struct Options {
    json: bool,
    stores: Vec<String>,
    tasks: usize,
    only: Option<String>,
    /// How often each rate is measured; the best counts, since whatever else the machine does only makes it slower.
    tries: usize,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options = Self {
            json: false,
            stores: vec!["postgres".into(), "sqlite".into()],
            tasks: 100_000,
            only: None,
            tries: 3,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
            let number = |text: String| text.parse().map_err(|_| format!("{argument} wants a number"));
            match argument.as_str() {
                "--json" => options.json = true,
                "--store" => options.stores = vec![value()?],
                "--tasks" => options.tasks = number(value()?)?,
                "--tries" => options.tries = number(value()?)?,
                "--only" => options.only = Some(value()?),
                other => {
                    return Err(format!(
                        "`{other}` is unknown; store-bench [--json] [--store postgres|sqlite] [--tasks N] [--tries N] [--only CASE]"
                    ));
                }
            }
        }
        Ok(options)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse()?;
    for store in &options.stores {
        let mut report = Report { options: &options, values: Map::new(), shares: HashMap::new() };
        report.values.insert("store".into(), json!(store));
        match store.as_str() {
            "postgres" => measure_postgres(&mut report).await?,
            "sqlite" => measure_sqlite(&mut report).await?,
            other => return Err(format!("`{other}` is no store; postgres or sqlite").into()),
        }
        report.print();
    }
    Ok(())
}

/// The figures of one store.
struct Report<'a> {
    options: &'a Options,
    values: Map<String, Value>,
    shares: HashMap<String, Vec<f64>>,
}

impl Report<'_> {
    fn wants(&self, case: &str) -> bool {
        self.options.only.as_deref().is_none_or(|only| case.starts_with(only))
    }

    /// Keeps the best of several.
    fn rate(&mut self, key: &str, tasks: usize, took: Duration) {
        let rate = (tasks as f64 / took.as_secs_f64()).round();
        let before = self.values.get(key).and_then(Value::as_f64).unwrap_or_default();
        self.number(key, rate.max(before));
    }

    /// The median of the times that something else took as shares of the times of the case, in turns: a machine that is slower for a
    /// while slows down both.
    fn share(&mut self, key: &str, other: Duration, took: Duration) {
        let shares = self.shares.entry(key.into()).or_default();
        shares.push(other.as_secs_f64() / took.as_secs_f64());
        shares.sort_by(f64::total_cmp);
        let middle = (shares[(shares.len() - 1) / 2] + shares[shares.len() / 2]) / 2.0;
        self.number(key, (middle * 1_000.0).round() / 1_000.0);
    }

    fn number(&mut self, key: &str, value: f64) {
        self.values.insert(key.into(), json!(value));
    }

    fn print(&self) {
        if self.options.json {
            return println!("{}", Value::Object(self.values.clone()));
        }
        let store = self.values["store"].as_str().unwrap_or_default();
        for (key, value) in self.values.iter().filter(|(key, _)| *key != "store") {
            println!("{store:<10} {key:<26} {value:>12}");
        }
    }
}

/// How the tasks of a case are spread over lanes.
#[derive(Clone, Copy)]
enum Spread {
    Free,
    Lanes { lanes: usize, limit: u32 },
}

fn tasks(n: usize, spread: Spread) -> Vec<NewTask> {
    let kind = Kind::new("bench.noop").expect("a valid name");
    (0..n)
        .map(|number| {
            let text = format!(
                r#"{{"number":{number},"to":"somebody@example.org","subject":"{:064x}"}}"#,
                number * 7919
            );
            let task = NewTask::new(kind.clone(), Json::trusted(text));
            match spread {
                Spread::Free => task,
                Spread::Lanes { lanes, limit } => {
                    let key = LaneKey::new(format!("lane:{}", number % lanes)).expect("a valid name");
                    task.lane(Lane::new(key).limit(LaneLimit::at(limit).expect("a valid limit")))
                }
            }
        })
        .collect()
}

async fn fill(store: &dyn Store, n: usize, spread: Spread) -> Result<Duration, Failure> {
    let bulks: Vec<_> = tasks(n, spread).chunks(BULK).map(<[_]>::to_vec).collect();
    let begun = Instant::now();
    for bulk in bulks {
        store.enqueue_many(bulk).await?;
    }
    Ok(begun.elapsed())
}

/// Claims and completes until nothing is left, with whole claims settled together. Returns the time and the advances.
async fn drain(store: &Arc<dyn Store>, n: usize, claim: u32) -> Result<(Duration, usize), Failure> {
    let (done, advances) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let mut coordinators = tokio::task::JoinSet::new();
    for _ in 0..COORDINATORS {
        coordinators.spawn(coordinate(store.clone(), n, claim, done.clone(), advances.clone()));
    }
    while let Some(ended) = coordinators.join_next().await {
        ended?.map_err(|error| error.to_string())?;
    }
    assert_eq!(done.load(Ordering::Relaxed), n, "every task is completed once");
    Ok((begun.elapsed(), advances.load(Ordering::Relaxed)))
}

async fn coordinate(
    store: Arc<dyn Store>,
    n: usize,
    claim: u32,
    done: Arc<AtomicUsize>,
    advances: Arc<AtomicUsize>,
) -> Result<(), StoreError> {
    let session = SessionId::random();
    let queues = vec![QueueName::default()];
    let (name, capacity) = ("bench".into(), Capacity::default());
    let registration = Registration { session, name, queues, kinds: Kinds::All, capacity };
    store.register(registration).await?;
    let mut settles = vec![];
    for number in 1.. {
        let settled = settles.len();
        let mut advance = Advance::new(session, number).claim(QueueName::default(), claim);
        advance.settles = std::mem::take(&mut settles);
        let advanced = store.advance(advance).await?;
        advances.fetch_add(1, Ordering::Relaxed);
        assert!(advanced.settled.iter().all(|settled| settled.verdict.is_recorded()));
        settles.extend(advanced.claimed.iter().map(|claimed| claimed.settle(Outcome::completed())));
        if done.fetch_add(settled, Ordering::Relaxed) + settled >= n {
            break;
        }
        if settles.is_empty() {
            // The other coordinator has the last ones.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    store.deregister(session).await
}

/// `callers` tasks at a time that enqueue one by one, each waiting for its answer.
async fn enqueue_singly(store: &Arc<dyn Store>, n: usize, callers: usize) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let store = store.clone();
        let mine = tasks(n / callers, Spread::Free);
        running.spawn(async move {
            for task in mine {
                store.enqueue(task).await.unwrap_or_else(|error| panic!("caller {caller}: {error}"));
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended?;
    }
    Ok(begun.elapsed())
}

/// Drains the same number of tasks in rounds, and returns the time of each.
async fn rounds(store: &Arc<dyn Store>, n: usize, spread: Spread) -> Result<Vec<Duration>, Failure> {
    let mut times = vec![];
    for _ in 0..ROUNDS {
        fill(&**store, n / ROUNDS, spread).await?;
        times.push(drain(store, n / ROUNDS, 500).await?.0);
    }
    Ok(times)
}

/// The cases that both stores run, each on a store of its own.
const DRAINS: [(&str, Spread, u32, usize); 6] = [
    ("free_per_s", Spread::Free, 500, 1),
    ("free_50_per_s", Spread::Free, 50, 1),
    ("ordered_1000_per_s", Spread::Lanes { lanes: 1_000, limit: 1 }, 500, 1),
    ("ordered_1000_50_per_s", Spread::Lanes { lanes: 1_000, limit: 1 }, 50, 1),
    ("limit3_62_per_s", Spread::Lanes { lanes: 62, limit: 3 }, 500, 1),
    ("one_task_lanes_per_s", Spread::Lanes { lanes: usize::MAX, limit: 1 }, 500, 5),
];
const HELD: [(&str, Spread); 2] =
    [("held", Spread::Free), ("held_lanes", Spread::Lanes { lanes: 1_000, limit: 1 })];

/// The cases one after another, and again.
fn in_turns<T: Copy>(cases: &[T], tries: usize) -> impl Iterator<Item = T> {
    std::iter::repeat_n(cases, tries).flatten().copied()
}

/// Children of the one large family, and of each of many small ones.
const FAMILIES: [(&str, usize); 2] = [("fan_100k_per_s", 100_000), ("families_10k_per_s", 10)];

/// Spawns families of `children` each, `n` children in all, and works them off: fan-out, all children, fan-in. Returns the
/// time from the settle that spawns to the end of the last parent, and that of the fan-out alone.
async fn families(
    store: &Arc<dyn Store>,
    n: usize,
    children: usize,
) -> Result<(Duration, Duration), Failure> {
    let (session, parents) = (SessionId::random(), n / children);
    let queues = vec![QueueName::default()];
    let (name, capacity) = ("bench".into(), Capacity::default());
    let registration = Registration { session, name, queues, kinds: Kinds::All, capacity };
    store.register(registration).await?;
    fill(&**store, parents, Spread::Free).await?;
    let family = || Spawned { children: tasks(children, Spread::Free), ..Default::default() };
    let mut spawned: Vec<_> = (0..parents).map(|_| family()).collect();
    let begun = Instant::now();
    let mut settles = vec![];
    for number in 1.. {
        let mut advance = Advance::new(session, number);
        advance.settles = std::mem::take(&mut settles);
        if !spawned.is_empty() {
            advance = advance.claim(QueueName::default(), spawned.len().min(100) as u32);
        }
        let claimed = store.advance(advance).await?.claimed;
        let spawning =
            |claimed: &Claimed| claimed.settle(Outcome::completed()).spawning(spawned.pop()?).into();
        settles = claimed.iter().filter_map(spawning).collect();
        if settles.is_empty() {
            break;
        }
    }
    let spawned = begun.elapsed();
    store.deregister(session).await?;
    drain(store, n, 500).await?;
    while !store.list(Listing::of(Place::Waiting).limit(1)).await?.tasks.is_empty() {
        store.sweep().await?;
    }
    Ok((begun.elapsed(), spawned))
}

/// Uses a new store as the cases do, so that none of them pays for opening connections and for the first use of a function.
async fn warm_up(store: &Arc<dyn Store>) -> Result<(), Failure> {
    families(store, 4_000, 2_000).await?;
    Ok(())
}

/// The large family, which has just taken so long, as a share of tasks without lanes that are drained in turns with it: alone, and
/// enqueued before.
async fn compare_with_free(
    report: &mut Report<'_>,
    store: &Arc<dyn Store>,
    family: Duration,
) -> Result<(), Failure> {
    let n = report.options.tasks;
    let enqueued = fill(&**store, n, Spread::Free).await?;
    let (drained, _) = drain(store, n, 500).await?;
    report.rate("fan_beside_per_s", n, drained);
    report.rate("fan_beside_enqueued_per_s", n, enqueued + drained);
    report.share("fan_100k_share", drained, family);
    report.share("fan_100k_share_enqueued", enqueued + drained, family);
    Ok(())
}

/// Drains with statistics and audit and without, in turns, and reports the better of each and their ratio. A drain itself writes
/// no audit, since nobody acts. So somebody else uses another queue twenty times a second meanwhile: with audit as an operator, whose
/// every action leaves its row, and without as an application that enqueues.
async fn statistics<F: AsyncFn() -> Result<Arc<dyn Store>, Failure>>(
    report: &mut Report<'_>,
    open: F,
) -> Result<(), Failure> {
    let n = report.options.tasks;
    let (mut with, mut without, mut fold) = (Duration::MAX, Duration::MAX, Duration::MAX);
    let mut audited = 0;
    for _ in 0..report.options.tries {
        for statistics in [false, true] {
            let store = open().await?;
            let settings = QueueSettings { statistics: Some(statistics), ..Default::default() };
            store.set_queue(&QueueName::default(), settings).await?;
            fill(&*store, n, Spread::Free).await?;
            let done = Arc::new(AtomicBool::new(false));
            let other = tokio::spawn(use_another_queue(store.clone(), statistics, done.clone()));
            let (took, _) = drain(&store, n, 500).await?;
            done.store(true, Ordering::Relaxed);
            let uses = other.await??;
            if statistics {
                audited = uses;
            }
            let best = if statistics { &mut with } else { &mut without };
            *best = took.min(*best);
            let begun = Instant::now();
            store.maintain().await?;
            fold = begun.elapsed().min(fold);
        }
    }
    report.rate("statistics_on_per_s", n, with);
    report.rate("statistics_off_per_s", n, without);
    report
        .number("statistics_share", (without.as_secs_f64() / with.as_secs_f64() * 1_000.0).round() / 1_000.0);
    report.number("statistics_audit_rows", audited as f64);
    report.number("maintain_after_ms", millis(fold));
    Ok(())
}

/// Acts on a task of its own queue, or enqueues there, until told to stop. Returns how often.
async fn use_another_queue(
    store: Arc<dyn Store>,
    as_operator: bool,
    done: Arc<AtomicBool>,
) -> Result<usize, StoreError> {
    let kind = Kind::new("bench.operated").expect("a valid name");
    let queue = QueueName::new("operated").expect("a valid name");
    let new = NewTask::new(kind, Json::default()).queue(queue);
    let task = store.enqueue(new.clone()).await?.id;
    let mut uses = 0;
    while !done.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        uses += 1;
        if as_operator {
            store.act(&Actor::program(), Action::SetPriority((uses % 2) as i32), &[task]).await?;
        } else {
            store.enqueue(new.clone()).await?;
        }
    }
    Ok(uses)
}

/// Ten times as many ended tasks as pending ones.
async fn fill_for_looks(store: &Arc<dyn Store>, n: usize) -> Result<(), Failure> {
    fill(&**store, 10 * n, Spread::Free).await?;
    drain(store, 10 * n, 500).await?;
    fill(&**store, n, Spread::Lanes { lanes: 1_000, limit: 1 }).await?;
    Ok(store.maintain().await.map(drop)?)
}

/// The slowest look of each sort, each the median of five.
async fn looks(report: &mut Report<'_>, store: &Arc<dyn Store>) -> Result<(), Failure> {
    let n = report.options.tasks;
    let last = store.list(Listing::of(Place::Ended).limit(1)).await?.tasks.remove(0).id;

    let mut slowest = Duration::ZERO;
    for (place, filter) in [
        (Place::Pending, ""),
        (Place::Pending, "kind:rare"),
        (Place::Pending, "payload.number:x"),
        (Place::Pending, "lane:lane:7"),
        (Place::Ended, ""),
        (Place::Ended, "state:failed"),
        (Place::Ended, "kind:rare"),
        (Place::Ended, "since:1m kind:bench.*"),
        (Place::Ended, "error:boom"),
    ] {
        let listing = Listing::of(place).filter(filter.parse()?).limit(500);
        slowest = slowest.max(median(async || store.list(listing.clone()).await.map(drop)).await?);
    }
    report.number("list_ms", millis(slowest));
    let counts = median(async || store.counts().await.map(drop)).await?;
    let kinds = median(async || store.counts_by_kind(&QueueName::default()).await.map(drop)).await?;
    let queues = median(async || store.queues().await.map(drop)).await?;
    report.number("counts_ms", millis(counts.max(kinds).max(queues)));
    let mut slowest = Duration::ZERO;
    for task in [TaskId(last.0), TaskId(10 * n as i64 + 1), TaskId(11 * n as i64), TaskId(i64::MAX)] {
        slowest = slowest.max(median(async || store.why(task).await.map(drop)).await?);
    }
    report.number("why_ms", millis(slowest));
    let mut slowest = Duration::ZERO;
    for order in [LaneOrder::Backlog, LaneOrder::Held, LaneOrder::Key] {
        let listing = LaneListing::of(QueueName::default()).order(order).limit(500);
        slowest = slowest.max(median(async || store.lanes(listing.clone()).await.map(drop)).await?);
    }
    report.number("lanes_ms", millis(slowest));
    Ok(())
}

async fn median(look: impl AsyncFn() -> Result<(), StoreError>) -> Result<Duration, Failure> {
    let mut times = vec![];
    for _ in 0..5 {
        let begun = Instant::now();
        look().await?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[2])
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

async fn measure_postgres(report: &mut Report<'_>) -> Result<(), Failure> {
    let cluster = Cluster::start(ClusterOptions::default().durable(true)).await?;
    let n = report.options.tasks;
    for (key, spread, claim, part) in in_turns(&DRAINS, report.options.tries) {
        if !report.wants(key) {
            continue;
        }
        let (database, store) = fresh(&cluster).await?;
        let n = n / part;
        let before = Usage::read(&database).await?;
        let took = fill(&*store, n, spread).await?;
        let filled = Usage::read(&database).await?;
        let (drained, _) = drain(&store, n, claim).await?;
        let after = Usage::read(&database).await?;
        if key == "free_per_s" {
            report.rate("bulk_enqueue_per_s", n, took);
            report.number("wal_bytes_enqueue", ((filled.wal - before.wal) / n as f64).round());
            report.number("wal_bytes_per_task", ((after.wal - filled.wal) / n as f64).round());
            report.number("tx_per_task", (after.transactions - filled.transactions) / n as f64);
        }
        report.rate(key, n, drained);
    }
    for _ in 0..report.options.tries {
        if report.wants("single") {
            let (database, store) = fresh(&cluster).await?;
            let took = enqueue_singly(&store, n / 2, CALLERS).await?;
            report.rate("single_grouped_per_s", n / 2, took);
            let took = enqueue_own_transactions(&database, &store, n / 5).await?;
            report.rate("single_own_tx_per_s", n / 5, took);
        }
        if report.wants("floor") {
            let (insert, delete) = floor(&fresh(&cluster).await?.0, n).await?;
            report.rate("floor_insert_per_s", n, insert);
            report.rate("floor_delete_per_s", n, delete);
        }
    }
    for (key, spread) in in_turns(&HELD, report.options.tries) {
        if !report.wants(key) {
            continue;
        }
        let (database, store) = fresh(&cluster).await?;
        let holder = database.connect().await?;
        holder
            .batch_execute("begin isolation level repeatable read; select count(*) from laneway.task")
            .await?;
        let times = rounds(&store, n, spread).await?;
        report.rate(&format!("{key}_first_per_s"), n / ROUNDS, times[0]);
        report.rate(&format!("{key}_last_per_s"), n / ROUNDS, times[ROUNDS - 1]);
    }
    for (key, children) in in_turns(&FAMILIES, report.options.tries) {
        if !report.wants(key) {
            continue;
        }
        let (database, store) = fresh(&cluster).await?;
        let before = Usage::read(&database).await?;
        let (took, spawned) = families(&store, n, children.min(n)).await?;
        let after = Usage::read(&database).await?;
        report.rate(key, n, took);
        if key == "fan_100k_per_s" {
            report.rate("fan_100k_spawned_per_s", n, spawned);
            report.number("wal_bytes_per_child", ((after.wal - before.wal) / n as f64).round());
            compare_with_free(report, &fresh(&cluster).await?.1, took).await?;
        }
    }
    if report.wants("statistics") {
        statistics(report, async || Ok(fresh(&cluster).await?.1)).await?;
    }
    if report.wants("looks") {
        let (database, store) = fresh(&cluster).await?;
        fill_for_looks(&store, n).await?;
        // As the server itself does within a minute after so many inserts.
        database.connect().await?.batch_execute("vacuum laneway.task").await?;
        looks(report, &store).await?;
    }
    Ok(())
}

async fn fresh(cluster: &Cluster) -> Result<(Database, Arc<dyn Store>), Failure> {
    let database = cluster.database().await?;
    drop_others(&database).await?;
    let store: Arc<dyn Store> =
        Arc::new(PostgresStore::open(PostgresOptions::new(database.url.clone())).await?);
    warm_up(&store).await?;
    // Otherwise one comes when the cases before have written enough, always into the same case, which then logs whole pages.
    database.connect().await?.batch_execute("checkpoint").await?;
    Ok((database, store))
}

/// Nothing that the cases before have left shall be vacuumed beside the next one.
async fn drop_others(database: &Database) -> Result<(), Failure> {
    let connection = database.connect().await?;
    let others = "select format('drop database %I', datname) from pg_database \
         where datallowconn and datname like 'laneway\\_%' and datname <> current_database()";
    for drop in connection.query(others, &[]).await? {
        // One that is still in use is dropped next time.
        let _ = connection.batch_execute(drop.get(0)).await;
    }
    Ok(())
}

/// What the server has written and committed so far.
struct Usage {
    wal: f64,
    transactions: f64,
}

impl Usage {
    async fn read(database: &Database) -> Result<Self, Failure> {
        // Ids are handed out to writing transactions only; this look uses one up itself.
        let text =
            "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, pg_current_xact_id()::text::float8";
        let row = database.connect().await?.query_one(text, &[]).await?;
        Ok(Self { wal: row.get(0), transactions: row.get(1) })
    }
}

/// Each caller has a connection of its own and commits every task by itself.
async fn enqueue_own_transactions(
    database: &Database,
    store: &Arc<dyn Store>,
    n: usize,
) -> Result<Duration, Failure> {
    assert_eq!(store.name(), "postgres");
    let mut connections = vec![];
    for _ in 0..CALLERS {
        connections.push(database.connect().await?);
    }
    let store = PostgresStore::open(PostgresOptions::new(database.url.clone())).await?;
    let begun = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for connection in connections {
        let (store, mine) = (store.clone(), tasks(n / CALLERS, Spread::Free));
        running.spawn(async move {
            for task in mine {
                store.enqueue_in(&connection, vec![task]).await.unwrap_or_else(|error| panic!("{error}"));
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended?;
    }
    Ok(begun.elapsed())
}

/// The bare server: inserts and deletes the same rows, with the same indexes, 500 at a time.
async fn floor(database: &Database, n: usize) -> Result<(Duration, Duration), Failure> {
    let connection = database.connect().await?;
    connection
        .batch_execute(
            "create table bare (like laneway.task); create unique index on bare (queue_id, lane, priority, id);
             create unique index on bare (id);",
        )
        .await?;
    let payloads: Vec<_> =
        tasks(n, Spread::Free).iter().map(|task| task.payload.as_str().to_owned()).collect();
    let insert = connection
        .prepare(
            "insert into bare (id, lane, queue_id, enqueued_at, size, queue, kind, payload, priority, attempt, max_attempts, crashes, depth)
             select $1::bigint + place, 0, 1, now(), length(text), 'default', 'bench.noop', text::json, 0, 0, 25, 0, 0
             from unnest($2::text[]) with ordinality u(text, place)",
        )
        .await?;
    let begun = Instant::now();
    for (bulk, payloads) in payloads.chunks(BULK).enumerate() {
        connection.execute(&insert, &[&((bulk * BULK) as i64), &payloads]).await?;
    }
    let inserted = begun.elapsed();
    let delete = connection
        .prepare(
            "delete from bare where ctid = any (array(
                 select ctid from bare where queue_id = 1 and lane = 0 order by priority, id limit 500 for update skip locked
             )) returning id, kind, payload",
        )
        .await?;
    connection
        .batch_execute("set enable_seqscan = off; set enable_sort = off; set enable_bitmapscan = off")
        .await?;
    let begun = Instant::now();
    while !connection.query(&delete, &[]).await?.is_empty() {}
    Ok((inserted, begun.elapsed()))
}

async fn measure_sqlite(report: &mut Report<'_>) -> Result<(), Failure> {
    let n = report.options.tasks;
    let directory = tempfile::tempdir()?;
    let open = async |name: &str| -> Result<Arc<dyn Store>, Failure> {
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(SqliteOptions::new(directory.path().join(name))).await?);
        warm_up(&store).await?;
        Ok(store)
    };
    let files = AtomicUsize::new(0);
    let next = |case: &str| format!("{case}-{}.db", files.fetch_add(1, Ordering::Relaxed));
    for (key, spread, claim, part) in in_turns(&DRAINS, report.options.tries) {
        if !report.wants(key) {
            continue;
        }
        let store = open(&next(key)).await?;
        let n = n / part;
        let took = fill(&*store, n, spread).await?;
        let (drained, advances) = drain(&store, n, claim).await?;
        if key == "free_per_s" {
            report.rate("bulk_enqueue_per_s", n, took);
            report.number("tx_per_task", advances as f64 / n as f64);
        }
        report.rate(key, n, drained);
    }
    for (key, children) in in_turns(&FAMILIES, report.options.tries) {
        if report.wants(key) {
            let store = open(&next(key)).await?;
            let (took, _) = families(&store, n, children.min(n)).await?;
            report.rate(key, n, took);
            if key == "fan_100k_per_s" {
                compare_with_free(report, &open(&next("beside")).await?, took).await?;
            }
        }
    }
    if report.wants("statistics") {
        statistics(report, async || open(&next("statistics")).await).await?;
    }
    if report.wants("looks") {
        let store = open("looks.db").await?;
        fill_for_looks(&store, n).await?;
        looks(report, &store).await?;
    }
    if report.wants("durable") {
        let store = open("durable.db").await?;
        let begun = Instant::now();
        fill(&*store, n, Spread::Free).await?;
        drain(&store, n, 100).await?;
        report.rate("durable_100_per_s", n, begun.elapsed());
    }
    if report.wants("single") {
        let store = open("single.db").await?;
        let took = enqueue_singly(&store, n / 2, CALLERS).await?;
        report.rate("single_grouped_per_s", n / 2, took);
        let took = enqueue_singly(&store, n / 20, 1).await?;
        report.rate("single_own_tx_per_s", n / 20, took);
    }
    for (key, spread) in in_turns(&HELD, report.options.tries) {
        if !report.wants(key) {
            continue;
        }
        let name = next(key);
        let path = directory.path().join(&name);
        let store = open(&name).await?;
        let holder = tokio::task::spawn_blocking(move || hold_snapshot(&path)).await?;
        let times = rounds(&store, n, spread).await?;
        drop(holder);
        report.rate(&format!("{key}_first_per_s"), n / ROUNDS, times[0]);
        report.rate(&format!("{key}_last_per_s"), n / ROUNDS, times[ROUNDS - 1]);
    }
    Ok(())
}

/// A reader whose snapshot stays as it is until it is dropped.
fn hold_snapshot(path: &std::path::Path) -> rusqlite::Connection {
    let reader = rusqlite::Connection::open(path).expect("the file exists");
    reader.execute_batch("begin; select count(*) from task").expect("a read transaction begins");
    reader
}
