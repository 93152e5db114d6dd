//! Filters as conditions on a row of a view. Only fixed words are put together; every value is bound.

use rusqlite::types::Value;

use laneway_core::{Compare, Filter, LOOK_ROWS_MAX, LOOK_TEXTS_MAX, Place, State, Term, Test};

use crate::clock::micros;
use crate::lane;
use crate::row;

/// The condition of a filter, to be put behind others, and the values for its question marks.
#[derive(Default)]
pub(crate) struct Condition {
    pub(crate) text: String,
    pub(crate) values: Vec<Value>,
}

impl Condition {
    /// The condition on rows `at` of the table behind `place`.
    pub(crate) fn of(filter: &Filter, place: Place, now: i64) -> rusqlite::Result<Self> {
        let mut condition = Self::default();
        for term in filter.terms() {
            condition.add(term, place, now)?;
        }
        Ok(condition)
    }

    fn add(&mut self, term: &Term, place: Place, now: i64) -> rusqlite::Result<()> {
        let mut any = Vec::new();
        for test in &term.any {
            any.push(self.test(test, place, now)?);
        }
        let holds = if term.negated { "is not true" } else { "is true" };
        self.text.push_str(&format!(" and ({}) {holds}", any.join(" or ")));
        Ok(())
    }

    /// The text of one test, whose values are added.
    fn test(&mut self, test: &Test, place: Place, now: i64) -> rusqlite::Result<String> {
        let ended = place == Place::Ended;
        let moment = if ended { "at.ended_at" } else { "at.enqueued_at" };
        let text = match test {
            Test::State(state) => return Ok(self.state(*state, place)),
            Test::Queue(queue) => {
                self.bind(queue.as_str().to_owned());
                "at.queue = (select id from queue where name = ?)".to_owned()
            }
            Test::Kind(kind) => {
                self.bind(kind.as_str().to_owned());
                "at.kind = ?".to_owned()
            }
            Test::KindPrefix(prefix) => {
                self.bind(prefix.chars().count() as i64);
                self.bind(prefix.clone());
                "substr(at.kind, 1, ?) = ?".to_owned()
            }
            Test::Lane(key) => {
                self.bind(lane::stored_key(key, false).into_owned());
                self.bind(lane::stored_key(key, true).into_owned());
                "at.lane in (select id from lane where lane.queue = at.queue and lane.key in (?, ?))"
                    .to_owned()
            }
            Test::Tag(tag) => {
                self.bind(tag.as_str().to_owned());
                "exists (select 1 from json_each(at.options, '$.tags') where value = ?)".to_owned()
            }
            Test::Worker(session) if place == Place::Leased => {
                let session = session.replace('-', "");
                self.bind(session.len() as i64);
                self.bind(session);
                "substr((select lower(hex(session)) from lease where lease.id = at.lease), 1, ?) = ?"
                    .to_owned()
            }
            Test::Worker(_) => "null".to_owned(),
            Test::Error(text) => {
                self.bind(text.clone());
                "instr(at.error, ?) > 0".to_owned()
            }
            Test::Attempt(compare, number) => {
                self.bind(i64::from(*number));
                let running = i32::from(place == Place::Leased);
                format!("at.attempt + {running} {compare} ?")
            }
            // Older than an hour is enqueued before an hour ago.
            Test::Age(compare, age) => {
                self.bind(now.saturating_sub(micros(*age)));
                format!("at.enqueued_at {} ?", turned(*compare))
            }
            Test::Since(at) => {
                self.bind(at.seen_from(row::timestamp(now)?).as_microsecond());
                format!("{moment} >= ?")
            }
            Test::Until(at) => {
                self.bind(at.seen_from(row::timestamp(now)?).as_microsecond());
                format!("{moment} < ?")
            }
            Test::Payload { path, value } => self.payload(path, value),
            _ => return Err(rusqlite::Error::InvalidParameterName("a test that is unknown".into())),
        };
        Ok(text)
    }

    fn bind(&mut self, value: impl Into<Value>) {
        self.values.push(value.into());
    }

    fn state(&mut self, state: State, place: Place) -> String {
        if place != Place::Ended {
            return i32::from(Place::of(state) == place).to_string();
        }
        self.bind(crate::end::stored_state(state));
        let has_ended = i32::from(state.has_ended());
        format!("at.state = ? and {has_ended}")
    }

    fn payload(&mut self, path: &[String], value: &str) -> String {
        let keys: Vec<_> = path.iter().map(|key| format!("\"{}\"", key.replace('"', "\\\""))).collect();
        let path = format!("$.{}", keys.join("."));
        for value in [&path, &path, value, &path, &path, value] {
            self.bind(value.to_owned());
        }
        "json_type(at.payload, ?) = 'text' and at.payload ->> ? = ? \
         or json_type(at.payload, ?) in ('integer', 'real', 'true', 'false') and at.payload -> ? = ?"
            .to_owned()
    }
}

/// The sign that compares times when ages are compared.
fn turned(compare: Compare) -> Compare {
    match compare {
        Compare::Less => Compare::More,
        Compare::AtMost => Compare::AtLeast,
        Compare::Equal => Compare::Equal,
        Compare::AtLeast => Compare::AtMost,
        Compare::More => Compare::Less,
    }
}

/// How many rows a page is looked for in.
pub(crate) fn rows_max(filter: &Filter) -> u32 {
    let reads_texts = |test: &Test| matches!(test, Test::Error(_) | Test::Payload { .. });
    let texts = filter.terms().iter().flat_map(|term| &term.any).any(reads_texts);
    if texts { LOOK_TEXTS_MAX } else { LOOK_ROWS_MAX }
}
