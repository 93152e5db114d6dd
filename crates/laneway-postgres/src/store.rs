//! The store: each verb is one call of a function in the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use jiff::Timestamp;
use laneway_core::validate::{self, PAGE_MAX};
use laneway_core::{
    Acted, Action, Actor, Advance, Advanced, AuditEntry, AuditPage, Bulk, BulkId, BulkPage, BulkState,
    BulkStep, Cancel, Capacity, Changes, Children, Counts, Edit, Enqueued, FailedAttempt, Fence, Fired,
    Hints, Keep, KindCounts, Kinds, LANE_COUNT_MAX, LANES_COUNT_ROWS, LANES_LOOK_MAX, LaneKey, LaneLimit,
    LaneListing, LanePage, LaneSettings, LaneView, Limits, Listing, Looked, Maintained, Meter, NewBulk,
    NewTask, NewToken, Orders, Page, Pausable, Pause, Point, Position, QueueName, QueueSettings, QueueView,
    Ran, Registration, Renewal, Renewed, Report, Schedule, ScheduleName, ScheduleView, Serial, Series,
    SessionId, Sleep, Store, StoreError, StoreHealth, Swept, TaskId, TaskView, Token, TokenId, Totals, Watch,
    WatcherId, Why, WorkerView, check_bulk,
};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::advance::stored_name;
use crate::bounds::Bounds;
use crate::connect::Address;
use crate::enqueue::{BulkEnqueue, Group, Single, group_singles};
use crate::error::{translate, translate_pool};
use crate::filter::WireFilter;
use crate::listener::Listener;
use crate::options::{PostgresOptions, Statements};
use crate::statement::Session;
use crate::unique::{FIRST_WAIT_MS, WAIT_MS};
use crate::{look, migrate, schedule};

/// Single enqueues that wait for their commit at most; more of them wait in line.
const SINGLES_MAX: usize = 10_000;
/// Deletes in hot tables after which `maintain` vacuums them.
const VACUUM_AFTER: i64 = 20_000;

/// A PostgreSQL database as a store. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct PostgresStore {
    address: Address,
    pool: Pool,
    singles: mpsc::Sender<Single>,
    listener: Arc<Listener>,
    statements: Statements,
    claimed_since_vacuum: Arc<AtomicI64>,
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) limits: Limits,
    pub(crate) schema: Arc<str>,
    pub(crate) target: Arc<str>,
    /// Half of the connections at most wait for keys that other transactions are just taking.
    key_waiters: Arc<Semaphore>,
    /// And half of them run handlers.
    pub(crate) handler_slots: Arc<Semaphore>,
    meter: Meter,
    /// The database's default is above READ COMMITTED, so every statement needs a transaction that says otherwise.
    explicit_isolation: bool,
}

/// How many connections a server allows and how many a store may want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRoom {
    /// Connections that the store's pool may open.
    pub pool_size: usize,
    /// `max_connections` without those that are reserved for superusers.
    pub allowed: usize,
    /// Connections of other programs.
    pub used_by_others: usize,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PostgresStore({}, schema {})", self.target, self.schema)
    }
}

pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl PostgresStore {
    /// Connects, brings the tables up to date unless told not to, and checks that this program can work with them.
    ///
    /// Must be called inside a tokio runtime: the store starts one task that groups commits of single enqueues, and,
    /// once somebody wants hints, one that listens for them. Both end with the last clone of the store.
    ///
    /// # Errors
    /// A bad address or schema name, a server that cannot be reached, refuses us, is too old or read-only, tables
    /// that are newer than this program, or missing when it may not make them.
    pub async fn open(options: PostgresOptions) -> Result<Self, StoreError> {
        laneway_core::validate::schema_name(&options.schema)?;
        let address = Address::parse(&options.url)?;
        let direct = options.direct_url.as_deref().map(Address::parse).transpose()?;
        let pool = address.pool(options.pool_size)?;
        let mut client = pool.get().await.map_err(|error| translate_pool(&address.target, error))?;
        if options.migrate {
            migrate::migrate(&mut client, &options.schema, &address.target).await?;
        }
        migrate::check(&client, &options.schema, &address.target).await?;
        let explicit_isolation = default_isolation(&client, &address.target).await? != "read committed";
        drop(client);

        let (singles, waiting) = mpsc::channel(SINGLES_MAX);
        let meter = Meter::default();
        let listener =
            Arc::new(Listener::new(&address, direct, pool.clone(), &options.schema, options.hints));
        let group = Group {
            pool: pool.clone(),
            listener: listener.clone(),
            statements: options.statements,
            schema: options.schema.clone(),
            target: address.target.clone(),
            meter: meter.clone(),
        };
        tokio::spawn(group_singles(waiting, group));
        Ok(Self {
            singles,
            listener,
            statements: options.statements,
            claimed_since_vacuum: Arc::default(),
            bounds: Arc::default(),
            limits: options.limits,
            schema: options.schema.into(),
            target: address.target.as_str().into(),
            key_waiters: Arc::new(Semaphore::new((options.pool_size / 2).max(1))),
            handler_slots: Arc::new(Semaphore::new((options.pool_size / 2).max(1))),
            meter,
            explicit_isolation,
            pool,
            address,
        })
    }

    /// Everything in the pool, for metrics: connections open, and of those idle.
    pub fn connections(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    /// What the server allows, compared with what this store may open.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn connection_room(&self) -> Result<ConnectionRoom, StoreError> {
        let text = "select current_setting('max_connections')::int4 \
                    - current_setting('superuser_reserved_connections')::int4, count(*)::int4 \
                    from pg_stat_activity \
                    where backend_type = 'client backend' and application_name <> 'laneway'";
        let rows = self.client().await?.query_typed(text, &[]).await;
        let rows = rows.map_err(|error| translate(&self.target, "count connections", error))?;
        Ok(ConnectionRoom {
            pool_size: self.pool.status().max_size,
            allowed: rows[0].get::<_, i32>(0).max(0) as usize,
            used_by_others: rows[0].get::<_, i32>(1).max(0) as usize,
        })
    }

    pub(crate) fn tls(&self) -> MakeRustlsConnect {
        self.address.tls.clone()
    }

    pub(crate) async fn client(&self) -> Result<Object, StoreError> {
        let asked = Instant::now();
        let client = self.pool.get().await;
        self.meter.wait(asked.elapsed());
        client.map_err(|error| translate_pool(&self.target, error))
    }

    /// Stores tasks. If a key is just being taken by another transaction, this waits for it in a second try, together
    /// with few others, so that a key that is held for long does not use up the connections of this process.
    async fn enqueue_patiently(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>, StoreError> {
        let mut bulk = BulkEnqueue {
            schema: &self.schema,
            target: &self.target,
            limits: &self.limits,
            key_wait_ms: FIRST_WAIT_MS,
        };
        let mut client = self.client().await?;
        let sent = Instant::now();
        let first = bulk.enqueue(&mut client, tasks).await;
        self.meter.statement("enqueue", sent.elapsed());
        drop(client);
        if !matches!(first, Err(StoreError::Busy { .. })) {
            return first;
        }
        let _waiting = self.key_waiters.acquire().await.map_err(|_| StoreError::Closed)?;
        bulk.key_wait_ms = WAIT_MS;
        bulk.enqueue(&mut *self.client().await?, tasks).await
    }

    /// The rows of `call` in their order, and what running tasks among them have told. Null asks the strict function nothing.
    pub(crate) fn with_progress(&self, call: &str) -> String {
        let running = "case when t.state = 'leased' then t.id end";
        format!("{call} t left join lateral {}.progress_of({running}) p on true", self.schema)
    }

    /// Calls one function of the schema: `call` is what follows `select * from schema.`.
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        call: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut client = self.client().await?;
        let sent = Instant::now();
        let rows = self.query(&mut client, call, parameters).await;
        self.meter.statement(doing, sent.elapsed());
        rows.map_err(|error| translate(&self.target, doing, error))
    }

    async fn query(
        &self,
        client: &mut Object,
        call: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let text = format!("select * from {}.{call}", self.schema);
        if !self.explicit_isolation {
            return client.query_typed(&text, parameters).await;
        }
        let transaction = read_committed(client).await?;
        let rows = transaction.query_typed(&text, parameters).await?;
        transaction.commit().await?;
        Ok(rows)
    }
}

/// A transaction of the level that our functions need, whatever the session's default is.
pub(crate) async fn read_committed(
    client: &mut tokio_postgres::Client,
) -> Result<tokio_postgres::Transaction<'_>, tokio_postgres::Error> {
    client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await
}

async fn default_isolation(client: &tokio_postgres::Client, target: &str) -> Result<String, StoreError> {
    let rows = client.query_typed("select current_setting('default_transaction_isolation')", &[]).await;
    Ok(rows.map_err(|error| translate(target, "read settings", error))?[0].get(0))
}

/// How many tasks of which queue a sweep made runnable again.
fn rescued(row: &Row) -> BTreeMap<QueueName, u32> {
    let queues = row.get::<_, Option<Vec<String>>>("queues").unwrap_or_default();
    let counts = row.get::<_, Option<Vec<i32>>>("rescued").unwrap_or_default();
    let both = std::iter::zip(queues.into_iter().map(stored_name), counts);
    both.filter(|(_, count)| *count > 0).map(|(queue, count)| (queue, count as u32)).collect()
}

fn names(queues: &[QueueName]) -> Vec<&str> {
    queues.iter().map(QueueName::as_str).collect()
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    async fn enqueue(&self, task: NewTask) -> Result<Enqueued, StoreError> {
        task.check(&self.limits)?;
        if task.unique.is_some() {
            // Not with others: it may have to wait for its key.
            return Ok(self.enqueue_patiently(&[task]).await?[0]);
        }
        let (answer, answered) = oneshot::channel();
        self.singles.send(Single { task, answer }).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn enqueue_many(&self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>, StoreError> {
        check_bulk(&tasks, &self.limits)?;
        if tasks.is_empty() {
            return Ok(vec![]);
        }
        self.enqueue_patiently(&tasks).await
    }

    async fn advance(&self, mut advance: Advance) -> Result<Advanced, StoreError> {
        self.clean(&mut advance);
        let mut client = self.client().await?;
        let sent = Instant::now();
        let advanced = if let Some(advanced) = self.fan_out(&mut client, &advance).await? {
            advanced
        } else if self.explicit_isolation {
            let failed = |error| translate(&self.target, "advance", error);
            let transaction = read_committed(&mut client).await.map_err(failed)?;
            let advanced = self.advance_on(&transaction, advance).await?;
            transaction.commit().await.map_err(failed)?;
            advanced
        } else if self.statements.are_kept(&self.listener) {
            self.advance_on(&Session(&client), advance).await?
        } else {
            self.advance_on(&**client, advance).await?
        };
        self.meter.statement("advance", sent.elapsed());
        self.claimed_since_vacuum.fetch_add(advanced.claimed.len() as i64, Ordering::Relaxed);
        Ok(advanced)
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        let Registration { session, name, queues, kinds, capacity } = registration;
        let call = "register(p_session => $1, p_name => $2, p_queues => $3, p_kinds => $4, p_slots => $5, p_free => $6, \
                    p_memory_percent => $7, p_draining => $8)";
        let parameters: &[Parameter<'_>] = &[
            (&session.0, Type::UUID),
            (&laneway_core::validate::clean_report(&name), Type::TEXT),
            (&names(&queues), Type::TEXT_ARRAY),
            (&kinds.names(), Type::TEXT_ARRAY),
            (&(capacity.slots as i32), Type::INT4),
            (&(capacity.free as i32), Type::INT4),
            (&i16::from(capacity.memory_percent), Type::INT2),
            (&capacity.draining, Type::BOOL),
        ];
        self.call("register", call, parameters).await.map(drop)
    }

    async fn renew(&self, renewal: Renewal) -> Result<Renewed, StoreError> {
        let Renewal { session, capacity, leases, advance_number } = renewal;
        let leases: Vec<_> = leases.iter().map(|lease| lease.0).collect();
        let call = "renew(p_session => $1, p_slots => $2, p_free => $3, p_memory_percent => $4, p_draining => $5, \
                    p_leases => $6, p_number => $7)";
        let parameters: &[Parameter<'_>] = &[
            (&session.0, Type::UUID),
            (&(capacity.slots as i32), Type::INT4),
            (&(capacity.free as i32), Type::INT4),
            (&i16::from(capacity.memory_percent), Type::INT2),
            (&capacity.draining, Type::BOOL),
            (&leases, Type::INT8_ARRAY),
            (&(advance_number as i64), Type::INT8),
        ];
        let rows = self.call("renew", call, parameters).await?;
        let row = &rows[0];
        if !row.get::<_, bool>("alive") {
            return Ok(Renewed::Lost);
        }
        let cancel: Option<Vec<i64>> = row.get("cancel");
        Ok(Renewed::Alive(Orders {
            cancel: cancel.unwrap_or_default().into_iter().map(TaskId).collect(),
            drain: row.get("drain"),
            stop: row.get("stop"),
            given_back: row.get::<_, i32>("given_back") as u32,
        }))
    }

    async fn report_progress(&self, session: SessionId, reports: Vec<Report>) -> Result<(), StoreError> {
        let tasks: Vec<_> = reports.iter().map(|report| report.task.0).collect();
        let leases: Vec<_> = reports.iter().map(|report| report.lease.0).collect();
        let fractions: Vec<_> = reports.iter().map(|report| report.progress.fraction).collect();
        let notes: Vec<_> = reports.iter().map(|report| report.progress.note.as_deref()).collect();
        let call = "report_progress(p_session => $1, p_tasks => $2, p_leases => $3, p_fractions => $4, p_notes => $5)";
        let parameters: &[Parameter<'_>] = &[
            (&session.0, Type::UUID),
            (&tasks, Type::INT8_ARRAY),
            (&leases, Type::INT8_ARRAY),
            (&fractions, Type::FLOAT8_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ];
        self.call("report progress", call, parameters).await.map(drop)
    }

    async fn deregister(&self, session: SessionId) -> Result<(), StoreError> {
        self.bounds.forget(session);
        self.call("deregister", "deregister(p_session => $1)", &[(&session.0, Type::UUID)]).await.map(drop)
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        let rows = self.call("sweep", "sweep()", &[]).await?;
        let count = |column| rows[0].get::<_, i32>(column) as u32;
        Ok(Swept {
            sessions: count("sessions"),
            given_back: count("given_back"),
            poisoned: count("poisoned"),
            rescued: rescued(&rows[0]),
        })
    }

    async fn maintain(&self) -> Result<Maintained, StoreError> {
        self.call("prepare days of history", "prepare_days()", &[]).await?;
        self.call("remove idle lanes", "remove_idle_lanes(p_max => 1000)", &[]).await?;
        self.call("remove keys", "remove_expired_keys(p_max => 10000)", &[]).await?;
        self.call("remove progress", "remove_old_progress(p_max => 10000)", &[]).await?;
        self.call("fold history", "fold_history()", &[]).await?;
        let dropped = self.call("drop history", "drop_history(p_max => 10000)", &[]).await?;
        let maintained = look::maintained(&dropped[0])?;
        self.call("forget broods", "remove_broods(p_max => 1000)", &[]).await?;
        self.call("trim changes", "trim_changes(p_max => 10000)", &[]).await?;
        if self.claimed_since_vacuum.load(Ordering::Relaxed) < VACUUM_AFTER {
            return Ok(maintained);
        }
        self.claimed_since_vacuum.store(0, Ordering::Relaxed);
        // Autovacuum comes once a minute at best. Without the right to vacuum the server only warns.
        let client = self.client().await?;
        for table in
            ["task", "lease", "turn", "mark", "lane", "settled", "later", "unique_key", "waiting", "tally"]
        {
            let vacuum = format!("vacuum (skip_locked, truncate off) {}.{table}", self.schema);
            client.batch_execute(&vacuum).await.map_err(|error| translate(&self.target, "vacuum", error))?;
        }
        Ok(maintained)
    }

    fn meter(&self) -> Meter {
        self.meter.clone()
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let rows = self.call("look at the store", "store_health()", &[]).await?;
        look::health(&rows)
    }

    fn control(&self) -> Option<Arc<dyn Store>> {
        // The address made a pool before, when the store was opened.
        let pool = self.address.pool(1).ok()?;
        Some(Arc::new(Self { pool, ..self.clone() }))
    }

    fn hints(&self) -> Hints {
        self.listener.subscribe()
    }

    fn is_listening(&self) -> bool {
        self.listener.is_listening()
    }

    async fn fall_asleep(&self, sleep: Sleep) -> Result<Fence, StoreError> {
        self.listener.expect(sleep.session);
        let call = "fall_asleep(p_session => $1, p_queues => $2, p_at_most_ms => $3)";
        let millis = sleep.at_most.as_millis() as i64;
        let parameters: &[Parameter<'_>] = &[
            (&sleep.session.0, Type::UUID),
            (&names(&sleep.queues), Type::TEXT_ARRAY),
            (&millis, Type::INT8),
        ];
        self.call("fall asleep", call, parameters).await?;
        // A transaction of its own, after the commit of the announcement.
        let rows = self.call("take a fence", "fence()", &[]).await?;
        Ok(Fence(rows[0].get::<_, i64>(0) as u64))
    }

    async fn fence_passed(&self, fence: Fence) -> Result<bool, StoreError> {
        let call = "fence_passed(p_fence => $1)";
        Ok(self.call("look at the fence", call, &[(&(fence.0 as i64), Type::INT8)]).await?[0].get(0))
    }

    async fn is_claimable(&self, queues: &[QueueName], kinds: &Kinds) -> Result<bool, StoreError> {
        let call = "is_claimable(p_queues => $1, p_kinds => $2)";
        let parameters: &[Parameter<'_>] =
            &[(&names(queues), Type::TEXT_ARRAY), (&kinds.names(), Type::TEXT_ARRAY)];
        Ok(self.call("look for work", call, parameters).await?[0].get(0))
    }

    async fn wake_up(&self, session: SessionId) -> Result<(), StoreError> {
        self.listener.forget(session);
        self.call("wake up", "wake_up(p_session => $1)", &[(&session.0, Type::UUID)]).await.map(drop)
    }

    async fn get(&self, task: TaskId) -> Result<Option<TaskView>, StoreError> {
        let call = self.with_progress("get_task(p_task => $1)");
        let rows = self.call("get a task", &call, &[(&task.0, Type::INT8)]).await?;
        Ok(rows.first().map(look::task_view))
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        listing.check()?;
        let place = look::place_name(listing.place);
        let filter = WireFilter::of(&listing.filter);
        if !listing.filter.places().contains(&listing.place) {
            return Ok(Page { tasks: vec![], next: None, looked: Looked::ToTheEnd });
        }
        let at =
            listing.after.map(|cursor| Timestamp::from_microsecond(cursor.micros).unwrap_or(Timestamp::MAX));
        let id = listing.after.map(|cursor| cursor.id.0);
        let call = "list_tasks(p_place => $1, p_filter => $2::jsonb, p_states => $3, p_plain => $4, p_at => $5, \
                    p_id => $6, p_limit => $7, p_rows => $8)";
        let parameters: &[Parameter<'_>] = &[
            (&place, Type::TEXT),
            (&filter.terms.to_string(), Type::TEXT),
            (&filter.states, Type::TEXT_ARRAY),
            (&filter.plain, Type::BOOL),
            (&at, Type::TIMESTAMPTZ),
            (&id, Type::INT8),
            (&(listing.limit as i32 + 1), Type::INT4),
            (&(filter.rows as i32), Type::INT4),
        ];
        let rows = self.call("list tasks", &self.with_progress(call), parameters).await?;
        Ok(look::page(&listing, filter.rows, &rows))
    }

    async fn counts(&self) -> Result<Vec<Counts>, StoreError> {
        let rows = self.call("count tasks", "count_tasks()", &[]).await?;
        let mut counts: Vec<_> = rows.iter().map(look::counts).collect();
        counts.sort();
        Ok(counts)
    }

    async fn counts_by_kind(&self, queue: &QueueName) -> Result<Vec<KindCounts>, StoreError> {
        let parameters: &[Parameter<'_>] = &[(&queue.as_str(), Type::TEXT)];
        let rows = self.call("count kinds", "count_kinds(p_queue => $1)", parameters).await?;
        let mut counts: Vec<_> = rows.iter().map(look::kind_counts).collect();
        counts.sort();
        Ok(counts)
    }

    async fn queues(&self) -> Result<Vec<QueueView>, StoreError> {
        let rows = self.call("list queues", "list_queues()", &[]).await?;
        Ok(rows.iter().map(look::queue_view).collect())
    }

    async fn why(&self, task: TaskId) -> Result<Option<Why>, StoreError> {
        let rows = self.call("look why", "why_text(p_task => $1)", &[(&task.0, Type::INT8)]).await?;
        look::why(task, &rows)
    }

    async fn watch(&self, keep: Duration) -> Result<Watch, StoreError> {
        validate::watch_keep(keep)?;
        let watcher = WatcherId(uuid::Uuid::new_v4());
        let call = "watch(p_watcher => $1, p_keep_ms => $2)";
        let parameters: &[Parameter<'_>] =
            &[(&watcher.0, Type::UUID), (&(keep.as_millis() as i64), Type::INT8)];
        self.call("watch", call, parameters).await?;
        // A transaction of its own, after the commit of the announcement.
        let rows = self.call("take a fence", "fence()", &[]).await?;
        let fence = Fence(rows[0].get::<_, i64>(0) as u64);
        Ok(Watch { watcher, fence, position: Position { tx: fence.0, seq: 0 } })
    }

    async fn changes(&self, watcher: WatcherId, after: Position, max: u32) -> Result<Changes, StoreError> {
        validate::in_range("max", max, 1..=PAGE_MAX)?;
        let call = "read_changes(p_watcher => $1, p_tx => $2, p_seq => $3, p_max => $4)";
        let parameters: &[Parameter<'_>] = &[
            (&watcher.0, Type::UUID),
            (&(after.tx as i64), Type::INT8),
            (&(after.seq as i64), Type::INT8),
            (&(max as i32), Type::INT4),
        ];
        Ok(look::changes(&self.call("read changes", call, parameters).await?))
    }

    async fn unwatch(&self, watcher: WatcherId) -> Result<(), StoreError> {
        self.call("unwatch", "unwatch(p_watcher => $1)", &[(&watcher.0, Type::UUID)]).await.map(drop)
    }

    async fn set_queue_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        settings: QueueSettings,
    ) -> Result<(), StoreError> {
        settings.check()?;
        let call = "set_queue(p_who => $1, p_reason => $2, p_queue => $3, p_keep_completed_days => $4, \
                    p_keep_failed_days => $5, p_keep_cancelled_days => $6, p_statistics => $7, p_serial => $8, p_lane_limit => $9)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&queue.as_str(), Type::TEXT),
            (&settings.keep_completed.map(Keep::stored), Type::INT4),
            (&settings.keep_failed.map(Keep::stored), Type::INT4),
            (&settings.keep_cancelled.map(Keep::stored), Type::INT4),
            (&settings.statistics, Type::BOOL),
            (&settings.serial.map(Serial::stored), Type::INT4),
            (&settings.lane_limit.map(LaneLimit::stored), Type::INT4),
        ];
        self.call("set a queue", call, parameters).await.map(drop)
    }

    async fn series(&self, series: Series) -> Result<Vec<Point>, StoreError> {
        series.check()?;
        let call = "read_series(p_queue => $1, p_from => $2, p_to => $3, p_step_s => $4)";
        let parameters: &[Parameter<'_>] = &[
            (&series.queue.as_ref().map(QueueName::as_str), Type::TEXT),
            (&series.from, Type::TIMESTAMPTZ),
            (&series.to, Type::TIMESTAMPTZ),
            (&(series.step.as_secs() as i64), Type::INT8),
        ];
        let rows = self.call("read statistics", call, parameters).await?;
        Ok(look::points(&series, &rows))
    }

    async fn totals(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Totals>, StoreError> {
        let parameters: &[Parameter<'_>] = &[(&from, Type::TIMESTAMPTZ), (&to, Type::TIMESTAMPTZ)];
        let call = "read_totals(p_from => $1, p_to => $2)";
        Ok(self.call("read totals", call, parameters).await?.iter().map(look::totals).collect())
    }

    async fn failures(&self, task: TaskId) -> Result<Vec<FailedAttempt>, StoreError> {
        let rows =
            self.call("list failures", "list_failures(p_task => $1)", &[(&task.0, Type::INT8)]).await?;
        Ok(rows.iter().map(look::failed_attempt).collect())
    }

    async fn children(&self, page: Children) -> Result<Vec<TaskView>, StoreError> {
        self.list_children(page).await
    }

    async fn follow_ups(&self, task: TaskId) -> Result<Vec<TaskView>, StoreError> {
        self.list_follow_ups(task).await
    }

    async fn cancel(&self, task: TaskId) -> Result<Cancel, StoreError> {
        let rows = self.call("cancel", "cancel(p_task => $1)", &[(&task.0, Type::INT8)]).await?;
        match rows[0].get::<_, &str>(0) {
            "cancelled" => Ok(Cancel::Cancelled),
            "requested" => Ok(Cancel::Requested),
            "not_found" => Ok(Cancel::NotFound),
            "busy" => Err(StoreError::Busy { what: format!("task {task}") }),
            ended => Ok(Cancel::Ended(look::state(ended.trim_start_matches("ended_")))),
        }
    }

    async fn set_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
        settings: LaneSettings,
    ) -> Result<(), StoreError> {
        self.change_lane(actor, (queue, lane), settings).await
    }

    async fn resume_lane_by(
        &self,
        actor: &Actor,
        queue: &QueueName,
        lane: &LaneKey,
    ) -> Result<bool, StoreError> {
        self.end_halt(actor, queue, lane).await
    }

    async fn lane(&self, queue: &QueueName, lane: &LaneKey) -> Result<Option<LaneView>, StoreError> {
        let call = "lane_view(p_queue => $1, p_key => $2, p_rows => $3)";
        let parameters: &[Parameter<'_>] = &[
            (&queue.as_str(), Type::TEXT),
            (&lane.as_str(), Type::TEXT),
            (&(LANE_COUNT_MAX as i32), Type::INT4),
        ];
        Ok(self.call("look at a lane", call, parameters).await?.first().map(look::lane_view))
    }

    async fn lanes(&self, listing: LaneListing) -> Result<LanePage, StoreError> {
        listing.check()?;
        let after = listing.after.as_ref();
        let call = "list_lanes(p_queue => $1, p_order => $2, p_number => $3, p_key => $4, p_limit => $5, \
                    p_lanes => $6, p_rows => $7, p_most => $8)";
        let parameters: &[Parameter<'_>] = &[
            (&listing.queue.as_str(), Type::TEXT),
            (&listing.order.as_str(), Type::TEXT),
            (&after.map(|cursor| cursor.number as i64), Type::INT8),
            (&after.map(|cursor| cursor.key.as_str()), Type::TEXT),
            (&(listing.limit as i32 + 1), Type::INT4),
            (&(LANES_LOOK_MAX as i32), Type::INT4),
            (&(LANES_COUNT_ROWS as i64), Type::INT8),
            (&(LANE_COUNT_MAX as i64), Type::INT8),
        ];
        let rows = self.call("list lanes", call, parameters).await?;
        let partial = rows.first().is_some_and(|row| row.get("partial"));
        Ok(listing.page(rows.iter().map(look::lane_view).collect(), partial))
    }

    async fn pause(
        &self,
        actor: &Actor,
        what: &Pausable,
        expires: Option<Duration>,
    ) -> Result<bool, StoreError> {
        self.begin_pause(actor, what, expires).await
    }

    async fn resume(&self, actor: &Actor, what: &Pausable) -> Result<bool, StoreError> {
        self.end_pause(actor, what).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.list_pauses().await
    }

    async fn drain(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        self.order_drain(actor, session.0).await
    }

    async fn stop(&self, actor: &Actor, session: SessionId) -> Result<bool, StoreError> {
        self.order_stop(actor, session.0).await
    }

    async fn edit(&self, actor: &Actor, task: TaskId, edit: Edit) -> Result<Acted, StoreError> {
        self.edit_task(actor, task, &edit).await
    }

    async fn act(&self, actor: &Actor, action: Action, tasks: &[TaskId]) -> Result<Vec<Acted>, StoreError> {
        self.act_on(actor, action, tasks).await
    }

    async fn start_bulk(&self, actor: &Actor, bulk: NewBulk) -> Result<Bulk, StoreError> {
        self.begin_bulk(actor, bulk).await
    }

    async fn bulk(&self, id: BulkId) -> Result<Option<Bulk>, StoreError> {
        self.view_bulk(id).await
    }

    async fn bulks(&self, page: BulkPage) -> Result<Vec<Bulk>, StoreError> {
        self.list_bulks(page).await
    }

    async fn record_bulk_step(&self, step: BulkStep) -> Result<bool, StoreError> {
        self.take_bulk_step(step).await
    }

    async fn set_bulk_state(&self, actor: &Actor, id: BulkId, state: BulkState) -> Result<bool, StoreError> {
        self.change_bulk_state(actor, id, state).await
    }

    async fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        self.list_audit(page).await
    }

    async fn create_token(&self, actor: &Actor, token: NewToken) -> Result<Token, StoreError> {
        self.store_token(actor, token).await
    }

    async fn revoke_token(&self, actor: &Actor, token: TokenId) -> Result<bool, StoreError> {
        self.remove_token(actor, token).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.list_tokens(None).await
    }

    async fn token(&self, token: TokenId) -> Result<Option<Token>, StoreError> {
        Ok(self.list_tokens(Some(token)).await?.pop())
    }

    async fn fire_due(&self) -> Result<Fired, StoreError> {
        schedule::fire_due(self).await
    }

    async fn put_schedule_by(&self, actor: &Actor, schedule: Schedule) -> Result<ScheduleView, StoreError> {
        schedule::put(self, actor, schedule).await
    }

    async fn remove_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        schedule::change(self, actor, "remove a schedule", "remove_schedule", schedule).await
    }

    async fn pause_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        schedule::change(self, actor, "pause a schedule", "pause_schedule", schedule).await
    }

    async fn resume_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<bool, StoreError> {
        schedule::resume(self, actor, schedule).await
    }

    async fn run_schedule_by(&self, actor: &Actor, schedule: &ScheduleName) -> Result<Ran, StoreError> {
        schedule::run(self, actor, schedule).await
    }

    async fn schedule(&self, schedule: &ScheduleName) -> Result<Option<ScheduleView>, StoreError> {
        schedule::find(self, schedule).await
    }

    async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: u32,
    ) -> Result<Vec<ScheduleView>, StoreError> {
        validate::in_range("limit", limit, 1..=PAGE_MAX)?;
        schedule::page(self, after, limit).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>, StoreError> {
        let rows = self.call("list workers", "list_workers()", &[]).await?;
        Ok(rows
            .iter()
            .map(|row| WorkerView {
                session: SessionId(row.get("session")),
                name: row.get("name"),
                queues: row.get::<_, Vec<String>>("queues").into_iter().map(stored_name).collect(),
                kinds: look::kinds(row.get("kinds")),
                capacity: Capacity {
                    slots: row.get::<_, i32>("slots") as u32,
                    free: row.get::<_, i32>("free") as u32,
                    memory_percent: row.get::<_, i16>("memory_percent") as u8,
                    draining: row.get("draining"),
                },
                started_at: row.get("started_at"),
                seen_at: row.get("seen_at"),
            })
            .collect())
    }

    async fn verify(&self) -> Result<Vec<String>, StoreError> {
        let rows = self.call("verify", "verify()", &[]).await?;
        let mut problems: Vec<_> = rows.iter().map(|row| row.get(0)).collect();
        let mut after = None;
        loop {
            let page = schedule::page(self, after.as_ref(), PAGE_MAX).await?;
            problems.extend(page.iter().filter_map(ScheduleView::problem));
            match page.into_iter().nth(PAGE_MAX as usize - 1) {
                Some(last) => after = Some(last.schedule.name),
                None => return Ok(problems),
            }
        }
    }
}
