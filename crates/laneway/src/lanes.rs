//! Tells when a lane hits its limit, and when it leaves it.
//!
//! While tasks are left that cannot start, the coordinator names the lanes that are busiest in this worker; once a second
//! they are looked at. Limits hold over all workers, so only the store knows how full a lane is.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use laneway_core::{LaneKey, LaneView, QueueName, StoreError};
use tracing::info;

use crate::metrics::{ByQueue, Counted};
use crate::store_handle::StoreHandle;

/// Lanes that are looked at in one go.
const LOOKS_MAX: usize = 32;

type Lane = (QueueName, LaneKey);

/// What is known about full lanes.
#[derive(Default)]
pub(crate) struct LaneWatch {
    /// Busy lanes, told by the coordinator since the last look.
    busy: Mutex<HashMap<Lane, usize>>,
    /// Lanes that were seen at their limit.
    full: Mutex<HashSet<Lane>>,
}

impl LaneWatch {
    /// These lanes have attempts here while tasks wait.
    pub(crate) fn tell(&self, lanes: HashMap<Lane, usize>) {
        *self.busy.lock().expect("no code panics while it holds this") = lanes;
    }

    /// Looks at the busiest lanes and at those that were full, and tells what has changed.
    pub(crate) async fn look(&self, store: &StoreHandle, counted: &Counted) -> Result<(), StoreError> {
        let mut used: f64 = 0.0;
        for lane in self.to_look_at() {
            let view = store.lane(&lane.0, &lane.1).await?;
            let turns = view.as_ref().map_or(0.0, |view| view.held as f64 / f64::from(view.limit.stored()));
            used = used.max(turns);
            self.seen(lane, view, counted);
        }
        counted.lane_used.set(used);
        Ok(())
    }

    fn to_look_at(&self) -> Vec<Lane> {
        let mut busy: Vec<_> =
            self.busy.lock().expect("no code panics while it holds this").drain().collect();
        busy.sort_by_key(|(_, attempts)| std::cmp::Reverse(*attempts));
        let mut lanes: Vec<Lane> =
            self.full.lock().expect("no code panics while it holds this").iter().cloned().collect();
        lanes.extend(busy.into_iter().map(|(lane, _)| lane));
        let mut seen = HashSet::new();
        lanes.retain(|lane| seen.insert(lane.clone()));
        lanes.truncate(LOOKS_MAX);
        lanes
    }

    fn seen(&self, lane: Lane, view: Option<LaneView>, counted: &Counted) {
        let is_full =
            view.as_ref().is_some_and(|view| view.held >= view.limit.stored() as u64 && view.pending > 0);
        let mut full = self.full.lock().expect("no code panics while it holds this");
        if is_full && full.insert(lane.clone()) {
            let (limit, pending) =
                view.map(|view| (view.limit.to_string(), view.pending)).unwrap_or_default();
            info!(queue = %lane.0, lane = %lane.1, limit, pending, "a lane has hit its limit");
            counted.lane_limit_hits.inc();
        } else if !is_full && full.remove(&lane) {
            info!(queue = %lane.0, lane = %lane.1, "a lane is below its limit again");
        }
        counted.lanes_at_limit.set(full.len() as i64);
        let of_queue = full.iter().filter(|(queue, _)| *queue == lane.0).count();
        let labels = ByQueue { queue: lane.0.to_string() };
        counted.queue_lanes_at_limit.get_or_create(&labels).set(of_queue as i64);
    }
}
