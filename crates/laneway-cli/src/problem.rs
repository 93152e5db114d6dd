//! What went wrong, in words and as an exit code.

use std::error::Error;
use std::process::ExitCode;

use laneway_core::{InvalidInput, StoreError};

/// How the program ends. The numbers are a contract with scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is done.
    Done = 0,
    /// Something went wrong.
    Error = 1,
    /// The command, a value or a file is not acceptable; nothing was changed.
    Usage = 2,
    /// There is no such thing, or nothing to do.
    NothingMatched = 3,
    /// Some of it was done, some was not.
    Partial = 4,
    /// The store, or the server in front of it, cannot be reached.
    Unreachable = 5,
    /// The store's tables and this program do not fit.
    Schema = 6,
    /// Somebody pressed Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed. The message names the value and the remedy.
#[derive(Debug)]
pub struct Problem {
    pub exit: Exit,
    pub message: String,
    /// The stable code, where the engine has one.
    pub code: Option<&'static str>,
    /// What lies behind it, outermost first.
    pub causes: Vec<String>,
}

/// What every command answers.
pub type Outcome = Result<Exit, Problem>;

impl Problem {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), code: None, causes: vec![] }
    }

    /// The command or a value is not acceptable.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// There is no such thing.
    pub fn nothing(message: impl Into<String>) -> Self {
        Self::new(Exit::NothingMatched, message)
    }

    /// Something went wrong for the reason that `error` gives.
    pub fn because(message: impl Into<String>, error: &dyn Error) -> Self {
        let mut causes = vec![error.to_string()];
        causes.extend(sources(error));
        Self { causes, ..Self::new(Exit::Error, message) }
    }

    /// Nobody reads the output any more, as with `laneway tasks ls | head -1`.
    pub fn is_broken_pipe(&self) -> bool {
        self.code == Some(BROKEN_PIPE)
    }
}

const BROKEN_PIPE: &str = "broken_pipe";

/// The causes of an error, outermost first.
fn sources(error: &dyn Error) -> Vec<String> {
    let mut causes = vec![];
    let mut source = error.source();
    while let Some(inner) = source {
        causes.push(inner.to_string());
        source = inner.source();
    }
    causes
}

impl From<InvalidInput> for Problem {
    fn from(refused: InvalidInput) -> Self {
        Self { code: Some(refused.code.as_str()), ..Self::usage(refused.message) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let exit = match &error {
            StoreError::Invalid(_) | StoreError::Address { .. } => Exit::Usage,
            StoreError::Unavailable { .. } | StoreError::Refused { .. } | StoreError::CannotOpen { .. } => {
                Exit::Unreachable
            }
            StoreError::TooOld { .. }
            | StoreError::NotMigrated { .. }
            | StoreError::Unsupported { .. }
            | StoreError::ForeignFile { .. } => Exit::Schema,
            StoreError::ServerUnavailable { .. } => Exit::Unreachable,
            StoreError::Server { code, .. } => answered(code),
            _ => Exit::Error,
        };
        Self { exit, message: error.to_string(), code: Some(error.code()), causes: sources(&error) }
    }
}

/// How a command ends that a server has refused with this code: as if the store had.
fn answered(code: &str) -> Exit {
    match code {
        "unavailable" | "connection_refused" | "timeout" => Exit::Unreachable,
        "not_migrated" | "program_too_old" => Exit::Schema,
        "body_too_large" | "invalid_request" | "invalid_type" | "missing_field" | "unknown_field" => {
            Exit::Usage
        }
        "not_found" => Exit::NothingMatched,
        _ => Exit::Error,
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        let code = (error.kind() == std::io::ErrorKind::BrokenPipe).then_some(BROKEN_PIPE);
        Self { code, ..Self::new(Exit::Error, format!("cannot write the output: {error}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_refuses_ends_as_what_the_store_refuses() {
        for (code, exit) in [
            ("unavailable", Exit::Unreachable),
            ("timeout", Exit::Unreachable),
            ("not_migrated", Exit::Schema),
            ("program_too_old", Exit::Schema),
            ("invalid_request", Exit::Usage),
            ("not_found", Exit::NothingMatched),
            ("forbidden", Exit::Error),
            ("internal", Exit::Error),
        ] {
            let error = StoreError::Server { code, message: String::new() };
            assert_eq!(Problem::from(error).exit, exit, "{code}");
        }
    }
}
