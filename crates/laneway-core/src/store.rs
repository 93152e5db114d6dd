//! Everything that may be asked of a store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::access::{NewToken, Token, TokenId};
use crate::act::{
    Acted, Action, Actor, AuditEntry, AuditPage, Bulk, BulkId, BulkPage, BulkState, BulkStep, Edit, NewBulk,
    Pausable, Pause,
};
use crate::advance::{Advance, Advanced, Kinds};
use crate::change::{Changes, Position, Watch, WatcherId};
use crate::error::StoreError;
use crate::family::{Children, FamilyView};
use crate::health::StoreHealth;
use crate::hint::Hints;
use crate::id::{SessionId, TaskId};
use crate::keep::{Maintained, QueueSettings};
use crate::lane::{LaneSettings, LaneView};
use crate::lane_list::{LaneListing, LanePage};
use crate::liveness::{Fence, Registration, Renewal, Renewed, Sleep, Swept};
use crate::look::{Cancel, Counts, KindCounts, Listing, Page, QueueView, TaskView, WorkerView};
use crate::meter::Meter;
use crate::name::{LaneKey, QueueName, ScheduleName};
use crate::progress::Report;
use crate::schedule::{Fired, Ran, Schedule, ScheduleView};
use crate::stats::{FailedAttempt, Point, Series, Totals};
use crate::task::NewTask;
use crate::tree::Tree;
use crate::unique::Enqueued;
use crate::validate::Limits;
use crate::why::Why;

/// A place where tasks are kept. Two exist, with the same behaviour: PostgreSQL and SQLite.
///
/// Each method is one transition, committed when it returns. Stores keep no worker state and make no policy:
/// when to claim, how long to back off and what to run is decided above.
///
/// # Cancel safety
/// Dropping a future leaves the call done or not done, never half done.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What kind of store this is: `postgres` or `sqlite`.
    fn name(&self) -> &'static str;

    /// What this store accepts at most.
    fn limits(&self) -> Limits;

    /// Stores one task. When this returns, the task is committed. Concurrent calls share a commit.
    ///
    /// A task with a [`Unique`](crate::Unique) key may meet another one: the answer tells. If that key is just being
    /// taken by a transaction that has not ended, this waits for it, at most two seconds, and is then answered
    /// [`Busy`](StoreError::Busy).
    async fn enqueue(&self, task: NewTask) -> Result<Enqueued, StoreError>;

    /// Stores all of `tasks` or none, and answers in their order.
    async fn enqueue_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, StoreError>;

    /// Settles what ended and claims what is next.
    async fn advance(&self, advance: Advance) -> Result<Advanced, StoreError>;

    /// Makes a session known. Registering it twice renews it.
    async fn register(&self, registration: Registration) -> Result<(), StoreError>;

    /// Tells that a session lives, and brings its orders.
    async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError>;

    /// Keeps how far attempts are, for [`TaskView::progress`]. What does not run under its lease and this session is passed
    /// over. Workers call it at most once a second, and not for every task.
    async fn report_progress(&self, session: SessionId, reports: Vec<Report>) -> Result<(), StoreError>;

    /// Ends a session in an orderly way: what it still leases is given back at once, and not counted as a crash.
    async fn deregister(&self, session: SessionId) -> Result<(), StoreError>;

    /// Gives back the tasks of sessions that were silent for 30 s or are gone. Any worker may call it at any
    /// time; several at once share the work.
    async fn sweep(&self) -> Result<Swept, StoreError>;

    /// House-keeping that nobody waits for: cleans hot tables, prepares days of history, folds history into counts and
    /// statistics, removes what is kept no longer and lanes that have long been empty.
    async fn maintain(&self) -> Result<Maintained, StoreError>;

    /// What the store has measured about its calls. A store that measures nothing gives an empty one.
    fn meter(&self) -> Meter {
        Meter::default()
    }

    /// The versions of database and tables, and what the tables take. Reads the database's own statistics, no rows.
    async fn health(&self) -> Result<StoreHealth, StoreError>;

    /// A handle for signs of life, with a connection of its own that is made in the runtime that uses it, so that
    /// neither a busy pool nor a busy runtime holds renewals up. `None` when the store itself will do.
    fn control(&self) -> Option<Arc<dyn Store>>;

    /// A receiver of hints for this process.
    fn hints(&self) -> Hints;

    /// True while hints arrive. Otherwise work is found by polling, and announcing a sleep is of no use.
    fn is_listening(&self) -> bool;

    /// Announces that a worker sleeps, and returns the fence behind which every enqueue sends a hint.
    ///
    /// Falling asleep without missing a task goes like this, `passed` being read *before* the last claim:
    ///
    /// ```text
    /// hints.clear();  fence = fall_asleep()
    /// loop { passed = fence_passed(fence);  advance(Scan::Full);  got some → wake_up, work
    ///        if passed and not is_claimable() → sleep until hint, next due time or poll interval;  wake_up
    ///        else wait 1, 2, 4 … ms }
    /// ```
    async fn fall_asleep(&self, sleep: Sleep) -> Result<Fence, StoreError>;

    /// True when every transaction that may have missed the announcement has ended.
    async fn fence_passed(&self, fence: Fence) -> Result<bool, StoreError>;

    /// True when something claimable is visible, even if another worker is just taking it.
    async fn is_claimable(&self, queues: &[QueueName], kinds: &Kinds) -> Result<bool, StoreError>;

    /// Takes back the announcement.
    async fn wake_up(&self, session: SessionId) -> Result<(), StoreError>;

    /// A task wherever it is; `None` when there is none or its history is gone.
    async fn get(&self, task: TaskId) -> Result<Option<TaskView>, StoreError>;

    /// One page of tasks.
    async fn list(&self, listing: Listing) -> Result<Page, StoreError>;

    /// Tasks by queue and state; states without tasks are left out. Cheap with millions of tasks: what has ended is
    /// exact, what is open is counted up to some thousands.
    async fn counts(&self) -> Result<Vec<Counts>, StoreError>;

    /// The tasks of one queue by kind and state.
    async fn counts_by_kind(&self, queue: &QueueName) -> Result<Vec<KindCounts>, StoreError>;

    /// The queues that are known, with the age of their oldest runnable task.
    async fn queues(&self) -> Result<Vec<QueueView>, StoreError>;

    /// The latest children of a task, counted; `None` when it never had any, or is not known.
    async fn family(&self, parent: TaskId) -> Result<Option<FamilyView>, StoreError> {
        Ok(self.get(parent).await?.and_then(|task| task.family))
    }

    /// The latest children of a task in order of their ids, with results and errors.
    async fn children(&self, page: Children) -> Result<Vec<TaskView>, StoreError>;

    /// The first hundred tasks that follow a task and have not ended as plain successes.
    async fn follow_ups(&self, task: TaskId) -> Result<Vec<TaskView>, StoreError>;

    /// A task with its children and theirs, at most `max_rows` (1 to 1,000) of them; `None` when it is not known. What is
    /// open or has failed is shown first, the rest is counted.
    async fn tree(&self, task: TaskId, max_rows: u32) -> Result<Option<Tree>, StoreError> {
        crate::tree::tree(self, task, max_rows).await
    }

    /// Everything that keeps a task from running, of one moment; `None` when there is no such task.
    async fn why(&self, task: TaskId) -> Result<Option<Why>, StoreError>;

    /// Begins to follow the change feed. The watch lapses when nothing is read for `keep`: 1 s to 10 minutes.
    ///
    /// Following without missing a change goes like this:
    ///
    /// ```text
    /// watch = watch(keep);  poll fence_passed(watch.fence) until it is true: ready
    /// look at the tasks as they are;  position = watch.position
    /// loop { read = changes(watch.watcher, position, 500);  position = read.position
    ///        if read.gap → begin again }
    /// ```
    ///
    /// Everything that commits after "ready" is among the changes; some of what the look showed may be, too.
    async fn watch(&self, keep: Duration) -> Result<Watch, StoreError>;

    /// The changes behind a position, at most `max` (1 to 500) groups of tasks.
    async fn changes(&self, watcher: WatcherId, after: Position, max: u32) -> Result<Changes, StoreError>;

    /// Stops following. The last one to stop ends the writing of changes.
    async fn unwatch(&self, watcher: WatcherId) -> Result<(), StoreError>;

    /// [`set_queue_by`](Store::set_queue_by) the application itself.
    async fn set_queue(&self, queue: &QueueName, settings: QueueSettings) -> Result<(), StoreError> {
        self.set_queue_by(&Actor::program(), queue, settings).await
    }

    /// Changes a queue, which is made if it does not exist.
    async fn set_queue_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        settings: QueueSettings,
    ) -> Result<(), StoreError>;

    /// Statistics for charts, one point per step. What happened since the last [`maintain`](Self::maintain) may be missing.
    async fn series(&self, series: Series) -> Result<Vec<Point>, StoreError>;

    /// What happened in each queue from `from` until `to`, counted by whole minutes; queues in which nothing did are left
    /// out. What happened since the last [`maintain`](Self::maintain) may be missing.
    async fn totals(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Totals>, StoreError>;

    /// The failed attempts of a task, newest first: the last twenty, and the one that failed it for good.
    async fn failures(&self, task: TaskId) -> Result<Vec<FailedAttempt>, StoreError>;

    /// Ends a task that is not running, or tells its worker to stop it. What a program does with its own tasks; operators
    /// use [`act`](Store::act), which names them.
    async fn cancel(&self, task: TaskId) -> Result<Cancel, StoreError>;

    /// [`set_lane_by`](Store::set_lane_by) the application itself.
    async fn set_lane(
        &self,
        queue: &QueueName,
        lane: &LaneKey,
        settings: LaneSettings,
    ) -> Result<(), StoreError> {
        self.set_lane_by(&Actor::program(), queue, lane, settings).await
    }

    /// Changes a lane, which is made if it does not exist. The limit binds every claim that begins after this
    /// returns.
    async fn set_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
        settings: LaneSettings,
    ) -> Result<(), StoreError>;

    /// [`resume_lane_by`](Store::resume_lane_by) the application itself.
    async fn resume_lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<bool, StoreError> {
        self.resume_lane_by(&Actor::program(), queue, lane).await
    }

    /// Lets a lane go on that a failure has halted. False when it was not halted. A pause stays: see
    /// [`resume`](Store::resume).
    async fn resume_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError>;

    /// A lane as it is now; `None` when it is not known.
    async fn lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<Option<LaneView>, StoreError>;

    /// One page of the lanes of a queue: those with tasks, and those that were used lately or set up by an operator.
    async fn lanes(&self, listing: LaneListing) -> Result<LanePage, StoreError>;

    /// Pauses a queue as the application itself, until it is resumed. False when it was paused before.
    async fn pause_queue(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.pause(&Actor::program(), &Pausable::Queue(queue.clone()), None).await
    }

    /// Resumes a queue as the application itself. False when it was not paused.
    async fn resume_queue(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.resume(&Actor::program(), &Pausable::Queue(queue.clone())).await
    }

    /// Stops claims from a queue, of a kind or from a lane; what runs goes on. With `expires` the pause is over by itself
    /// after that time. False when it was paused before; it then lasts as this call says.
    async fn pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError>;

    /// Ends a pause. False when there was none.
    async fn resume(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError>;

    /// Everything that is paused, oldest pause first.
    async fn pauses(&self) -> Result<Vec<Pause>, StoreError>;

    /// Tells a worker to take nothing new. False when it is not known, or was told before.
    async fn drain(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError>;

    /// Tells a worker to end, as the first signal to stop would: what runs may finish within its grace time. False when it is
    /// not known, or was told before.
    async fn stop(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError>;

    /// Changes a task that waits: runnable, scheduled or in back-off. Its id, its place in its lane and its keys stay.
    async fn edit(&self, actor: &Actor, task: TaskId, edit: Edit) -> Result<Acted, StoreError>;

    /// Does something to up to 1,000 tasks, and answers per task. A task that another transaction holds is skipped; only a
    /// cancel, and a retry whose key is just being taken, wait, for two seconds at most.
    async fn act(&self, actor: &Actor, action: Action, tasks: &[TaskId]) -> Result<Vec<Acted>, StoreError>;

    /// Begins an action on all tasks that a filter means. Nothing is done before its first step.
    async fn start_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError>;

    /// A bulk as it is now; `None` when there is no such one.
    async fn bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError>;

    /// Bulks, newest first.
    async fn bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError>;

    /// Takes one step of a bulk: looks at up to 500 tasks and acts on them, in one transaction. Anybody may, and several
    /// at once do no harm. A bulk that does not run is only answered, as is one that is ahead of its pace: wait for
    /// [`Bulk::pause`] before the next step.
    async fn bulk_step(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        let Some(bulk) = self.bulk(id).await?.filter(|bulk| bulk.state == BulkState::Running) else {
            return self.bulk(id).await;
        };
        let mut step = BulkStep {
            bulk: id,
            number: bulk.steps,
            tasks: vec![],
            place: bulk.place,
            after: None,
            is_last: true,
        };
        if let Some((place, filter)) = bulk.next_list() {
            let listing = Listing { place, filter, after: bulk.after, limit: bulk.step_size() };
            let page = self.list(listing).await?;
            step.tasks = page.tasks.iter().map(|task| task.id).collect();
            step.after = page.next;
            step.place += u32::from(page.next.is_none());
            step.is_last = false;
        }
        self.record_bulk_step(step).await?;
        self.bulk(id).await
    }

    /// Carries out one step that [`bulk_step`](Store::bulk_step) has found. False when it was not this bulk's next one.
    async fn record_bulk_step(&self, step: BulkStep) -> Result<bool, StoreError>;

    /// Stops a bulk, or lets one that was stopped go on. False when that changes nothing.
    async fn set_bulk_state(&self, actor: &Actor, id: BulkId, state: BulkState) -> Result<bool, StoreError>;

    /// Who did what, newest first.
    async fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError>;

    /// Stores a token of the server; see [`NewToken`].
    async fn create_token(&self, actor: &Actor, token: NewToken) -> Result<Token, StoreError>;

    /// Removes a token, which is then refused within seconds. False when there is none.
    async fn revoke_token(&self, actor: &Actor, token: TokenId) -> Result<bool, StoreError>;

    /// Every token, oldest first, also those that have expired.
    async fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// One token; `None` when there is none.
    async fn token(&self, token: TokenId) -> Result<Option<Token>, StoreError>;

    /// Enqueues the tasks of schedules whose next fire has come, and moves each on to the fire after. Any number of
    /// processes may call it at once: every fire time of a schedule counts once. Call it whenever
    /// [`Advanced::next_due`](crate::Advanced::next_due) has passed, again while [`Fired::more`], and with every sweep.
    async fn fire_due(&self) -> Result<Fired, StoreError>;

    /// [`put_schedule_by`](Store::put_schedule_by) the application itself.
    async fn put_schedule(&self, schedule: Schedule) -> Result<ScheduleView, StoreError> {
        self.put_schedule_by(&Actor::program(), schedule).await
    }

    /// Makes a schedule, or changes the one of that name. A changed rule counts from now on and sets the next fire anew;
    /// otherwise the next fire stays. A paused schedule stays paused.
    async fn put_schedule_by(&self, actor: &Actor, schedule: Schedule) -> Result<ScheduleView, StoreError>;

    /// [`remove_schedule_by`](Store::remove_schedule_by) the application itself.
    async fn remove_schedule(&self, schedule: &ScheduleName) -> Result<bool, StoreError> {
        self.remove_schedule_by(&Actor::program(), schedule).await
    }

    /// Removes a schedule; the tasks that it has enqueued stay. False when there is none.
    async fn remove_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError>;

    /// [`pause_schedule_by`](Store::pause_schedule_by) the application itself.
    async fn pause_schedule(&self, schedule: &ScheduleName) -> Result<bool, StoreError> {
        self.pause_schedule_by(&Actor::program(), schedule).await
    }

    /// Stops a schedule from firing. False when it was paused before, or there is none.
    async fn pause_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError>;

    /// [`resume_schedule_by`](Store::resume_schedule_by) the application itself.
    async fn resume_schedule(&self, schedule: &ScheduleName) -> Result<bool, StoreError> {
        self.resume_schedule_by(&Actor::program(), schedule).await
    }

    /// Lets a schedule go on with its first fire after now; what fell into the pause is not made up for. False when it was
    /// not paused, or there is none.
    async fn resume_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError>;

    /// [`run_schedule_by`](Store::run_schedule_by) the application itself.
    async fn run_schedule(&self, schedule: &ScheduleName) -> Result<Ran, StoreError> {
        self.run_schedule_by(&Actor::program(), schedule).await
    }

    /// Enqueues the task of a schedule now, paused or not. Its next fire stays where it is.
    async fn run_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<Ran, StoreError>;

    /// A schedule as it is now; `None` when there is none.
    async fn schedule(&self, schedule: &ScheduleName) -> Result<Option<ScheduleView>, StoreError>;

    /// Up to `limit` schedules (1 to 500) in order of their names, after `after`.
    async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: u32,
    ) -> Result<Vec<ScheduleView>, StoreError>;

    /// The living workers.
    async fn workers(&self) -> Result<Vec<WorkerView>, StoreError>;

    /// Checks the store's invariants and describes each violation. Exact only while nothing is under way.
    async fn verify(&self) -> Result<Vec<String>, StoreError>;
}
