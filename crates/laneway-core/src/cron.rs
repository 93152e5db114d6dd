//! Cron expressions in time zones: what `croner` reads and finds, with a bound on all of its work.
//!
//! Fields: (second) minute hour day-of-month month day-of-week. `croner` decides what they mean; what it does when
//! clocks change is written down in `docs/schedules.md` and pinned by the tests below.
//!
//! Always true:
//! - An expression is at most 256 bytes of ASCII before the parser sees it.
//! - An expression that can never fire is refused when it is checked, after a search of one century.
//! - Fire times are whole seconds and strictly ascend.

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::{DateTime, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan, Zoned};

use crate::validate::{Code, InvalidInput};

/// The longest cron expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 256;
/// The longest name of a time zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// A parsed expression in its zone.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    expression: String,
}

impl Cron {
    /// Reads an expression and finds its zone.
    pub(crate) fn parse(expression: &str, zone: &str) -> Result<Self, InvalidInput> {
        let pattern = parse_expression(expression)?;
        Ok(Self { pattern, zone: find_zone(zone)?, expression: expression.to_owned() })
    }

    /// Refuses an expression that no date can satisfy, such as 30 February.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        // croner searches up to the year 5000. The last century before it has every kind of year, common and leap
        // starting on each weekday, so what is not found there is never found.
        let start: DateTime = date(4900, 1, 1).at(0, 0, 0, 0);
        self.pattern.find_next_occurrence(&start, true).map(drop).map_err(|_| self.never())
    }

    /// The first fire time after `after`.
    pub(crate) fn next_after(&self, mut after: Timestamp) -> Result<Timestamp, InvalidInput> {
        loop {
            let start = after.to_zoned(self.zone.clone());
            let next = self.pattern.find_next_occurrence(&start, false).map_err(|_| self.never())?;
            if next.timestamp() > after && self.is_real(&next) {
                return Ok(next.timestamp());
            }
            after = next.timestamp().max(after + 1.second());
        }
    }

    /// False for what croner makes up where clocks go forward at midnight: its search passes midnight on the way to a
    /// later time of that day, finds that there is no midnight, and answers with the end of the gap.
    fn is_real(&self, found: &Zoned) -> bool {
        if self.pattern.is_time_matching(found).unwrap_or(false) {
            return true;
        }
        // The end of a gap stands for the fixed time that the gap has swallowed, on either side of midnight.
        let fields = &self.pattern.pattern;
        let only = |field: &croner::CronComponent| field.values().first().map_or(0, |value| *value as i8);
        let time = jiff::civil::time(only(&fields.hours), only(&fields.minutes), only(&fields.seconds), 0);
        let days = [found.date(), found.date().saturating_sub(1.day())];
        days.iter().any(|day| {
            let wanted = self.zone.to_ambiguous_zoned(day.to_datetime(time));
            let is_gap = matches!(wanted.offset(), AmbiguousOffset::Gap { .. });
            is_gap && wanted.earlier().is_ok_and(|before| before < *found)
        })
    }

    fn never(&self) -> InvalidInput {
        refused(format!("`{}` never fires; no date satisfies all of its fields", self.expression))
    }
}

fn parse_expression(expression: &str) -> Result<croner::Cron, InvalidInput> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        let bytes = expression.len();
        return Err(refused(format!("has {bytes} bytes, the limit is {EXPRESSION_BYTES_MAX}")));
    }
    if !expression.is_ascii() {
        return Err(refused(format!("`{}` has characters outside of ASCII", expression.escape_debug())));
    }
    // Without years: an expression that fires at all then fires for ever.
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let pattern = parser.parse(expression).map_err(|error| {
        let reason = error.to_string();
        let (shown, reason) = (expression.escape_debug(), reason.trim_end_matches('.'));
        refused(format!("`{shown}` is not understood ({reason}); write 5 fields, or 6 with seconds first"))
    })?;
    refuse_empty_fields(expression, pattern)
}

/// A field such as `,` selects nothing; croner would look for it second by second.
fn refuse_empty_fields(expression: &str, pattern: croner::Cron) -> Result<croner::Cron, InvalidInput> {
    let fields = &pattern.pattern;
    let plain = [&fields.seconds, &fields.minutes, &fields.hours, &fields.months];
    let days = [&fields.days, &fields.days_of_week];
    let is_empty = plain.iter().any(|field| field.values().is_empty())
        || days.iter().any(|field| field.values().is_empty() && !field.has_modifiers());
    if is_empty {
        return Err(refused(format!("`{expression}` has a field that selects nothing")));
    }
    Ok(pattern)
}

fn find_zone(name: &str) -> Result<TimeZone, InvalidInput> {
    let unknown = || {
        let shown: String = name.chars().take(ZONE_BYTES_MAX).collect();
        let problem = format!(
            "`{}` is not a known time zone; write an IANA name such as Europe/Berlin, or UTC",
            shown.escape_debug()
        );
        InvalidInput::new(Code::InvalidSchedule, "zone", problem)
    };
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
    if name.len() > ZONE_BYTES_MAX || !name.bytes().all(is_name_byte) {
        return Err(unknown());
    }
    TimeZone::get(name).ok().filter(|zone| !zone.is_unknown()).ok_or_else(unknown)
}

fn refused(problem: String) -> InvalidInput {
    InvalidInput::new(Code::InvalidSchedule, "cron", problem)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The next `n` fires after `from`, as the zone's clocks show them.
    fn fires(zone: &str, expression: &str, from: &str, n: usize) -> Vec<String> {
        let cron = Cron::parse(expression, zone).unwrap();
        let mut after: Timestamp = from.parse().unwrap();
        (0..n)
            .map(|_| {
                after = cron.next_after(after).unwrap();
                after.to_zoned(cron.zone.clone()).strftime("%m-%d %H:%M%:z").to_string()
            })
            .collect()
    }

    #[test]
    fn a_fixed_time_that_a_gap_swallows_fires_at_the_first_moment_after_it() {
        let berlin = fires("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", 2);
        assert_eq!(berlin, ["03-29 03:00+02:00", "03-30 02:30+02:00"]);

        let new_york = fires("America/New_York", "30 2 * * *", "2026-03-07T12:00:00Z", 2);
        assert_eq!(new_york, ["03-08 03:00-04:00", "03-09 02:30-04:00"]);

        let half_an_hour = fires("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", 2);
        assert_eq!(half_an_hour, ["10-04 02:30+11:00", "10-05 02:15+11:00"]);
    }

    #[test]
    fn a_fixed_time_that_comes_twice_fires_the_first_time_only() {
        let berlin = fires("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", 2);
        assert_eq!(berlin, ["10-25 02:30+02:00", "10-26 02:30+01:00"]);

        let new_york = fires("America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", 2);
        assert_eq!(new_york, ["11-01 01:30-04:00", "11-02 01:30-05:00"]);

        let half_an_hour = fires("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00Z", 2);
        assert_eq!(half_an_hour, ["04-05 01:45+11:00", "04-06 01:45+10:30"]);
    }

    #[test]
    fn repeating_times_leave_a_gap_out() {
        let berlin = fires("Europe/Berlin", "*/30 * * * *", "2026-03-29T00:00:00Z", 3);
        assert_eq!(berlin, ["03-29 01:30+01:00", "03-29 03:00+02:00", "03-29 03:30+02:00"]);

        let only_in_the_gap = fires("Europe/Berlin", "*/30 2 * * *", "2026-03-28T12:00:00Z", 1);
        assert_eq!(only_in_the_gap, ["03-30 02:00+02:00"]);

        let half_an_hour = fires("Australia/Lord_Howe", "*/15 1-2 * * *", "2026-10-03T15:10:00Z", 2);
        assert_eq!(half_an_hour, ["10-04 01:45+10:30", "10-04 02:30+11:00"]);
    }

    #[test]
    fn repeating_times_that_come_twice_fire_twice() {
        let berlin = fires("Europe/Berlin", "*/30 2 * * *", "2026-10-24T12:00:00Z", 5);
        assert_eq!(
            berlin,
            [
                "10-25 02:00+02:00",
                "10-25 02:30+02:00",
                "10-25 02:00+01:00",
                "10-25 02:30+01:00",
                "10-26 02:00+01:00"
            ]
        );

        let new_york = fires("America/New_York", "0 * * * *", "2026-11-01T04:30:00Z", 3);
        assert_eq!(new_york, ["11-01 01:00-04:00", "11-01 01:00-05:00", "11-01 02:00-05:00"]);

        let half_an_hour = fires("Australia/Lord_Howe", "*/15 1 * * *", "2026-04-04T14:20:00Z", 4);
        assert_eq!(
            half_an_hour,
            ["04-05 01:30+11:00", "04-05 01:45+11:00", "04-05 01:30+10:30", "04-05 01:45+10:30"]
        );
    }

    /// What the rule in `docs/schedules.md` says, minute by minute: the fires between two moments.
    fn fires_by_the_book(cron: &Cron, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
        let is_fixed = cron.pattern.determine_job_type() == croner::JobType::FixedTime;
        let mut shown = std::collections::HashSet::new();
        let mut fires = vec![];
        let mut at = from - 24.hours();
        while at <= until {
            let (now, last) = (at.to_zoned(cron.zone.clone()), (at - 1.minute()).to_zoned(cron.zone.clone()));
            let mut minutes = vec![now.datetime()];
            if is_fixed && now.offset() > last.offset() {
                // The minutes that clocks have just jumped over count as this one.
                let jumped = last.datetime().series(1.minute()).skip(1);
                minutes.extend(jumped.take_while(|minute| *minute < now.datetime()));
            }
            for minute in minutes {
                let matches = cron.pattern.is_time_matching(&minute).unwrap();
                if matches && (shown.insert(minute) || !is_fixed) && at > from {
                    fires.push(at);
                }
            }
            at += 1.minute();
        }
        fires
    }

    #[test]
    fn fires_are_what_the_rule_says_through_every_change_of_clocks() {
        // Gaps and repeated hours by day, at midnight, of half an hour, and none.
        let changes = [
            ("Europe/Berlin", ["2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z"]),
            ("America/New_York", ["2026-03-08T00:00:00Z", "2026-11-01T00:00:00Z"]),
            ("Australia/Lord_Howe", ["2026-04-04T10:00:00Z", "2026-10-03T10:00:00Z"]),
            ("Africa/Cairo", ["2026-04-23T12:00:00Z", "2026-10-29T12:00:00Z"]),
            ("America/Havana", ["2026-03-07T22:00:00Z", "2026-10-31T22:00:00Z"]),
            ("America/Santiago", ["2026-04-04T20:00:00Z", "2026-09-05T20:00:00Z"]),
            ("Asia/Beirut", ["2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z"]),
            ("UTC", ["2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z"]),
        ];
        let expressions = [
            "*/7 * * * *",
            "0 * * * *",
            "*/30 2 * * *",
            "15 0-2 * * *",
            "30 2 * * *",
            "0 3 * * *",
            "45 1 * * *",
            "15 2 * * *",
            "0 0 * * *",
            "30 0 * * *",
            "59 23 * * *",
            "0 1 * * *",
            "0 12 * * SUN",
        ];
        for (zone, starts) in changes {
            for (expression, start) in expressions.iter().flat_map(|one| starts.map(|start| (one, start))) {
                let cron = Cron::parse(expression, zone).unwrap();
                let from: Timestamp = start.parse().unwrap();
                let expected = fires_by_the_book(&cron, from, from + 36.hours());
                let mut after = from;
                for fire in expected {
                    let found = cron.next_after(after).unwrap();
                    assert_eq!(found, fire, "{zone} {expression} after {after}");
                    // The same from wherever one looks.
                    assert_eq!(cron.next_after(fire - 1.microsecond()).unwrap(), fire, "{zone} {expression}");
                    after = fire;
                }
                assert!(
                    cron.next_after(after).unwrap() > from + 36.hours(),
                    "{zone} {expression} after {after}"
                );
            }
        }
    }

    #[test]
    fn seconds_are_an_optional_first_field() {
        let cron = Cron::parse("*/20 30 9 * * *", "UTC").unwrap();
        let next = cron.next_after("2026-11-15T09:30:00.25Z".parse().unwrap()).unwrap();
        assert_eq!(next.to_string(), "2026-11-15T09:30:20Z");
    }

    #[test]
    fn bad_expressions_are_refused_with_their_problem() {
        for (expression, says) in [
            ("", "is not understood"),
            ("* * * *", "write 5 fields, or 6 with seconds first"),
            ("0 0 0 1 1 * 2030", "write 5 fields"),
            ("60 * * * *", "out of bounds"),
            ("*/0 * * * *", "Step cannot be zero"),
            ("0-4294967295 * * * *", "is not understood"),
            ("0 2-1 * * *", "out of bounds"),
            ("0 , * * *", "selects nothing"),
            ("0 0 * * +", "selects nothing"),
            ("ſ * * * *", "outside of ASCII"),
            (&"*".repeat(257), "has 257 bytes, the limit is 256"),
        ] {
            let refused = Cron::parse(expression, "UTC").unwrap_err();
            assert_eq!((refused.code, refused.field), (Code::InvalidSchedule, "cron"));
            assert!(refused.message.contains(says), "{}", refused.message);
        }
    }

    #[test]
    fn dates_that_do_not_exist_are_refused_soon() {
        for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30W 2 *", "0 0 * * L", "* * * 31 2 +MON#5"]
        {
            let started = Instant::now();
            let refused = Cron::parse(expression, "Europe/Berlin").unwrap().check().unwrap_err();
            assert!(refused.message.contains("never fires"), "{}", refused.message);
            assert!(started.elapsed() < Duration::from_secs(1), "{expression} took {:?}", started.elapsed());
        }
        for rare in ["0 0 29 2 *", "0 0 29 2 +MON", "0 0 31 12 +SUN#5", "0 0 * * FRI#5"] {
            Cron::parse(rare, "UTC").unwrap().check().unwrap();
        }
    }

    #[test]
    fn a_time_that_always_falls_into_a_gap_is_an_error_and_not_a_loop() {
        let cron = Cron::parse("*/30 2 25-31 3 +SUN", "Europe/Berlin").unwrap();
        let started = Instant::now();
        assert!(cron.next_after("2026-11-15T00:00:00Z".parse().unwrap()).is_err());
        assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    }

    #[test]
    fn unknown_zones_are_refused() {
        for zone in [
            "",
            "Mars/Olympus",
            "../../etc/passwd",
            "/etc/localtime",
            "+02:00",
            "Etc/Unknown",
            &"x".repeat(65),
        ] {
            let refused = Cron::parse("* * * * *", zone).unwrap_err();
            assert_eq!((refused.code, refused.field), (Code::InvalidSchedule, "zone"), "{zone}");
        }
        assert!(Cron::parse("* * * * *", "UTC").is_ok());
    }
}
