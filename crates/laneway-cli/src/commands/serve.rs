//! `laneway serve`: HTTP for a store, with or without a worker.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use laneway::Metrics;
use laneway_core::Store;
use laneway_server::{Bound, Server, ServerBuilder, Tokens};
use tracing::info;

use crate::builtin;
use crate::context::Context;
use crate::daemon::{self, Parts};
use crate::live::Live;
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::{Flags, Given, Serving, Settings, Working};

/// Serves HTTP.
#[derive(Args, Debug)]
pub struct Serve {
    /// Run tasks in this process, too
    #[arg(long)]
    pub worker: bool,
    #[command(flatten)]
    pub serving: Flags<Serving>,
    #[command(flatten)]
    pub working: Flags<Working>,
}

impl Serve {
    pub async fn run(&self, context: &Context) -> Outcome {
        let live = Live::start(context, Settings::clone);
        let opened = context.store_to_serve().await?;
        let worker = match self.worker {
            true => Some(daemon::build(builtin::all(
                daemon::builder(&opened.handle, &context.settings)?,
                &context.settings,
            )?)?),
            false => None,
        };
        let metrics = worker.as_ref().map(laneway::Worker::metrics);
        let looks = match self.worker {
            true => opened.beside_worker(&context.settings).await?,
            false => opened.store,
        };
        let probes = probes(&looks, &context.settings, metrics.clone()).await?;
        let server = bind(looks, &live, metrics).await?;
        info!(address = %server.address(), store = opened.shown, worker = self.worker, "serving HTTP");
        daemon::run(Parts { worker, server: Some(server), probes, ..Parts::default() }, &live).await
    }

    pub fn flags(&self) -> Vec<Given> {
        [self.serving.given.clone(), self.working.given.clone()].concat()
    }
}

/// A server that listens. Other machines need a token.
pub async fn bind(
    store: Arc<dyn Store>,
    live: &Arc<Live>,
    metrics: Option<Metrics>,
) -> Result<Bound, Problem> {
    let settings = &live.settings();
    let mut builder = Server::builder(Arc::clone(&store)).settings(Arc::clone(live));
    if let Some(host) = settings.public_host() {
        builder = builder.host(host);
    }
    if let Some(path) = &settings.value("server.base_path").text {
        builder = builder.base_path(path);
    }
    if settings.is("server.read_only", "true") {
        builder = builder.read_only();
    }
    listen(builder, &*store, settings.listen(), settings, metrics).await
}

/// Metrics and health on a port of their own, if the settings name one.
pub async fn probes(
    store: &Arc<dyn Store>,
    settings: &Settings,
    metrics: Option<Metrics>,
) -> Result<Option<Bound>, Problem> {
    let Some(address) = settings.metrics_listen() else { return Ok(None) };
    let builder = Server::builder(Arc::clone(store)).only_probes();
    let bound = listen(builder, &**store, address, settings, metrics).await?;
    info!(address = %bound.address(), "serving metrics");
    Ok(Some(bound))
}

async fn listen(
    builder: ServerBuilder,
    store: &dyn Store,
    address: SocketAddr,
    settings: &Settings,
    metrics: Option<Metrics>,
) -> Result<Bound, Problem> {
    let is_open = address.ip().is_loopback() && settings.is("auth.mode", "auto");
    let tokens = if is_open { Tokens::Open } else { Tokens::Required };
    if tokens == Tokens::Required && store.tokens().await?.is_empty() {
        let why =
            if address.ip().is_loopback() { "asks for tokens" } else { "can be reached from other machines" };
        let problem = format!(
            "{address} {why} and the store has no token, so nobody could use it; \
             make one with `laneway token create NAME --scope admin`, or listen on 127.0.0.1"
        );
        return Err(Problem::usage(problem));
    }
    let mut builder = builder.listen(address).tokens(tokens);
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    let server = builder.build().map_err(|error| Problem::usage(error.to_string()))?;
    server.bind().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        Problem { causes: cause.into_iter().collect(), ..Problem::new(Exit::Error, error.to_string()) }
    })
}
