//! The way to a server: one call after the other, over a connection that is kept for the next.
//!
//! A call that may be made twice (a look, or an enqueue with an idempotency key) is made again when the connection breaks while
//! the answer is awaited. Any other call is made again only if it is certain that the server has not seen it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use laneway_core::{Actor, StoreError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::RemoteOptions;
use crate::base_path::BasePath;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A connection that was not used for longer is not used again: the server may be about to end it.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often a call that may be made twice is made at most.
const TRIES: u32 = 3;
/// The rest before it is made again.
const REST: Duration = Duration::from_millis(200);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What of a reason goes into a header; headers have 16 KiB in all.
const REASON_BYTES_MAX: usize = 8 * 1024;

type Sender = SendRequest<Full<Bytes>>;
type Source = Box<dyn std::error::Error + Send + Sync>;

/// What is asked of a server.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub method: Method,
    /// Path and query, below the server's base path.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// True when it does no harm to ask twice.
    pub repeats: bool,
    /// True when it may take five times as long as others.
    pub is_long: bool,
}

impl Ask {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        let repeats = method == Method::GET;
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { method, path: path.into(), headers, body, repeats, is_long: false }
    }

    /// Sends a body of this media type.
    pub(super) fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.body = body.into();
        self
    }

    /// Says who asks, and why.
    pub(super) fn by(mut self, actor: &Actor) -> Self {
        self.headers.extend(sendable(actor.who.as_str()).map(|who| (HEADER_ACTOR, who)));
        let reason = actor.reason.as_deref().and_then(sendable);
        self.headers.extend(reason.map(|reason| (HEADER_REASON, reason)));
        self
    }
}

const HEADER_ACTOR: header::HeaderName = header::HeaderName::from_static("x-actor");
const HEADER_REASON: header::HeaderName = header::HeaderName::from_static("x-reason");

/// A text as a header: in one line, and not too long.
fn sendable(text: &str) -> Option<HeaderValue> {
    let end = (0..=text.len().min(REASON_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end))?;
    let line = text[..end].replace(char::is_control, " ");
    HeaderValue::from_bytes(line.trim().as_bytes()).ok()
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub content_type: String,
    pub body: Bytes,
}

/// The way to one server.
pub(super) struct Link {
    url: Url,
    base_path: BasePath,
    /// The address as people see it.
    shown: String,
    /// None: plain HTTP.
    tls: Option<TlsConnector>,
    token: Option<HeaderValue>,
    within: Duration,
    /// A connection that waits for the next call, and since when.
    idle: Mutex<Option<(Sender, Instant)>>,
}

/// Why there is no answer.
enum Failed {
    /// The server has not seen the call.
    NotSent(Source),
    /// It may have.
    Broken(Source),
}

impl Failed {
    fn source(self) -> Source {
        match self {
            Self::NotSent(source) | Self::Broken(source) => source,
        }
    }
}

impl Link {
    pub(super) fn new(options: &RemoteOptions) -> Result<Self, StoreError> {
        let (url, base_path) = read_address(&options.url)?;
        let tls = match url.scheme() {
            "https" => Some(crate::tls::connector().map_err(|error| refused(error.to_string()))?),
            _ => None,
        };
        let token = options.token.as_deref().map(bearer).transpose()?;
        let shown = format!("{}{base_path}", url.origin().ascii_serialization());
        Ok(Self { url, base_path, shown, tls, token, within: options.within, idle: Mutex::default() })
    }

    /// The server's address.
    pub(super) fn url(&self) -> &str {
        &self.shown
    }

    /// True when calls carry a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks the server, within the time that a call may take.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Answer, StoreError> {
        let within = if ask.is_long { self.within * 5 } else { self.within };
        match tokio::time::timeout(within, self.tried(ask)).await {
            Ok(answer) => answer.map_err(|failed| self.unavailable(failed.source())),
            Err(_) => Err(self.unavailable(format!("there was no answer within {within:?}").into())),
        }
    }

    pub(super) fn unavailable(&self, source: Source) -> StoreError {
        StoreError::ServerUnavailable { url: self.shown.clone(), source }
    }

    async fn tried(&self, ask: Ask) -> Result<Answer, Failed> {
        if let Some(sender) = self.waiting() {
            match self.exchange(sender, &ask).await {
                Err(Failed::Broken(_)) if ask.repeats => (),
                Err(Failed::NotSent(_)) => (),
                answered => return answered,
            }
        }
        let mut tries = 1;
        loop {
            let sender = self.connect_and_spawn().await?;
            match self.exchange(sender, &ask).await {
                Err(Failed::Broken(source)) if ask.repeats && tries < TRIES => {
                    tracing::debug!(error = %source, path = ask.path, "a call broke off and is made again");
                    tries += 1;
                    tokio::time::sleep(REST).await;
                }
                answered => return answered,
            }
        }
    }

    /// The connection that waits for the next call, unless it has waited too long or was ended.
    fn waiting(&self) -> Option<Sender> {
        let waiting = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiting
            .filter(|(sender, since)| since.elapsed() < IDLE_MAX && sender.is_ready())
            .map(|(sender, _)| sender)
    }

    fn keep(&self, sender: Sender) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some((sender, Instant::now()));
    }

    /// Makes a connection, and spawns the task that drives it: it ends with the connection, or when nobody can send any more.
    async fn connect_and_spawn(&self) -> Result<Sender, Failed> {
        match tokio::time::timeout(CONNECT_WITHIN, self.connect()).await {
            Ok(connected) => connected.map_err(Failed::NotSent),
            Err(_) => Err(Failed::NotSent(format!("no connection within {CONNECT_WITHIN:?}").into())),
        }
    }

    async fn connect(&self) -> Result<Sender, Source> {
        let port = self.url.port_or_known_default().unwrap_or_default();
        let stream = match self.url.host() {
            Some(Host::Domain(name)) => TcpStream::connect((name, port)).await?,
            Some(Host::Ipv4(address)) => TcpStream::connect((address, port)).await?,
            Some(Host::Ipv6(address)) => TcpStream::connect((address, port)).await?,
            None => return Err("the address has no host".into()),
        };
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return spawn_connection(stream).await };
        let name = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        spawn_connection(tls.connect(ServerName::try_from(name)?, stream).await?).await
    }

    async fn exchange(&self, mut sender: Sender, ask: &Ask) -> Result<Answer, Failed> {
        let request = self.request(ask).map_err(Failed::NotSent)?;
        let answer =
            sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
                Some(_) => Failed::NotSent(error.into_error().into()),
                None => Failed::Broken(error.into_error().into()),
            })?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Failed::Broken)?.to_bytes();
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        // A connection of which the server says that it ends is noticed here.
        if sender.ready().await.is_ok() {
            self.keep(sender);
        }
        Ok(Answer { status: head.status, content_type, body })
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, Source> {
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(format!("{}{}", self.base_path, ask.path))
            .body(Full::new(ask.body.clone()))?;
        let host = self.url.host_str().unwrap_or_default();
        let host = self.url.port().map_or(host.to_owned(), |port| format!("{host}:{port}"));
        let headers = request.headers_mut();
        *headers = ask.headers.clone();
        headers.insert(header::HOST, HeaderValue::try_from(host)?);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let agent = HeaderValue::from_static(concat!("laneway/", env!("CARGO_PKG_VERSION")));
        headers.insert(header::USER_AGENT, agent);
        headers.extend(self.token.clone().map(|token| (header::AUTHORIZATION, token)));
        Ok(request)
    }
}

async fn spawn_connection<S>(stream: S) -> Result<Sender, Source>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a server broke");
        }
    });
    Ok(sender)
}

fn refused(problem: impl Into<String>) -> StoreError {
    StoreError::Address { problem: problem.into() }
}

/// Reads the address of a server.
fn read_address(text: &str) -> Result<(Url, BasePath), StoreError> {
    let allowed = "write http://HOST:PORT or https://HOST, with its base path if it has one";
    let shown = text.escape_debug();
    let url = Url::parse(text)
        .map_err(|error| refused(format!("`{shown}` is no address of a server: {error}; {allowed}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
        return Err(refused(format!("`{shown}` is no address of a server; {allowed}")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it has a name or a password in it; a server takes a token (server.token)"));
    }
    match BasePath::parse(url.path()) {
        Some(base_path) => Ok((url, base_path)),
        None => Err(refused(format!("the path of `{shown}` is no base path; {allowed}"))),
    }
}

/// A token as it is sent. It is not shown in logs.
fn bearer(token: &str) -> Result<HeaderValue, StoreError> {
    let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = fits.then(|| HeaderValue::try_from(format!("Bearer {token}")).ok()).flatten();
    let mut value = value.ok_or_else(|| refused("the token (server.token) is empty or has spaces in it"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, String> {
        let link = Link::new(&RemoteOptions::new(text)).map_err(|error| error.to_string())?;
        Ok(link.shown)
    }

    #[test]
    fn addresses_are_read_or_refused() {
        for (text, wanted) in [
            ("http://localhost:7420", "http://localhost:7420"),
            ("http://localhost:7420/", "http://localhost:7420"),
            ("http://localhost:7420/tools/tasks/", "http://localhost:7420/tools/tasks"),
            ("https://tasks.example.org:443/x", "https://tasks.example.org/x"),
            ("http://[::1]:7420", "http://[::1]:7420"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "tasks.example.org",
            "localhost:7420",
            "ftp://tasks.example.org",
            "http://ann:secret@tasks.example.org",
            "http://tasks.example.org/?a=1",
            "http://tasks.example.org/#a",
            "http://tasks.example.org/a b",
            "http://",
        ] {
            let refused = shown(text).unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_reason_is_sent_in_one_line_of_a_bounded_length() {
        assert_eq!(sendable("straße\nund\tPlatz").unwrap().as_bytes(), "straße und Platz".as_bytes());
        assert_eq!(sendable(&"ß".repeat(REASON_BYTES_MAX)).unwrap().len(), REASON_BYTES_MAX);
    }
}
