//! What can be written on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    bench, bulk, completions, config, demo, dev, enqueue, lanes, man, queues, schedules, serve, store, tasks,
    token, worker,
};
use crate::context::Context;
use crate::output::Format;
use crate::problem::Outcome;
use crate::settings::{Common, Flags, Given};

/// Durable tasks for PostgreSQL and SQLite: enqueue them, run thousands at once, lose none.
#[derive(Debug, Parser)]
#[command(name = "laneway", version, disable_help_subcommand = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 error, 2 usage, 3 nothing matched, 4 partially done, 5 store or server
unreachable, 6 store and program do not fit, 130 interrupted.

Try `laneway demo` first.";

/// Flags that every command takes.
#[derive(Args, Debug)]
pub struct Global {
    /// How data is shown
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, help_heading = "Global options")]
    pub output: Format,
    /// Read settings from this file, before laneway.toml
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,
    /// Use the context of this name from a settings file
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub context: Option<String>,
    /// Do not ask before something is done to many tasks, or in production
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub yes: bool,
    /// Say nothing but data and errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Log to standard error what the program does; -vv and -vvv tell more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, hide_short_help = true, help_heading = "Global options")]
    pub verbose: u8,
    /// Look again every so many seconds, until Ctrl-C; for ls, show, why, tree and status
    #[arg(
        long,
        global = true,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = seconds,
        hide_short_help = true,
        help_heading = "Global options"
    )]
    pub watch: Option<Duration>,
    /// No colours, also not on a terminal (as does NO_COLOR)
    #[arg(long, global = true, hide_short_help = true, help_heading = "Global options")]
    pub no_color: bool,
    /// Who acts, for the audit; the user if not given
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true, help_heading = "Global options")]
    pub actor: Option<String>,
    /// Why, for the audit
    #[arg(long, global = true, value_name = "TEXT", hide_short_help = true, help_heading = "Global options")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub flags: Flags<Common>,
}

/// How often to look.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.1 to 3600".into()),
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show Laneway at work: a mixed load on a store of its own, with checks
    Demo(demo::Demo),
    /// Everything in one process for development: SQLite, a worker, HTTP
    Dev(dev::Dev),
    /// Serve HTTP for a store, with or without a worker
    Serve(serve::Serve),
    /// Run tasks, and see who does
    #[command(subcommand)]
    Worker(worker::Worker),
    /// Store one task, or many from a file
    Enqueue(Box<enqueue::Enqueue>),
    /// Look at tasks, and act on them
    #[command(subcommand)]
    Tasks(tasks::Tasks),
    /// Look at queues, pause and set them
    #[command(subcommand)]
    Queues(queues::Queues),
    /// Look at lanes, limit and halt them
    #[command(subcommand)]
    Lanes(lanes::Lanes),
    /// Tasks that come again and again
    #[command(subcommand)]
    Schedules(schedules::Schedules),
    /// Actions on many tasks
    #[command(subcommand)]
    Bulk(bulk::Bulks),
    /// Put a load on the store, in a queue of its own, and measure it
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The store itself: its tables and its history
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Settings, and where they come from
    #[command(subcommand)]
    Config(config::Config),
    /// Tokens for the HTTP interface
    #[command(subcommand)]
    Token(token::Token),
    /// Completions for a shell, to be sourced
    Completions(completions::Completions),
    /// The manual, as man pages
    Man(man::Man),
    /// The version of this program
    Version,
}

impl Command {
    /// Carries it out.
    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Demo(command) => command.run(context).await,
            Self::Dev(command) => command.run(context).await,
            Self::Serve(command) => command.run(context).await,
            Self::Worker(command) => command.run(context).await,
            Self::Enqueue(command) => command.run(context).await,
            Self::Tasks(command) => command.run(context).await,
            Self::Queues(command) => command.run(context).await,
            Self::Lanes(command) => command.run(context).await,
            Self::Schedules(command) => command.run(context).await,
            Self::Bulk(command) => command.run(context).await,
            Self::Bench(command) => command.run(context).await,
            Self::Store(command) => command.run(context).await,
            Self::Config(command) => command.run(context),
            Self::Token(command) => command.run(context).await,
            Self::Completions(command) => command.run(context),
            Self::Man(command) => command.run(context),
            Self::Version => completions::version(context),
        }
    }

    /// The settings that were given as flags of this command.
    pub fn flags(&self) -> Vec<Given> {
        match self {
            Self::Dev(command) => command.flags(),
            Self::Serve(command) => command.flags(),
            Self::Worker(command) => command.flags(),
            Self::Config(command) => command.flags(),
            _ => vec![],
        }
    }

    /// True when it only looks, so that it can be done again and again.
    pub fn is_look(&self) -> bool {
        match self {
            Self::Tasks(command) => command.is_look(),
            Self::Queues(command) => command.is_look(),
            Self::Lanes(command) => command.is_look(),
            Self::Schedules(command) => command.is_look(),
            Self::Worker(command) => command.is_look(),
            Self::Bulk(command) => command.is_look(),
            Self::Store(command) => command.is_look(),
            _ => false,
        }
    }

    /// True when it changes what others work with, and has not asked by itself. Enqueueing is what the store is for.
    pub fn operates(&self) -> bool {
        match self {
            Self::Tasks(command) => command.acts_on_ids(),
            Self::Queues(_) | Self::Lanes(_) | Self::Bulk(_) => !self.is_look(),
            Self::Schedules(command) => command.operates(),
            Self::Bench(command) => command.operates(),
            Self::Store(command) => command.operates(),
            Self::Worker(command) => !command.runs() && !self.is_look(),
            Self::Token(command) => command.operates(),
            _ => false,
        }
    }

    /// What to do instead of naming a server, for commands that need the store itself.
    pub fn needs_store(&self) -> Option<&'static str> {
        match self {
            Self::Dev(_) | Self::Demo(_) => Some("it has a store of its own, leave --server out"),
            Self::Serve(_) => Some("name the store that is to be served with --store"),
            Self::Worker(command) if command.runs() => {
                Some("run the worker where it reaches the store, and name that with --store")
            }
            Self::Bench(command) if command.operates() => Some("name the store to be measured with --store"),
            Self::Store(command) if !command.is_look() => Some("name the store with --store"),
            _ => None,
        }
    }

    /// True when it has a store of its own, whatever files and the environment say.
    pub fn has_store(&self) -> bool {
        matches!(self, Self::Dev(_) | Self::Demo(_))
    }

    /// True when it is a daemon, which logs by itself.
    pub fn is_daemon(&self) -> bool {
        match self {
            Self::Dev(_) | Self::Serve(_) => true,
            Self::Worker(command) => command.runs(),
            _ => false,
        }
    }

    /// True when it ends in its own way on Ctrl-C.
    pub fn deals_with_signals(&self) -> bool {
        match self {
            Self::Enqueue(command) => command.many.is_some(),
            Self::Bench(command) => command.operates(),
            daemon => daemon.is_daemon(),
        }
    }
}
