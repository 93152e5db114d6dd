//! What values a setting takes.

use std::net::SocketAddr;

use laneway_core::{Kind, QueueName, validate};

/// The form of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A name: what `validate::name` accepts.
    Text,
    /// Text that may hold a password: never shown in full, and `file:PATH` or `env:NAME` say where it is.
    Secret,
    /// A secret as a whole: never shown, and `file:PATH` or `env:NAME` say where it is.
    Token,
    /// A whole number in this range.
    Whole(u64, u64),
    /// A number from 0 to 1.
    Ratio,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Host and port, or a port of 127.0.0.1.
    Address,
    /// Queues with optional weights.
    Queues,
    /// Names of kinds, or `*`.
    Kinds,
    /// An address of the web.
    Url,
    /// A path in front of routes.
    BasePath,
    /// A level or filter of the log.
    Log,
}

impl Form {
    /// What is allowed, for help and refusals.
    pub fn allowed(self) -> String {
        match self {
            Self::Text => "a name of 1 to 200 bytes".into(),
            Self::Secret => "an address, or file:PATH or env:NAME where it is written".into(),
            Self::Token => "a token, or file:PATH or env:NAME where it is written".into(),
            Self::Whole(least, most) => format!("{least} to {most}"),
            Self::Ratio => "0 to 1".into(),
            Self::Choice(choices) => format!("one of: {}", choices.join(", ")),
            Self::Address => "HOST:PORT, or a PORT of 127.0.0.1".into(),
            Self::Queues => "names of queues, each with =WEIGHT from 1 to 1000 if it has one".into(),
            Self::Kinds => "names of kinds with commas, or * for all".into(),
            Self::Url => "http://HOST or https://HOST, with a path if it has one".into(),
            Self::BasePath => "/, or /NAME/NAME with names of letters, digits, -, ., _ and ~".into(),
            Self::Log => "error, warn, info, debug, trace, or a filter such as laneway=debug".into(),
        }
    }

    /// A word for the value in usage lines.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Text => "NAME",
            Self::Secret => "URL",
            Self::Token => "TOKEN",
            Self::Whole(..) => "N",
            Self::Ratio => "RATIO",
            Self::Choice(_) => "CHOICE",
            Self::Address => "ADDRESS",
            Self::Queues => "QUEUES",
            Self::Kinds => "KINDS",
            Self::Url => "URL",
            Self::BasePath => "PATH",
            Self::Log => "LEVEL",
        }
    }

    /// True when `text` is acceptable.
    pub fn accepts(self, text: &str) -> bool {
        match self {
            Self::Text => validate::name("", text).is_ok(),
            Self::Secret | Self::Token => !text.is_empty(),
            Self::Whole(least, most) => text.parse().is_ok_and(|n: u64| (least..=most).contains(&n)),
            Self::Ratio => text.parse().is_ok_and(|n: f64| (0.0..=1.0).contains(&n)),
            Self::Choice(choices) => choices.contains(&text),
            Self::Address => address(text).is_some(),
            Self::Queues => queues(text).is_some(),
            Self::Kinds => text == "*" || text.split(',').all(|kind| Kind::new(kind.trim()).is_ok()),
            Self::Url => host(text).is_some(),
            Self::BasePath => laneway_server::is_base_path(text),
            Self::Log => text.parse::<tracing_subscriber::EnvFilter>().is_ok(),
        }
    }
}

/// Host and port; a bare port is one of 127.0.0.1.
pub fn address(text: &str) -> Option<SocketAddr> {
    match text.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => text.replace("localhost:", "127.0.0.1:").parse().ok(),
    }
}

/// The host of an address of the web.
pub fn host(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => authority,
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    (!name.is_empty() && name.chars().all(fits)).then_some(name)
}

/// Queues and their weights.
pub fn queues(text: &str) -> Option<Vec<(String, u32)>> {
    text.split(',').map(|part| queue(part.trim())).collect()
}

fn queue(part: &str) -> Option<(String, u32)> {
    let (name, weight) = part.rsplit_once('=').unwrap_or((part, "1"));
    let weight = weight.parse().ok().filter(|weight| (1..=1_000).contains(weight))?;
    QueueName::new(name).ok()?;
    Some((name.to_owned(), weight))
}
