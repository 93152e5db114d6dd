//! A server below a path, as behind a proxy.

use laneway_server::{BuildError, Server};

use crate::client::Running;

async fn below(path: &str) -> (laneway_testkit::store::TestStore, Running) {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::built(Server::builder(store.handle()).base_path(path)).await;
    (store, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_routes_are_below_the_base_path_and_the_document_says_so() {
    let (_store, server) = below("/tools/tasks/").await;

    let document = server.get("/tools/tasks/openapi.json").await.expect(200);

    assert_eq!(document["servers"][0]["url"], "/tools/tasks");
    for (method, path, _) in crate::access::routes(&document) {
        if path == "/api/v1/stream" {
            continue;
        }
        let answer = server.call(&method, &format!("/tools/tasks{path}"), "").await;
        assert!(
            answer.status != 405 && !answer.body.contains("no_route"),
            "{method} {path}: {}",
            answer.body
        );
    }
    let mut events = server.follow_at("/tools/tasks/api/v1/stream").await;
    events.expect("ready").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_leads_to_places_below_the_base_path() {
    let (_store, server) = below("/tasks").await;

    let made = server.post("/tasks/api/v1/tasks", r#"{"kind": "a"}"#).await;
    assert!(made.head.contains("location: /tasks/api/v1/tasks/1"), "{}", made.head);
    assert_eq!(server.get("/tasks/api/v1/tasks/1").await.expect(200)["kind"], "a");

    let lost = server.get("/tasks/api/v1/nothing").await;
    assert_eq!(lost.problem().1, "no_route");
    assert_eq!(lost.json()["hint"], "see /tasks/openapi.json");
    let method = server.call("PUT", "/tasks/api/v1/tasks/1", "{}").await;
    assert_eq!(method.problem().1, "method_not_allowed");
    assert_eq!(method.json()["hint"], "see /tasks/openapi.json");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_the_base_path_only_metrics_and_health_are_answered() {
    let (_store, server) = below("/tasks").await;

    for path in ["/livez", "/readyz", "/metrics", "/tasks/livez", "/tasks/readyz", "/tasks/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    for path in ["/api/v1/tasks", "/openapi.json", "/tasksapi/v1/tasks", "/"] {
        assert_eq!(server.get(path).await.problem().1, "no_route", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_by_their_route_without_the_base_path() {
    let (_store, server) = below("/tasks").await;
    server.get("/tasks/api/v1/tasks/99").await;

    let body = server.get("/metrics").await.body;

    let line = r#"server_requests_total{route="/api/v1/tasks/{id}",method="GET",code="404"} 1"#;
    assert!(body.lines().any(|found| found == line), "{body}");
}

#[tokio::test]
async fn a_base_path_that_is_none_is_refused() {
    let store = laneway_testkit::sqlite::fresh().await;

    let refused = Server::builder(store.handle()).base_path("tasks").build().err().unwrap();

    assert!(matches!(refused, BuildError::BasePath { .. }));
    let told = "base_path is `tasks`; allowed is / or /NAME/NAME with names of letters, digits, -, ., _ and ~, up to 200 bytes";
    assert_eq!(refused.to_string(), told);
}
