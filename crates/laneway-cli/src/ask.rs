//! Questions before something is done to many tasks.

use std::io::{BufRead, IsTerminal, Write};

use crate::problem::{Exit, Problem};

/// Asks for a yes. Without a terminal nobody can answer, and `--yes` is needed.
///
/// # Errors
/// When the answer is no, or there is nobody to ask.
pub fn confirm(question: &str, yes: bool) -> Result<(), Problem> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Problem::usage(format!("{question} There is nobody to ask; say --yes to do it")));
    }
    let mut answer = String::new();
    write!(std::io::stderr(), "{question} [y/N] ")?;
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Problem::new(Exit::Error, "nothing was done")),
    }
}
