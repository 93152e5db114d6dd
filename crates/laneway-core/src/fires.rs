//! When a schedule fires: pure arithmetic on times that the caller brings along.
//!
//! Stores ask two things. [`Fires::next_after`] is the next fire of a new, changed or resumed schedule;
//! [`Fires::due`] is what to do about a schedule whose next fire has come: which fires get a task, and which
//! fire is next. Nothing here reads a clock, and all work is bounded, however long nobody has asked.

use jiff::{SignedDuration, Timestamp};

use crate::cron::Cron;
use crate::schedule::{Missed, Rule};
use crate::validate::InvalidInput;

/// A fire that is found this long after its time, or sooner, is on time. Later it was missed.
pub const ON_TIME: SignedDuration = SignedDuration::from_secs(60);

const MICROSECOND: SignedDuration = SignedDuration::from_micros(1);

/// The fire times of a rule.
#[derive(Clone, Debug)]
pub struct Fires(Times);

#[derive(Clone, Debug)]
enum Times {
    Cron(Box<Cron>),
    Every { micros: i64, anchor: Timestamp },
}

/// What follows from a fire that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The fires that get a task, in order. None when all were missed and shall be skipped.
    pub fires: Vec<Timestamp>,
    /// The next fire, after all that are due.
    pub next: Timestamp,
}

impl Fires {
    /// The fire times of `rule`. Intervals are counted from `anchor`.
    ///
    /// # Errors
    /// `invalid_schedule` when the expression or the zone is not understood.
    pub fn of(rule: &Rule, anchor: Timestamp) -> Result<Self, InvalidInput> {
        Ok(Self(match rule {
            Rule::Cron { expression, zone } => Times::Cron(Box::new(Cron::parse(expression, zone)?)),
            Rule::Every(interval) => Times::Every { micros: (interval.as_micros() as i64).max(1), anchor },
        }))
    }

    /// Refuses what can never fire.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        match &self.0 {
            Times::Cron(cron) => cron.check(),
            Times::Every { .. } => Ok(()),
        }
    }

    /// The first fire after `after`.
    ///
    /// # Errors
    /// `invalid_schedule` when there is none.
    pub fn next_after(&self, after: Timestamp) -> Result<Timestamp, InvalidInput> {
        match &self.0 {
            Times::Cron(cron) => cron.next_after(after),
            Times::Every { micros, anchor } => {
                let since = after.as_microsecond() - anchor.as_microsecond();
                let intervals = since.div_euclid(*micros).max(0) + 1;
                Ok(Timestamp::from_microsecond(anchor.as_microsecond() + intervals * micros)
                    .unwrap_or(Timestamp::MAX))
            }
        }
    }

    /// The next `n` fires after `after`.
    ///
    /// # Errors
    /// `invalid_schedule` when there are none.
    pub fn preview(&self, mut after: Timestamp, n: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        let next = |_| {
            after = self.next_after(after)?;
            Ok(after)
        };
        (0..n).map(next).collect()
    }

    /// What to do at `now` about a schedule whose next fire is `pending`, which is due.
    ///
    /// Fires of the last [minute](ON_TIME) are on time, and each gets a task. What became of earlier ones, `missed` says.
    ///
    /// # Errors
    /// `invalid_schedule` when there is no next fire.
    pub fn due(&self, pending: Timestamp, now: Timestamp, missed: Missed) -> Result<Due, InvalidInput> {
        let on_time_from = pending.max(now - ON_TIME);
        let on_time = self.between(on_time_from, now, usize::MAX)?;
        let late = |cap| self.latest(pending, on_time_from - MICROSECOND, cap);
        let fires = match missed {
            Missed::Skip => on_time,
            Missed::Once if pending == on_time_from => on_time,
            Missed::Once => match on_time.last() {
                Some(latest) => vec![*latest],
                None => late(1)?,
            },
            Missed::All { cap } => [late(cap as usize)?, on_time].concat(),
        };
        Ok(Due { fires, next: self.next_after(now)? })
    }

    /// The fires from `from` to `until`, both included, but no more than `max` of them.
    fn between(&self, from: Timestamp, until: Timestamp, max: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        let mut fires = vec![];
        let mut fire = self.next_after(from - MICROSECOND)?;
        while fire <= until && fires.len() < max {
            fires.push(fire);
            fire = self.next_after(fire)?;
        }
        Ok(fires)
    }

    /// The last `max` fires from `from` to `until`. Halves the time until few enough are left, so that a year of missed
    /// seconds is not counted one by one.
    fn latest(&self, from: Timestamp, until: Timestamp, max: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        let since = |second: i64| self.between(from + SignedDuration::from_secs(second), until, max + 1);
        let all = since(0)?;
        if all.len() <= max {
            return Ok(all);
        }
        // After `low` seconds there are too many fires, after `high` there are not.
        let (mut low, mut high) = (0, until.duration_since(from).as_secs() + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            *(if since(middle)?.len() > max { &mut low } else { &mut high }) = middle;
        }
        since(high)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron(expression: &str) -> Fires {
        let rule = Rule::Cron { expression: expression.to_owned(), zone: "UTC".to_owned() };
        Fires::of(&rule, Timestamp::UNIX_EPOCH).unwrap()
    }

    /// Minutes of the fires that get a task, and of the next one.
    fn due(fires: &Fires, pending: &str, now: &str, missed: Missed) -> (Vec<String>, String) {
        let due = fires.due(at(pending), at(now), missed).unwrap();
        let shown = |at: &Timestamp| at.strftime("%H:%M").to_string();
        (due.fires.iter().map(shown).collect(), shown(&due.next))
    }

    #[test]
    fn an_interval_is_counted_from_its_anchor() {
        let anchor = at("2026-11-15T12:00:00.25Z");
        let fires = Fires::of(&Rule::Every(Duration::from_secs(90)), anchor).unwrap();

        for (after, next) in [
            ("2026-11-15T11:00:00Z", "2026-11-15T12:01:30.25Z"),
            ("2026-11-15T12:00:00.25Z", "2026-11-15T12:01:30.25Z"),
            ("2026-11-15T12:01:30.249999Z", "2026-11-15T12:01:30.25Z"),
            ("2026-11-15T12:01:30.25Z", "2026-11-15T12:03:00.25Z"),
            ("2026-11-16T12:00:00Z", "2026-11-16T12:00:00.25Z"),
        ] {
            assert_eq!(fires.next_after(at(after)).unwrap(), at(next), "after {after}");
        }
    }

    #[test]
    fn a_fire_that_is_on_time_gets_a_task_whatever_the_rule_for_missed_ones() {
        let fires = cron("*/10 * * * *");
        for missed in [Missed::Skip, Missed::Once, Missed::All { cap: 1 }] {
            let (tasks, next) = due(&fires, "2026-11-15T12:10:00Z", "2026-11-15T12:10:59Z", missed);
            assert_eq!((tasks, next), (vec!["12:10".to_owned()], "12:20".to_owned()), "{missed:?}");
        }
    }

    #[test]
    fn missed_fires_are_skipped_made_up_for_once_or_all_made_up_for() {
        let fires = cron("*/10 * * * *");
        let due = |missed| due(&fires, "2026-11-15T12:10:00Z", "2026-11-15T12:45:00Z", missed);
        let next = || "12:50".to_owned();

        assert_eq!(due(Missed::Skip), (vec![], next()));
        assert_eq!(due(Missed::Once), (vec!["12:40".to_owned()], next()));
        let all = ["12:10", "12:20", "12:30", "12:40"].map(str::to_owned);
        assert_eq!(due(Missed::All { cap: 4 }), (all.to_vec(), next()));
        assert_eq!(due(Missed::All { cap: 3 }), (all[1..].to_vec(), next()));
        assert_eq!(due(Missed::All { cap: 1 }), (all[3..].to_vec(), next()));
    }

    #[test]
    fn once_is_once_also_when_the_last_fire_is_on_time() {
        let fires = cron("* * * * *");
        let (tasks, _) = due(&fires, "2026-11-15T12:10:00Z", "2026-11-15T12:30:30Z", Missed::Once);
        assert_eq!(tasks, ["12:30"]);
    }

    #[test]
    fn fires_of_the_same_minute_are_all_on_time() {
        let fires = cron("*/10 * * * * *");
        let due = fires.due(at("2026-11-15T12:00:00Z"), at("2026-11-15T12:00:45Z"), Missed::Skip).unwrap();
        assert_eq!(due.fires.len(), 5);
        assert_eq!(due.next, at("2026-11-15T12:00:50Z"));
    }

    #[test]
    fn years_of_missed_seconds_are_bounded_work() {
        for fires in [
            cron("* * * * * *"),
            Fires::of(&Rule::Every(Duration::from_secs(1)), at("2020-01-01T00:00:00Z")).unwrap(),
        ] {
            let started = Instant::now();
            let (pending, now) = (at("2020-01-01T00:00:00Z"), at("2026-11-15T12:00:00Z"));
            let due = fires.due(pending, now, Missed::All { cap: 1_000 }).unwrap();

            assert_eq!(due.fires.len(), 1_000 + 61);
            assert_eq!(*due.fires.last().unwrap(), now);
            assert!(due.fires.windows(2).all(|pair| pair[1].duration_since(pair[0]).as_secs() == 1));
            assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
        }
    }
}
