//! `laneway store`: the store itself, its tables and its history.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use laneway_core::StoreHealth;
use serde::Serialize;

use crate::context::Context;
use crate::open::{Address, Purpose, open, sqlite};
use crate::output::{Format, text};
use crate::problem::{Exit, Outcome, Problem};

/// The store itself.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Make the tables, or bring them up to date
    Migrate(Migrate),
    /// Whether the store can be reached, and what is in it
    Status,
    /// Copy an SQLite store into a new file, while it is in use
    Snapshot {
        /// The new file
        file: PathBuf,
    },
    /// Remove history that is kept no longer, and clean up, now instead of soon
    Prune,
}

/// Makes or updates the tables.
#[derive(Args, Debug)]
pub struct Migrate {
    /// Only print what would be run in an empty PostgreSQL database
    #[arg(long)]
    pub print: bool,
    /// Refuse unless the tables get this version
    #[arg(long, value_name = "N", conflicts_with = "print")]
    pub to: Option<i32>,
}

#[derive(Serialize)]
struct Snapshot<'a> {
    file: &'a str,
}

#[derive(Serialize)]
struct Status {
    store: &'static str,
    address: String,
    tasks: u64,
    more: bool,
    queues: usize,
    workers: usize,
    #[serde(flatten)]
    health: StoreHealth,
}

impl StoreCommand {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Status)
    }

    /// True when it changes the store.
    pub fn operates(&self) -> bool {
        match self {
            Self::Migrate(migrate) => !migrate.print,
            Self::Prune => true,
            Self::Status | Self::Snapshot { .. } => false,
        }
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Migrate(migrate) if migrate.print => print(context),
            Self::Migrate(Migrate { to, .. }) => migrate(*to, context).await,
            Self::Snapshot { file } => snapshot(file, context).await,
            Self::Status => status(context).await,
            Self::Prune => prune(context).await,
        }
    }
}

fn print(context: &Context) -> Outcome {
    if matches!(Address::read(&context.settings)?, Address::Sqlite(_)) {
        return Err(Problem::usage(
            "an SQLite store is made and updated whenever it is opened; there is nothing to print",
        ));
    }
    let schema = context.settings.text("store.schema")?.unwrap_or_default();
    context.out.data(&laneway_postgres::migration_script(&schema)?)?;
    Ok(Exit::Done)
}

/// Functions belong to the newest tables, so there is one version that this program can make.
async fn migrate(to: Option<i32>, context: &Context) -> Outcome {
    let makes = match Address::read(&context.settings)? {
        Address::Postgres(_) => laneway_postgres::SCHEMA_VERSION,
        Address::Sqlite(_) => laneway_sqlite::SCHEMA_VERSION,
    };
    if let Some(to) = to.filter(|to| *to != makes) {
        let problem = format!(
            "this program makes tables of version {makes}, not {to}; use the program of that version"
        );
        return Err(Problem { code: Some("unsupported"), ..Problem::new(Exit::Schema, problem) });
    }
    let opened = open(&context.settings.with("store.migrate", "auto"), Purpose::Serving).await?;
    context.out.note(&format!("the tables of {} are up to date", opened.shown));
    Ok(Exit::Done)
}

async fn snapshot(file: &Path, context: &Context) -> Outcome {
    let Address::Sqlite(path) = Address::read(&context.settings)? else {
        let schema = context.settings.text("store.schema")?.unwrap_or_default();
        let problem =
            format!("a snapshot is for SQLite; copy a PostgreSQL store with `pg_dump --schema={schema}`");
        return Err(Problem::usage(problem));
    };
    let (to, shown) = (context.settings.working().join(file), file.display().to_string());
    if to.exists() {
        return Err(Problem::usage(format!("{shown} is there already; name a new file")));
    }
    sqlite(&path, Purpose::Existing).await?.snapshot(to).await?;
    context.out.answer(&Snapshot { file: &shown }, &shown, &format!("wrote {shown}"))?;
    Ok(Exit::Done)
}

async fn status(context: &Context) -> Outcome {
    let opened = context.store().await?;
    let counts = opened.store.counts().await?;
    // Asked first: a server tells with it what its store is.
    let health = opened.store.health().await?;
    let status = Status {
        store: opened.store.name(),
        address: opened.shown,
        tasks: counts.iter().map(|count| count.tasks).sum(),
        more: counts.iter().any(|count| count.more),
        queues: opened.store.queues().await?.len(),
        workers: opened.store.workers().await?.len(),
        health,
    };
    let bytes = status.health.tables.iter().map(|table| table.bytes).sum();
    let fields = [
        ("store", status.store.to_owned()),
        ("address", status.address.clone()),
        ("database", status.health.database.clone()),
        ("tables", format!("version {}, {}", status.health.schema_version, text::bytes(bytes))),
        ("tasks", text::count(status.tasks, status.more)),
        ("queues", status.queues.to_string()),
        ("workers", status.workers.to_string()),
    ];
    context.out.one("status", &status, &status.address, &fields)?;
    Ok(Exit::Done)
}

async fn prune(context: &Context) -> Outcome {
    let opened = context.store().await?;
    opened.store.maintain().await?;
    if context.out.format != Format::Id {
        context.out.note(&format!("{} is cleaned up", opened.shown));
    }
    Ok(Exit::Done)
}
