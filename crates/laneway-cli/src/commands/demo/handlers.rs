//! What runs the demo's tasks: plain async functions, which tell [`Checks`] that they begin and end.

use std::sync::Arc;
use std::time::Duration;

use laneway::{Attempt, Failure, Payload, State, WorkerBuilder};
use serde::{Deserialize, Serialize};

use super::checks::{Checks, Lane};
use super::load::{PAGES_AT_ONCE, PARTS};

macro_rules! payload {
    ($(#[$doc:meta])* $name:ident, $kind:literal, { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Serialize, Deserialize)]
        pub struct $name { $(pub $field: $type),* }

        impl Payload for $name {
            const KIND: &'static str = $kind;
        }
    };
}

payload!(
    /// A task without a lane.
    Free, "demo.free", { millis: u64 }
);
payload!(
    /// One step of a workflow; the steps of a workflow run in order.
    Step, "demo.step", { workflow: u32, number: u32 }
);
payload!(
    /// One page of a site; a site is asked for a few pages at once at most.
    Page, "demo.page", { site: u32, page: u32 }
);
payload!(
    /// A task whose first attempts fail.
    Flaky, "demo.flaky", { fails: u32 }
);
payload!(
    /// A task that starts later.
    Later, "demo.later", {}
);
payload!(
    /// What the schedule enqueues.
    Tick, "demo.tick", {}
);

payload!(
    /// A task that has children: it has ended when they have.
    Batch, "demo.batch", { batch: u32 }
);
payload!(
    /// A child of a batch.
    Part, "demo.part", { batch: u32 }
);
payload!(
    /// What follows a batch, once all of its parts have ended.
    Joined, "demo.joined", { batch: u32 }
);

impl Step {
    pub fn lane(&self) -> String {
        format!("workflow:{}", self.workflow)
    }
}

impl Page {
    pub fn lane(&self) -> String {
        format!("site:{}", self.site)
    }
}

type Watched = State<Arc<Checks>>;

/// A builder with all of the demo's handlers.
pub fn all(builder: WorkerBuilder) -> WorkerBuilder {
    builder
        .handle(free)
        .handle(step)
        .handle(page)
        .handle(flaky)
        .handle(later)
        .handle(tick)
        .handle(batch)
        .handle(part)
        .handle(joined)
}

async fn free(free: Free, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    tokio::time::sleep(Duration::from_millis(free.millis)).await;
    Ok(())
}

async fn step(step: Step, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let lane = Lane { key: step.lane(), limit: 1, place: Some(step.number) };
    let _running = checks.begin(&attempt, Some(lane));
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}

async fn page(page: Page, attempt: Attempt, State(checks): Watched) -> Result<String, Failure> {
    let lane = Lane { key: page.lane(), limit: PAGES_AT_ONCE, place: None };
    let _running = checks.begin(&attempt, Some(lane));
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("page {} of site {}", page.page, page.site))
}

async fn flaky(flaky: Flaky, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let running = checks.begin(&attempt, None);
    if attempt.number() <= flaky.fails {
        running.fails();
        return Err(Failure::retry(format!("attempt {} fails on purpose", attempt.number())));
    }
    Ok(())
}

async fn later(_: Later, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    Ok(())
}

async fn tick(_: Tick, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    Ok(())
}

async fn batch(batch: Batch, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    let number = batch.batch;
    for _ in 0..PARTS {
        attempt.spawn(Part { batch: number })?;
    }
    attempt.follow_up(Joined { batch: number })
}

async fn part(part: Part, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    tokio::time::sleep(Duration::from_millis(20)).await;
    checks.part_ends(part.batch);
    Ok(())
}

async fn joined(joined: Joined, attempt: Attempt, State(checks): Watched) -> Result<(), Failure> {
    let _running = checks.begin(&attempt, None);
    checks.joins(joined.batch, PARTS);
    Ok(())
}
