//! `laneway tasks why`: everything that keeps a task from running, and what to do about it.

use clap::Args;
use jiff::Timestamp;
use laneway_core::{Holder, Paused, QueueName, Reason, Serving, State, TaskId, TaskView};

use super::ls::short;
use super::show::not_found;
use crate::context::Context;
use crate::output::text;
use crate::problem::{Exit, Outcome};

/// Says why a task is not running.
#[derive(Args, Debug)]
pub struct WhyNot {
    /// Its number
    pub id: String,
}

impl WhyNot {
    pub async fn run(&self, context: &Context) -> Outcome {
        let id: TaskId = self.id.parse()?;
        let opened = context.store().await?;
        let why = opened.store.why(id).await?.ok_or_else(|| not_found(id))?;
        let task = opened.store.get(id).await?.ok_or_else(|| not_found(id))?;
        let now = Timestamp::now();
        let reasons: Vec<_> = why.reasons.iter().map(|reason| sentence(reason, &task, now)).collect();
        let fields =
            [("task", id.to_string()), ("state", why.state.to_string()), ("because", reasons.join("\n"))];
        context.out.one("why", &why, &id.to_string(), &fields)?;
        Ok(Exit::Done)
    }
}

fn sentence(reason: &Reason, task: &TaskView, now: Timestamp) -> String {
    match reason {
        Reason::Due { at } => format!("it is due {}", text::moment(*at, now)),
        Reason::BackOff { until, attempt, error } => {
            let error = error
                .as_deref()
                .map(|error| format!(": {}", text::first_line(error, 200)))
                .unwrap_or_default();
            format!("attempt {attempt} failed{error}; the next one is {}", text::until(*until, now))
        }
        Reason::QueuePaused(pause) => format!("its queue is paused {}", paused(pause, now)),
        Reason::KindPaused(pause) => format!("its kind is paused {}", paused(pause, now)),
        Reason::LanePaused(pause) => format!("its lane is paused {}", paused(pause, now)),
        Reason::LaneHalted => {
            let key = task.lane.as_ref().map_or("KEY", |key| key.as_str());
            let (queue, key) = (text::word(task.queue.as_str()), text::word(key));
            format!("a failure has halted its lane; go on with `laneway lanes resume {queue} {key}`")
        }
        Reason::LaneRests { until } => {
            format!("its lane rests; the next start is {}", text::until(*until, now))
        }
        Reason::LaneFull { limit, held_by } => {
            let holders: Vec<_> = held_by.iter().map(holder).collect();
            format!("its lane is at its limit of {limit}: {}", holders.join(", "))
        }
        Reason::Behind { ahead, more } => format!("{} ahead of it", text::count(*ahead, *more)),
        Reason::Waiting { open, failed, children } => {
            let (are, have) =
                (if *open == 1 { "is" } else { "are" }, if *failed == 1 { "has" } else { "have" });
            let failed = if *failed > 0 { format!(", {failed} {have} failed") } else { String::new() };
            let first: Vec<_> =
                children.iter().map(|child| format!("{} {}", child.task, child.state)).collect();
            format!("{open} of its children {are} open{failed}: {}", first.join(", "))
        }
        Reason::After { task } => format!("it runs after task {task}, which has not ended"),
        Reason::NoWorker { serving } => no_worker(task, serving),
        Reason::NoFreeSlot => "no worker that could run it has a free slot".into(),
        Reason::Claimable => "nothing: the next claim takes it".into(),
        Reason::Running { name, since, stopping, .. } => {
            let stopping = if *stopping { ", told to stop" } else { "" };
            let on = name.as_deref().map(|name| format!(" on {name}")).unwrap_or_default();
            format!("it is running{on} since {}{stopping}", text::moment(*since, now))
        }
        Reason::Ended { state, at, error } => {
            let error = error
                .as_deref()
                .map(|error| format!(": {}", text::first_line(error, 200)))
                .unwrap_or_default();
            format!("it has ended as {state} {}{error}", text::ago(*at, now))
        }
        other => text::stored(other),
    }
}

fn paused(pause: &Paused, now: Timestamp) -> String {
    let until = pause.until.map(|until| format!(", until {}", text::moment(until, now))).unwrap_or_default();
    format!("by {} since {}{until}", pause.by, text::moment(pause.since, now))
}

fn holder(holder: &Holder) -> String {
    match (&holder.name, holder.worker) {
        (Some(name), _) => format!("{} on {name}", holder.task),
        (None, Some(worker)) => format!("{} on {}", holder.task, short(&worker.to_string())),
        (None, None) if holder.state == State::Waiting => format!("{} waiting for its children", holder.task),
        (None, None) => format!("{} in back-off", holder.task),
    }
}

fn no_worker(task: &TaskView, serving: &[Serving]) -> String {
    let (queue, kind) = (text::word(task.queue.as_str()), text::word(task.kind.as_str()));
    let queues =
        if task.queue == QueueName::default() { String::new() } else { format!(" --queues {queue}") };
    let start = format!("start one with `laneway worker exec {kind}{queues} -- PROGRAM`, or from Rust");
    if serving.is_empty() {
        return format!("no worker serves the queue {queue}; {start}");
    }
    let names: Vec<_> = serving.iter().map(|worker| worker.name.as_str()).collect();
    format!("no worker of the queue {queue} handles {kind} (there is {}); {start}", names.join(", "))
}
