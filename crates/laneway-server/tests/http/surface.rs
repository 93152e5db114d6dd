//! What operators and programs build on: edits and copies, conditions, waiting, overviews, settings, servers that may do less.

use laneway::core::{Outcome, State};
use laneway_server::{Server, ShownSetting};
use laneway_testkit::store::{TestStore, a_task, until};
use serde_json::{Value, json};

use crate::client::{Event, Running};

crate::on_both_stores! {
    a_task_that_waits_is_edited_and_one_that_runs_is_not,
    a_copy_of_a_task_is_a_new_task,
    a_caller_may_prefer_to_wait,
    a_change_on_condition_is_refused_when_somebody_was_faster,
    a_schedule_is_made_once_and_changed_in_part,
    a_worker_is_told_to_stop_and_a_queue_drains,
    the_overview_says_what_needs_attention,
    values_are_suggested,
    a_series_is_asked_for_by_range_metric_and_group,
    the_health_of_the_store_and_the_settings_of_the_process_are_shown,
    a_bulk_with_a_pace_takes_its_time,
    a_stream_has_topics,
}

async fn a_task_that_waits_is_edited_and_one_that_runs_is_not(store: &TestStore) {
    let [first, second] = store.given([a_task(), a_task()]).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{second}");
    let body = r#"{"payload": {"n": 12345678901234567}, "priority": -5}"#;

    assert_eq!(server.call("PATCH", &path, body).await.expect(200)["result"], "done");
    assert_eq!(server.call("PATCH", &path, body).await.expect(200)["result"], "unchanged");

    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!((claimed.task.id, claimed.task.payload.as_str()), (second, r#"{"n": 12345678901234567}"#));
    assert_eq!(server.call("PATCH", &path, body).await.problem().1, "task_running");
    worker.complete(&[claimed]).await;
    assert_eq!(server.call("PATCH", &path, body).await.problem().1, "task_ended");
    assert_eq!(store.state(first).await, State::Pending);
}

async fn a_copy_of_a_task_is_a_new_task(store: &TestStore) {
    let task = a_task().payload("[1]").lane("a").queue("mail").priority(7).unique("k").max_attempts(3);
    let id = store.given_one(task).await;
    let plain = store.given_one(a_task().queue("other")).await;
    let server = Running::on(store.handle()).await;

    let copied = server.call("POST", &format!("/api/v1/tasks/{id}/clone"), "").await;

    let copy = copied.expect(201)["id"].as_i64().unwrap();
    assert!(copied.head.contains(&format!("location: /api/v1/tasks/{copy}")), "{}", copied.head);
    let view = server.get(&format!("/api/v1/tasks/{copy}")).await.expect(200);
    assert_eq!((&view["payload"], &view["lane"], &view["queue"]), (&json!([1]), &json!("a"), &json!("mail")));
    assert_eq!((&view["priority"], &view["max_attempts"]), (&json!(7), &json!(3)));
    assert_eq!(view["unique"], json!(null), "its key stays with the first");
    let body = r#"{"payload": null, "queue": "slow", "priority": 1, "delay_ms": 60000}"#;
    let other = server.post(&format!("/api/v1/tasks/{id}/clone"), body).await.expect(201)["id"].clone();
    let view = server.get(&format!("/api/v1/tasks/{other}")).await.expect(200);
    assert_eq!(
        (&view["payload"], &view["queue"], &view["state"]),
        (&json!(null), &json!("slow"), &json!("later"))
    );

    let mut worker = store.worker().await;
    let claimed = worker.claim_from("other", 1).await;
    worker.complete(&claimed).await;
    let of_plain = server.call("POST", &format!("/api/v1/tasks/{plain}/clone"), "").await;
    assert_eq!(of_plain.problem().1, "plain_success");
}

async fn a_caller_may_prefer_to_wait(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/tasks/{id}");
    let prefer = |seconds| [("prefer", seconds)];

    let soon = server.send("GET", &path, &prefer("respond-async, wait=0"), "").await.expect(200);
    assert_eq!(soon["state"], "pending");
    let (shown, result) = (prefer("wait=20"), prefer("wait=20"));
    let result_path = format!("{path}/result");
    let waiting = server.send("GET", &path, &shown, "");
    let result = server.send("GET", &result_path, &result, "");
    let (shown, result, ()) = tokio::join!(waiting, result, async {
        let mut worker = store.worker().await;
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, Outcome::Failed { error: "no".into() }).await;
    });

    assert_eq!(shown.expect(200)["state"], "failed");
    assert_eq!(result.expect(200)["error"], "no");
    let unclear = server.send("GET", &path, &prefer("wait=soon"), "").await;
    assert_eq!(unclear.expect(200)["state"], "failed", "what is not understood is no preference");
}

fn tag(head: &str) -> String {
    head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("it has a tag").to_owned()
}

async fn a_change_on_condition_is_refused_when_somebody_was_faster(store: &TestStore) {
    store.given([a_task().queue("mail").lane("a")]).await;
    store.worker().await.claim_from("mail", 0).await;
    let server = Running::on(store.handle()).await;
    server
        .post("/api/v1/schedules", r#"{"name": "s", "every_ms": 60000, "task": {"kind": "a"}}"#)
        .await
        .expect(201);
    let changes = [
        ("/api/v1/queues/mail", r#"{"keep_failed": {"days": 3}}"#, r#"{"keep_failed": {"days": 4}}"#),
        ("/api/v1/queues/mail/lanes/a", r#"{"limit": 3}"#, r#"{"limit": 4}"#),
        ("/api/v1/schedules/s", r#"{"every_ms": 70000}"#, r#"{"every_ms": 80000}"#),
    ];

    for (path, first, second) in changes {
        let seen = tag(&server.get(path).await.head);
        let json = ("content-type", "application/json");
        let patch =
            async |tag: &str, body| server.send("PATCH", path, &[json, ("if-match", tag)], body).await;

        let changed = patch(&format!("\"0\", {seen}"), first).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        let late = patch(&seen, second).await;
        assert_eq!(late.problem(), (412, "precondition_failed".into(), Some("If-Match".into())), "{path}");
        assert_eq!(tag(&server.get(path).await.head), tag(&changed.head));
        assert_eq!(patch("*", second).await.status, 200, "any, as long as it is there");
    }
    let missing = server.send("DELETE", "/api/v1/schedules/none", &[("if-match", "*")], "").await;
    assert_eq!(missing.problem().0, 412);
}

async fn a_schedule_is_made_once_and_changed_in_part(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let body = r#"{"name": "daily", "cron": "0 7 * * *", "zone": "Europe/Berlin", "task": {"kind": "report", "payload": [1]}}"#;

    let made = server.post("/api/v1/schedules", body).await.expect(201);
    let again = server.post("/api/v1/schedules", body).await;

    assert_eq!(again.problem(), (409, "schedule_exists".into(), Some("name".into())));
    let path = "/api/v1/schedules/daily";
    let changed = server
        .call("PATCH", path, r#"{"cron": "0 8 * * *", "overlap": "skip_while_open"}"#)
        .await
        .expect(200);
    assert_eq!((&changed["cron"], &changed["zone"]), (&json!("0 8 * * *"), &json!("Europe/Berlin")));
    assert_eq!((&changed["payload"], &changed["missed"]), (&made["payload"], &made["missed"]));
    let interval =
        server.call("PATCH", path, r#"{"every_ms": 60000, "task": {"kind": "other"}}"#).await.expect(200);
    assert_eq!((&interval["cron"], &interval["every_ms"]), (&json!(null), &json!(60000)));
    assert_eq!(interval["kind"], "other");
    assert_eq!(server.call("PATCH", path, r#"{"zone": "UTC"}"#).await.problem().1, "invalid_schedule");
    let preview = server.get("/api/v1/schedules/preview?expr=0%207%20*%20*%20*&tz=Europe/Berlin&n=2").await;
    assert_eq!(preview.expect(200)["fires"].as_array().unwrap().len(), 2);
}

async fn a_worker_is_told_to_stop_and_a_queue_drains(store: &TestStore) {
    store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    let server = Running::on(store.handle()).await;
    let path = format!("/api/v1/workers/{}/stop", worker.session());

    assert_eq!(server.call("POST", &path, "").await.expect(200), json!({"changed": true}));
    assert_eq!(server.call("POST", &path, "").await.expect(200), json!({"changed": false}));
    assert!(worker.orders(&claimed).await.stop);

    let drain = "/api/v1/queues/default/drain";
    assert_eq!(server.call("POST", drain, "").await.expect(200), json!({"changed": true, "running": 1}));
    assert!(worker.claim(1).await.is_empty(), "nothing new is claimed");
    worker.complete(&claimed).await;
    assert_eq!(server.call("POST", drain, "").await.expect(200), json!({"changed": false, "running": 0}));
}

async fn the_overview_says_what_needs_attention(store: &TestStore) {
    store.given([a_task().queue("mail"), a_task(), a_task().delay(std::time::Duration::from_secs(60))]).await;
    let _worker = store.worker().await;
    let server = Running::on(store.handle()).await;
    server.call("POST", "/api/v1/queues/default/pause", "").await.expect(200);

    let overview = server.get("/api/v1/stats/overview").await.expect(200);

    let default = &overview["queues"][0];
    assert_eq!(
        (&default["queue"], &default["pending"], &default["later"]),
        (&json!("default"), &json!(1), &json!(1))
    );
    assert_eq!((&default["paused"], &default["workers"]), (&json!(true), &json!(1)));
    assert!(default["oldest_ready_ms"].is_u64());
    let attention = overview["attention"].as_array().unwrap();
    let shown: Vec<_> =
        attention.iter().map(|one| (one["code"].as_str().unwrap(), one["name"].as_str().unwrap())).collect();
    assert_eq!(shown, [("queue_paused", "default"), ("no_worker", "mail")]);
    assert_eq!(overview["workers"], 1);
}

async fn values_are_suggested(store: &TestStore) {
    store.given([a_task().kind("mail.send"), a_task().kind("mail.read"), a_task().queue("mine")]).await;
    let worker = store.worker().await;
    let server = Running::on(store.handle()).await;
    let suggest = async |query: &str| {
        server.get(&format!("/api/v1/stats/suggest?{query}")).await.expect(200)["values"].clone()
    };

    assert_eq!(suggest("field=kind&prefix=mail.").await, json!(["mail.read", "mail.send"]));
    assert_eq!(suggest("field=queue&prefix=m").await, json!(["mine"]));
    assert_eq!(suggest("field=state&prefix=c").await, json!(["cancelled", "completed"]));
    let session = format!("w-{}", &worker.session().to_string()[..8]);
    assert_eq!(suggest("field=worker").await, json!([session]));
    assert_eq!(suggest("field=schedule").await, json!([]));
}

async fn a_series_is_asked_for_by_range_metric_and_group(store: &TestStore) {
    store.given([a_task().queue("a"), a_task().queue("b")]).await;
    let server = Running::on(store.handle()).await;

    let series = server
        .get("/api/v1/stats/series?range=6h&step=3600&metric=enqueued,failed&group=queue")
        .await
        .expect(200);

    let queues = series["series"].as_array().unwrap();
    assert_eq!(queues.iter().map(|one| one["queue"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    let points = queues[0]["points"].as_array().unwrap();
    let names: Vec<_> = points[0].as_object().unwrap().keys().cloned().collect();
    assert_eq!((points.len(), names), (6, vec!["at".to_owned(), "enqueued".into(), "failed".into()]));
    let month = server.get("/api/v1/stats/series?range=30d").await.expect(200);
    assert!(month["points"].as_array().unwrap().len() <= 2_000, "steps grow with the range");
}

async fn the_health_of_the_store_and_the_settings_of_the_process_are_shown(store: &TestStore) {
    let setting = ShownSetting {
        key: "log.level".into(),
        value: Some("info".into()),
        from: "default".into(),
        live: true,
    };
    let server = Running::built(Server::builder(store.handle()).settings(vec![setting])).await;

    let health = server.get("/api/v1/health/store").await.expect(200);
    let settings = server.get("/api/v1/settings").await.expect(200);

    assert!(
        health["database"].as_str().unwrap().contains("QL") && health["tables"][0]["bytes"].is_u64(),
        "{health}"
    );
    let shown = json!([{"key": "log.level", "value": "info", "from": "default", "live": true}]);
    assert_eq!(settings["settings"], shown);
}

async fn a_bulk_with_a_pace_takes_its_time(store: &TestStore) {
    store.given_all((0..30).map(|_| a_task())).await;
    let server = Running::on(store.handle()).await;

    let body = r#"{"action": "cancel", "q": "kind:work", "pace": 20}"#;
    let bulk = server.post("/api/v1/bulk", body).await.expect(202);

    let path = format!("/api/v1/bulk/{}", bulk["id"]);
    assert_eq!(bulk["pace"], 20);
    until("it is done", async || server.get(&path).await.expect(200)["state"] == "finished").await;
    let last = server.get(&path).await.expect(200);
    assert_eq!(last["done"], 30);
    // A second's worth at once, and the rest no sooner than a second later.
    let started: jiff::Timestamp = last["started_at"].as_str().unwrap().parse().unwrap();
    let entries = store.audit(Default::default()).await.unwrap();
    let latest = entries.iter().filter(|row| row.action == "cancel").map(|row| row.at).max().unwrap();
    assert!(latest.duration_since(started).as_secs_f64() >= 0.9, "{entries:?}");
}

/// The tasks that an event names.
fn tasks(event: &Event) -> Vec<i64> {
    let data: Value = serde_json::from_str(&event.data).unwrap();
    let changes = data["changes"].as_array().unwrap().iter();
    changes
        .flat_map(|change| change["tasks"].as_array().unwrap())
        .map(|task| task["id"].as_i64().unwrap())
        .collect()
}

async fn a_stream_has_topics(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let watched = store.given_one(a_task()).await;
    let mut some = server.follow(&format!("?topics=queue:mail,task:{watched}"), None).await;
    some.expect("ready").await;
    let mut numbers = server.follow("?topics=overview", None).await;
    numbers.expect("ready").await;

    store.given_one(a_task()).await;
    let meant = store.given_one(a_task().queue("mail")).await;
    assert_eq!(tasks(&some.expect("changes").await), [meant.0]);
    store.cancel(watched).await.unwrap();
    assert_eq!(tasks(&some.expect("changes").await), [watched.0]);

    let mut seen = std::collections::BTreeMap::<String, u64>::new();
    while seen.values().sum::<u64>() < 3 {
        let told: Value = serde_json::from_str(&numbers.expect("overview").await.data).unwrap();
        for one in told["entered"].as_array().unwrap() {
            let place = format!("{} {}", one["queue"].as_str().unwrap(), one["state"].as_str().unwrap());
            *seen.entry(place).or_default() += one["tasks"].as_u64().unwrap();
        }
    }
    let expected = [("default cancelled", 1), ("default pending", 1), ("mail pending", 1)];
    assert_eq!(seen, expected.map(|(place, tasks)| (place.to_owned(), tasks)).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_be_told_to_change_nothing_or_to_show_only_how_it_is() {
    let store = laneway_testkit::sqlite::fresh().await;
    let id = store.given_one(a_task()).await;
    let reading = Running::built(Server::builder(store.handle()).read_only()).await;
    let probes = Running::built(Server::builder(store.handle()).only_probes()).await;

    let refused = reading.call("POST", &format!("/api/v1/tasks/{id}/cancel"), "").await;
    assert_eq!(refused.problem(), (403, "server_read_only".into(), None));
    assert_eq!(reading.get("/api/v1/tasks").await.status, 200);

    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(probes.get(path).await.status, 200, "{path}");
    }
    assert_eq!(probes.get("/api/v1/tasks").await.problem().1, "no_route");
    assert_eq!(store.state(id).await, State::Pending);
}
