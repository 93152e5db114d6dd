//! `laneway demo` on both stores.

use std::time::{Duration, Instant};

use crate::support::{Session, assert_matches};

const REPORT: &str = "\
store        …
tasks        3 5… ended, 0 lost
attempts     3 6…, of which 80 failed and were retried
enqueue      … tasks/s
throughput   … tasks/s over … s
first start  … ms after the command began
wait         p50 … ms   p95 … ms   p99 … ms
run          p50 … ms   p95 … ms   p99 … ms
order        0 violations in ordered lanes
limits       0 violations in limited lanes
families     0 violations: follow-ups before all children had ended
";

#[test]
fn the_demo_needs_nothing_and_ends_without_a_violation() {
    let session = Session::new();

    let started = Instant::now();
    let ran = session.run("laneway demo");

    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_matches(REPORT, &ran.out);
    assert_matches("demo on a temporary SQLite store, queue …\n…\nnext:\n…", &ran.err);
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    assert_eq!(std::fs::read_dir(session.path()).unwrap().count(), 0, "it leaves nothing behind");
}

#[tokio::test]
async fn the_demo_runs_on_postgresql_and_cleans_up() {
    let session = Session::on_postgres().await;

    let ran = session.run("laneway demo --database-url $DATABASE_URL");

    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_matches(REPORT, &ran.out);
    assert_eq!(session.out("laneway schedules ls -o id"), "");
}

#[test]
fn a_program_reads_the_demo_as_json() {
    let report = Session::new().out("laneway demo -q -o json");

    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["version"], &report["demo"]["lost"]), (&1.into(), &0.into()));
}
