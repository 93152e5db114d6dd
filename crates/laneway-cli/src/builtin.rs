//! Kinds that every worker of this program handles.

use laneway::{Failure, Payload, WorkerBuilder};
use laneway_core::Json;
use serde::{Deserialize, Serialize};

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

/// A builder with all of them.
pub fn all(builder: WorkerBuilder) -> WorkerBuilder {
    builder.handle(echo)
}
