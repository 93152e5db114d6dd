//! The `laneway` program: try, run, watch and operate durable tasks.
//!
//! `args.rs` says what can be written on the command line; each group of commands has a file in `commands/`. A command gets
//! a [`Context`](context::Context) (settings, output, who acts), opens the store in `open.rs`, talks to it through the same
//! traits as everybody else, and shows what it found through `output/`. It decides nothing that a store or the library
//! decides.
//!
//! Settings come from one table (`settings/`). Failures are [`Problem`](problem::Problem)s: a sentence, the engine's stable
//! code, and an exit code that scripts can rely on.

mod args;
mod ask;
mod builtin;
mod commands;
mod context;
mod daemon;
mod live;
mod logging;
mod open;
mod output;
mod problem;
mod settings;
mod task_flags;
#[cfg(feature = "otel")]
mod traces;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use console::Term;

use crate::args::{Cli, Global};
use crate::context::Context;
use crate::output::{Out, text};
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::{Origin, Settings, Sources};

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    ended(run(Arc::new(cli)).await)
}

async fn run(cli: Arc<Cli>) -> Outcome {
    if cli.global.no_color {
        console::set_colors_enabled(false);
        console::set_colors_enabled_stderr(false);
    }
    let context = context(&cli)?;
    refuse_server(&cli, &context.settings)?;
    if cli.global.verbose > 0 && !cli.command.is_daemon() {
        logging::start(&context.settings);
    }
    ask_in_production(&cli, &context)?;
    if cli.command.deals_with_signals() {
        return cli.command.run(&context).await;
    }
    tokio::select! {
        outcome = once_or_again(&cli, &context) => outcome,
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    }
}

/// What needs the store itself is not done through a server, also not one that a file or the environment names: the store
/// would be another one than whoever has set that expects.
fn refuse_server(cli: &Cli, settings: &Settings) -> Result<(), Problem> {
    let Some(instead) = cli.command.needs_store() else { return Ok(()) };
    let is_flag = matches!(settings.value("server.url").origin, Origin::Flag(_));
    if !is_flag && (cli.command.has_store() || settings.server()?.is_none()) {
        return Ok(());
    }
    let from = &settings.value("server.url").origin;
    Err(Problem::usage(format!("this cannot be done through a server (from {from}); {instead}")))
}

/// In a context that is marked as production every change is asked about, also one with a single id.
fn ask_in_production(cli: &Cli, context: &Context) -> Result<(), Problem> {
    match context.settings.production() {
        Some(name) if cli.command.operates() => {
            ask::confirm(&format!("change this in `{name}`, which is production?"), context.yes)
        }
        _ => Ok(()),
    }
}

/// Carries the command out, or looks again and again with `--watch`.
async fn once_or_again(cli: &Cli, context: &Context) -> Outcome {
    let Some(every) = cli.global.watch else { return cli.command.run(context).await };
    if !cli.command.is_look() {
        return Err(Problem::usage("`--watch` is for ls, show, why, tree and status; leave it out"));
    }
    let screen = Term::stdout();
    loop {
        if screen.is_term() {
            screen
                .clear_screen()
                .map_err(|error| Problem::because("the screen cannot be cleared", &error))?;
        }
        cli.command.run(context).await?;
        tokio::time::sleep(every).await;
    }
}

fn context(cli: &Arc<Cli>) -> Result<Context, Problem> {
    let Global { output, quiet, actor, reason, .. } = &cli.global;
    let again = Arc::clone(cli);
    Ok(Context {
        settings: read_settings(cli)?,
        out: Out { format: *output, quiet: *quiet },
        actor: context::actor(actor.as_deref(), reason.as_deref())?,
        yes: cli.global.yes,
        reread: Arc::new(move || read_settings(&again)),
    })
}

/// The settings as flags, environment and files give them now.
fn read_settings(cli: &Cli) -> Result<Settings, Problem> {
    let working = std::env::current_dir()
        .map_err(|error| Problem::because("the working directory cannot be read", &error))?;
    // A name or value that is not text cannot be one of ours.
    let variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut flags = [cli.global.flags.given.clone(), cli.command.flags()].concat();
    flags.extend(verbosity(cli.global.verbose));
    let (config, context) = (cli.global.config.as_deref(), cli.global.context.as_deref());
    Settings::read(&Sources { flags: &flags, config, context, working: &working, variables: &variables })
}

/// `-v` as the log level that it stands for.
fn verbosity(verbose: u8) -> Option<settings::Given> {
    let level = match verbose {
        0 => return None,
        1 => "info,laneway=debug",
        2 => "debug",
        _ => "trace",
    };
    Some((settings::find("log.level")?, level.to_owned()))
}

/// Says what went wrong, and makes it an exit code.
fn ended(outcome: Outcome) -> ExitCode {
    let problem = match outcome {
        Ok(exit) => return exit.into(),
        Err(problem) if problem.is_broken_pipe() => return Exit::Done.into(),
        Err(problem) => problem,
    };
    let code = problem.code.map(|code| format!(" [{code}]")).unwrap_or_default();
    eprintln!("error: {}{code}", text::clean(&problem.message));
    for cause in &problem.causes {
        eprintln!("  because: {}", text::clean(cause));
    }
    problem.exit.into()
}
