//! A family as a picture.

use laneway_core::{InvalidInput, Rest, TaskView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::task::Task;

/// A task with its children: what is open or has failed is shown child by child, the rest is counted.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Tree {
    /// The task, with the counts of its family.
    task: Task,
    /// Children that are shown, those that have failed or are open first.
    #[schema(no_recursion)]
    children: Vec<Tree>,
    /// Children that are not shown: how many are `open`, `completed`, `failed`, `cancelled`.
    #[schema(value_type = Object)]
    rest: Rest,
    /// What runs after it.
    follow_ups: Vec<Task>,
}

impl From<laneway_core::Tree> for Tree {
    fn from(tree: laneway_core::Tree) -> Self {
        Self {
            task: tree.task.into(),
            children: tree.children.into_iter().map(Self::from).collect(),
            rest: tree.rest,
            follow_ups: tree.follow_ups.into_iter().map(Task::from).collect(),
        }
    }
}

impl TryFrom<Tree> for laneway_core::Tree {
    type Error = InvalidInput;

    fn try_from(tree: Tree) -> Result<Self, InvalidInput> {
        Ok(Self {
            task: tree.task.try_into()?,
            children: tree.children.into_iter().map(Self::try_from).collect::<Result<_, _>>()?,
            rest: tree.rest,
            follow_ups: tree.follow_ups.into_iter().map(TaskView::try_from).collect::<Result<_, _>>()?,
        })
    }
}
