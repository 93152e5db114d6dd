//! Trace context: what ties the attempts of a task to the code that enqueued it.
//!
//! The context is a small map of text (`traceparent` and the like). It is stored with the task, handed to its attempts,
//! and inherited by every task that an attempt enqueues.

use std::collections::BTreeMap;

use tracing::Span;

/// A trace context as it is stored with a task.
pub type TraceContext = BTreeMap<String, String>;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// The context of the attempt that this code runs in; empty outside of attempts.
pub(crate) fn current() -> TraceContext {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Runs `future` so that what it enqueues belongs to `context`.
pub(crate) async fn within<F: Future>(context: TraceContext, future: F) -> F::Output {
    CURRENT.scope(context, future).await
}

/// The span of one attempt.
pub(crate) fn attempt_span(task: &laneway_core::Task) -> Span {
    let parent = task.options.trace.get("traceparent").map_or("", String::as_str);
    tracing::info_span!(
        "attempt",
        task = task.id.0,
        kind = %task.kind,
        queue = %task.queue,
        attempt = task.attempt,
        traceparent = parent,
    )
}
