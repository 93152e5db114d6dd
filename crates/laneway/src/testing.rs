//! For tests of code that enqueues tasks or handles them.
//!
//! ```
//! use laneway::testing;
//! use laneway::{Client, Payload, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Receipt { order: u64 }
//! impl Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
//!
//! async fn send_receipt(receipt: Receipt) -> Result<String, std::io::Error> {
//!     Ok(format!("sent {}", receipt.order))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = testing::store().await;
//! Client::new(&store).enqueue(Receipt { order: 7 }).lane("customer:7").await?;
//!
//! // What was enqueued, typed, in order:
//! assert_eq!(testing::enqueued::<Receipt>(&store).await, [Receipt { order: 7 }]);
//! assert_eq!(testing::only::<Receipt>(&store).await.lane.unwrap().as_str(), "customer:7");
//!
//! // One task, run here and now, without a store around it:
//! let worker = Worker::builder(&store).handle(send_receipt).build()?;
//! let sent: String = testing::run_inline(&worker, Receipt { order: 8 }).await.unwrap();
//! assert_eq!(sent, "sent 8");
//!
//! // Everything that is in the queue:
//! assert_eq!(worker.run_until_empty().await?.completed, 1);
//! # Ok(()) }
//! ```
//!
//! Failures of these helpers are panics, as a test wants them.

use std::sync::Arc;
use std::time::Duration;

use laneway_core::{
    Claimed, Json, Kind, LeaseId, LeaseRef, LeaseToken, Listing, NewTask, Place, SessionId, Task, TaskId,
    TaskOptions, TaskView,
};
use serde::de::DeserializeOwned;

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::store_handle::StoreHandle;
use crate::worker::Worker;

/// A fresh SQLite store that is gone with its last handle.
///
/// # Panics
/// When no temporary directory can be made.
#[cfg(feature = "sqlite")]
pub async fn store() -> StoreHandle {
    laneway_sqlite::SqliteStore::temporary().await.expect("a temporary store can be made").into()
}

/// The payloads of all tasks of one kind that have not started, runnable ones first, then those for later.
///
/// # Panics
/// When the store cannot be asked, or a payload does not fit.
pub async fn enqueued<P: Payload>(store: &StoreHandle) -> Vec<P> {
    let tasks = open_tasks(store, P::KIND).await;
    tasks.into_iter().map(|task| payload_of(&task)).collect()
}

/// The only task of one kind that has not started, with everything that was said about it.
///
/// # Panics
/// When there is none or more than one; the message tells what there is.
pub async fn only<P: Payload>(store: &StoreHandle) -> TaskView {
    let mut tasks = open_tasks(store, P::KIND).await;
    match (tasks.pop(), tasks.len()) {
        (Some(task), 0) => task,
        (_, others) => {
            let counts = store.counts().await.expect("the store answers");
            panic!("expected one task of kind `{}`, found {}; there are {counts:?}", P::KIND, others + 1)
        }
    }
}

/// Runs the worker's handler for one payload here and now. Nothing is stored, and nothing is retried.
///
/// # Errors
/// What the handler answered.
///
/// # Panics
/// When the worker has no handler for the kind, or the result is not a `T`.
pub async fn run_inline<P: Payload, T: DeserializeOwned>(worker: &Worker, payload: P) -> Result<T, Failure> {
    let shared = Arc::clone(worker.shared());
    let kind = Kind::new(P::KIND).expect("`build` has checked the kind");
    let handler =
        shared.handlers.get(&kind).unwrap_or_else(|| panic!("the worker has no handler for `{kind}`"));
    let handler = handler.clone();
    let payload = Json::encode(&payload).expect("the payload can be encoded");
    let attempt = Attempt::new(claimed(NewTask::new(kind, payload)), SessionId::random(), shared);
    let result = handler.run(&attempt).await?;
    let text = result.as_ref().map_or("null", Json::as_str);
    Ok(serde_json::from_str(text).unwrap_or_else(|error| panic!("the result {text} does not fit: {error}")))
}

async fn open_tasks(store: &StoreHandle, kind: &str) -> Vec<TaskView> {
    let mut found = vec![];
    for place in [Place::Pending, Place::Later] {
        let mut after = None;
        loop {
            let listing = Listing { after, limit: 500, ..Listing::of(place) };
            let page = store.list(listing).await.expect("the store can be listed");
            found.extend(page.tasks.into_iter().filter(|task| task.kind.as_str() == kind));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    found
}

fn payload_of<P: Payload>(task: &TaskView) -> P {
    let payload = task.payload.as_ref().expect("a task that has not ended has its payload");
    payload.decode().unwrap_or_else(|error| panic!("the payload of task {} does not fit: {error}", task.id))
}

/// A claim that no store has made.
fn claimed(task: NewTask) -> Claimed {
    let options = TaskOptions { trace: task.trace, ..TaskOptions::default() };
    let lease = LeaseRef { id: LeaseId(0), token: LeaseToken(SessionId::random().0), tasks: 0 };
    let task = Task {
        id: TaskId(0),
        kind: task.kind,
        payload: task.payload,
        queue: task.queue,
        lane: None,
        priority: task.priority,
        attempt: 1,
        max_attempts: task.max_attempts,
        crashes: 0,
        parent: None,
        depth: 0,
        enqueued_at: jiff::Timestamp::now(),
        options,
    };
    Claimed { task, lease, waited: Duration::ZERO }
}
