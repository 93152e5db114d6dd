//! A store that is somewhere else: the verbs of [`Store`](laneway_core::Store) as calls of a Laneway server.
//!
//! `link.rs` is the way to the server: addresses, connections, time limits, repeated calls. `refusal.rs` turns what the server
//! refuses into the error that the store would have answered. `verbs.rs` has one call per verb, in the JSON of `wire`.
//!
//! What operators and producers do works as with the store itself. What workers do (advance, register, renew and their like)
//! is refused: workers are run where the store is.

mod link;
mod refusal;
mod verbs;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use laneway_core::{HintSender, StoreError};

use link::Link;

/// Where a server is, and how it is called.
///
/// ```
/// use laneway_server::RemoteOptions;
///
/// let options = RemoteOptions::new("https://tasks.example.org/laneway").token("lw_17_secret");
/// assert!(!format!("{options:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct RemoteOptions {
    url: String,
    token: Option<String>,
    within: Duration,
}

impl RemoteOptions {
    /// The server at `url`: `http://HOST:PORT` or `https://HOST`, with its base path if it has one.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, within: Duration::from_secs(60) }
    }

    /// Calls in the name of this token. Without one only servers on loopback answer.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long a call may take. 60 s, which is more than servers allow themselves; bulk enqueues have five times as long.
    ///
    /// ```
    /// use std::time::Duration;
    /// use laneway_server::{RemoteOptions, RemoteStore};
    ///
    /// let options = RemoteOptions::new("http://localhost:7420").within(Duration::from_secs(5));
    /// assert_eq!(RemoteStore::new(options).unwrap().url(), "http://localhost:7420");
    /// ```
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }
}

/// Without the token.
impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "***");
        let Self { url, within, .. } = self;
        f.debug_struct("RemoteOptions")
            .field("url", url)
            .field("token", &token)
            .field("within", within)
            .finish()
    }
}

/// A store behind a Laneway server. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use laneway::{Client, SqliteStore, StoreHandle, core::Store};
/// use laneway_server::{RemoteOptions, RemoteStore, Server};
/// # use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder(Arc::new(SqliteStore::temporary().await?)).listen("127.0.0.1:0".parse()?);
/// let bound = server.build()?.bind().await?;
/// let url = format!("http://{}", bound.address());
/// # let stop = CancellationToken::new();
/// tokio::spawn(bound.serve(stop.clone()));
///
/// let store: Arc<dyn Store> = Arc::new(RemoteStore::new(RemoteOptions::new(url))?);
/// assert!(store.queues().await?.is_empty());
/// let _client = Client::new(StoreHandle::from(store)); // enqueues, looks and waits as with any other store
/// # stop.cancel();
/// # Ok(()) }
/// ```
///
/// Lengths of time are whole milliseconds on the way. Who acts is whoever the token names; on a server without tokens, the
/// actor of the call.
///
/// # Cancel safety
/// Dropping a future ends its call; the server may or may not have carried it out.
#[derive(Clone)]
pub struct RemoteStore {
    link: Arc<Link>,
    /// Nobody sends hints: servers have no way to.
    hints: HintSender,
    /// What kind of store the server has, once it has told.
    name: Arc<OnceLock<&'static str>>,
}

impl RemoteStore {
    /// The store of a server. Nothing is called yet.
    ///
    /// ```
    /// use laneway_server::{RemoteOptions, RemoteStore};
    ///
    /// let refused = RemoteStore::new(RemoteOptions::new("tasks.example.org")).err().unwrap();
    /// assert_eq!(refused.code(), "invalid_address");
    /// ```
    ///
    /// # Errors
    /// `invalid_address` for what is no address of a server, and for a token that cannot be sent.
    pub fn new(options: RemoteOptions) -> Result<Self, StoreError> {
        let link = Link::new(&options)?;
        Ok(Self { link: Arc::new(link), hints: HintSender::default(), name: Arc::default() })
    }

    /// The server's address, without a slash at its end.
    pub fn url(&self) -> &str {
        self.link.url()
    }
}
