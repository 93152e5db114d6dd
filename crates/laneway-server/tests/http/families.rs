//! Families over HTTP: looked at, retried, and queues that are serial.

use laneway::core::{FollowUp, NewTask, Outcome, Spawned, TaskId, Verdict};
use laneway_testkit::store::{ATask, TestStore, a_task, tasks_like};
use laneway_testkit::worker::{TestWorker, failed};
use serde_json::{Value, json};

use crate::client::Running;

crate::on_both_stores! {
    a_tree_shows_a_family_and_counts_the_rest,
    failed_children_are_retried,
    a_task_that_waits_is_refused_what_it_cannot_have,
    a_queue_is_made_serial,
    a_parent_and_a_follow_up_say_what_they_wait_for,
}

fn spawning(children: Vec<ATask>, follow_ups: Vec<ATask>) -> Spawned {
    Spawned {
        children: children.into_iter().map(NewTask::from).collect(),
        follow_ups: follow_ups
            .into_iter()
            .map(|task| FollowUp { task: task.into(), on_failure: Default::default() })
            .collect(),
        ..Default::default()
    }
}

/// A task that waits for its children, and one that waits for it.
pub async fn a_family(store: &TestStore, worker: &mut TestWorker, children: usize) -> TaskId {
    let top = store.given_one(a_task().kind("top")).await;
    let claimed = worker.claim_one().await;
    let spawned = spawning(tasks_like(a_task().kind("child"), children), vec![a_task().kind("after")]);
    let settle = claimed.settle(Outcome::completed()).spawning(spawned);
    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    top
}

fn kinds_and_states(tasks: &Value) -> Vec<(&str, &str)> {
    tasks
        .as_array()
        .expect("an array")
        .iter()
        .map(|one| if one.get("task").is_some() { &one["task"] } else { one })
        .map(|task| (task["kind"].as_str().expect("a kind"), task["state"].as_str().expect("a state")))
        .collect()
}

async fn a_tree_shows_a_family_and_counts_the_rest(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = a_family(store, &mut worker, 5).await;
    let claimed = worker.claim(4).await;
    worker.settle(&claimed[3], failed()).await;
    worker.complete(&claimed[..2]).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{top}/tree");

    let whole = server.get(&path).await.expect(200);
    let some = server.get(&format!("{path}?max_rows=4")).await.expect(200);

    let family = &whole["task"]["family"];
    let counts =
        ["total", "open", "completed", "failed", "cancelled"].map(|name| family[name].as_u64().unwrap());
    assert_eq!((whole["task"]["state"].as_str(), counts), (Some("waiting"), [5, 2, 2, 1, 0]));
    assert_eq!(family["policy"], "wait_all");
    let children = [
        ("child", "failed"),
        ("child", "leased"),
        ("child", "pending"),
        ("child", "completed"),
        ("child", "completed"),
    ];
    assert_eq!(kinds_and_states(&whole["children"]), children);
    assert_eq!(kinds_and_states(&whole["follow_ups"]), [("after", "later")]);
    assert_eq!(whole["follow_ups"][0]["after"], top.0);
    assert_eq!(whole["rest"], json!({"open": 0, "completed": 0, "failed": 0, "cancelled": 0}));
    assert_eq!(kinds_and_states(&some["children"]), children[..2]);
    assert_eq!(some["rest"], json!({"open": 1, "completed": 2, "failed": 0, "cancelled": 0}));
    let shown = server.get(&format!("/api/v1/tasks/{top}")).await.expect(200);
    assert_eq!(shown["family"], *family);

    for (query, code) in
        [("?max_rows=0", "out_of_range"), ("?max_rows=1001", "out_of_range"), ("?rows=1", "unknown_field")]
    {
        assert_eq!(server.get(&format!("{path}{query}")).await.problem().1, code, "{query}");
    }
    assert_eq!(server.get("/api/v1/tasks/99/tree").await.problem().1, "not_found");
    assert_eq!(server.get("/api/v1/tasks/x/tree").await.problem().1, "invalid_id");
}

async fn failed_children_are_retried(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = a_family(store, &mut worker, 2).await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[..1]).await;
    worker.settle(&claimed[1], failed()).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{top}/retry");

    let retried = server.post(&path, r#"{"children": true}"#).await.expect(200);

    assert_eq!(retried, json!({"id": top.0, "result": "done"}));
    let resumed = worker.claim_one().await;
    assert!(resumed.task.options.resume);
    let again = Spawned { again: true, ..Default::default() };
    worker.settle_all(vec![resumed.settle(Outcome::completed()).spawning(again)]).await;
    let child = worker.claim(5).await;
    assert_eq!(child.iter().map(|one| one.task.id).collect::<Vec<_>>(), [claimed[1].task.id]);
    worker.settle(&child[0], failed()).await;

    let body = json!({"action": "retry_children", "ids": [top.0, claimed[0].task.id.0, 99]}).to_string();
    let results = server.post("/api/v1/bulk", &body).await.expect(200)["results"].clone();
    assert_eq!((&results[0]["result"], &results[2]["code"]), (&json!("done"), &json!("not_found")));
    assert_eq!(server.post(&path, r#"{"grandchildren": true}"#).await.problem().1, "unknown_field");

    let lone = store.given_one(a_task()).await;
    store.cancel(lone).await.unwrap();
    let none = server.post(&format!("/api/v1/tasks/{lone}/retry"), r#"{"children": true}"#).await;
    assert_eq!(none.problem(), (409, "no_failed_children".into(), None));
}

/// These were answered with 500 once: their codes had no status.
async fn a_task_that_waits_is_refused_what_it_cannot_have(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = a_family(store, &mut worker, 1).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{top}");

    for (method, path, body) in [
        ("POST", format!("{path}/snooze"), r#"{"delay_ms": 1000}"#),
        ("PATCH", path.clone(), r#"{"priority": 3}"#),
        ("DELETE", path.clone(), ""),
    ] {
        assert_eq!(server.call(method, &path, body).await.problem().1, "task_waiting", "{method} {path}");
        assert_eq!(server.call(method, &path, body).await.status, 409);
    }
}

async fn a_queue_is_made_serial(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let path = "/api/v1/queues/orders";

    let made = server.call("PATCH", path, r#"{"serial": {"children": 2}}"#).await.expect(200);

    assert_eq!(made["serial"], json!({"children": 2}));
    let task = r#"{"kind": "work", "queue": "orders"}"#;
    server.post("/api/v1/tasks", task).await.expect(201);
    let refused = server.call("PATCH", path, r#"{"serial": "off"}"#).await;
    assert_eq!(refused.problem(), (409, "serial_queue".into(), Some("serial".into())));
    let laned = server.post("/api/v1/tasks", r#"{"kind": "work", "queue": "orders", "lane": "a"}"#).await;
    assert_eq!(laned.problem(), (409, "serial_queue".into(), Some("lane".into())));
    let none = server.call("PATCH", path, r#"{"serial": {"children": 0}}"#).await;
    assert_eq!(none.problem(), (400, "out_of_range".into(), Some("serial.children".into())));
    assert_eq!(server.get("/api/v1/queues").await.expect(200)["queues"][0]["serial"], json!({"children": 2}));
    assert_eq!(store.total().await, 1);
}

async fn a_parent_and_a_follow_up_say_what_they_wait_for(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = a_family(store, &mut worker, 2).await;
    let child = worker.claim_one().await;
    worker.settle(&child, failed()).await;
    let server = Running::on(store.handle()).await;
    let follow_up = store.follow_ups(top).await.unwrap()[0].id;
    let open = store.children(laneway::core::Children::of(top)).await.unwrap()[1].id;

    let why = server.get(&format!("/api/v1/tasks/{top}/why")).await.expect(200);
    let expected = json!({"reason": "waiting", "open": 1, "failed": 1, "children": [{"task": open.0, "state": "pending"}]});
    assert_eq!((&why["state"], &why["reasons"]), (&json!("waiting"), &json!([expected])));
    let why = server.get(&format!("/api/v1/tasks/{follow_up}/why")).await.expect(200);
    assert_eq!(why["reasons"][0], json!({"reason": "after", "task": top.0}));
}
