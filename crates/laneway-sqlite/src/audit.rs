//! The record of what operators did. Written in the transaction that did it.

use rusqlite::{Connection, params};
use serde_json::Value;

use laneway_core::{Actor, AuditEntry, AuditPage, Json, TaskId};

use crate::row::{self, Sql};
use crate::writer::Step;

const RECORD: &str = "
insert into audit (at, who, reason, action, subject, tasks, before, after)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const LIST: &str = "
select id,
       at,
       who,
       reason,
       action,
       subject,
       tasks,
       before,
       after
from audit
where id < ?1
order by id desc
limit ?2";

/// One action, to be recorded.
pub(crate) struct Record<'a> {
    pub(crate) action: &'a str,
    pub(crate) subject: String,
    pub(crate) tasks: &'a [i64],
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// Records that `actor` did something.
pub(crate) fn record(step: &Step<'_>, actor: &Actor, record: Record<'_>) -> rusqlite::Result<()> {
    let Record { action, subject, tasks, before, after } = record;
    let (before, after) = (before.map(|value| value.to_string()), after.map(|value| value.to_string()));
    let tasks = row::pack_ids(tasks);
    let row = params![step.now, actor.who.as_str(), actor.reason, action, subject, tasks, before, after];
    step.db.run(RECORD, row).map(|_| ())
}

/// One page, newest first.
pub(crate) fn list(db: &Connection, page: AuditPage) -> rusqlite::Result<Vec<AuditEntry>> {
    db.all(LIST, params![page.before.unwrap_or(i64::MAX), page.limit], |row| {
        Ok(AuditEntry {
            id: row.get(0)?,
            at: row::timestamp(row.get(1)?)?,
            actor: row::actor(row.get(2)?, row.get(3)?)?,
            action: row.get(4)?,
            subject: row.get(5)?,
            tasks: row::unpack_ids(row.get_ref(6)?.as_blob()?).into_iter().map(TaskId).collect(),
            before: row.get::<_, Option<String>>(7)?.map(Json::trusted),
            after: row.get::<_, Option<String>>(8)?.map(Json::trusted),
        })
    })
}
