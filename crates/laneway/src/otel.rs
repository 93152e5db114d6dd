//! Ties attempts to the code that enqueued their tasks, in traces of OpenTelemetry.
//!
//! The context travels with the task as W3C `traceparent` and `tracestate`. Where the application has the layer of
//! `tracing-opentelemetry` in its subscriber, a task gets the context of the span in which it is described, and the span of
//! each attempt gets that as its parent. Exporting spans is the subscriber's business.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::trace::TraceContext;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// Writes the context of `span` into `trace`, if it belongs to a trace.
pub(crate) fn inject(span: &Span, trace: &mut TraceContext) {
    let context = span.context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return;
    }
    let (id, parent, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    trace.insert(PARENT.into(), format!("00-{id}-{parent}-{flags:02x}"));
    match span.trace_state().header() {
        none if none.is_empty() => trace.remove(STATE),
        state => trace.insert(STATE.into(), state),
    };
}

/// Makes the span that `trace` names the parent of `span`.
pub(crate) fn adopt(span: &Span, trace: &TraceContext) {
    if let Some(parent) = remote_span(trace) {
        // Without the layer there is nobody to tell, and nothing to do.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// The span that enqueued the task. What is not understood is taken for none: traces must not fail a task.
fn remote_span(trace: &TraceContext) -> Option<SpanContext> {
    let mut parts = trace.get(PARENT)?.split('-');
    let (_version, id, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let state = trace.get(STATE).and_then(|state| state.parse().ok()).unwrap_or_default();
    let span = SpanContext::new(
        TraceId::from_hex(id).ok()?,
        SpanId::from_hex(parent).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state,
    );
    span.is_valid().then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(parent: &str) -> TraceContext {
        TraceContext::from([(PARENT.to_owned(), parent.to_owned())])
    }

    #[test]
    fn a_traceparent_is_read_and_nonsense_is_none() {
        let span = remote_span(&trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")).unwrap();

        assert_eq!(span.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!((span.span_id().to_string().as_str(), span.is_sampled()), ("b7ad6b7169203331", true));
        for nonsense in ["", "00-a-b-01-", "00-0-0-00", "00-xyz-1-01", "nothing"] {
            assert!(remote_span(&trace(nonsense)).is_none_or(|span| span.is_valid()), "{nonsense}");
        }
        assert!(remote_span(&trace("00-0-0-00")).is_none());
        assert!(remote_span(&TraceContext::default()).is_none());
    }
}
