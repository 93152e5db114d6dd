//! One call per verb. A route that knows nothing of what it is asked about answers 404, which is `None` or `false` here.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use jiff::Timestamp;
use laneway_core::{
    Acted, Action, Actor, Advance, Advanced, AuditEntry, AuditPage, Bulk, BulkId, BulkPage, BulkState,
    BulkStep, Cancel, Changes, Children, Counts, Edit, Enqueued, FailedAttempt, Fence, Fired, Hints,
    InvalidInput, KindCounts, Kinds, LaneKey, LaneListing, LanePage, LaneSettings, LaneView, Limits, Listing,
    Maintained, NewBulk, NewTask, NewToken, Page, Pausable, Pause, Point, Position, QueueName, QueueSettings,
    QueueView, Ran, Registration, Renewal, Renewed, Report, Schedule, ScheduleName, ScheduleView, Series,
    SessionId, Skip, Sleep, Store, StoreError, StoreHealth, Swept, TaskId, TaskView, Token, TokenId, Totals,
    Tree, Unique, UniqueKey, Watch, WatcherId, Why, WorkerView,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RemoteStore;
use super::link::Ask;
use super::refusal::{Refusal, accepted, not_ours};
use crate::api::Changed;
use crate::api::act::{Done, TaskChange};
use crate::api::audit::Audit;
use crate::api::health::Health;
use crate::api::tasks::{Failures, cursor_text, place_text, read_cursor};
use crate::api::tokens::{self, MadeToken, TokenList};
use crate::wire;
use crate::wire::bulk::{BulkRequest, Bulks, Results};
use crate::wire::lane::{Halted, Lane, LaneChange, LaneResume, Lanes};
use crate::wire::queue::{Counted, PauseRequest, Pauses, QueueChange, Queues};
use crate::wire::schedule::{RanTask, ScheduleRequest, Schedules, ShownSchedule};
use crate::wire::worker::Workers;
use crate::wire::{EnqueuedMany, Task, TaskPage, TaskRequest};

/// How long a look at a bulk that runs waits before it looks again.
const BULK_LOOK_AFTER: Duration = Duration::from_millis(50);

/// A name as a part of a path.
fn segment(name: &str) -> String {
    name.bytes().fold(String::new(), |mut path, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => path.push(byte.into()),
            other => path.push_str(&format!("%{other:02X}")),
        }
        path
    })
}

fn queue_path(queue: &QueueName, rest: &str) -> String {
    format!("/api/v1/queues/{}{rest}", segment(queue.as_str()))
}

fn lane_path(queue: &QueueName, lane: &LaneKey, rest: &str) -> String {
    queue_path(queue, &format!("/lanes/{}{rest}", segment(lane.as_str())))
}

/// The route of a schedule. `preview` is a route of its own, unless one of its letters is written otherwise.
fn schedule_path(schedule: &ScheduleName, rest: &str) -> String {
    let name = match schedule.as_str() {
        "preview" => "%70review".to_owned(),
        name => segment(name),
    };
    format!("/api/v1/schedules/{name}{rest}")
}

fn task_path(task: TaskId, rest: &str) -> String {
    format!("/api/v1/tasks/{task}{rest}")
}

/// A path with parameters; those that have no value are left out.
fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish();
    format!("{path}?{query}")
}

/// What workers do, and what servers tell only as a stream or a chart.
fn only_at_the_store(verb: &str) -> StoreError {
    let message = format!("a server cannot be asked to {verb}; give the address of the store itself");
    StoreError::Server { code: "unsupported", message }
}

/// What the server said, in our words.
fn words<T>(read: Result<T, InvalidInput>) -> Result<T, StoreError> {
    read.map_err(|error| StoreError::Unexpected {
        doing: "read what a server answered",
        source: error.into(),
    })
}

fn all_words<T, U>(read: Vec<T>) -> Result<Vec<U>, StoreError>
where
    U: TryFrom<T, Error = InvalidInput>,
{
    words(read.into_iter().map(U::try_from).collect())
}

/// `None` when the server knows no such thing.
fn if_found<T>(read: Result<T, Refusal>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(refusal) if refusal.is("not_found") => Ok(None),
        Err(refusal) => Err(refusal.into()),
    }
}

/// `false` when nothing changed, or the server knows no such thing.
fn if_changed(read: Result<Changed, Refusal>) -> Result<bool, StoreError> {
    Ok(if_found(read)?.is_some_and(|answer| answer.changed))
}

impl RemoteStore {
    async fn ask<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Refusal> {
        let answer = accepted(&self.link, self.link.ask(ask).await?)?;
        serde_json::from_slice(&answer.body).map_err(|error| {
            tracing::debug!(%error, "the answer of a server is not understood");
            not_ours(&self.link, &answer).into()
        })
    }

    async fn get_json<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T, Refusal> {
        self.ask(Ask::new(Method::GET, path)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        actor: &Actor,
        path: String,
        body: &impl Serialize,
    ) -> Result<T, Refusal> {
        let body = serde_json::to_vec(body).expect("what is sent can be encoded");
        self.ask(Ask::new(method, path).by(actor).body("application/json", body)).await
    }

    async fn post<T: DeserializeOwned>(&self, actor: &Actor, path: String) -> Result<T, Refusal> {
        self.ask(Ask::new(Method::POST, path).by(actor)).await
    }
}

#[async_trait]
impl Store for RemoteStore {
    /// What the server's store is called, once [`health`](Store::health) has told; `server` until then.
    fn name(&self) -> &'static str {
        self.name.get().copied().unwrap_or("server")
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// A task without a key gets an idempotency key, so that the call can be made again when its answer is lost.
    async fn enqueue(&self, mut task: NewTask) -> Result<Enqueued, StoreError> {
        let has_key = task.unique.is_some();
        task.unique.get_or_insert_with(|| {
            let key = format!("remote:{}", uuid::Uuid::new_v4().simple());
            Unique::idempotent(UniqueKey::new(key).expect("letters and digits"))
        });
        let body = serde_json::to_vec(&TaskRequest::from(&task)).expect("a task can be encoded");
        let mut ask = Ask::new(Method::POST, "/api/v1/tasks").body("application/json", body);
        ask.repeats = task.unique.as_ref().is_some_and(Unique::is_store_wide);
        let made: wire::Enqueued = self.ask(ask).await?;
        // Who holds a key that is new is the task of this very call, whose first answer was lost.
        Ok(if has_key { made.into() } else { Enqueued::made(TaskId(made.id)) })
    }

    async fn enqueue_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, StoreError> {
        let mut lines = vec![];
        for task in &tasks {
            serde_json::to_writer(&mut lines, &TaskRequest::from(task)).expect("a task can be encoded");
            lines.push(b'\n');
        }
        let ask = Ask::new(Method::POST, "/api/v1/tasks?whole=true").body("application/x-ndjson", lines);
        let made: EnqueuedMany = self.ask(Ask { is_long: true, ..ask }).await?;
        Ok(made.tasks.into_iter().map(Enqueued::from).collect())
    }

    async fn advance(&self, _: Advance) -> Result<Advanced, StoreError> {
        Err(only_at_the_store("run tasks"))
    }

    async fn register(&self, _: Registration) -> Result<(), StoreError> {
        Err(only_at_the_store("register a worker"))
    }

    async fn renew(&self, _: Renewal) -> Result<Renewed, StoreError> {
        Err(only_at_the_store("renew a worker"))
    }

    async fn report_progress(&self, _: SessionId, _: Vec<Report>) -> Result<(), StoreError> {
        Err(only_at_the_store("keep the progress of attempts"))
    }

    async fn deregister(&self, _: SessionId) -> Result<(), StoreError> {
        Err(only_at_the_store("end a worker's session"))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        Err(only_at_the_store("sweep up after workers"))
    }

    async fn maintain(&self) -> Result<Maintained, StoreError> {
        Err(only_at_the_store("clean up"))
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let Health { store, health } = self.get_json("/api/v1/health/store").await?;
        if let Some(name) = ["postgres", "sqlite"].into_iter().find(|name| *name == store) {
            self.name.get_or_init(|| name);
        }
        Ok(health)
    }

    fn control(&self) -> Option<Arc<dyn Store>> {
        None
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    fn is_listening(&self) -> bool {
        false
    }

    async fn fall_asleep(&self, _: Sleep) -> Result<Fence, StoreError> {
        Err(only_at_the_store("wake a worker"))
    }

    async fn fence_passed(&self, _: Fence) -> Result<bool, StoreError> {
        Err(only_at_the_store("wake a worker"))
    }

    async fn is_claimable(&self, _: &[QueueName], _: &Kinds) -> Result<bool, StoreError> {
        Err(only_at_the_store("look for claimable tasks"))
    }

    async fn wake_up(&self, _: SessionId) -> Result<(), StoreError> {
        Err(only_at_the_store("wake a worker"))
    }

    async fn get(&self, task: TaskId) -> Result<Option<TaskView>, StoreError> {
        let found = if_found(self.get_json::<Task>(task_path(task, "")).await)?;
        words(found.map(TaskView::try_from).transpose())
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        let path = with_query(
            "/api/v1/tasks",
            &[
                ("q", Some(listing.filter.to_string())),
                ("place", Some(place_text(listing.place))),
                ("cursor", listing.after.map(|after| cursor_text(listing.place, Some(after)))),
                ("limit", Some(listing.limit.to_string())),
            ],
        );
        let page: TaskPage = self.get_json(path).await?;
        let next = page.next.as_deref().and_then(|next| read_cursor(next).ok());
        let tasks = page.tasks.into_iter().filter_map(wire::fields::Shown::whole).collect();
        Ok(Page { tasks: all_words(tasks)?, next: next.and_then(|(_, cursor)| cursor), looked: page.looked })
    }

    async fn counts(&self) -> Result<Vec<Counts>, StoreError> {
        let counted: Counted = self.get_json("/api/v1/counts").await?;
        all_words(counted.counts)
    }

    async fn counts_by_kind(&self, queue: &QueueName) -> Result<Vec<KindCounts>, StoreError> {
        let counted: Counted = self.get_json(queue_path(queue, "/kinds")).await?;
        all_words(counted.counts)
    }

    async fn queues(&self) -> Result<Vec<QueueView>, StoreError> {
        let Queues { queues } = self.get_json("/api/v1/queues").await?;
        all_words(queues)
    }

    async fn children(&self, _: Children) -> Result<Vec<TaskView>, StoreError> {
        Err(only_at_the_store("list the children of a task; it draws their tree"))
    }

    async fn follow_ups(&self, _: TaskId) -> Result<Vec<TaskView>, StoreError> {
        Err(only_at_the_store("list what follows a task; it draws their tree"))
    }

    async fn tree(&self, task: TaskId, max_rows: u32) -> Result<Option<Tree>, StoreError> {
        let path = with_query(&task_path(task, "/tree"), &[("max_rows", Some(max_rows.to_string()))]);
        let found = if_found(self.get_json::<wire::tree::Tree>(path).await)?;
        words(found.map(Tree::try_from).transpose())
    }

    async fn why(&self, task: TaskId) -> Result<Option<Why>, StoreError> {
        if_found(self.get_json(task_path(task, "/why")).await)
    }

    async fn watch(&self, _: Duration) -> Result<Watch, StoreError> {
        Err(only_at_the_store("follow its change feed; it has a stream"))
    }

    async fn changes(&self, _: WatcherId, _: Position, _: u32) -> Result<Changes, StoreError> {
        Err(only_at_the_store("follow its change feed; it has a stream"))
    }

    async fn unwatch(&self, _: WatcherId) -> Result<(), StoreError> {
        Err(only_at_the_store("follow its change feed; it has a stream"))
    }

    async fn set_queue_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        settings: QueueSettings,
    ) -> Result<(), StoreError> {
        let (path, change) = (queue_path(queue, ""), QueueChange::from(settings));
        self.send::<wire::queue::Queue>(Method::PATCH, actor, path, &change).await?;
        Ok(())
    }

    async fn series(&self, _: Series) -> Result<Vec<Point>, StoreError> {
        Err(only_at_the_store("add up statistics"))
    }

    async fn totals(&self, _: Timestamp, _: Timestamp) -> Result<Vec<Totals>, StoreError> {
        Err(only_at_the_store("add up statistics"))
    }

    async fn failures(&self, task: TaskId) -> Result<Vec<FailedAttempt>, StoreError> {
        let found = if_found(self.get_json::<Failures>(task_path(task, "/attempts")).await)?;
        Ok(found.map(|found| found.failures).unwrap_or_default())
    }

    async fn cancel(&self, task: TaskId) -> Result<Cancel, StoreError> {
        let acted = self.act(&Actor::program(), Action::Cancel, &[task]).await?;
        match acted.first() {
            Some(Acted::Requested) => Ok(Cancel::Requested),
            Some(Acted::Skipped(Skip::NotFound)) | None => Ok(Cancel::NotFound),
            Some(Acted::Skipped(Skip::Ended(state))) => Ok(Cancel::Ended(*state)),
            Some(Acted::Skipped(_)) => Err(StoreError::Busy { what: format!("task {task}") }),
            Some(_) => Ok(Cancel::Cancelled),
        }
    }

    async fn set_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
        settings: LaneSettings,
    ) -> Result<(), StoreError> {
        let (path, change) = (lane_path(queue, lane, ""), LaneChange::from(settings));
        self.send::<Lane>(Method::PATCH, actor, path, &change).await?;
        Ok(())
    }

    async fn resume_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError> {
        let only = LaneResume { only: Some(Halted::Failure) };
        if_changed(self.send(Method::POST, actor, lane_path(queue, lane, "/resume"), &only).await)
    }

    async fn lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<Option<LaneView>, StoreError> {
        let found = if_found(self.get_json::<Lane>(lane_path(queue, lane, "")).await)?;
        words(found.map(LaneView::try_from).transpose())
    }

    async fn lanes(&self, listing: LaneListing) -> Result<LanePage, StoreError> {
        let path = with_query(
            &queue_path(&listing.queue, "/lanes"),
            &[
                ("order", Some(listing.order.as_str().to_owned())),
                ("cursor", listing.after.map(|after| after.to_string())),
                ("limit", Some(listing.limit.to_string())),
            ],
        );
        let page: Lanes = self.get_json(path).await?;
        let next = words(page.next.as_deref().map(str::parse).transpose())?;
        Ok(LanePage { lanes: all_words(page.lanes)?, next, partial: page.partial })
    }

    async fn pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let path = match what {
            Pausable::Queue(queue) => queue_path(queue, "/pause"),
            Pausable::Kind(kind) => format!("/api/v1/kinds/{}/pause", segment(kind.as_str())),
            Pausable::Lane(queue, lane) => lane_path(queue, lane, "/halt"),
        };
        if_changed(self.send(Method::POST, actor, path, &PauseRequest::of(expires)).await)
    }

    async fn resume(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError> {
        let path = match what {
            Pausable::Queue(queue) => queue_path(queue, "/resume"),
            Pausable::Kind(kind) => format!("/api/v1/kinds/{}/resume", segment(kind.as_str())),
            Pausable::Lane(queue, lane) => {
                let only = LaneResume { only: Some(Halted::Pause) };
                let path = lane_path(queue, lane, "/resume");
                return if_changed(self.send(Method::POST, actor, path, &only).await);
            }
        };
        if_changed(self.post(actor, path).await)
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let Pauses { pauses } = self.get_json("/api/v1/pauses").await?;
        all_words(pauses)
    }

    async fn drain(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        if_changed(self.post(actor, format!("/api/v1/workers/{session}/drain")).await)
    }

    async fn stop(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        if_changed(self.post(actor, format!("/api/v1/workers/{session}/stop")).await)
    }

    async fn edit(&self, actor: &Actor, task: TaskId, edit: Edit) -> Result<Acted, StoreError> {
        let change = TaskChange::from(edit);
        let refusal = match self.send::<Done>(Method::PATCH, actor, task_path(task, ""), &change).await {
            Ok(done) if done.result == "unchanged" => return Ok(Acted::Skipped(Skip::Unchanged)),
            Ok(_) => return Ok(Acted::Done),
            Err(refusal) => refusal,
        };
        let skipped = refusal
            .problem
            .as_ref()
            .and_then(|problem| Skip::of_code(&problem.code, problem.state, problem.task.map(TaskId)));
        skipped.map(Acted::Skipped).ok_or_else(|| refusal.into())
    }

    async fn act(&self, actor: &Actor, action: Action, tasks: &[TaskId]) -> Result<Vec<Acted>, StoreError> {
        // The reason goes with the body, which takes it whole.
        let request = BulkRequest::on_tasks(action, tasks, actor.reason.clone());
        let actor = Actor::new(actor.who.clone());
        let Results { results } =
            self.send(Method::POST, &actor, "/api/v1/bulk".to_owned(), &request).await?;
        let acted: Option<Vec<_>> = results.iter().map(wire::bulk::ActedOn::acted).collect();
        let unknown = || only_at_the_store("do this; it answered what this program does not know");
        acted.filter(|acted| acted.len() == tasks.len()).ok_or_else(unknown)
    }

    async fn start_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError> {
        let request = BulkRequest::on_matching(&bulk, actor.reason.clone());
        let actor = Actor::new(actor.who.clone());
        let started: wire::bulk::Bulk =
            self.send(Method::POST, &actor, "/api/v1/bulk".to_owned(), &request).await?;
        words(started.try_into())
    }

    async fn bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        let found = if_found(self.get_json::<wire::bulk::Bulk>(format!("/api/v1/bulk/{}", id.0)).await)?;
        words(found.map(Bulk::try_from).transpose())
    }

    async fn bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError> {
        let path = with_query(
            "/api/v1/bulk",
            &[
                ("before", page.before.map(|before| before.0.to_string())),
                ("state", page.state.map(|state| state.stored().to_owned())),
                ("limit", Some(page.limit.to_string())),
            ],
        );
        let Bulks { bulks } = self.get_json(path).await?;
        all_words(bulks)
    }

    /// The server takes the steps. This looks how far it is, and a moment later again if it has not come to the end.
    async fn bulk_step(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        match self.bulk(id).await? {
            Some(bulk) if bulk.state == BulkState::Running => {
                tokio::time::sleep(BULK_LOOK_AFTER).await;
                self.bulk(id).await
            }
            ended => Ok(ended),
        }
    }

    async fn record_bulk_step(&self, _: BulkStep) -> Result<bool, StoreError> {
        Err(only_at_the_store("take a step of a bulk; it does so by itself"))
    }

    async fn set_bulk_state(&self, actor: &Actor, id: BulkId, state: BulkState) -> Result<bool, StoreError> {
        let verb = match state {
            BulkState::Running => "resume",
            BulkState::Aborted => "abort",
            BulkState::Finished => return Err(only_at_the_store("end a bulk before it is done")),
        };
        match self.post::<Changed>(actor, format!("/api/v1/bulk/{}/{verb}", id.0)).await {
            Err(refusal) if refusal.is("bulk_ended") => Ok(false),
            answered => if_changed(answered),
        }
    }

    async fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        let parameters = [
            ("before", page.before.map(|before| before.to_string())),
            ("limit", Some(page.limit.to_string())),
        ];
        let Audit { entries } = self.get_json(with_query("/api/v1/audit", &parameters)).await?;
        Ok(entries)
    }

    /// Sends the hash of the secret, not the secret.
    async fn create_token(&self, actor: &Actor, token: NewToken) -> Result<Token, StoreError> {
        let request = tokens::NewToken::from(&token);
        let made: MadeToken = self.send(Method::POST, actor, "/api/v1/tokens".to_owned(), &request).await?;
        Ok(Token { hash: token.hash, ..made.token })
    }

    async fn revoke_token(&self, actor: &Actor, token: TokenId) -> Result<bool, StoreError> {
        let ask = Ask::new(Method::DELETE, format!("/api/v1/tokens/{token}")).by(actor);
        if_changed(self.ask(ask).await)
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let TokenList { tokens } = self.get_json("/api/v1/tokens").await?;
        Ok(tokens)
    }

    async fn token(&self, token: TokenId) -> Result<Option<Token>, StoreError> {
        Ok(self.tokens().await?.into_iter().find(|known| known.id == token))
    }

    async fn fire_due(&self) -> Result<Fired, StoreError> {
        Err(only_at_the_store("fire schedules"))
    }

    async fn put_schedule_by(&self, actor: &Actor, schedule: Schedule) -> Result<ScheduleView, StoreError> {
        let path = schedule_path(&schedule.name, "");
        let put: ShownSchedule =
            self.send(Method::PUT, actor, path, &ScheduleRequest::from(&schedule)).await?;
        words(put.try_into())
    }

    async fn remove_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        if_changed(self.ask(Ask::new(Method::DELETE, schedule_path(schedule, "")).by(actor)).await)
    }

    async fn pause_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        if_changed(self.post(actor, schedule_path(schedule, "/pause")).await)
    }

    async fn resume_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        if_changed(self.post(actor, schedule_path(schedule, "/resume")).await)
    }

    async fn run_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<Ran, StoreError> {
        let refusal = match self.post::<RanTask>(actor, schedule_path(schedule, "/run")).await {
            Ok(ran) => return Ok(Ran::Enqueued(TaskId(ran.task))),
            Err(refusal) => refusal,
        };
        let task = refusal.problem.as_ref().and_then(|problem| problem.task);
        match task {
            Some(task) if refusal.is("schedule_open") => Ok(Ran::Open(TaskId(task))),
            _ if refusal.is("not_found") => Ok(Ran::NotFound),
            _ => Err(refusal.into()),
        }
    }

    async fn schedule(&self, schedule: &ScheduleName) -> Result<Option<ScheduleView>, StoreError> {
        let found = if_found(self.get_json::<ShownSchedule>(schedule_path(schedule, "")).await)?;
        words(found.map(ScheduleView::try_from).transpose())
    }

    async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: u32,
    ) -> Result<Vec<ScheduleView>, StoreError> {
        let parameters = [("after", after.map(ToString::to_string)), ("limit", Some(limit.to_string()))];
        let Schedules { schedules } = self.get_json(with_query("/api/v1/schedules", &parameters)).await?;
        all_words(schedules)
    }

    async fn workers(&self) -> Result<Vec<WorkerView>, StoreError> {
        let Workers { workers } = self.get_json("/api/v1/workers").await?;
        all_words(workers)
    }

    async fn verify(&self) -> Result<Vec<String>, StoreError> {
        Err(only_at_the_store("check its invariants"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_of_a_path_whatever_they_contain() {
        let queue = QueueName::new("a/b ?#%").unwrap();
        assert_eq!(queue_path(&queue, "/pause"), "/api/v1/queues/a%2Fb%20%3F%23%25/pause");
        assert_eq!(
            schedule_path(&ScheduleName::new("preview").unwrap(), "/run"),
            "/api/v1/schedules/%70review/run"
        );
    }
}
