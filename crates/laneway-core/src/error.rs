//! What can go wrong between us and a database, in our words.

use crate::id::TaskId;
use crate::name::UniqueKey;
use crate::validate::InvalidInput;

/// The driver's error behind one of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a store could not do what it was asked. Unless the message says otherwise nothing was changed, and what
/// had been accepted before is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The input was refused.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The database cannot be reached, or closed the connection. If that happened while a call was under way,
    /// it may or may not have been carried out.
    #[error("cannot reach the database at {target}; check that it is running and that the address is right")]
    Unavailable {
        /// Host and port, or the file; never the password.
        target: String,
        /// What the driver said.
        source: Source,
    },
    /// The database refused the user, the password or the database name, or its certificate does not hold.
    #[error(
        "the connection to the database at {target} was refused; check user, password, database name and TLS settings"
    )]
    Refused {
        /// Host and port.
        target: String,
        /// What the driver said.
        source: Source,
    },
    /// The database takes no writes.
    #[error(
        "the database at {target} is read-only; connect to the primary (target_session_attrs=read-write) or make the file writable"
    )]
    ReadOnly {
        /// Host and port, or the file.
        target: String,
        /// What the driver said.
        source: Source,
    },
    /// The database's disk is full.
    #[error("the database at {target} has no space left; free some and try again")]
    Full {
        /// Host and port, or the file.
        target: String,
        /// What the driver said.
        source: Source,
    },
    /// Somebody else holds what this call has to change.
    #[error("{what} is held by another transaction; try again")]
    Busy {
        /// What is held.
        what: String,
    },
    /// The key of a task is held by another one, and the task was enqueued to be refused then.
    #[error(
        "the key `{key}` is held by task {holder}; wait until it has ended, or enqueue with another conflict rule"
    )]
    KeyTaken {
        /// The key.
        key: UniqueKey,
        /// The task that holds it.
        holder: TaskId,
    },
    /// The idempotency key was used before, for a task with other content.
    #[error(
        "the idempotency key `{key}` was used for task {holder}, which is a different one; use a new key for a new task"
    )]
    IdempotencyConflict {
        /// The key.
        key: UniqueKey,
        /// The task that it stands for.
        holder: TaskId,
    },
    /// The tables were made by a newer program that this one cannot work with.
    #[error(
        "the store has schema version {found}, this program knows {known}; install laneway {needs} or newer"
    )]
    TooOld {
        /// Version of the tables.
        found: i32,
        /// Newest version that this program knows.
        known: i32,
        /// The program version that wrote the tables.
        needs: String,
    },
    /// The tables are missing or older than this program needs.
    #[error("the store has schema version {found}, this program needs {needs}; run `laneway store migrate`")]
    NotMigrated {
        /// Version of the tables; 0 when there are none.
        found: i32,
        /// Version that is needed.
        needs: i32,
    },
    /// The server or library is too old.
    #[error("{found} is too old; {needs} or newer is needed")]
    Unsupported {
        /// What was found.
        found: String,
        /// What is needed.
        needs: String,
    },
    /// The file belongs to another program.
    #[error("{path} is not a laneway store ({problem}); choose another file")]
    ForeignFile {
        /// The file.
        path: String,
        /// How we know.
        problem: String,
    },
    /// The file cannot be opened or made.
    #[error("cannot open {path}: {problem}; check the directory and its permissions")]
    CannotOpen {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The address of the store is not understood.
    #[error("the store's address is not valid: {problem}")]
    Address {
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The Laneway server cannot be reached or is none, or the connection broke. If that happened while a call was under
    /// way, it may or may not have been carried out.
    #[error("cannot reach a Laneway server at {url}; check that it is running and that the address is right")]
    ServerUnavailable {
        /// Its address.
        url: String,
        /// What happened.
        source: Source,
    },
    /// A Laneway server refused the call, in its own words.
    #[error("{message}")]
    Server {
        /// The code that it answered.
        code: &'static str,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
    /// Anything else: the database answered something that we did not expect.
    #[error("the store failed while it was to {doing}")]
    Unexpected {
        /// The verb.
        doing: &'static str,
        /// What the driver said.
        source: Source,
    },
}

impl StoreError {
    /// The stable code, the same from library, command line and HTTP.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(invalid) => invalid.code.as_str(),
            Self::Unavailable { .. } | Self::ServerUnavailable { .. } | Self::Closed => "unavailable",
            Self::Server { code, .. } => code,
            Self::Refused { .. } => "connection_refused",
            Self::ReadOnly { .. } => "read_only",
            Self::Full { .. } => "storage_full",
            Self::Busy { .. } => "busy",
            Self::KeyTaken { .. } => "unique_conflict",
            Self::IdempotencyConflict { .. } => "idempotency_conflict",
            Self::TooOld { .. } => "program_too_old",
            Self::NotMigrated { .. } => "not_migrated",
            Self::Unsupported { .. } => "unsupported",
            Self::ForeignFile { .. } => "foreign_file",
            Self::CannotOpen { .. } => "cannot_open",
            Self::Address { .. } => "invalid_address",
            Self::Unexpected { .. } => "internal",
        }
    }

    /// True when the same call may succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::ServerUnavailable { .. }
                | Self::Full { .. }
                | Self::Busy { .. }
                | Self::ReadOnly { .. }
                | Self::Server { code: "unavailable" | "timeout" | "storage_full" | "read_only", .. }
        )
    }

    /// The refused input, when that is what it was.
    pub fn invalid(&self) -> Option<&InvalidInput> {
        match self {
            Self::Invalid(invalid) => Some(invalid),
            _ => None,
        }
    }
}
