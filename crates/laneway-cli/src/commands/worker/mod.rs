//! `laneway worker`: run tasks, and see who does.

mod run;

use clap::Subcommand;
use jiff::Timestamp;
use laneway_core::{Kinds, SessionId, Store, WorkerView};

use super::queues::Changed;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::Given;

/// Runs tasks, and shows who does.
#[derive(Debug, Subcommand)]
pub enum Worker {
    /// Run tasks of the built-in kinds, echo and http.request
    Run(run::Run),
    /// Handle a kind by starting a program for every task
    Exec(run::Exec),
    /// Handle a kind by calling an endpoint for every task
    Http(run::Http),
    /// List living workers
    Ls,
    /// One worker
    Show {
        /// The beginning of its session, such as w-3f2a
        id: String,
    },
    /// Tell a worker to end: what it runs may finish within its grace time
    Stop {
        /// The beginning of its session
        id: String,
    },
    /// Tell a worker to take nothing new
    Drain {
        /// The beginning of its session
        id: String,
    },
}

const COLUMNS: &[Column<WorkerView>] = &[
    column("WORKER", |worker: &WorkerView, _| short(worker.session)),
    column("NAME", |worker, _| worker.name.clone()),
    column("QUEUES", |worker, _| {
        worker.queues.iter().map(|queue| queue.as_str()).collect::<Vec<_>>().join(",")
    }),
    column("KINDS", |worker, _| kinds(&worker.kinds)),
    right(column("BUSY", |worker, _| {
        format!("{}/{}", worker.capacity.slots.saturating_sub(worker.capacity.free), worker.capacity.slots)
    })),
    right(column("MEMORY", |worker, _| format!("{}%", worker.capacity.memory_percent))),
    column("STATE", |worker, _| if worker.capacity.draining { "draining" } else { "working" }.into()),
    column("UP", |worker, now| text::span(text::since(worker.started_at, now))),
    column("SEEN", |worker, now| text::ago(worker.seen_at, now)),
];

fn kinds(kinds: &Kinds) -> String {
    kinds.names().map_or("*".into(), |names| names.join(","))
}

/// The beginning of a session, as filters and these commands take it.
pub fn short(session: SessionId) -> String {
    format!("w-{}", &session.to_string()[..8])
}

impl Worker {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls | Self::Show { .. })
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Run(command) => command.run(context).await,
            Self::Exec(command) => command.run(context).await,
            Self::Http(command) => command.run(context).await,
            _ => self.look(context).await,
        }
    }

    async fn look(&self, context: &Context) -> Outcome {
        let opened = context.store().await?;
        match self {
            Self::Run(_) | Self::Exec(_) | Self::Http(_) => unreachable!("dealt with before"),
            Self::Ls => {
                context.out.list("workers", &opened.store.workers().await?, COLUMNS, None)?;
                Ok(Exit::Done)
            }
            Self::Show { id } => show(&find(&*opened.store, id).await?, context),
            Self::Stop { id } => stop(&*opened.store, id, context).await,
            Self::Drain { id } => drain(&*opened.store, id, context).await,
        }
    }

    pub fn flags(&self) -> Vec<Given> {
        match self {
            Self::Run(command) => command.working.given.clone(),
            Self::Exec(command) => command.working.given.clone(),
            Self::Http(command) => command.working.given.clone(),
            _ => vec![],
        }
    }

    /// True when it runs tasks, and does not only look.
    pub fn runs(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Exec(_) | Self::Http(_))
    }
}

/// The one worker whose session begins like this.
async fn find(store: &dyn Store, id: &str) -> Result<WorkerView, Problem> {
    let wanted = id.strip_prefix("w-").unwrap_or(id).to_ascii_lowercase();
    let mut workers = store.workers().await?;
    workers.retain(|worker| worker.session.to_string().starts_with(&wanted));
    match workers.len() {
        1 if wanted.len() >= 4 => Ok(workers.remove(0)),
        0 => {
            Err(Problem::nothing(format!("there is no living worker `{id}`; `laneway worker ls` lists them")))
        }
        _ => {
            Err(Problem::usage(format!("`{id}` is not enough to tell workers apart; give at least 4 digits")))
        }
    }
}

fn show(worker: &WorkerView, context: &Context) -> Outcome {
    let now = Timestamp::now();
    let capacity = worker.capacity;
    let fields = [
        ("worker", worker.session.to_string()),
        ("name", worker.name.clone()),
        ("queues", worker.queues.iter().map(|queue| queue.as_str()).collect::<Vec<_>>().join(", ")),
        ("kinds", kinds(&worker.kinds)),
        ("slots", format!("{}, of which {} free", capacity.slots, capacity.free)),
        ("memory", format!("{}%", capacity.memory_percent)),
        ("draining", if capacity.draining { "yes".into() } else { String::new() }),
        ("started", text::moment(worker.started_at, now)),
        ("seen", text::moment(worker.seen_at, now)),
        ("its tasks", format!("laneway tasks ls --where worker:{}", short(worker.session))),
    ];
    context.out.one("worker", worker, &short(worker.session), &fields)?;
    Ok(Exit::Done)
}

async fn stop(store: &dyn Store, id: &str, context: &Context) -> Outcome {
    let worker = find(store, id).await?;
    let changed = store.stop(&context.actor, worker.session).await?;
    told(&worker, changed, "ends when what it runs has finished", context)
}

async fn drain(store: &dyn Store, id: &str, context: &Context) -> Outcome {
    let worker = find(store, id).await?;
    let changed = store.drain(&context.actor, worker.session).await?;
    told(&worker, changed, "takes nothing new", context)
}

/// Says what an order did.
fn told(worker: &WorkerView, changed: bool, says: &str, context: &Context) -> Outcome {
    let name = short(worker.session);
    let says = if changed { says } else { "was told before" };
    context.out.answer(&Changed { name: &name, changed }, &name, &format!("worker {name} {says}"))?;
    Ok(if changed { Exit::Done } else { Exit::NothingMatched })
}
