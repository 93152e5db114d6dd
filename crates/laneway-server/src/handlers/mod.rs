//! Ready handlers: work without writing Rust.
//!
//! | handler | kind | does |
//! |---|---|---|
//! | [`HttpRequests`] | `http.request` | sends the request that the payload describes |
//! | [`Endpoint`] | any | posts the payload to one URL |
//! | [`Program`] | any | starts a program with the payload on its standard input |
//!
//! Each adds itself to a worker; `docs/handlers.md` tells what payloads, answers and exit codes mean.
//!
//! ```no_run
//! use laneway::{StoreHandle, Worker};
//! use laneway_server::handlers::{HttpOptions, HttpRequests, Program};
//!
//! # fn example(store: StoreHandle) -> Result<(), Box<dyn std::error::Error>> {
//! let worker = HttpRequests::new(HttpOptions::default())?.add_to(Worker::builder(store));
//! let worker = Program::new("report.daily", ["./report.sh", "--fast"])?.add_to(worker).build()?;
//! # Ok(()) }
//! ```

mod call;
mod endpoint;
mod exec;
mod http_request;
mod target;

pub use call::HttpOptions;
pub use endpoint::Endpoint;
pub use exec::Program;
pub use http_request::{HttpRequest, HttpRequests, HttpResponse};
pub use target::Reach;

/// Why a handler could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address is none, or not one that can be called.
    #[error("`{url}` cannot be called: {problem}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No program was named.
    #[error("the handler of `{kind}` names no program; give a command after `--`")]
    NoProgram {
        /// What it should have handled.
        kind: String,
    },
    /// The certificates that servers are checked with could not be prepared.
    #[error("TLS could not be set up")]
    Tls(#[from] rustls::Error),
}
