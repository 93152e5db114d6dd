//! One HTTP call: resolve, connect, send, read, follow redirects.
//!
//! Every call has a connection of its own, made to an address that was judged before ([`target`]). Redirects are followed
//! here and not by a library, because each of them leads to another address that has to be judged.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use laneway::{Attempt, Failure};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use super::SetupError;
use super::target::{self, Reach};

const REDIRECTS_MAX: usize = 5;
/// A server that asks for more patience than this gets no more.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// What handlers that call others may do.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions {
    /// Which addresses may be called. Public ones.
    pub reach: Reach,
    /// One address that may be called in any case, such as a gateway of your own. What it redirects to is judged like
    /// everything else.
    pub also: Option<SocketAddr>,
    /// Bytes of an answer that are kept. 64 KiB.
    pub response_bytes_max: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { reach: Reach::default(), also: None, response_bytes_max: 64 * 1024 }
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub timeout: Duration,
}

/// What came back.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body was longer than what is kept.
    pub truncated: bool,
}

/// Makes calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Caller {
    options: HttpOptions,
    tls: TlsConnector,
}

impl Caller {
    pub(crate) fn new(options: HttpOptions) -> Result<Self, SetupError> {
        Ok(Self { options, tls: crate::tls::connector()? })
    }

    /// Calls, within the call's time and until the attempt should stop.
    pub(crate) async fn call(&self, call: Call, attempt: &Attempt) -> Result<Answer, Failure> {
        let (timeout, host) = (call.timeout, call.url.host_str().unwrap_or_default().to_owned());
        tokio::select! {
            answer = tokio::time::timeout(timeout, self.follow(call)) => {
                answer.unwrap_or_else(|_| Err(Failure::retry(format!("`{host}` gave no answer within {timeout:?}"))))
            }
            reason = attempt.cancelled() => Err(Failure::retry(format!("stopped: {reason:?}"))),
        }
    }

    async fn follow(&self, mut call: Call) -> Result<Answer, Failure> {
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.send(&call).await?;
            match redirect(&call, &answer)? {
                Some(next) => call = next,
                None => return Ok(answer),
            }
        }
        Err(Failure::discard(format!("more than {REDIRECTS_MAX} redirects, the last to `{}`", call.url)))
    }

    async fn send(&self, call: &Call) -> Result<Answer, Failure> {
        let addresses = target::resolve(&call.url, self.options.reach, self.options.also).await?;
        let host = call.url.host_str().unwrap_or_default();
        let failed = |error| Failure::retry(format!("`{host}` could not be reached: {error}"));
        let stream = TcpStream::connect(&addresses[..]).await.map_err(failed)?;
        if call.url.scheme() != "https" {
            return self.exchange(stream, call).await;
        }
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|error| Failure::discard(format!("`{host}` is no name of a server: {error}")))?;
        self.exchange(self.tls.connect(name, stream).await.map_err(failed)?, call).await
    }

    async fn exchange<S>(&self, stream: S, call: &Call) -> Result<Answer, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async {
            let answer = sender.send_request(request(call)?).await?;
            self.read(answer).await
        };
        // The connection is driven beside the exchange. Its end is not the end: the answer may still be read.
        let driven = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = exchange => answer,
            () = driven => unreachable!("it never ends"),
        }
    }

    async fn read(&self, answer: Response<Incoming>) -> Result<Answer, Failure> {
        let (head, mut incoming) = answer.into_parts();
        let (mut body, most) = (BytesMut::new(), self.options.response_bytes_max);
        while let Some(frame) = incoming.frame().await {
            if let Ok(data) = frame?.into_data() {
                body.extend_from_slice(&data[..data.len().min(most + 1 - body.len())]);
            }
            if body.len() > most {
                break; // the rest is of no use; dropping the connection ends it
            }
        }
        let truncated = body.len() > most;
        body.truncate(most);
        Ok(Answer { status: head.status, headers: head.headers, body: body.freeze(), truncated })
    }
}

fn request(call: &Call) -> Result<Request<Full<Bytes>>, Failure> {
    let url = &call.url;
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let host = match url.port() {
        Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
        None => url.host_str().unwrap_or_default().to_owned(),
    };
    let mut request = Request::builder()
        .method(&call.method)
        .uri(path)
        .body(Full::new(call.body.clone()))
        .map_err(|error| Failure::discard(format!("`{url}` cannot be asked for: {error}")))?;
    *request.headers_mut() = call.headers.clone();
    let host = HeaderValue::from_str(&host).map_err(Failure::discard)?;
    request.headers_mut().insert(header::HOST, host);
    let agent = HeaderValue::from_static(concat!("laneway/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().entry(header::USER_AGENT).or_insert(agent);
    Ok(request)
}

/// The call that a redirect asks for. Secrets meant for one host are not sent to another.
fn redirect(call: &Call, answer: &Answer) -> Result<Option<Call>, Failure> {
    let location = answer.headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
    let (301 | 302 | 303 | 307 | 308, Some(location)) = (answer.status.as_u16(), location) else {
        return Ok(None);
    };
    let url = call
        .url
        .join(location)
        .map_err(|error| Failure::discard(format!("`{}` redirects to what is no URL: {error}", call.url)))?;
    let mut next = Call { url: checked(url).map_err(Failure::discard)?, ..call.clone() };
    if !matches!(answer.status.as_u16(), 307 | 308) && call.method != Method::HEAD {
        next.method = Method::GET;
        next.body = Bytes::new();
        next.headers.remove(header::CONTENT_TYPE);
    }
    if next.url.origin() != call.url.origin() {
        next.headers.remove(header::AUTHORIZATION);
        next.headers.remove(header::COOKIE);
    }
    Ok(Some(next))
}

/// A URL that can be called: `http` or `https`, with a host and without a password in it.
pub(crate) fn checked(url: Url) -> Result<Url, String> {
    match url.scheme() {
        "http" | "https" if !url.username().is_empty() || url.password().is_some() => {
            Err("has a name or a password in it; use a header".into())
        }
        "http" | "https" => Ok(url),
        other => Err(format!("`{other}` is not called; http and https are")),
    }
}

/// What an answer that was not wanted means: too busy or broken is tried again, when the server says; the rest will not
/// change by itself.
pub(crate) fn unwanted(answer: &Answer) -> Failure {
    let shown = String::from_utf8_lossy(&answer.body[..answer.body.len().min(1_000)]).into_owned();
    let error = format!("answered {}: {shown}", answer.status);
    let is_transient = matches!(answer.status.as_u16(), 408 | 425 | 429) || answer.status.is_server_error();
    match (is_transient, retry_after(&answer.headers)) {
        (false, _) => Failure::discard(error),
        (true, Some(delay)) => Failure::retry_after(delay, error),
        (true, None) => Failure::retry(error),
    }
}

/// `Retry-After`: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let wait = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Duration::try_from(at.duration_since(jiff::Timestamp::now())).unwrap_or(Duration::ZERO)
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// A body as a result: JSON if it is some, else text; none when it is empty.
pub(crate) fn as_json(body: &[u8]) -> serde_json::Value {
    if body.is_empty() {
        return serde_json::Value::Null;
    }
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_str(text).unwrap());
        retry_after(&headers)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(after("soon"), None);
    }

    /// Every hop of [`Caller::follow`] is resolved and judged anew by [`Caller::send`].
    #[tokio::test]
    async fn a_redirect_to_a_private_address_is_refused() {
        let url = Url::parse("http://1.1.1.1/hook").unwrap();
        let call = Call {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: Duration::from_secs(5),
        };
        let caller = Caller::new(HttpOptions::default()).unwrap();
        for location in [
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "//169.254.169.254/latest",
            "http://localhost/",
            "https://10.0.0.1/",
        ] {
            let headers = [(header::LOCATION, HeaderValue::from_static(location))].into_iter().collect();
            let answer = Answer { status: StatusCode::FOUND, headers, body: Bytes::new(), truncated: false };
            let next = redirect(&call, &answer).unwrap().unwrap();
            let refused = caller.send(&next).await.err().unwrap().to_string();
            assert!(refused.contains("not a public address"), "{location}: {refused}");
        }
    }

    #[test]
    fn only_plain_http_urls_are_called() {
        for (text, right) in
            [("https://a.example/x", true), ("ftp://a.example", false), ("http://me:secret@a.example", false)]
        {
            assert_eq!(checked(Url::parse(text).unwrap()).is_ok(), right, "{text}");
        }
    }
}
