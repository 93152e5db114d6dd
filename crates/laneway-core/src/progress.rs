//! How far a running attempt is, in its own words.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{LeaseId, TaskId};
use crate::validate;

/// Bytes of a note that are kept.
pub const PROGRESS_NOTE_MAX: usize = 1_000;

/// What an attempt tells about itself.
///
/// ```
/// use laneway_core::Progress;
///
/// assert_eq!(Progress::of(3, 10).note("pages"), Progress::at(0.3).note("pages"));
/// assert_eq!(Progress::of(3, 10).note.as_deref(), Some("3 of 10"));
/// assert_eq!(Progress::at(7.0).fraction, 1.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The share that is done, 0 to 1.
    pub fraction: f64,
    /// What it is doing just now.
    pub note: Option<String>,
}

impl Progress {
    /// This share is done. What is below 0, above 1 or no number is moved into the range.
    pub fn at(fraction: f64) -> Self {
        Self { fraction: if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) }, note: None }
    }

    /// So many are done of so many; nothing to do at all is done. The note says the same, unless it is given another.
    pub fn of(done: u64, total: u64) -> Self {
        let fraction = if total == 0 { 1.0 } else { done as f64 / total as f64 };
        Self { note: Some(format!("{done} of {total}")), ..Self::at(fraction) }
    }

    /// Says what it is doing. Cut at [`PROGRESS_NOTE_MAX`] bytes.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        let mut note = validate::clean_report(&note.into());
        note.truncate((0..=PROGRESS_NOTE_MAX).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0));
        self.note = Some(note);
        self
    }
}

impl From<f64> for Progress {
    fn from(fraction: f64) -> Self {
        Self::at(fraction)
    }
}

impl From<(u64, u64)> for Progress {
    /// Done, and of how many.
    fn from((done, total): (u64, u64)) -> Self {
        Self::of(done, total)
    }
}

/// The progress of one leased task, to be shown while that lease holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The task.
    pub task: TaskId,
    /// The lease that it runs under.
    pub lease: LeaseId,
    /// How far it is.
    pub progress: Progress,
}

/// What a running task has told last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressView {
    /// The share that is done, 0 to 1.
    pub fraction: f64,
    /// What it was doing.
    pub note: Option<String>,
    /// When it was told.
    pub at: Timestamp,
}
