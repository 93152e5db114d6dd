//! What SQLite says, in our words.

use std::sync::Mutex;

use rusqlite::ErrorCode;
use rusqlite::types::Type;

use laneway_core::StoreError;

/// The error of a command or a look at the file `target`.
///
/// It borrows the driver's error, because one failed commit is the answer to many callers.
pub(crate) fn store_error(doing: &'static str, target: &str, error: &rusqlite::Error) -> StoreError {
    if let Some(refusal) = refusal_in(error) {
        return refusal;
    }
    let target = target.to_owned();
    let source = error.to_string().into();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Unavailable { target, source }
        }
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { target, source },
        Some(ErrorCode::DiskFull) => StoreError::Full { target, source },
        Some(ErrorCode::CannotOpen) => StoreError::CannotOpen { path: target, problem: error.to_string() },
        Some(ErrorCode::NotADatabase) => foreign(&target, "it is not an SQLite database"),
        _ => StoreError::Unexpected { doing, source },
    }
}

/// An error of a command in our own words: the command is undone, and the caller is told this.
#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Refusal(Mutex<Option<StoreError>>);

/// Makes a command fail with `error`.
pub(crate) fn refused(error: StoreError) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(Box::new(Refusal(Mutex::new(Some(error)))))
}

/// The refusal inside an error, which is taken out of it.
pub(crate) fn refusal_in(error: &rusqlite::Error) -> Option<StoreError> {
    let rusqlite::Error::UserFunctionError(inner) = error else { return None };
    let refusal = inner.downcast_ref::<Refusal>()?;
    refusal.0.lock().ok()?.take()
}

/// The file at `path` is not ours.
pub(crate) fn foreign(path: &str, problem: impl Into<String>) -> StoreError {
    StoreError::ForeignFile { path: path.to_owned(), problem: problem.into() }
}

/// True when somebody else holds a lock, and waiting helps.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A stored value that our types do not accept: the file was changed by something else.
pub(crate) fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn the_errors_that_an_operator_can_mend_have_their_own_code() {
        for (result, code) in [
            (ffi::SQLITE_BUSY, "unavailable"),
            (ffi::SQLITE_READONLY, "read_only"),
            (ffi::SQLITE_FULL, "storage_full"),
            (ffi::SQLITE_CANTOPEN, "cannot_open"),
            (ffi::SQLITE_NOTADB, "foreign_file"),
            (ffi::SQLITE_IOERR, "internal"),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(result), None);
            assert_eq!(store_error("enqueue", "tasks.db", &error).code(), code);
        }
    }
}
