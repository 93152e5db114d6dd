//! Sends the traces of daemons to an OpenTelemetry collector (feature `otel`).
//!
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names it; without that nothing is sent. The other standard variables hold too.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::runtime::Tokio;
use opentelemetry_sdk::trace::span_processor_with_async_runtime::BatchSpanProcessor;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::warn;

/// Where spans go.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// `None` when no collector is named. One that cannot be used is told on standard error: traces must not stop a daemon.
    pub fn from_environment() -> Option<Self> {
        let named = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !named("OTEL_EXPORTER_OTLP_ENDPOINT") && !named("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            return None;
        }
        match SpanExporter::builder().with_http().build() {
            Ok(exporter) => Some(Self::through(exporter)),
            Err(error) => {
                eprintln!("warning: no traces are sent: {error}; check OTEL_EXPORTER_OTLP_ENDPOINT");
                None
            }
        }
    }

    fn through(exporter: SpanExporter) -> Self {
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("laneway");
        }
        let batches = BatchSpanProcessor::builder(exporter, Tokio).build();
        Self(
            SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(batches).build(),
        )
    }

    /// Makes spans into traces.
    pub fn tracer(&self) -> SdkTracer {
        self.0.tracer("laneway")
    }

    /// Sends what is left.
    pub async fn flush(&self) {
        let provider = self.0.clone();
        // It waits for its own task, which needs this thread.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if let Ok(Err(error)) = flushed {
            warn!(%error, "the last traces were not sent");
        }
    }
}
