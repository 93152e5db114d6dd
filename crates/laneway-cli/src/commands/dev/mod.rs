//! `laneway dev`: a store, a worker and HTTP in one process, and a line for everything that happens.

mod narrate;

use std::path::Path;

use clap::Args;

use super::serve::{bind, probes};
use crate::builtin;
use crate::context::Context;
use crate::daemon::{self, Parts};
use crate::live::Live;
use crate::open::{Address, Opened, Purpose, open};
use crate::output::text;
use crate::problem::{Outcome, Problem};
use crate::settings::{Flags, Given, Origin, Serving, Settings, Working, find};

/// Everything in one process for development.
#[derive(Args, Debug)]
pub struct Dev {
    /// Begin with an empty store
    #[arg(long)]
    pub fresh: bool,
    #[command(flatten)]
    pub serving: Flags<Serving>,
    #[command(flatten)]
    pub working: Flags<Working>,
}

impl Dev {
    pub async fn run(&self, context: &Context) -> Outcome {
        let live = Live::start(context, own_store);
        let settings = live.settings();
        if self.fresh {
            remove(&settings)?;
        }
        let opened = open(&settings, Purpose::Serving).await?;
        let worker = daemon::build(builtin::all(daemon::builder(&opened.handle, &settings)?, &settings)?)?;
        let looks = opened.beside_worker(&settings).await?;
        let server = bind(looks.clone(), &live, Some(worker.metrics())).await?;
        let probes = probes(&looks, &settings, Some(worker.metrics())).await?;
        context.out.data(&banner(&opened, &server.address().to_string(), &context.settings))?;
        let parts = Parts { worker: Some(worker), server: Some(server), probes, ..Parts::default() };
        let narrator = tokio::spawn(narrate::narrate(looks, context.out.clone(), parts.closing.clone()));
        daemon::run(Parts { narrator: Some(narrator), ..parts }, &live).await
    }

    pub fn flags(&self) -> Vec<Given> {
        [self.serving.given.clone(), self.working.given.clone()].concat()
    }
}

/// Development has its own store: an address in the environment or in a file is probably that of something important.
fn own_store(settings: &Settings) -> Settings {
    if matches!(settings.value("store.url").origin, Origin::Flag(_)) {
        return settings.clone();
    }
    settings.with_default("store.url").with_default("server.url")
}

/// Removes the SQLite files of the store.
fn remove(settings: &Settings) -> Result<(), Problem> {
    let Address::Sqlite(path) = Address::read(settings)? else {
        return Err(Problem::usage("--fresh removes an SQLite file; empty a PostgreSQL database yourself"));
    };
    for end in ["", "-wal", "-shm"] {
        let file = format!("{}{end}", path.display());
        match std::fs::remove_file(Path::new(&file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Problem::because(format!("cannot remove {file}"), &error));
            }
            _ => (),
        }
    }
    Ok(())
}

fn banner(opened: &Opened, address: &str, settings: &Settings) -> String {
    let default = find("store.url").and_then(|setting| setting.default);
    let elsewhere = settings.value("store.url").text.as_deref() != default;
    let store = if elsewhere { format!(" --store {}", default.unwrap_or_default()) } else { String::new() };
    let version = env!("CARGO_PKG_VERSION");
    let base = settings.value("server.base_path").text.as_deref().unwrap_or_default().trim_end_matches('/');
    let (shown, slots) = (text::clean(&opened.shown), settings.slots().1);
    format!(
        "
  laneway {version}   development mode, do not expose

  store      {shown}, kept between runs; --fresh to reset
  HTTP       http://{address}{base}/api/v1
  metrics    http://{address}{base}/metrics
  slots      {slots}

  try, in another terminal:
    laneway enqueue echo '\"hello\"'{store}
    laneway tasks ls{store}
    laneway worker exec hello{store} -- sh -c 'echo \"hi $(cat)\"'

"
    )
}
