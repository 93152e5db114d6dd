//! Queues, lanes, workers, schedules, statistics: every route once.

use std::time::Duration;

use laneway::core::{Kind, Pausable};
use laneway_testkit::store::{TestStore, a_task};
use serde_json::json;

use crate::client::Running;

crate::on_both_stores! {
    queues_are_listed_changed_and_paused,
    lanes_are_listed_changed_paused_and_resumed,
    names_with_slashes_dots_and_spaces_work_in_paths,
    kinds_are_paused_until_the_pause_is_over,
    workers_are_listed_and_drained,
    schedules_are_put_paused_run_and_removed,
    a_task_says_why_it_does_not_run_and_what_went_wrong,
    statistics_have_a_point_per_step,
    a_bulk_is_stopped_and_goes_on,
    a_bulk_that_another_server_left_is_finished,
    an_old_bulk_that_was_left_open_is_found,
    reasons_have_names_and_say_who,
}

async fn queues_are_listed_changed_and_paused(store: &TestStore) {
    store.given([a_task().queue("mail")]).await;
    let server = Running::on(store.handle()).await;

    let changed = server
        .call("PATCH", "/api/v1/queues/mail", r#"{"keep_failed": {"days": 3}, "statistics": false}"#)
        .await;
    assert_eq!(changed.expect(200)["keep_failed"], json!({"days": 3}));
    assert_eq!(
        server.call("POST", "/api/v1/queues/mail/pause", "").await.expect(200),
        json!({"changed": true})
    );
    assert_eq!(
        server.call("POST", "/api/v1/queues/mail/pause", "").await.expect(200),
        json!({"changed": false})
    );

    let list = server.get("/api/v1/queues").await.expect(200);
    assert_eq!(list["queues"].as_array().unwrap().len(), 1);
    let shown = server.get("/api/v1/queues/mail").await.expect(200);
    assert!(shown["paused_at"].is_string() && shown["oldest_ready_at"].is_string(), "{shown}");
    assert_eq!(
        server.call("POST", "/api/v1/queues/mail/resume", "").await.expect(200),
        json!({"changed": true})
    );
    let kinds = server.get("/api/v1/queues/mail/kinds").await.expect(200);
    assert_eq!(kinds["counts"], json!([{"kind": "work", "state": "pending", "tasks": 1, "more": false}]));
    let counts = server.get("/api/v1/counts").await.expect(200);
    assert_eq!(counts["counts"], json!([{"queue": "mail", "state": "pending", "tasks": 1, "more": false}]));
}

async fn lanes_are_listed_changed_paused_and_resumed(store: &TestStore) {
    store.given([a_task().lane("a"), a_task().lane("a"), a_task().lane("b")]).await;
    store.worker().await.claim(0).await;
    let server = Running::on(store.handle()).await;
    let path = "/api/v1/queues/default/lanes/a";

    let changed =
        server.call("PATCH", path, r#"{"limit": 3, "interval_ms": 2000, "on_failure": "halt"}"#).await;

    let lane = changed.expect(200);
    assert_eq!(
        (&lane["limit"], &lane["interval_ms"], &lane["on_failure"]),
        (&json!(3), &json!(2000), &json!("halt"))
    );
    let unlimited =
        server.call("PATCH", path, r#"{"limit": "unlimited", "interval_ms": 0}"#).await.expect(200);
    assert_eq!(unlimited["limit"], "unlimited");
    assert_eq!(server.call("POST", &format!("{path}/halt"), "").await.expect(200), json!({"changed": true}));
    assert_eq!(server.get(path).await.expect(200)["paused"], true);
    assert_eq!(
        server.call("POST", &format!("{path}/resume"), "").await.expect(200),
        json!({"changed": true})
    );
    let page = server.get("/api/v1/queues/default/lanes?order=key&limit=1").await.expect(200);
    assert_eq!(page["lanes"][0]["key"], "a");
    let next = page["next"].as_str().unwrap();
    let page = server.get(&format!("/api/v1/queues/default/lanes?order=key&cursor={next}")).await.expect(200);
    assert_eq!((&page["lanes"][0]["key"], &page["next"]), (&json!("b"), &json!(null)));
}

async fn names_with_slashes_dots_and_spaces_work_in_paths(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let path = "/api/v1/queues/mail%2Fde.v2/lanes/a%20b%2F..%2Fc%25";

    server.call("PATCH", path, r#"{"limit": 2}"#).await.expect(200);
    server
        .call(
            "PUT",
            "/api/v1/schedules/nightly%2Freport%20%E2%98%BE",
            r#"{"every_ms": 60000, "task": {"kind": "a"}}"#,
        )
        .await
        .expect(200);

    assert_eq!(server.get(path).await.expect(200)["key"], "a b/../c%");
    let list = server.get("/api/v1/schedules").await.expect(200);
    assert_eq!(list["schedules"][0]["name"], "nightly/report ☾");
}

async fn kinds_are_paused_until_the_pause_is_over(store: &TestStore) {
    let server = Running::on(store.handle()).await;

    server.post("/api/v1/kinds/mail.send/pause", r#"{"expires_ms": 60000}"#).await.expect(200);

    let pauses = server.get("/api/v1/pauses").await.expect(200);
    let [pause] = &pauses["pauses"].as_array().unwrap()[..] else { panic!("{pauses}") };
    assert_eq!((&pause["what"], &pause["name"]), (&json!("kind"), &json!("mail.send")));
    assert!(pause["expires_at"].is_string());
    server.call("POST", "/api/v1/kinds/mail.send/resume", "").await.expect(200);
    assert!(
        store
            .pauses()
            .await
            .unwrap()
            .iter()
            .all(|pause| pause.what != Pausable::Kind(Kind::new("mail.send").unwrap()))
    );
}

async fn workers_are_listed_and_drained(store: &TestStore) {
    let worker = store.worker().await;
    let server = Running::on(store.handle()).await;

    let list = server.get("/api/v1/workers").await.expect(200);
    let session = list["workers"][0]["session"].as_str().unwrap();
    assert_eq!(session, worker.session().to_string());
    let path = format!("/api/v1/workers/{session}");
    assert_eq!(server.get(&path).await.expect(200)["session"], session);
    assert_eq!(server.call("POST", &format!("{path}/drain"), "").await.expect(200), json!({"changed": true}));
    assert_eq!(
        server.call("POST", &format!("{path}/drain"), "").await.expect(200),
        json!({"changed": false})
    );
}

async fn schedules_are_put_paused_run_and_removed(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let path = "/api/v1/schedules/daily";
    let body = r#"{"cron": "0 7 * * *", "zone": "Europe/Berlin", "task": {"kind": "report", "payload": {"n": 1}},
        "missed": {"all": {"cap": 3}}, "overlap": "skip_while_open"}"#;

    let put = server.call("PUT", path, body).await.expect(200);

    assert_eq!((&put["cron"], &put["zone"]), (&json!("0 7 * * *"), &json!("Europe/Berlin")));
    assert_eq!((&put["missed"], &put["overlap"]), (&json!({"all": {"cap": 3}}), &json!("skip_while_open")));
    let next = server.get(&format!("{path}/next?n=3")).await.expect(200);
    assert_eq!(next["fires"].as_array().unwrap().len(), 3);
    let ran = server.call("POST", &format!("{path}/run"), "").await.expect(201);
    let open = server.call("POST", &format!("{path}/run"), "").await;
    assert_eq!(open.problem().1, "schedule_open");
    assert_eq!(open.json()["task"], ran["task"]);
    assert_eq!(server.call("POST", &format!("{path}/pause"), "").await.expect(200), json!({"changed": true}));
    assert_eq!(
        server.call("POST", &format!("{path}/pause"), "").await.expect(200),
        json!({"changed": false})
    );
    assert_eq!(server.get(path).await.expect(200)["next_fire_at"], json!(null));
    assert_eq!(
        server.call("POST", &format!("{path}/resume"), "").await.expect(200),
        json!({"changed": true})
    );
    server.call("DELETE", path, "").await.expect(200);
    assert_eq!(server.get(path).await.problem().0, 404);
    let entries = server.get("/api/v1/audit").await.expect(200)["entries"].clone();
    let entries = entries.as_array().unwrap();
    let actions: Vec<_> = entries.iter().rev().map(|row| row["action"].as_str().unwrap()).collect();
    let expected = ["put_schedule", "run_schedule", "pause_schedule", "resume_schedule", "remove_schedule"];
    assert_eq!(actions, expected);
    assert!(entries.iter().all(|row| row["actor"]["who"] == "http"), "{entries:?}");
    let preview = server.get("/api/v1/schedules/preview?every_ms=60000&n=2").await.expect(200);
    assert_eq!(preview["fires"].as_array().unwrap().len(), 2);
}

async fn a_task_says_why_it_does_not_run_and_what_went_wrong(store: &TestStore) {
    let id = store.given_one(a_task().max_attempts(2)).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{id}");
    let why = server.get(&format!("{path}/why")).await.expect(200);
    assert_eq!(why["reasons"][0]["reason"], "no_worker");

    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    let retry = laneway::core::Outcome::Retry { after: Duration::from_secs(60), error: "too many".into() };
    worker.settle(&claimed[0], retry).await;

    let failures = server.get(&format!("{path}/attempts")).await.expect(200);
    assert_eq!(failures["failures"][0]["error"], "too many");
    let why = server.get(&format!("{path}/why")).await.expect(200);
    assert_eq!(why["reasons"][0]["reason"], "back_off");
}

async fn statistics_have_a_point_per_step(store: &TestStore) {
    let server = Running::on(store.handle()).await;

    let series =
        server.get("/api/v1/stats/series?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z&step=600").await;

    let points = series.expect(200)["points"].clone();
    assert_eq!(points.as_array().unwrap().len(), 6);
    assert_eq!(points[1]["at"], "2026-01-01T00:10:00Z");
    assert_eq!(server.get("/api/v1/stats/series").await.expect(200)["points"].as_array().unwrap().len(), 60);
}

async fn a_bulk_is_stopped_and_goes_on(store: &TestStore) {
    use laneway::core::{Action, Actor, BulkState, Filter, NewBulk};
    let all = NewBulk::new(Action::Retry, Filter::default());
    let bulk = store.start_bulk(&Actor::program(), all).await.unwrap();
    store.set_bulk_state(&Actor::program(), bulk.id, BulkState::Aborted).await.unwrap();
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/bulk/{}", bulk.id.0);

    assert_eq!(
        server.call("POST", &format!("{path}/abort"), "").await.expect(200),
        json!({"changed": false})
    );
    assert_eq!(
        server.call("POST", &format!("{path}/resume"), "").await.expect(200),
        json!({"changed": true})
    );

    laneway_testkit::store::until("the bulk has finished", async || {
        server.get(&path).await.expect(200)["state"] == "finished"
    })
    .await;
}

/// A hundred newer bulks, all of them finished, must not hide it.
async fn an_old_bulk_that_was_left_open_is_found(store: &TestStore) {
    use laneway::core::{Action, Actor, BulkState, Filter, NewBulk};
    let new = || NewBulk::new(Action::Retry, Filter::default());
    let old = store.start_bulk(&Actor::program(), new()).await.unwrap();
    for _ in 0..101 {
        let bulk = store.start_bulk(&Actor::program(), new()).await.unwrap();
        store.set_bulk_state(&Actor::program(), bulk.id, BulkState::Aborted).await.unwrap();
    }

    let server = Running::on(store.handle()).await;

    let path = format!("/api/v1/bulk/{}", old.id.0);
    laneway_testkit::store::until("the bulk has finished", async || {
        server.get(&path).await.expect(200)["state"] == "finished"
    })
    .await;
    let aborted = server.get("/api/v1/bulk?state=aborted&limit=500").await.expect(200);
    assert_eq!(aborted["bulks"].as_array().unwrap().len(), 101);
}

/// What a server leaves that dies after the first step is an unfinished bulk of the store.
async fn a_bulk_that_another_server_left_is_finished(store: &TestStore) {
    use laneway::core::{Action, Actor, BulkState, Filter, NewBulk};
    let ids = store.given_all((0..1_200).map(|_| a_task())).await;
    let server = Running::on(store.handle()).await;
    server.get("/readyz").await;

    let another = store.another().await;
    let all = NewBulk::new(Action::Cancel, Filter::default());
    let bulk = another.start_bulk(&Actor::program(), all).await.unwrap();
    let left = another.bulk_step(bulk.id).await.unwrap().unwrap();
    drop(another);

    assert_eq!((left.state, left.done), (BulkState::Running, 500));
    let path = format!("/api/v1/bulk/{}", bulk.id.0);
    laneway_testkit::store::until("the bulk has finished", async || {
        server.get(&path).await.expect(200)["state"] == "finished"
    })
    .await;
    assert_eq!(server.get(&path).await.expect(200)["done"], 1_200, "each task once");
    assert_eq!(store.state(ids[1_199]).await, laneway::core::State::Cancelled);
}

async fn reasons_have_names_and_say_who(store: &TestStore) {
    let [later, first, second] =
        store.given([a_task().delay(Duration::from_secs(600)), a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let server = Running::on(store.handle()).await;
    let reasons =
        async |task| server.get(&format!("/api/v1/tasks/{task}/why")).await.expect(200)["reasons"].clone();
    let claimed = worker.claim_one().await;

    assert_eq!(reasons(later).await[0]["reason"], "due");
    let running = reasons(first).await[0].clone();
    assert_eq!((&running["reason"], &running["name"]), (&json!("running"), &json!("test")));
    let full = reasons(second).await[0].clone();
    assert_eq!((&full["reason"], &full["limit"]), (&json!("lane_full"), &json!(1)));
    let held_by = &full["held_by"][0];
    assert_eq!(
        (&held_by["task"], &held_by["state"], &held_by["name"]),
        (&json!(first.0), &json!("leased"), &json!("test"))
    );
    server.send("POST", "/api/v1/queues/default/pause", &[("x-reason", "night")], "").await.expect(200);
    let paused = reasons(second).await[0].clone();
    assert_eq!((&paused["reason"], &paused["by"]), (&json!("queue_paused"), &json!("http")));
    worker.settle(&claimed, laneway_testkit::worker::failed()).await;
    let ended = reasons(first).await[0].clone();
    assert_eq!(
        (&ended["reason"], &ended["state"], &ended["error"]),
        (&json!("ended"), &json!("failed"), &json!("never works"))
    );
}
