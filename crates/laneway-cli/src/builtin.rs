//! Kinds that every worker of this program handles: `echo` and `http.request`.

use laneway::{Failure, Payload, WorkerBuilder};
use laneway_core::Json;
use laneway_server::handlers::{HttpOptions, HttpRequests, Reach};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::settings::Settings;

/// Answers with its payload: for trying things out.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Echo(Json);

impl Payload for Echo {
    const KIND: &'static str = "echo";
}

async fn echo(echo: Echo) -> Result<Json, Failure> {
    Ok(echo.0)
}

/// A builder with all of them that `worker.kinds` names.
///
/// # Errors
/// When TLS cannot be set up.
pub fn all(builder: WorkerBuilder, settings: &Settings) -> Result<WorkerBuilder, Problem> {
    let builder = if settings.handles(Echo::KIND) { builder.handle(echo) } else { builder };
    if !settings.handles("http.request") {
        return Ok(builder);
    }
    let requests = HttpRequests::new(http_options(settings));
    let requests = requests.map_err(|error| Problem::because("`http.request` cannot be handled", &error))?;
    Ok(requests.add_to(builder))
}

/// What handlers that call others may do.
pub fn http_options(settings: &Settings) -> HttpOptions {
    let reach = if settings.is("worker.http_targets", "any") { Reach::Any } else { Reach::Public };
    HttpOptions { reach, ..HttpOptions::default() }
}
