//! What the demo enqueues.

use std::time::Duration;

use laneway::{Client, RetryPolicy, task};
use laneway_core::{Json, Kind, NewTask, QueueName, Rule, Schedule, ScheduleName};

use super::handlers::{Batch, Flaky, Free, Later, Page, Step, Tick};
use crate::problem::{Exit, Problem};
use laneway::Payload;

/// Tasks without a lane, per unit of scale.
const FREE: u32 = 2_000;
/// Workflows, each of so many steps that must run in order.
const WORKFLOWS: u32 = 60;
pub const STEPS: u32 = 15;
/// Sites, each with so many pages, of which at most so many are fetched at once.
const SITES: u32 = 10;
const PAGES: u32 = 50;
pub const PAGES_AT_ONCE: u32 = 3;
/// Tasks whose first two attempts fail.
const FLAKY: u32 = 40;
/// Tasks that start a second later.
const LATER: u32 = 20;
/// Families, each of so many children and a task that follows them.
const BATCHES: u32 = 5;
pub const PARTS: u32 = 10;
/// Fires of the schedule that are waited for.
pub const TICKS: u32 = 2;

/// Enqueues everything, and answers how many ends to wait for.
pub async fn enqueue(client: &Client, queue: &QueueName, scale: u32) -> Result<u64, Problem> {
    put_schedule(client, queue).await?;
    let name = queue.as_str();
    let free = (0..FREE * scale).map(|n| task(Free { millis: u64::from(n % 5) }).queue(name));
    let pages = (0..SITES * scale).flat_map(|site| (0..PAGES).map(move |page| Page { site, page }));
    let pages = pages.map(|page| {
        let lane = page.lane();
        task(page).queue(name).lane(lane).limit(PAGES_AT_ONCE)
    });
    let flaky = (0..FLAKY * scale).map(|_| {
        let retry = RetryPolicy::List { delays_ms: vec![100, 300] };
        task(Flaky { fails: 2 }).queue(name).retry(retry).max_attempts(5)
    });
    let later = (0..LATER * scale).map(|_| task(Later {}).queue(name).delay(Duration::from_secs(1)));
    let batches = (0..BATCHES * scale).map(|batch| task(Batch { batch }).queue(name));
    let mut stored = 0;
    for drafts in
        [flaky.collect::<Vec<_>>(), later.collect(), batches.collect(), free.collect(), pages.collect()]
    {
        stored += client.enqueue_many(drafts).await.map_err(failed)?.len();
    }
    // One call per step of all workflows, as a program would: step 1 of each, then step 2 of each.
    for number in 0..STEPS {
        let steps = (0..WORKFLOWS * scale).map(|workflow| {
            let step = Step { workflow, number };
            let lane = step.lane();
            task(step).queue(name).lane(lane)
        });
        stored += client.enqueue_many(steps).await.map_err(failed)?.len();
    }
    let spawned = BATCHES * scale * (PARTS + 1);
    Ok(stored as u64 + u64::from(TICKS + spawned))
}

fn failed(error: laneway::EnqueueError) -> Problem {
    match error {
        laneway::EnqueueError::Store(error) => error.into(),
        other => Problem::new(Exit::Error, other.to_string()),
    }
}

/// A schedule that fires every second. It has the name of the queue, so that demos do not meet.
async fn put_schedule(client: &Client, queue: &QueueName) -> Result<(), Problem> {
    let tick = NewTask::new(Kind::new(Tick::KIND)?, Json::default()).queue(queue.clone());
    let every = Rule::Every(Duration::from_secs(1));
    client.store().put_schedule(Schedule::new(ScheduleName::new(queue.as_str())?, every, tick)).await?;
    Ok(())
}
