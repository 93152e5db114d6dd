//! The shell blocks of README and docs, for the tests that run them.
//!
//! A benchmark takes minutes and means something only when it is built with optimisation, so tests run the same program as they are
//! built themselves, with what the page says and then a tiny size. What is proven is that the commands of the pages name programs that
//! exist and take these arguments, not that the figures are right.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of the `sh` blocks of these pages, without comments.
pub fn shell_commands(pages: &[&str]) -> Vec<String> {
    let mut commands = vec![];
    for page in pages {
        let text = std::fs::read_to_string(root().join(page)).expect("a page is text");
        let blocks = text.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        let lines =
            blocks.flat_map(str::lines).map(|line| line.split(" #").next().unwrap_or_default().trim());
        commands.extend(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned));
    }
    commands
}

/// Runs every benchmark of README and performance page whose command begins like this, with a tiny size. Returns how many.
///
/// # Panics
/// When one of them does not end well.
pub fn run_benchmarks(command: &str, program: &Path, tiny: &[&str]) -> usize {
    let commands = shell_commands(&["README.md", "docs/performance.md"]);
    let meant: Vec<_> = commands.iter().filter_map(|found| found.strip_prefix(command)).collect();
    for arguments in &meant {
        let said = arguments.trim().trim_start_matches("--").split_whitespace();
        let output =
            Command::new(program).args(said).args(tiny).output().expect("the program can be started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{command}{arguments}: {error}");
    }
    meant.len()
}

/// An example of the package whose test this is. `cargo test` builds it beside the tests. A run of one test alone does not: if it is
/// missing or older than its source, it is built now.
///
/// # Panics
/// When it cannot be built.
pub fn example(package: &str, name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let directory = test.parent().and_then(Path::parent).expect("tests are in target/debug/deps");
    let program = directory.join("examples").join(name);
    let source = root().join(format!("crates/{package}/examples/{name}.rs"));
    let age = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    if age(&program) < age(&source) {
        let built = Command::new(env!("CARGO")).args(["build", "-p", package, "--example", name]).status();
        assert!(built.is_ok_and(|status| status.success()), "the example {name} cannot be built");
    }
    program
}
