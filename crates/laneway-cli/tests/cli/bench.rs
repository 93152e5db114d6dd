//! Loads with tiny sizes, on both stores; what they leave; and the comparison of reports.

use serde_json::{Value, json};

use crate::daemons::{Daemon, until};
use crate::support::{Session, assert_matches};

/// Open tasks of all queues, and all tasks that are in queues of loads, whatever their state.
fn left(session: &Session) -> (usize, u64) {
    let open = session.out("laneway tasks ls --where -state:completed -o id").lines().count();
    let queues: Value = serde_json::from_str(&session.out("laneway queues ls -o json")).unwrap();
    let queues = queues["queues"].as_array().unwrap().clone();
    let of_loads: Vec<_> =
        queues.iter().filter(|queue| queue["queue"].as_str().unwrap().starts_with("bench-")).collect();
    assert!(!of_loads.is_empty(), "a load has a queue of its own: {queues:?}");
    let counts = of_loads.iter().flat_map(|queue| queue["counts"].as_array().cloned().unwrap_or_default());
    (open, counts.filter_map(|count| count["tasks"].as_u64()).sum())
}

/// The report that a load prints, which must be the one that it has written.
fn measured(session: &Session, arguments: &str) -> Value {
    let shown: Value =
        serde_json::from_str(&session.out(&format!("laneway bench {arguments} --report r.json -o json")))
            .unwrap();
    let written: Value = serde_json::from_str(&session.read("r.json")).unwrap();
    assert_eq!((&shown["version"], &shown["report"]), (&json!(1), &written));
    written
}

fn figure(report: &Value, name: &str) -> f64 {
    report["figures"][name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {report}"))
}

fn loads_are_measured_and_leave_other_tasks_alone(session: &Session, store: &str) {
    session.out("laneway enqueue echo '\"mine\"'");

    let enqueue = measured(session, "enqueue --tasks 30");
    let drain = measured(session, "drain --tasks 1k --slots 8 --lanes 20");
    let latency = measured(session, "latency --tasks 3");

    assert_eq!(
        (&enqueue["bench"], &enqueue["store"], &enqueue["tasks"]),
        (&json!("enqueue"), &json!(store), &json!(30))
    );
    assert!(figure(&enqueue, "enqueue_per_s") > 1.0);
    assert_eq!((&drain["slots"], &drain["lanes"]), (&json!(8), &json!(20)));
    // With 8 slots, 1,000 tasks take at least 125 claims.
    assert!(figure(&drain, "claims") >= 125.0 && figure(&drain, "tasks_per_claim") <= 8.0, "{drain}");
    assert!(figure(&drain, "wait_p50_ms") <= figure(&drain, "wait_p99_ms"), "{drain}");
    assert!(figure(&drain, "wait_p99_ms") <= figure(&drain, "wait_max_ms"), "{drain}");
    assert!(figure(&latency, "start_p50_ms") > 0.0 && figure(&latency, "commit_p50_ms") > 0.0, "{latency}");
    assert_eq!(left(session), (1, 0), "only the task that was there before is left");
    assert!(session.out("laneway tasks ls").contains("pending"), "and nobody has run it");
}

#[test]
fn loads_on_sqlite_are_measured_and_leave_other_tasks_alone() {
    loads_are_measured_and_leave_other_tasks_alone(&Session::new(), "sqlite");
}

#[tokio::test]
async fn loads_on_postgresql_are_measured_and_leave_other_tasks_alone() {
    let session = Session::on_postgres().await;
    session.store().await;
    loads_are_measured_and_leave_other_tasks_alone(&session, "postgres");
}

#[test]
fn a_load_is_told_to_people_with_the_file_that_it_wrote() {
    let session = Session::new();

    let ran = session.run("laneway bench drain --tasks 20 --slots 4");

    assert_eq!(ran.code, 0, "{}", ran.err);
    let out = "enqueue  20 in … s, …/s\ndrain    20 in … s, …/s\nclaims   …, … tasks each\nwait     p50 … ms, p99 … ms, longest … ms\n";
    assert_matches(out, &ran.out);
    let err = "bench drain on .laneway/laneway.db (SQLite), queue bench-…\nreport written: bench-drain-….json (compare with: laneway bench diff A B)\n";
    assert_matches(err, &ran.err);
}

#[tokio::test]
async fn an_interrupted_load_cleans_up() {
    let session = Session::on_postgres().await;
    session.store().await;
    let mut bench = Daemon::start(&session, "bench drain --tasks 5m --slots 4");
    bench.until("queue bench-");
    until("tasks are stored", async || left(&session).1 > 0).await;

    bench.signal("-INT");

    bench.until("cleaning up");
    assert_eq!(bench.ended().code(), Some(130));
    assert_eq!(left(&session), (0, 0));
}

#[test]
fn a_load_in_production_needs_a_yes() {
    let session = Session::new();
    session.write("laneway.toml", "[context.prod]\nproduction = true\n");

    let ran = session.run("laneway --context prod bench enqueue --tasks 1");

    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("production") && ran.err.contains("--yes"), "{}", ran.err);
    assert_eq!(session.run("laneway --context prod --yes bench enqueue --tasks 1").code, 0);
}

fn report(bench: &str, tasks: u64, rate: f64) -> String {
    let figures = json!({"enqueue_per_s": rate, "enqueue_s": 2.0, "zero": 0.0});
    json!({"bench": bench, "laneway": "0.1.0", "store": "sqlite", "at": "2026-11-15T12:00:00Z", "tasks": tasks,
           "slots": 64, "lanes": 0, "figures": figures})
    .to_string()
}

#[test]
fn two_reports_are_compared_figure_by_figure() {
    let session = Session::new();
    session.write("a.json", &report("enqueue", 100, 50_000.0));
    session.write("b.json", &report("enqueue", 200, 60_000.5));

    let ran = session.run("laneway bench diff a.json b.json");

    let out = "FIGURE             A        B  CHANGE\nenqueue_per_s  50000  60000.5  +20.0%\nenqueue_s          2        2   +0.0%\nzero               0        0\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, out));
    assert_eq!(ran.err, "the loads differ: tasks is 100 in the first and 200 in the second\n");
    let changes: Value =
        serde_json::from_str(&session.out("laneway bench diff a.json b.json -o json")).unwrap();
    assert_eq!(
        changes["changes"][0],
        json!({"figure": "enqueue_per_s", "a": 50_000.0, "b": 60_000.5, "percent": 20.0})
    );
}

#[test]
fn reports_that_cannot_be_compared_are_refused() {
    let session = Session::new();
    session.write("a.json", &report("enqueue", 100, 50_000.0));
    session.write("b.json", &report("drain", 100, 50_000.0));
    session.write("c.json", "{\"colour\": \"red\"}");
    let refusal = |command: &str| {
        let ran = session.run(command);
        assert_eq!(ran.code, 2, "{command}: {}", ran.out);
        ran.err
    };

    assert_eq!(
        refusal("laneway bench diff a.json b.json"),
        "error: one is of bench enqueue, the other of bench drain; compare two of a kind\n"
    );
    assert!(refusal("laneway bench diff a.json c.json").contains("c.json is no report of `laneway bench`"));
    assert!(refusal("laneway bench diff a.json d.json").contains("cannot read d.json"));
    let told = refusal("laneway bench enqueue --tasks many");
    assert!(told.contains("a number from 1 to 10000000, such as 500, 100k or 2m"), "{told}");
}
