//! A store, a worker, and a server that does what a path says.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use laneway::core::{RetryPolicy, TaskView};
use laneway::{Client, Payload, SqliteStore, StoreHandle, Worker, WorkerBuilder};
use laneway_server::handlers::{HttpOptions, Reach};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// One request that the server got.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

/// A server on loopback.
#[derive(Clone, Default)]
pub struct Server {
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts it, and returns its address.
    pub async fn start() -> (Self, String) {
        let (server, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (server, url)
    }

    /// The same behind TLS, with a certificate for `localhost` that it has signed itself.
    pub async fn start_with_tls() -> (Self, String) {
        let (server, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let routes = Router::new().fallback(answer).with_state(server.clone());
        let tls = TlsAcceptor::from(Arc::new(certified()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, service) = (tls.clone(), TowerToHyperService::new(routes.clone()));
                tokio::spawn(async move {
                    // A client that does not trust us goes away.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let connection = hyper::server::conn::http1::Builder::new();
                    connection.serve_connection(TokioIo::new(stream), service).await.unwrap();
                });
            }
        });
        (server, url)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn certified() -> rustls::ServerConfig {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("localhost.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("localhost.key")).unwrap();
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

/// `/status/503` answers so; `/flaky` fails the first time; `/to/URL` redirects, `/round` to itself; `/big` answers a lot; `/slow` never does.
async fn answer(State(server): State<Server>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let path = head.uri.to_string();
    let times = {
        let mut seen = server.seen.lock().unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        seen.push(Seen { method: head.method.to_string(), path: path.clone(), headers: head.headers, body });
        seen.iter().filter(|seen| seen.path == path).count()
    };
    if let Some(code) = path.strip_prefix("/status/") {
        return (StatusCode::from_u16(code.parse().unwrap()).unwrap(), "as you wish").into_response();
    }
    if let Some(to) = path.strip_prefix("/to/") {
        return (StatusCode::TEMPORARY_REDIRECT, [("location", to.to_owned())]).into_response();
    }
    match path.as_str() {
        "/flaky" if times == 1 => (StatusCode::BAD_GATEWAY, "not yet").into_response(),
        "/round" => (StatusCode::FOUND, [("location", "/round")]).into_response(),
        "/busy" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "600")]).into_response(),
        "/big" => Bytes::from(vec![b'x'; 1_000_000]).into_response(),
        "/slow" => std::future::pending().await,
        _ => (StatusCode::OK, [("x-answer", "42")], r#"{"done": true}"#).into_response(),
    }
}

pub async fn store() -> StoreHandle {
    SqliteStore::temporary().await.unwrap().into()
}

/// Calls go anywhere, as a test needs it.
pub fn anywhere() -> HttpOptions {
    HttpOptions { reach: Reach::Any, response_bytes_max: 10_000, ..HttpOptions::default() }
}

/// Enqueues one task, runs what is there, and returns what became of it.
pub async fn run<P: Payload>(payload: P, handlers: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> TaskView {
    let store = store().await;
    let client = Client::new(&store);
    let draft = client.enqueue(payload).retry(RetryPolicy::List { delays_ms: vec![0] });
    let task = draft.max_attempts(3).await.unwrap();
    handlers(Worker::builder(&store)).build().unwrap().run_until_empty().await.unwrap();
    store.get(task.id).await.unwrap().unwrap()
}

/// The result of a task that must have one.
pub fn result(task: &TaskView) -> serde_json::Value {
    let shown = format!("{task:?}");
    task.result.as_ref().unwrap_or_else(|| panic!("no result: {shown}")).decode().unwrap()
}
