//! Spans of attempts belong to the trace of the code that enqueued their tasks.

use laneway::{Attempt, Client, Failure, Payload, SqliteStore, StoreHandle, Worker};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::SubscriberExt;

#[derive(Serialize, Deserialize)]
struct Outer;
impl Payload for Outer {
    const KIND: &'static str = "outer";
}

#[derive(Serialize, Deserialize)]
struct Inner;
impl Payload for Inner {
    const KIND: &'static str = "inner";
}

async fn outer(_: Outer, attempt: Attempt) -> Result<(), Failure> {
    attempt.client().enqueue(Inner).await?;
    Ok(())
}

async fn inner(_: Inner) -> Result<(), Failure> {
    Ok(())
}

/// The span of this name, of the attempt of this kind if it is one.
fn span<'a>(spans: &'a [SpanData], name: &str, kind: &str) -> &'a SpanData {
    let is_of_kind = |span: &SpanData| {
        span.attributes.iter().any(|it| it.key.as_str() == "kind" && it.value.as_str() == kind)
    };
    let found = spans.iter().find(|span| span.name == name && (kind.is_empty() || is_of_kind(span)));
    found.unwrap_or_else(|| panic!("no span `{name}` of `{kind}` among {spans:#?}"))
}

#[tokio::test]
async fn a_trace_goes_on_from_the_enqueue_through_attempts_and_what_they_enqueue() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // This thread's, which is the only one of the runtime.
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let store = StoreHandle::from(SqliteStore::temporary().await.unwrap());
    let client = Client::new(&store);

    let task = tracing::info_span!("request").in_scope(|| client.enqueue(Outer)).await.unwrap();
    let worker = Worker::builder(&store).handle(outer).handle(inner).build().unwrap();
    assert_eq!(worker.run_until_empty().await.unwrap().completed, 2);

    let stored = store.get(task.id).await.unwrap().unwrap();
    assert!(stored.error.is_none());
    let spans = exporter.get_finished_spans().unwrap();
    let request = span(&spans, "request", "");
    let (first, second) = (span(&spans, "attempt", "outer"), span(&spans, "attempt", "inner"));
    let trace = request.span_context.trace_id();
    assert_eq!((first.span_context.trace_id(), second.span_context.trace_id()), (trace, trace));
    assert_eq!(first.parent_span_id, request.span_context.span_id());
    assert_eq!(second.parent_span_id, first.span_context.span_id());
}
