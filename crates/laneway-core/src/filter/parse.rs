//! Reads the text of a filter. Every refusal names the character at which it went wrong.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Time;

use super::{Compare, Moment, Term, Test};
use crate::name::{Kind, LaneKey, QueueName, Tag};
use crate::time::parse_span;
use crate::validate::{Code, InvalidInput};

const FIELDS: &str = "state, queue, kind, lane, tag, worker, error, attempt, age, since, until, payload.KEY";

/// The terms of a filter.
pub(super) fn terms(text: &str) -> Result<Vec<Term>, InvalidInput> {
    let mut reader = Reader { text, at: 0 };
    let mut terms = Vec::new();
    while reader.skip_spaces() {
        terms.push(reader.term()?);
    }
    Ok(terms)
}

/// A value, in quotes if it would be read as something else without. `special`: characters that need them here.
pub(super) fn quoted(value: &str, special: &[char]) -> String {
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | ',' | '\\') && !special.contains(&c);
    let compares = value.starts_with(['<', '>', '=']);
    if !value.is_empty() && value.chars().all(plain) && !compares {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A value as it was written.
struct Value {
    text: String,
    quoted: bool,
    /// Where it begins.
    at: usize,
}

struct Reader<'t> {
    text: &'t str,
    /// In bytes.
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    /// Goes to the next term. False when there is none.
    fn skip_spaces(&mut self) -> bool {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.at < self.text.len()
    }

    fn refuse(&self, at: usize, problem: impl std::fmt::Display) -> InvalidInput {
        let character = self.text[..at].chars().count() + 1;
        let problem = format!("at character {character}: {problem}");
        InvalidInput::new(Code::InvalidFilter, "filter", problem)
    }

    fn term(&mut self) -> Result<Term, InvalidInput> {
        let negated = self.take('-');
        let at = self.at;
        let path = self.path()?;
        if !self.take(':') {
            let problem = format!("`{}` has no `:`; write field:value", path.join(".").escape_debug());
            return Err(self.refuse(at, problem));
        }
        let mut any = Vec::new();
        loop {
            let value = self.value()?;
            let test = test(&path, &value).map_err(|problem| match problem {
                Problem::Field => {
                    let field = path.join(".");
                    self.refuse(at, format!("`{}` is no field; one of: {FIELDS}", field.escape_debug()))
                }
                Problem::Value(problem) => self.refuse(value.at, problem),
            })?;
            any.push(test);
            if !self.take(',') {
                break;
            }
        }
        match self.peek() {
            Some(c) if !c.is_whitespace() => Err(self.refuse(self.at, "a space is missing before this")),
            _ => Ok(Term { negated, any }),
        }
    }

    /// The field, which for payloads is a path: names up to the colon, separated by dots.
    fn path(&mut self) -> Result<Vec<String>, InvalidInput> {
        let mut path = Vec::new();
        loop {
            let name = match self.peek() {
                Some('"') => self.quoted()?,
                _ => self.until(|c| c.is_whitespace() || matches!(c, ':' | '.' | '"')),
            };
            path.push(name);
            if !self.take('.') {
                return Ok(path);
            }
        }
    }

    fn value(&mut self) -> Result<Value, InvalidInput> {
        let at = self.at;
        if self.peek() == Some('"') {
            let mut text = self.quoted()?;
            // What `kind:"a b"*` means is a beginning.
            let quoted = !self.take('*');
            text.extend((!quoted).then_some('*'));
            return Ok(Value { text, quoted, at });
        }
        let text = self.until(|c| c.is_whitespace() || matches!(c, ',' | '"'));
        if text.is_empty() {
            return Err(self.refuse(at, "a value is missing"));
        }
        Ok(Value { text, quoted: false, at })
    }

    fn until(&mut self, ends: impl Fn(char) -> bool) -> String {
        let rest = self.rest();
        let taken = rest.find(ends).map_or(rest, |end| &rest[..end]).to_owned();
        self.at += taken.len();
        taken
    }

    /// Text in quotes; `\"` and `\\` stand for themselves.
    fn quoted(&mut self) -> Result<String, InvalidInput> {
        let at = self.at;
        let mut text = String::new();
        let mut characters = self.rest().char_indices().skip(1);
        while let Some((place, c)) = characters.next() {
            match c {
                '"' => {
                    self.at += place + 1;
                    return Ok(text);
                }
                '\\' => text.extend(characters.next().map(|(_, c)| c)),
                _ => text.push(c),
            }
        }
        Err(self.refuse(at, "this quote is not closed"))
    }
}

/// What is wrong with a test.
enum Problem {
    Field,
    Value(String),
}

impl From<InvalidInput> for Problem {
    fn from(refused: InvalidInput) -> Self {
        Self::Value(refused.message)
    }
}

fn test(path: &[String], value: &Value) -> Result<Test, Problem> {
    let text = value.text.as_str();
    let [field] = path else { return payload(path, text) };
    Ok(match field.as_str() {
        "state" => Test::State(text.parse()?),
        "queue" => Test::Queue(QueueName::new(text)?),
        "kind" => match text.strip_suffix('*').filter(|_| !value.quoted) {
            Some(prefix) => Test::KindPrefix(prefix.to_owned()),
            None => Test::Kind(Kind::new(text)?),
        },
        "lane" => Test::Lane(LaneKey::new(text)?),
        "tag" => Test::Tag(Tag::new(text)?),
        "worker" => Test::Worker(worker(text)?),
        "error" => Test::Error(text.to_owned()),
        "attempt" => {
            let (compare, number) = compare(text);
            let problem = || Problem::Value(format!("`{text}` is no number of attempts; as in attempt:>3"));
            Test::Attempt(compare, number.parse().ok().filter(|n| *n <= 1_000).ok_or_else(problem)?)
        }
        "age" => {
            let (compare, age) = compare(text);
            Test::Age(compare, span(age)?)
        }
        "since" => Test::Since(moment(text)?),
        "until" => Test::Until(moment(text)?),
        _ => return Err(Problem::Field),
    })
}

fn payload(path: &[String], value: &str) -> Result<Test, Problem> {
    match path {
        [field, keys @ ..] if field == "payload" && keys.iter().all(|key| !key.is_empty()) => {
            Ok(Test::Payload { path: keys.to_vec(), value: value.to_owned() })
        }
        _ => Err(Problem::Field),
    }
}

/// The beginning of a session, as people copy it.
fn worker(text: &str) -> Result<String, Problem> {
    let session = text.strip_prefix("w-").unwrap_or(text).to_ascii_lowercase();
    let is_session = session.len() <= 36 && session.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if session.len() >= 4 && is_session {
        return Ok(session);
    }
    Err(Problem::Value(format!(
        "`{}` is no worker; give the first 4 or more digits of its session",
        text.escape_debug()
    )))
}

fn compare(text: &str) -> (Compare, &str) {
    for (sign, compare) in [
        ("<=", Compare::AtMost),
        (">=", Compare::AtLeast),
        ("<", Compare::Less),
        (">", Compare::More),
        ("=", Compare::Equal),
    ] {
        if let Some(rest) = text.strip_prefix(sign) {
            return (compare, rest);
        }
    }
    (Compare::Equal, text)
}

/// A span of time; the place of the refusal says which.
fn span(text: &str) -> Result<Duration, Problem> {
    parse_span("", text).map_err(|refused| Problem::Value(refused.message.trim_start().to_owned()))
}

fn moment(text: &str) -> Result<Moment, Problem> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Moment::At(at));
    }
    if text.contains(':')
        && let Ok(time) = text.parse::<Time>()
    {
        return Ok(Moment::Clock(time));
    }
    span(text).map(Moment::Ago).map_err(|_| {
        let shown = text.escape_debug();
        Problem::Value(format!("`{shown}` is no moment; as in 2h (ago), 12:00 (UTC) or 2026-03-01T12:00:00Z"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Filter;
    use super::*;
    use crate::State;

    fn one(text: &str) -> Test {
        let filter: Filter = text.parse().unwrap();
        assert_eq!(filter.terms().len(), 1, "{text}");
        filter.terms()[0].any[0].clone()
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn every_field_is_read() {
        let name = |text: &str| text.to_owned();
        for (text, expected) in [
            ("state:later", Test::State(State::Later)),
            ("queue:mail", Test::Queue(QueueName::new("mail").unwrap())),
            ("kind:email.send", Test::Kind(Kind::new("email.send").unwrap())),
            ("kind:email.*", Test::KindPrefix(name("email."))),
            ("kind:\"a*\"", Test::Kind(Kind::new("a*").unwrap())),
            ("kind:\"a b\"*", Test::KindPrefix(name("a b"))),
            ("lane:site:42", Test::Lane(LaneKey::new("site:42").unwrap())),
            ("lane:\"a, \\\"b\\\"\"", Test::Lane(LaneKey::new("a, \"b\"").unwrap())),
            ("tag:nightly", Test::Tag(Tag::new("nightly").unwrap())),
            ("worker:w-3F2a", Test::Worker(name("3f2a"))),
            ("error:\"too many\"", Test::Error(name("too many"))),
            ("attempt:>3", Test::Attempt(Compare::More, 3)),
            ("attempt:3", Test::Attempt(Compare::Equal, 3)),
            ("age:>=1h30m", Test::Age(Compare::AtLeast, secs(5_400))),
            ("since:2h", Test::Since(Moment::Ago(secs(7_200)))),
            ("until:12:00", Test::Until(Moment::Clock(Time::constant(12, 0, 0, 0)))),
            ("since:1970-01-01T00:00:05Z", Test::Since(Moment::At(Timestamp::new(5, 0).unwrap()))),
            ("payload.user.id:17", Test::Payload { path: vec![name("user"), name("id")], value: name("17") }),
            ("payload.\"a.b\":x:y", Test::Payload { path: vec![name("a.b")], value: name("x:y") }),
        ] {
            assert_eq!(one(text), expected, "{text}");
        }
    }

    #[test]
    fn a_comma_is_or_and_a_minus_negates() {
        let filter: Filter = "  -state:failed,cancelled\tkind:a.*,b ".parse().unwrap();

        assert!(filter.terms()[0].negated && !filter.terms()[1].negated);
        assert_eq!(filter.terms().iter().map(|term| term.any.len()).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(filter.states().len(), 5);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "",
            "state:failed,cancelled -kind:\"a*\",b.* queue:\"x y\"",
            "age:>5400000ms attempt:<=3 until:12:00:00 since:2026-03-01T12:00:00Z",
            "payload.\"a.b\".c:\"=1, 2\" error:\"\\\\ \\\"\" worker:3f2a",
        ] {
            let filter: Filter = text.parse().unwrap();
            assert_eq!(filter.to_string(), text);
        }
    }

    #[test]
    fn refusals_name_the_character() {
        for (text, says) in [
            ("failed", "filter at character 1: `failed` has no `:`"),
            ("state:failed ünknown:1", "filter at character 14: `ünknown` is no field"),
            ("state:", "filter at character 7: a value is missing"),
            ("state:failed,", "filter at character 14: a value is missing"),
            ("state:done", "filter at character 7: state `done` is unknown"),
            ("lane:\"a", "filter at character 6: this quote is not closed"),
            ("lane:\"a\"b", "filter at character 9: a space is missing"),
            ("attempt:many", "filter at character 9: `many` is no number"),
            ("age:>5", "filter at character 5: `5` is no time span"),
            ("since:yesterday", "filter at character 7: `yesterday` is no moment"),
            ("worker:x", "filter at character 8: `x` is no worker"),
            ("payload:1", "filter at character 1: `payload` is no field"),
            ("payload.:1", "filter at character 1: `payload.` is no field"),
            ("queue:\"\"", "filter at character 7: queue is empty"),
        ] {
            let refused = text.parse::<Filter>().unwrap_err();
            assert_eq!(refused.code, Code::InvalidFilter, "{text}");
            assert!(refused.message.starts_with(says), "{text}: {}", refused.message);
        }
    }

    #[test]
    fn a_filter_has_at_most_a_kibibyte() {
        let text = format!("error:{}", "x".repeat(1_018));
        assert!(text.parse::<Filter>().is_ok());

        let refused = format!("{text}x").parse::<Filter>().unwrap_err();

        assert_eq!(refused.code, Code::FilterTooLong);
    }

    #[test]
    fn a_time_of_day_is_the_last_one() {
        let now: Timestamp = "2026-03-01T12:30:00Z".parse().unwrap();
        for (time, expected) in [("12:00", "2026-03-01T12:00:00Z"), ("13:00", "2026-02-28T13:00:00Z")] {
            let Test::Since(moment) = one(&format!("since:{time}")) else { panic!("not a moment") };
            assert_eq!(moment.seen_from(now).to_string(), expected);
        }
    }
}
