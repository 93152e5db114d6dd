//! What PostgreSQL says, in our words.

use deadpool_postgres::PoolError;
use laneway_core::{Code, InvalidInput, StoreError};
use tokio_postgres::error::SqlState;

/// A driver's error behind one of ours.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Translates a driver's error. `target` is the address without password, `doing` the verb.
pub(crate) fn translate(target: &str, doing: &'static str, error: tokio_postgres::Error) -> StoreError {
    let target = target.to_owned();
    let Some(database) = error.as_db_error() else {
        let io = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
        // What the driver says when `target_session_attrs` asks for a primary and there is none.
        if io.is_some_and(|io| io.to_string().contains("does not allow writes")) {
            return StoreError::ReadOnly { target, source: error.into() };
        }
        if is_tls_refusal(&error) {
            return StoreError::Refused { target, source: error.into() };
        }
        // Without an answer of the server it is the connection: refused, reset, timed out or closed.
        return if io.is_some() || error.is_closed() || is_connection(&error) {
            StoreError::Unavailable { target, source: error.into() }
        } else {
            StoreError::Unexpected { doing, source: error.into() }
        };
    };
    let code = database.code().code().to_owned();
    if let Some(invalid) = refusal(&code, database.detail(), database.message()) {
        return invalid.into();
    }
    translate_code(&code, target, doing, error.into())
}

/// What a function of the schema refused that only the database can know: how large a merged payload is, and which
/// queues are serial.
pub(crate) fn refusal(code: &str, detail: Option<&str>, message: &str) -> Option<InvalidInput> {
    let (code, field) = match (code, detail?) {
        ("22023", "code: payload_too_large") => (Code::PayloadTooLarge, "payload"),
        ("22023", "code: serial_queue") if message.starts_with("lane") => (Code::SerialQueue, "lane"),
        ("22023", "code: serial_queue") => (Code::SerialQueue, "serial"),
        _ => return None,
    };
    Some(InvalidInput { code, field, message: message.to_owned() })
}

/// Translates an SQLSTATE, whichever driver met it.
pub(crate) fn translate_code(code: &str, target: String, doing: &'static str, source: Source) -> StoreError {
    let is = |state: &SqlState| code == state.code();
    if is(&SqlState::READ_ONLY_SQL_TRANSACTION) {
        StoreError::ReadOnly { target, source }
    } else if is(&SqlState::DISK_FULL) {
        StoreError::Full { target, source }
    } else if code.starts_with("28") || is(&SqlState::UNDEFINED_DATABASE) {
        StoreError::Refused { target, source }
    } else if code.starts_with("08") || code.starts_with("53") || code.starts_with("57") {
        StoreError::Unavailable { target, source }
    } else if code.starts_with("40") || is(&SqlState::LOCK_NOT_AVAILABLE) {
        StoreError::Busy { what: "a row".into() }
    } else if is(&SqlState::UNDEFINED_FUNCTION) || is(&SqlState::INVALID_SCHEMA_NAME) {
        StoreError::NotMigrated { found: 0, needs: crate::SCHEMA_VERSION }
    } else {
        StoreError::Unexpected { doing, source }
    }
}

/// Translates the failure to get a connection.
pub(crate) fn translate_pool(target: &str, error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => translate(target, "connect", error),
        other => StoreError::Unavailable { target: target.to_owned(), source: other.into() },
    }
}

/// True when the statement failed because of the data in it: the same call will fail again. A violated constraint is not
/// the data's fault but ours.
pub(crate) fn is_data_error(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("22"))
}

/// True when trying again cannot help: a certificate does not hold, or the server has no TLS and it is asked for. A connection
/// that breaks during the handshake is no refusal.
fn is_tls_refusal(error: &tokio_postgres::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        if error.to_string().contains("server does not support TLS") {
            return true;
        }
        source = error.source();
    }
    false
}

fn is_connection(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    text.contains("connect") || text.contains("timeout") || text.contains("TLS") || text.contains("I/O")
}
