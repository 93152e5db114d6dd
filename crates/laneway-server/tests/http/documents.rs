//! What the server says about itself: the OpenAPI document, and the page about errors.

use std::sync::Arc;

use laneway::core::{Store, StoreError};
use laneway::{Client, StoreHandle};
use laneway_server::{BindError, RemoteOptions, RemoteStore, Server};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::client::Running;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openapi_document_names_every_route_and_resolves() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;

    let document = server.get("/openapi.json").await.expect(200);

    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    let mut references = vec![];
    collect_references(&document, &mut references);
    for reference in references {
        let path = reference.trim_start_matches('#');
        assert!(document.pointer(path).is_some(), "{reference} leads nowhere");
    }
    for (method, path, _) in crate::access::routes(&document) {
        if path == "/api/v1/stream" {
            continue;
        }
        let answer = server.call(&method, &path, "").await;
        let is_route = answer.status != 405 && !answer.body.contains("no_route");
        assert!(is_route, "{method} {path} is documented and not there");
    }
}

fn collect_references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| collect_references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => (),
    }
}

/// Every path of the router's source is one of the document: routes are added only together with their description.
#[test]
fn routes_are_added_with_their_description() {
    let source = include_str!("../../src/routes.rs");
    let plain: Vec<_> = source.lines().filter(|line| line.contains(".route(")).collect();
    assert_eq!(plain.len(), 1, "only /openapi.json itself has no description: {plain:?}");
}

/// The commands of the page, in order, against a fresh server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_of_the_page_about_http_work() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tasks.ndjson"), "{\"kind\": \"a\"}\n{\"kind\": \"b\"}\n").unwrap();
    let blocks = PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let script = blocks
        .collect::<String>()
        .replace("\\\n", " ")
        .replace("localhost:7420", &server.address.to_string());

    let mut lines = script.lines().filter(|line| !line.is_empty()).peekable();
    let mut commands = 0;
    while let Some(command) = lines.next() {
        let output = tokio::process::Command::new("sh")
            .args(["-c", &command.replace("curl -s", "curl -sS --fail-with-body")])
            .current_dir(directory.path())
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {said}{}", String::from_utf8_lossy(&output.stderr));
        if let Some(expected) = lines.next_if(|line| line.starts_with("# ")) {
            assert_eq!(said, expected[2..], "{command}");
        }
        commands += 1;
    }
    assert_eq!(commands, 8);
}

const PAGE: &str = include_str!("../../../../docs/http.md");

#[test]
fn the_page_about_http_has_the_table_of_codes() {
    let mut documented = vec![];
    for row in PAGE.lines().filter(|line| line.starts_with("| 4") || line.starts_with("| 5")) {
        let mut cells = row.split('|').map(str::trim);
        let status: u16 = cells.nth(1).unwrap().parse().unwrap();
        let codes = cells.next().unwrap().split(", ").map(|code| code.trim_matches('`').to_owned());
        documented.extend(codes.map(|code| (status, code)));
    }
    let mut known: Vec<_> =
        laneway_server::error_codes().map(|(status, code)| (status, code.to_owned())).collect();
    documented.sort();
    known.sort();
    assert_eq!(documented, known);
}

/// The Rust of the page, as it stands there but for the port.
#[tokio::test]
async fn the_rust_of_the_page_about_http_works() {
    async fn serve(store: Arc<dyn Store>, stop: CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
        let bound = Server::builder(store).listen("127.0.0.1:7420".parse()?).build()?.bind().await?;
        bound.serve(stop).await; // until the `CancellationToken` is cancelled
        Ok(())
    }
    let (store, stop) = (laneway_testkit::sqlite::fresh().await, CancellationToken::new());
    stop.cancel();

    // Another program may have the port: that is the one thing that may go wrong.
    if let Err(error) = serve(store.handle(), stop).await {
        let error = error.downcast_ref::<BindError>().expect("only listening can fail");
        assert!(matches!(error, BindError::Address { .. }), "{error}");
    }

    fn remote(token: &str) -> Result<Client, StoreError> {
        let store = RemoteStore::new(RemoteOptions::new("https://tasks.example.org").token(token))?;
        let client = Client::new(StoreHandle::from(Arc::new(store) as Arc<dyn Store>));
        Ok(client)
    }
    remote("lw_17_secret").unwrap();

    let blocks: Vec<_> =
        PAGE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let own = bare(include_str!("documents.rs"));
    blocks.iter().for_each(|block| assert!(own.contains(&bare(block)), "{block}"));
    assert_eq!(blocks.len(), 2);
}

#[tokio::test]
async fn every_answer_names_its_request() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let named = async |name: &str| {
        let answer = server.send("GET", "/api/v1/tasks/99", &[("x-request-id", name)], "").await;
        let line =
            answer.head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).map(str::to_owned);
        line.expect("it is named")
    };

    assert_eq!(named("order-7").await, "order-7");
    for unfit in ["", "two words", &"x".repeat(101)] {
        assert_eq!(named(unfit).await.len(), 32, "{unfit:?} is replaced");
    }
}

#[test]
fn the_benchmark_of_the_server_runs_as_the_page_says() {
    let command = "cargo run --release -p laneway-server --example http_bench";
    let program = laneway_testkit::pages::example("laneway-server", "http_bench");
    let tiny = ["--seconds", "1", "--clients", "2", "--store", "sqlite"];

    assert_eq!(laneway_testkit::pages::run_benchmarks(command, &program, &tiny), 1);
}
