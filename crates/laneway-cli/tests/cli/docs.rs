//! Runs every console block of README and docs, in order, each page in an empty directory.
//!
//! A line that begins with `$ ` is run by a shell; the lines below it are what it prints, with `…` for anything. Nothing below it means
//! that anything may be printed. `cargo run --release --` stands for the program. Blocks for other languages are not run here.

use std::path::{Path, PathBuf};

use crate::support::{Session, assert_matches};

/// A command and what it prints.
#[derive(Debug, Default)]
struct Step {
    command: String,
    prints: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).expect("there is a docs directory");
    let pages = docs.map(|entry| entry.expect("a readable entry").path());
    let mut pages: Vec<_> = pages.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut inside) = (Vec::<Step>::new(), false);
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => inside = language == "console",
            None if !inside => (),
            None => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.into(), prints: vec![] }),
                (None, Some(step)) if step.command.ends_with('\\') => step.command += &format!("\n{line}"),
                (None, Some(step)) => step.prints.push(line.into()),
                (None, None) => panic!("a console block begins with a command: {line}"),
            },
        }
    }
    steps
}

#[test]
fn every_console_block_does_what_it_shows() {
    let mut run = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        let session = Session::new();
        for step in steps(&text) {
            println!("{}: {}", page.display(), step.command);
            let command = step.command.replace("cargo run --release --", "laneway");
            let ran = session.run(&format!("{{ {command}\n}} 2>&1"));
            if !step.prints.is_empty() {
                assert_matches(&step.prints.join("\n"), &ran.out);
            }
            let fails = step.prints.iter().any(|line| line.starts_with("error:"));
            assert_eq!(
                ran.code != 0,
                fails,
                "{}: {} ended with {}\n{}",
                page.display(),
                step.command,
                ran.code,
                ran.out
            );
            run += 1;
        }
    }
    assert!(run > 30, "only {run} commands were found");
}
