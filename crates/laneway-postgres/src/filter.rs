//! Filters on their way to `filter.sql`.

use laneway_core::{Filter, LOOK_ROWS_MAX, LOOK_TEXTS_MAX, Moment, State, Term, Test};
use serde_json::{Value, json};

/// What `list_tasks` wants to know of a filter.
pub(crate) struct WireFilter {
    /// The terms, as `filter.sql` describes them.
    pub terms: Value,
    pub states: Vec<&'static str>,
    /// Whether a plain success can match: nothing is kept of it that these tests look for.
    pub plain: bool,
    /// How many rows are looked at.
    pub rows: u32,
}

impl WireFilter {
    pub fn of(filter: &Filter) -> Self {
        let reads_texts = filter.terms().iter().flat_map(|term| &term.any).any(is_about_texts);
        let needs_more = |term: &Term| !term.negated && term.any.iter().all(is_beyond_plain);
        Self {
            terms: filter.terms().iter().map(term).collect(),
            states: filter.states().into_iter().map(State::as_str).collect(),
            plain: filter.states().contains(&State::Completed) && !filter.terms().iter().any(needs_more),
            rows: if reads_texts { LOOK_TEXTS_MAX } else { LOOK_ROWS_MAX },
        }
    }
}

fn is_about_texts(test: &Test) -> bool {
    matches!(test, Test::Error(_) | Test::Payload { .. })
}

fn is_beyond_plain(test: &Test) -> bool {
    is_about_texts(test) || matches!(test, Test::Tag(_) | Test::Worker(_))
}

fn term(term: &Term) -> Value {
    json!({ "not": term.negated, "any": term.any.iter().map(test).collect::<Value>() })
}

fn test(test: &Test) -> Value {
    let plain = |is: &str, value: &str| json!({ "is": is, "value": value });
    match test {
        Test::State(state) => plain("state", state.as_str()),
        Test::Queue(queue) => plain("queue", queue.as_str()),
        Test::Kind(kind) => plain("kind", kind.as_str()),
        Test::KindPrefix(prefix) => plain("kind_prefix", prefix),
        Test::Lane(key) => plain("lane", key.as_str()),
        Test::Tag(tag) => plain("tag", tag.as_str()),
        Test::Worker(session) => plain("worker", &session.replace('-', "")),
        Test::Error(text) => plain("error", text),
        Test::Attempt(sign, number) => json!({ "is": "attempt", "sign": sign.to_string(), "value": number }),
        Test::Age(sign, age) => {
            json!({ "is": "age", "sign": sign.to_string(), "value": age.as_millis() as u64 })
        }
        Test::Since(at) => moment("since", *at),
        Test::Until(at) => moment("until", *at),
        Test::Payload { path, value } => json!({ "is": "payload", "path": path, "value": value }),
        // A test that this store does not know is refused by `filter.sql`, and not passed over.
        _ => json!({ "is": "unknown" }),
    }
}

fn moment(is: &str, moment: Moment) -> Value {
    match moment {
        Moment::Ago(ago) => json!({ "is": is, "ago_ms": ago.as_millis() as u64 }),
        Moment::Clock(time) => json!({ "is": is, "clock": time.to_string() }),
        Moment::At(at) => json!({ "is": is, "value": at.to_string() }),
    }
}
