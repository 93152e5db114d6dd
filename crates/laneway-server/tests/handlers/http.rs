//! `http.request` and endpoints.

use laneway::core::State as TaskState;
use laneway::{Client, Payload, Stop, Worker};
use laneway_server::handlers::{Endpoint, HttpOptions, HttpRequest, HttpRequests};
use laneway_testkit::store::until;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::*;

fn request(json: Value) -> HttpRequest {
    serde_json::from_value(json).unwrap()
}

async fn send(json: Value) -> laneway::core::TaskView {
    run(request(json), |worker| HttpRequests::new(anywhere()).unwrap().add_to(worker)).await
}

#[tokio::test]
async fn a_request_is_sent_as_described_and_its_answer_is_the_result() {
    let (server, url) = Server::start().await;

    let task = send(json!({
        "method": "put", "url": format!("{url}/orders?id=7"), "headers": {"Authorization": "Bearer t"}, "body": {"n": 1},
    }))
    .await;

    let seen = &server.seen()[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str(), seen.body.as_str()),
        ("PUT", "/orders?id=7", r#"{"n":1}"#)
    );
    assert_eq!(
        (&seen.headers["authorization"], &seen.headers["content-type"]),
        (&"Bearer t".parse().unwrap(), &"application/json".parse().unwrap())
    );
    let result = result(&task);
    assert_eq!(
        (task.state, &result["status"], &result["body"]),
        (TaskState::Completed, &json!(200), &json!({"done": true}))
    );
    assert_eq!((&result["headers"]["x-answer"], &result["truncated"]), (&json!("42"), &json!(false)));
}

#[tokio::test]
async fn a_status_that_may_change_is_tried_again_and_any_other_fails_for_good() {
    let (server, url) = Server::start().await;

    let flaky = send(json!({"url": format!("{url}/flaky")})).await;
    let missing = send(json!({"url": format!("{url}/status/404")})).await;
    let expected = send(json!({"url": format!("{url}/status/404"), "expect": [404, 410]})).await;
    let down = send(json!({"url": format!("{url}/status/503")})).await;

    assert_eq!((flaky.state, flaky.attempt), (TaskState::Completed, 2));
    assert_eq!((missing.state, missing.attempt), (TaskState::Failed, 1));
    assert_eq!(missing.error.as_deref(), Some("answered 404 Not Found: as you wish"));
    assert_eq!((expected.state, &result(&expected)["status"]), (TaskState::Completed, &json!(404)));
    assert_eq!((down.state, down.attempt), (TaskState::Failed, 3), "its attempts are spent");
    assert_eq!(server.seen().len(), 2 + 1 + 1 + 3);
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let (_server, url) = Server::start().await;

    let task = send(json!({"url": format!("{url}/busy")})).await;

    let wait = task.due_at.unwrap().duration_since(jiff::Timestamp::now()).as_secs();
    assert_eq!((task.state, task.attempt), (TaskState::Later, 1));
    assert!((500..=600).contains(&wait), "{wait}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_or_does_not_answer_is_tried_again() {
    let (_server, url) = Server::start().await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();

    let refused = send(json!({"url": format!("http://{gone}/")})).await;
    let slow = send(json!({"url": format!("{url}/slow"), "timeout_ms": 50})).await;

    assert_eq!((refused.state, refused.attempt), (TaskState::Failed, 3));
    assert!(refused.error.unwrap().contains("could not be reached"));
    assert_eq!((slow.state, slow.attempt), (TaskState::Failed, 3));
    assert_eq!(slow.error.as_deref(), Some("`127.0.0.1` gave no answer within 50ms"));
}

#[tokio::test]
async fn private_targets_are_refused_unless_they_are_allowed() {
    let (server, url) = Server::start().await;
    let port = url.rsplit(':').next().unwrap();

    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"] {
        let request = request(json!({"url": format!("http://{host}:{port}/")}));
        let task =
            run(request, |worker| HttpRequests::new(HttpOptions::default()).unwrap().add_to(worker)).await;
        assert_eq!((task.state, task.attempt), (TaskState::Failed, 1), "{host}");
        assert!(task.error.as_ref().unwrap().contains("not a public address"), "{host}: {:?}", task.error);
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_redirect_to_a_private_address_ends_the_task_and_reaches_nobody() {
    let (first, url) = Server::start().await;
    let (second, other) = Server::start().await;
    let also = url.strip_prefix("http://").unwrap().parse().ok();
    let options = HttpOptions { also, ..HttpOptions::default() };

    let task = run(request(json!({"url": format!("{url}/to/{other}/here")})), |worker| {
        HttpRequests::new(options).unwrap().add_to(worker)
    })
    .await;

    assert_eq!((task.state, task.attempt), (TaskState::Failed, 1));
    assert!(task.error.as_ref().unwrap().contains("not a public address"), "{:?}", task.error);
    assert_eq!((first.seen().len(), second.seen().len()), (1, 0));
}

#[tokio::test]
async fn redirects_are_followed_without_secrets_for_other_hosts_and_not_for_ever() {
    let (first, url) = Server::start().await;
    let (second, other) = Server::start().await;

    let followed = send(json!({
        "method": "POST", "url": format!("{url}/to/{other}/here"), "headers": {"Authorization": "Bearer t"}, "body": "text",
    }))
    .await;
    let circle = send(json!({"url": format!("{url}/round")})).await;
    let elsewhere = send(json!({"url": format!("{url}/to/file:///etc/passwd")})).await;

    assert_eq!(followed.state, TaskState::Completed);
    assert!(first.seen()[0].headers.contains_key("authorization"));
    let seen = &second.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str(), seen.body.as_str()), ("POST", "/here", "text"));
    assert!(!seen.headers.contains_key("authorization"));
    assert_eq!(
        (circle.state, circle.attempt),
        (TaskState::Failed, 1),
        "it would not end the next time either"
    );
    assert_eq!(circle.error.unwrap(), format!("more than 5 redirects, the last to `{url}/round`"));
    assert_eq!(first.seen().iter().filter(|seen| seen.path == "/round").count(), 6);
    assert_eq!((elsewhere.state, elsewhere.attempt), (TaskState::Failed, 1));
}

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/handlers/localhost.crt");

/// Whom to trust is read from the environment when a worker starts, so this runs once more as a process of its own.
#[tokio::test]
async fn an_https_target_is_called_when_its_certificate_is_trusted() {
    let (server, url) = Server::start_with_tls().await;

    let task = send(json!({"url": format!("{url}/orders")})).await;

    if std::env::var_os("SSL_CERT_FILE").is_some_and(|file| file == CERTIFICATE) {
        assert_eq!((task.state, &result(&task)["body"]), (TaskState::Completed, &json!({"done": true})));
        assert_eq!(server.seen().len(), 1);
        return;
    }
    assert_eq!((task.state, task.attempt), (TaskState::Failed, 3), "the certificate may be renewed any time");
    assert_eq!(
        task.error.as_deref(),
        Some("`localhost` could not be reached: invalid peer certificate: UnknownIssuer")
    );
    assert_eq!(server.seen().len(), 0, "nothing is sent to a server that is not trusted");
    let trusting = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "http::an_https_target_is_called_when_its_certificate_is_trusted"])
        .env("SSL_CERT_FILE", CERTIFICATE)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&trusting.stdout);
    assert!(trusting.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn of_a_long_answer_only_so_much_is_kept() {
    let (_server, url) = Server::start().await;

    let task = send(json!({"url": format!("{url}/big")})).await;

    let result = result(&task);
    assert_eq!((result["body"].as_str().unwrap().len(), &result["truncated"]), (10_000, &json!(true)));
}

#[tokio::test]
async fn a_request_that_makes_no_sense_fails_for_good_and_says_why() {
    for (payload, problem) in [
        (json!({"url": "nothing"}), "`url` is no URL"),
        (json!({"url": "ftp://a.example/"}), "http and https are"),
        (json!({"url": "http://me:secret@a.example/"}), "use a header"),
        (json!({"url": "http://a.example/", "method": "G E T"}), "`method` is `G E T`"),
        (json!({"url": "http://a.example/", "headers": {"a b": "c"}}), "`a b` is no header"),
        (json!({"url": "http://a.example/", "headers": {"Host": "b"}}), "follows from url and body"),
        (json!({"url": "http://a.example/", "headers": {"x": "a\nb"}}), "the value of header `x`"),
        (json!({"url": "http://a.example/", "timeout_ms": 0}), "allowed is 1 to 600000"),
    ] {
        let task = send(payload.clone()).await;
        assert_eq!((task.state, task.attempt), (TaskState::Failed, 1), "{payload}");
        let error = task.error.unwrap();
        assert!(error.contains(problem) && !error.contains("secret"), "{payload}: {error}");
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    n: u64,
}
impl Payload for Order {
    const KIND: &'static str = "order.placed";
}

#[tokio::test]
async fn an_endpoint_gets_the_payload_and_answers_with_the_result() {
    let (server, url) = Server::start().await;
    let endpoint = |path: &str| Endpoint::new("order.placed", &format!("{url}{path}"), anywhere()).unwrap();

    let done = run(Order { n: 7 }, |worker| endpoint("/orders").add_to(worker)).await;
    let refused = run(Order { n: 7 }, |worker| endpoint("/status/422").add_to(worker)).await;
    let flaky = run(Order { n: 7 }, |worker| endpoint("/flaky").add_to(worker)).await;
    let long = run(Order { n: 7 }, |worker| endpoint("/big").add_to(worker)).await;

    assert_eq!((done.state, result(&done)), (TaskState::Completed, json!({"done": true})));
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.body.as_str()), ("POST", r#"{"n":7}"#));
    assert_eq!(seen.headers["laneway-task"], done.id.to_string().as_str());
    assert_eq!(
        (&seen.headers["laneway-attempt"], &seen.headers["laneway-kind"]),
        (&"1".parse().unwrap(), &"order.placed".parse().unwrap())
    );
    assert_eq!((refused.state, refused.attempt), (TaskState::Failed, 1));
    assert_eq!((flaky.state, flaky.attempt), (TaskState::Completed, 2));
    assert_eq!(long.state, TaskState::Failed);
    assert!(Endpoint::new("order.placed", "file:///etc/passwd", anywhere()).is_err());
}

#[tokio::test]
async fn a_cancel_ends_a_call_that_waits() {
    let (server, url) = Server::start().await;
    let store = store().await;
    let task = Client::new(&store).enqueue(request(json!({"url": format!("{url}/slow")}))).await.unwrap();
    let worker = HttpRequests::new(anywhere()).unwrap().add_to(Worker::builder(&store)).build().unwrap();
    let stop = Stop::default();
    let running = tokio::spawn(worker.run_until(stop.clone()));
    until("it was sent", async || !server.seen().is_empty()).await;

    Client::new(&store).cancel(task.id).await.unwrap();

    let ended = Client::new(&store).wait(task).await.unwrap();
    assert_eq!(ended.state(), TaskState::Cancelled);
    stop.drain();
    running.await.unwrap().unwrap();
}
