//! Texts as people read them: times, numbers, and what comes from elsewhere.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

/// Text from elsewhere, made harmless: what would steer the terminal, or turn the reading direction, is written out.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

/// JSON, made harmless the way JSON writes such characters. They can only be inside of strings.
pub fn json_clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_unsafe(c) {
            clean.push_str(&format!("\\u{:04x}", c as u32));
        } else {
            clean.push(c);
        }
    }
    clean
}

fn is_unsafe(c: char) -> bool {
    let turns =
        matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FEFF}')
}

/// A name as a word of a command that can be copied into a shell.
pub fn word(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/@%+=".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', r"'\''"))
}

/// The first line of a text, cut.
pub fn first_line(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most {
        return line.to_owned();
    }
    format!("{}…", line.chars().take(most).collect::<String>())
}

/// A span of time in its two largest units: `14ms`, `12s`, `2h5m`, `3d4h`.
pub fn span(span: Duration) -> String {
    let secs = span.as_secs();
    let two = |large: u64, unit: char, small: u64, below: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{below}"),
    };
    match secs {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{secs}s"),
        60..3_600 => two(secs / 60, 'm', secs % 60, 's'),
        3_600..86_400 => two(secs / 3_600, 'h', secs % 3_600 / 60, 'm'),
        _ => two(secs / 86_400, 'd', secs % 86_400 / 3_600, 'h'),
    }
}

/// How long ago something was, never less than nothing: clocks differ.
pub fn since(then: Timestamp, now: Timestamp) -> Duration {
    let passed = now.duration_since(then);
    if passed.is_negative() { Duration::ZERO } else { passed.unsigned_abs() }
}

/// `3m ago`, in the largest unit.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    format!("{} ago", rough(since(then, now)))
}

/// `in 10m`, or `now`.
pub fn until(then: Timestamp, now: Timestamp) -> String {
    match since(now, then) {
        Duration::ZERO => "now".into(),
        left => format!("in {}", rough(left + Duration::from_millis(999))),
    }
}

/// A span in its largest unit.
fn rough(span: Duration) -> String {
    let secs = span.as_secs();
    match secs {
        0..60 => format!("{secs}s"),
        60..3_600 => format!("{}m", secs / 60),
        3_600..86_400 => format!("{}h", secs / 3_600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// A moment and how long ago it was.
pub fn moment(then: Timestamp, now: Timestamp) -> String {
    let relative = if then > now { until(then, now) } else { ago(then, now) };
    format!("{} ({relative})", whole_seconds(then))
}

/// A moment without fractions of a second.
pub fn whole_seconds(then: Timestamp) -> String {
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number with its thousands apart: `120 000`.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(|group| String::from_utf8_lossy(group).into_owned()).collect::<Vec<_>>().join(" ")
}

/// An amount of memory or disk: `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (n as f64, 0);
    while amount >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{amount:.1} {}", units[unit]) }
}

/// A count that may have been stopped: `10 000+`.
pub fn count(n: u64, more: bool) -> String {
    format!("{}{}", number(n), if more { "+" } else { "" })
}

/// `1 task`, `2 tasks`.
pub fn tasks(n: u64) -> String {
    format!("{} task{}", number(n), if n == 1 { "" } else { "s" })
}

/// A stored name as the engine's types spell it, such as `while_open`.
pub fn stored(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_written_out() {
        assert_eq!(clean("a\u{1b}[31mb\u{9b}2J\tc"), "a\\u{1b}[31mb\\u{9b}2J\\tc");
        assert_eq!(clean("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(clean("päckchen ✓"), "päckchen ✓");
        assert_eq!(json_clean("{\"a\":\"\u{9b}\u{202e}\"}\n"), "{\"a\":\"\\u009b\\u202e\"}\n");
    }

    #[test]
    fn words_can_be_copied_into_a_shell() {
        assert_eq!(word("customer:7"), "customer:7");
        assert_eq!(word("night shift"), "'night shift'");
        assert_eq!(word("$(rm)'s"), r"'$(rm)'\''s'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn spans_have_two_units() {
        for (millis, says) in
            [(14, "14ms"), (12_300, "12s"), (90_000, "1m30s"), (7_500_000, "2h5m"), (86_400_000, "1d")]
        {
            assert_eq!(span(Duration::from_millis(millis)), says);
        }
    }

    #[test]
    fn times_never_go_below_nothing() {
        let now = Timestamp::now();
        let ahead = now + Duration::from_secs(90);
        assert_eq!((ago(ahead, now), until(now, ahead)), ("0s ago".into(), "now".into()));
        assert_eq!(until(ahead, now), "in 1m");
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(
            (number(7), number(120_000), number(1_234_567)),
            ("7".into(), "120 000".into(), "1 234 567".into())
        );
    }
}
