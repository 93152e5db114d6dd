//! Tells the store that the worker lives, and brings its orders.
//!
//! Renewals have a thread, a runtime and a connection of their own: a handler that blocks every thread of the main runtime
//! must not make the worker look dead. While attempts run it renews every 1.5 s, so that a cancel reaches them
//! within two seconds; otherwise every ten. A hint that there are orders makes it renew at once.
//!
//! A worker that cannot renew is taken for dead 30 s after its last sign of life, and its tasks run elsewhere. Five
//! seconds before that the coordinator is told to stop its attempts. The time counts from when the last renewal that
//! was answered was *sent*.

use std::sync::Arc;
use std::time::Duration;

use laneway_core::liveness::SESSION_SILENCE_MAX;
use laneway_core::{Orders, Renewal, Renewed, SessionId, Store, StoreError, TaskId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::{ByResult, Counted};
use crate::shared::Shared;
use crate::vitals::Vitals;

/// How often it renews while attempts run.
const WHILE_RUNNING: Duration = Duration::from_millis(1_500);
/// How often it renews otherwise.
const WHILE_IDLE: Duration = Duration::from_secs(10);
/// How often it looks whether it is time.
const TICK: Duration = Duration::from_millis(250);
/// How long it waits after a renewal that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The progress of attempts is passed on at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Passing it on must not keep us from renewing.
const REPORT_WITHIN: Duration = Duration::from_secs(2);
/// Attempts are stopped this long before the session would end.
const MARGIN: Duration = Duration::from_secs(5);

/// What the coordinator is told. Orders are repeated with every renewal, so one that finds the channel full is not lost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The session lives: stop these, take nothing new if `drain`, and end if `stop`.
    Alive { session: SessionId, cancel: Vec<TaskId>, drain: bool, stop: bool },
    /// The session will end before it can be renewed: stop everything.
    Expires(SessionId),
    /// The session has ended.
    Lost(SessionId),
}

pub(crate) struct Renewer {
    pub store: Arc<dyn Store>,
    pub vitals: Arc<Vitals>,
    pub shared: Arc<Shared>,
    /// The coordinator holds the other end. Once that is dropped nobody needs orders, and the thread ends by `stop`.
    pub orders: mpsc::Sender<Order>,
    pub counted: Counted,
    pub stop: CancellationToken,
}

impl Renewer {
    /// Starts the thread. It ends when `stop` is cancelled.
    pub(crate) fn spawn_thread(self) -> std::io::Result<std::thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("laneway-renew".into());
        thread.spawn(move || {
            let stop = self.stop.clone();
            runtime.block_on(async { stop.run_until_cancelled(self.renew_for_ever()).await });
        })
    }

    async fn renew_for_ever(self) {
        let (mut last, mut reported) = (None, Instant::now());
        loop {
            let asked = timeout(TICK, self.vitals.renewal_asked()).await.is_ok();
            if let Some(renewal) = self.is_due(&mut last, asked) {
                self.renew(renewal, &mut last).await;
            }
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                self.report().await;
            }
        }
    }

    /// Passes on what attempts have told about themselves.
    async fn report(&self) {
        let Some((session, _)) = self.vitals.session() else { return };
        let reports = self.shared.board.take();
        if reports.is_empty() {
            return;
        }
        let sent = timeout(REPORT_WITHIN, self.store.report_progress(session, reports.clone())).await;
        if !matches!(sent, Ok(Ok(()))) {
            debug!(tasks = reports.len(), "could not pass on the progress of attempts; trying again");
            self.shared.board.put_back(reports);
        }
    }

    /// The next renewal, if it is time or was asked for. `last` is the session and when its last answered sign of life was sent.
    fn is_due(&self, last: &mut Option<(SessionId, Instant)>, asked: bool) -> Option<Renewal> {
        let (session, registered) = self.vitals.session()?;
        let known = last.filter(|(known, _)| *known == session);
        let (_, sent) = *last.insert(known.unwrap_or((session, registered)));
        let every = if self.vitals.is_running_something() { WHILE_RUNNING } else { WHILE_IDLE };
        if sent.elapsed() < every && !asked { None } else { self.vitals.renewal() }
    }

    async fn renew(&self, renewal: Renewal, last: &mut Option<(SessionId, Instant)>) {
        let Some((session, sent_before)) = *last else { return };
        let deadline = sent_before + SESSION_SILENCE_MAX - MARGIN;
        let sent = Instant::now();
        let leases = renewal.leases.len();
        let mut answer = std::pin::pin!(self.store.renew(renewal));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = sleep_until(deadline) => {
                self.tell(Order::Expires(session));
                answer.await
            }
        };
        match answer {
            Ok(Renewed::Alive(orders)) => {
                *last = Some((session, sent));
                self.count("ok");
                self.counted.flushed("heartbeat", leases, sent.elapsed());
                if orders.given_back > 0 {
                    info!(tasks = orders.given_back, "gave back tasks of a claim whose answer was lost");
                }
                let Orders { cancel, drain, stop, .. } = orders;
                self.tell(Order::Alive { session, cancel, drain, stop });
            }
            Ok(Renewed::Lost) => {
                self.count("lost");
                self.tell(Order::Lost(session));
            }
            Err(error) => {
                self.failed(session, deadline, &error);
                sleep(AFTER_ERROR).await;
            }
        }
    }

    fn failed(&self, session: SessionId, deadline: Instant, error: &StoreError) {
        self.count("error");
        warn!(%error, "could not renew the worker's session; trying again");
        if Instant::now() >= deadline {
            self.tell(Order::Expires(session));
        }
    }

    fn tell(&self, order: Order) {
        // Never waits: a busy coordinator must not keep us from renewing.
        let _ = self.orders.try_send(order);
    }

    fn count(&self, result: &'static str) {
        self.counted.heartbeats.get_or_create(&ByResult { result }).inc();
    }
}
