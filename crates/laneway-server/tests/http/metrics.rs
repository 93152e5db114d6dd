//! Metrics, as Prometheus' own checker reads them.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use laneway::{Payload, Worker};
use laneway_core::{Rule, Schedule, ScheduleName};
use laneway_server::Server;
use laneway_testkit::store::{TestStore, a_task, until};
use serde::{Deserialize, Serialize};

use crate::client::Running;

crate::on_both_stores! {
    promtool_accepts_the_metrics_of_server_store_and_worker,
}

/// The metrics that dashboards and alerts rely on and that this load has lines of; `counted.rs` causes the others.
const DOCUMENTED: &[(&str, &str)] = &[
    ("worker_in_flight_tasks", "gauge"),
    ("worker_slots", "gauge"),
    ("worker_tasks_completed_total", "counter"),
    ("worker_tasks_started_total", "counter"),
    ("worker_task_duration_seconds", "histogram"),
    ("worker_task_wait_seconds", "histogram"),
    ("worker_claims_total", "counter"),
    ("worker_claim_size", "histogram"),
    ("worker_claim_duration_seconds", "histogram"),
    ("worker_claim_limit", "gauge"),
    ("worker_backpressure_factor", "gauge"),
    ("worker_wakeups_total", "counter"),
    ("worker_leases_lost_total", "counter"),
    ("worker_flush_size", "histogram"),
    ("worker_flush_duration_seconds", "histogram"),
    ("worker_memory_usage_ratio", "gauge"),
    ("worker_memory_limit_bytes", "gauge"),
    ("worker_db_wait_seconds", "histogram"),
    ("worker_info", "gauge"),
    ("queue_tasks", "gauge"),
    ("queue_oldest_ready_seconds", "gauge"),
    ("queue_paused", "gauge"),
    ("queue_workers", "gauge"),
    ("queue_slots", "gauge"),
    ("queue_waiting_parents", "gauge"),
    ("queue_oldest_waiting_seconds", "gauge"),
    ("schedule_lag_seconds", "gauge"),
    ("store_statement_duration_seconds", "histogram"),
    ("store_dead_rows", "gauge"),
    ("store_table_bytes", "gauge"),
    ("store_oldest_transaction_seconds", "gauge"),
    ("server_requests_total", "counter"),
    ("server_request_duration_seconds", "histogram"),
    ("server_stream_clients", "gauge"),
];

#[derive(Serialize, Deserialize)]
struct Ping;

impl Payload for Ping {
    const KIND: &'static str = "ping";
}

async fn ping(_: Ping) -> Result<(), std::io::Error> {
    Ok(())
}

async fn promtool_accepts_the_metrics_of_server_store_and_worker(store: &TestStore) {
    let handle = laneway::StoreHandle::from(store.handle());
    let worker = Worker::builder(&handle).slots(7).handle(ping).build().unwrap();
    let server = Running::built(Server::builder(store.handle()).metrics(worker.metrics().clone())).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    laneway::Client::new(&handle).enqueue(Ping).trace("traceparent", parent).await.unwrap();
    worker.run_until_empty().await.unwrap();
    store.given([a_task(), a_task().queue("mail"), a_task().delay(Duration::from_secs(60))]).await;
    let _serving = store.worker().await;
    let rule = Rule::Cron { expression: "0 3 * * *".into(), zone: "UTC".into() };
    let schedule = Schedule::new(ScheduleName::new("nightly").unwrap(), rule, a_task().into());
    store.put_schedule(schedule).await.unwrap();
    server.get("/api/v1/tasks/999").await;

    let answer = server.get("/metrics").await;

    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    check(&answer.body);
    for line in [
        "worker_slots 7",
        r#"worker_tasks_completed_total{queue="default",kind="ping"} 1"#,
        r#"queue_tasks{queue="default",state="pending"} 1"#,
        r#"queue_tasks{queue="default",state="later"} 1"#,
        r#"queue_workers{queue="default"} 1"#,
        "store_up 1",
        r#"server_requests_total{route="/api/v1/tasks/{id}",method="GET",code="404"} 1"#,
        r#"server_request_duration_seconds_count{route="/api/v1/tasks/{id}",method="GET",code="404"} 1"#,
        r#"worker_flush_size_count{op="complete"} 1"#,
        r#"worker_task_wait_seconds_count{queue="default"} 1"#,
        r#"schedule_lag_seconds{schedule="nightly"} 0.0"#,
        r#"queue_waiting_parents{queue="default"} 0"#,
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line} is missing in\n{}", answer.body);
    }
    for (name, kind) in DOCUMENTED {
        let line = format!("# TYPE {name} {kind}");
        assert!(answer.body.lines().any(|found| found == line), "{line} is missing in\n{}", answer.body);
    }
    let seconds: Vec<_> =
        answer.body.lines().filter(|line| line.starts_with("worker_claim_duration_seconds_bucket")).collect();
    assert_eq!(seconds.len(), 19, "18 bounds and infinity: {seconds:?}");
    let sizes = answer.body.lines().filter(|line| line.starts_with("worker_claim_size_bucket"));
    assert_eq!(sizes.count(), 10);
    let open = server.send("GET", "/metrics", &[("accept", "application/openmetrics-text")], "").await;
    assert!(open.body.ends_with("# EOF\n"));
    let is_exemplar = |line: &&str| line.contains(r#" # {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} "#);
    let exemplars: Vec<_> = open.body.lines().filter(is_exemplar).collect();
    assert_eq!(exemplars.len(), 1, "{exemplars:?}");
    assert!(exemplars[0].starts_with("worker_task_duration_seconds_bucket"), "{exemplars:?}");
    assert!(!answer.body.contains("trace_id"), "the older format has no exemplars");
}

/// Has Prometheus' checker read the metrics.
fn check(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is needed: install the package `prometheus`, or run ./scripts/test, which does");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "promtool does not like the metrics:\n{said}\n{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_are_counted() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let shows = async |line: &str| server.get("/metrics").await.body.lines().any(|found| found == line);

    let mut events = server.follow("", None).await;
    events.expect("ready").await;
    assert!(shows("server_stream_clients 1").await);
    drop(events);

    until("the stream is counted no more", async || shows("server_stream_clients 0").await).await;
}
