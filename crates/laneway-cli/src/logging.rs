//! Logs of daemons: text on a terminal, JSON otherwise, always on standard error. With the feature `otel` also their traces.

use std::io::IsTerminal;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::settings::Settings;
#[cfg(feature = "otel")]
use crate::traces::Traces;

/// What a daemon tells about itself while it runs.
pub struct Logs {
    level: reload::Handle<EnvFilter, Registry>,
    #[cfg(feature = "otel")]
    traces: Option<Traces>,
}

/// Begins to log as the settings say.
pub fn start(settings: &Settings) -> Logs {
    let (filter, level) = reload::Layer::new(filter(settings));
    let json = match settings.value("log.format").text.as_deref() {
        Some("json") => true,
        Some("text") => false,
        _ => !std::io::stderr().is_terminal(),
    };
    let lines = if json {
        fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed()
    } else {
        let ansi = std::io::stderr().is_terminal() && console::colors_enabled_stderr();
        fmt::layer().with_target(false).with_ansi(ansi).with_writer(std::io::stderr).boxed()
    };
    let registry = tracing_subscriber::registry().with(filter).with(lines);
    #[cfg(feature = "otel")]
    {
        let traces = Traces::from_environment();
        registry
            .with(traces.as_ref().map(|traces| tracing_opentelemetry::layer().with_tracer(traces.tracer())))
            .init();
        Logs { level, traces }
    }
    #[cfg(not(feature = "otel"))]
    {
        registry.init();
        Logs { level }
    }
}

impl Logs {
    /// Logs as the settings say now.
    ///
    /// # Errors
    /// When logging has ended.
    pub fn reload(&self, settings: &Settings) -> Result<(), reload::Error> {
        self.level.reload(filter(settings))
    }

    /// Tells what is left to be told.
    pub async fn end(&self) {
        #[cfg(feature = "otel")]
        if let Some(traces) = &self.traces {
            traces.flush().await;
        }
    }
}

/// What the settings let through.
fn filter(settings: &Settings) -> EnvFilter {
    EnvFilter::new(settings.value("log.level").text.as_deref().unwrap_or("info"))
}
