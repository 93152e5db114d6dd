//! One step of a worker: settle what ended, then claim what is next, in one transaction.

use std::time::Duration;

use serde::Serialize;

use crate::id::{LeaseId, LeaseRef, SessionId};
use crate::name::{Kind, QueueName};
use crate::outcome::{Settle, Settled};
use crate::task::Task;

/// Settle these, and claim that: one transaction, one round trip.
///
/// The step also moves due tasks into place and takes up what was enqueued into lanes, so a cluster in which
/// somebody advances needs no other clockwork.
#[derive(Clone, Debug, PartialEq)]
pub struct Advance {
    /// Who asks. Must be registered, or nothing is claimed.
    pub session: SessionId,
    /// Counts this session's advances, from 1. A repeated advance carries the number of the first try.
    pub number: u64,
    /// True when the answer to the first try was lost. What it recorded is then answered
    /// [`Already`](crate::Verdict::Already), and what it claimed is handed out again instead of more.
    pub again: bool,
    /// Attempts that have ended.
    pub settles: Vec<Settle>,
    /// What to claim, in this order.
    pub claims: Vec<Claim>,
    /// How carefully to look.
    pub scan: Scan,
}

impl Advance {
    /// An advance that does nothing yet.
    pub fn new(session: SessionId, number: u64) -> Self {
        Self { session, number, again: false, settles: vec![], claims: vec![], scan: Scan::Auto }
    }

    /// Claims up to `max` tasks of any kind from `queue`.
    pub fn claim(mut self, queue: QueueName, max: u32) -> Self {
        self.claims.push(Claim { queue, max, kinds: Kinds::All, alone: vec![] });
        self
    }

    /// Settles one attempt.
    pub fn settle(mut self, settle: Settle) -> Self {
        self.settles.push(settle);
        self
    }
}

/// A wish for tasks of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The queue.
    pub queue: QueueName,
    /// At most this many: the free slots of the caller.
    pub max: u32,
    /// Only kinds that the caller has handlers for.
    pub kinds: Kinds,
    /// Kinds whose tasks get a lease each, because their handlers settle in a transaction of their own and
    /// must not hold up their neighbours.
    pub alone: Vec<Kind>,
}

/// Which kinds a worker can run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kinds {
    /// All of them.
    #[default]
    All,
    /// These. Tasks of other kinds stay where they are; in an ordered lane they hold up what is behind them.
    Only(Vec<Kind>),
}

impl Kinds {
    /// The kinds by name; `None` when it is all of them.
    pub fn names(&self) -> Option<Vec<&str>> {
        match self {
            Self::All => None,
            Self::Only(kinds) => Some(kinds.iter().map(Kind::as_str).collect()),
        }
    }
}

/// How carefully a claim looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scan {
    /// From where the last claim stopped whenever looking from the beginning has become slow; then a task that
    /// came back is found up to a second later.
    #[default]
    Auto,
    /// From the beginning. A worker does so before it falls asleep.
    Full,
}

/// Proof that this process owns one attempt of one task. Made by a claim.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a claimed task that is not settled stays leased until the worker's session ends"]
pub struct Claimed {
    /// The task.
    pub task: Task,
    /// What a settle must show.
    pub lease: LeaseRef,
    /// How long it had been runnable when it was claimed.
    pub waited: Duration,
}

impl Claimed {
    /// The end of this attempt.
    pub fn settle(&self, outcome: crate::Outcome) -> Settle {
        Settle { task: self.task.id, lease: self.lease, outcome, spawned: None }
    }
}

/// The answer to an [`Advance`].
#[derive(Clone, Debug, PartialEq)]
pub struct Advanced {
    /// One entry per settle, in the order of the request.
    pub settled: Vec<Settled>,
    /// The claimed tasks in the order in which they should start.
    pub claimed: Vec<Claimed>,
    /// What there is that was not claimed.
    pub left: Left,
    /// How long until the next task of any queue is due or the next schedule fires, when the claim was not filled.
    pub next_due: Option<Duration>,
    /// True when the session is not registered (any more). Nothing was claimed.
    pub session_lost: bool,
}

impl Advanced {
    /// The leases of the claimed tasks, each once.
    pub fn leases(&self) -> Vec<LeaseId> {
        let mut leases: Vec<_> = self.claimed.iter().map(|claimed| claimed.lease.id).collect();
        leases.sort_unstable();
        leases.dedup();
        leases
    }
}

/// What a claim left behind in its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Left {
    /// Nothing runnable.
    #[default]
    Nothing,
    /// Tasks that cannot start now: their lane is at its limit, their queue is paused, the caller cannot run
    /// their kind, or the family that they wait for is just being counted.
    Blocked,
    /// Probably more: the claim was filled.
    More,
}
