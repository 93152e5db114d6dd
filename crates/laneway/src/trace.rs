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

/// The id of the trace that a context belongs to, if it is one that is kept: `traceparent` is `00-<trace>-<span>-<flags>`, and the
/// last bit of the flags says so.
pub(crate) fn sampled_trace(context: &TraceContext) -> Option<String> {
    let mut parts = context.get("traceparent")?.split('-').skip(1);
    let (trace, flags) = (parts.next()?, parts.nth(1)?);
    let is_id = trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    (is_id && is_sampled).then(|| trace.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sampled_trace_has_an_id() {
        let trace = |parent: &str| sampled_trace(&[("traceparent".to_owned(), parent.to_owned())].into());
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";

        assert_eq!(trace(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        assert_eq!(trace(&format!("00-{id}-00f067aa0ba902b7-00")), None);
        for wrong in [
            "",
            "00",
            "00-4bf9-00f067aa0ba902b7-01",
            &format!("00-{id}"),
            &format!("00-\"}}{}-0-01", &id[2..]),
        ] {
            assert_eq!(trace(wrong), None, "{wrong}");
        }
        assert_eq!(sampled_trace(&TraceContext::new()), None);
    }
}
