//! Tasks over HTTP: stored, listed, shown and acted on, on both stores.

use std::time::Duration;

use laneway::core::{Outcome, State, TaskId};
use laneway_testkit::store::{TestStore, a_task, until};
use serde_json::json;

use crate::client::Running;

crate::on_both_stores! {
    a_task_is_stored_with_everything_it_was_given,
    a_repeated_call_with_its_idempotency_key_stores_one_task,
    an_array_is_stored_whole_or_not_at_all,
    lines_are_stored_piece_by_piece,
    a_bad_line_says_where_and_how_many_are_stored,
    pages_follow_one_another_through_all_lists,
    a_payload_keeps_its_text,
    a_list_shows_only_the_fields_that_are_asked_for,
    a_dry_run_checks_and_stores_nothing,
    operators_act_on_a_task_and_are_in_the_audit,
    a_result_is_waited_for,
    a_bulk_is_carried_out_in_the_background,
    named_tasks_are_answered_one_by_one,
}

async fn a_task_is_stored_with_everything_it_was_given(store: &TestStore) {
    let server = Running::on(store.handle()).await;

    let body = r#"{"kind": "mail.send", "payload": {"to": "ann"}, "queue": "mail", "lane": {"key": "c/7", "limit": 3},
        "priority": -5, "delay_ms": 600000, "max_attempts": 4, "timeout_ms": 9000, "tags": ["nightly"],
        "retry": {"list": {"delays_ms": [5]}}, "trace": {"traceparent": "00-1"},
        "unique": {"key": "k", "scope": {"within_ms": 60000}, "on_conflict": "reject"}}"#;
    let answer = server.post("/api/v1/tasks", body).await;

    let made = answer.expect(201);
    assert_eq!(made["effect"], "made");
    let id = made["id"].as_i64().unwrap();
    assert!(answer.head.contains(&format!("location: /api/v1/tasks/{id}")), "{}", answer.head);
    let shown = server.get(&format!("/api/v1/tasks/{id}")).await.expect(200);
    for (field, expected) in [
        ("kind", json!("mail.send")),
        ("payload", json!({"to": "ann"})),
        ("queue", json!("mail")),
        ("lane", json!("c/7")),
        ("priority", json!(-5)),
        ("state", json!("later")),
        ("max_attempts", json!(4)),
        ("timeout_ms", json!(9000)),
        ("tags", json!(["nightly"])),
        ("retry", json!({"list": {"delays_ms": [5]}})),
        ("trace", json!({"traceparent": "00-1"})),
        ("unique", json!({"key": "k", "scope": {"within_ms": 60000}, "on_conflict": "reject"})),
    ] {
        assert_eq!(shown[field], expected, "{field}: {shown}");
    }
    let again = server.post("/api/v1/tasks", body).await;
    assert_eq!(again.problem(), (409, "unique_conflict".into(), None));
    assert_eq!(again.json()["task"], id);
}

async fn a_repeated_call_with_its_idempotency_key_stores_one_task(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let headers = [("content-type", "application/json"), ("idempotency-key", "order-7")];
    let post = async |body: &str| server.send("POST", "/api/v1/tasks", &headers, body).await;

    let first = post(r#"{"kind": "a"}"#).await.expect(201);
    let second = post(r#"{"kind": "a"}"#).await.expect(200);
    let other = post(r#"{"kind": "b"}"#).await;

    assert_eq!((&first["id"], &second["effect"]), (&second["id"], &json!("existing")));
    assert_eq!(other.problem().1, "idempotency_conflict");
    assert_eq!(other.json()["task"], first["id"]);
    assert_eq!(store.total().await, 1);
}

async fn an_array_is_stored_whole_or_not_at_all(store: &TestStore) {
    let server = Running::on(store.handle()).await;

    let bad = server.post("/api/v1/tasks", r#"[{"kind": "a"}, {"kind": "b", "priority": 5000}]"#).await;
    assert_eq!(bad.problem(), (400, "out_of_range".into(), Some("priority".into())));
    assert_eq!(store.total().await, 0);
    let good = server.post("/api/v1/tasks", r#"[{"kind": "a"}, {"kind": "b"}]"#).await.expect(200);

    assert_eq!(good["tasks"].as_array().unwrap().len(), 2);
    assert_eq!(store.total().await, 2);
}

const LINES: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];

async fn lines_are_stored_piece_by_piece(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let lines: String = (0..2_500).map(|n| format!("{{\"kind\": \"work\", \"payload\": {n}}}\n")).collect();

    let answer =
        server.send("POST", "/api/v1/tasks", &LINES, &format!("{lines}\n{{\"kind\": \"last\"}}")).await;

    assert_eq!(answer.expect(200), json!({"stored": 2501, "existing": 0}));
    assert_eq!(store.total().await, 2_501);
}

async fn a_bad_line_says_where_and_how_many_are_stored(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let line = "{\"kind\": \"work\"}\n";

    let send = async |last: &str| {
        let body = format!("{}{last}\n{line}", line.repeat(1_005));
        server.send("POST", "/api/v1/tasks", &LINES, &body).await
    };
    for (last, code) in [
        (r#"{"kind": "work", "colour": 1}"#, "unknown_field"),
        (r#"{"kind": ""}"#, "invalid_name"),
        (r#"{"kind": "work", "priority": 5000}"#, "out_of_range"),
        (r#"{"kind""#, "invalid_json"),
    ] {
        let answer = send(last).await;
        assert_eq!(answer.problem().1, code);
        let problem = answer.json();
        assert_eq!((&problem["line"], &problem["stored"]), (&json!(1006), &json!(1000)), "{problem}");
    }

    assert_eq!(store.total().await, 4_000);
}

async fn pages_follow_one_another_through_all_lists(store: &TestStore) {
    let mut ids = store.given_all((0..7).map(|_| a_task())).await;
    ids.extend(store.given_all((0..4).map(|_| a_task().delay(Duration::from_secs(60)))).await);
    for id in &ids[..3] {
        store.cancel(*id).await.unwrap();
    }
    let server = Running::on(store.handle()).await;

    let mut seen = vec![];
    let mut path = "/api/v1/tasks?limit=2".to_owned();
    loop {
        let page = server.get(&path).await.expect(200);
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_i64().unwrap()));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/tasks?limit=2&cursor={next}"),
            None => break,
        }
    }

    seen.sort_unstable();
    assert_eq!(seen, ids.iter().map(|id| id.0).collect::<Vec<_>>());
    let cancelled = server.get("/api/v1/tasks?state=cancelled").await.expect(200);
    assert_eq!(cancelled["tasks"].as_array().unwrap().len(), 3);
    let none = server.get("/api/v1/tasks?q=state:failed%20kind:work&queue=default").await.expect(200);
    assert_eq!((&none["tasks"], &none["looked"]), (&json!([]), &json!("to_the_end")));
}

async fn a_payload_keeps_its_text(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let payload = r#"{"id":9007199254740993,"price":1.50,"zero":-0, "name":"\u00e4/\"x\""}"#;

    let made =
        server.post("/api/v1/tasks", &format!(r#"{{"kind":"a","payload":{payload}}}"#)).await.expect(201);

    let shown = server.get(&format!("/api/v1/tasks/{}", made["id"])).await;
    assert!(shown.body.contains(&format!(r#""payload":{payload}"#)), "{}", shown.body);
}

async fn operators_act_on_a_task_and_are_in_the_audit(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let server = Running::on(store.handle()).await;
    let reason = [("x-reason", "on call"), ("content-type", "application/json")];
    let act = async |method: &str, what: &str, body: &str| {
        server.send(method, &format!("/api/v1/tasks/{id}{what}"), &reason, body).await
    };

    act("PATCH", "", r#"{"priority": 9}"#).await.expect(200);
    assert_eq!(act("PATCH", "", r#"{"priority": 9}"#).await.expect(200)["result"], "unchanged");
    act("POST", "/snooze", r#"{"delay_ms": 60000}"#).await.expect(200);
    assert_eq!(act("POST", "/retry", "").await.problem().1, "task_open");
    act("POST", "/cancel", "").await.expect(200);
    assert_eq!(act("POST", "/cancel", "").await.problem().1, "task_ended");
    act("POST", "/retry", "").await.expect(200);
    assert_eq!(store.state(id).await, State::Pending);
    act("DELETE", "", "").await.expect(200);
    assert_eq!(act("GET", "", "").await.problem(), (404, "not_found".into(), None));

    let entries = server.get("/api/v1/audit").await.expect(200)["entries"].clone();
    let shown: Vec<_> = entries.as_array().unwrap().iter().map(|row| row["action"].clone()).collect();
    assert_eq!(shown, ["delete", "retry", "cancel", "snooze", "edit"]);
    assert!(
        entries
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["actor"] == json!({"who": "http", "reason": "on call"}))
    );
}

async fn a_result_is_waited_for(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{id}/result");
    let now = server.get(&path).await.expect(202);
    assert_eq!((&now["state"], &now["ended"]), (&json!("pending"), &json!(false)));

    let mut worker = store.worker().await;
    let wait = format!("{path}?wait=30");
    let (waited, ()) = tokio::join!(server.get(&wait), async {
        let claimed = worker.claim(1).await;
        let result = laneway::core::Json::parse(r#"{"sent":true}"#).unwrap();
        worker.settle(&claimed[0], Outcome::Completed { result: Some(result) }).await;
    });

    let ended = waited.expect(200);
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!({"sent": true})));
    assert_eq!(server.get("/api/v1/tasks/99/result?wait=1").await.problem().0, 404);
    assert_eq!(server.get(&format!("{path}?wait=31")).await.problem().1, "out_of_range");
}

async fn a_bulk_is_carried_out_in_the_background(store: &TestStore) {
    let ids = store.given_all((0..1_200).map(|_| a_task())).await;
    let server = Running::on(store.handle()).await;
    let request = r#"{"action": "cancel", "q": "kind:work", "reason": "wrong customer"}"#;

    let preview = server.post("/api/v1/bulk/preview", request).await.expect(200);
    assert_eq!(
        (&preview["state"], &preview["matched"], &preview["done"]),
        (&json!("finished"), &json!(1200), &json!(0))
    );
    let bulk = server.post("/api/v1/bulk", request).await.expect(202);
    let path = format!("/api/v1/bulk/{}", bulk["id"]);
    until("the bulk has finished", async || server.get(&path).await.expect(200)["state"] == "finished").await;

    let bulk = server.get(&path).await.expect(200);
    assert_eq!((&bulk["matched"], &bulk["done"]), (&json!(1200), &json!(1200)));
    assert_eq!((&bulk["by"], &bulk["reason"]), (&json!("http"), &json!("wrong customer")));
    assert_eq!(store.state(ids[1_199]).await, State::Cancelled);
    let list = server.get("/api/v1/bulk?limit=1").await.expect(200);
    assert_eq!(list["bulks"][0]["id"], bulk["id"]);
    assert_eq!(server.call("POST", &format!("{path}/abort"), "").await.problem().1, "bulk_ended");
}

async fn named_tasks_are_answered_one_by_one(store: &TestStore) {
    let TaskId(id) = store.given_one(a_task()).await;
    let server = Running::on(store.handle()).await;

    let body = format!(r#"{{"action": "snooze", "delay_ms": 1000, "ids": [{id}, 99]}}"#);
    let results = server.post("/api/v1/bulk", &body).await.expect(200);

    assert_eq!(results["results"][0], json!({"id": id, "result": "done"}));
    assert_eq!(results["results"][1]["code"], "not_found");
}

async fn a_list_shows_only_the_fields_that_are_asked_for(store: &TestStore) {
    store.given_one(a_task().payload(r#"{"n":9007199254740993}"#)).await;
    let server = Running::on(store.handle()).await;

    let some = server.get("/api/v1/tasks?fields=id,state,payload,worker,family").await;

    let expected = r#"{"tasks":[{"id":1,"payload":{"n":9007199254740993},"state":"pending","worker":null}],"#;
    assert!(some.body.starts_with(expected), "{}", some.body);
    let refused = server.get("/api/v1/tasks?fields=id,colour").await;
    assert_eq!(refused.problem(), (400, "invalid_name".into(), Some("fields".into())));
}

async fn a_dry_run_checks_and_stores_nothing(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let path = "/api/v1/tasks?dry_run";

    let one = server.post(path, r#"{"kind": "a"}"#).await.expect(200);
    let several =
        server.post("/api/v1/tasks?dry_run=true", r#"[{"kind": "a"}, {"kind": "b"}]"#).await.expect(200);
    let lines = server.send("POST", path, &LINES, &"{\"kind\": \"a\"}\n".repeat(1_500)).await.expect(200);
    let bad = server.post(path, r#"[{"kind": "a"}, {"kind": "b", "priority": 5000}]"#).await;
    let bad_line =
        server.send("POST", path, &LINES, "{\"kind\": \"a\"}\n{\"kind\": \"a\", \"priority\": 5000}").await;

    let checked = |n: u64| json!({"checked": n});
    assert_eq!((one, several, lines), (checked(1), checked(2), checked(1_500)));
    assert_eq!(bad.problem(), (400, "out_of_range".into(), Some("priority".into())));
    assert_eq!((&bad_line.json()["line"], &bad_line.json()["stored"]), (&json!(2), &json!(0)));
    assert_eq!(store.total().await, 0);
    assert_eq!(
        server.post("/api/v1/tasks?dry_run=perhaps", r#"{"kind": "a"}"#).await.problem().2,
        Some("dry_run".into())
    );
    assert_eq!(server.post("/api/v1/tasks?dry_run=false", r#"{"kind": "a"}"#).await.status, 201);
}
