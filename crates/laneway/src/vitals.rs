//! What the coordinator and the renewing thread both know.
//!
//! The coordinator writes, the thread reads. A lease is known from the moment its claim was answered until all its
//! tasks are settled; leases and the number of the answered advance change together, because a renewal that named
//! the number without the leases would give them away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use laneway_core::{Advanced, Capacity, LeaseId, Renewal, SessionId, Settle};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Shared by one coordinator and one renewing thread.
pub(crate) struct Vitals {
    slots: AtomicUsize,
    running: AtomicUsize,
    draining: AtomicBool,
    memory_percent: AtomicU8,
    known: Mutex<Known>,
    /// The coordinator has heard of orders; the renewing thread waits here between two looks.
    orders_heard: Notify,
}

struct Known {
    /// The session, and when its registration was sent; `None` while it is not registered.
    session: Option<(SessionId, Instant)>,
    /// Unsettled tasks per lease.
    leases: HashMap<LeaseId, usize>,
    number: u64,
}

impl Known {
    fn settled(&mut self, lease: LeaseId) {
        if let Some(open) = self.leases.get_mut(&lease) {
            *open -= 1;
            if *open == 0 {
                self.leases.remove(&lease);
            }
        }
    }
}

impl Vitals {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots: AtomicUsize::new(slots),
            running: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            memory_percent: AtomicU8::new(0),
            known: Mutex::new(Known { session: None, leases: HashMap::new(), number: 0 }),
            orders_heard: Notify::new(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while it holds this")
    }

    /// A new session lives; it owns nothing yet.
    pub(crate) fn registered(&self, session: SessionId, sent: Instant) {
        *self.known() = Known { session: Some((session, sent)), leases: HashMap::new(), number: 0 };
    }

    /// There is no session to renew.
    pub(crate) fn forget_session(&self) {
        self.known().session = None;
    }

    pub(crate) fn session(&self) -> Option<(SessionId, Instant)> {
        self.known().session
    }

    /// An advance was answered: what it settled is done with, what it claimed is ours.
    pub(crate) fn advanced(&self, number: u64, settles: &[Settle], advanced: &Advanced) {
        let mut known = self.known();
        known.number = number;
        for settle in settles {
            known.settled(settle.lease.id);
        }
        for claimed in &advanced.claimed {
            *known.leases.entry(claimed.lease.id).or_default() += 1;
        }
    }

    /// Asks for a renewal at once.
    pub(crate) fn ask_renewal(&self) {
        self.orders_heard.notify_one();
    }

    /// Resolves when a renewal was asked for. Safe to drop: a request is kept for the next call.
    pub(crate) async fn renewal_asked(&self) {
        self.orders_heard.notified().await;
    }

    /// A task of a lease was settled by a call of its own.
    pub(crate) fn settled(&self, lease: LeaseId) {
        self.known().settled(lease);
    }

    pub(crate) fn set_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    pub(crate) fn set_running(&self, running: usize) {
        self.running.store(running, Ordering::Relaxed);
    }

    pub(crate) fn is_running_something(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    pub(crate) fn set_memory(&self, ratio: f64) {
        self.memory_percent.store((ratio * 100.0).clamp(0.0, 100.0) as u8, Ordering::Relaxed);
    }

    /// Share of memory in use, 0 to 1.
    pub(crate) fn memory(&self) -> f64 {
        f64::from(self.memory_percent.load(Ordering::Relaxed)) / 100.0
    }

    pub(crate) fn capacity(&self) -> Capacity {
        let slots = self.slots.load(Ordering::Relaxed);
        let free = slots.saturating_sub(self.running.load(Ordering::Relaxed));
        Capacity {
            slots: slots as u32,
            free: free as u32,
            memory_percent: self.memory_percent.load(Ordering::Relaxed),
            draining: self.draining.load(Ordering::Relaxed),
        }
    }

    /// The next sign of life.
    pub(crate) fn renewal(&self) -> Option<Renewal> {
        let known = self.known();
        Some(Renewal {
            session: known.session?.0,
            capacity: self.capacity(),
            leases: known.leases.keys().copied().collect(),
            advance_number: known.number,
        })
    }
}
