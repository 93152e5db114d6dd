//! [`SqliteStore`]: each verb checks its input and hands one command to the writer or one look to a reader.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tempfile::TempDir;

use laneway_core::{
    Acted, Action, Actor, Advance, Advanced, AuditEntry, AuditPage, Bulk, BulkId, BulkPage, BulkState,
    BulkStep, Cancel, Changes, Children, Counts, Edit, Enqueued, FailedAttempt, Fence, Fired, HintSender,
    Hints, KindCounts, Kinds, LaneKey, LaneListing, LanePage, LaneSettings, LaneView, Limits, Listing,
    Maintained, Meter, NewBulk, NewTask, NewToken, Page, Pausable, Pause, Point, Position, QueueName,
    QueueSettings, QueueView, Ran, Registration, Renewal, Renewed, Report, Schedule, ScheduleName,
    ScheduleView, Series, SessionId, Sleep, Store, StoreError, StoreHealth, Swept, TaskId, TaskView, Token,
    TokenId, Totals, Watch, WatcherId, Why, WorkerView, check_act, check_bulk, check_pause, validate,
};

use crate::clock::Clock;
use crate::error::store_error;
use crate::options::SqliteOptions;
use crate::reader::Readers;
use crate::writer::{Step, Writer};
use crate::{
    act, advance, audit, bulk, cancel, changes, children, claimable, count, enqueue, file, keep, lane, lanes,
    list, look, maintain, pause, progress, renew, schedule, sweep, token, unique, verify, why,
};

/// A store in one SQLite file.
///
/// Several stores may be open on one file, in one process or in many on one machine. Dropping a store waits until
/// everything that was sent to it is written.
///
/// ```
/// use laneway_core::{Advance, Capacity, Json, Kind, Kinds, NewTask, Outcome, QueueName, Registration, SessionId, Store};
/// use laneway_sqlite::SqliteStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = SqliteStore::temporary().await?;
/// let id = store.enqueue(NewTask::new(Kind::new("mail.receipt")?, Json::parse(r#"{"order": 7}"#)?)).await?.id;
///
/// let session = SessionId::random();
/// let (name, queues) = ("example".to_owned(), vec![QueueName::default()]);
/// let (kinds, capacity) = (Kinds::All, Capacity::default());
/// store.register(Registration { session, name, queues, kinds, capacity }).await?;
/// let advanced = store.advance(Advance::new(session, 1).claim(QueueName::default(), 10)).await?;
/// assert_eq!(advanced.claimed[0].task.id, id);
///
/// let settle = advanced.claimed[0].settle(Outcome::completed());
/// store.advance(Advance::new(session, 2).settle(settle)).await?;
/// assert!(store.get(id).await?.unwrap().state.has_ended());
/// # Ok::<(), laneway_core::StoreError>(())
/// # }).unwrap();
/// ```
pub struct SqliteStore {
    // Dropped in this order: the last connection to close tidies the file up, then its directory may go.
    readers: Readers,
    writer: Writer,
    hints: HintSender,
    clock: Clock,
    limits: Limits,
    meter: Meter,
    shown: String,
    _directory: Option<TempDir>,
}

impl SqliteStore {
    /// Opens the store, makes the file if there is none, and brings its tables up to date.
    ///
    /// # Errors
    /// `foreign_file` when the file is not a store, `cannot_open` and `read_only` when it cannot be used,
    /// `program_too_old` when a newer program has changed its tables, `unavailable` when another process
    /// keeps it locked for a minute.
    pub async fn open(options: SqliteOptions) -> Result<Self, StoreError> {
        Self::open_in(options, None).await
    }

    /// Opens a new store in a directory of its own, which is removed when the store is dropped.
    ///
    /// # Errors
    /// `cannot_open` when no temporary directory can be made.
    pub async fn temporary() -> Result<Self, StoreError> {
        let directory = tempfile::tempdir().map_err(|error| StoreError::CannotOpen {
            path: file::shown(&std::env::temp_dir()),
            problem: error.to_string(),
        })?;
        let path = directory.path().join("laneway.db");
        Self::open_in(SqliteOptions::new(path), Some(directory)).await
    }

    async fn open_in(options: SqliteOptions, directory: Option<TempDir>) -> Result<Self, StoreError> {
        let SqliteOptions { path, limits, clock } = options;
        let shown = file::shown(&path);
        let meter = Meter::default();
        let readers = Readers::new(path.clone(), meter.clone());
        let connection = tokio::task::spawn_blocking(move || file::open_writer(&path))
            .await
            .unwrap_or_else(|error| Err(unexpected("open the file", error)))?;
        let hints = HintSender::default();
        let writer = Writer::start(connection, shown.clone(), clock.clone(), hints.clone(), meter.clone())
            .map_err(|error| unexpected("start the writing thread", error))?;
        Ok(Self { readers, writer, hints, clock, limits, meter, shown, _directory: directory })
    }

    /// Copies the store as it is now into a new file, while it is in use. The copy is a store of its own, in one piece and
    /// without gaps.
    ///
    /// # Errors
    /// `cannot_open` when there is a file already or none can be made there.
    pub async fn snapshot(&self, to: impl Into<PathBuf>) -> Result<(), StoreError> {
        let (from, to) = (self.readers.path(), to.into());
        let copied = tokio::task::spawn_blocking(move || file::copy(&from, &to)).await;
        copied.unwrap_or_else(|error| Err(unexpected("copy the file", error)))
    }
}

fn unexpected(doing: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unexpected { doing, source: error.into() }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("file", &self.shown).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    async fn enqueue(&self, task: NewTask) -> Result<Enqueued, StoreError> {
        let answers = self.enqueue_many(vec![task]).await?;
        Ok(answers[0])
    }

    async fn enqueue_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, StoreError> {
        check_bulk(&tasks, &self.limits)?;
        if tasks.is_empty() {
            return Ok(vec![]);
        }
        let limits = self.limits;
        self.writer.write("enqueue", move |step| enqueue::enqueue(step, &limits, &tasks)).await
    }

    async fn advance(&self, advance: Advance) -> Result<Advanced, StoreError> {
        let limits = self.limits;
        self.writer.write("advance", move |step| advance::advance(step, &limits, advance)).await
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        self.writer.write("register", move |step| renew::register(step, &registration)).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError> {
        self.writer.write("renew", move |step| renew::renew(step, &renewal)).await
    }

    async fn report_progress(&self, session: SessionId, reports: Vec<Report>) -> Result<(), StoreError> {
        self.writer.write("report progress", move |step| progress::report(step, session, &reports)).await
    }

    async fn deregister(&self, session: SessionId) -> Result<(), StoreError> {
        self.wake_up(session).await?;
        self.writer.write("deregister", move |step| renew::deregister(step, session)).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.writer.write("sweep", sweep::sweep).await
    }

    async fn maintain(&self) -> Result<Maintained, StoreError> {
        self.writer.write("remove idle lanes", |step| maintain::remove_idle_lanes(step)).await?;
        self.writer.write("remove keys", |step| unique::remove_expired(step)).await?;
        self.writer.write("remove progress", |step| progress::remove_old(step)).await?;
        let removed = self.writer.write("drop history", |step| keep::drop_history(step)).await?;
        self.writer.write("forget children", |step| maintain::remove_broods(step)).await?;
        self.writer.write("trim changes", |step| changes::trim(step)).await?;
        let checkpoint = self.writer.aside(|db, _| maintain::checkpoint(db)).await?;
        checkpoint.map_err(|error| store_error("shorten the log", &self.shown, &error))?;
        Ok(Maintained { removed })
    }

    fn meter(&self) -> Meter {
        self.meter.clone()
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let path = self.readers.path();
        self.readers.look("look at the store", move |db| look::health(db, &path)).await
    }

    fn control(&self) -> Option<Arc<dyn Store>> {
        None // the writing thread depends on no runtime and no pool
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    fn is_listening(&self) -> bool {
        true
    }

    async fn fall_asleep(&self, sleep: Sleep) -> Result<Fence, StoreError> {
        let now = self.clock.now_micros();
        let announced = self.writer.aside(move |db, sleepers| sleepers.fall_asleep(db, now, sleep)).await?;
        announced.map_err(|error| store_error("announce a sleep", &self.shown, &error))?;
        // Nobody can have missed the announcement: there is one writer, and it has it.
        Ok(Fence(0))
    }

    async fn fence_passed(&self, _fence: Fence) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn is_claimable(&self, queues: &[QueueName], kinds: &Kinds) -> Result<bool, StoreError> {
        let (queues, kinds, now) = (queues.to_vec(), kinds.clone(), self.clock.now_micros());
        self.readers.look("look for work", move |db| claimable::for_worker(db, &queues, &kinds, now)).await
    }

    async fn wake_up(&self, session: SessionId) -> Result<(), StoreError> {
        self.writer.aside(move |_, sleepers| sleepers.wake_up(session)).await
    }

    async fn get(&self, task: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.readers.look("get a task", move |db| look::get(db, task)).await
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        listing.check()?;
        let now = self.clock.now_micros();
        self.readers.look("list tasks", move |db| list::list(db, &listing, now)).await
    }

    async fn counts(&self) -> Result<Vec<Counts>, StoreError> {
        self.readers.look("count tasks", count::counts).await
    }

    async fn counts_by_kind(&self, queue: &QueueName) -> Result<Vec<KindCounts>, StoreError> {
        let queue = queue.clone();
        self.readers.look("count kinds", move |db| count::by_kind(db, &queue)).await
    }

    async fn queues(&self) -> Result<Vec<QueueView>, StoreError> {
        self.readers.look("list queues", count::queues).await
    }

    async fn children(&self, page: Children) -> Result<Vec<TaskView>, StoreError> {
        page.check()?;
        self.readers.look("list children", move |db| children::page(db, page)).await
    }

    async fn follow_ups(&self, task: TaskId) -> Result<Vec<TaskView>, StoreError> {
        self.readers.look("list follow-ups", move |db| children::follow_ups(db, task)).await
    }

    async fn why(&self, task: TaskId) -> Result<Option<Why>, StoreError> {
        let now = self.clock.now_micros();
        self.readers.look("look why", move |db| why::why(db, task, now)).await
    }

    async fn watch(&self, keep: Duration) -> Result<Watch, StoreError> {
        validate::watch_keep(keep)?;
        let watcher = WatcherId(uuid::Uuid::new_v4());
        self.writer.write("watch", move |step| changes::watch(step, watcher, keep)).await
    }

    async fn changes(&self, watcher: WatcherId, after: Position, max: u32) -> Result<Changes, StoreError> {
        validate::in_range("max", max, 1..=validate::PAGE_MAX)?;
        let alive = self.writer.write("renew a watch", move |step| changes::renew(step, watcher)).await?;
        self.readers.look("read changes", move |db| changes::read(db, after, max, alive)).await
    }

    async fn unwatch(&self, watcher: WatcherId) -> Result<(), StoreError> {
        self.writer.write("unwatch", move |step| changes::unwatch(step, watcher)).await
    }

    async fn set_queue_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        settings: QueueSettings,
    ) -> Result<(), StoreError> {
        settings.check()?;
        let (actor, queue) = (actor.clone(), queue.clone());
        self.writer.write("set a queue", move |step| keep::set_queue(step, &actor, &queue, &settings)).await
    }

    async fn series(&self, series: Series) -> Result<Vec<Point>, StoreError> {
        series.check()?;
        self.readers.look("read statistics", move |db| keep::series(db, &series)).await
    }

    async fn totals(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Totals>, StoreError> {
        self.readers.look("read totals", move |db| keep::totals(db, from, to)).await
    }

    async fn failures(&self, task: TaskId) -> Result<Vec<FailedAttempt>, StoreError> {
        self.readers.look("list failures", move |db| keep::failures(db, task)).await
    }

    async fn cancel(&self, task: TaskId) -> Result<Cancel, StoreError> {
        self.writer.write("cancel", move |step| cancel::cancel(step, task)).await
    }

    async fn set_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
        settings: LaneSettings,
    ) -> Result<(), StoreError> {
        settings.check()?;
        let (actor, queue, lane) = (actor.clone(), queue.clone(), lane.clone());
        let change = move |step: &mut Step<'_>| lane::set(step, &actor, (&queue, &lane), &settings);
        self.writer.write("change a lane", change).await
    }

    async fn resume_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError> {
        let (actor, queue, lane) = (actor.clone(), queue.clone(), lane.clone());
        self.writer.write("resume a lane", move |step| lane::resume(step, &actor, &queue, &lane)).await
    }

    async fn lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<Option<LaneView>, StoreError> {
        let (queue, lane) = (queue.clone(), lane.clone());
        self.readers.look("look at a lane", move |db| lanes::view(db, &queue, &lane)).await
    }

    async fn lanes(&self, listing: LaneListing) -> Result<LanePage, StoreError> {
        listing.check()?;
        self.readers.look("list lanes", move |db| lanes::list(db, &listing)).await
    }

    async fn pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError> {
        check_pause(expires)?;
        let (actor, what) = (actor.clone(), what.clone());
        self.writer.write("pause", move |step| pause::pause(step, &actor, &what, expires)).await
    }

    async fn resume(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError> {
        let (actor, what) = (actor.clone(), what.clone());
        self.writer.write("resume", move |step| pause::resume(step, &actor, &what)).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.readers.look("list pauses", pause::list).await
    }

    async fn drain(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        let actor = actor.clone();
        self.writer.write("drain a worker", move |step| pause::drain(step, &actor, session)).await
    }

    async fn stop(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        let actor = actor.clone();
        self.writer.write("stop a worker", move |step| pause::stop(step, &actor, session)).await
    }

    async fn edit(&self, actor: &Actor, task: TaskId, edit: Edit) -> Result<Acted, StoreError> {
        edit.check(&self.limits)?;
        let actor = actor.clone();
        self.writer.write("edit a task", move |step| act::edit(step, &actor, task, &edit)).await
    }

    async fn act(&self, actor: &Actor, action: Action, tasks: &[TaskId]) -> Result<Vec<Acted>, StoreError> {
        check_act(action, tasks)?;
        let (actor, tasks) = (actor.clone(), tasks.to_vec());
        let act = move |step: &mut Step<'_>| act::act(step, &actor, action, &tasks, step.now);
        self.writer.write("act on tasks", act).await
    }

    async fn start_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError> {
        bulk.check()?;
        let actor = actor.clone();
        self.writer.write("start a bulk", move |step| bulk::start(step, &actor, &bulk)).await
    }

    async fn bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        self.readers.look("look at a bulk", move |db| bulk::view(db, id)).await
    }

    async fn bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError> {
        page.check()?;
        self.readers.look("list bulks", move |db| bulk::list(db, page)).await
    }

    async fn record_bulk_step(&self, taken: BulkStep) -> Result<bool, StoreError> {
        self.writer.write("take a step of a bulk", move |step| bulk::take_step(step, &taken)).await
    }

    async fn set_bulk_state(&self, actor: &Actor, id: BulkId, state: BulkState) -> Result<bool, StoreError> {
        let actor = actor.clone();
        self.writer.write("change a bulk", move |step| bulk::set_state(step, &actor, id, state)).await
    }

    async fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        page.check()?;
        self.readers.look("read the audit", move |db| audit::list(db, page)).await
    }

    async fn create_token(&self, actor: &Actor, token: NewToken) -> Result<Token, StoreError> {
        token.check()?;
        let actor = actor.clone();
        self.writer.write("create a token", move |step| token::create(step, &actor, &token)).await
    }

    async fn revoke_token(&self, actor: &Actor, token: TokenId) -> Result<bool, StoreError> {
        let actor = actor.clone();
        self.writer.write("revoke a token", move |step| token::revoke(step, &actor, token)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let now = self.clock.now_micros();
        self.readers.look("list tokens", move |db| token::list(db, None, now)).await
    }

    async fn token(&self, token: TokenId) -> Result<Option<Token>, StoreError> {
        let now = self.clock.now_micros();
        self.readers.look("look at a token", move |db| Ok(token::list(db, Some(token), now)?.pop())).await
    }

    async fn fire_due(&self) -> Result<Fired, StoreError> {
        let limits = self.limits;
        self.writer.write("fire schedules", move |step| schedule::fire_due(step, &limits)).await
    }

    async fn put_schedule_by(&self, actor: &Actor, schedule: Schedule) -> Result<ScheduleView, StoreError> {
        schedule.check(&self.limits)?;
        let actor = actor.clone();
        self.writer.write("put a schedule", move |step| schedule::put(step, &actor, schedule)).await
    }

    async fn remove_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        let (actor, name) = (actor.clone(), schedule.clone());
        self.writer.write("remove a schedule", move |step| schedule::remove(step, &actor, &name)).await
    }

    async fn pause_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        let (actor, name) = (actor.clone(), schedule.clone());
        self.writer.write("pause a schedule", move |step| schedule::pause(step, &actor, &name)).await
    }

    async fn resume_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        let (actor, name) = (actor.clone(), schedule.clone());
        self.writer.write("resume a schedule", move |step| schedule::resume(step, &actor, &name)).await
    }

    async fn run_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<Ran, StoreError> {
        let (limits, actor, name) = (self.limits, actor.clone(), schedule.clone());
        self.writer.write("run a schedule", move |step| schedule::run(step, &actor, &limits, &name)).await
    }

    async fn schedule(&self, schedule: &ScheduleName) -> Result<Option<ScheduleView>, StoreError> {
        let (name, now) = (schedule.clone(), self.clock.now_micros());
        self.readers.look("look at a schedule", move |db| schedule::get(db, &name, now)).await
    }

    async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: u32,
    ) -> Result<Vec<ScheduleView>, StoreError> {
        validate::in_range("limit", limit, 1..=validate::PAGE_MAX)?;
        let (after, now) = (after.cloned(), self.clock.now_micros());
        self.readers.look("list schedules", move |db| schedule::page(db, after.as_ref(), limit, now)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>, StoreError> {
        self.readers.look("list workers", look::workers).await
    }

    async fn verify(&self) -> Result<Vec<String>, StoreError> {
        self.readers.look("verify", verify::verify).await
    }
}
