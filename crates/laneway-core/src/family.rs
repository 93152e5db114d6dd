//! Families: a task and the children that it spawned, and what is to run after it.
//!
//! A handler collects what it spawns, and the settle that completes it stores all of that in its own transaction: a task
//! that is retried never spawns twice. With children the task is `waiting` until the last of them has ended.
//!
//! - *Children* run in parallel, each with a queue, lane, priority and retry policy of its own.
//! - *Siblings* are added by a child: they get its parent, and are counted before the child's own end is.
//! - *Follow-ups* are top-level tasks that start only after their spawner, with its family, has ended.

use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::name::{LaneKey, QueueName};
use crate::task::NewTask;
use crate::validate::{self, Code, InvalidInput, Limits};

/// Errors of children that a family keeps.
pub const FAMILY_ERRORS_MAX: usize = 3;
/// Characters that are kept of each.
pub const FAMILY_ERROR_CHARS: usize = 200;

/// What a settle that completes a task stores with it.
///
/// ```
/// use laneway_core::{Json, Kind, Limits, NewTask, Spawned};
///
/// let child = NewTask::new(Kind::new("page.fetch")?, Json::parse("{}")?);
/// let spawned = Spawned { children: vec![child], ..Default::default() };
/// assert!(spawned.check(&Limits::default()).is_ok());
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spawned {
    /// Tasks that the spawner waits for.
    pub children: Vec<NewTask>,
    /// Tasks that the spawner's parent waits for.
    pub siblings: Vec<NewTask>,
    /// Tasks that run after the spawner has ended.
    pub follow_ups: Vec<FollowUp>,
    /// What failures among the children mean.
    pub policy: FamilyPolicy,
    /// True: the spawner runs again, as its next step, when its children have ended well.
    pub then: bool,
    /// True: its failed and cancelled children start anew, and it waits for them. For a task with
    /// [`TaskOptions::resume`](crate::TaskOptions::resume).
    pub again: bool,
}

/// A task that runs after its spawner has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp {
    /// The task. Its delay counts from the spawner's end.
    pub task: NewTask,
    /// What becomes of it when the spawner fails.
    pub on_failure: FollowUpOnFailure,
}

/// What becomes of a follow-up when its spawner fails. When the spawner is cancelled, so is every follow-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FollowUpOnFailure {
    /// It ends as cancelled.
    #[default]
    Drop,
    /// It runs all the same.
    Keep,
}

/// What failures among its children mean to a task. A cancelled child counts as failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FamilyPolicy {
    /// It waits for all, and then fails if one has failed.
    #[default]
    WaitAll,
    /// The first failure cancels what is open, and the task fails.
    FailFast,
    /// They mean nothing: it completes when all have ended.
    Ignore,
}

impl FamilyPolicy {
    /// The policy as stores name it.
    pub fn stored(self) -> &'static str {
        match self {
            Self::WaitAll => "wait_all",
            Self::FailFast => "fail_fast",
            Self::Ignore => "ignore",
        }
    }

    /// The policy that a store kept.
    pub fn from_stored(text: &str) -> Self {
        match text {
            "fail_fast" => Self::FailFast,
            "ignore" => Self::Ignore,
            _ => Self::WaitAll,
        }
    }
}

/// What a store knows about a task that spawns.
#[derive(Clone, Copy, Debug)]
pub struct Spawner<'a> {
    /// Its parent.
    pub parent: Option<TaskId>,
    /// Its depth.
    pub depth: u32,
    /// Its queue.
    pub queue: &'a QueueName,
    /// True when that queue is serial.
    pub is_serial: bool,
}

impl Spawned {
    /// True when there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.again
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.children.len() + self.siblings.len() + self.follow_ups.len()
    }

    /// The tasks in the order in which they get their ids.
    pub fn tasks(&self) -> impl Iterator<Item = &NewTask> {
        let follow_ups = self.follow_ups.iter().map(|follow_up| &follow_up.task);
        self.children.iter().chain(&self.siblings).chain(follow_ups)
    }

    /// Checks every task, how many there are, and that no child has a unique key.
    ///
    /// # Errors
    /// `bulk_too_large`, `unique_child`, or what [`NewTask::check`] refuses.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        let count = self.len();
        if count > limits.bulk_max {
            let problem = format!("are {count} in one settle, the limit is {}; split them", limits.bulk_max);
            return Err(InvalidInput::new(Code::BulkTooLarge, "tasks", problem));
        }
        self.children.iter().chain(&self.siblings).try_for_each(check_child)?;
        self.tasks().enumerate().try_for_each(|(place, task)| {
            task.check(limits).map_err(|refused| match count {
                1 => refused,
                _ => InvalidInput { message: format!("task {place}: {}", refused.message), ..refused },
            })
        })
    }

    /// Checks what depends on who spawns.
    ///
    /// # Errors
    /// `no_parent`, `family_too_deep`, `serial_queue`.
    pub fn check_spawner(&self, spawner: Spawner<'_>, limits: &Limits) -> Result<(), InvalidInput> {
        if !self.siblings.is_empty() {
            check_sibling_of(spawner)?;
        }
        if !self.children.is_empty() {
            check_child_of(spawner, limits)?;
        }
        Ok(())
    }
}

/// Checks that a task has no unique key, which children and siblings may not have.
///
/// # Errors
/// `unique_child`.
pub fn check_child(task: &NewTask) -> Result<(), InvalidInput> {
    let Some(unique) = &task.unique else { return Ok(()) };
    let problem =
        format!("`{}` is refused: a child cannot have a unique key; use a follow-up", unique.key.as_str());
    Err(InvalidInput::new(Code::UniqueChild, "unique.key", problem))
}

/// Checks that a task may have siblings.
///
/// # Errors
/// `no_parent`.
pub fn check_sibling_of(spawner: Spawner<'_>) -> Result<(), InvalidInput> {
    if spawner.parent.is_some() {
        return Ok(());
    }
    let problem = "need a parent, and this task has none; spawn children instead";
    Err(InvalidInput::new(Code::NoParent, "siblings", problem))
}

/// Checks that a task may have children.
///
/// # Errors
/// `family_too_deep`, `serial_queue`.
pub fn check_child_of(spawner: Spawner<'_>, limits: &Limits) -> Result<(), InvalidInput> {
    let (depth, most) = (spawner.depth + 1, limits.depth_max);
    if depth > most {
        let problem = format!("would be at depth {depth}, the limit is {most}; spawn siblings instead");
        return Err(InvalidInput::new(Code::FamilyTooDeep, "children", problem));
    }
    if spawner.parent.is_some() && spawner.is_serial {
        let problem =
            format!("of a child are refused in the serial queue `{}`; spawn siblings instead", spawner.queue);
        return Err(InvalidInput::new(Code::SerialQueue, "children", problem));
    }
    Ok(())
}

/// The refusal of a lane in a serial queue.
pub fn lane_in_serial_queue(lane: &LaneKey, queue: &QueueName) -> InvalidInput {
    let problem = format!("`{lane}` is refused in the serial queue `{queue}`; leave it out");
    InvalidInput::new(Code::SerialQueue, "lane", problem)
}

/// The refusal to make a queue with open tasks serial, or parallel.
pub fn serial_queue_in_use(queue: &QueueName) -> InvalidInput {
    let problem = format!("can be changed only while queue `{queue}` has no open tasks");
    InvalidInput::new(Code::SerialQueue, "serial", problem)
}

/// Whether the top-level tasks of a queue run one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Serial {
    /// They run side by side.
    #[default]
    Off,
    /// One at a time by (priority, id), also while one waits for its children or is in back-off; of the children in the
    /// queue this many at once: 1 to 1,000,000.
    Children(u32),
}

impl Serial {
    /// Serial, with four children at once.
    pub const ON: Self = Self::Children(4);

    /// How many children run at once, as stores keep it: 0 when it is off.
    pub fn stored(self) -> i32 {
        match self {
            Self::Off => 0,
            Self::Children(at_once) => at_once as i32,
        }
    }

    /// As a store kept it.
    pub fn from_stored(at_once: i32) -> Self {
        if at_once <= 0 { Self::Off } else { Self::Children(at_once as u32) }
    }

    pub(crate) fn check(self) -> Result<(), InvalidInput> {
        match self {
            Self::Off => Ok(()),
            Self::Children(at_once) => {
                validate::in_range("serial.children", at_once, 1..=validate::LANE_LIMIT_MAX)
            }
        }
    }
}

/// A task's latest children, counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyView {
    /// The parent.
    pub parent: TaskId,
    /// What failures mean.
    pub policy: FamilyPolicy,
    /// All children, with the siblings that were added.
    pub total: u64,
    /// Those that have not ended.
    pub open: u64,
    /// Those that have completed.
    pub completed: u64,
    /// Those that have failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// The first three errors, each cut at 200 characters.
    pub errors: Vec<(TaskId, String)>,
}

impl FamilyView {
    /// The family in the options of a task that a store kept, where it is the member `family`.
    pub fn from_stored(options: Option<&str>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Stored {
            family: Option<FamilyView>,
        }
        let options = options.filter(|text| text.contains("\"family\""))?;
        serde_json::from_str::<Stored>(options).ok()?.family
    }

    /// True when a child has failed or was cancelled.
    pub fn has_failed(&self) -> bool {
        self.failed + self.cancelled > 0
    }

    /// What the parent says when it fails because of its children.
    ///
    /// ```
    /// use laneway_core::{FamilyPolicy, FamilyView, TaskId};
    ///
    /// let family = FamilyView {
    ///     parent: TaskId(1), policy: FamilyPolicy::WaitAll, total: 100, open: 0,
    ///     completed: 98, failed: 2, cancelled: 0,
    ///     errors: vec![(TaskId(17), "no route".into()), (TaskId(20), "timeout".into())],
    /// };
    /// assert_eq!(family.error(), "2 of 100 children failed: task 17: no route; task 20: timeout");
    /// ```
    pub fn error(&self) -> String {
        let failed = self.failed + self.cancelled;
        let mut texts: Vec<_> =
            self.errors.iter().map(|(task, error)| format!("task {task}: {error}")).collect();
        if failed > texts.len() as u64 {
            texts.push("…".to_owned());
        }
        format!("{failed} of {} children failed: {}", self.total, texts.join("; "))
    }
}

/// An error as a family keeps it.
pub fn family_error(error: &str) -> String {
    error.chars().take(FAMILY_ERROR_CHARS).collect()
}

/// A page of a task's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Children {
    /// The parent.
    pub parent: TaskId,
    /// Go on after this child.
    pub after: Option<TaskId>,
    /// At most this many: 1 to 500.
    pub limit: u32,
}

impl Children {
    /// The first five hundred children of `parent`.
    pub fn of(parent: TaskId) -> Self {
        Self { parent, after: None, limit: validate::PAGE_MAX }
    }

    /// Checks the page size.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        validate::in_range("limit", self.limit, 1..=validate::PAGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_read_from_stored_options() {
        let stored = r#"{"tags":["a"],"family":{"parent":17,"policy":"fail_fast","total":2,"open":0,
            "completed":1,"failed":1,"cancelled":0,"errors":[[18,"boom"]]}}"#;

        let family = FamilyView::from_stored(Some(stored)).unwrap();

        assert_eq!(family.policy, FamilyPolicy::FailFast);
        assert_eq!(family.error(), "1 of 2 children failed: task 18: boom");
        assert_eq!(FamilyView::from_stored(Some(r#"{"tags":["a"]}"#)), None);
    }
}
