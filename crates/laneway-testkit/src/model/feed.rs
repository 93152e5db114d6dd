//! The change feed in the model: what it tells last about a task is the state that the task is in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use laneway_core::Watch;

use super::run::{same, told};
use crate::store::{PATIENCE, TestStore};

/// The longest time for which a watch may be silent.
const KEEP: Duration = Duration::from_secs(600);

/// Somebody who follows a store while a script runs.
pub(super) struct Feed {
    watch: Watch,
}

impl Feed {
    /// Begins to watch, and waits until everything before can be read by those who watched already.
    pub async fn begin(store: &TestStore) -> Result<Self, String> {
        let watch = told(store.watch(KEEP).await)?;
        let deadline = Instant::now() + PATIENCE;
        while !told(store.fence_passed(watch.fence).await)? {
            if Instant::now() > deadline {
                return Err("a watch does not become ready".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Self { watch })
    }

    /// Reads what was told since it began, compares the tasks with it, and goes on with a new watch. A gap is allowed: scripts
    /// move the clock.
    pub async fn compare(&mut self, store: &TestStore) -> Result<(), String> {
        let old = std::mem::replace(self, Self::begin(store).await?).watch;
        let (mut position, mut last) = (old.position, BTreeMap::new());
        loop {
            let read = told(store.changes(old.watcher, position, 500).await)?;
            if read.gap {
                last.clear();
            }
            if read.gap || read.changes.is_empty() {
                break;
            }
            position = read.position;
            for change in read.changes {
                let state = (!change.deleted).then_some(change.state);
                last.extend(change.tasks.into_iter().map(|(task, _)| (task, state)));
            }
        }
        told(store.unwatch(old.watcher).await)?;
        for (task, state) in last {
            let found = told(store.get(task).await)?.map(|view| view.state);
            same(&format!("the last change of task {task}"), state, found)?;
        }
        Ok(())
    }
}
