//! The moving lower bound: where a claim may start to look.
//!
//! Rows that were claimed stay in the indexes as dead entries until a vacuum, or for as long as any snapshot is older, and a look
//! from the beginning walks all of them. So each session remembers per queue how far it has come and can start there. What comes
//! back with an old id (given back, due) is behind the bound and found only by looks from the beginning. Those happen with
//! every claim while they are cheap; once they are not, as seldom as their cost demands: see [`Pace`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use laneway_core::{QueueName, Scan, SessionId};

/// Numbers per queue, as `claim.sql` describes them; it returns one more, the microseconds spent looking.
pub(crate) const NUMBERS: usize = 4;
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// How often claims look from the beginning: what this costs above `cheap` takes at most one part in `share` of the time.
struct Pace {
    cheap: Duration,
    cheap_per_task: Duration,
    share: u32,
}

/// The last number while no turn was taken: the queue has no lanes, as `line_beginning` in `claim.sql` says.
const NO_LINE: i64 = -i64::MAX;

/// After a claim that got all it asked for, in a queue without lanes. There is more behind the bound, so nobody waits for what is in
/// front of it.
const BACKLOG: Pace =
    Pace { cheap: Duration::from_micros(100), cheap_per_task: Duration::from_micros(2), share: 100 };
/// After any other claim: what has come back may be all there is, or a lane waits for it.
const SHORT: Pace =
    Pace { cheap: Duration::from_micros(400), cheap_per_task: Duration::from_micros(4), share: 20 };

impl Pace {
    /// How long claims need not look from the beginning after one that took `spent` and found `tasks`.
    fn pause(&self, spent: Duration, tasks: usize) -> Duration {
        let excess = spent.saturating_sub(self.cheap + self.cheap_per_task * tasks as u32);
        (excess * self.share).min(AT_LEAST_EVERY)
    }
}

#[derive(Default)]
pub(crate) struct Bounds(Mutex<HashMap<(SessionId, QueueName), Bound>>);

struct Bound {
    position: [i64; NUMBERS],
    /// Whether the last claim got all it asked for, without lanes.
    is_backlog: bool,
    /// When a claim looks from the beginning again, by [`BACKLOG`] and by [`SHORT`].
    next_full: [Instant; 2],
}

/// What a claim from one queue did.
pub(crate) struct Look<'a> {
    /// How far it came, and the microseconds that it took to look.
    pub numbers: &'a [i64],
    pub from_start: bool,
    pub wanted: usize,
    pub got: usize,
}

impl Bounds {
    /// Where a claim from `queue` shall start; `None` for the beginning.
    pub fn start(&self, session: SessionId, queue: &QueueName, scan: Scan) -> Option<[i64; NUMBERS]> {
        let bounds = self.lock();
        let bound = bounds.get(&(session, queue.clone()))?;
        let [backlog, short] = bound.next_full;
        let next_full = if bound.is_backlog { backlog } else { short };
        (scan == Scan::Auto && Instant::now() < next_full).then_some(bound.position)
    }

    /// Remembers how far a claim has come, and what looking has cost if it began at the beginning.
    pub fn moved(&self, session: SessionId, queue: QueueName, look: Look<'_>) {
        let Some((position, spent)) = look.numbers.split_first_chunk::<NUMBERS>() else { return };
        let now = Instant::now();
        let mut bounds = self.lock();
        let bound = bounds.entry((session, queue)).or_insert(Bound {
            position: *position,
            is_backlog: false,
            next_full: [now; 2],
        });
        bound.is_backlog = look.got >= look.wanted && position[NUMBERS - 1] == NO_LINE;
        // A look from the beginning that found nothing tells nothing about where to start.
        if look.got > 0 || !look.from_start {
            bound.position = *position;
        }
        if look.from_start {
            let spent = Duration::from_micros(spent.first().copied().unwrap_or(0).max(0) as u64);
            bound.next_full = [BACKLOG, SHORT].map(|pace| now + pace.pause(spent, look.got));
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
        let look = |numbers: &[i64]| {
            bounds.moved(session, queue.clone(), Look { numbers, from_start: true, wanted: 20, got: 10 });
        };
        look(&[0, 7, 0, 3, 300]);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);

        look(&[0, 9, 0, 4, 90_000]);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), Some([0, 9, 0, 4]));
        assert_eq!(bounds.start(session, &queue, Scan::Full), None);

        bounds.forget(session);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);
    }

    #[test]
    fn in_a_backlog_looks_begin_at_the_bound_until_one_finds_too_little() {
        let (bounds, session, queue) = (Bounds::default(), SessionId::random(), QueueName::default());
        let moved = |from_start, spent, got| {
            let numbers = [0, 50, 0, NO_LINE, spent];
            bounds.moved(session, queue.clone(), Look { numbers: &numbers, from_start, wanted: 50, got });
        };
        moved(true, 200, 50);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);

        moved(true, 5_000, 50); // bounded for half a second
        moved(false, 100, 50);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), Some([0, 50, 0, NO_LINE]));

        moved(true, 599, 50); // cheap enough after a claim that found too little
        moved(false, 100, 49);
        assert_eq!(bounds.start(session, &queue, Scan::Auto), None);
    }
}
