//! The JSON of the interface, and what becomes of it: the words of `laneway-core`.
//!
//! What comes in are plain texts and numbers; core's constructors check them, so a mistake has the same code here as in the
//! library. Times are RFC 3339, lengths of time whole milliseconds (`…_ms`), payloads the text that was stored.

pub(crate) mod bulk;
pub(crate) mod fields;
pub(crate) mod lane;
pub(crate) mod queue;
pub(crate) mod schedule;
mod task;
pub(crate) mod tree;
pub(crate) mod worker;

pub use lane::Limit;
pub(crate) use task::{Enqueued, EnqueuedMany, Task, TaskPage, given};
pub use task::{LaneRequest, TaskRequest, UniqueRequest};
