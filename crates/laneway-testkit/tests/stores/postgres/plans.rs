//! Plans of the hot statements. They are made on an empty table and must still be right when the burst has come.
//!
//! The server explains every statement of the store's own connection, nested ones included, into its log, with the rows
//! that each node really touched. A hot statement touches rows in proportion to what it claims, never to what is there.

use crate::support::{check, worker};
use laneway_core::{Advance, FamilyPolicy, Kinds, Outcome, Scan, Spawned, Store};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, ClusterOptions, Database};
use laneway_testkit::store::{a_task, ids_of, queue, secs};
use laneway_testkit::worker::{TestWorker, retry_after};
use tokio::sync::OnceCell;
use tokio_postgres::Client;

/// Rows that a node may touch in a step that claims or settles fifty tasks. Marks are taken up by 500.
const ROWS_MAX: f64 = 2_000.0;
/// Tables in which only an index may lead the way.
const HOT: [&str; 11] =
    ["task", "turn", "mark", "lane", "lease", "later", "settled", "body", "waiting", "tally", "brood"];

/// A server that writes plans into its log.
async fn explaining() -> &'static Cluster {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
            let admin = cluster.database().await.unwrap().connect().await.unwrap();
            for statement in [
                "load 'auto_explain'",
                "alter system set session_preload_libraries = 'auto_explain'",
                "alter system set auto_explain.log_nested_statements = on",
                "alter system set auto_explain.log_analyze = on",
                "alter system set auto_explain.log_buffers = on",
                "alter system set auto_explain.log_timing = off",
                "alter system set log_line_prefix = '%d|'",
                "select pg_reload_conf()",
            ] {
                admin.batch_execute(statement).await.unwrap();
            }
            cluster.restart().await.unwrap();
            cluster
        })
        .await
}

/// A store with one connection, all of whose statements are explained.
struct Scene {
    store: PostgresStore,
    database: Database,
    worker: TestWorker,
    /// A connection that is not explained.
    client: Client,
}

impl Scene {
    /// `before` is done to the empty database before the store connects.
    async fn set(before: &[&str]) -> Self {
        let database = explaining().await.database().await.unwrap();
        let client = database.connect().await.unwrap();
        for statement in before {
            client.batch_execute(statement).await.unwrap();
        }
        let explain = format!("alter database {} set auto_explain.log_min_duration = 0", database.name);
        client.batch_execute(&explain).await.unwrap();
        let options = PostgresOptions::new(&database.url).pool_size(1).hints(false);
        let store = PostgresStore::open(options).await.unwrap();
        let worker = worker(&store).await;
        Self { store, database, worker, client }
    }

    /// The plans of what `act` does.
    async fn plans_of(&mut self, act: impl AsyncFnOnce(&mut Self)) -> Vec<Plan> {
        let log = explaining().await.directory().join("server.log");
        let before = std::fs::metadata(&log).unwrap().len() as usize;
        act(self).await;
        let text = std::fs::read(&log).unwrap();
        let plans = plans_in(&String::from_utf8_lossy(&text[before..]), &self.database.name);
        assert!(!plans.is_empty(), "nothing was explained; the test shows nothing");
        plans
    }
}

/// One explained statement.
struct Plan {
    query: String,
    nodes: Vec<Node>,
    /// Pages that it touched, with all that it called.
    pages: u64,
}

struct Node {
    text: String,
    rows: f64,
}

/// Reads what `auto_explain` wrote about one database.
fn plans_in(log: &str, database: &str) -> Vec<Plan> {
    let mut plans: Vec<Plan> = vec![];
    let mut ours = false;
    for line in log.lines() {
        if let Some(rest) = line.strip_prefix('\t') {
            if let (true, Some(plan)) = (ours, plans.last_mut()) {
                plan.read(rest);
            }
            continue;
        }
        ours = line.starts_with(&format!("{database}|LOG:  duration:")) && line.ends_with("plan:");
        if ours {
            plans.push(Plan { query: String::new(), nodes: vec![], pages: 0 });
        }
    }
    plans
}

impl Plan {
    fn read(&mut self, line: &str) {
        let number_after = |mark: &str| -> Option<f64> {
            let rest = line.split_once(mark)?.1;
            rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
        };
        if line.contains("(cost=") {
            let rows = number_after("actual rows=").unwrap_or(0.0) * number_after("loops=").unwrap_or(1.0);
            let loops = number_after("loops=").unwrap_or(1.0);
            self.nodes.push(Node { text: line.trim().to_owned(), rows: rows.max(loops) });
        } else if self.nodes.is_empty() {
            self.query.push_str(line.trim());
            self.query.push(' ');
        } else if let (Some(removed), Some(node)) =
            (number_after("Rows Removed by Filter: "), self.nodes.last_mut())
        {
            let loops = node.text.split_once("loops=").map_or("1", |(_, rest)| rest.trim_end_matches(')'));
            node.rows += removed * loops.parse::<f64>().unwrap_or(1.0);
            node.text.push_str(&format!(" removed {removed}"));
        } else if self.nodes.len() == 1 && self.pages == 0 && line.trim().starts_with("Buffers: ") {
            self.pages = (number_after("hit=").unwrap_or(0.0) + number_after("read=").unwrap_or(0.0)) as u64;
        }
    }

    /// What is wrong with it.
    fn problem(&self) -> Option<String> {
        let scans_whole = |node: &&Node| {
            HOT.iter().any(|table| {
                let scan = format!("Seq Scan on {table} ");
                node.text.contains(&scan)
            })
        };
        let bad = self
            .nodes
            .iter()
            .find(|node| node.rows > ROWS_MAX)
            .or_else(|| self.nodes.iter().find(scans_whole))?;
        let plan: Vec<_> = self.nodes.iter().map(|node| node.text.as_str()).collect();
        Some(format!("`{}` in\n{}\n{}", bad.text, self.query, plan.join("\n")))
    }
}

/// What is wrong with any of these.
fn problems(what: &str, plans: &[Plan]) -> Vec<String> {
    plans.iter().filter_map(Plan::problem).map(|problem| format!("{what}: {problem}")).collect()
}

fn assert_none(mut problems: Vec<String>) {
    problems.sort_unstable();
    problems.dedup();
    assert!(problems.is_empty(), "{} bad plans:\n{}", problems.len(), problems.join("\n\n"));
}

/// A burst: 150,000 tasks without a lane, 25,000 lanes with two each and a turn in line, 25,000 new lanes with a mark, and
/// a running, scheduled and waiting population beside them. Statistics stay those of the empty tables.
const BURST: &str = "
    set synchronous_commit = off;
    insert into laneway.task (id, lane, queue_id, enqueued_at, size, queue, kind, payload)
    select nextval('laneway.task_id_seq'), 0, laneway.queue_id('default'), now(), 2, 'default', 'work', '{}' from generate_series(1, 150000);
    insert into laneway.lane (id, lim, issued, slowest, used_at, queue, key)
    select laneway.lane_id('default', 'old ' || i), 1, 1, 0, now(), 'default', 'old ' || i from generate_series(1, 25000) i;
    insert into laneway.turn (queue, priority, lanes)
    select 'default', 0, array_agg(laneway.lane_id('default', 'old ' || i)) from generate_series(1, 25000) i group by i / 16;
    insert into laneway.task (id, lane, queue_id, enqueued_at, size, queue, kind, payload)
    select nextval('laneway.task_id_seq'), laneway.lane_id('default', 'old ' || i), laneway.queue_id('default'), now(), 2, 'default', 'work', '{}'
    from generate_series(1, 25000) i, generate_series(1, 2);
    insert into laneway.task (id, lane, queue_id, enqueued_at, size, queue, kind, payload)
    select nextval('laneway.task_id_seq'), laneway.lane_id('default', 'new ' || i), laneway.queue_id('default'), now(), 2, 'default', 'work', '{}'
    from generate_series(1, 25000) i;
    insert into laneway.mark (lane, n, priority, queue, key)
    select laneway.lane_id('default', 'new ' || i), 1, 0, 'default', 'new ' || i from generate_series(1, 25000) i;
    insert into laneway.lease (session, token, number, claimed_at, tasks, queue, task_ids, kinds, enqueued_ats, payloads)
    select gen_random_uuid(), gen_random_uuid(), 1, now(), 1, 'default', array[nextval('laneway.task_id_seq')], array['work'],
        array[now()], array['{}'::json]
    from generate_series(1, 10000);
    insert into laneway.settled (lease_id, task_ids) select -i, array[i] from generate_series(1, 10000) i;
    insert into laneway.later (id, lane, enqueued_at, size, queue, kind, payload, due_at)
    select nextval('laneway.task_id_seq'), 0, now(), 2, 'default', 'work', '{}', now() + interval '1 hour' from generate_series(1, 20000);
    insert into laneway.waiting (id, enqueued_at, size, queue, kind, payload, started_at, holds_turn, policy, continues, total, open, completed)
    select nextval('laneway.task_id_seq'), now(), 2, 'default', 'work', '{}', now(), false, 'wait_all', false, 1, 1, 0 from generate_series(1, 20000);
    insert into laneway.brood (parent_id, first_id, last_id) select w.id, w.id + 20000, w.id + 20000 from laneway.waiting w;";

/// A parent and its children from beginning to end: one of the children adds a sibling, one fails and one is cancelled with
/// the rest of them.
async fn raise_a_family(scene: &mut Scene, children: usize) {
    let urgent = || a_task().priority(-5).into();
    scene.store.enqueue(urgent()).await.unwrap();
    let parent = scene.worker.claim_one().await;
    let children = (0..children).map(|_| urgent()).collect();
    let spawned = Spawned { children, policy: FamilyPolicy::FailFast, ..Default::default() };
    scene.worker.settle_all(vec![parent.settle(Outcome::completed()).spawning(spawned)]).await;
    let claimed = scene.worker.claim(1).await;
    let spawned = Spawned { siblings: vec![urgent()], ..Default::default() };
    scene.worker.settle_all(vec![claimed[0].settle(Outcome::completed()).spawning(spawned)]).await;
    let claimed = scene.worker.claim(1).await;
    scene.worker.settle(&claimed[0], Outcome::Failed { error: "no".into() }).await;
}

/// One look and one cancel of a task that is pending, later and running, and a worker that leaves with tasks.
async fn look_cancel_and_leave(scene: &mut Scene) {
    let mut leaving = worker(&scene.store).await;
    let tasks = [a_task(), a_task().delay(secs(60)), a_task().priority(-9), a_task().priority(-9)]
        .map(Into::into)
        .into();
    let ids = ids_of(&scene.store.enqueue_many(tasks).await.unwrap());
    leaving.claim(2).await;
    for id in &ids[..3] {
        scene.store.get(*id).await.unwrap().unwrap();
        scene.store.cancel(*id).await.unwrap();
    }
    scene.store.deregister(leaving.session()).await.unwrap();
}

/// Six steps with the tables as they are, so that every plan is cached, then the burst, then a working day.
async fn plans_hold_when_the_burst_comes(before: &[&str]) {
    let mut scene = Scene::set(before).await;
    let own = scene.database.connect().await.unwrap(); // somebody who settles in transactions of their own
    for _ in 0..6 {
        let tasks = [a_task().lane("own"), a_task(), a_task(), a_task()].map(Into::into).into();
        scene.store.enqueue_in(&own, tasks).await.unwrap();
        let claimed = scene.worker.claim(4).await;
        scene.store.complete_in(&own, scene.worker.session(), &claimed[0]).await.unwrap();
        scene.worker.settle(&claimed[1], retry_after(secs(600))).await;
        scene.worker.settle(&claimed[2], Outcome::Failed { error: "no".into() }).await;
        scene.worker.complete(&claimed[3..]).await;
        scene.worker.orders(&[]).await;
        scene.store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap();
        raise_a_family(&mut scene, 2).await;
        look_cancel_and_leave(&mut scene).await;
    }
    scene.client.batch_execute(BURST).await.unwrap();

    let mut claimed = vec![];
    let plans = scene.plans_of(async |scene| claimed = scene.worker.claim(50).await).await;
    assert_eq!(claimed.len(), 50);
    let mut bad = problems("a claim", &plans);
    // An even number takes up marks.
    let plans = scene.plans_of(async |scene| {
        for _ in 0..8 {
            claimed = scene.worker.advance(|advance| settle_and_claim(advance, &claimed)).await.claimed;
        }
    });
    bad.extend(problems("settling whole leases and claiming", &plans.await));
    let plans = scene.plans_of(async |scene| {
        let mut settles: Vec<_> = claimed.iter().map(|one| one.settle(Outcome::completed())).collect();
        settles[0].outcome = retry_after(secs(60));
        settles[1].outcome = Outcome::Failed { error: "no".into() };
        settles[2].outcome = Outcome::GivenBack;
        let later = settles.split_off(25);
        scene.worker.settle_all(settles).await;
        scene.worker.settle_all(later).await;
    });
    bad.extend(problems("settling one by one", &plans.await));
    let plans = scene.plans_of(async |scene| raise_a_family(scene, 50).await);
    bad.extend(problems("a family", &plans.await));
    let plans = scene.plans_of(async |scene| {
        scene.store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap();
        let only = Kinds::Only(vec![laneway_testkit::store::kind("work")]);
        scene.store.is_claimable(&[queue("default")], &only).await.unwrap();
    });
    bad.extend(problems("looking before sleep", &plans.await));
    let plans = scene.plans_of(async |scene| {
        scene.store.enqueue(a_task().lane("old 7").into()).await.unwrap();
        scene.store.enqueue_many(vec![a_task().lane("new 7").into(); 50]).await.unwrap();
        scene.store.enqueue_many(vec![a_task().lane("other").into(); 300]).await.unwrap();
    });
    bad.extend(problems("enqueueing", &plans.await));
    let one = scene.worker.claim(1).await;
    let plans = scene.plans_of(async |scene| {
        scene.store.complete_in(&own, scene.worker.session(), &one[0]).await.unwrap();
        scene.store.enqueue_in(&own, vec![a_task().lane("own").into()]).await.unwrap();
    });
    bad.extend(problems("settling and enqueueing in a transaction", &plans.await));
    let plans = scene.plans_of(async |scene| drop(scene.worker.orders(&claimed).await));
    bad.extend(problems("renewing", &plans.await));
    let plans = scene.plans_of(async |scene| look_cancel_and_leave(scene).await);
    // A running task is found by reading the leases, of which there are as many as claims under way.
    let reads_leases =
        |problem: &String| problem.lines().next().is_some_and(|first| first.contains(" on lease "));
    bad.extend(
        problems("looking, cancelling and leaving", &plans.await)
            .into_iter()
            .filter(|problem| !reads_leases(problem)),
    );
    assert_none(bad);
}

fn settle_and_claim(advance: Advance, claimed: &[laneway_core::Claimed]) -> Advance {
    let settles = claimed.iter().map(|one| one.settle(Outcome::completed())).collect();
    Advance { settles, ..advance }.claim(queue("default"), 50)
}

#[tokio::test]
async fn plans_made_on_empty_tables_hold_when_the_burst_comes() {
    plans_hold_when_the_burst_comes(&[]).await;
}

#[tokio::test]
async fn plans_made_on_analysed_empty_tables_hold_when_the_burst_comes() {
    plans_hold_when_the_burst_comes(&["vacuum analyze"]).await;
}

#[tokio::test]
async fn plans_made_on_twenty_analysed_rows_hold_when_the_burst_comes() {
    let twenty = "
        do $$ begin
            perform laneway.enqueue('work') from generate_series(1, 10);
            perform laneway.enqueue('work', lane => 'lane ' || i) from generate_series(1, 10) i;
        end $$";
    plans_hold_when_the_burst_comes(&[twenty, "vacuum analyze"]).await;
}

/// What claims from a queue touch after a burst of 30,000 tasks was drained while a snapshot was old.
struct Drained {
    /// Before the burst.
    empty: u64,
    /// From the beginning.
    full: u64,
    /// From where the last claim stopped.
    bounded: u64,
    /// From the beginning, after the snapshot has gone and the tables were cleaned.
    cleaned: u64,
}

/// After 30,000 tasks were done, with so many left.
async fn drained(left: usize) -> Drained {
    let mut scene = Scene::set(&[]).await;
    for _ in 0..3 {
        scene.worker.claim(50).await; // what a connection reads only once
    }
    let empty = scene.plans_of(async |scene| drop(scene.worker.claim(50).await)).await;
    scene.store.enqueue_many(vec![a_task().into(); 30_000 + left]).await.unwrap();
    let mut old = scene.database.connect().await.unwrap();
    let snapshot = old.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.unwrap();
    snapshot.batch_execute("select 1 from laneway.task limit 1").await.unwrap();
    for _ in 0..10 {
        let claimed = scene.worker.advance(|advance| quickly(advance, 3_000)).await.claimed;
        scene.worker.complete(&claimed).await;
    }

    // One right after the other: a look from the beginning is due again after many times what it took.
    let both = scene.plans_of(async |scene| {
        scene.worker.claim(50).await;
        scene.worker.advance(|advance| quickly(advance, 50)).await;
    });
    let both = pages(&both.await);
    snapshot.rollback().await.unwrap();
    scene.store.maintain().await.unwrap();
    let cleaned = scene.plans_of(async |scene| drop(scene.worker.claim(50).await)).await;
    check(&scene.store).await;

    let drained =
        Drained { empty: pages(&empty)[0], full: both[0], bounded: both[1], cleaned: pages(&cleaned)[0] };
    assert!(
        drained.full > 5 * drained.empty,
        "the burst left nothing behind; the test shows nothing. {drained}"
    );
    drained
}

impl std::fmt::Display for Drained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { empty, full, bounded, cleaned } = self;
        write!(f, "pages touched: empty {empty}, full {full}, bounded {bounded}, cleaned {cleaned}")
    }
}

#[tokio::test]
async fn an_empty_claim_after_a_drained_burst_is_cheap_once_the_tables_were_cleaned() {
    let drained = drained(0).await;

    assert!(drained.empty < 100 && drained.cleaned < drained.full / 5, "{drained}");
}

/// An old snapshot keeps what was claimed in the indexes. A look from the beginning walks all of it; one from where
/// the last claim stopped must not.
#[tokio::test]
async fn an_empty_claim_after_a_drained_burst_is_cheap_while_a_snapshot_is_old() {
    let drained = drained(0).await;

    assert!(drained.bounded < drained.full / 5, "{drained}");
}

#[tokio::test]
async fn a_claim_of_a_backlog_does_not_walk_what_was_claimed_before() {
    let drained = drained(1_000).await;

    // The fifty tasks themselves take most of the pages.
    assert!(drained.bounded < drained.full / 2, "{drained}");
}

/// A claim from where the last one stopped, if looking from the beginning has become slow.
fn quickly(advance: Advance, max: u32) -> Advance {
    Advance { scan: Scan::Auto, ..advance }.claim(queue("default"), max)
}

/// The pages that each advance among these touched.
fn pages(plans: &[Plan]) -> Vec<u64> {
    plans.iter().filter(|plan| plan.query.contains("from laneway.advance(")).map(|plan| plan.pages).collect()
}

/// The reader of plans sees what it is there to see.
#[tokio::test]
async fn a_bad_plan_is_noticed() {
    let mut scene = Scene::set(&[]).await;
    scene.client.batch_execute(BURST).await.unwrap();
    let explained = scene.database.connect().await.unwrap();

    for bad in [
        "select count(*) from laneway.task",
        "set enable_seqscan = off; select count(*) from laneway.task where queue_id = laneway.queue_id('default') and kind = 'none'",
        "reset all; select id from laneway.lease where kinds[1] = 'none'",
    ] {
        let plans = scene.plans_of(async |_| drop(explained.simple_query(bad).await.unwrap())).await;
        assert!(plans.iter().any(|plan| plan.problem().is_some()), "{bad}");
    }
    let good = "select id from laneway.task where queue_id = laneway.queue_id('default') and lane = 0 order by priority, id limit 10";
    let plans = scene
        .plans_of(async |_| {
            drop(
                explained
                    .simple_query(&format!(
                        "set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off; {good}"
                    ))
                    .await
                    .unwrap(),
            )
        })
        .await;
    assert_none(problems("a good one", &plans));
}
