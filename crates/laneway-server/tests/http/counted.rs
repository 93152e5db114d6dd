//! Metrics that something has to happen for: it is made to happen, and the scrape must tell.

use std::time::{Duration, Instant};

use laneway::{Attempt, Failure, Payload, Stop, StoreHandle, Summary, Worker, WorkerBuilder};
use laneway_core::{Cancel, Json, Keep, QueueSettings, Rule, Schedule, ScheduleName, State, TaskId};
use laneway_server::Server;
use laneway_testkit::store::{ATask, PATIENCE, TestStore, a_task, queue, secs, until};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::client::Running;

crate::on_both_stores! {
    attempts_that_end_otherwise_are_counted_by_outcome,
    tasks_that_a_stopping_worker_gives_back_are_counted,
    a_lane_at_its_limit_is_told_for_its_queue_until_it_is_below_again,
    tasks_of_a_dead_worker_are_counted_by_queue_when_they_are_taken_back,
    fires_of_schedules_are_counted_by_what_became_of_them,
    what_retention_deletes_is_counted_by_state,
    what_was_enqueued_is_counted_by_queue,
}

/// Ends as its payload says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Completed,
    Retry,
    Discard,
    Snooze,
    Panic,
    Never,
}

impl Payload for End {
    const KIND: &'static str = "end";
}

async fn end(end: End, attempt: Attempt) -> Result<(), Failure> {
    match end {
        End::Completed => Ok(()),
        End::Retry => Err(Failure::retry("not now")),
        End::Discard => Err(Failure::discard("never")),
        End::Snooze => Err(Failure::snooze(secs(3_600))),
        End::Panic => panic!("as the payload says"),
        End::Never => {
            attempt.cancelled().await;
            Err(Failure::retry("told to stop"))
        }
    }
}

/// A task that ends like this, and is not tried again.
fn ends(end: End) -> ATask {
    a_task().kind("end").max_attempts(1).with(|mut task| {
        task.payload = Json::encode(&end).unwrap();
        task
    })
}

/// A worker that runs, and the server that tells its metrics.
struct Fixture {
    server: Running,
    stop: Stop,
    worker: JoinHandle<Summary>,
}

fn builder(store: &TestStore) -> WorkerBuilder {
    Worker::builder(StoreHandle::from(store.handle())).handle(end)
}

async fn served(store: &TestStore, worker: &Worker) -> Running {
    Running::built(Server::builder(store.handle()).metrics(worker.metrics())).await
}

async fn running(store: &TestStore) -> Fixture {
    let (worker, stop) = (builder(store).build().unwrap(), Stop::default());
    let server = served(store, &worker).await;
    let stopped = stop.clone();
    let worker = tokio::spawn(async move { worker.run_until(stopped).await.unwrap() });
    Fixture { server, stop, worker }
}

impl Fixture {
    async fn end(self) -> Running {
        self.stop.drain();
        self.worker.await.unwrap();
        self.server
    }
}

/// Waits until the scrape, which is up to five seconds old, has all these lines.
async fn told(server: &Running, lines: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let body = server.get("/metrics").await.body;
        let missing: Vec<_> =
            lines.iter().filter(|line| !body.lines().any(|found| found == **line)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{missing:#?} are missing in\n{body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_running(store: &TestStore, task: TaskId) {
    until("the task runs", async || store.state(task).await == State::Leased).await;
}

async fn attempts_that_end_otherwise_are_counted_by_outcome(store: &TestStore) {
    let fixture = running(store).await;
    let slow = ends(End::Never).with(|task| task.timeout(Duration::from_millis(20)));
    store.given([ends(End::Retry), ends(End::Retry), ends(End::Discard), ends(End::Snooze), slow]).await;
    store.given([ends(End::Panic), ends(End::Completed)]).await;
    let cancelled = store.given_one(ends(End::Never)).await;
    until_running(store, cancelled).await;

    assert_eq!(store.cancel(cancelled).await.unwrap(), Cancel::Requested);

    let lines =
        [("retry", 2), ("discard", 1), ("snoozed", 1), ("timeout", 1), ("panic", 1), ("cancelled", 1)].map(
            |(outcome, attempts)| {
                let labels = format!(r#"queue="default",kind="end",outcome="{outcome}""#);
                format!("worker_tasks_failed_total{{{labels}}} {attempts}")
            },
        );
    told(&fixture.server, &lines.each_ref().map(String::as_str)).await;
    let server = fixture.end().await;
    let body = server.get("/metrics").await.body;
    assert!(!body.contains(r#"worker_tasks_failed_total{queue="default",kind="end",outcome="completed"}"#));
}

async fn tasks_that_a_stopping_worker_gives_back_are_counted(store: &TestStore) {
    let fixture = running(store).await;
    let tasks = store.given([ends(End::Never), ends(End::Never)]).await;
    for task in tasks {
        until_running(store, task).await;
    }
    let in_flight = r#"worker_in_flight_tasks{queue="default"} 2"#;
    told(&fixture.server, &[in_flight]).await;

    fixture.stop.now();

    assert_eq!(fixture.worker.await.unwrap().given_back, 2);
    told(&fixture.server, &[r#"worker_tasks_released_total{reason="shutdown"} 2"#]).await;
    for task in tasks {
        assert_eq!(store.state(task).await, State::Pending);
    }
}

async fn a_lane_at_its_limit_is_told_for_its_queue_until_it_is_below_again(store: &TestStore) {
    let fixture = running(store).await;
    let turn = || ends(End::Never).lane_of("site:42", 1);
    let [first, second] = store.given([turn(), turn()]).await;

    told(&fixture.server, &[r#"queue_lanes_at_limit{queue="default"} 1"#, "worker_lanes_at_limit 1"]).await;

    for task in [second, first] {
        store.cancel(task).await.unwrap();
    }
    told(&fixture.server, &[r#"queue_lanes_at_limit{queue="default"} 0"#, "worker_lanes_at_limit 0"]).await;
    fixture.end().await;
}

async fn tasks_of_a_dead_worker_are_counted_by_queue_when_they_are_taken_back(store: &TestStore) {
    store.given([a_task(), a_task(), a_task().queue("mail")]).await;
    let mut dead = store.worker().await;
    assert_eq!(dead.claim(10).await.len(), 2);
    assert_eq!(dead.claim_from("mail", 10).await.len(), 1);
    let worker = builder(store).build().unwrap();
    let server = served(store, &worker).await;
    worker.keep_house().await.unwrap();
    assert!(!server.get("/metrics").await.body.contains("queue_rescued_total{"), "nobody is dead yet");

    store.advance_clock(laneway_core::liveness::SESSION_SILENCE_MAX + secs(1)).await;
    worker.keep_house().await.unwrap();

    let rescued = [r#"queue_rescued_total{queue="default"} 2"#, r#"queue_rescued_total{queue="mail"} 1"#];
    told(&server, &rescued).await;
}

async fn fires_of_schedules_are_counted_by_what_became_of_them(store: &TestStore) {
    let name = |text: &str| ScheduleName::new(text).unwrap();
    let every = Rule::Every(secs(1_000));
    let plain = Schedule::new(name("plain"), every.clone(), a_task().into());
    let alone = Schedule::new(name("alone"), every, a_task().into());
    store.put_schedule(plain).await.unwrap();
    store.put_schedule(alone.overlap(laneway_core::Overlap::SkipWhileOpen)).await.unwrap();
    let worker = builder(store).build().unwrap();
    let server = served(store, &worker).await;

    store.advance_clock(secs(1_000)).await;
    worker.keep_house().await.unwrap();
    told(&server, &[r#"schedule_fires_total{result="enqueued"} 2"#]).await;
    store.advance_clock(secs(1_000)).await;
    worker.keep_house().await.unwrap();

    let lines =
        [r#"schedule_fires_total{result="enqueued"} 3"#, r#"schedule_fires_total{result="skipped"} 1"#];
    told(&server, &lines).await;
}

async fn what_retention_deletes_is_counted_by_state(store: &TestStore) {
    let keep = QueueSettings { keep_failed: Some(Keep::Days(1)), ..QueueSettings::default() };
    store.set_queue(&queue("default"), keep).await.unwrap();
    let tasks = store.given([ends(End::Discard), ends(End::Discard), ends(End::Completed)]).await;
    let worker = builder(store).build().unwrap();
    let server = served(store, &worker).await;
    worker.run_until_empty().await.unwrap();
    assert_eq!(store.state(tasks[0]).await, State::Failed);

    store.advance_clock(secs(3 * 86_400)).await;

    // On PostgreSQL history goes only when every older transaction of the server is over, also those of other tests.
    until("the failed tasks are removed", async || {
        worker.keep_house().await.unwrap();
        store.get(tasks[0]).await.unwrap().is_none()
    })
    .await;
    told(&server, &[r#"store_retention_deleted_total{state="failed"} 2"#]).await;
    let body = server.get("/metrics").await.body;
    assert!(!body.contains(r#"store_retention_deleted_total{state="completed"}"#), "kept for 7 days\n{body}");
}

async fn what_was_enqueued_is_counted_by_queue(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    server.get("/metrics").await; // begins to look
    store.given([a_task(), a_task().queue("mail"), a_task().queue("mail")]).await;
    let wanted = [("default", 1), ("mail", 2)];

    until("what was enqueued is folded into the statistics", async || {
        store.maintain().await.unwrap();
        let totals = store.totals(jiff::Timestamp::UNIX_EPOCH, jiff::Timestamp::MAX).await.unwrap();
        wanted.iter().all(|(name, tasks)| {
            totals.iter().any(|totals| totals.queue.as_str() == *name && totals.enqueued == *tasks)
        })
    })
    .await;

    let lines = wanted.map(|(name, tasks)| format!(r#"queue_enqueued_total{{queue="{name}"}} {tasks}"#));
    told(&server, &lines.each_ref().map(String::as_str)).await;
}
