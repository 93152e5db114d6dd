//! `laneway enqueue`: one task with every option, and many.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

use crate::support::{Session, assert_matches};

#[test]
fn a_task_is_stored_with_everything_that_was_said_about_it() {
    let session = Session::new();

    let said = session.out(
        "laneway enqueue mail.receipt '{\"order\": 7}' --queue mail --lane order:7 --limit 3 --priority -5 \
         --delay 10m --unique r7 --unique-scope pending --on-conflict replace --max-attempts 4 --retry 1s,5s \
         --timeout 30s --tag a --tag b",
    );

    assert_eq!(said, "1  scheduled in 10m  queue=mail lane=order:7\n");
    let task: serde_json::Value = serde_json::from_str(&session.out("laneway tasks show 1 -o json")).unwrap();
    let task = &task["task"];
    let expected = serde_json::json!({
        "kind": "mail.receipt", "payload": {"order": 7}, "queue": "mail", "lane": "order:7", "priority": -5,
        "max_attempts": 4, "timeout_ms": 30_000, "tags": ["a", "b"],
        "retry": {"list": {"delays_ms": [1_000, 5_000]}},
        "unique": {"key": "r7", "scope": "while_pending", "on_conflict": "replace"},
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&task[name], value, "{name}");
    }
    let lane = session.out("laneway lanes show mail order:7");
    assert!(lane.contains("limit       3\n"), "{lane}");
}

#[test]
fn a_payload_comes_from_standard_input_and_keeps_its_numbers() {
    let session = Session::new();

    session.run_with_input("laneway enqueue echo -", "{\"n\": 9007199254740993, \"x\": 1.10}");

    let shown = session.out("laneway tasks show 1 -o ndjson");
    assert!(shown.contains(r#""payload":{"n": 9007199254740993, "x": 1.10}"#), "{shown}");
}

#[test]
fn a_key_that_is_held_is_told() {
    let session = Session::new();
    session.out("laneway enqueue report --unique today");

    assert_eq!(
        session.out("laneway enqueue report --unique today"),
        "1  was there already, with the same key  queue=default\n"
    );
    let refused = session.run("laneway enqueue report --unique today --on-conflict reject");
    assert_eq!(refused.code, 1);
    assert_matches("error: the key `today` is held by task 1; … [unique_conflict]", &refused.err);
}

#[test]
fn many_payloads_are_stored_in_the_order_of_their_lines() {
    let session = Session::new();
    session.write("urls.ndjson", "{\"url\": \"/a\"}\n\n\"second\"\n3");

    let said = session.out("laneway enqueue page.fetch --many urls.ndjson --lane site:42 --limit 3");

    assert_matches("3 tasks in … s (…/s)  0 duplicates", &said);
    let tasks = session.out("laneway tasks ls -o ndjson");
    let payloads: Vec<_> = tasks
        .lines()
        .map(|line| line.split("\"payload\":").nth(1).unwrap().split(",\"res").next().unwrap())
        .collect();
    assert_eq!(payloads, ["{\"url\": \"/a\"}", "\"second\"", "3"]);
}

#[test]
fn whole_tasks_are_read_where_no_kind_is_named() {
    let session = Session::new();
    let lines = "{\"kind\": \"a\", \"payload\": [1], \"queue\": \"x\", \"tags\": [\"t\"]}\n{\"kind\": \"b\", \"delay_ms\": 3600000}\n";

    let ran = session.run_with_input("laneway enqueue --many - -o id", lines);

    assert_eq!((ran.code, ran.out.as_str()), (0, "1\n2\n"));
    assert_matches("ID …\n 1  a … x …\n 2  b … default … in 1h", &session.out("laneway tasks ls"));
}

#[test]
fn a_bad_line_of_a_file_stores_nothing() {
    let session = Session::new();
    session.write("tasks.ndjson", "{\"kind\": \"a\"}\n{\"kind\": \"b\", \"colour\": \"red\"}\n");

    let ran = session.run("laneway enqueue --many tasks.ndjson");

    assert_eq!(ran.code, 2);
    assert_matches(
        "error: tasks.ndjson:2: unknown field `colour`, expected one of …; nothing was stored",
        &ran.err,
    );
    assert!(!session.path().join(".laneway").exists());
}

#[test]
fn a_bad_line_of_standard_input_tells_what_was_stored() {
    let session = Session::new();

    let ran = session.run_with_input("laneway enqueue echo --many -", "1\n2\n{oops\n4\n");

    assert_eq!(ran.code, 4);
    assert_matches(
        "error: standard input:3: payload …; the 2 tasks up to line 2 are stored, nothing after it [invalid_json]",
        &ran.err,
    );
    assert_eq!(session.out("laneway tasks ls -o id"), "1\n2\n");
}

#[test]
fn who_interrupts_is_told_what_was_stored() {
    let session = Session::new();
    let mut producer = session.start("exec laneway enqueue echo --many - -o id");
    let mut input = producer.stdin.take().expect("piped");
    input.write_all("1\n".repeat(10_000).as_bytes()).expect("it reads");
    let mut ids = BufReader::new(producer.stdout.take().expect("piped")).lines();
    ids.next().expect("the first chunk is stored").expect("an id");

    let signalled = Command::new("kill").args(["-INT", &producer.id().to_string()]).status();
    assert!(signalled.expect("there is a kill").success());

    assert_eq!(producer.wait().expect("it was started").code(), Some(130));
    assert_eq!(ids.count(), 9_999);
    let mut said = String::new();
    producer.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(said, "interrupted: the 10 000 tasks up to line 10000 are stored\n");
}
