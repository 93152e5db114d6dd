//! Unique keys: at most one task per key, and what a second one becomes.
//!
//! A key belongs to a kind in a queue. Who enqueues first holds it; how long is the [`KeyScope`]. Who comes second is
//! answered by [`OnConflict`]. The store keeps one row per key under one unique index, so two enqueues at the same
//! instant are decided by the database: the second waits until the first has committed or is gone, and then looks again.
//!
//! An idempotency key is the same mechanism with a space of its own over the whole store: see [`Unique::idempotent`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::TaskId;
use crate::name::UniqueKey;
use crate::task::{NewTask, When};
use crate::validate::{self, Code, InvalidInput};

/// How long an idempotency key is remembered unless told otherwise.
pub const IDEMPOTENT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// The key of a task that is enqueued.
///
/// ```
/// use laneway_core::{Json, Kind, NewTask, OnConflict, Unique, UniqueKey};
///
/// let once = Unique::new(UniqueKey::new("customer:7")?).on_conflict(OnConflict::Replace);
/// let task = NewTask::new(Kind::new("report.build")?, Json::parse("{}")?).unique(once);
/// assert!(task.check(&Default::default()).is_ok());
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// The key. Unique among the tasks of one kind in one queue; an idempotency key in the whole store.
    pub key: UniqueKey,
    /// How long its task holds it.
    pub scope: KeyScope,
    /// What becomes of a second task.
    pub on_conflict: OnConflict,
}

/// How long a task holds its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeyScope {
    /// Until its first attempt starts. A task that comes back (retry, give-back, lost lease) does not take the key again:
    /// a newer task may hold it by then.
    WhilePending,
    /// Until it has ended.
    WhileOpen,
    /// For this long after it was stored, whatever becomes of the task. At least a millisecond, at most 30 days.
    #[serde(rename = "within_ms", with = "millis")]
    Within(Duration),
}

/// What becomes of a task whose key is held by another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnConflict {
    /// It is not stored; the answer names the other one.
    #[default]
    Existing,
    /// It is not stored; its payload replaces that of the other one, which keeps its id, its place and all else. Only if
    /// the other one is not running, has not ended and is not held by another transaction; otherwise like `Existing`.
    Replace,
    /// Like `Replace`, but of two objects the members are merged, on the first level and with the new ones winning.
    Merge,
    /// It is refused with `unique_conflict`, and the error names the other one.
    Reject,
    /// Made by [`Unique::idempotent`]: like `Existing` if both have the same content, otherwise refused with
    /// `idempotency_conflict`.
    Same,
}

impl Unique {
    /// A key that its task holds until it has ended; a second task is answered with the first.
    pub fn new(key: UniqueKey) -> Self {
        Self { key, scope: KeyScope::WhileOpen, on_conflict: OnConflict::Existing }
    }

    /// An idempotency key: repeating an enqueue whose answer was lost makes no second task. It is remembered for 24
    /// hours after the task was stored. The same key with other content (queue, kind, payload, lane, time and settings;
    /// not the trace) is a mistake and refused.
    pub fn idempotent(key: UniqueKey) -> Self {
        Self { key, scope: KeyScope::Within(IDEMPOTENT_FOR), on_conflict: OnConflict::Same }
    }

    /// Held for as long as `scope` says.
    pub fn scope(mut self, scope: KeyScope) -> Self {
        self.scope = scope;
        self
    }

    /// What becomes of a second task.
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.on_conflict = on_conflict;
        self
    }

    /// True when the key is one of the whole store and not of a kind in a queue.
    pub fn is_store_wide(&self) -> bool {
        self.on_conflict == OnConflict::Same
    }

    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        let KeyScope::Within(window) = self.scope else {
            return match self.on_conflict {
                OnConflict::Same => {
                    let problem = "of an idempotency key is a length of time; use `Within`";
                    Err(InvalidInput::new(Code::OutOfRange, "unique.scope", problem))
                }
                _ => Ok(()),
            };
        };
        let (millis, most) = (window.as_millis() as u64, validate::WAIT_MAX.as_millis() as u64);
        validate::in_range("unique.within", millis, 1..=most)
            .map_err(|refused| InvalidInput { message: format!("{} ms", refused.message), ..refused })
    }
}

impl KeyScope {
    /// The scope as stores name it: `while_pending`, `while_open` or `within`.
    pub fn stored(self) -> &'static str {
        match self {
            Self::WhilePending => "while_pending",
            Self::WhileOpen => "while_open",
            Self::Within(_) => "within",
        }
    }

    /// How long, where it is a length of time.
    pub fn window(self) -> Option<Duration> {
        match self {
            Self::Within(window) => Some(window),
            _ => None,
        }
    }
}

impl OnConflict {
    /// The choice as stores name it.
    pub fn stored(self) -> &'static str {
        match self {
            Self::Existing => "existing",
            Self::Replace => "replace",
            Self::Merge => "merge",
            Self::Reject => "reject",
            Self::Same => "same",
        }
    }
}

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Enqueued {
    /// The task: the new one, or the one that holds the key.
    pub id: TaskId,
    /// What was done.
    pub effect: Effect,
}

/// What an enqueue did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// A new task was stored.
    Made,
    /// Nothing: a task with the same key was there. Also the answer to a replace or merge that came too late, because
    /// that task was running, had ended, or was being changed by somebody else.
    Existing,
    /// The payload of the task that was there is now this one.
    Replaced,
    /// The payload of the task that was there has this one's members now.
    Merged,
}

impl From<Enqueued> for TaskId {
    fn from(enqueued: Enqueued) -> Self {
        enqueued.id
    }
}

impl Enqueued {
    /// A task that was stored.
    pub fn made(id: TaskId) -> Self {
        Self { id, effect: Effect::Made }
    }

    /// True when a new task was stored.
    pub fn is_new(self) -> bool {
        self.effect == Effect::Made
    }
}

/// What an idempotency key stands for, as a number that is the same in every release: FNV-1a over everything that the
/// caller gave, without the trace, which a repeated call may well have anew.
pub fn content_hash(task: &NewTask) -> i64 {
    let lane = task.lane.as_ref().map(|lane| (lane.key.as_str(), lane.limit.map(|limit| limit.stored())));
    let when = match task.when {
        When::Now => "now".to_owned(),
        When::After(delay) => format!("after {}", delay.as_millis()),
        When::At(due) => format!("at {}", due.as_microsecond()),
    };
    let tags: Vec<_> = task.tags.iter().map(|tag| tag.as_str()).collect();
    let rest = (lane, task.priority, when, task.max_attempts, &task.retry, task.timeout, tags);
    let rest = serde_json::to_string(&rest).expect("strings and numbers can be encoded");
    let parts = [task.queue.as_str(), task.kind.as_str(), task.payload.as_str(), &rest];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        as i64
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_millis() as u64)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;
    use crate::name::Kind;

    fn task(payload: &str) -> NewTask {
        NewTask::new(Kind::new("work").unwrap(), Json::parse(payload).unwrap())
    }

    #[test]
    fn a_key_is_written_as_stores_read_it() {
        let key =
            |scope| serde_json::to_string(&Unique::new(UniqueKey::new("k").unwrap()).scope(scope)).unwrap();

        assert_eq!(key(KeyScope::WhileOpen), r#"{"key":"k","scope":"while_open","on_conflict":"existing"}"#);
        let within = key(KeyScope::Within(Duration::from_secs(2)));
        assert_eq!(within, r#"{"key":"k","scope":{"within_ms":2000},"on_conflict":"existing"}"#);
        assert_eq!(
            serde_json::from_str::<Unique>(&within).unwrap().scope.window(),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn the_content_is_everything_but_the_trace() {
        let mut traced = task("[1]");
        traced.trace.insert("traceparent".into(), "00-1".into());

        assert_eq!(content_hash(&task("[1]")), content_hash(&traced));
        assert_ne!(content_hash(&task("[1]")), content_hash(&task("[2]")));
        assert_ne!(content_hash(&task("[1]")), content_hash(&task("[1]").priority(1)));
        assert_ne!(content_hash(&task("[1]")), content_hash(&task("[1]").delay(Duration::from_secs(1))));
    }

    #[test]
    fn the_hash_does_not_change_from_release_to_release() {
        assert_eq!(content_hash(&task("{}")), HASH_OF_EMPTY);
    }

    /// What the first release stored.
    const HASH_OF_EMPTY: i64 = -5_683_108_037_744_414_687;
}
