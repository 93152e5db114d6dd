//! House-keeping in the model: how long queues keep what has ended, and what maintenance removes.
//!
//! History goes by days of the calendar, of which the model knows nothing. So there is a time until which an ended task must be
//! there, a time from which it must be gone, and a day between them in which the store decides and the model follows. The same holds
//! for lanes that nobody uses: they may be forgotten, or not.

use std::collections::BTreeSet;
use std::time::Instant;

use laneway_core::{Keep, OnFailure, QueueSettings, State, TaskId};

use super::UNIT;
use super::run::{same, told};
use super::script::{HouseOp, QUEUES};
use super::state::{LaneName, Model, Place};
use crate::store::{PATIENCE, TestStore, queue};

const DAY: u64 = 86_400;
/// A run takes less than this, in seconds, and its clock goes on meanwhile.
const RUN_TAKES: u64 = 900;

/// Carries out an operation on the store and on the model.
pub(super) async fn carry_out(store: &TestStore, model: &mut Model, op: &HouseOp) -> Result<(), String> {
    match op {
        HouseOp::Keep { queue: which, completed, failed } => {
            let keep = |days: &u32| if *days == 0 { Keep::Default } else { Keep::Days(*days) };
            let settings = QueueSettings {
                keep_completed: Some(keep(completed)),
                keep_failed: Some(keep(failed)),
                ..Default::default()
            };
            model.kept.insert(queue(QUEUES[*which]), (*completed, *failed));
            told(store.set_queue(&queue(QUEUES[*which]), settings).await)
        }
        HouseOp::PassDays { days } => {
            // A schedule would fire for every hour of it.
            if !model.schedules.values().any(|scheduled| scheduled.is_enabled()) {
                let units = (u64::from(*days) * DAY).div_ceil(UNIT.as_secs());
                store.advance_clock(UNIT * units as u32).await;
                model.now += units;
            }
            Ok(())
        }
        HouseOp::Maintain => maintain(store, model).await,
    }
}

async fn maintain(store: &TestStore, model: &mut Model) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let over: BTreeSet<TaskId> =
        ended(model).filter(|(_, age, days)| *age > (days + 1) * DAY).map(first).collect();
    loop {
        told(store.maintain().await)?;
        let mut left = vec![];
        for id in &over {
            left.extend(told(store.get(*id).await)?.map(|_| *id));
        }
        if left.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("history is kept for too long: {left:?}"));
        }
    }
    let doubtful: Vec<_> =
        ended(model).filter(|(_, age, days)| age + RUN_TAKES >= days * DAY).map(first).collect();
    for id in doubtful {
        if told(store.get(id).await)?.is_none() {
            model.tasks.remove(&id);
        }
    }
    forget_lanes(store, model).await
}

/// Every ended task with its age in seconds and how many days it is kept.
fn ended(model: &Model) -> impl Iterator<Item = (TaskId, u64, u64)> {
    model.tasks.iter().filter_map(|(id, task)| {
        let Place::Ended(state) = task.place else { return None };
        let (completed, failed) = model.kept.get(&task.queue).copied().unwrap_or_default();
        let days = match state {
            State::Failed if failed == 0 => 30,
            State::Failed => failed,
            State::Completed if completed > 0 => completed,
            _ => 7,
        };
        Some((*id, (model.now - task.ended_at) * UNIT.as_secs(), u64::from(days)))
    })
}

fn first((id, ..): (TaskId, u64, u64)) -> TaskId {
    id
}

/// Follows the store where it has forgotten a lane, which it may if nothing is in it and nobody has set it up.
async fn forget_lanes(store: &TestStore, model: &mut Model) -> Result<(), String> {
    let names: Vec<LaneName> = model.lanes.keys().cloned().collect();
    for name in names {
        let lane = &model.lanes[&name];
        let is_open = model.in_lane(&name).any(|(_, task)| task.is_open());
        let is_set_up = lane.fixed
            || lane.interval > 0
            || lane.halted
            || lane.paused
            || lane.on_failure == OnFailure::Halt;
        if told(store.lane(&name.0, &name.1).await)?.is_none() && !is_open {
            same(
                &format!("lane `{}` of `{}`, which was set up, is known", name.1, name.0),
                is_set_up,
                false,
            )?;
            model.lanes.remove(&name);
        }
    }
    Ok(())
}
