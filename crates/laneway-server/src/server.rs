//! A server before it runs, while it is bound, and while it serves.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use laneway::Metrics;
use laneway_core::Store;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::base_path::BasePath;
use crate::connection;
use crate::driver::Driver;
use crate::feed::Feed;
use crate::metrics;
use crate::routes::{self, App, Parts};
use crate::settings::SettingsSource;
use crate::tokens::Seen;

/// The address of a server that was given none.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
/// Connections at once. More wait to be accepted.
const CONNECTIONS_MAX: usize = 1_000;
/// How long requests that are under way may take once the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// Who may talk to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tokens {
    /// Everybody who reaches it. Only on loopback.
    #[default]
    Open,
    /// Only who shows a token of the store whose scopes allow the call.
    Required,
}

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Everybody could talk to it.
    #[error(
        "{address} can be reached from other machines and no token is asked for; require tokens (`laneway token create NAME --scope admin`), or listen on 127.0.0.1"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// No path that could stand in front of routes.
    #[error(
        "base_path is `{}`; allowed is / or /NAME/NAME with names of letters, digits, -, ., _ and ~, up to 200 bytes",
        path.escape_debug()
    )]
    BasePath {
        /// What was given.
        path: String,
    },
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is taken, not ours, or not allowed.
    #[error("cannot listen on {address}; choose another address or stop what listens there")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Tokens are asked for, and the store has none.
    #[error(
        "nobody could use {address}: tokens are required and the store has none; make one with `laneway token create NAME --scope admin`"
    )]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
}

/// The HTTP interface of a store.
pub struct Server {
    listen: SocketAddr,
    app: App,
    driver: Driver,
}

/// What a [`Server`] is made from.
pub struct ServerBuilder {
    store: Arc<dyn Store>,
    listen: SocketAddr,
    tokens: Tokens,
    metrics: Option<Metrics>,
    hosts: Vec<String>,
    base_path: String,
    settings: Arc<dyn SettingsSource>,
    read_only: bool,
    routes: Routes,
}

/// Which routes a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routes {
    All,
    /// Metrics and health only.
    Probes,
}

impl Server {
    /// Begins with the written defaults: `127.0.0.1:7420`, no tokens.
    pub fn builder(store: Arc<dyn Store>) -> ServerBuilder {
        ServerBuilder {
            store,
            listen: LISTEN_DEFAULT,
            tokens: Tokens::Open,
            metrics: None,
            hosts: vec![],
            base_path: "/".to_owned(),
            settings: Arc::new(Vec::new()),
            read_only: false,
            routes: Routes::All,
        }
    }

    /// Listens. Requests wait until [`Bound::serve`] is called. A store that cannot be reached now is no obstacle: requests
    /// are answered with 503 until it can.
    ///
    /// # Errors
    /// When the address cannot be had, or when tokens are required and the store has none.
    pub async fn bind(self) -> Result<Bound, BindError> {
        if self.app.tokens == Tokens::Required
            && self.app.store.tokens().await.is_ok_and(|all| all.is_empty())
        {
            return Err(BindError::NoToken { address: self.listen });
        }
        let failed = |source| BindError::Address { address: self.listen, source };
        let listener = TcpListener::bind(self.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Bound { listener, address, app: self.app, driver: self.driver })
    }
}

impl ServerBuilder {
    /// Listens here; port 0 takes a free one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Says who may talk to it.
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Shows the metrics of a worker that runs in this process, too.
    pub fn metrics(mut self, worker: Metrics) -> Self {
        self.metrics = Some(worker);
        self
    }

    /// Answers on loopback also when it is called by this name, as a proxy in front of it may. Otherwise only `localhost`
    /// and addresses of this machine are answered.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Has every route below this path, for a proxy that passes paths on as they are: with `/tasks`, `/api/v1/queues` is
    /// `/tasks/api/v1/queues`. Metrics and health are answered without it, too, for whoever asks beside the proxy.
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.base_path = path.into();
        self
    }

    /// Shows these at `/api/v1/settings`, and reads them again on `POST /api/v1/settings/reload`.
    pub fn settings(mut self, settings: impl SettingsSource) -> Self {
        self.settings = Arc::new(settings);
        self
    }

    /// Refuses every request that would change something.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Has only `/metrics`, `/livez` and `/readyz`: for a worker without an interface, or a port of their own.
    pub fn only_probes(mut self) -> Self {
        self.routes = Routes::Probes;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`BuildError::Exposed`] when the address is not loopback and no tokens are asked for, [`BuildError::BasePath`] when the base
    /// path is none.
    pub fn build(self) -> Result<Server, BuildError> {
        if !self.listen.ip().is_loopback() && self.tokens == Tokens::Open {
            return Err(BuildError::Exposed { address: self.listen });
        }
        let base_path = BasePath::parse(&self.base_path)
            .ok_or_else(|| BuildError::BasePath { path: self.base_path.clone() })?;
        let (bulks, driver) = Driver::new(Arc::clone(&self.store));
        let app = Parts {
            hosts: self.listen.ip().is_loopback().then(|| self.known_hosts()),
            tokens: self.tokens,
            base_path,
            settings: self.settings,
            read_only: self.read_only,
            routes: self.routes,
            seen: Seen::default(),
            metrics: metrics::Metrics::new(self.metrics, self.store.meter()),
            feed: Feed::new(Arc::clone(&self.store)),
            store: self.store,
            bulks,
            stop: CancellationToken::new(),
        };
        Ok(Server { listen: self.listen, app: Arc::new(app), driver })
    }

    fn known_hosts(&self) -> HashSet<String> {
        let address = match self.listen.ip() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let known = ["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned(), address];
        known.into_iter().chain(self.hosts.iter().cloned()).collect()
    }
}

/// A server that listens.
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
    driver: Driver,
}

impl Bound {
    /// The address, with the port that was found when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop`. Then nothing is accepted any more, streams say goodbye, requests under way have ten
    /// seconds to finish, and connections are closed.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { listener, app, driver, .. } = self;
        let ours = app.stop.clone();
        let mut background = JoinSet::new();
        if app.routes == Routes::All && !app.read_only {
            background.spawn(driver.run(ours.clone()));
        }
        let feed = Arc::clone(&app);
        background.spawn(async move { feed.feed.run(feed.stop.clone()).await });

        let mut connections = accept(listener, &app, &stop).await;
        ours.cancel();
        let ended = async {
            while connections.join_next().await.is_some() {}
            while background.join_next().await.is_some() {}
        };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!("requests were cut off when the grace time was over");
        }
    }
}

/// Accepts connections until `stop`, and returns those that are open then.
async fn accept(listener: TcpListener, app: &App, stop: &CancellationToken) -> JoinSet<()> {
    let router = routes::router(Arc::clone(app));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return connections,
            Some(_) = connections.join_next() => (),
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(connection::serve(socket, router.clone(), app.stop.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: a pause lets some connections end.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}
