//! `laneway tasks`: look at tasks, and act on them.

mod act;
mod edit;
mod ls;
mod show;
mod tree;
mod wait;
mod why;

pub use act::carry_out;
use clap::Subcommand;

use crate::context::Context;
use crate::problem::Outcome;

/// Looks at tasks, and acts on them.
#[derive(Debug, Subcommand)]
pub enum Tasks {
    /// List tasks
    Ls(ls::Ls),
    /// Everything about a task
    Show(show::Show),
    /// Why a task is not running
    Why(why::WhyNot),
    /// A task with its children and theirs
    Tree(tree::TreeOf),
    /// Wait until tasks have ended
    Wait(wait::Wait),
    /// Let tasks start anew that have failed or were cancelled
    Retry(act::Retry),
    /// End tasks, or stop them where they run
    Cancel(act::Cancel),
    /// Remove tasks that do not run, and their history
    Delete(act::Delete),
    /// Put tasks off that wait
    Snooze(act::Snooze),
    /// Give tasks that wait another priority
    Priority(act::Priority),
    /// Change the payload or the priority of a task that waits
    Edit(edit::EditTask),
}

impl Tasks {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls(_) | Self::Show(_) | Self::Why(_) | Self::Tree(_))
    }

    /// True when it acts on tasks that are named. By query it asks by itself.
    pub fn acts_on_ids(&self) -> bool {
        match self {
            Self::Retry(command) => command.which.names_tasks(),
            Self::Cancel(command) => command.which.names_tasks(),
            Self::Delete(command) => command.which.names_tasks(),
            Self::Snooze(command) => command.which.names_tasks(),
            Self::Priority(command) => command.which.names_tasks(),
            Self::Edit(_) => true,
            _ => false,
        }
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Ls(command) => command.run(context).await,
            Self::Show(command) => command.run(context).await,
            Self::Why(command) => command.run(context).await,
            Self::Tree(command) => command.run(context).await,
            Self::Wait(command) => command.run(context).await,
            Self::Retry(command) => command.run(context).await,
            Self::Cancel(command) => command.run(context).await,
            Self::Delete(command) => command.run(context).await,
            Self::Snooze(command) => command.run(context).await,
            Self::Priority(command) => command.run(context).await,
            Self::Edit(command) => command.run(context).await,
        }
    }
}
