//! What a task carries.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The payload of one kind of task.
///
/// ```
/// use laneway::Payload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Receipt {
///     order: u64,
///     to: String,
/// }
///
/// impl Payload for Receipt {
///     const KIND: &'static str = "mail.receipt";
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the payload of a task",
    note = "implement `laneway::Payload` for it and give it a `KIND`; it must be `Serialize` and `Deserialize`"
)]
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {
    /// The stored name that selects the handler. Written by hand and never changed: it is in the rows of tasks
    /// that were enqueued before.
    const KIND: &'static str;
}
