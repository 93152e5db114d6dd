//! Names that are stored: kinds, queues, lane keys, tags, schedules. Checked once, when they are made.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::validate::{self, InvalidInput};

macro_rules! stored_name {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Cow<'static, str>);

        impl $name {
            /// Checks `text` and makes it a name: 1 to 200 bytes, no control characters, no space at
            /// either end.
            ///
            /// # Errors
            /// `invalid_name`, naming the field and what is wrong with it.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidInput> {
                let text = text.into();
                validate::name($field, &text)?;
                Ok(Self(Cow::Owned(text)))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidInput;
            fn try_from(text: String) -> Result<Self, InvalidInput> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidInput;
            fn try_from(text: &str) -> Result<Self, InvalidInput> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into_owned()
            }
        }
    };
}

stored_name!(
    /// The stored string that selects a task's handler, written by hand: `mail.receipt`.
    ///
    /// ```
    /// use laneway_core::Kind;
    ///
    /// assert_eq!(Kind::new("mail.receipt").unwrap().as_str(), "mail.receipt");
    /// assert_eq!(Kind::new("").unwrap_err().to_string(), "kind is empty; a name has 1 to 200 bytes");
    /// ```
    Kind,
    "kind"
);
stored_name!(
    /// A named set of tasks with settings of its own. Queues need not be created.
    QueueName,
    "queue"
);
stored_name!(
    /// The key of a lane inside its queue: a customer, an order, a site.
    LaneKey,
    "lane"
);
stored_name!(
    /// What at most one task of its kind and queue may hold: see [`Unique`](crate::Unique).
    UniqueKey,
    "unique.key"
);
stored_name!(
    /// Who acts: a person or a program.
    ActorName,
    "actor"
);
stored_name!(
    /// A label that operators filter by.
    Tag,
    "tag"
);
stored_name!(
    /// What a schedule is called: `nightly report`.
    ScheduleName,
    "schedule"
);

impl Default for QueueName {
    /// The queue of a task that names none: `default`.
    fn default() -> Self {
        Self(Cow::Borrowed("default"))
    }
}
