//! Input that is refused: the status, the code and the field, and nothing is stored.

use laneway_testkit::store::TestStore;

use crate::client::Running;

crate::on_both_stores! {
    bad_input_is_refused_with_its_code_and_changes_nothing,
}

const TASKS: &str = "/api/v1/tasks";
const BULK: &str = "/api/v1/bulk";
const SCHEDULE: &str = "/api/v1/schedules/s";
const LANE: &str = "/api/v1/queues/q/lanes/l";

/// Method, path, body; status, code, field.
type Case = (&'static str, &'static str, &'static str, u16, &'static str, Option<&'static str>);

const CASES: &[Case] = &[
    ("POST", TASKS, "", 415, "unsupported_media_type", Some("Content-Type")),
    ("POST", TASKS, "{", 400, "invalid_json", Some("body")),
    ("POST", TASKS, "{} {}", 400, "missing_field", Some("kind")),
    ("POST", TASKS, r#"{"kind": "a"} {}"#, 400, "invalid_json", Some("body")),
    ("POST", TASKS, "\u{feff}{}", 400, "invalid_json", Some("body")),
    ("POST", TASKS, "null", 400, "invalid_type", Some("body")),
    ("POST", TASKS, "{}", 400, "missing_field", Some("kind")),
    ("POST", TASKS, r#"{"kind": 7}"#, 400, "invalid_type", Some("kind")),
    ("POST", TASKS, r#"{"kind": ""}"#, 400, "invalid_name", Some("kind")),
    ("POST", TASKS, r#"{"kind": " a"}"#, 400, "invalid_name", Some("kind")),
    ("POST", TASKS, r#"{"kind": "a\u0007"}"#, 400, "invalid_name", Some("kind")),
    ("POST", TASKS, r#"{"kind": "a", "kind": "b"}"#, 400, "invalid_type", Some("body")),
    ("POST", TASKS, r#"{"kind": "a", "colour": 1}"#, 400, "unknown_field", Some("colour")),
    (
        "POST",
        TASKS,
        r#"[{"kind": "a"}, {"kind": "a", "colour": 1}]"#,
        400,
        "unknown_field",
        Some("[1].colour"),
    ),
    ("POST", TASKS, r#"{"kind": "a", "lane": 7}"#, 400, "invalid_type", Some("lane")),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "lane": {"key": "k", "limit": 0}}"#,
        400,
        "out_of_range",
        Some("lane.limit"),
    ),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "lane": {"key": "k", "limit": -1}}"#,
        400,
        "invalid_type",
        Some("lane.limit"),
    ),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "lane": {"key": "k", "size": 1}}"#,
        400,
        "unknown_field",
        Some("lane.size"),
    ),
    ("POST", TASKS, r#"{"kind": "a", "priority": 1001}"#, 400, "out_of_range", Some("priority")),
    ("POST", TASKS, r#"{"kind": "a", "priority": 99999999999}"#, 400, "invalid_type", Some("priority")),
    ("POST", TASKS, r#"{"kind": "a", "max_attempts": 0}"#, 400, "out_of_range", Some("max_attempts")),
    ("POST", TASKS, r#"{"kind": "a", "delay_ms": -1}"#, 400, "invalid_type", Some("delay_ms")),
    ("POST", TASKS, r#"{"kind": "a", "delay_ms": 999999999999}"#, 400, "time_out_of_range", Some("delay")),
    ("POST", TASKS, r#"{"kind": "a", "due_at": "tomorrow"}"#, 400, "invalid_type", Some("due_at")),
    ("POST", TASKS, r#"{"kind": "a", "due_at": "2026-01-01T00:00:00"}"#, 400, "invalid_type", Some("due_at")),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "due_at": "1999-01-01T00:00:00Z"}"#,
        400,
        "time_out_of_range",
        Some("due"),
    ),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "due_at": "2030-01-01T00:00:00Z", "delay_ms": 1}"#,
        400,
        "out_of_range",
        Some("due_at"),
    ),
    ("POST", TASKS, r#"{"kind": "a", "timeout_ms": 0}"#, 400, "out_of_range", Some("timeout")),
    ("POST", TASKS, r#"{"kind": "a", "tags": [""]}"#, 400, "invalid_name", Some("tag")),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "retry": {"list": {"delays_ms": []}}}"#,
        400,
        "out_of_range",
        Some("retry"),
    ),
    ("POST", TASKS, r#"{"kind": "a", "retry": {"never": {}}}"#, 400, "invalid_type", Some("retry")),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "payload": 9223372036854775808}"#,
        400,
        "number_out_of_range",
        Some("payload"),
    ),
    ("POST", TASKS, r#"{"kind": "a", "payload": 1e400}"#, 400, "number_out_of_range", Some("payload")),
    ("POST", TASKS, r#"{"kind": "a", "payload": "\u0000"}"#, 400, "nul_not_allowed", Some("payload")),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "unique": {"key": "k"}, "idempotency_key": "k"}"#,
        400,
        "out_of_range",
        Some("unique"),
    ),
    (
        "POST",
        TASKS,
        r#"{"kind": "a", "unique": {"key": "k", "scope": {"within_ms": 0}}}"#,
        400,
        "out_of_range",
        Some("unique.within"),
    ),
    ("GET", "/api/v1/tasks?limit=0", "", 400, "out_of_range", Some("limit")),
    ("GET", "/api/v1/tasks?limit=501", "", 400, "out_of_range", Some("limit")),
    ("GET", "/api/v1/tasks?limit=x", "", 400, "invalid_type", Some("limit")),
    ("GET", "/api/v1/tasks?colour=red", "", 400, "unknown_field", Some("colour")),
    ("GET", "/api/v1/tasks?state=done", "", 400, "invalid_name", Some("state")),
    ("GET", "/api/v1/tasks?q=colour:red", "", 400, "invalid_filter", Some("filter")),
    ("GET", "/api/v1/tasks?cursor=page2", "", 400, "invalid_id", Some("cursor")),
    ("GET", "/api/v1/tasks?cursor=ended:x", "", 400, "invalid_id", Some("cursor")),
    ("GET", "/api/v1/tasks/0", "", 400, "invalid_id", Some("id")),
    ("GET", "/api/v1/tasks/x", "", 400, "invalid_id", Some("id")),
    ("GET", "/api/v1/tasks/%ff", "", 400, "invalid_request", None),
    ("GET", "/api/v1/tasks/7", "", 404, "not_found", None),
    ("GET", "/api/v1/tasks/7/why", "", 404, "not_found", None),
    ("GET", "/api/v1/tasks/7/attempts", "", 404, "not_found", None),
    ("POST", "/api/v1/tasks/7/retry", "", 404, "not_found", None),
    ("POST", "/api/v1/tasks/7/snooze", "{}", 400, "missing_field", Some("delay_ms")),
    ("PATCH", "/api/v1/tasks/7", r#"{"priority": 1001}"#, 400, "out_of_range", Some("priority")),
    ("PATCH", "/api/v1/tasks/7", "{}", 400, "out_of_range", Some("edit")),
    ("PATCH", "/api/v1/tasks/7", r#"{"payload": 1e400}"#, 400, "number_out_of_range", Some("payload")),
    ("PATCH", "/api/v1/tasks/7", r#"{"queue": "q"}"#, 400, "unknown_field", Some("queue")),
    ("PATCH", "/api/v1/tasks/7", r#"{"priority": 1}"#, 404, "not_found", None),
    ("POST", "/api/v1/tasks/7/clone", "", 404, "not_found", None),
    ("POST", "/api/v1/tasks/x/clone", "", 400, "invalid_id", Some("id")),
    ("POST", "/api/v1/tasks/7/clone", r#"{"kind": "a"}"#, 400, "unknown_field", Some("kind")),
    ("POST", BULK, r#"{"action": "cancel", "q": "kind:a", "pace": 0}"#, 400, "out_of_range", Some("pace")),
    ("POST", BULK, r#"{"action": "cancel", "ids": [1], "pace": 5}"#, 400, "invalid_request", Some("pace")),
    ("GET", "/api/v1/bulk?state=odd", "", 400, "invalid_type", Some("state")),
    ("POST", BULK, r#"{"action": "explode", "q": "kind:a"}"#, 400, "invalid_type", Some("action")),
    ("POST", BULK, r#"{"action": "cancel"}"#, 400, "invalid_filter", Some("q")),
    ("POST", BULK, r#"{"action": "cancel", "q": ""}"#, 400, "invalid_filter", Some("q")),
    ("POST", BULK, r#"{"action": "cancel", "q": "kind:a", "ids": [1]}"#, 400, "invalid_filter", Some("q")),
    ("POST", BULK, r#"{"action": "snooze", "ids": [1]}"#, 400, "out_of_range", Some("delay_ms")),
    (
        "POST",
        BULK,
        r#"{"action": "cancel", "priority": 1, "ids": [1]}"#,
        400,
        "out_of_range",
        Some("priority"),
    ),
    (
        "POST",
        "/api/v1/bulk/preview",
        r#"{"action": "cancel", "ids": [1]}"#,
        400,
        "invalid_request",
        Some("ids"),
    ),
    ("GET", "/api/v1/bulk/7", "", 404, "not_found", None),
    ("GET", "/api/v1/bulk/x", "", 400, "invalid_request", None),
    ("POST", "/api/v1/bulk/7/abort", "", 404, "not_found", None),
    ("GET", "/api/v1/queues/none", "", 404, "not_found", None),
    ("PATCH", "/api/v1/queues/q", r#"{"keep_failed": "nothing"}"#, 400, "out_of_range", Some("keep_failed")),
    (
        "PATCH",
        "/api/v1/queues/q",
        r#"{"keep_completed": {"days": 0}}"#,
        400,
        "out_of_range",
        Some("keep_completed"),
    ),
    ("POST", "/api/v1/queues/q/pause", r#"{"expires_ms": 0}"#, 400, "out_of_range", Some("pause.expires")),
    ("POST", "/api/v1/queues/%20/pause", "", 400, "invalid_name", Some("queue")),
    ("GET", "/api/v1/queues/q/lanes?order=size", "", 400, "invalid_name", Some("order")),
    ("GET", LANE, "", 404, "not_found", None),
    ("PATCH", LANE, r#"{"limit": "few"}"#, 400, "invalid_type", Some("limit")),
    ("PATCH", LANE, r#"{"limit": 1000001}"#, 400, "out_of_range", Some("lane.limit")),
    ("GET", "/api/v1/workers/w-1", "", 400, "invalid_id", Some("session")),
    ("POST", "/api/v1/workers/00000000-0000-0000-0000-000000000000/drain", "", 404, "not_found", None),
    ("POST", "/api/v1/workers/00000000-0000-0000-0000-000000000000/stop", "", 404, "not_found", None),
    ("POST", "/api/v1/queues/%20/drain", "", 400, "invalid_name", Some("queue")),
    (
        "POST",
        "/api/v1/schedules",
        r#"{"every_ms": 60000, "task": {"kind": "a"}}"#,
        400,
        "invalid_name",
        Some("name"),
    ),
    (
        "PUT",
        SCHEDULE,
        r#"{"name": "t", "every_ms": 60000, "task": {"kind": "a"}}"#,
        400,
        "invalid_name",
        Some("name"),
    ),
    ("PATCH", SCHEDULE, r#"{"every_ms": 60000}"#, 404, "not_found", None),
    ("PATCH", SCHEDULE, r#"{"colour": 1}"#, 400, "unknown_field", Some("colour")),
    ("PUT", SCHEDULE, r#"{"task": {"kind": "a"}}"#, 400, "invalid_schedule", Some("cron")),
    ("PUT", SCHEDULE, r#"{"cron": "* * *", "task": {"kind": "a"}}"#, 400, "invalid_schedule", Some("cron")),
    (
        "PUT",
        SCHEDULE,
        r#"{"cron": "0 0 30 2 *", "task": {"kind": "a"}}"#,
        400,
        "invalid_schedule",
        Some("cron"),
    ),
    ("PUT", SCHEDULE, r#"{"every_ms": 10, "task": {"kind": "a"}}"#, 400, "out_of_range", Some("every")),
    (
        "PUT",
        SCHEDULE,
        r#"{"every_ms": 5000, "task": {"kind": "a", "colour": 1}}"#,
        400,
        "unknown_field",
        Some("task.colour"),
    ),
    ("DELETE", SCHEDULE, "", 404, "not_found", None),
    ("POST", "/api/v1/schedules/s/run", "", 404, "not_found", None),
    ("POST", "/api/v1/schedules/s/pause", "", 404, "not_found", None),
    ("GET", "/api/v1/schedules/s/next", "", 404, "not_found", None),
    ("GET", "/api/v1/schedules/preview?expr=*%20*%20*%20*%20*&n=101", "", 400, "out_of_range", Some("n")),
    (
        "GET",
        "/api/v1/schedules/preview?expr=*%20*%20*%20*%20*&tz=Mars",
        "",
        400,
        "invalid_schedule",
        Some("zone"),
    ),
    ("GET", "/api/v1/stats/series?step=30", "", 400, "out_of_range", Some("step")),
    ("GET", "/api/v1/stats/series?range=soon", "", 400, "out_of_range", Some("range")),
    ("GET", "/api/v1/stats/series?metric=colour", "", 400, "invalid_name", Some("metric")),
    ("GET", "/api/v1/stats/series?group=kind", "", 400, "invalid_name", Some("group")),
    ("GET", "/api/v1/stats/series?group=queue&queue=q", "", 400, "out_of_range", Some("group")),
    ("GET", "/api/v1/stats/suggest?field=colour", "", 400, "invalid_name", Some("field")),
    ("GET", "/api/v1/stats/suggest", "", 400, "missing_field", Some("field")),
    ("GET", "/api/v1/stream?topics=colour:red", "", 400, "invalid_name", Some("topics")),
    ("GET", "/api/v1/stream?topics=overview&queue=q", "", 400, "out_of_range", Some("topics")),
    ("GET", "/api/v1/stream?after=latest", "", 400, "invalid_id", Some("position")),
    ("GET", "/api/v1/audit?limit=0", "", 400, "out_of_range", Some("limit")),
    ("POST", "/api/v1/tokens", r#"{"name": "t", "scopes": []}"#, 400, "out_of_range", Some("scopes")),
    ("POST", "/api/v1/tokens", r#"{"name": "t", "scopes": ["root"]}"#, 400, "invalid_name", Some("scope")),
    ("DELETE", "/api/v1/tokens/7", "", 404, "not_found", None),
    ("GET", "/nowhere", "", 404, "no_route", None),
    ("PUT", TASKS, "{}", 405, "method_not_allowed", None),
    ("DELETE", "/livez", "", 405, "method_not_allowed", None),
];

async fn bad_input_is_refused_with_its_code_and_changes_nothing(store: &TestStore) {
    let server = Running::on(store.handle()).await;

    for (method, path, body, status, code, field) in CASES {
        let answer = server.call(method, path, body).await;
        let expected = (*status, (*code).to_owned(), field.map(ToOwned::to_owned));
        assert_eq!(answer.problem(), expected, "{method} {path} {body}: {}", answer.body);
    }

    let large = format!(r#"{{"kind": "a", "payload": "{}"}}"#, "x".repeat(1024 * 1024));
    assert_eq!(server.post(TASKS, &large).await.problem().1, "payload_too_large");
    let larger = format!(r#"{{"kind": "a", "payload": "{}"}}"#, "x".repeat(2 * 1024 * 1024));
    assert_eq!(server.post(TASKS, &larger).await.problem(), (413, "body_too_large".into(), None));
    let deep = format!(r#"{{"kind": "a", "payload": {}1{}}}"#, "[".repeat(65), "]".repeat(65));
    assert_eq!(server.post(TASKS, &deep).await.problem().1, "payload_too_deep");
    let form = [("content-type", "text/plain")];
    assert_eq!(server.send("POST", TASKS, &form, "{}").await.problem().0, 415);
    assert_eq!(store.total().await, 0);
    assert!(store.audit(Default::default()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_http_is_answered_or_closed_and_the_server_lives() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let host = format!("host: {}\r\n", server.address);

    for request in [
        "\r\n\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET /livez HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /livez HTTP/1.1\r\n{host}{}\r\n", "a: b\r\n".repeat(200)),
        format!("GET /livez HTTP/1.1\r\n{host}a: {}\r\n\r\n", "x".repeat(100_000)),
        format!("POST /api/v1/tasks HTTP/1.1\r\n{host}content-length: 5\r\ncontent-length: 6\r\n\r\n"),
        format!("POST /api/v1/tasks HTTP/1.1\r\n{host}content-length: -1\r\n\r\n"),
    ] {
        let answer = server.raw(request.as_bytes()).await;
        assert!(answer.status == 0 || (400..500).contains(&answer.status), "{request:.60}: {}", answer.head);
    }

    assert_eq!(server.get("/livez").await.status, 200);
}
