//! The moving lower bound: where a claim may start to look.
//!
//! While any snapshot is old, rows that were claimed stay in the indexes as dead entries, and a look from the beginning
//! walks all of them. So each session remembers per queue how far it has come and can start there. What comes back with
//! an old id (given back, due) is behind the bound and found only by looks from the beginning. Those happen with every
//! claim while they are cheap; once they are not, as often as they take about a twentieth of the time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use laneway_core::{QueueName, Scan, SessionId};

/// Numbers per queue, as `claim.sql` describes them; it returns one more, the microseconds spent looking.
pub(crate) const NUMBERS: usize = 4;
/// What looking may cost before it counts as slow, per claim and per task.
const CHEAP: Duration = Duration::from_micros(400);
const CHEAP_PER_TASK: Duration = Duration::from_micros(4);
/// Slow looks from the beginning take at most one part in this many of the time, but happen once a second.
const SHARE: u32 = 20;
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Bounds(Mutex<HashMap<(SessionId, QueueName), Bound>>);

struct Bound {
    position: [i64; NUMBERS],
    next_full: Instant,
}

impl Bounds {
    /// Where a claim from `queue` shall start; `None` for the beginning.
    pub fn start(&self, session: SessionId, queue: &QueueName, scan: Scan) -> Option<[i64; NUMBERS]> {
        let bounds = self.lock();
        let bound = bounds.get(&(session, queue.clone()))?;
        (scan == Scan::Auto && Instant::now() < bound.next_full).then_some(bound.position)
    }

    /// Remembers how far a claim has come, and what looking has cost if it began at the beginning.
    pub fn moved(
        &self,
        session: SessionId,
        queue: QueueName,
        numbers: &[i64],
        from_start: bool,
        tasks: usize,
    ) {
        let Some((position, spent)) = numbers.split_first_chunk::<NUMBERS>() else { return };
        let now = Instant::now();
        let mut bounds = self.lock();
        let bound = bounds.entry((session, queue)).or_insert(Bound { position: *position, next_full: now });
        // A look from the beginning that found nothing tells nothing about where to start.
        if tasks > 0 || !from_start {
            bound.position = *position;
        }
        if from_start {
            let spent = Duration::from_micros(spent.first().copied().unwrap_or(0).max(0) as u64);
            let excess = spent.saturating_sub(CHEAP + CHEAP_PER_TASK * tasks as u32);
            bound.next_full = now + (excess * SHARE).min(AT_LEAST_EVERY);
        }
    }

    /// Forgets a session that has ended.
    pub fn forget(&self, session: SessionId) {
        self.lock().retain(|(owner, _), _| *owner != session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(SessionId, QueueName), Bound>> {
        self.0.lock().expect("no code panics while it holds the bounds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_looks_always_begin_at_the_beginning_and_slow_ones_seldom() {
        let (bounds, session, queue) = (Bounds::default(), SessionId::random(), QueueName::default());
        bounds.moved(session, queue.clone(), &[0, 7, 0, 3, 300], true, 10);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);

        bounds.moved(session, queue.clone(), &[0, 9, 0, 4, 90_000], true, 10);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), Some([0, 9, 0, 4]));
        assert_eq!(bounds.start(session, &queue, Scan::Full), None);

        bounds.forget(session);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);
    }
}
