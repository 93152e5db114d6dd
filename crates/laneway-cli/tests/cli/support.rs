//! A directory of its own for every test, and a shell that finds the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use laneway_core::Store;
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_sqlite::{SqliteOptions, SqliteStore};
use laneway_testkit::cluster::{Cluster, Database};
use tempfile::TempDir;

/// A working directory in which commands are run.
pub struct Session {
    directory: TempDir,
    variables: Vec<(String, String)>,
    /// Kept while the test runs.
    database: Option<Database>,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Session {
    /// An empty directory; the store is SQLite.
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            variables: vec![],
            database: None,
        }
    }

    /// An empty directory; the store is a fresh PostgreSQL database.
    pub async fn on_postgres() -> Self {
        Self::on(Cluster::shared().await.database().await.expect("a fresh database"))
    }

    /// An empty directory; the store is this database.
    pub fn on(database: Database) -> Self {
        let variables = vec![("DATABASE_URL".to_owned(), database.url.clone())];
        Self { variables, database: Some(database), ..Self::new() }
    }

    /// The store that commands use, from inside this process.
    pub async fn store(&self) -> Arc<dyn Store> {
        match &self.database {
            Some(database) => {
                Arc::new(PostgresStore::open(PostgresOptions::new(&database.url)).await.expect("a store"))
            }
            None => {
                let file = SqliteOptions::new(self.path().join(".laneway/laneway.db"));
                Arc::new(SqliteStore::open(file).await.expect("a store"))
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Sets a variable for all commands that follow.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path().join(file), text).expect("a file in our directory");
    }

    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path().join(file)).expect("a file in our directory")
    }

    /// Runs a line of shell.
    pub fn run(&self, line: &str) -> Ran {
        self.run_with_input(line, "")
    }

    /// Runs a line of shell, and gives it something to read.
    pub fn run_with_input(&self, line: &str, input: &str) -> Ran {
        let mut child = self.start(line);
        let mut stdin = child.stdin.take().expect("it was piped");
        let input = input.to_owned();
        // A command that ends early does not read everything.
        let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().expect("it was started");
        writer.join().expect("writing does not panic");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a line that must succeed, and answers what it printed.
    pub fn out(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{line}\n{}{}", ran.out, ran.err);
        ran.out
    }

    /// Starts a line of shell.
    pub fn start(&self, line: &str) -> Child {
        self.command("sh").args(["-c", line]).spawn().expect("there is a shell")
    }

    /// A command with our directory and a clean environment.
    pub fn command(&self, program: &str) -> Command {
        let path = format!("{}:{}", bin_directory().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path())
            .env("USER", "ann")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// The program under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_laneway")
}

fn bin_directory() -> PathBuf {
    Path::new(program()).parent().expect("a program is in a directory").to_owned()
}

/// Compares text with what was expected: `…` stands for anything inside a line, and alone for any number of lines. How wide
/// columns are does not matter in a line with `…`.
pub fn assert_matches(expected: &str, actual: &str) {
    let (wanted, lines): (Vec<_>, Vec<_>) =
        (expected.trim_end().lines().collect(), actual.trim_end().lines().collect());
    assert!(matches(&wanted, &lines), "expected:\n{expected}\nactual:\n{actual}");
}

fn matches(wanted: &[&str], lines: &[&str]) -> bool {
    match (wanted, lines) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..])),
        ([first, rest @ ..], [line, lines @ ..]) => {
            line_matches(first.trim_end(), line.trim_end()) && matches(rest, lines)
        }
        _ => false,
    }
}

fn line_matches(wanted: &str, line: &str) -> bool {
    if !wanted.contains('…') {
        return wanted == line;
    }
    let narrow = |text: &str| text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let (wanted, line) = (narrow(wanted).replace(" …", "…").replace("… ", "…"), narrow(line));
    let mut parts = wanted.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
