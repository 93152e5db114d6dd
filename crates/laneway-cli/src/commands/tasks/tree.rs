//! `laneway tasks tree`: a task with its children and theirs, and what follows them.

use clap::Args;
use jiff::Timestamp;
use laneway_core::{FamilyView, Rest, State, TaskId, TaskView, Tree};

use super::ls::when;
use super::show::not_found;
use crate::context::Context;
use crate::output::{Format, text};
use crate::problem::{Exit, Outcome};

/// Shows a family.
#[derive(Args, Debug)]
pub struct TreeOf {
    /// The number of its top
    pub id: String,
    /// At most this many rows, 1 to 1000; what needs attention is shown first, the rest is counted
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub rows: u32,
}

impl TreeOf {
    pub async fn run(&self, context: &Context) -> Outcome {
        let id: TaskId = self.id.parse()?;
        let opened = context.store().await?;
        let tree = opened.store.tree(id, self.rows).await?.ok_or_else(|| not_found(id))?;
        match context.out.format {
            Format::Table | Format::Wide => context.out.data(&drawn(&tree, Timestamp::now()))?,
            _ => context.out.one("tree", &tree, &id.to_string(), &[])?,
        }
        Ok(Exit::Done)
    }
}

fn drawn(tree: &Tree, now: Timestamp) -> String {
    let mut lines = vec![];
    draw(tree, "", "", now, &mut lines);
    lines.iter().map(|line| format!("{}\n", text::clean(line))).collect()
}

/// Draws a task behind `branch`, and everything below it behind `indent`.
fn draw(tree: &Tree, branch: &str, indent: &str, now: Timestamp, lines: &mut Vec<String>) {
    lines.push(format!("{branch}{}", about(&tree.task, now)));
    let Rest { open, completed, failed, cancelled } = tree.rest;
    let rest = [(open, "open"), (failed, "failed"), (cancelled, "cancelled"), (completed, "completed")];
    let rest = rest.into_iter().filter(|(tasks, _)| *tasks > 0).map(|(tasks, how)| Below::Rest(tasks, how));
    let below: Vec<_> = tree
        .children
        .iter()
        .map(Below::Child)
        .chain(rest)
        .chain(tree.follow_ups.iter().map(Below::FollowUp))
        .collect();
    for (place, one) in below.iter().enumerate() {
        let is_last = place + 1 == below.len();
        let branch = format!("{indent}{}", if is_last { "└─ " } else { "├─ " });
        let indent = format!("{indent}{}", if is_last { "   " } else { "│  " });
        match one {
            Below::Child(child) => draw(child, &branch, &indent, now, lines),
            Below::Rest(tasks, how) => lines.push(format!("{branch}{} more {how}", text::number(*tasks))),
            Below::FollowUp(task) => lines.push(format!("{branch}then {}", about(task, now))),
        }
    }
}

enum Below<'a> {
    Child(&'a Tree),
    Rest(u64, &'static str),
    FollowUp(&'a TaskView),
}

fn about(task: &TaskView, now: Timestamp) -> String {
    let family = task.family.as_ref().map(|family| format!("  {}", counted(family))).unwrap_or_default();
    // A task that has completed in the end may have failed before.
    let error = task.error.as_deref().filter(|_| task.state != State::Completed);
    let error = error.map(|error| format!("  {}", text::first_line(error, 100))).unwrap_or_default();
    format!("{} {}  {}  {}{family}{error}", task.kind, task.id, task.state, when(task, now))
}

fn counted(family: &FamilyView) -> String {
    let FamilyView { total, open, completed, failed, cancelled, .. } = family;
    let mut parts = vec![format!("{completed}/{total} completed")];
    for (count, what) in [(open, "open"), (failed, "failed"), (cancelled, "cancelled")] {
        if *count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ")
}
