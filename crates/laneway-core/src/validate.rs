//! Every rule about input, once, in front of both stores.
//!
//! A refusal has a stable [`Code`], names the field, says what is wrong with the value and what is
//! allowed. Refused input stores nothing. Library, SQL, command line and HTTP answer with the same codes.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::date;
use jiff::tz::TimeZone;

use crate::json::Json;

/// The longest name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 200;
/// Priorities run from minus this to plus this; lower runs first.
pub const PRIORITY_MAX: i32 = 1_000;
/// The most attempts that a task may have.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// The highest lane limit. "No limit" is a setting of its own.
pub const LANE_LIMIT_MAX: u32 = 1_000_000;
/// How deeply a payload may be nested.
pub const PAYLOAD_DEPTH_MAX: usize = 64;
/// Error texts and results that a worker reports are cut here; a report is never refused for its content.
pub const REPORT_BYTES_MAX: usize = 64 * 1024;
/// The largest page of a listing.
pub const PAGE_MAX: u32 = 500;
/// The longest filter, in bytes of UTF-8.
pub const FILTER_BYTES_MAX: usize = 1_024;
/// Tags of one task.
pub const TAGS_MAX: usize = 32;
/// Steps of a list retry policy.
pub const RETRY_STEPS_MAX: usize = 100;
/// The furthest a task may be scheduled: five years.
pub const AHEAD_MAX: Duration = Duration::from_secs(5 * 366 * 24 * 60 * 60);
/// The most missed fires that a schedule makes up for.
pub const MISSED_CAP_MAX: u32 = 1_000;
/// The most payload that a schedule makes up for at once, in bytes.
pub const MISSED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest preview of a schedule.
pub const PREVIEW_MAX: usize = 100;
/// The longest timeout and the longest retry delay: thirty days.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The stable name of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The payload is longer than the store accepts.
    PayloadTooLarge,
    /// The payload is nested too deeply.
    PayloadTooDeep,
    /// Text contains a NUL character, written out or as `\u0000`.
    NulNotAllowed,
    /// A `\u` escape is half of a surrogate pair.
    InvalidUnicode,
    /// A number fits neither a signed 64-bit integer nor a double.
    NumberOutOfRange,
    /// The text is not JSON.
    InvalidJson,
    /// A name is empty, too long, or has characters that names may not have.
    InvalidName,
    /// A number is outside its range.
    OutOfRange,
    /// A time is too early or too far ahead.
    TimeOutOfRange,
    /// A time without its offset from UTC.
    TimeWithoutZone,
    /// A schema name that PostgreSQL would cut or that needs quoting.
    InvalidSchema,
    /// More tasks in one call than allowed.
    BulkTooLarge,
    /// Not an id.
    InvalidId,
    /// A filter that cannot be read; the message names the character.
    InvalidFilter,
    /// A filter of more than a kibibyte.
    FilterTooLong,
    /// A cron expression or time zone that is not understood, or a schedule that can never fire.
    InvalidSchedule,
    /// A family would be nested deeper than allowed.
    FamilyTooDeep,
    /// What a serial queue cannot have: a lane, children of children, or a change of that while it has open tasks.
    SerialQueue,
    /// A child with a unique key.
    UniqueChild,
    /// A sibling of a task that has no parent.
    NoParent,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 20] = [
        Self::PayloadTooLarge,
        Self::PayloadTooDeep,
        Self::NulNotAllowed,
        Self::InvalidUnicode,
        Self::NumberOutOfRange,
        Self::InvalidJson,
        Self::InvalidName,
        Self::OutOfRange,
        Self::TimeOutOfRange,
        Self::TimeWithoutZone,
        Self::InvalidSchema,
        Self::BulkTooLarge,
        Self::InvalidId,
        Self::InvalidFilter,
        Self::FilterTooLong,
        Self::InvalidSchedule,
        Self::FamilyTooDeep,
        Self::SerialQueue,
        Self::UniqueChild,
        Self::NoParent,
    ];

    /// The code that users see as `text`; none when that is no refusal of input.
    ///
    /// ```
    /// use laneway_core::Code;
    ///
    /// assert_eq!(Code::named("out_of_range"), Some(Code::OutOfRange));
    /// assert_eq!(Code::named("unavailable"), None);
    /// ```
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }

    /// The code as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PayloadTooLarge => "payload_too_large",
            Self::PayloadTooDeep => "payload_too_deep",
            Self::NulNotAllowed => "nul_not_allowed",
            Self::InvalidUnicode => "invalid_unicode",
            Self::NumberOutOfRange => "number_out_of_range",
            Self::InvalidJson => "invalid_json",
            Self::InvalidName => "invalid_name",
            Self::OutOfRange => "out_of_range",
            Self::TimeOutOfRange => "time_out_of_range",
            Self::TimeWithoutZone => "time_without_zone",
            Self::InvalidSchema => "invalid_schema",
            Self::BulkTooLarge => "bulk_too_large",
            Self::InvalidId => "invalid_id",
            Self::InvalidFilter => "invalid_filter",
            Self::FilterTooLong => "filter_too_long",
            Self::InvalidSchedule => "invalid_schedule",
            Self::FamilyTooDeep => "family_too_deep",
            Self::SerialQueue => "serial_queue",
            Self::UniqueChild => "unique_child",
            Self::NoParent => "no_parent",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why input was refused. Nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidInput {
    /// The stable name of the refusal.
    pub code: Code,
    /// Which field, in the words of the API: `payload`, `lane.limit`.
    pub field: &'static str,
    /// The value's problem, the limit, and what to do; starts with the field.
    pub message: String,
}

impl InvalidInput {
    /// A refusal of `field`; `problem` continues a sentence that begins with the field's name.
    pub fn new(code: Code, field: &'static str, problem: impl fmt::Display) -> Self {
        Self { code, field, message: format!("{field} {problem}") }
    }
}

/// The limits that an installation may move.
///
/// ```
/// let limits = laneway_core::Limits { payload_bytes_max: 64 * 1024, ..Default::default() };
/// assert_eq!(limits.bulk_max, 100_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest payload, in bytes of JSON text. 1 MiB.
    pub payload_bytes_max: usize,
    /// The most tasks in one bulk enqueue. 100,000.
    pub bulk_max: usize,
    /// How deeply families may be nested: the depth of the deepest child. 8.
    pub depth_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes_max: 1024 * 1024, bulk_max: 100_000, depth_max: 8 }
    }
}

/// Checks that a payload is not too long.
pub fn payload_size(payload: &Json, limits: &Limits) -> Result<(), InvalidInput> {
    let bytes = payload.as_str().len();
    if bytes <= limits.payload_bytes_max {
        return Ok(());
    }
    let problem = format!(
        "has {bytes} bytes, the limit is {}; keep the data elsewhere and enqueue a reference",
        limits.payload_bytes_max
    );
    Err(InvalidInput::new(Code::PayloadTooLarge, "payload", problem))
}

/// Checks a stored name: 1 to 200 bytes, no control or direction-changing characters, no space at either
/// end.
pub fn name(field: &'static str, text: &str) -> Result<(), InvalidInput> {
    let refuse = |problem: String| Err(InvalidInput::new(Code::InvalidName, field, problem));
    if text.is_empty() {
        return refuse(format!("is empty; a name has 1 to {NAME_BYTES_MAX} bytes"));
    }
    if text.len() > NAME_BYTES_MAX {
        return refuse(format!("has {} bytes; a name has 1 to {NAME_BYTES_MAX}", text.len()));
    }
    if let Some(c) = text.chars().find(|c| c.is_control() || is_bidi_control(*c)) {
        return refuse(format!(
            "`{}` contains the control character U+{:04X}; remove it",
            text.escape_debug(),
            c as u32
        ));
    }
    if text.trim() != text {
        return refuse(format!("`{text}` begins or ends with a space; remove it"));
    }
    Ok(())
}

/// Checks a PostgreSQL schema name: lower case letters, digits and `_`, at most 41, not starting with a
/// digit.
///
/// ```
/// use laneway_core::validate::schema_name;
///
/// assert!(schema_name("laneway_test").is_ok());
/// assert_eq!(schema_name("Robert'); --").unwrap_err().code.as_str(), "invalid_schema");
/// ```
pub fn schema_name(text: &str) -> Result<(), InvalidInput> {
    let mut bytes = text.bytes();
    let starts_well = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let goes_on_well = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if starts_well && goes_on_well && text.len() <= 41 && !text.starts_with("pg_") {
        return Ok(());
    }
    Err(InvalidInput::new(
        Code::InvalidSchema,
        "schema",
        format!(
            "`{}` is not usable; take 1 to 41 of a-z, 0-9 and _, not starting with a digit or `pg_`",
            text.escape_debug()
        ),
    ))
}

/// Checks that `value` lies in `range`.
pub fn in_range<T: PartialOrd + fmt::Display>(
    field: &'static str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), InvalidInput> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(InvalidInput::new(
        Code::OutOfRange,
        field,
        format!("is {value}; allowed is {} to {}", range.start(), range.end()),
    ))
}

/// Checks how long a watcher of the change feed may be silent: 1 s to 10 minutes.
pub fn watch_keep(keep: Duration) -> Result<(), InvalidInput> {
    in_range("keep", keep.as_millis(), 1_000..=600_000)
        .map_err(|refused| InvalidInput { message: format!("{} milliseconds", refused.message), ..refused })
}

/// Checks a duration that the store has to wait for: at most [`WAIT_MAX`].
pub fn wait(field: &'static str, value: Duration) -> Result<(), InvalidInput> {
    in_range(field, value.as_secs(), 0..=WAIT_MAX.as_secs())
        .map_err(|refused| InvalidInput { message: format!("{} seconds", refused.message), ..refused })
}

/// Makes a delay from seconds, as they come from a command line or a request.
///
/// ```
/// use laneway_core::validate::delay_from_secs;
///
/// assert_eq!(delay_from_secs(1.5).unwrap().as_millis(), 1500);
/// assert_eq!(delay_from_secs(-1.0).unwrap_err().to_string(), "delay is -1 seconds; a delay is not negative");
/// ```
pub fn delay_from_secs(secs: f64) -> Result<Duration, InvalidInput> {
    if secs < 0.0 || !secs.is_finite() {
        let problem = format!("is {secs} seconds; a delay is not negative");
        return Err(InvalidInput::new(Code::OutOfRange, "delay", problem));
    }
    let delay = Duration::try_from_secs_f64(secs).unwrap_or(Duration::MAX);
    delay_ahead(delay).map(|()| delay)
}

/// Checks a delay: at most five years.
pub fn delay_ahead(delay: Duration) -> Result<(), InvalidInput> {
    if delay <= AHEAD_MAX {
        return Ok(());
    }
    Err(InvalidInput::new(
        Code::TimeOutOfRange,
        "delay",
        format!("is {} days; a task may be scheduled up to 5 years ahead", delay.as_secs() / 86_400),
    ))
}

/// Checks a due time against `now`: not before the year 2000, not more than five years ahead. A due time in
/// the past means "at once".
pub fn due_time(due: Timestamp, now: Timestamp) -> Result<(), InvalidInput> {
    let earliest = date(2000, 1, 1).to_zoned(TimeZone::UTC).expect("a valid date").timestamp();
    let refuse = |problem| Err(InvalidInput::new(Code::TimeOutOfRange, "due", problem));
    if due < earliest {
        return refuse(format!("is {due}; the earliest due time is {earliest}"));
    }
    if due.duration_since(now).unsigned_abs() > AHEAD_MAX && due > now {
        return refuse(format!("is {due}; a task may be scheduled up to 5 years ahead"));
    }
    Ok(())
}

fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Makes an error text or result storable: NUL becomes `\u{FFFD}`, and what is over 64 KiB is cut at a
/// character boundary. Recording how an attempt ended can so never fail because of its content.
///
/// ```
/// use laneway_core::validate::clean_report;
///
/// assert_eq!(clean_report("a\0b"), "a\u{FFFD}b");
/// assert!(clean_report(&"ä".repeat(100_000)).len() <= 64 * 1024);
/// ```
pub fn clean_report(text: &str) -> String {
    const CUT: &str = " … (cut)";
    let mut clean = text.replace('\0', "\u{FFFD}");
    if clean.len() > REPORT_BYTES_MAX {
        let mut end = REPORT_BYTES_MAX - CUT.len();
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        clean.push_str(CUT);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_with_their_problem() {
        for (text, says) in [
            ("", "kind is empty"),
            ("a\nb", "U+000A"),
            ("a\u{202E}b", "U+202E"),
            (" a", "begins or ends with a space"),
            (&"x".repeat(201), "has 201 bytes"),
        ] {
            let refused = name("kind", text).unwrap_err();
            assert_eq!(refused.code, Code::InvalidName);
            assert!(refused.message.contains(says), "{}", refused.message);
        }
        assert!(name("kind", &"x".repeat(200)).is_ok());
        assert!(name("kind", "päckchen / ünïcode.1").is_ok());
    }

    #[test]
    fn schema_names_that_need_quoting_or_would_be_cut_are_refused() {
        for text in ["", "1a", "A", "a-b", "a b", "a\"b", "pg_temp", &"x".repeat(42)] {
            assert_eq!(schema_name(text).unwrap_err().code, Code::InvalidSchema, "{text}");
        }
    }

    #[test]
    fn due_times_outside_their_window_are_refused() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (due, ok) in [
            ("1999-12-31T23:59:59Z", false),
            ("2000-01-01T00:00:00Z", true),
            ("2030-12-31T00:00:00Z", true),
            ("2031-02-01T00:00:00Z", false),
        ] {
            assert_eq!(due_time(due.parse().unwrap(), now).is_ok(), ok, "{due}");
        }
    }
}
