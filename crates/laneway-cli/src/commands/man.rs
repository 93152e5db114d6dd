//! `laneway man`: the manual, made from the same descriptions as `--help`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::args::Cli;
use crate::context::Context;
use crate::problem::{Exit, Outcome, Problem};

/// The manual, as man pages.
#[derive(Args, Debug)]
pub struct Man {
    /// Write a page per command into this directory, in place of the first one to standard output
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

impl Man {
    pub fn run(&self, context: &Context) -> Outcome {
        let failed = |error: std::io::Error| Problem::because("the manual cannot be written", &error);
        let Some(directory) = &self.to else {
            let mut page = vec![];
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(failed)?;
            context.out.data(&String::from_utf8_lossy(&page))?;
            return Ok(Exit::Done);
        };
        std::fs::create_dir_all(directory).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
        context.out.note(&format!("wrote the manual into {}", directory.display()));
        Ok(Exit::Done)
    }
}
