//! What the store has to tell a scrape: queues, schedules, tables.
//!
//! The store is asked at most once in five seconds, for its tables once in thirty, however many scrape. Queues and schedules are
//! labels up to a bound; beyond it queues are counted together as `other`, and schedules are left out.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use laneway_core::{QueueView, State as TaskState, Store, StoreError, StoreHealth, Totals};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_HEALTH_EVERY: Duration = Duration::from_secs(30);
/// Queues and schedules with lines of their own.
const LABELS_MAX: usize = 200;
/// What was enqueued is read anew for one or two hours, since minutes may be told late.
const ENQUEUED_WINDOW_SECS: i64 = 3_600;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByQueue {
    queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    queue: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BySchedule {
    schedule: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByTable {
    table: String,
}

type Number = Gauge<f64, AtomicU64>;

/// What the store said, and when.
#[derive(Default)]
pub(crate) struct Gauges(Mutex<Said>);

#[derive(Clone, Default)]
struct Said {
    text: Option<(Instant, String)>,
    health: Option<(Instant, StoreHealth)>,
    enqueued: Enqueued,
}

/// Tasks that were enqueued since this process began to look, by queue.
#[derive(Clone, Default)]
struct Enqueued {
    /// From here on the store is asked; what was before is in `before`.
    since: Option<Timestamp>,
    before: BTreeMap<String, u64>,
}

impl Gauges {
    /// What the store says, or said a moment ago.
    pub(crate) async fn render(&self, store: &dyn Store) -> String {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, text)) = &said.text
            && at.elapsed() < ASK_EVERY
        {
            return text.clone();
        }
        let text = match ask(store, &mut said).await {
            Ok(registry) => {
                let mut text = String::new();
                encode(&mut text, &registry).expect("writing to a string cannot fail");
                text
            }
            Err(_) => "# HELP store_up 1: the store answers\n# TYPE store_up gauge\nstore_up 0\n".to_owned(),
        };
        said.text = Some((Instant::now(), text.clone()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = said;
        text
    }
}

async fn ask(store: &dyn Store, said: &mut Said) -> Result<Registry, StoreError> {
    let mut registry = Registry::default();
    let up = Gauge::<i64>::default();
    up.set(1);
    registry.register("store_up", "1: the store answers", up);
    let queues = store.queues().await?;
    tell_queues(store, &queues, &mut registry).await?;
    tell_workers(store, &queues, &mut registry).await?;
    said.enqueued.tell(store, &queues, &mut registry).await?;
    tell_schedules(store, &mut registry).await?;
    let known = said.health.take().filter(|(at, _)| at.elapsed() < ASK_HEALTH_EVERY);
    let known = match known {
        Some(known) => known,
        None => (Instant::now(), store.health().await?),
    };
    tell_tables(&known.1, &mut registry);
    said.health = Some(known);
    Ok(registry)
}

/// A queue as a label.
fn label(queues: &[QueueView], queue: &str) -> String {
    match queues.iter().position(|view| view.queue.as_str() == queue) {
        Some(place) if place < LABELS_MAX => queue.to_owned(),
        _ => "other".to_owned(),
    }
}

async fn tell_queues(
    store: &dyn Store,
    queues: &[QueueView],
    registry: &mut Registry,
) -> Result<(), StoreError> {
    let (tasks, paused) = (Family::<ByState, Gauge>::default(), Family::<ByQueue, Gauge>::default());
    let (ready, parents) = (Family::<ByQueue, Number>::default(), Family::<ByQueue, Number>::default());
    let waiting = Family::<ByQueue, Gauge>::default();
    let now = Timestamp::now();
    for view in queues {
        let labels = ByQueue { queue: label(queues, view.queue.as_str()) };
        paused.get_or_create(&labels).set(i64::from(view.paused_at.is_some()));
        waiting.get_or_create(&labels).set(0);
        for (oldest, since) in [(&ready, view.oldest_ready_at), (&parents, view.oldest_waiting_at)] {
            let age = since.map_or(0.0, |at| now.duration_since(at).as_secs_f64().max(0.0));
            let gauge = oldest.get_or_create(&labels);
            gauge.set(gauge.get().max(age));
        }
    }
    for count in store.counts().await?.iter().filter(|count| !count.state.has_ended()) {
        let queue = label(queues, count.queue.as_str());
        if count.state == TaskState::Waiting {
            waiting.get_or_create(&ByQueue { queue: queue.clone() }).inc_by(count.tasks as i64);
        }
        let labels = ByState { queue, state: TaskState::as_str(count.state) };
        tasks.get_or_create(&labels).inc_by(count.tasks as i64);
    }
    registry.register("queue_tasks", "Open tasks; with very many, those that were counted", tasks);
    registry.register("queue_oldest_ready_seconds", "For how long the oldest ready task is ready", ready);
    registry.register("queue_paused", "1: nothing is claimed", paused);
    registry.register("queue_waiting_parents", "Tasks whose children are open", waiting);
    let help = "How long ago that task started which has waited longest for its children";
    registry.register("queue_oldest_waiting_seconds", help, parents);
    Ok(())
}

async fn tell_workers(
    store: &dyn Store,
    queues: &[QueueView],
    registry: &mut Registry,
) -> Result<(), StoreError> {
    let (serving, slots) = (Family::<ByQueue, Gauge>::default(), Family::<ByQueue, Gauge>::default());
    for worker in store.workers().await? {
        for queue in &worker.queues {
            let labels = ByQueue { queue: label(queues, queue.as_str()) };
            serving.get_or_create(&labels).inc();
            slots.get_or_create(&labels).inc_by(worker.capacity.slots.into());
        }
    }
    registry.register("queue_workers", "Workers that serve the queue", serving);
    registry.register("queue_slots", "Slots of the workers that serve the queue", slots);
    Ok(())
}

fn add(sums: &mut BTreeMap<String, u64>, totals: Vec<Totals>) {
    for totals in totals {
        *sums.entry(totals.queue.to_string()).or_default() += totals.enqueued;
    }
}

impl Enqueued {
    async fn tell(
        &mut self,
        store: &dyn Store,
        queues: &[QueueView],
        registry: &mut Registry,
    ) -> Result<(), StoreError> {
        let now = Timestamp::now();
        let minute = || Timestamp::from_second(now.as_second() / 60 * 60).unwrap_or(now);
        let since = self.since.get_or_insert_with(minute);
        if now.duration_since(*since) > SignedDuration::from_secs(2 * ENQUEUED_WINDOW_SECS) {
            let settled = *since + SignedDuration::from_secs(ENQUEUED_WINDOW_SECS);
            add(&mut self.before, store.totals(*since, settled).await?);
            *since = settled;
        }
        let mut sums = self.before.clone();
        add(&mut sums, store.totals(*since, Timestamp::MAX).await?);
        let enqueued = Family::<ByQueue, Counter>::default();
        for (queue, tasks) in sums {
            enqueued.get_or_create(&ByQueue { queue: label(queues, &queue) }).inc_by(tasks);
        }
        let help = "Tasks that were enqueued since this process began to look";
        registry.register("queue_enqueued", help, enqueued);
        Ok(())
    }
}

async fn tell_schedules(store: &dyn Store, registry: &mut Registry) -> Result<(), StoreError> {
    let lag = Family::<BySchedule, Number>::default();
    for view in store.schedules(None, LABELS_MAX as u32).await? {
        let schedule = view.schedule.name.to_string();
        let overdue = view.overdue.map_or(0.0, |overdue| overdue.as_secs_f64());
        lag.get_or_create(&BySchedule { schedule }).set(overdue);
    }
    registry.register("schedule_lag_seconds", "How long the next fire is overdue", lag);
    Ok(())
}

fn tell_tables(health: &StoreHealth, registry: &mut Registry) {
    let (dead, bytes) = (Family::<ByTable, Gauge>::default(), Family::<ByTable, Gauge>::default());
    for table in &health.tables {
        let labels = ByTable { table: table.table.clone() };
        dead.get_or_create(&labels).set(table.dead_rows as i64);
        bytes.get_or_create(&labels).set(table.bytes as i64);
    }
    let oldest = Number::default();
    oldest.set(health.oldest_transaction.map_or(0.0, |age| age.as_secs_f64()));
    registry.register("store_dead_rows", "Rows that wait to be cleaned up", dead);
    registry.register("store_table_bytes", "What tables and their indexes take", bytes);
    registry.register("store_oldest_transaction_seconds", "The age of the oldest open transaction", oldest);
}
