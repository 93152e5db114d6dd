//! `laneway worker run`, `exec` and `http`: processes that run tasks.

use clap::Args;
use laneway::WorkerBuilder;
use laneway_core::parse_span;
use laneway_server::handlers::{Endpoint, Program, SetupError};

use crate::builtin;
use crate::commands::serve::probes;
use crate::context::Context;
use crate::daemon::{self, Parts};
use crate::live::Live;
use crate::problem::{Outcome, Problem};
use crate::settings::{Flags, Origin, Settings, Working};

/// Runs tasks of the built-in kinds.
#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub working: Flags<Working>,
}

/// Handles a kind by starting a program for every task.
#[derive(Args, Debug)]
pub struct Exec {
    /// The kind that it handles
    pub kind: String,
    /// The program and its arguments: the payload is on its standard input, its standard output is the result
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// The exit code that means "failed for good"; any other but 0 is tried again
    #[arg(long, value_name = "CODE", default_value_t = 100)]
    pub fail_code: i32,
    /// The exit code that means "not now", which is not charged as an attempt
    #[arg(long, value_name = "CODE", default_value_t = 101)]
    pub snooze_code: i32,
    /// How long "not now" is
    #[arg(long, value_name = "SPAN", default_value = "1m")]
    pub snooze: String,
    #[command(flatten)]
    pub working: Flags<Working>,
}

/// Handles a kind by calling an endpoint for every task.
#[derive(Args, Debug)]
pub struct Http {
    /// The kind that it handles
    pub kind: String,
    /// Where payloads are posted; the body of the answer is the result
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// How long one call may take
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    pub timeout: String,
    #[command(flatten)]
    pub working: Flags<Working>,
}

impl Run {
    pub async fn run(&self, context: &Context) -> Outcome {
        run(context, Settings::clone, |builder| builtin::all(builder, &context.settings)).await
    }
}

impl Exec {
    pub async fn run(&self, context: &Context) -> Outcome {
        let snooze = parse_span("snooze", &self.snooze)?;
        let program = Program::new(&self.kind, self.command.clone()).map_err(refused)?;
        let program = program.fail_code(self.fail_code).snooze_code(self.snooze_code, snooze);
        run(context, few_slots, |builder| Ok(program.add_to(builder))).await
    }
}

impl Http {
    pub async fn run(&self, context: &Context) -> Outcome {
        let timeout = parse_span("timeout", &self.timeout)?;
        let options = builtin::http_options(&context.settings);
        let endpoint = Endpoint::new(&self.kind, &self.url, options).map_err(refused)?.timeout(timeout);
        run(context, Settings::clone, |builder| Ok(endpoint.add_to(builder))).await
    }
}

fn refused(error: SetupError) -> Problem {
    Problem::usage(error.to_string())
}

/// A thousand programs at once help nobody: as many as there are processors, unless somebody has said how many.
fn few_slots(settings: &Settings) -> Settings {
    let said = ["worker.max_concurrent_tasks", "worker.concurrency"];
    if said.iter().any(|key| settings.value(key).origin != Origin::Default) {
        return settings.clone();
    }
    let processors = std::thread::available_parallelism().map_or(4, usize::from);
    settings.with("worker.concurrency", &processors.to_string())
}

async fn run(
    context: &Context,
    adapt: fn(&Settings) -> Settings,
    handlers: impl FnOnce(WorkerBuilder) -> Result<WorkerBuilder, Problem>,
) -> Outcome {
    let live = Live::start(context, adapt);
    let settings = live.settings();
    let opened = context.store_to_serve().await?;
    let worker = daemon::build(handlers(daemon::builder(&opened.handle, &settings)?)?)?;
    let looks = match settings.metrics_listen() {
        Some(_) => opened.beside_worker(&settings).await?,
        None => opened.store,
    };
    let probes = probes(&looks, &settings, Some(worker.metrics())).await?;
    daemon::run(Parts { worker: Some(worker), probes, ..Parts::default() }, &live).await
}
