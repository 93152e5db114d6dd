//! When the coordinator looks for work, and why.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first look that brought nothing; each further one doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(4);
/// A hint that follows a look in vain waits until this long after it: hints for kinds that we cannot run may come in
/// thousands.
const HINTS_EVERY: Duration = Duration::from_millis(5);

/// Why the coordinator looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Start,
    /// The last claim was filled.
    More,
    Hint,
    Due,
    Poll,
}

impl Source {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::More => "more",
            Self::Hint => "notify",
            Self::Due => "due",
            Self::Poll => "poll",
        }
    }
}

/// The next looks, by what causes them. The earliest counts.
pub(super) struct Looks {
    /// Something is there, as far as we know: claim as soon as a slot is free.
    now: Option<(Instant, Source)>,
    hint: Option<Instant>,
    due: Option<Instant>,
    poll: Instant,
    /// Since when nothing was claimed.
    quiet_since: Instant,
    /// When we last looked in vain, and how long to wait after the next time.
    looked_in_vain: Instant,
    pause: Duration,
}

impl Looks {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            now: Some((now, Source::Start)),
            hint: None,
            due: None,
            poll: now,
            quiet_since: now,
            looked_in_vain: now,
            pause: PAUSE_FIRST,
        }
    }

    /// When to look next, and why.
    pub(super) fn next(&self) -> (Instant, Source) {
        let hint = self.hint.map(|at| (at, Source::Hint));
        let due = self.due.map(|at| (at, Source::Due));
        let all = [self.now, hint, due, Some((self.poll, Source::Poll))];
        all.into_iter().flatten().min_by_key(|(at, _)| *at).expect("polls never end")
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next().0 <= now
    }

    /// True when something has asked for a look since the last one began.
    pub(super) fn are_asked_for(&self) -> bool {
        self.now.is_some() || self.hint.is_some()
    }

    /// Looks as soon as possible.
    pub(super) fn at_once(&mut self, now: Instant, source: Source) {
        self.now = Some((now, source));
    }

    /// There may be work. When others were told as well, `jitter` keeps them from claiming all at once.
    pub(super) fn hinted(&mut self, now: Instant, jitter: Duration) {
        let at = now.max(self.looked_in_vain + HINTS_EVERY) + jitter;
        self.hint = Some(self.hint.map_or(at, |earlier| earlier.min(at)));
    }

    /// A look is under way: what caused it is done with.
    pub(super) fn looking(&mut self) {
        (self.now, self.hint) = (None, None);
    }

    /// A look has claimed something.
    pub(super) fn found(&mut self, now: Instant) {
        (self.quiet_since, self.pause) = (now, PAUSE_FIRST);
    }

    /// A look has claimed nothing; the next pause is longer.
    pub(super) fn found_nothing(&mut self, now: Instant, longest: Duration) {
        self.looked_in_vain = now;
        self.pause = (self.pause * 2).min(longest);
    }

    /// How long to wait before looking again without any other reason.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn poll_after(&mut self, now: Instant, pause: Duration) {
        self.poll = now + pause;
    }

    /// The next task is due after this time; `None` when there is none. Never without a pause: what is overdue may not
    /// be ours to run.
    pub(super) fn due_after(&mut self, now: Instant, due: Option<Duration>) {
        self.due = due.map(|due| now + due.max(self.pause));
    }

    /// True when nothing was claimed for `long`.
    pub(super) fn are_quiet_for(&self, now: Instant, long: Duration) -> bool {
        now >= self.quiet_since + long
    }

    pub(super) fn quiet_since(&self) -> Instant {
        self.quiet_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_earliest_reason_counts_and_is_used_up() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.looking();
        looks.poll_after(now, 100 * MS);
        looks.due_after(now, Some(50 * MS));
        assert_eq!(looks.next(), (now + 50 * MS, Source::Due));

        looks.hinted(now + 10 * MS, 3 * MS);
        assert_eq!(looks.next(), (now + 13 * MS, Source::Hint));

        looks.looking();
        assert_eq!(looks.next().1, Source::Due);
    }

    #[test]
    fn what_happens_while_a_look_is_under_way_asks_for_another() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.looking();
        assert!(!looks.are_asked_for());

        looks.at_once(now, Source::More);
        assert!(looks.are_asked_for());

        looks.looking();
        looks.hinted(now, Duration::ZERO);
        assert!(looks.are_asked_for());
    }

    #[test]
    fn hints_that_bring_nothing_are_spaced_out() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.looking();
        looks.found_nothing(now, 100 * MS);
        looks.poll_after(now, 1_000 * MS);

        looks.hinted(now + MS, Duration::ZERO);

        assert_eq!(looks.next(), (now + HINTS_EVERY, Source::Hint));
    }

    #[test]
    fn overdue_tasks_that_are_not_ours_cause_no_busy_loop() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.looking();
        looks.poll_after(now, 1_000 * MS);
        (0..10).for_each(|_| looks.found_nothing(now, 100 * MS));

        looks.due_after(now, Some(Duration::ZERO));

        assert_eq!(looks.next(), (now + 100 * MS, Source::Due));
    }
}
