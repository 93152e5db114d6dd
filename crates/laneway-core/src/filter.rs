//! Filters: which tasks a list, a count or a bulk action is about.
//!
//! A filter is a list of terms that all must hold. Each term holds when one of its tests does, or, negated, when none
//! does. Users write it as text, the same in library, command line, HTTP and dashboard:
//!
//! ```text
//! state:failed kind:email.*,sms.* -queue:bulk attempt:>3 error:"too many" payload.user.id:17 since:2h
//! ```
//!
//! Both stores read filters the same way; what a test compares is written at [`Test`]. How the text is read is in
//! `filter/parse.rs`. Not here: how far a list looks for matches ([`Page`](crate::Page)).

mod parse;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Time;

use crate::look::{Place, State};
use crate::name::{Kind, LaneKey, QueueName, Tag};
use crate::validate::{Code, FILTER_BYTES_MAX, InvalidInput};

/// Which tasks are meant. The default means all of them.
///
/// ```
/// use laneway_core::{Filter, Place};
///
/// let filter: Filter = "state:failed kind:email.* since:1h".parse().unwrap();
/// assert_eq!(filter.terms().len(), 3);
/// assert_eq!(filter.places(), [Place::Ended]);
///
/// let refused = "state:failed colour:red".parse::<Filter>().unwrap_err();
/// assert_eq!(refused.code.as_str(), "invalid_filter");
/// assert!(refused.message.starts_with("filter at character 14: `colour` is no field"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

/// One condition of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// True when none of the tests may hold.
    pub negated: bool,
    /// One of these must hold. All are about the same field.
    pub any: Vec<Test>,
}

/// One comparison.
///
/// A test of something that a task does not have does not hold: an error that was never reported, the tags and the
/// payload of a plain success, which are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Test {
    /// `state:failed`
    State(State),
    /// `queue:mail`
    Queue(QueueName),
    /// `kind:email.send`
    Kind(Kind),
    /// `kind:email.*`: kinds that begin like this.
    KindPrefix(String),
    /// `lane:site:42`
    Lane(LaneKey),
    /// `tag:nightly`
    Tag(Tag),
    /// `worker:3f2a`: running on the worker whose session begins like this.
    Worker(String),
    /// `error:"too many"`: the last error contains this text, in this spelling.
    Error(String),
    /// `attempt:>3`: attempts charged, counting a running one.
    Attempt(Compare, u32),
    /// `age:>5m`: time since it was enqueued.
    Age(Compare, Duration),
    /// `since:2h`: it ended, or, if it has not, was enqueued at this moment or later.
    Since(Moment),
    /// `until:12:00`: it ended, or, if it has not, was enqueued before this moment.
    Until(Moment),
    /// `payload.user.id:17`: the string, number or boolean at this path of keys, compared as text.
    Payload {
        /// Keys of nested objects.
        path: Vec<String>,
        /// The value as text.
        value: String,
    },
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Equal,
    /// `>=`
    AtLeast,
    /// `>`
    More,
}

/// A moment, which the store finds by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This long ago: `2h`.
    Ago(Duration),
    /// The last time that the clock showed this, in UTC: `12:00`.
    Clock(Time),
    /// Then: `2026-03-01T12:00:00Z`.
    At(Timestamp),
}

impl Moment {
    /// The moment itself, seen from `now`.
    pub fn seen_from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
            Self::At(at) => at,
            Self::Clock(time) => last_time(time, now),
        }
    }
}

fn last_time(time: Time, now: Timestamp) -> Timestamp {
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let on = |date: jiff::civil::Date| {
        date.to_datetime(time)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .map_or(Timestamp::MIN, |zoned| zoned.timestamp())
    };
    let at = on(today);
    if at <= now { at } else { today.yesterday().map_or(Timestamp::MIN, on) }
}

impl Filter {
    /// Only tasks for which `test` holds, too.
    pub fn and(mut self, test: Test) -> Self {
        self.terms.push(Term { negated: false, any: vec![test] });
        self
    }

    /// Only tasks for which `test` does not hold.
    pub fn and_not(mut self, test: Test) -> Self {
        self.terms.push(Term { negated: true, any: vec![test] });
        self
    }

    /// The conditions, all of which must hold.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// True when it means every task.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The states in which a task can match.
    pub fn states(&self) -> Vec<State> {
        let allows = |state: State| self.terms.iter().all(|term| term.allows(state));
        State::ALL.into_iter().filter(|state| allows(*state)).collect()
    }

    /// The lists in which a task can match: what somebody has to read who wants all that match.
    pub fn places(&self) -> Vec<Place> {
        let mut places: Vec<_> = self.states().into_iter().map(Place::of).collect();
        places.dedup();
        places
    }

    /// The first and the last moment (exclusive) at which a task of this filter can have ended, seen from `now`, where it
    /// says so without an "or".
    pub fn span(&self, now: Timestamp) -> (Option<Timestamp>, Option<Timestamp>) {
        let (mut since, mut until) = (None, None);
        for term in self.terms.iter().filter(|term| !term.negated) {
            match term.any[..] {
                [Test::Since(at)] => since = since.max(Some(at.seen_from(now))),
                [Test::Until(at)] => {
                    let at = at.seen_from(now);
                    until = Some(until.map_or(at, |earlier: Timestamp| earlier.min(at)));
                }
                _ => (),
            }
        }
        (since, until)
    }

    /// Checks the length, as text: at most 1 KiB.
    ///
    /// # Errors
    /// `filter_too_long`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        check_length(&self.to_string())
    }
}

impl Term {
    /// False when no task in `state` can meet this term.
    fn allows(&self, state: State) -> bool {
        let mut states = self.any.iter().filter_map(|test| match test {
            Test::State(state) => Some(*state),
            _ => None,
        });
        let is_about_state = states.clone().next().is_some();
        !is_about_state || states.any(|named| named == state) != self.negated
    }
}

fn check_length(text: &str) -> Result<(), InvalidInput> {
    if text.len() <= FILTER_BYTES_MAX {
        return Ok(());
    }
    let problem = format!("has {} bytes; at most {FILTER_BYTES_MAX} are allowed", text.len());
    Err(InvalidInput::new(Code::FilterTooLong, "filter", problem))
}

impl FromStr for Filter {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        check_length(text)?;
        parse::terms(text).map(|terms| Self { terms })
    }
}

/// The text that means the same.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in self.terms.iter().enumerate() {
            let space = if place > 0 { " " } else { "" };
            let minus = if term.negated { "-" } else { "" };
            let Some(first) = term.any.first() else { continue };
            let values: Vec<_> = term.any.iter().map(Test::value).collect();
            write!(f, "{space}{minus}{}:{}", first.field(), values.join(","))?;
        }
        Ok(())
    }
}

impl Test {
    /// The field as users write it.
    fn field(&self) -> String {
        match self {
            Self::State(_) => "state".into(),
            Self::Queue(_) => "queue".into(),
            Self::Kind(_) | Self::KindPrefix(_) => "kind".into(),
            Self::Lane(_) => "lane".into(),
            Self::Tag(_) => "tag".into(),
            Self::Worker(_) => "worker".into(),
            Self::Error(_) => "error".into(),
            Self::Attempt(..) => "attempt".into(),
            Self::Age(..) => "age".into(),
            Self::Since(_) => "since".into(),
            Self::Until(_) => "until".into(),
            Self::Payload { path, .. } => {
                let keys = path.iter().map(|key| parse::quoted(key, &['.', ':']));
                ["payload".to_owned()].into_iter().chain(keys).collect::<Vec<_>>().join(".")
            }
        }
    }

    /// The value as users write it.
    fn value(&self) -> String {
        match self {
            Self::State(state) => state.to_string(),
            Self::Queue(name) => parse::quoted(name.as_str(), &[]),
            Self::Kind(kind) => parse::quoted(kind.as_str(), &['*']),
            Self::KindPrefix(prefix) => format!("{}*", parse::quoted(prefix, &['*'])),
            Self::Lane(key) => parse::quoted(key.as_str(), &[]),
            Self::Tag(tag) => parse::quoted(tag.as_str(), &[]),
            Self::Worker(text) | Self::Error(text) => parse::quoted(text, &[]),
            Self::Attempt(compare, number) => format!("{compare}{number}"),
            Self::Age(compare, age) => format!("{compare}{}ms", age.as_millis()),
            Self::Since(moment) | Self::Until(moment) => moment.to_string(),
            Self::Payload { value, .. } => parse::quoted(value, &[]),
        }
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Equal => "=",
            Self::AtLeast => ">=",
            Self::More => ">",
        })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ago(ago) => write!(f, "{}ms", ago.as_millis()),
            Self::Clock(time) => write!(f, "{time}"),
            Self::At(at) => write!(f, "{at}"),
        }
    }
}
