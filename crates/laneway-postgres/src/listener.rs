//! Hints from the database: a connection of its own that listens, is probed, and comes back when it breaks.
//!
//! ```text
//! off ── first subscriber ──▶ connecting ── LISTEN, probe came back ──▶ listening
//!                                 ▲                                        │ broken, or silent for 15 s
//!                                 └──────── back-off with jitter ◀─────────┘
//! ```
//! A probe that does not come back means that a pooler sits in between: then we stop trying, and workers poll.
//! After every (re)connect all receivers get a hint, since some may have been lost.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use deadpool_postgres::Pool;
use futures_util::{StreamExt, stream};
use laneway_core::{Hint, HintSender, Hints, QueueName, SessionId};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};
use tracing::{debug, info, warn};

use crate::connect::Address;

const PING_EVERY: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

pub(crate) struct Listener {
    shared: Arc<Shared>,
    /// It listens where the pool connects to.
    is_pool_address: bool,
    /// What the listening task is started with; taken by the first subscriber.
    start: Mutex<Option<(Address, Pool, Handle)>>,
}

/// What the listening task sees of the store. It holds only a weak reference and ends with the store.
struct Shared {
    hints: HintSender,
    channel: String,
    listening: AtomicBool,
    /// Short names of this process's sleeping sessions: a hint may name others.
    asleep: Mutex<HashSet<String>>,
}

/// Why a connection ended.
enum Ended {
    Broken,
    /// `LISTEN` was accepted and nothing arrives.
    Deaf,
}

impl Listener {
    /// `direct`: where to listen, if not where the pool connects to.
    pub fn new(pooled: &Address, direct: Option<Address>, pool: Pool, schema: &str, enabled: bool) -> Self {
        let is_pool_address = direct.is_none();
        let address = direct.unwrap_or_else(|| pooled.clone());
        let shared = Shared {
            hints: HintSender::default(),
            channel: format!("laneway:{schema}"),
            listening: AtomicBool::new(false),
            asleep: Mutex::default(),
        };
        let start = enabled.then(|| (address, pool, Handle::current()));
        Self { shared: Arc::new(shared), is_pool_address, start: Mutex::new(start) }
    }

    /// A receiver. The first one starts the listening task.
    pub fn subscribe(&self) -> Hints {
        let hints = self.shared.hints.subscribe();
        let start = self.start.lock().expect("no code panics while it holds this").take();
        if let Some((address, pool, runtime)) = start {
            runtime.spawn(listen_for_ever(Arc::downgrade(&self.shared), address, pool));
        }
        hints
    }

    pub fn is_listening(&self) -> bool {
        self.shared.listening.load(Ordering::Acquire)
    }

    /// True when a connection of the pool is known to be a session of the server: what one of them listens to arrives.
    pub fn pool_has_sessions(&self) -> bool {
        self.is_pool_address && self.is_listening()
    }

    /// This session sleeps: hints that name it are for us.
    pub fn expect(&self, session: SessionId) {
        self.shared.asleep().insert(short(session));
    }

    pub fn forget(&self, session: SessionId) {
        self.shared.asleep().remove(&short(session));
    }
}

/// A session as `hint.sql` names it.
fn short(session: SessionId) -> String {
    session.to_string()[..8].to_owned()
}

impl Shared {
    fn asleep(&self) -> MutexGuard<'_, HashSet<String>> {
        self.asleep.lock().expect("no code panics while it holds this")
    }

    /// Passes on what a notification says, if it is for us.
    fn notified(&self, payload: &str) {
        let mut parts = payload.split('\t');
        let (Some(told), Some(queue), Some(sessions)) = (parts.next(), parts.next(), parts.next()) else {
            debug!(payload, "a notification that is not ours");
            return;
        };
        if told == "orders" {
            self.hints.send(Hint::orders(sessions));
            return;
        }
        let named = sessions == "*" || sessions.split(',').any(|session| self.asleep().contains(session));
        if named {
            let told = told.parse().unwrap_or(1);
            self.hints.send(Hint { queue: QueueName::new(queue).ok(), told, orders: None });
        }
    }
}

async fn listen_for_ever(shared: Weak<Shared>, address: Address, pool: Pool) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let ended = listen(&shared, &address, &pool, &mut backoff).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.listening.store(false, Ordering::Release);
        if let Ended::Deaf = ended {
            warn!(
                target = %address.target,
                "LISTEN is accepted but nothing arrives, as behind a pooler in transaction mode; workers poll. \
                 Set the direct address of the server to get hints"
            );
            return;
        }
        drop(shared);
        sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Connects and listens until the connection breaks or the store is gone.
async fn listen(shared: &Weak<Shared>, address: &Address, pool: &Pool, backoff: &mut Duration) -> Ended {
    let (client, mut connection) = match address.config.connect(address.tls.clone()).await {
        Ok(connected) => connected,
        Err(error) => {
            debug!(target = %address.target, %error, "the listener cannot connect");
            return Ended::Broken;
        }
    };
    let (notified, mut notifications) = mpsc::channel(1024);
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
    // The driver of this connection; it ends when the client is dropped.
    tokio::spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message
                && notified.send(notification.payload().to_owned()).await.is_err()
            {
                return;
            }
        }
    });
    let Some(channel) = shared.upgrade().map(|shared| shared.channel.clone()) else { return Ended::Broken };
    if client.batch_execute(&format!("listen \"{channel}\"")).await.is_err() {
        return Ended::Broken;
    }
    match probe(pool, &channel, &mut notifications).await {
        Some(true) => (),
        Some(false) => return Ended::Deaf,
        None => return Ended::Broken,
    }
    if let Some(shared) = shared.upgrade() {
        info!(target = %address.target, "listening for hints");
        shared.listening.store(true, Ordering::Release);
        shared.hints.send(Hint::any());
    }
    *backoff = BACKOFF_MIN;
    forward(shared, &client, &mut notifications).await;
    Ended::Broken
}

/// Sends a notification to ourselves by way of the pool. `None` when it could not be sent.
async fn probe(pool: &Pool, channel: &str, notifications: &mut mpsc::Receiver<String>) -> Option<bool> {
    let word = format!("probe {}", uuid::Uuid::new_v4());
    let sender = pool.get().await.ok()?;
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&channel, Type::TEXT), (&word, Type::TEXT)];
    sender.query_typed("select pg_notify($1, $2)", parameters).await.ok()?;
    let arrived = timeout(ANSWER_WITHIN, async {
        while let Some(payload) = notifications.recv().await {
            if payload == word {
                return true;
            }
        }
        false
    });
    match arrived.await {
        Ok(true) => Some(true),
        Ok(false) => None,
        Err(_) => Some(false),
    }
}

/// Passes notifications on, and pings on the same connection: a half-open socket looks fine otherwise.
async fn forward(shared: &Weak<Shared>, client: &Client, notifications: &mut mpsc::Receiver<String>) {
    loop {
        match timeout(PING_EVERY, notifications.recv()).await {
            Ok(Some(payload)) => match shared.upgrade() {
                Some(shared) => shared.notified(&payload),
                None => return,
            },
            Ok(None) => return,
            Err(_) => {
                let answered = timeout(ANSWER_WITHIN, client.batch_execute("select 1")).await;
                if shared.strong_count() == 0 || !matches!(answered, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}
