//! What running attempts tell about themselves, until the renewing thread passes it on.
//!
//! An attempt may tell as often as it likes: only the last word of each task is kept here, and it is sent at most once a
//! second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use laneway_core::{Report, TaskId};

/// Shared by the attempts of a worker and its renewing thread.
#[derive(Default)]
pub(crate) struct Board(Mutex<HashMap<TaskId, Report>>);

impl Board {
    fn reports(&self) -> MutexGuard<'_, HashMap<TaskId, Report>> {
        self.0.lock().expect("no code panics while it holds this")
    }

    /// An attempt has got this far.
    pub(crate) fn tell(&self, report: Report) {
        self.reports().insert(report.task, report);
    }

    /// Everything that is new.
    pub(crate) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports()).into_values().collect()
    }

    /// What could not be sent waits for the next time, unless there is newer.
    pub(crate) fn put_back(&self, unsent: Vec<Report>) {
        let mut reports = self.reports();
        for report in unsent {
            reports.entry(report.task).or_insert(report);
        }
    }
}
