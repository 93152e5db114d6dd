//! Identities. Ids come from the store; sessions and tokens are random, so that a restored or failed-over
//! database can never hand out the same one twice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::validate::{Code, InvalidInput};

/// A task's number, drawn from one sequence per store. A task that comes back (retry, give-back, lost
/// lease) keeps it.
///
/// ```
/// use laneway_core::TaskId;
///
/// let id: TaskId = "1042".parse().unwrap();
/// assert_eq!(id, TaskId(1042));
/// assert_eq!("x".parse::<TaskId>().unwrap_err().code.as_str(), "invalid_id");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub i64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TaskId {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        match text.parse() {
            Ok(id) if id > 0 => Ok(Self(id)),
            _ => Err(InvalidInput::new(
                Code::InvalidId,
                "id",
                format!("`{}` is not a task id; ids are whole numbers from 1", text.escape_debug()),
            )),
        }
    }
}

/// One lease: the record of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

/// A worker process between its start and its end. Random, so a restarted process is never mistaken for
/// the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub Uuid);

impl SessionId {
    /// A new random session.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The secret of one lease. Whoever settles must show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseToken(pub Uuid);

/// Everything that a settle must show about the lease of its task. Made by a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The lease.
    pub id: LeaseId,
    /// Its secret.
    pub token: LeaseToken,
    /// How many tasks the claim put into it, if a settle that names all of them as completed may take a shorter way;
    /// otherwise 0.
    pub tasks: u32,
}
