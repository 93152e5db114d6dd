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

/// The context of the attempt that this code runs in; empty outside of attempts. With the feature `otel`, the current span counts
/// more, if it belongs to a trace.
pub(crate) fn current() -> TraceContext {
    #[cfg_attr(not(feature = "otel"), expect(unused_mut, reason = "only a span would change it"))]
    let mut context = CURRENT.try_with(Clone::clone).unwrap_or_default();
    #[cfg(feature = "otel")]
    crate::otel::inject(&Span::current(), &mut context);
    context
}

/// Runs `future` so that what it enqueues belongs to `context`.
pub(crate) async fn within<F: Future>(context: TraceContext, future: F) -> F::Output {
    CURRENT.scope(context, future).await
}

/// The span of one attempt.
pub(crate) fn attempt_span(task: &laneway_core::Task) -> Span {
    let parent = task.options.trace.get("traceparent").map_or("", String::as_str);
    let span = tracing::info_span!(
        "attempt",
        task = task.id.0,
        kind = %task.kind,
        queue = %task.queue,
        attempt = task.attempt,
        traceparent = parent,
    );
    #[cfg(feature = "otel")]
    crate::otel::adopt(&span, &task.options.trace);
    span
}
