//! What operators do: each verb is one call of a function in `act.sql`, `pause.sql`, `bulk.sql` or `audit.sql`.

use std::time::Duration;

use jiff::Timestamp;
use laneway_core::{
    Acted, Action, Actor, AuditEntry, AuditPage, Bulk, BulkId, BulkPage, BulkState, BulkStep, Cursor, Edit,
    Filter, Json, LaneKey, LaneLimit, LaneSettings, NewBulk, OnFailure, Pausable, Pause, QueueName, Skip,
    StoreError, TaskId, check_act, check_pause,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::advance::{Text, stored_name};
use crate::look;
use crate::store::{Parameter, PostgresStore};

/// An action as the functions take it: its name, its delay, its priority.
struct WireAction {
    name: &'static str,
    delay_ms: Option<i64>,
    priority: Option<i16>,
}

impl From<Action> for WireAction {
    fn from(action: Action) -> Self {
        let (delay_ms, priority) = match action {
            Action::Snooze(delay) => (Some(delay.as_millis() as i64), None),
            Action::SetPriority(priority) => (None, Some(priority as i16)),
            _ => (None, None),
        };
        Self { name: action.name(), delay_ms, priority }
    }
}

impl PostgresStore {
    pub(crate) async fn act_on(
        &self,
        actor: &Actor,
        action: Action,
        tasks: &[TaskId],
    ) -> Result<Vec<Acted>, StoreError> {
        check_act(action, tasks)?;
        let wire = WireAction::from(action);
        let tasks: Vec<_> = tasks.iter().map(|task| task.0).collect();
        let call = "act(p_who => $1, p_reason => $2, p_action => $3, p_tasks => $4, p_delay_ms => $5, p_priority => $6)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&wire.name, Type::TEXT),
            (&tasks, Type::INT8_ARRAY),
            (&wire.delay_ms, Type::INT8),
            (&wire.priority, Type::INT2),
        ];
        let rows = self.call("act on tasks", call, parameters).await?;
        let results: Option<Vec<String>> = rows[0].get(0);
        Ok(results.unwrap_or_default().iter().map(|result| acted(result)).collect())
    }

    pub(crate) async fn change_lane(
        &self,
        actor: &Actor,
        (queue, lane): (&QueueName, &LaneKey),
        settings: LaneSettings,
    ) -> Result<(), StoreError> {
        settings.check()?;
        let call = "set_lane_by(p_who => $1, p_reason => $2, p_queue => $3, p_key => $4, p_limit => $5, \
                    p_interval_ms => $6, p_halts => $7)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&queue.as_str(), Type::TEXT),
            (&lane.as_str(), Type::TEXT),
            (&settings.limit.map(LaneLimit::stored), Type::INT4),
            (&settings.interval.map(|interval| interval.as_millis() as i64), Type::INT8),
            (&settings.on_failure.map(|what| what == OnFailure::Halt), Type::BOOL),
        ];
        self.call("set a lane", call, parameters).await.map(drop)
    }

    pub(crate) async fn end_halt(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError> {
        let call = "resume_lane(p_who => $1, p_reason => $2, p_queue => $3, p_key => $4)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&queue.as_str(), Type::TEXT),
            (&lane.as_str(), Type::TEXT),
        ];
        Ok(self.call("resume a lane", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn begin_pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError> {
        check_pause(expires)?;
        let (what, queue, name) = what.stored();
        let call = "pause(p_who => $1, p_reason => $2, p_what => $3, p_queue => $4, p_name => $5, p_expires_ms => $6)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&what, Type::TEXT),
            (&queue, Type::TEXT),
            (&name, Type::TEXT),
            (&expires.map(|expires| expires.as_millis() as i64), Type::INT8),
        ];
        Ok(self.call("pause", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn end_pause(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError> {
        let (what, queue, name) = what.stored();
        let call = "resume(p_who => $1, p_reason => $2, p_what => $3, p_queue => $4, p_name => $5)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&what, Type::TEXT),
            (&queue, Type::TEXT),
            (&name, Type::TEXT),
        ];
        Ok(self.call("resume", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn list_pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let rows = self.call("list pauses", "list_pauses()", &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(Pause {
                    what: Pausable::from_stored(row.get("what"), row.get("queue"), row.get("name"))?,
                    actor: actor(row),
                    paused_at: row.get("paused_at"),
                    expires_at: row.get("expires_at"),
                })
            })
            .collect()
    }

    pub(crate) async fn begin_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError> {
        bulk.check()?;
        let wire = WireAction::from(bulk.action);
        let call = "start_bulk(p_who => $1, p_reason => $2, p_action => $3, p_delay_ms => $4, p_priority => $5, \
                    p_filter => $6, p_dry_run => $7, p_pace => $8)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&wire.name, Type::TEXT),
            (&wire.delay_ms, Type::INT8),
            (&wire.priority, Type::INT2),
            (&bulk.filter.to_string(), Type::TEXT),
            (&bulk.dry_run, Type::BOOL),
            (&bulk.pace.map(|pace| pace as i32), Type::INT4),
        ];
        let id = BulkId(self.call("start a bulk", call, parameters).await?[0].get(0));
        let made = self.view_bulk(id).await?;
        made.ok_or_else(|| StoreError::Unexpected { doing: "start a bulk", source: "it is gone".into() })
    }

    pub(crate) async fn view_bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        let rows = self.call("look at a bulk", "bulk_view(p_bulk => $1)", &[(&id.0, Type::INT8)]).await?;
        rows.first().map(bulk).transpose()
    }

    pub(crate) async fn list_bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError> {
        page.check()?;
        let before = page.before.map(|id| id.0);
        let parameters: &[Parameter<'_>] = &[
            (&before, Type::INT8),
            (&page.state.map(BulkState::stored), Type::TEXT),
            (&(page.limit as i32), Type::INT4),
        ];
        let call = "list_bulks(p_before => $1, p_state => $2, p_limit => $3)";
        let rows = self.call("list bulks", call, parameters).await?;
        rows.iter().map(bulk).collect()
    }

    pub(crate) async fn take_bulk_step(&self, step: BulkStep) -> Result<bool, StoreError> {
        let tasks: Vec<_> = step.tasks.iter().map(|task| task.0).collect();
        let call = "step_bulk(p_bulk => $1, p_number => $2, p_tasks => $3, p_place => $4, p_micros => $5, p_id => $6, \
                    p_is_last => $7)";
        let parameters: &[Parameter<'_>] = &[
            (&step.bulk.0, Type::INT8),
            (&(step.number as i64), Type::INT8),
            (&tasks, Type::INT8_ARRAY),
            (&(step.place as i32), Type::INT4),
            (&step.after.map(|cursor| cursor.micros), Type::INT8),
            (&step.after.map(|cursor| cursor.id.0), Type::INT8),
            (&step.is_last, Type::BOOL),
        ];
        Ok(self.call("take a step of a bulk", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn change_bulk_state(
        &self,
        actor: &Actor,
        id: BulkId,
        state: BulkState,
    ) -> Result<bool, StoreError> {
        let call = "set_bulk_state(p_who => $1, p_reason => $2, p_bulk => $3, p_state => $4)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&id.0, Type::INT8),
            (&state.stored(), Type::TEXT),
        ];
        Ok(self.call("change a bulk", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn order_drain(&self, actor: &Actor, session: uuid::Uuid) -> Result<bool, StoreError> {
        let call = "drain_worker(p_who => $1, p_reason => $2, p_session => $3)";
        let parameters: &[Parameter<'_>] =
            &[(&actor.who.as_str(), Type::TEXT), (&actor.reason, Type::TEXT), (&session, Type::UUID)];
        Ok(self.call("drain a worker", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn order_stop(&self, actor: &Actor, session: uuid::Uuid) -> Result<bool, StoreError> {
        let call = "stop_worker(p_who => $1, p_reason => $2, p_session => $3)";
        let parameters: &[Parameter<'_>] =
            &[(&actor.who.as_str(), Type::TEXT), (&actor.reason, Type::TEXT), (&session, Type::UUID)];
        Ok(self.call("stop a worker", call, parameters).await?[0].get(0))
    }

    pub(crate) async fn edit_task(
        &self,
        actor: &Actor,
        task: TaskId,
        edit: &Edit,
    ) -> Result<Acted, StoreError> {
        edit.check(&self.limits)?;
        let payload = edit.payload.as_ref().map(Json::as_str);
        let call =
            "edit_task(p_who => $1, p_reason => $2, p_task => $3, p_payload => $4::json, p_priority => $5)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&task.0, Type::INT8),
            (&payload, Type::TEXT),
            (&edit.priority.map(|priority| priority as i16), Type::INT2),
        ];
        Ok(acted(self.call("edit a task", call, parameters).await?[0].get(0)))
    }

    pub(crate) async fn list_audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        page.check()?;
        let call = "list_audit(p_before => $1, p_limit => $2)";
        let parameters: &[Parameter<'_>] = &[(&page.before, Type::INT8), (&(page.limit as i32), Type::INT4)];
        Ok(self.call("read the audit", call, parameters).await?.iter().map(entry).collect())
    }
}

fn acted(result: &str) -> Acted {
    let skip = match result {
        "done" => return Acted::Done,
        "requested" => return Acted::Requested,
        "not_found" => Skip::NotFound,
        "open" => Skip::Open,
        "running" => Skip::Running,
        "waiting" => Skip::Waiting,
        "no_failed_children" => Skip::NoFailedChildren,
        "same" => Skip::Unchanged,
        "plain" => Skip::Plain,
        other => match (other.strip_prefix("ended_"), other.strip_prefix("key_").map(str::parse)) {
            (Some(state), _) => Skip::Ended(look::state(state)),
            (_, Some(Ok(holder))) => Skip::KeyHeld(TaskId(holder)),
            _ => Skip::Busy,
        },
    };
    Acted::Skipped(skip)
}

fn actor(row: &Row) -> Actor {
    Actor { who: stored_name(row.get("who")), reason: row.get("reason") }
}

fn bulk(row: &Row) -> Result<Bulk, StoreError> {
    let delay = || Duration::from_millis(row.get::<_, Option<i64>>("delay_ms").unwrap_or(0) as u64);
    let action = match row.get::<_, &str>("action") {
        "cancel" => Action::Cancel,
        "retry" => Action::Retry,
        "retry_children" => Action::RetryChildren,
        "delete" => Action::Delete,
        "snooze" => Action::Snooze(delay()),
        _ => Action::SetPriority(row.get::<_, Option<i16>>("priority").unwrap_or(0).into()),
    };
    let at = row.get::<_, Option<i64>>("at_micros").zip(row.get::<_, Option<i64>>("at_id"));
    let count = |column| row.get::<_, i64>(column) as u64;
    Ok(Bulk {
        id: BulkId(row.get("id")),
        actor: actor(row),
        action,
        filter: row.get::<_, &str>("filter").parse::<Filter>()?,
        dry_run: row.get("dry_run"),
        pace: row.get::<_, Option<i32>>("pace").map(|pace| pace as u32),
        state: BulkState::from_stored(row.get("state")),
        started_at: row.get::<_, Timestamp>("started_at"),
        steps: count("steps"),
        matched: count("matched"),
        done: count("done"),
        place: row.get::<_, i32>("place") as u32,
        after: at.map(|(micros, id)| Cursor { micros, id: TaskId(id) }),
    })
}

fn entry(row: &Row) -> AuditEntry {
    let json = |column| row.get::<_, Option<Text<'_>>>(column).map(|text| Json::trusted(text.0));
    AuditEntry {
        id: row.get("id"),
        at: row.get("at"),
        actor: actor(row),
        action: row.get("action"),
        subject: row.get("subject"),
        tasks: row.get::<_, Vec<i64>>("tasks").into_iter().map(TaskId).collect(),
        before: json("before"),
        after: json("after"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_core::State;

    #[test]
    fn every_result_is_read() {
        for (text, expected) in [
            ("done", Acted::Done),
            ("ended_failed", Acted::Skipped(Skip::Ended(State::Failed))),
            ("key_42", Acted::Skipped(Skip::KeyHeld(TaskId(42)))),
            ("busy", Acted::Skipped(Skip::Busy)),
        ] {
            assert_eq!(acted(text), expected);
        }
    }
}
