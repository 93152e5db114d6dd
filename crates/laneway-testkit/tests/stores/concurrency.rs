//! Many sessions at once, on handles of their own, as many processes would have them. Volume finds what nobody has
//! thought of; races that are known are driven step by step in `traps.rs`. After each test the history of what the
//! workers did must be right (see `checker`), and the store's invariants must hold.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::check_families;
use laneway_core::{
    Action, Actor, Cancel, Capacity, Children, Claimed, Edit, FamilyPolicy, FollowUp, FollowUpOnFailure,
    Json, Kinds, LaneSettings, NewTask, OnFailure, Outcome, Pausable, QueueName, QueueSettings, Renewal,
    Renewed, Serial, Settle, Settled, Spawned, State, Store, StoreError, TaskId, Verdict,
};
use laneway_testkit::checker::{Event, History, RecordingWorker, Rules};
use laneway_testkit::store::{
    ATask, PATIENCE, TestStore, a_task, ids_of, kind, lane_key, limit_of, secs, until,
};
use tokio::task::JoinSet;

/// How much of everything: one machine's SQLite writes one after the other.
#[derive(Clone, Copy)]
struct Scale {
    claimers: usize,
    enqueuers: usize,
    lanes: usize,
    /// Tasks in one lane, which run one after the other.
    queued: usize,
    rounds: usize,
}

const POSTGRES: Scale = Scale { claimers: 16, enqueuers: 8, lanes: 500, queued: 500, rounds: 20 };
const DAWDLING: Scale = Scale { queued: 60, ..POSTGRES };
const SQLITE: Scale = Scale { claimers: 4, enqueuers: 2, lanes: 100, queued: 500, rounds: 10 };

macro_rules! on_both {
    ($($name:ident,)*) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&laneway_testkit::postgres::fresh().await, super::POSTGRES).await;
            })*
        }
        /// A look that is not locked may be old when the next statement relies on it: here there is time for that.
        mod dawdling_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&laneway_testkit::postgres::dawdling().await, super::DAWDLING).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&laneway_testkit::sqlite::fresh().await, super::SQLITE).await;
            })*
        }
    };
}

on_both! {
    many_workers_and_enqueuers_share_many_lanes,
    two_workers_keep_the_order_of_one_lane_through_retries,
    a_lane_of_limit_three_never_runs_four,
    a_task_is_found_that_arrives_while_its_lane_runs_dry,
    a_settle_and_two_sweeps_at_once_count_once,
    a_cancel_against_claims_and_settles_has_one_answer,
    a_limit_that_goes_up_and_down_is_never_exceeded,
    nothing_starts_while_a_queue_is_paused,
    a_renewal_that_gives_back_and_a_settle_count_once,
    families_end_whoever_of_them_is_cancelled,
    a_serial_queue_works_on_one_family_at_a_time,
    families_end_whatever_operators_do,
    what_operators_do_meanwhile_strands_nothing,
}

/// What the claimers of one test share.
struct Board {
    history: Arc<History>,
    /// Tasks that will have ended when the test is over.
    expected: AtomicUsize,
    ended: AtomicUsize,
    runs: Mutex<HashMap<TaskId, u32>>,
    /// How a task ends, given how often it was run before.
    plan: fn(&Claimed, u32) -> Outcome,
    /// What it spawns then, if it has completed.
    spawn: fn(&Claimed) -> Spawned,
}

impl Board {
    fn new(expected: usize, plan: fn(&Claimed, u32) -> Outcome) -> Arc<Self> {
        Self::of_families(expected, plan, |_| Spawned::default())
    }

    fn of_families(
        expected: usize,
        plan: fn(&Claimed, u32) -> Outcome,
        spawn: fn(&Claimed) -> Spawned,
    ) -> Arc<Self> {
        Arc::new(Self {
            history: History::shared(),
            expected: AtomicUsize::new(expected),
            ended: AtomicUsize::new(0),
            runs: Mutex::default(),
            plan,
            spawn,
        })
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst) >= self.expected.load(Ordering::SeqCst)
    }

    fn count(&self, settled: &[Settled]) {
        let ends = [Verdict::Completed, Verdict::Failed, Verdict::Cancelled];
        let ended = settled.iter().filter(|settled| ends.contains(&settled.verdict)).count();
        self.ended.fetch_add(ended, Ordering::SeqCst);
    }

    /// Some task from this one on, up to a few behind the last that was run.
    fn anybody(&self, first: i64) -> TaskId {
        let last = self.runs.lock().unwrap().keys().max().map_or(first, |id| id.0 + 5);
        TaskId(fastrand::i64(first..=last))
    }

    fn settle(&self, claimed: &Claimed) -> Settle {
        let mut runs = self.runs.lock().unwrap();
        let run = runs.entry(claimed.task.id).or_default();
        *run += 1;
        claimed.settle((self.plan)(claimed, *run - 1)).spawning((self.spawn)(claimed))
    }
}

/// Completes everything.
fn complete(_: &Claimed, _: u32) -> Outcome {
    Outcome::completed()
}

/// Every way to end, by the task's number.
fn mixed(claimed: &Claimed, runs: u32) -> Outcome {
    let after = Duration::from_millis(3);
    let retry = |after| Outcome::Retry { after, error: "not yet".into() };
    match (claimed.task.id.0 % 9, runs) {
        (1, 0 | 1) => retry(Duration::ZERO),
        (2, 0) => retry(after),
        (3, 0) => Outcome::Snooze { after },
        (4, 0) => Outcome::Snooze { after: Duration::ZERO },
        (5, 0 | 1) => Outcome::GivenBack,
        (6, _) => Outcome::Failed { error: "never".into() },
        _ => Outcome::completed(),
    }
}

/// Claims and settles until everything has ended.
async fn claimer(mut worker: RecordingWorker, board: Arc<Board>, max: u32) {
    claim_and_settle(&mut worker, &board, max, usize::MAX).await;
}

/// Claims and settles, at most so often. Now and then it settles only a part of what it holds.
async fn claim_and_settle(worker: &mut RecordingWorker, board: &Board, max: u32, steps: usize) {
    let mut running: Vec<Claimed> = vec![];
    for _ in 0..steps {
        if board.is_over() {
            break;
        }
        let kept = if fastrand::u8(..4) == 0 { running.len() / 2 } else { 0 };
        let settles = running.split_off(kept).iter().map(|one| board.settle(one)).collect::<Vec<_>>();
        let is_idle = settles.is_empty();
        let advanced = worker.step(settles, max).await;
        board.count(&advanced.settled);
        if is_idle && advanced.claimed.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        running.extend(advanced.claimed);
    }
}

async fn start_claimers(store: &TestStore, board: &Arc<Board>, crew: &mut JoinSet<()>, n: usize, max: u32) {
    for _ in 0..n {
        let worker = RecordingWorker::register(store.another().await, &board.history).await;
        crew.spawn(claimer(worker, Arc::clone(board), max));
    }
}

/// Waits until there is nothing in the store that has not ended, and stops the claimers.
async fn all_ended(crew: JoinSet<()>, board: &Board, store: &TestStore) {
    let is_open = async || store.counts().await.unwrap().iter().any(|count| !count.state.has_ended());
    let everything = tokio::time::timeout(PATIENCE, async {
        while is_open().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if everything.await.is_err() {
        panic!("not all ended: {:?}, {:?}", store.counts().await, store.verify().await);
    }
    board.expected.store(0, Ordering::SeqCst);
    all_done(crew, board, store).await;
}

/// Waits until all have done their part.
async fn all_done(crew: JoinSet<()>, board: &Board, store: &TestStore) {
    if tokio::time::timeout(PATIENCE, crew.join_all()).await.is_err() {
        let ended = board.ended.load(Ordering::SeqCst);
        let expected = board.expected.load(Ordering::SeqCst);
        let counts = store.counts().await;
        let violations = store.verify().await;
        panic!("only {ended} of {expected} ended after {PATIENCE:?}: {counts:?}, {violations:?}");
    }
}

fn new_task(task: ATask) -> NewTask {
    task.into()
}

/// Enqueues one task and writes that down.
async fn enqueue(store: &dyn Store, history: &History, task: ATask) -> TaskId {
    let task = new_task(task);
    let lane = task.lane.as_ref().map(|lane| lane.key.as_str().to_owned());
    let id = store.enqueue(task).await.expect("the task is valid").id;
    history.enqueued(id, lane.as_deref());
    id
}

/// Runs `one` and `other` at the same time, really: on tasks of their own.
async fn at_once<A: Send + 'static, B: Send + 'static>(
    one: impl Future<Output = A> + Send + 'static,
    other: impl Future<Output = B> + Send + 'static,
) -> (A, B) {
    let (one, other) = (tokio::spawn(one), tokio::spawn(other));
    (one.await.unwrap(), other.await.unwrap())
}

async fn many_workers_and_enqueuers_share_many_lanes(store: &TestStore, scale: Scale) {
    const ROUNDS: usize = 3;
    let loners = 40 * scale.enqueuers;
    let board = Board::new(scale.lanes * ROUNDS + loners, mixed);
    let mut crew = JoinSet::new();

    start_claimers(store, &board, &mut crew, scale.claimers, 7).await;
    for enqueuer in 0..scale.enqueuers {
        let (store, board) = (store.another().await, Arc::clone(&board));
        // A lane belongs to one enqueuer, so its tasks arrive one after the other.
        let lanes: Vec<_> = (enqueuer..scale.lanes).step_by(scale.enqueuers).collect();
        crew.spawn(async move {
            for round in 0..ROUNDS {
                for chunk in lanes.chunks(12) {
                    if round == 1 {
                        for lane in chunk {
                            enqueue(&*store, &board.history, a_task().lane(&lane.to_string())).await;
                        }
                        continue;
                    }
                    let tasks = chunk.iter().map(|lane| new_task(a_task().lane(&lane.to_string()))).collect();
                    for (stored, lane) in std::iter::zip(store.enqueue_many(tasks).await.unwrap(), chunk) {
                        board.history.enqueued(stored.id, Some(&lane.to_string()));
                    }
                }
            }
            for n in 0..40 {
                enqueue(&*store, &board.history, a_task().delay(Duration::from_millis(n % 4))).await;
            }
        });
    }
    all_done(crew, &board, store).await;

    board.history.check(&**store, &Rules::ordered()).await;
}

async fn two_workers_keep_the_order_of_one_lane_through_retries(store: &TestStore, scale: Scale) {
    fn retry_often(claimed: &Claimed, runs: u32) -> Outcome {
        let after = Duration::from_millis((claimed.task.id.0 % 3) as u64);
        match runs {
            0 if claimed.task.id.0 % 3 != 0 => Outcome::Retry { after, error: "not yet".into() },
            1 if claimed.task.id.0 % 5 == 0 => Outcome::GivenBack,
            _ => Outcome::completed(),
        }
    }
    let board = Board::new(scale.queued, retry_often);
    let ids = store.given_all(vec![a_task().lane("only"); scale.queued]).await;
    ids.iter().for_each(|id| board.history.enqueued(*id, Some("only")));

    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, 2, 5).await;
    all_done(crew, &board, store).await;

    board.history.check(&**store, &Rules::ordered()).await;
}

async fn a_lane_of_limit_three_never_runs_four(store: &TestStore, scale: Scale) {
    let board = Board::new(5 * 80, mixed);
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, (scale.claimers / 2).max(4), 4).await;
    for lane in ["a", "b", "c", "d", "e"] {
        let (store, board) = (store.another().await, Arc::clone(&board));
        crew.spawn(async move {
            for _ in 0..40 {
                enqueue(&*store, &board.history, a_task().lane_of(lane, 3)).await;
            }
            let many = vec![new_task(a_task().lane_of(lane, 3)); 40];
            for stored in store.enqueue_many(many).await.unwrap() {
                board.history.enqueued(stored.id, Some(lane));
            }
        });
    }
    all_done(crew, &board, store).await;

    let rules = ["a", "b", "c", "d", "e"].iter().fold(Rules::default(), |rules, lane| rules.limit(lane, 3));
    board.history.check(&**store, &rules).await;
}

async fn a_task_is_found_that_arrives_while_its_lane_runs_dry(store: &TestStore, scale: Scale) {
    let tasks = scale.rounds * 8;
    let board = Board::new(scale.enqueuers * tasks, complete);
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, 4, 2).await;
    for enqueuer in 0..scale.enqueuers {
        let (store, board) = (store.another().await, Arc::clone(&board));
        crew.spawn(async move {
            let lane = enqueuer.to_string();
            for _ in 0..tasks {
                let id = enqueue(&*store, &board.history, a_task().lane(&lane)).await;
                // The next one is sent just when the last one has been run: its lane's turn is being retired.
                let is_run = || board.runs.lock().unwrap().contains_key(&id);
                while !is_run() {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    all_done(crew, &board, store).await;

    board.history.check(&**store, &Rules::ordered()).await;
}

async fn a_settle_and_two_sweeps_at_once_count_once(store: &TestStore, scale: Scale) {
    let board = Board::new(0, complete);
    let [sweeper, rival] = [store.another().await, store.another().await];
    for round in 0..scale.rounds {
        let mut late = RecordingWorker::register(store.another().await, &board.history).await;
        for n in 0..12 {
            let task = if n < 4 { a_task() } else { a_task().lane(&format!("{round}-{}", n / 2)) };
            enqueue(&**store, &board.history, task).await;
        }
        let claimed = late.step(vec![], 12).await.claimed;
        let settles = claimed.iter().map(|one| one.settle(Outcome::completed())).collect::<Vec<_>>();
        let n = settles.len();
        late.stopped();
        store.advance_clock(secs(31)).await;

        let (sweeper, rival) = (Arc::clone(&sweeper), Arc::clone(&rival));
        let board_of_late = Arc::clone(&board);
        let settling = async move {
            let settled = late.step(settles, 0).await.settled;
            board_of_late.count(&settled);
            settled.iter().filter(|settled| settled.verdict.is_recorded()).count()
        };
        let sweeping = async move {
            let (one, other) = at_once(async move { sweeper.sweep().await.unwrap() }, async move {
                rival.sweep().await.unwrap()
            })
            .await;
            (one.given_back + other.given_back) as usize
        };
        let (recorded, given_back) = at_once(settling, sweeping).await;

        let swept_later = store.sweep().await.unwrap().given_back as usize;
        assert_eq!(recorded + given_back + swept_later, n, "each attempt is settled or given back, once");
        // Another crash or two would make them poison.
        board.expected.store((round + 1) * 12, Ordering::SeqCst);
        let mut crew = JoinSet::new();
        start_claimers(store, &board, &mut crew, 1, 20).await;
        all_done(crew, &board, store).await;
    }

    board.history.check(&**store, &Rules::ordered()).await;
}

async fn a_cancel_against_claims_and_settles_has_one_answer(store: &TestStore, scale: Scale) {
    let board = Board::new(usize::MAX, mixed);
    let mut ids = vec![];
    for n in 0..scale.rounds * 12 {
        let lane = (n % 20).to_string();
        let task = match n % 3 {
            0 => a_task().delay(Duration::from_millis(n as u64 % 50)),
            1 => a_task().lane_of(&format!("wide-{lane}"), 3),
            _ => a_task().lane(&lane),
        };
        ids.push(enqueue(&**store, &board.history, task).await);
    }

    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, scale.claimers / 2, 5).await;
    let canceller = store.another().await;
    let (answers, history) = (Arc::new(Mutex::new(vec![])), Arc::clone(&board.history));
    let (written, mut targets) = (Arc::clone(&answers), ids.clone());
    fastrand::shuffle(&mut targets);
    targets.truncate(ids.len() * 2 / 3);
    crew.spawn(async move {
        for id in targets {
            history.record(Event::MayEnd { task: id });
            let answer = canceller.cancel(id).await.unwrap();
            written.lock().unwrap().push((id, answer));
        }
    });
    all_ended(crew, &board, store).await;

    let answers = answers.lock().unwrap().clone();
    for (id, answer) in answers {
        let state = store.state(id).await;
        match answer {
            Cancel::Cancelled => assert_eq!(state, State::Cancelled, "task {id}"),
            Cancel::Requested => assert!(state.has_ended(), "task {id}"),
            Cancel::Ended(before) => assert_eq!(state, before, "task {id}"),
            Cancel::NotFound => panic!("task {id} was in no place for a moment"),
        }
    }
    let rules = (0..20).fold(Rules::default(), |rules, lane| rules.limit(&format!("wide-{lane}"), 3));
    board.history.check(&**store, &rules).await;
}

async fn a_limit_that_goes_up_and_down_is_never_exceeded(store: &TestStore, scale: Scale) {
    const TASKS: usize = 240;
    let board = Board::new(TASKS, mixed);
    for _ in 0..TASKS {
        enqueue(&**store, &board.history, a_task().lane("a")).await;
    }
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, (scale.claimers / 2).max(4), 3).await;
    let (operator, watched) = (store.another().await, Arc::clone(&board));
    crew.spawn(async move {
        while !watched.is_over() {
            let settings = LaneSettings { limit: Some(limit_of(fastrand::u32(1..=4))), ..Default::default() };
            operator.set_lane(&QueueName::default(), &lane_key("a"), settings).await.unwrap();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
        }
    });
    all_done(crew, &board, store).await;
    board.history.check(&**store, &Rules::default().limit("a", 4)).await;

    // Once it is at one and what ran has ended, the lane is ordered again.
    store.limit_lane("a", 1).await;
    let calm = Board::new(60, mixed);
    board.history.acknowledged().iter().for_each(|id| calm.history.enqueued(*id, Some("a")));
    for _ in 0..60 {
        enqueue(&**store, &calm.history, a_task().lane("a")).await;
    }
    let mut crew = JoinSet::new();
    start_claimers(store, &calm, &mut crew, 4, 3).await;
    all_done(crew, &calm, store).await;
    let before = board.history.acknowledged();
    before.iter().for_each(|id| calm.history.record(Event::MayEnd { task: *id }));
    calm.history.check(&**store, &Rules::ordered()).await;
}

async fn nothing_starts_while_a_queue_is_paused(store: &TestStore, scale: Scale) {
    const TASKS: usize = 400;
    let board = Board::new(TASKS, mixed);
    for n in 0..TASKS {
        let task = if n % 2 == 0 { a_task() } else { a_task().lane(&(n % 40).to_string()) };
        enqueue(&**store, &board.history, task).await;
    }
    // Odd while the queue is surely paused: set after the pause is answered, left before the resume is sent.
    let epoch = Arc::new(AtomicUsize::new(0));
    let mut crew = JoinSet::new();
    for _ in 0..scale.claimers / 2 {
        let mut worker = RecordingWorker::register(store.another().await, &board.history).await;
        let (board, epoch) = (Arc::clone(&board), Arc::clone(&epoch));
        crew.spawn(async move {
            let mut settles = vec![];
            while !board.is_over() {
                let before = epoch.load(Ordering::SeqCst);
                let advanced = worker.step(std::mem::take(&mut settles), 2).await;
                let was_paused = before % 2 == 1 && epoch.load(Ordering::SeqCst) == before;
                assert!(
                    !was_paused || advanced.claimed.is_empty(),
                    "a paused queue gave out {:?}",
                    advanced.claimed
                );
                board.count(&advanced.settled);
                settles = advanced.claimed.iter().map(|one| board.settle(one)).collect();
                tokio::task::yield_now().await;
            }
        });
    }
    let (operator, watched) = (store.another().await, Arc::clone(&board));
    crew.spawn(async move {
        while !watched.is_over() {
            operator.pause_queue(&QueueName::default()).await.unwrap();
            epoch.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..15))).await;
            epoch.fetch_add(1, Ordering::SeqCst);
            operator.resume_queue(&QueueName::default()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..15))).await;
        }
    });
    all_done(crew, &board, store).await;

    board.history.check(&**store, &Rules::ordered()).await;
}

async fn a_renewal_that_gives_back_and_a_settle_count_once(store: &TestStore, scale: Scale) {
    let board = Board::new(scale.rounds * 6, complete);
    let mut worker = RecordingWorker::register(store.another().await, &board.history).await;
    let renewer = store.another().await;
    for round in 0..scale.rounds {
        for n in 0..6 {
            let task = if n < 2 { a_task() } else { a_task().lane(&format!("{round}-{n}")) };
            enqueue(&**store, &board.history, task).await;
        }
        let claimed = worker.step(vec![], 6).await.claimed;
        // Half of them: the others of the lease are given back, or are lost with the lease.
        let settles =
            claimed.iter().step_by(2).map(|one| one.settle(Outcome::completed())).collect::<Vec<_>>();
        worker.stopped();

        let renewal = Renewal {
            session: worker.session,
            capacity: Capacity::default(),
            leases: vec![],
            advance_number: worker.number,
        };
        let renewer = Arc::clone(&renewer);
        let renewing = async move { renewer.renew(renewal).await.unwrap() };
        let settling = async move {
            let settled = worker.step(settles, 0).await.settled;
            (worker, settled)
        };
        let (renewed, (back, settled)) = at_once(renewing, settling).await;
        worker = back;

        board.count(&settled);
        let recorded = settled.iter().filter(|settled| settled.verdict.is_recorded()).count();
        let Renewed::Alive(orders) = renewed else { panic!("the session lives") };
        let again = worker.store.renew(Renewal {
            session: worker.session,
            capacity: Capacity::default(),
            leases: vec![],
            advance_number: worker.number,
        });
        let Renewed::Alive(later) = again.await.unwrap() else { panic!("the session lives") };
        let given_back = (orders.given_back + later.given_back) as usize;
        assert_eq!(recorded + given_back, claimed.len(), "each attempt is settled or given back, once");
    }
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, 2, 20).await;
    all_done(crew, &board, store).await;

    board.history.check(&**store, &Rules::ordered()).await;
}

/// PostgreSQL alone can hold an enqueue open: in a transaction of the application.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_transaction_that_commits_late_are_found_and_break_no_order() {
    use laneway_core::Store;
    let database = laneway_testkit::cluster::Cluster::shared().await.database().await.unwrap();
    let open = async || {
        let options = laneway_postgres::PostgresOptions::new(&database.url).pool_size(2);
        laneway_postgres::PostgresStore::open(options).await.unwrap()
    };
    let store = open().await;
    let lanes: Vec<String> = (0..10).map(|lane| lane.to_string()).collect();
    let board = Board::new(8 * 10 + 8 * 20, mixed);
    let mut crew = JoinSet::new();
    for _ in 0..4 {
        let worker = RecordingWorker::register(Arc::new(open().await), &board.history).await;
        crew.spawn(claimer(worker, Arc::clone(&board), 3));
    }

    for _ in 0..8 {
        let mut application = database.connect().await.unwrap();
        let transaction = application.transaction().await.unwrap();
        let late = lanes.iter().map(|lane| new_task(a_task().lane(lane))).collect();
        let late = ids_of(&store.enqueue_in(&transaction, late).await.unwrap());
        let mut last = TaskId(0);
        for n in 0..20 {
            last = enqueue(&store, &board.history, a_task().lane(&lanes[n % lanes.len()])).await;
        }
        until("younger tasks run while the transaction is open", async || {
            board.runs.lock().unwrap().contains_key(&last)
        })
        .await;
        transaction.commit().await.unwrap();
        std::iter::zip(&late, &lanes).for_each(|(id, lane)| board.history.enqueued(*id, Some(lane)));
    }
    if tokio::time::timeout(PATIENCE, crew.join_all()).await.is_err() {
        panic!("not all ended: {:?}, {:?}", store.counts().await, store.verify().await);
    }

    // Ids of one lane were not committed in their order.
    board.history.check(&store, &Rules::default()).await;
}

/// What a task spawns that may be of any generation: of three there are children.
fn a_family(claimed: &Claimed) -> Spawned {
    let (id, task) = (claimed.task.id.0, &claimed.task);
    let child = |n: i64| match n % 3 {
        0 => new_task(a_task().lane(&format!("narrow-{}", id % 4))),
        1 => new_task(a_task().lane_of(&format!("wide-{}", id % 4), 3)),
        _ => new_task(a_task()),
    };
    let policies = [FamilyPolicy::WaitAll, FamilyPolicy::FailFast, FamilyPolicy::Ignore];
    let children = match task.depth {
        _ if task.options.step > 0 => 0,
        0 => 7,
        1 if id % 5 == 0 => 3,
        _ => 0,
    };
    Spawned {
        children: (0..children).map(child).collect(),
        siblings: (0..i64::from(task.depth > 0 && id % 7 == 0)).map(child).collect(),
        policy: policies[id as usize % 3],
        then: id % 2 == 0 && children > 0,
        ..Spawned::default()
    }
}

/// Tasks that will have families, every other one in a lane.
async fn given_parents(store: &TestStore, n: usize) -> Vec<TaskId> {
    let mut parents = vec![];
    for n in 0..n {
        let task = if n % 2 == 0 { a_task() } else { a_task().lane(&format!("parents-{}", n % 7)) };
        parents.push(store.enqueue(task.into()).await.unwrap().id);
    }
    parents
}

/// The lanes in which [`a_family`] lives.
fn rules_of_families() -> Rules {
    (0..4).fold(Rules::default(), |rules, lane| rules.limit(&format!("wide-{lane}"), 3))
}

/// Families of three generations, in lanes and without, and somebody who cancels whomever he meets.
async fn families_end_whoever_of_them_is_cancelled(store: &TestStore, scale: Scale) {
    let board = Board::of_families(usize::MAX, mixed, a_family);
    let parents = given_parents(store, scale.rounds * 2).await;
    work_off_and_cancel(store, &board, scale, parents[0].0).await;

    for parent in parents {
        let Some(family) = store.family(parent).await.unwrap() else { continue };
        let children = store.children(Children::of(parent)).await.unwrap();
        let told = (family.total, family.open, family.completed + family.failed + family.cancelled);
        assert_eq!(told, (children.len() as u64, 0, children.len() as u64), "family of {parent}");
    }
    check_families(&**store).await;
    board.history.check_what_ran(&**store, &rules_of_families()).await;
}

/// The same families, with follow-ups, whose members are cancelled, deleted, put off and started anew.
async fn families_end_whatever_operators_do(store: &TestStore, scale: Scale) {
    fn spawn(claimed: &Claimed) -> Spawned {
        if claimed.task.options.resume {
            return Spawned { again: true, ..Spawned::default() };
        }
        if claimed.task.kind == kind("after") {
            return Spawned::default();
        }
        let on_failure = fastrand::choice([FollowUpOnFailure::Drop, FollowUpOnFailure::Keep]).unwrap();
        let follow_up = FollowUp { task: new_task(a_task().kind("after")), on_failure };
        Spawned { follow_ups: vec![follow_up; fastrand::usize(..2)], ..a_family(claimed) }
    }
    let board = Board::of_families(usize::MAX, mixed, spawn);
    let first = given_parents(store, scale.rounds).await[0].0;
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, scale.claimers / 2, 5).await;
    let mut operators = JoinSet::new();
    for _ in 0..3 {
        let (store, board) = (store.another().await, Arc::clone(&board));
        operators.spawn(async move {
            for _ in 0..scale.rounds * 5 {
                let action = match fastrand::u8(..6) {
                    0 => Action::Cancel,
                    1 => Action::Delete,
                    2 => Action::Snooze(Duration::from_millis(fastrand::u64(..5))),
                    3 => Action::Retry,
                    _ => Action::RetryChildren,
                };
                let tasks: Vec<_> = (0..fastrand::u8(1..=3)).map(|_| board.anybody(first)).collect();
                unless_busy(store.act(&Actor::program(), action, &tasks).await);
            }
        });
    }
    operators.join_all().await;
    all_ended(crew, &board, store).await;

    check_families(&**store).await;
    board.history.check_what_ran(&**store, &rules_of_families()).await;
}

/// Works everything off, while somebody cancels whomever he meets of the tasks from `first` on.
async fn work_off_and_cancel(store: &TestStore, board: &Arc<Board>, scale: Scale, first: i64) {
    let mut crew = JoinSet::new();
    start_claimers(store, board, &mut crew, scale.claimers / 2, 5).await;
    let (canceller, watched) = (store.another().await, Arc::clone(board));
    crew.spawn(async move {
        for _ in 0..scale.rounds * 10 {
            canceller.cancel(watched.anybody(first)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..3))).await;
        }
    });
    all_ended(crew, board, store).await;
}

/// The next parent starts when the last one has ended, with all its children, whoever was cancelled.
async fn a_serial_queue_works_on_one_family_at_a_time(store: &TestStore, scale: Scale) {
    fn children_fail(claimed: &Claimed, runs: u32) -> Outcome {
        // Of a parent that runs once it is known when it has started.
        if claimed.task.depth == 0 { Outcome::completed() } else { mixed(claimed, runs) }
    }
    fn spawn(claimed: &Claimed) -> Spawned {
        let id = claimed.task.id.0;
        Spawned {
            children: vec![new_task(a_task()); if claimed.task.depth == 0 { 5 } else { 0 }],
            siblings: vec![new_task(a_task()); usize::from(claimed.task.depth > 0 && id % 4 == 0)],
            policy: if id % 2 == 0 { FamilyPolicy::WaitAll } else { FamilyPolicy::FailFast },
            ..Spawned::default()
        }
    }
    let settings = QueueSettings { serial: Some(Serial::Children(3)), ..Default::default() };
    store.set_queue(&QueueName::default(), settings).await.unwrap();
    let board = Board::of_families(usize::MAX, children_fail, spawn);
    let parents = ids_of(&store.enqueue_many(vec![new_task(a_task()); scale.rounds]).await.unwrap());
    work_off_and_cancel(store, &board, scale, parents[0].0).await;

    let mut times = vec![];
    for parent in parents {
        let view = store.view(parent).await;
        times.extend(view.started_at.map(|started| (started, view.ended_at.unwrap(), parent)));
    }
    for pair in times.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{} started before {} had ended", pair[1].2, pair[0].2);
    }
    board.history.check_what_ran(&**store, &Rules::default()).await;
}

/// Everything at once: tasks of two kinds in all sorts of lanes, workers that come and go and of which some run one kind only, and
/// operators who change whatever they meet.
async fn what_operators_do_meanwhile_strands_nothing(store: &TestStore, scale: Scale) {
    let board = Board::new(usize::MAX, mixed);
    let paced = LaneSettings { interval: Some(Duration::from_millis(2)), ..Default::default() };
    let halting = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
    for (lane, settings) in [("paced", paced), ("halting", halting)] {
        store.set_lane(&QueueName::default(), &lane_key(lane), settings).await.unwrap();
    }
    let mut crew = JoinSet::new();
    start_claimers(store, &board, &mut crew, scale.claimers / 4, 5).await;
    for n in 0..scale.claimers / 2 {
        let (store, board) = (store.another().await, Arc::clone(&board));
        crew.spawn(async move {
            while !board.is_over() {
                let mut worker = RecordingWorker::register(Arc::clone(&store), &board.history).await;
                if n % 2 == 0 {
                    worker.kinds = Kinds::Only(vec![kind("work")]);
                }
                claim_and_settle(&mut worker, &board, 4, 10).await;
                worker.stopped();
                store.deregister(worker.session).await.unwrap();
            }
        });
    }
    let ids = Arc::new(Mutex::new(vec![]));
    let mut others = JoinSet::new();
    for _ in 0..scale.enqueuers / 2 {
        let (store, ids) = (store.another().await, Arc::clone(&ids));
        others.spawn(async move {
            for _ in 0..scale.rounds * 4 {
                let tasks = (0..fastrand::usize(1..4)).map(|_| any_task()).collect();
                let stored = store.enqueue_many(tasks).await.unwrap();
                ids.lock().unwrap().extend(ids_of(&stored));
            }
        });
    }
    for _ in 0..3 {
        let (store, ids) = (store.another().await, Arc::clone(&ids));
        others.spawn(async move {
            for _ in 0..scale.rounds * 10 {
                let id = fastrand::choice(ids.lock().unwrap().iter().copied()).unwrap_or(TaskId(1));
                operate(&*store, id).await;
            }
        });
    }
    others.join_all().await;
    // What has failed may have halted its lane again.
    let (operator, watched) = (store.another().await, Arc::clone(&board));
    crew.spawn(async move {
        while !watched.is_over() {
            operator.resume_lane(&QueueName::default(), &lane_key("halting")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    all_ended(crew, &board, store).await;

    let rules = (0..4).fold(Rules::default(), |rules, lane| rules.limit(&format!("wide-{lane}"), 4));
    board.history.check_what_ran(&**store, &rules).await;
}

fn any_task() -> NewTask {
    let task = a_task().kind(fastrand::choice(["work", "other"]).unwrap()).priority(fastrand::i32(-1..=1));
    let n = fastrand::u8(..4);
    let task = match fastrand::u8(..10) {
        0 | 1 => task,
        2 => task.delay(Duration::from_millis(n.into())),
        3 => task.lane("paced"),
        4 => task.lane("halting"),
        5 => task.lane(&format!("narrow-{n}")).unique(&n.to_string()),
        6 => task.lane(&format!("narrow-{n}")),
        7 => task.lane(&format!("wide-{n}")),
        _ => task.lane_of(&format!("wide-{n}"), 3),
    };
    new_task(task)
}

/// One thing that operators do: to this task or to some lane.
async fn operate(store: &dyn Store, task: TaskId) {
    let (me, queue) = (Actor::program(), QueueName::default());
    let wide = lane_key(&format!("wide-{}", fastrand::u8(..4)));
    let priority = fastrand::i32(-2..=2);
    let action = match fastrand::u8(..14) {
        0 => Action::Cancel,
        1 | 2 => Action::Retry,
        3 => Action::Delete,
        4 | 5 => Action::Snooze(Duration::from_millis(fastrand::u64(..5))),
        6 => Action::SetPriority(priority),
        7 => {
            let edit = Edit { payload: Some(Json::encode(&priority).unwrap()), priority: Some(priority) };
            return unless_busy(store.edit(&me, task, edit).await);
        }
        8 | 9 => {
            let settings = LaneSettings { limit: Some(limit_of(fastrand::u32(1..=4))), ..Default::default() };
            return unless_busy(store.set_lane(&queue, &wide, settings).await);
        }
        10 | 11 => return unless_busy(store.resume_lane(&queue, &lane_key("halting")).await),
        n => {
            let what = if n == 12 { Pausable::Lane(queue, wide) } else { Pausable::Kind(kind("other")) };
            unless_busy(store.pause(&me, &what, None).await);
            tokio::time::sleep(Duration::from_millis(2)).await;
            // Perhaps somebody else has paused it after us.
            loop {
                let resumed = store.resume(&me, &what).await;
                if resumed.is_ok() {
                    return;
                }
                unless_busy(resumed);
            }
        }
    };
    unless_busy(store.act(&me, action, &[task]).await);
}

/// Whoever meets somebody who holds what he wants is told so after two seconds, and may try again.
fn unless_busy<T>(answer: Result<T, StoreError>) {
    if let Err(error) = answer {
        assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    }
}
