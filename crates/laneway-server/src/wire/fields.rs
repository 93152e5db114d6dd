//! Some fields of a task instead of all, for those who list many.

use std::collections::BTreeMap;
use std::str::FromStr;

use laneway_core::{Code, InvalidInput};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::task::Task;

/// Every field that a task may have.
const KNOWN: &[&str] = &[
    "id",
    "kind",
    "queue",
    "lane",
    "priority",
    "state",
    "attempt",
    "max_attempts",
    "crashes",
    "parent",
    "depth",
    "enqueued_at",
    "due_at",
    "started_at",
    "ended_at",
    "worker",
    "payload",
    "result",
    "error",
    "cancel_requested",
    "progress",
    "family",
    "timeout_ms",
    "retry",
    "tags",
    "trace",
    "unique",
    "fire",
    "step",
    "after",
    "resume",
];

/// The fields that somebody wants to see.
#[derive(Debug)]
pub(crate) struct Fields(Vec<String>);

impl FromStr for Fields {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let known = |name: &str| match KNOWN.contains(&name) {
            true => Ok(name.to_owned()),
            false => {
                let problem = format!("`{}` is unknown; one of: {}", name.escape_debug(), KNOWN.join(", "));
                Err(InvalidInput::new(Code::InvalidName, "fields", problem))
            }
        };
        text.split(',').map(known).collect::<Result<_, _>>().map(Self)
    }
}

/// A task as it is listed: whole, or some of its fields.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Shown {
    Whole(Box<Task>),
    Some(BTreeMap<String, Box<RawValue>>),
}

/// Whoever reads tasks has asked for whole ones.
impl<'de> Deserialize<'de> for Shown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::deserialize(deserializer).map(Self::Whole)
    }
}

impl Shown {
    /// The task, if it is whole.
    pub(crate) fn whole(self) -> Option<Task> {
        match self {
            Self::Whole(task) => Some(*task),
            Self::Some(_) => None,
        }
    }

    /// The fields that are wanted, of those that the task has. Values stay the text that they are.
    pub(crate) fn of(task: Task, fields: Option<&Fields>) -> Self {
        let Some(Fields(wanted)) = fields else { return Self::Whole(Box::new(task)) };
        let text = serde_json::to_string(&task).expect("a task can be encoded");
        let mut all: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(&text).expect("a task is an object");
        all.retain(|name, _| wanted.contains(name));
        Self::Some(all)
    }
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;

    /// The fields that the description of a task has, and those of its options, which are written out here: a new option
    /// does not compile until it is named.
    #[test]
    fn every_field_of_a_task_can_be_asked_for() {
        let schema = serde_json::to_value(Task::schema()).unwrap();
        let described =
            schema["allOf"].as_array().unwrap().iter().find_map(|part| part["properties"].as_object());
        let mut expected: Vec<_> = described.unwrap().keys().cloned().collect();
        let laneway_core::TaskOptions {
            timeout_ms: _,
            retry: _,
            tags: _,
            trace: _,
            unique: _,
            fire: _,
            step: _,
            after: _,
            resume: _,
        } = laneway_core::TaskOptions::default();
        expected.extend(
            ["timeout_ms", "retry", "tags", "trace", "unique", "fire", "step", "after", "resume"]
                .map(str::to_owned),
        );
        let mut known: Vec<_> = KNOWN.iter().map(|name| (*name).to_owned()).collect();
        expected.sort();
        known.sort();
        assert_eq!(known, expected);
    }
}
