//! Logs of daemons: text on a terminal, JSON otherwise, always on standard error.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::settings::Settings;

/// Changes what is logged while the program runs.
pub type Level = reload::Handle<EnvFilter, Registry>;

/// Begins to log as the settings say.
pub fn start(settings: &Settings) -> Level {
    let (filter, level) = reload::Layer::new(filter(settings));
    let json = match settings.value("log.format").text.as_deref() {
        Some("json") => true,
        Some("text") => false,
        _ => !std::io::stderr().is_terminal(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).init();
    } else {
        let ansi = std::io::stderr().is_terminal() && console::colors_enabled_stderr();
        registry.with(fmt::layer().with_target(false).with_ansi(ansi).with_writer(std::io::stderr)).init();
    }
    level
}

/// What the settings let through.
pub fn filter(settings: &Settings) -> EnvFilter {
    EnvFilter::new(settings.value("log.level").text.as_deref().unwrap_or("info"))
}
