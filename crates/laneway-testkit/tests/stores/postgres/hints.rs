//! Hints on PostgreSQL: the listener, and falling asleep without missing a task.

use std::time::Duration;

use crate::support::{Fixture, fixture, new_tasks, worker};
use futures_util::{StreamExt, stream};
use laneway_core::{Hint, Hints, Kinds, LaneKey, LaneSettings, OnFailure, Sleep, Store};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, ClusterOptions};
use laneway_testkit::store::{a_task, queue, secs, soon, until};
use laneway_testkit::worker::{TestWorker, failed, ids, retry_after};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const CHANNEL: &str = "laneway:laneway";

/// Somebody who hears every notification of the store's channel.
struct Ear {
    client: Client,
    heard: mpsc::UnboundedReceiver<String>,
}

impl Ear {
    async fn on(url: &str) -> Self {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let (sender, heard) = mpsc::unbounded_channel();
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    let _ = sender.send(notification.payload().to_owned()); // nobody listens any more
                }
            }
        });
        client.batch_execute(&format!("listen \"{CHANNEL}\"")).await.unwrap();
        Self { client, heard }
    }

    /// What was sent since the last call. Notifications arrive in the order of commits, so an own one marks the end.
    async fn all(&mut self) -> Vec<String> {
        self.client.batch_execute(&format!("notify \"{CHANNEL}\", 'end'")).await.unwrap();
        let mut heard = vec![];
        loop {
            let payload =
                soon("the own notification", self.heard.recv()).await.expect("the ear is connected");
            match payload.as_str() {
                "end" => return heard,
                probe if probe.starts_with("probe") => (),
                _ => heard.push(payload),
            }
        }
    }
}

async fn sleep(store: &PostgresStore, worker: &TestWorker) {
    let sleep = Sleep { session: worker.session(), queues: vec![queue("default")], at_most: secs(60) };
    store.fall_asleep(sleep).await.unwrap();
}

/// A receiver of hints on a store whose listener hears.
async fn listening(store: &PostgresStore) -> Hints {
    let mut hints = store.hints();
    until("the listener hears", async || store.is_listening()).await;
    hints.clear();
    hints
}

#[tokio::test]
async fn a_hint_reaches_a_sleeper() {
    let fixture = fixture().await;
    let mut hints = listening(&fixture.store).await;
    let mut sleeper = fixture.worker().await;
    sleep(&fixture.store, &sleeper).await;

    let id = fixture.given(a_task()).await;

    let hint = soon("a hint", hints.next()).await;
    assert_eq!(hint, Some(Hint::of(queue("default"), 1)));
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

#[tokio::test]
async fn nothing_is_sent_while_nobody_sleeps() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    let mut busy = fixture.worker().await;

    fixture.given(a_task()).await;
    fixture.given(a_task().lane("a")).await;
    fixture.given(a_task().delay(secs(1))).await;
    fixture.store.enqueue_many(vec![a_task().into(); 300]).await.unwrap();
    let claimed = busy.claim(10).await;
    busy.settle(&claimed[0], retry_after(secs(1))).await;
    busy.complete(&claimed[1..]).await;
    fixture.store.sweep().await.unwrap();
    busy.deregister().await;

    assert_eq!(ear.all().await, Vec::<String>::new());
}

#[tokio::test]
async fn nothing_is_sent_to_those_who_have_woken_up_or_sleep_elsewhere() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    let sleeper = fixture.worker().await;
    sleep(&fixture.store, &sleeper).await;

    fixture.given(a_task().queue("elsewhere")).await;
    assert_eq!(ear.all().await, Vec::<String>::new());
    fixture.given(a_task()).await;
    assert_eq!(ear.all().await, ["1\tdefault\t*"]);
    fixture.store.wake_up(sleeper.session()).await.unwrap();
    fixture.given(a_task()).await;

    assert_eq!(ear.all().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_dozen_of_many_sleepers_are_told_by_name() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    for _ in 0..20 {
        sleep(&fixture.store, &fixture.worker().await).await;
    }

    fixture.given(a_task()).await;

    let heard = ear.all().await;
    let parts: Vec<_> = heard[0].split('\t').collect();
    assert_eq!((heard.len(), parts[0], parts[1]), (1, "20", "default"));
    assert_eq!(parts[2].split(',').count(), 12);
}

#[tokio::test]
async fn a_sleeper_that_is_not_named_is_left_asleep() {
    let fixture = fixture().await;
    let mut hints = listening(&fixture.store).await;
    sleep(&fixture.store, &fixture.worker().await).await;
    let client = fixture.connect().await;

    let notify = |payload: &str| format!("notify \"{CHANNEL}\", '{payload}'");
    client.batch_execute(&notify("20\tdefault\tdeadbeef")).await.unwrap();
    client.batch_execute(&notify("not ours at all")).await.unwrap();
    client.batch_execute(&notify("3\tother\t*")).await.unwrap();

    assert_eq!(soon("a hint", hints.next()).await, Some(Hint::of(queue("other"), 3)));
}

#[tokio::test]
async fn the_listener_comes_back_when_its_connection_is_ended_and_hints_at_once() {
    let fixture = fixture().await;
    let mut hints = listening(&fixture.store).await;
    let sleeper = fixture.worker().await;
    sleep(&fixture.store, &sleeper).await;

    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and query like 'listen %' and pid <> pg_backend_pid()";
    assert_eq!(fixture.value::<i64>(end).await, 1);

    // Something may have been missed meanwhile, so reconnecting is a hint.
    assert_eq!(soon("a hint after the reconnect", hints.next()).await, Some(Hint::any()));
    until("the listener hears again", async || fixture.store.is_listening()).await;
    fixture.given(a_task()).await;
    let hint = soon("a hint", hints.next()).await;
    assert_eq!(hint, Some(Hint::of(queue("default"), 1)));
}

#[tokio::test]
async fn everything_works_without_hints() {
    let fixture = fixture().await;
    let silent = PostgresOptions::new(&fixture.database.url).hints(false);
    let store = PostgresStore::open(silent).await.unwrap();
    let hints = store.hints();
    let mut sleeper = worker(&store).await;
    sleep(&store, &sleeper).await;

    let id = store.enqueue(a_task().into()).await.unwrap().id;

    let claimed = sleeper.claim(1).await;
    assert_eq!(ids(&claimed), [id]);
    sleeper.complete(&claimed).await;
    assert!(!store.is_listening() && !hints.is_pending());
    let listeners =
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'";
    assert_eq!(fixture.value::<i64>(listeners).await, 0);
}

#[tokio::test]
async fn the_listener_ends_with_its_store() {
    let fixture = fixture().await;
    let second = crate::support::open(&fixture.database.url).await;
    listening(&second).await;
    let listeners =
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'";
    assert_eq!(fixture.value::<i64>(listeners).await, 1);

    drop(second);

    // Its connection is looked after every ten seconds; a notification is noticed at once.
    let client = fixture.connect().await;
    until("the listener has gone", async || {
        client.batch_execute(&format!("notify \"{CHANNEL}\", 'anybody?'")).await.unwrap();
        fixture.value::<i64>(listeners).await == 0
    })
    .await;
}

#[tokio::test]
async fn a_sleeper_is_hinted_when_a_retry_will_be_due_before_it_wakes() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    fixture.given(a_task()).await;
    let mut busy = fixture.worker().await;
    let running = busy.claim_one().await;
    sleep(&fixture.store, &fixture.worker().await).await;

    // The only one who knows of the due time stops right after it.
    busy.settle(&running, retry_after(secs(5))).await;
    busy.deregister().await;

    assert_eq!(ear.all().await, ["1\tdefault\t*"]);
}

#[tokio::test]
async fn a_delayed_task_above_read_committed_hints_those_who_would_oversleep_it() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    let sleeper = fixture.worker().await;
    let short = Sleep { session: sleeper.session(), queues: vec![queue("default")], at_most: secs(0) };
    fixture.store.fall_asleep(short).await.unwrap();
    let client = fixture.connect().await;
    client.batch_execute("begin isolation level repeatable read; select 1").await.unwrap();

    // The old snapshot shows a sleeper that is about to wake up; by now it sleeps for a minute.
    sleep(&fixture.store, &sleeper).await;
    client.batch_execute("select laneway.enqueue('work', delay => '30 seconds'); commit").await.unwrap();

    assert_eq!(ear.all().await.len(), 1);
}

// ---- The fence, step by step ---------------------------------------------------------------------------------

/// A transaction that makes something claimable. Its steps are begin, act, end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Producer {
    Enqueue,
    EnqueueIntoLane,
    EnqueueRepeatableRead,
    EnqueueRolledBack,
    Settle,
    GiveBack,
    Sweep,
    Due,
    ResumeQueue,
    ResumeLane,
    RaiseLimit,
    CancelBackOff,
}

impl Producer {
    const ALL: [Self; 12] = [
        Self::Enqueue,
        Self::EnqueueIntoLane,
        Self::EnqueueRepeatableRead,
        Self::EnqueueRolledBack,
        Self::Settle,
        Self::GiveBack,
        Self::Sweep,
        Self::Due,
        Self::ResumeQueue,
        Self::ResumeLane,
        Self::RaiseLimit,
        Self::CancelBackOff,
    ];

    fn begin(self) -> &'static str {
        match self {
            Self::EnqueueRepeatableRead => "begin isolation level repeatable read; select 1",
            _ => "begin",
        }
    }

    fn end(self) -> &'static str {
        if self == Self::EnqueueRolledBack { "rollback" } else { "commit" }
    }

    /// Brings the store to where the act makes something claimable, and returns the act.
    async fn prepare(self, stage: &Stage) -> String {
        let fixture = &stage.fixture;
        let (default, lane) = (queue("default"), LaneKey::new("a").unwrap());
        let busy_with_two_in_a_lane = async || {
            fixture.store.enqueue_many(new_tasks([a_task().lane("a"), a_task().lane("a")])).await.unwrap();
            let mut busy = fixture.worker().await;
            let claimed = busy.claim_one().await;
            (busy, claimed)
        };
        match self {
            Self::Enqueue | Self::EnqueueRepeatableRead | Self::EnqueueRolledBack => {
                "select laneway.enqueue('work')".into()
            }
            Self::EnqueueIntoLane => "select laneway.enqueue('work', lane => 'a')".into(),
            Self::Settle => {
                let (busy, claimed) = busy_with_two_in_a_lane().await;
                format!(
                    "select laneway.settle('{}', {}, '{}', {}, 'completed')",
                    busy.session(),
                    claimed.lease.id.0,
                    claimed.lease.token.0,
                    claimed.task.id
                )
            }
            Self::GiveBack => {
                fixture.given(a_task()).await;
                let mut busy = fixture.worker().await;
                let _running = busy.claim_one().await;
                format!("select laneway.deregister('{}')", busy.session())
            }
            Self::Sweep => {
                fixture.given(a_task().lane("a")).await;
                let mut dead = fixture.worker().await;
                let _running = dead.claim_one().await;
                fixture.silence(&dead).await;
                "select laneway.sweep()".into()
            }
            Self::Due => {
                fixture.given(a_task().delay(secs(60))).await;
                stage
                    .producer
                    .batch_execute("update laneway.later set due_at = now() - interval '1 s'")
                    .await
                    .unwrap();
                let other = fixture.worker().await;
                format!(
                    "select laneway.advance('{}', 1, false, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', \
                     array['other'], array[1], array[null]::text[], array[null]::text[], null)",
                    other.session()
                )
            }
            Self::ResumeQueue => {
                fixture.store.pause_queue(&default).await.unwrap();
                fixture.given(a_task()).await;
                "select laneway.resume('ann', null, 'queue', 'default', '')".into()
            }
            Self::ResumeLane => {
                let halting = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
                fixture.store.set_lane(&default, &lane, halting).await.unwrap();
                let (mut busy, claimed) = busy_with_two_in_a_lane().await;
                busy.settle(&claimed, failed()).await;
                busy.claim(1).await;
                "select laneway.resume_lane('ann', null, 'default', 'a')".into()
            }
            Self::RaiseLimit => {
                let _running = busy_with_two_in_a_lane().await;
                "select laneway.set_lane('default', 'a', 2, null, null)".into()
            }
            Self::CancelBackOff => {
                let (mut busy, claimed) = busy_with_two_in_a_lane().await;
                busy.settle(&claimed, retry_after(secs(600))).await;
                format!("select laneway.cancel({})", claimed.task.id)
            }
        }
    }
}

/// The two sides of the race, on a server where nobody else takes transaction ids.
struct Stage {
    fixture: Fixture,
    announcer: Client,
    producer: Client,
    ear: Ear,
    worker: TestWorker,
    _cluster: Cluster,
}

/// What a worker has learnt on its way to sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Drowsy {
    fence: i64,
    passed: bool,
    claimed: usize,
    asleep: bool,
}

/// The worker's steps: the announcement is written, committed, the fence taken, looked at, a claim, a plain look.
const WORKER_STEPS: usize = 6;
const PRODUCER_STEPS: usize = 3;

impl Stage {
    async fn set() -> Self {
        let cluster = Cluster::start(ClusterOptions::default()).await.unwrap();
        let database = cluster.database().await.unwrap();
        let quiet = "alter system set autovacuum = off";
        let announcer = database.connect().await.unwrap();
        announcer.batch_execute(quiet).await.unwrap();
        announcer.batch_execute("select pg_reload_conf()").await.unwrap();
        let producer = database.connect().await.unwrap();
        let ear = Ear::on(&database.url).await;
        let fixture = Fixture { store: crate::support::open(&database.url).await, database };
        let worker = fixture.worker().await;
        Self { fixture, announcer, producer, ear, worker, _cluster: cluster }
    }

    async fn clear(&mut self) {
        let tables = [
            "task", "later", "lease", "settled", "turn", "mark", "lane", "parked", "halt", "queue", "sleeper",
        ];
        let deletes = tables.map(|table| format!("delete from laneway.{table};")).concat();
        let others = format!("delete from laneway.worker where session <> '{}'", self.worker.session());
        self.producer.batch_execute(&format!("{deletes}{others}")).await.unwrap();
        self.ear.all().await;
    }

    async fn worker_step(&mut self, step: usize, drowsy: &mut Drowsy) {
        if drowsy.claimed > 0 {
            return;
        }
        let value = async |query: String| self.announcer.query_one(&query, &[]).await.unwrap();
        match step {
            0 => {
                let sleep = format!(
                    "begin; select laneway.fall_asleep('{}', '{{default}}', 60000)",
                    self.worker.session()
                );
                self.announcer.batch_execute(&sleep).await.unwrap();
            }
            1 => self.announcer.batch_execute("commit").await.unwrap(),
            2 => drowsy.fence = value("select laneway.fence()".into()).await.get(0),
            3 => drowsy.passed = value(format!("select laneway.fence_passed({})", drowsy.fence)).await.get(0),
            4 => drowsy.claimed = self.worker.claim(10).await.len(),
            _ => {
                let claimable =
                    self.fixture.store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap();
                drowsy.asleep = drowsy.passed && !claimable;
            }
        }
    }

    async fn producer_step(&self, step: usize, producer: Producer, act: &str) {
        let text = [producer.begin(), act, producer.end()][step];
        self.producer.batch_execute(text).await.unwrap();
    }

    /// One interleaving: `order` says whose step is next, true for the producer.
    async fn play(&mut self, producer: Producer, order: &[bool]) -> Drowsy {
        self.clear().await;
        let act = producer.prepare(self).await;
        let (mut drowsy, mut worker_step, mut producer_step) = (Drowsy::default(), 0, 0);
        for producers_turn in order {
            if *producers_turn {
                soon("the producer's step", self.producer_step(producer_step, producer, &act)).await;
                producer_step += 1;
            } else {
                soon("the worker's step", self.worker_step(worker_step, &mut drowsy)).await;
                worker_step += 1;
            }
        }
        drowsy
    }

    /// Everybody has ended. What there is must have been claimed, or the worker is awake or has been told.
    async fn judge(&mut self, producer: Producer, order: &[bool], drowsy: Drowsy) {
        let told = self.ear.all().await.iter().any(|payload| payload.contains("\tdefault\t"));
        let produced = producer != Producer::EnqueueRolledBack;
        let scene = format!("{producer:?} {order:?} {drowsy:?}");
        if drowsy.claimed > 0 {
            assert!(produced, "{scene}: claimed what was rolled back");
            return;
        }
        assert!(
            !drowsy.asleep || told || !produced,
            "{scene}: sleeps, was not told, and something is claimable"
        );
        // Awake or woken, the next claim finds it.
        let found = self.worker.claim(10).await.len();
        assert_eq!(found > 0, produced, "{scene}");
        if !produced && !drowsy.asleep {
            // Nothing stands in the way of sleep any more.
            let mut again = Drowsy { fence: drowsy.fence, ..Default::default() };
            for step in 3..WORKER_STEPS {
                self.worker_step(step, &mut again).await;
            }
            assert!(again.asleep, "{scene}: cannot fall asleep: {again:?}");
        }
    }
}

/// Every way to interleave the steps of both, in which each keeps its own order.
fn interleavings() -> Vec<Vec<bool>> {
    let steps = WORKER_STEPS + PRODUCER_STEPS;
    (0..1_u32 << steps)
        .filter(|set| set.count_ones() as usize == PRODUCER_STEPS)
        .map(|set| (0..steps).map(|step| set >> step & 1 == 1).collect())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_makes_work_and_whoever_falls_asleep_never_miss_each_other() {
    let mut stage = Stage::set().await;
    let (mut claimed, mut awake, mut told) = (0, 0, 0);
    for producer in Producer::ALL {
        for order in interleavings() {
            let drowsy = stage.play(producer, &order).await;
            match drowsy {
                Drowsy { claimed: 1.., .. } => claimed += 1,
                Drowsy { asleep: true, .. } => told += 1,
                _ => awake += 1,
            }
            stage.judge(producer, &order, drowsy).await;
        }
    }
    // All three ways were gone, or the steps do not race at all.
    assert!(claimed > 100 && awake > 100 && told > 10, "claimed {claimed}, awake {awake}, told {told}");
}

/// The xmax of a snapshot is only the last completed id plus one. An enqueuer may have that very id, still be open,
/// and have looked for sleepers before the announcement was committed: the worker would sleep, and it stays silent.
#[tokio::test]
async fn the_fence_is_not_the_snapshots_xmax() {
    let mut stage = Stage::set().await;
    stage.clear().await;
    let mut drowsy = Drowsy::default();
    stage.worker_step(0, &mut drowsy).await;
    stage.producer.batch_execute("begin; select laneway.enqueue('work')").await.unwrap();
    stage.worker_step(1, &mut drowsy).await;

    let naive = "select pg_snapshot_xmin(s) >= pg_snapshot_xmax(s) from pg_current_snapshot() s";
    let naive_passes: bool = stage.announcer.query_one(naive, &[]).await.unwrap().get(0);
    for step in 2..WORKER_STEPS {
        stage.worker_step(step, &mut drowsy).await;
    }
    stage.producer.batch_execute("commit").await.unwrap();

    assert!(naive_passes, "the trap is not there; the test shows nothing");
    assert!(!drowsy.passed && !drowsy.asleep, "{drowsy:?}");
    assert_eq!(stage.ear.all().await, Vec::<String>::new(), "the enqueuer saw nobody asleep");
    assert_eq!(stage.worker.claim(10).await.len(), 1);
}

/// An orphan that was prepared keeps the fence up. The worker then goes on looking, which finds everything.
#[tokio::test]
async fn a_prepared_transaction_keeps_workers_awake_until_it_ends() {
    let mut stage = Stage::set().await;
    let prepare =
        "begin; set local laneway.hint = off; select laneway.enqueue('work'); prepare transaction 'orphan'";
    stage.producer.batch_execute(prepare).await.unwrap();
    let mut drowsy = Drowsy::default();
    for step in 0..WORKER_STEPS {
        stage.worker_step(step, &mut drowsy).await;
    }
    assert!(!drowsy.asleep && drowsy.claimed == 0, "{drowsy:?}");

    stage.producer.batch_execute("commit prepared 'orphan'").await.unwrap();

    assert_eq!(stage.worker.claim(10).await.len(), 1);
}

/// Somebody else's row lock hides a task from a claim, not from the look before sleep.
#[tokio::test]
async fn a_task_that_another_claim_holds_and_gives_up_is_not_slept_over() {
    let mut stage = Stage::set().await;
    stage.fixture.given(a_task()).await;
    let mut drowsy = Drowsy::default();
    for step in 0..4 {
        stage.worker_step(step, &mut drowsy).await;
    }
    stage.producer.batch_execute("begin; select from laneway.task for update").await.unwrap();
    for step in 4..WORKER_STEPS {
        stage.worker_step(step, &mut drowsy).await;
    }
    assert!(drowsy.passed && drowsy.claimed == 0, "{drowsy:?}");
    assert!(!drowsy.asleep, "sleeps although a task is visible");

    stage.producer.batch_execute("rollback").await.unwrap();

    assert_eq!(stage.worker.claim(10).await.len(), 1);
}

#[tokio::test]
async fn a_sleeper_that_died_attracts_hints_no_longer_than_it_wanted_to_sleep() {
    let fixture = fixture().await;
    let mut ear = Ear::on(&fixture.database.url).await;
    let dead = fixture.worker().await;
    let sleep = Sleep {
        session: dead.session(),
        queues: vec![queue("default")],
        at_most: Duration::from_millis(500),
    };
    fixture.store.fall_asleep(sleep).await.unwrap();
    let client = fixture.connect().await;

    client
        .batch_execute("update laneway.sleeper set idle_until = idle_until - interval '1501 ms'")
        .await
        .unwrap();
    fixture.given(a_task()).await;

    assert_eq!(ear.all().await, Vec::<String>::new());
}
