//! Tells what happens in a store, one line each: tasks that end or fail, workers that come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{Change, SessionId, State, Store, StoreError, TaskView, Watch};
use tokio_util::sync::CancellationToken;

use crate::output::{Out, text};

const LOOK: Duration = Duration::from_millis(250);
/// How long the feed waits for us.
const KEEP: Duration = Duration::from_secs(60);
const CHANGES_MAX: u32 = 500;
/// Of more tasks that change together only their number is told.
const TASKS_TOLD: usize = 5;

/// Tells until `closing`. What cannot be read is tried again: people have the log for errors.
pub async fn narrate(store: Arc<dyn Store>, out: Out, closing: CancellationToken) {
    let mut workers = BTreeMap::new();
    while !closing.is_cancelled() {
        let told = tokio::select! {
            told = follow(&*store, &out, &mut workers) => told,
            () = closing.cancelled() => return,
        };
        if let Err(error) = told {
            tracing::warn!(%error, "cannot follow what happens");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Follows the feed until it has a gap.
async fn follow(
    store: &dyn Store,
    out: &Out,
    workers: &mut BTreeMap<SessionId, String>,
) -> Result<(), StoreError> {
    let Watch { watcher, fence, mut position } = store.watch(KEEP).await?;
    while !store.fence_passed(fence).await? {
        tokio::time::sleep(LOOK / 10).await;
    }
    loop {
        tell_workers(store, out, workers).await?;
        let read = store.changes(watcher, position, CHANGES_MAX).await?;
        for change in &read.changes {
            tell(store, out, change).await?;
        }
        if read.gap {
            return Ok(());
        }
        position = read.position;
        tokio::time::sleep(LOOK).await;
    }
}

async fn tell_workers(
    store: &dyn Store,
    out: &Out,
    known: &mut BTreeMap<SessionId, String>,
) -> Result<(), StoreError> {
    let living = store.workers().await?;
    for worker in &living {
        if known.insert(worker.session, worker.name.clone()).is_none() {
            let kinds = worker.kinds.names().map_or("*".into(), |kinds| kinds.join(","));
            say(
                out,
                &format!("worker  joined     {}  kinds={kinds} slots={}", worker.name, worker.capacity.slots),
            );
        }
    }
    let gone: Vec<_> = known
        .keys()
        .filter(|session| !living.iter().any(|worker| worker.session == **session))
        .copied()
        .collect();
    for session in gone {
        let name = known.remove(&session).unwrap_or_default();
        say(out, &format!("worker  left       {name}"));
    }
    Ok(())
}

async fn tell(store: &dyn Store, out: &Out, change: &Change) -> Result<(), StoreError> {
    if !change.state.has_ended() && change.state != State::Later {
        return Ok(());
    }
    if change.tasks.len() > TASKS_TOLD {
        let count = text::tasks(change.tasks.len() as u64);
        say(out, &format!("task    {:<9}  {count} of queue {}", change.state, change.queue));
        return Ok(());
    }
    for (id, _) in &change.tasks {
        if let Some(task) = store.get(*id).await?
            && let Some(line) = line(&task, change.state)
        {
            say(out, &line);
        }
    }
    Ok(())
}

/// What is worth telling about a task that entered a state.
fn line(task: &TaskView, state: State) -> Option<String> {
    let TaskView { id, kind, .. } = task;
    let error = text::first_line(task.error.as_deref().unwrap_or_default(), 100);
    Some(match state {
        State::Later if task.attempt > 0 => {
            format!("task    retries    {kind} {id}  attempt {} failed: {error}", task.attempt)
        }
        State::Later => return None,
        State::Completed => {
            let waited = text::span(text::since(task.enqueued_at, task.started_at?));
            let ran = text::span(text::since(task.started_at?, task.ended_at?));
            format!("task    completed  {kind} {id}  waited {waited}  ran {ran}")
        }
        _ => format!("task    {state:<9}  {kind} {id}  {error}"),
    })
}

fn say(out: &Out, line: &str) {
    let now = Timestamp::now().to_zoned(jiff::tz::TimeZone::system());
    // A reader that has gone away is no reason to end the daemon.
    let _ = out.data(&format!("{} {}\n", now.strftime("%H:%M:%S"), text::clean(line)));
}
