//! `laneway store`: the store itself, its tables and its history.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::Context;
use crate::open::{Address, Purpose, open};
use crate::output::{Format, text};
use crate::problem::{Exit, Outcome, Problem};

/// The store itself.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Make the tables, or bring them up to date
    Migrate(Migrate),
    /// Whether the store can be reached, and what is in it
    Status,
    /// Remove history that is kept no longer, and clean up, now instead of soon
    Prune,
}

/// Makes or updates the tables.
#[derive(Args, Debug)]
pub struct Migrate {
    /// Only print what would be run in an empty PostgreSQL database
    #[arg(long)]
    pub print: bool,
}

#[derive(Serialize)]
struct Status {
    store: &'static str,
    address: String,
    tasks: u64,
    more: bool,
    queues: usize,
    workers: usize,
}

impl StoreCommand {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Status)
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Migrate(migrate) if migrate.print => print(context),
            Self::Migrate(_) => migrate(context).await,
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

async fn migrate(context: &Context) -> Outcome {
    let opened = open(&context.settings.with("store.migrate", "auto"), Purpose::Serving).await?;
    context.out.note(&format!("the tables of {} are up to date", opened.shown));
    Ok(Exit::Done)
}

async fn status(context: &Context) -> Outcome {
    let opened = context.store().await?;
    let counts = opened.store.counts().await?;
    let status = Status {
        store: opened.store.name(),
        address: opened.shown,
        tasks: counts.iter().map(|count| count.tasks).sum(),
        more: counts.iter().any(|count| count.more),
        queues: opened.store.queues().await?.len(),
        workers: opened.store.workers().await?.len(),
    };
    let fields = [
        ("store", status.store.to_owned()),
        ("address", status.address.clone()),
        ("tables", "up to date".into()),
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
