//! A family as a picture: who waits for whom.

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::family::Children;
use crate::id::TaskId;
use crate::look::{State, TaskView};
use crate::store::Store;
use crate::validate;

/// Rows that a tree shows at most.
pub const TREE_ROWS_MAX: u32 = 1_000;
/// Children of one task that are looked at for those worth showing.
const LOOKED_AT_MAX: usize = 5_000;

/// A task with its children. What is open and what has failed is shown child by child, the rest as numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tree {
    /// The task, with the counts of its family.
    pub task: TaskView,
    /// Children that are shown, those that are open or have failed first.
    pub children: Vec<Tree>,
    /// Children that are not shown.
    pub rest: Rest,
    /// What runs after it.
    pub follow_ups: Vec<TaskView>,
}

/// Children that a tree does not show, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// Those that have not ended.
    pub open: u64,
    /// Those that have completed.
    pub completed: u64,
    /// Those that have failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
}

impl Tree {
    fn of(task: TaskView) -> Self {
        Self { task, children: vec![], rest: Rest::default(), follow_ups: vec![] }
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        1 + self.follow_ups.len() + self.children.iter().map(Tree::rows).sum::<usize>()
    }
}

/// Draws the tree of a task. Each level shares what is left of the rows among its tasks.
pub(crate) async fn tree<S: Store + ?Sized>(
    store: &S,
    task: TaskId,
    rows: u32,
) -> Result<Option<Tree>, StoreError> {
    validate::in_range("max_rows", rows, 1..=TREE_ROWS_MAX)?;
    let Some(task) = store.get(task).await? else { return Ok(None) };
    let mut left = rows as usize - 1;
    let mut root = Tree::of(task);
    // Level by level, so that a wide family near the top is not crowded out by a deep one below.
    let mut level = vec![&mut root];
    while !level.is_empty() && left > 0 {
        let mut next = vec![];
        for node in level {
            grow(store, node, &mut left).await?;
            next.extend(node.children.iter_mut());
        }
        level = next;
    }
    count_rest(&mut root);
    Ok(Some(root))
}

async fn grow<S: Store + ?Sized>(store: &S, node: &mut Tree, left: &mut usize) -> Result<(), StoreError> {
    let mut follow_ups = store.follow_ups(node.task.id).await?;
    follow_ups.truncate(*left);
    *left -= follow_ups.len();
    node.follow_ups = follow_ups;
    if node.task.family.is_none() {
        return Ok(());
    }
    let mut children = children(store, node.task.id).await?;
    children.sort_by_key(|child| (interest(child.state), child.id));
    children.truncate(*left);
    *left -= children.len();
    node.children = children.into_iter().map(Tree::of).collect();
    Ok(())
}

async fn children<S: Store + ?Sized>(store: &S, parent: TaskId) -> Result<Vec<TaskView>, StoreError> {
    let mut page = Children::of(parent);
    let mut all = vec![];
    loop {
        let some = store.children(page).await?;
        let is_last = some.len() < page.limit as usize;
        page.after = some.last().map(|child| child.id);
        all.extend(some);
        if is_last || all.len() >= LOOKED_AT_MAX {
            return Ok(all);
        }
    }
}

/// What needs attention comes first.
fn interest(state: State) -> u8 {
    match state {
        State::Failed => 0,
        State::Cancelled => 2,
        State::Completed => 3,
        _ => 1,
    }
}

fn count_rest(node: &mut Tree) {
    if let Some(family) = &node.task.family {
        let shown =
            |is: fn(State) -> bool| node.children.iter().filter(|child| is(child.task.state)).count() as u64;
        node.rest = Rest {
            open: family.open.saturating_sub(shown(|state| !state.has_ended())),
            completed: family.completed.saturating_sub(shown(|state| state == State::Completed)),
            failed: family.failed.saturating_sub(shown(|state| state == State::Failed)),
            cancelled: family.cancelled.saturating_sub(shown(|state| state == State::Cancelled)),
        };
    }
    node.children.iter_mut().for_each(count_rest);
}
