//! `laneway tasks ls`: lists tasks, running ones first, then those that wait, then history.

use clap::Args;
use jiff::Timestamp;
use laneway_core::{Cursor, Filter, Listing, Place, State, Store, TaskView};

use crate::context::Context;
use crate::output::{Column, column, right, text, wide};
use crate::problem::{Exit, Outcome, Problem};

/// The most rows of one call of the store.
const PAGE_MAX: u32 = 500;
/// Pages that are looked through for rare tasks before we say so.
const PAGES_MAX: u32 = 20;
/// The order in which lists are shown: what happens now comes first.
const ORDER: [Place; 5] = [Place::Leased, Place::Pending, Place::Waiting, Place::Later, Place::Ended];

/// Lists tasks.
#[derive(Args, Debug)]
pub struct Ls {
    /// Only these, such as 'state:failed kind:email.* since:1h'
    #[arg(
        long = "where",
        value_name = "QUERY",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub filter: String,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,
    /// Go on after a page, with what it said
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

/// Where a listing stands: in which list, and after which row.
struct Stand {
    list: usize,
    after: Option<Cursor>,
}

const COLUMNS: &[Column<TaskView>] = &[
    right(column("ID", |task: &TaskView, _| task.id.to_string())),
    column("KIND", |task, _| task.kind.to_string()),
    column("QUEUE", |task, _| task.queue.to_string()),
    wide(column("LANE", |task, _| task.lane.as_ref().map(ToString::to_string).unwrap_or_default())),
    column("STATE", |task, _| task.state.to_string()),
    column("ATTEMPT", |task, _| format!("{}/{}", task.attempt, task.max_attempts)),
    wide(right(column("PRIORITY", |task, _| task.priority.to_string()))),
    column("WHEN", when),
    wide(column("WORKER", |task, _| {
        task.worker.map(|worker| short(&worker.to_string())).unwrap_or_default()
    })),
    wide(column("TAGS", |task, _| {
        task.options.tags.iter().map(|tag| tag.as_str()).collect::<Vec<_>>().join(",")
    })),
    column("ERROR", |task, _| text::first_line(task.error.as_deref().unwrap_or_default(), 100)),
];

/// The beginning of a session, as filters take it.
pub fn short(session: &str) -> String {
    format!("w-{}", &session[..session.len().min(8)])
}

/// What matters most about a task's time in its state.
pub fn when(task: &TaskView, now: Timestamp) -> String {
    let since =
        |then: Option<Timestamp>| then.map(|then| text::span(text::since(then, now))).unwrap_or_default();
    match task.state {
        State::Later => task.due_at.map(|due| text::until(due, now)).unwrap_or_default(),
        State::Leased => format!("for {}", since(task.started_at)),
        state if state.has_ended() => task.ended_at.map(|ended| text::ago(ended, now)).unwrap_or_default(),
        _ => text::ago(task.enqueued_at, now),
    }
}

impl Ls {
    pub async fn run(&self, context: &Context) -> Outcome {
        let filter: Filter = self.filter.parse()?;
        if !(1..=10_000).contains(&self.limit) {
            return Err(Problem::usage(format!("limit is {}; allowed is 1 to 10000", self.limit)));
        }
        let start =
            self.after.as_deref().map(read_place).transpose()?.unwrap_or(Stand { list: 0, after: None });
        let opened = context.store().await?;
        let (tasks, next) = find(&*opened.store, &filter, start, self.limit).await?;
        let next = next.map(|next| write_place(&next));
        context.out.list("tasks", &tasks, COLUMNS, next.as_deref())?;
        if let Some(next) = next {
            context.out.note(&format!("{} shown; more with --after {next}", text::tasks(tasks.len() as u64)));
        }
        Ok(Exit::Done)
    }
}

/// Up to `limit` tasks, list after list, and where to go on.
async fn find(
    store: &dyn Store,
    filter: &Filter,
    start: Stand,
    limit: u32,
) -> Result<(Vec<TaskView>, Option<Stand>), Problem> {
    let wanted = filter.places();
    let (mut tasks, mut pages) = (vec![], 0);
    let Stand { mut list, mut after } = start;
    while let Some(place) = ORDER.get(list) {
        if !wanted.contains(place) {
            (list, after) = (list + 1, None);
            continue;
        }
        let left = limit - tasks.len() as u32;
        if left == 0 || pages == PAGES_MAX {
            return Ok((tasks, Some(Stand { list, after })));
        }
        let listing = Listing { place: *place, filter: filter.clone(), after, limit: left.min(PAGE_MAX) };
        let page = store.list(listing).await?;
        pages += 1;
        tasks.extend(page.tasks);
        (list, after) = if page.next.is_some() { (list, page.next) } else { (list + 1, None) };
    }
    Ok((tasks, None))
}

fn write_place(place: &Stand) -> String {
    let after = place.after.map(|cursor| cursor.to_string()).unwrap_or_default();
    format!("{}.{after}", place.list)
}

fn read_place(text: &str) -> Result<Stand, Problem> {
    let read = || {
        let (list, after) = text.split_once('.')?;
        let after = if after.is_empty() { None } else { Some(after.parse().ok()?) };
        Some(Stand { list: list.parse().ok().filter(|list| *list < ORDER.len())?, after })
    };
    read().ok_or_else(|| {
        Problem::usage(format!(
            "after `{}` was not made by a listing; start at the first page",
            text.escape_debug()
        ))
    })
}
