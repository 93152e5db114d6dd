//! `laneway bulk`: actions on many tasks, as objects that outlive the command that began them.

use clap::Subcommand;
use indicatif::ProgressBar;
use jiff::Timestamp;
use laneway_core::{Bulk, BulkId, BulkPage, BulkState};
use serde::Serialize;

use super::tasks::carry_out;
use crate::context::Context;
use crate::output::{Column, column, right, text};
use crate::problem::{Exit, Outcome, Problem};

/// Actions on many tasks.
#[derive(Debug, Subcommand)]
pub enum Bulks {
    /// List them, newest first
    Ls {
        /// At most this many, 1 to 500
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// One of them
    Show {
        /// Its number
        id: i64,
    },
    /// Stop one; what is done stays done
    Abort {
        /// Its number
        id: i64,
    },
    /// Go on with one that was stopped, or whose command died
    Resume {
        /// Its number
        id: i64,
    },
}

/// A bulk as it is shown.
#[derive(Serialize)]
pub struct BulkShown {
    id: i64,
    action: &'static str,
    #[serde(rename = "where")]
    filter: String,
    dry_run: bool,
    state: BulkState,
    matched: u64,
    done: u64,
    skipped: u64,
    actor: String,
    reason: Option<String>,
    started_at: Timestamp,
}

const COLUMNS: &[Column<BulkShown>] = &[
    right(column("ID", |bulk: &BulkShown, _| bulk.id.to_string())),
    column("ACTION", |bulk, _| bulk.action()),
    column("STATE", |bulk, _| text::stored(&bulk.state)),
    right(column("MATCHED", |bulk, _| text::number(bulk.matched))),
    right(column("DONE", |bulk, _| text::number(bulk.done))),
    column("BY", |bulk, _| bulk.actor.clone()),
    column("STARTED", |bulk, now| text::ago(bulk.started_at, now)),
    column("WHERE", |bulk, _| bulk.filter.clone()),
];

impl BulkShown {
    fn action(&self) -> String {
        format!("{}{}", self.action, if self.dry_run { ", only counted" } else { "" })
    }

    pub fn of(bulk: &Bulk) -> Self {
        Self {
            id: bulk.id.0,
            action: bulk.action.name(),
            filter: bulk.filter.to_string(),
            dry_run: bulk.dry_run,
            state: bulk.state,
            matched: bulk.matched,
            done: bulk.done,
            skipped: if bulk.dry_run { 0 } else { bulk.matched - bulk.done },
            actor: bulk.actor.who.to_string(),
            reason: bulk.actor.reason.clone(),
            started_at: bulk.started_at,
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("bulk", self.id.to_string()),
            ("action", self.action()),
            ("where", if self.filter.is_empty() { "(all tasks)".into() } else { self.filter.clone() }),
            ("state", text::stored(&self.state)),
            ("matched", text::number(self.matched)),
            ("done", text::number(self.done)),
            ("skipped", text::number(self.skipped)),
            ("by", self.actor.clone()),
            ("reason", self.reason.clone().unwrap_or_default()),
            ("started", text::moment(self.started_at, Timestamp::now())),
        ]
    }
}

impl Bulks {
    /// True when it only looks.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::Ls { .. } | Self::Show { .. })
    }

    pub async fn run(&self, context: &Context) -> Outcome {
        let opened = context.store().await?;
        let not_found = |id: i64| Problem::nothing(format!("there is no bulk {id}"));
        let bulk = match self {
            Self::Ls { limit } => {
                let page = BulkPage { limit: *limit, ..BulkPage::default() };
                let bulks: Vec<_> = opened.store.bulks(page).await?.iter().map(BulkShown::of).collect();
                context.out.list("bulks", &bulks, COLUMNS, None)?;
                return Ok(Exit::Done);
            }
            Self::Show { id } => opened.store.bulk(BulkId(*id)).await?.ok_or_else(|| not_found(*id))?,
            Self::Abort { id } => {
                opened.store.set_bulk_state(&context.actor, BulkId(*id), BulkState::Aborted).await?;
                opened.store.bulk(BulkId(*id)).await?.ok_or_else(|| not_found(*id))?
            }
            Self::Resume { id } => {
                opened.store.set_bulk_state(&context.actor, BulkId(*id), BulkState::Running).await?;
                carry_out(&*opened.store, BulkId(*id), &ProgressBar::hidden()).await?
            }
        };
        let shown = BulkShown::of(&bulk);
        context.out.one("bulk", &shown, &shown.id.to_string(), &shown.fields())?;
        Ok(Exit::Done)
    }
}
