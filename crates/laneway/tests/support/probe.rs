//! A store that counts what is asked of it, and that can be down, slow, or lose its answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use laneway::core::*;
use tokio::sync::Semaphore;

/// What stands between a worker and its store. Clones are the same probe.
#[derive(Clone)]
pub struct Probe {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    calls: Mutex<BTreeMap<&'static str, usize>>,
    is_down: AtomicBool,
    /// Calls of `renew` fail.
    is_mute: AtomicBool,
    /// Hints are reported as not arriving.
    is_deaf: AtomicBool,
    /// So many advances are carried out, but their answers are lost.
    lost_answers: AtomicUsize,
    /// Advances wait for a permit while this is set.
    gate: Mutex<Option<Arc<Semaphore>>>,
    /// The advances that were sent.
    advances: Mutex<Vec<Advance>>,
    /// How many tasks each of them claimed.
    claimed: Mutex<Vec<usize>>,
    /// Advances under way, and the most that ever were.
    at_once: AtomicUsize,
    at_once_peak: AtomicUsize,
}

impl Probe {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let shared = Shared {
            calls: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            lost_answers: AtomicUsize::new(0),
            gate: Mutex::default(),
            advances: Mutex::default(),
            claimed: Mutex::default(),
            at_once: AtomicUsize::new(0),
            at_once_peak: AtomicUsize::new(0),
        };
        Self { store, shared: Arc::new(shared) }
    }

    pub fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// How often a verb was called.
    pub fn calls(&self, verb: &str) -> usize {
        self.shared.calls.lock().unwrap().get(verb).copied().unwrap_or_default()
    }

    /// How often anything was called.
    pub fn all_calls(&self) -> usize {
        self.shared.calls.lock().unwrap().values().sum()
    }

    /// Every verb with its number of calls, for messages.
    pub fn seen(&self) -> String {
        format!("{:?}", self.shared.calls.lock().unwrap())
    }

    pub fn advances(&self) -> Vec<Advance> {
        self.shared.advances.lock().unwrap().clone()
    }

    /// How many tasks each advance claimed that was answered.
    pub fn claimed(&self) -> Vec<usize> {
        self.shared.claimed.lock().unwrap().clone()
    }

    /// The most advances that were under way at once.
    pub fn advances_at_once(&self) -> usize {
        self.shared.at_once_peak.load(Ordering::SeqCst)
    }

    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }

    pub fn set_mute(&self, is_mute: bool) {
        self.shared.is_mute.store(is_mute, Ordering::SeqCst);
    }

    pub fn set_deaf(&self, is_deaf: bool) {
        self.shared.is_deaf.store(is_deaf, Ordering::SeqCst);
    }

    pub fn lose_answers(&self, advances: usize) {
        self.shared.lost_answers.store(advances, Ordering::SeqCst);
    }

    /// From now on every advance waits for a permit of the semaphore.
    pub fn gate_advances(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.shared.gate.lock().unwrap() = Some(Arc::clone(&gate));
        gate
    }

    fn count(&self, verb: &'static str) -> Result<&dyn Store, StoreError> {
        *self.shared.calls.lock().unwrap().entry(verb).or_default() += 1;
        let is_mute = verb == "renew" && self.shared.is_mute.load(Ordering::SeqCst);
        if is_mute || self.shared.is_down.load(Ordering::SeqCst) {
            return Err(down());
        }
        Ok(&*self.store)
    }
}

fn down() -> StoreError {
    StoreError::Unavailable { target: "the probe".into(), source: "it was told to fail".into() }
}

#[async_trait]
impl Store for Probe {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn enqueue(&self, task: NewTask) -> Result<Enqueued, StoreError> {
        self.count("enqueue")?.enqueue(task).await
    }

    async fn enqueue_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, StoreError> {
        self.count("enqueue_many")?.enqueue_many(tasks).await
    }

    async fn advance(&self, advance: Advance) -> Result<Advanced, StoreError> {
        let gate = self.shared.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        self.shared.advances.lock().unwrap().push(advance.clone());
        let at_once = self.shared.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.shared.at_once_peak.fetch_max(at_once, Ordering::SeqCst);
        let store = self.count("advance");
        let advanced = match store {
            Ok(store) => store.advance(advance).await,
            Err(error) => Err(error),
        };
        self.shared.at_once.fetch_sub(1, Ordering::SeqCst);
        let advanced = advanced?;
        self.shared.claimed.lock().unwrap().push(advanced.claimed.len());
        let is_lost = |left: usize| left.checked_sub(1);
        match self.shared.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_lost) {
            Ok(_) => Err(down()),
            Err(_) => Ok(advanced),
        }
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        self.count("register")?.register(registration).await
    }

    async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError> {
        self.count("renew")?.renew(renewal).await
    }

    async fn report_progress(&self, session: SessionId, reports: Vec<Report>) -> Result<(), StoreError> {
        self.count("report_progress")?.report_progress(session, reports).await
    }

    async fn deregister(&self, session: SessionId) -> Result<(), StoreError> {
        self.count("deregister")?.deregister(session).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.count("sweep")?.sweep().await
    }

    async fn maintain(&self) -> Result<Maintained, StoreError> {
        self.count("maintain")?.maintain().await
    }

    fn meter(&self) -> Meter {
        self.store.meter()
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.count("health")?.health().await
    }

    fn control(&self) -> Option<Arc<dyn Store>> {
        let control = self.store.control()?;
        Some(Arc::new(Self { store: control, shared: Arc::clone(&self.shared) }))
    }

    fn hints(&self) -> Hints {
        self.store.hints()
    }

    fn is_listening(&self) -> bool {
        self.store.is_listening() && !self.shared.is_deaf.load(Ordering::SeqCst)
    }

    async fn fall_asleep(&self, sleep: Sleep) -> Result<Fence, StoreError> {
        self.count("fall_asleep")?.fall_asleep(sleep).await
    }

    async fn fence_passed(&self, fence: Fence) -> Result<bool, StoreError> {
        self.count("fence_passed")?.fence_passed(fence).await
    }

    async fn is_claimable(&self, queues: &[QueueName], kinds: &Kinds) -> Result<bool, StoreError> {
        self.count("is_claimable")?.is_claimable(queues, kinds).await
    }

    async fn wake_up(&self, session: SessionId) -> Result<(), StoreError> {
        self.count("wake_up")?.wake_up(session).await
    }

    async fn get(&self, task: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.count("get")?.get(task).await
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.count("list")?.list(listing).await
    }

    async fn counts(&self) -> Result<Vec<Counts>, StoreError> {
        self.count("counts")?.counts().await
    }

    async fn counts_by_kind(&self, queue: &QueueName) -> Result<Vec<KindCounts>, StoreError> {
        self.count("counts_by_kind")?.counts_by_kind(queue).await
    }

    async fn queues(&self) -> Result<Vec<QueueView>, StoreError> {
        self.count("queues")?.queues().await
    }

    async fn children(&self, page: Children) -> Result<Vec<TaskView>, StoreError> {
        self.count("children")?.children(page).await
    }

    async fn follow_ups(&self, task: TaskId) -> Result<Vec<TaskView>, StoreError> {
        self.count("follow_ups")?.follow_ups(task).await
    }

    async fn why(&self, task: TaskId) -> Result<Option<Why>, StoreError> {
        self.count("why")?.why(task).await
    }

    async fn watch(&self, keep: Duration) -> Result<Watch, StoreError> {
        self.count("watch")?.watch(keep).await
    }

    async fn changes(&self, watcher: WatcherId, after: Position, max: u32) -> Result<Changes, StoreError> {
        self.count("changes")?.changes(watcher, after, max).await
    }

    async fn unwatch(&self, watcher: WatcherId) -> Result<(), StoreError> {
        self.count("unwatch")?.unwatch(watcher).await
    }

    async fn set_queue_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        to: QueueSettings,
    ) -> Result<(), StoreError> {
        self.count("set_queue_by")?.set_queue_by(actor, queue, to).await
    }

    async fn series(&self, series: Series) -> Result<Vec<Point>, StoreError> {
        self.count("series")?.series(series).await
    }

    async fn totals(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Totals>, StoreError> {
        self.count("totals")?.totals(from, to).await
    }

    async fn failures(&self, task: TaskId) -> Result<Vec<FailedAttempt>, StoreError> {
        self.count("failures")?.failures(task).await
    }

    async fn cancel(&self, task: TaskId) -> Result<Cancel, StoreError> {
        self.count("cancel")?.cancel(task).await
    }

    async fn set_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
        to: LaneSettings,
    ) -> Result<(), StoreError> {
        self.count("set_lane_by")?.set_lane_by(actor, queue, lane, to).await
    }

    async fn resume_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError> {
        self.count("resume_lane_by")?.resume_lane_by(actor, queue, lane).await
    }

    async fn lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<Option<LaneView>, StoreError> {
        self.count("lane")?.lane(queue, lane).await
    }

    async fn lanes(&self, listing: LaneListing) -> Result<LanePage, StoreError> {
        self.count("lanes")?.lanes(listing).await
    }

    async fn pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError> {
        self.count("pause")?.pause(actor, what, expires).await
    }

    async fn resume(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError> {
        self.count("resume")?.resume(actor, what).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.count("pauses")?.pauses().await
    }

    async fn drain(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        self.count("drain")?.drain(actor, session).await
    }

    async fn stop(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        self.count("stop")?.stop(actor, session).await
    }

    async fn edit(&self, actor: &Actor, task: TaskId, edit: Edit) -> Result<Acted, StoreError> {
        self.count("edit")?.edit(actor, task, edit).await
    }

    async fn act(&self, actor: &Actor, action: Action, tasks: &[TaskId]) -> Result<Vec<Acted>, StoreError> {
        self.count("act")?.act(actor, action, tasks).await
    }

    async fn start_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError> {
        self.count("start_bulk")?.start_bulk(actor, bulk).await
    }

    async fn bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        self.count("bulk")?.bulk(id).await
    }

    async fn bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError> {
        self.count("bulks")?.bulks(page).await
    }

    async fn record_bulk_step(&self, step: BulkStep) -> Result<bool, StoreError> {
        self.count("record_bulk_step")?.record_bulk_step(step).await
    }

    async fn set_bulk_state(&self, actor: &Actor, id: BulkId, state: BulkState) -> Result<bool, StoreError> {
        self.count("set_bulk_state")?.set_bulk_state(actor, id, state).await
    }

    async fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        self.count("audit")?.audit(page).await
    }

    async fn create_token(&self, actor: &Actor, token: NewToken) -> Result<Token, StoreError> {
        self.count("create_token")?.create_token(actor, token).await
    }

    async fn revoke_token(&self, actor: &Actor, token: TokenId) -> Result<bool, StoreError> {
        self.count("revoke_token")?.revoke_token(actor, token).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.count("tokens")?.tokens().await
    }

    async fn token(&self, token: TokenId) -> Result<Option<Token>, StoreError> {
        self.count("token")?.token(token).await
    }

    async fn fire_due(&self) -> Result<Fired, StoreError> {
        self.count("fire_due")?.fire_due().await
    }

    async fn put_schedule_by(&self, actor: &Actor, schedule: Schedule) -> Result<ScheduleView, StoreError> {
        self.count("put_schedule_by")?.put_schedule_by(actor, schedule).await
    }

    async fn remove_schedule_by(&self, actor: &Actor, name: &ScheduleName) -> Result<bool, StoreError> {
        self.count("remove_schedule_by")?.remove_schedule_by(actor, name).await
    }

    async fn pause_schedule_by(&self, actor: &Actor, name: &ScheduleName) -> Result<bool, StoreError> {
        self.count("pause_schedule_by")?.pause_schedule_by(actor, name).await
    }

    async fn resume_schedule_by(&self, actor: &Actor, name: &ScheduleName) -> Result<bool, StoreError> {
        self.count("resume_schedule_by")?.resume_schedule_by(actor, name).await
    }

    async fn run_schedule_by(&self, actor: &Actor, name: &ScheduleName) -> Result<Ran, StoreError> {
        self.count("run_schedule_by")?.run_schedule_by(actor, name).await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<ScheduleView>, StoreError> {
        self.count("schedule")?.schedule(name).await
    }

    async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: u32,
    ) -> Result<Vec<ScheduleView>, StoreError> {
        self.count("schedules")?.schedules(after, limit).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>, StoreError> {
        self.count("workers")?.workers().await
    }

    async fn verify(&self) -> Result<Vec<String>, StoreError> {
        self.count("verify")?.verify().await
    }
}
