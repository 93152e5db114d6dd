//! The attempts that run, one per slot. A slot is free again when its attempt's future is gone, however it went.

use std::collections::HashMap;
use std::time::Duration;

use laneway_core::{LaneKey, QueueName, TaskId};
use tokio::task::{Id, JoinError, JoinSet};

use crate::attempt::{Attempt, StopReason};
use crate::handler::Registered;
use crate::run::{AttemptEnd, run};

/// All running attempts of a worker.
#[derive(Default)]
pub(crate) struct Slots {
    running: JoinSet<AttemptEnd>,
    attempts: HashMap<Id, Attempt>,
}

/// An attempt that is over.
pub(crate) type Ended = (Attempt, Result<AttemptEnd, JoinError>);

impl Slots {
    pub(crate) fn len(&self) -> usize {
        self.attempts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Starts an attempt in a task of its own.
    pub(crate) fn start(&mut self, handler: Registered, attempt: Attempt, patience: Duration) {
        let handle = self.running.spawn(run(handler, attempt.clone(), patience));
        self.attempts.insert(handle.id(), attempt);
    }

    /// The next attempt that ends. Never resolves while nothing runs.
    ///
    /// # Cancel safety
    /// A dropped future loses no end.
    pub(crate) async fn next_end(&mut self) -> Ended {
        match self.running.join_next_with_id().await {
            Some(ended) => self.take(ended),
            None => std::future::pending().await,
        }
    }

    /// The next attempt that has ended already.
    pub(crate) fn try_next_end(&mut self) -> Option<Ended> {
        let ended = self.running.try_join_next_with_id()?;
        Some(self.take(ended))
    }

    fn take(&mut self, ended: Result<(Id, AttemptEnd), JoinError>) -> Ended {
        let (id, end) = match ended {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        (self.attempts.remove(&id).expect("every running task is an attempt"), end)
    }

    /// Tells these attempts to stop.
    pub(crate) fn stop(&self, tasks: &[TaskId], reason: StopReason) {
        let asked = self.attempts.values().filter(|attempt| tasks.contains(&attempt.id()));
        asked.for_each(|attempt| attempt.stop(reason));
    }

    /// Tells every attempt to stop.
    pub(crate) fn stop_all(&self, reason: StopReason) {
        self.attempts.values().for_each(|attempt| attempt.stop(reason));
    }

    /// Drops every attempt's future at its next `.await`.
    pub(crate) fn abort_all(&mut self) {
        self.running.abort_all();
    }

    /// How many attempts run in each lane.
    pub(crate) fn lanes(&self) -> HashMap<(QueueName, LaneKey), usize> {
        let mut lanes = HashMap::new();
        for task in self.attempts.values().map(Attempt::task) {
            if let Some(lane) = &task.lane {
                *lanes.entry((task.queue.clone(), lane.clone())).or_default() += 1;
            }
        }
        lanes
    }
}
