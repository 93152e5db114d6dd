//! Who sleeps in this process, and who is told what.
//!
//! After a commit that left something runnable behind, the writing thread tells the workers of this process that
//! sleep. Workers of other processes on the same file are told by their own writing thread: while
//! somebody sleeps, it looks every 50 ms whether the file was changed from outside. Nobody asleep, no looking.
//!
//! Announcing a sleep needs no fence. The announcement is handled between two transactions of the
//! one thread: what was committed before is seen by the worker's next claim, what comes after sends a hint.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use laneway_core::{Hint, HintSender, QueueName, SessionId, Sleep};

use crate::claimable;
use crate::due;
use crate::queue;
use crate::row::{self, Sql};

/// How often other processes' commits are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Hints go on for this long after the announced sleep, should the worker be late.
const SLACK: Duration = Duration::from_secs(1);

/// What a command has made runnable, now or at some time.
#[derive(Debug, Default)]
pub(crate) struct News {
    queues: BTreeSet<i64>,
    due_at: Option<i64>,
    orders: BTreeSet<String>,
}

impl News {
    /// Something in `queue` may have become claimable.
    pub(crate) fn runnable(&mut self, queue: i64) {
        self.queues.insert(queue);
    }

    /// Something will be runnable at `due_at`.
    pub(crate) fn due(&mut self, due_at: i64) {
        self.due_at = Some(self.due_at.map_or(due_at, |earlier| earlier.min(due_at)));
    }

    /// The worker of this session has orders.
    pub(crate) fn orders(&mut self, session: SessionId) {
        self.orders.insert(session.to_string());
    }

    /// Adds what another command has to tell.
    pub(crate) fn merge(&mut self, other: Self) {
        self.queues.extend(other.queues);
        self.orders.extend(other.orders);
        if let Some(due_at) = other.due_at {
            self.due(due_at);
        }
    }
}

struct Sleeper {
    queues: Vec<QueueName>,
    until: Instant,
}

/// The workers of this process that sleep.
pub(crate) struct Sleepers {
    hints: HintSender,
    asleep: HashMap<SessionId, Sleeper>,
    /// Changes when another connection than ours has committed.
    version: i64,
    /// The next due time that was known when we last looked.
    next_due: Option<i64>,
    looked: Instant,
}

impl Sleepers {
    /// Nobody sleeps yet.
    pub(crate) fn new(hints: HintSender) -> Self {
        Self { hints, asleep: HashMap::new(), version: 0, next_due: None, looked: Instant::now() }
    }

    /// Records an announcement.
    pub(crate) fn fall_asleep(&mut self, db: &Connection, now: i64, sleep: Sleep) -> rusqlite::Result<()> {
        // Those who sleep already hear of what came before the marks move.
        self.look_abroad(db, now);
        self.version = version(db)?;
        self.next_due = due::next_due(db)?;
        let until = Instant::now() + sleep.at_most.saturating_add(SLACK).min(Duration::from_secs(86_400));
        self.asleep.insert(sleep.session, Sleeper { queues: sleep.queues, until });
        Ok(())
    }

    /// Takes an announcement back.
    pub(crate) fn wake_up(&mut self, session: SessionId) {
        self.asleep.remove(&session);
    }

    /// How long until the next look at the file; `None` while nobody sleeps.
    pub(crate) fn until_next_look(&mut self) -> Option<Duration> {
        let now = Instant::now();
        self.asleep.retain(|_, sleeper| sleeper.until > now);
        (!self.asleep.is_empty()).then(|| LOOK_EVERY.saturating_sub(self.looked.elapsed()))
    }

    /// Tells what our own commit has made runnable.
    pub(crate) fn tell(&mut self, db: &Connection, mut news: News, now: i64) {
        // For whoever of this process it is, asleep or not.
        for session in std::mem::take(&mut news.orders) {
            self.hints.send(Hint::orders(session));
        }
        if !self.asleep.is_empty()
            && let Err(error) = self.try_tell(db, &news, now)
        {
            tracing::warn!(%error, "could not tell sleeping workers about new tasks; they find them when they wake");
        }
    }

    /// Tells what other processes have made runnable, if the file was changed from outside.
    pub(crate) fn look_abroad(&mut self, db: &Connection, now: i64) {
        self.looked = Instant::now();
        if !self.asleep.is_empty()
            && let Err(error) = self.try_look_abroad(db, now)
        {
            tracing::warn!(%error, "could not look for tasks of other processes; workers find them when they wake");
        }
    }

    fn try_tell(&mut self, db: &Connection, news: &News, now: i64) -> rusqlite::Result<()> {
        for queue in &news.queues {
            let name = db.first("select name from queue where id = ?1", [queue], |row| row.get(0))?;
            if let Some(name) = name
                && claimable::in_queue(db, *queue)?
            {
                self.tell_queue(row::queue_name(name)?);
            }
        }
        match news.due_at {
            // Whoever sleeps will wake for what was due before.
            Some(due_at) if due::next_due(db)? == Some(due_at) => self.tell_due(due_at, now),
            _ => (),
        }
        Ok(())
    }

    fn try_look_abroad(&mut self, db: &Connection, now: i64) -> rusqlite::Result<()> {
        let version = version(db)?;
        if version == self.version {
            return Ok(());
        }
        self.version = version;
        let queues: BTreeSet<QueueName> =
            self.asleep.values().flat_map(|sleeper| sleeper.queues.iter().cloned()).collect();
        for name in queues {
            if let Some(queue) = queue::find(db, &name)?
                && claimable::in_queue(db, queue)?
            {
                self.tell_queue(name);
            }
        }
        let next_due = due::next_due(db)?;
        if let Some(due_at) = next_due
            && self.next_due.is_none_or(|known| due_at < known)
        {
            self.tell_due(due_at, now);
        }
        self.next_due = next_due;
        Ok(())
    }

    fn tell_queue(&self, queue: QueueName) {
        let told = self.asleep.values().filter(|sleeper| sleeper.queues.contains(&queue)).count();
        if told > 0 {
            self.hints.send(Hint::of(queue, told as u32));
        }
    }

    fn tell_due(&self, due_at: i64, now: i64) {
        let due = Instant::now() + Duration::from_micros((due_at - now).max(0) as u64);
        let told = self.asleep.values().filter(|sleeper| due < sleeper.until).count();
        if told > 0 {
            self.hints.send(Hint { told: told as u32, ..Hint::any() });
        }
    }
}

fn version(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("pragma data_version")?.query_row([], |row| row.get(0))
}
