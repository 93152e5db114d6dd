//! Completions and the version.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde::Serialize;

use crate::args::Cli;
use crate::context::Context;
use crate::problem::{Exit, Outcome};

/// Completions for a shell.
#[derive(Args, Debug)]
pub struct Completions {
    /// Which shell
    pub shell: Shell,
}

impl Completions {
    pub fn run(&self, context: &Context) -> Outcome {
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut Cli::command(), "laneway", &mut script);
        context.out.data(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}

/// Says which version this is.
pub fn version(context: &Context) -> Outcome {
    #[derive(Serialize)]
    struct Versions {
        laneway: &'static str,
        postgres_schema: i32,
    }
    let versions =
        Versions { laneway: env!("CARGO_PKG_VERSION"), postgres_schema: laneway_postgres::SCHEMA_VERSION };
    let sentence = format!("laneway {}, schema version {}", versions.laneway, versions.postgres_schema);
    context.out.answer(&versions, versions.laneway, &sentence)?;
    Ok(Exit::Done)
}
