//! Laneway over HTTP: the store's verbs as JSON, live changes, metrics and health.
//!
//! ```
//! use std::sync::Arc;
//! use laneway::SqliteStore;
//! use laneway_server::Server;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(SqliteStore::temporary().await?);
//! let server = Server::builder(store).listen("127.0.0.1:0".parse()?).build()?;
//! let bound = server.bind().await?;
//! println!("listening on http://{}", bound.address());
//!
//! let stop = CancellationToken::new();
//! # stop.cancel();
//! bound.serve(stop).await;
//! # Ok(()) }
//! ```
//!
//! The server converts between its wire types and the words of `laneway-core`, and decides nothing. The way through it:
//! a connection ([`Bound::serve`]), the checks that every request passes, a handler that calls one verb of the store, and
//! for everything that goes wrong one shape of answer.

mod access;
mod api;
mod base_path;
mod connection;
mod driver;
mod etag;
mod feed;
mod gauges;
mod guard;
pub mod handlers;
mod input;
mod metrics;
mod probes;
mod problem;
mod remote;
mod routes;
mod server;
mod settings;
mod tls;
pub mod tokens;
pub mod wire;

pub use base_path::is_base_path;
pub use remote::{RemoteOptions, RemoteStore};
pub use server::{BindError, Bound, BuildError, Server, ServerBuilder, Tokens};
pub use settings::{ReloadError, Reloaded, SettingsSource, ShownSetting};

/// Every code that an answer may have, with its HTTP status: what `docs/http.md` shows.
pub fn error_codes() -> impl Iterator<Item = (u16, &'static str)> {
    problem::STATUSES.iter().flat_map(|(status, codes)| codes.iter().map(|code| (*status, *code)))
}
