//! A server on a random port, and a client of plain sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use laneway::core::Store;
use laneway_server::{Server, ServerBuilder};
use laneway_testkit::store::PATIENCE;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A server that runs until it is dropped or stopped.
pub struct Running {
    pub address: SocketAddr,
    pub stop: CancellationToken,
    served: Option<JoinHandle<()>>,
    /// Sent with every request.
    pub token: Option<String>,
}

impl Running {
    pub async fn on(store: Arc<dyn Store>) -> Self {
        Self::built(Server::builder(store)).await
    }

    pub async fn built(builder: ServerBuilder) -> Self {
        let server = builder.listen("127.0.0.1:0".parse().unwrap()).build().unwrap();
        let bound = server.bind().await.unwrap();
        let (address, stop) = (bound.address(), CancellationToken::new());
        let served = Some(tokio::spawn(bound.serve(stop.clone())));
        Self { address, stop, served, token: None }
    }

    /// Stops in order, and waits for it.
    pub async fn end(&mut self) {
        self.stop.cancel();
        if let Some(served) = self.served.take() {
            served.await.unwrap();
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &JSON, body).await
    }

    /// A request with a JSON body, or without a body when it is empty.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, if body.is_empty() { &[] } else { &JSON }, body).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += &format!("host: {}\r\n", self.address);
        }
        if let Some(token) = &self.token {
            text += &format!("authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n{body}", body.len());
        self.raw(text.as_bytes()).await
    }

    /// Sends bytes as they are and reads until the server closes.
    pub async fn raw(&self, request: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        // The server may answer and close before it has read a body that is too large.
        let _ = socket.write_all(request).await;
        let mut bytes = vec![];
        let _ = socket.read_to_end(&mut bytes).await;
        Answer::parse(&bytes)
    }

    /// Follows changes at this path.
    pub async fn follow_at(&self, path: &str) -> Events {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        Events(BufReader::new(socket).lines())
    }

    /// Follows changes; `after` is the header `Last-Event-ID`.
    pub async fn follow(&self, query: &str, after: Option<&str>) -> Events {
        let after = after.map_or(String::new(), |id| format!("last-event-id: {id}\r\n"));
        let request = format!("GET /api/v1/stream{query} HTTP/1.1\r\nhost: {}\r\n{after}\r\n", self.address);
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        Events(BufReader::new(socket).lines())
    }
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.body))
    }

    /// The answer's JSON, which must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.json()
    }

    /// Status, code and field of a problem.
    #[track_caller]
    pub fn problem(&self) -> (u16, String, Option<String>) {
        assert!(self.head.contains("content-type: application/problem+json"), "{} {}", self.head, self.body);
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        let text = |name: &str| problem[name].as_str().map(ToOwned::to_owned);
        (self.status, text("code").unwrap_or_default(), text("field"))
    }
}

/// A stream of events.
pub struct Events(Lines<BufReader<TcpStream>>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub event: String,
    pub id: String,
    pub data: String,
}

impl Events {
    /// The next event; none when the stream is over.
    pub async fn next(&mut self) -> Option<Event> {
        let read = tokio::time::timeout(PATIENCE, self.read());
        read.await.expect("an event in time")
    }

    async fn read(&mut self) -> Option<Event> {
        let mut event = Event::default();
        while let Ok(Some(line)) = self.0.next_line().await {
            match line.split_once(": ") {
                Some(("event", name)) => event.event = name.to_owned(),
                Some(("id", id)) => event.id = id.to_owned(),
                Some(("data", data)) => event.data = data.to_owned(),
                _ if line.is_empty() && !event.event.is_empty() => return Some(event),
                _ => (), // headers and the lengths of chunks
            }
        }
        None
    }

    /// The next event, which must be this one.
    pub async fn expect(&mut self, name: &str) -> Event {
        let event = self.next().await.expect("an event");
        assert_eq!(event.event, name, "{event:?}");
        event
    }
}
