//! Spans of time and moments as people write them: `1h30m`, `2026-03-01T12:00:00Z`.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;

use crate::validate::{Code, InvalidInput};

/// Ages, delays and the like: ten years.
const SPAN_MAX: Duration = Duration::from_secs(3_660 * 86_400);

/// Reads a span of time: numbers with units.
///
/// ```
/// use std::time::Duration;
/// use laneway_core::parse_span;
///
/// assert_eq!(parse_span("delay", "1h30m"), Ok(Duration::from_secs(5_400)));
/// assert_eq!(
///     parse_span("delay", "soon").unwrap_err().to_string(),
///     "delay `soon` is no time span; numbers with ms, s, m, h, d or w, up to ten years: 1h30m"
/// );
/// ```
///
/// # Errors
/// `out_of_range` for everything else, and above ten years.
pub fn parse_span(field: &'static str, text: &str) -> Result<Duration, InvalidInput> {
    read(text).ok_or_else(|| {
        let shown = text.escape_debug();
        let problem =
            format!("`{shown}` is no time span; numbers with ms, s, m, h, d or w, up to ten years: 1h30m");
        InvalidInput::new(Code::OutOfRange, field, problem)
    })
}

/// Reads a moment with its offset from UTC.
///
/// ```
/// use laneway_core::parse_time;
///
/// assert_eq!(parse_time("at", "2026-03-01T12:00:00+01:00").unwrap().to_string(), "2026-03-01T11:00:00Z");
/// assert_eq!(parse_time("at", "2026-03-01T12:00:00").unwrap_err().code.as_str(), "time_without_zone");
/// ```
///
/// # Errors
/// `time_without_zone` when the offset is missing, `time_out_of_range` when it is no time at all.
pub fn parse_time(field: &'static str, text: &str) -> Result<Timestamp, InvalidInput> {
    let shown = text.escape_debug();
    let refuse = |code, problem| Err(InvalidInput::new(code, field, problem));
    match text.parse() {
        Ok(at) => Ok(at),
        Err(_) if text.parse::<DateTime>().is_ok() => {
            let problem = format!("`{shown}` has no zone; add Z for UTC, or an offset such as +01:00");
            refuse(Code::TimeWithoutZone, problem)
        }
        Err(_) => {
            refuse(Code::TimeOutOfRange, format!("`{shown}` is no time; write it as 2026-03-01T12:00:00Z"))
        }
    }
}

fn read(text: &str) -> Option<Duration> {
    let (mut sum, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |end| digits + end);
        let millis = match &rest[digits..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        let number: u64 = rest[..digits].parse().ok()?;
        sum = sum.saturating_add(Duration::from_millis(number.saturating_mul(millis)));
        rest = &rest[unit..];
    }
    (!text.is_empty() && sum <= SPAN_MAX).then_some(sum)
}
