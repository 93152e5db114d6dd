//! What a worker does for everybody: firing schedules, sweeping up after dead workers, and keeping the store tidy.

use std::sync::Arc;
use std::time::Duration;

use laneway_core::StoreError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::{ByQueue, ByResult, ByState};
use crate::shared::Shared;
use crate::vitals::Vitals;

const TICK: Duration = Duration::from_secs(1);
/// Ticks between sweeps, and between rounds of maintenance.
const SWEEP_EVERY: u64 = 5;
const MAINTAIN_EVERY: u64 = 60;

/// Keeps house until told to stop. What is under way is finished first.
pub(crate) async fn keep_house(shared: Arc<Shared>, vitals: Arc<Vitals>, stop: CancellationToken) {
    // Workers that were started together do not sweep in step.
    let offset = fastrand::u64(0..MAINTAIN_EVERY);
    for tick in 0.. {
        measure(&shared, &vitals);
        if stop.run_until_cancelled(sleep(TICK.mul_f64(0.9 + 0.2 * fastrand::f64()))).await.is_none() {
            return;
        }
        if let Err(error) = chores(&shared, tick + offset).await {
            // The coordinator tells about outages; here they only put chores off.
            debug!(%error, "house-keeping was put off");
        }
    }
}

/// Does everything that there is to do, once.
pub(crate) async fn all_chores(shared: &Shared) -> Result<(), StoreError> {
    chores(shared, 0).await
}

async fn chores(shared: &Shared, tick: u64) -> Result<(), StoreError> {
    let counted = &shared.metrics.counted;
    shared.lanes.look(&shared.store, counted).await?;
    fire_schedules(shared).await?;
    if tick.is_multiple_of(SWEEP_EVERY) {
        let swept = shared.store.sweep().await?;
        for (queue, tasks) in &swept.rescued {
            counted.rescued.get_or_create(&ByQueue { queue: queue.to_string() }).inc_by((*tasks).into());
        }
        if swept.sessions + swept.given_back > 0 {
            info!(workers = swept.sessions, tasks = swept.given_back, "gave back the tasks of dead workers");
        }
        if swept.poisoned > 0 {
            warn!(tasks = swept.poisoned, "failed tasks whose workers died three times");
        }
    }
    if tick.is_multiple_of(MAINTAIN_EVERY) {
        if shared.sql.refresh(&shared.store, &shared.kinds).await? {
            info!("the handlers in the database have changed");
        }
        for (state, tasks) in shared.store.maintain().await?.removed {
            counted.removed.get_or_create(&ByState { state: state.as_str() }).inc_by(tasks);
        }
    }
    Ok(())
}

/// Fires what is due. Every worker tries; each fire counts once.
async fn fire_schedules(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let fired = shared.store.fire_due().await?;
        let results = [
            ("enqueued", fired.tasks.len()),
            ("skipped", fired.skipped as usize),
            ("stuck", fired.stuck.len()),
        ];
        for (result, fires) in results.into_iter().filter(|(_, fires)| *fires > 0) {
            shared.metrics.counted.fires.get_or_create(&ByResult { result }).inc_by(fires as u64);
        }
        if !fired.tasks.is_empty() {
            debug!(tasks = fired.tasks.len(), "schedules have fired");
        }
        if !fired.more {
            return Ok(());
        }
    }
}

fn measure(shared: &Shared, vitals: &Vitals) {
    let counted = &shared.metrics.counted;
    let memory = (shared.options.memory_probe)();
    let ratio = memory.map_or(0.0, |memory| memory.ratio());
    counted.memory_limit.set(memory.map_or(0, |memory| memory.limit as i64));
    vitals.set_memory(ratio);
    counted.memory.set(ratio);
    #[cfg(feature = "postgres")]
    if let Some(postgres) = shared.store.postgres() {
        let (open, idle) = postgres.connections();
        for (state, connections) in [("idle", idle), ("busy", open.saturating_sub(idle))] {
            counted.connections.get_or_create(&ByState { state }).set(connections as i64);
        }
    }
}
