//! Who may call: tokens and their scopes, names of the server, pages of other sites.

use std::collections::BTreeMap;
use std::time::Duration;

use laneway::core::{Actor, ActorName, Scope, Store};
use laneway_server::tokens::{TokenRequest, issue};
use laneway_server::{BindError, BuildError, Server, Tokens};
use laneway_testkit::store::{TestStore, until};
use serde_json::Value;

use crate::client::Running;

crate::on_both_stores! {
    every_route_asks_for_the_scope_that_it_documents,
    a_token_is_shown_once_works_and_is_revoked,
}

async fn token_of(store: &dyn Store, scope: Scope) -> String {
    let name = ActorName::new(format!("{scope} client")).unwrap();
    let request = TokenRequest { name, scopes: vec![scope], expires_at: None };
    issue(store, &Actor::program(), request).await.unwrap().text
}

/// Every documented route: method, path with its parameters filled in, and the scope that it needs.
pub fn routes(document: &Value) -> Vec<(String, String, Option<String>)> {
    let mut routes = vec![];
    for (path, item) in document["paths"].as_object().unwrap() {
        let filled: Vec<_> =
            path.split('/').map(|part| if part.starts_with('{') { "7" } else { part }).collect();
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["security"][0]["token"][0].as_str().map(ToOwned::to_owned);
            routes.push((method.to_uppercase(), filled.join("/"), scope));
        }
    }
    routes
}

async fn every_route_asks_for_the_scope_that_it_documents(store: &TestStore) {
    let mut tokens = BTreeMap::new();
    for scope in Scope::ALL {
        tokens.insert(scope, token_of(&*store.handle(), scope).await);
    }
    let mut server = Running::built(Server::builder(store.handle()).tokens(Tokens::Required)).await;
    let document = server.get("/openapi.json").await.expect(200);

    let routes = routes(&document);
    assert!(routes.len() > 40, "{routes:?}");
    for (method, path, needed) in routes {
        let call = async |server: &Running| match path.as_str() {
            // Otherwise it would never end.
            "/api/v1/stream" => server.call(&method, &format!("{path}?after=x"), "").await.status,
            _ => server.call(&method, &path, "").await.status,
        };
        server.token = None;
        let without = call(&server).await;
        let Some(needed) = needed else {
            assert_eq!(without, 200, "{method} {path} needs no token");
            continue;
        };
        assert_eq!(without, 401, "{method} {path} without a token");
        let needed: Scope = needed.parse().unwrap();
        for (scope, token) in &tokens {
            server.token = Some(token.clone());
            let is_allowed = !matches!(call(&server).await, 401 | 403);
            assert_eq!(is_allowed, scope.allows(needed), "{method} {path} with a token for {scope}");
        }
    }
}

async fn a_token_is_shown_once_works_and_is_revoked(store: &TestStore) {
    let admin = token_of(&*store.handle(), Scope::Admin).await;
    let mut server = Running::built(Server::builder(store.handle()).tokens(Tokens::Required)).await;
    server.token = Some(admin.clone());

    let made = server.post("/api/v1/tokens", r#"{"name": "shop", "scopes": ["enqueue", "operate"]}"#).await;
    let made = made.expect(201);
    let (id, text) = (made["id"].as_i64().unwrap(), made["text"].as_str().unwrap().to_owned());
    assert!(text.starts_with(&format!("lw_{id}_")) && text.len() > 60);
    assert!(!server.get("/api/v1/tokens").await.body.contains(&text[5..]));

    server.token = Some(text.clone());
    server.post("/api/v1/tasks", r#"{"kind": "a"}"#).await.expect(201);
    server.call("POST", "/api/v1/queues/mail/pause", "").await.expect(200);
    let pauses = server.get("/api/v1/pauses").await.expect(200);
    assert_eq!(pauses["pauses"][0]["by"], "shop");
    let stranger = format!("{}x", &text[..text.len() - 1]);
    server.token = Some(stranger);
    assert_eq!(server.get("/api/v1/queues").await.problem().1, "unauthorized");

    server.token = Some(admin);
    server.call("DELETE", &format!("/api/v1/tokens/{id}"), "").await.expect(200);
    server.token = Some(text);
    // Other requests may be believed for two seconds.
    until("the token is refused", async || server.get("/api/v1/queues").await.status == 401).await;
}

#[tokio::test]
async fn an_address_that_others_reach_needs_tokens() {
    let store = laneway_testkit::sqlite::fresh().await;
    let build = |address: &str, tokens| {
        Server::builder(store.handle()).listen(address.parse().unwrap()).tokens(tokens).build()
    };

    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let refused = build(address, Tokens::Open).err().unwrap();
        assert!(matches!(refused, BuildError::Exposed { .. }));
        assert!(refused.to_string().contains("laneway token create"), "{refused}");
    }
    for (address, tokens) in
        [("127.0.0.1:0", Tokens::Open), ("127.0.0.2:0", Tokens::Open), ("[::1]:0", Tokens::Open)]
    {
        assert!(build(address, tokens).is_ok(), "{address}");
    }
    let nobody = build("0.0.0.0:0", Tokens::Required).unwrap().bind().await.err().unwrap();
    assert!(matches!(nobody, BindError::NoToken { .. }), "{nobody}");
    token_of(&*store.handle(), Scope::Read).await;
    assert!(build("0.0.0.0:0", Tokens::Required).unwrap().bind().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_loopback_only_names_of_this_machine_are_answered() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::built(Server::builder(store.handle()).host("tasks.example.org")).await;
    let port = server.address.port();

    for (host, status) in [
        ("localhost".to_owned(), 200),
        (format!("LocalHost:{port}"), 200),
        (format!("127.0.0.1:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        ("tasks.example.org".to_owned(), 200),
        ("evil.example.com".to_owned(), 403),
        (format!("evil.example.com:{port}"), 403),
        ("localhost.evil.example.com".to_owned(), 403),
        ("127.0.0.1.evil.example.com".to_owned(), 403),
        ("localhost@evil.example.com".to_owned(), 403),
        (String::new(), 403),
    ] {
        let answer = server.send("GET", "/api/v1/queues", &[("host", &host)], "").await;
        assert_eq!(answer.status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_changes_nothing() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let own = format!("http://{}", server.address);

    for (headers, status) in [
        (vec![("sec-fetch-site", "cross-site")], 403),
        (vec![("sec-fetch-site", "same-site")], 403),
        (vec![("origin", "https://evil.example.com")], 403),
        (vec![("origin", "null")], 403),
        (vec![("sec-fetch-site", "same-origin"), ("origin", &own)], 200),
        (vec![("sec-fetch-site", "none")], 200),
        (vec![], 200),
    ] {
        let answer = server.send("POST", "/api/v1/queues/mail/pause", &headers, "").await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_token_is_refused() {
    let store = laneway_testkit::sqlite::fresh().await;
    let name = ActorName::new("short").unwrap();
    let expires_at = Some(jiff::Timestamp::now() + Duration::from_secs(3_600));
    let request = TokenRequest { name, scopes: vec![Scope::Read], expires_at };
    let text = issue(&*store.handle(), &Actor::program(), request).await.unwrap().text;
    let mut server = Running::built(Server::builder(store.handle()).tokens(Tokens::Required)).await;
    server.token = Some(text);
    server.get("/api/v1/queues").await.expect(200);

    store.advance_clock(Duration::from_secs(2 * 3_600)).await;

    until("the token is refused", async || server.get("/api/v1/queues").await.status == 401).await;
}
