//! A server that lives in a temporary directory and cannot outlive the tests.
//!
//! The server is run by a small shell script, which holds the other end of a pipe. When this process ends, be it
//! by `SIGKILL`, the pipe closes and the script stops the server and removes the directory. The script is in a
//! process group of its own, so a Ctrl-C at the terminal does not end it before its work is done.
//!
//! Servers refuse to run as root. When the tests do, the script and all it starts run as an unprivileged user.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

const WATCHDOG: &str = include_str!("throwaway.sh");

/// Why a throwaway server is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrowawayError {
    /// The program is not installed.
    #[error("{program} was not found; install it: apt-get install {package}")]
    NotInstalled {
        /// What was looked for.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The tests run as root and there is no other user.
    #[error(
        "servers do not run as root, and /etc/passwd has neither `postgres` nor `nobody`; add one of them"
    )]
    NoUser,
    /// The watchdog could not be started or has gone.
    #[error("cannot run the watchdog of {server}")]
    Watchdog {
        /// What it runs.
        server: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The server did not do what it was told.
    #[error("{server} failed at `{order}`:\n{log}")]
    Failed {
        /// Which server.
        server: &'static str,
        /// What it was told.
        order: String,
        /// The end of its logs.
        log: String,
    },
    /// The server answered something else than expected.
    #[error("the throwaway server refused a statement")]
    Statement(#[from] tokio_postgres::Error),
}

/// A temporary directory and the watchdog that runs a server in it.
#[derive(Debug)]
pub(crate) struct Throwaway {
    server: &'static str,
    directory: PathBuf,
    watchdog: Mutex<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    process: Child,
    /// Dropping it tells the watchdog to clean up.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Throwaway {
    /// Makes the directory. `stop` is the command that will stop the server; it runs in the directory.
    pub(crate) fn new(server: &'static str, stop: &str) -> Result<Self, ThrowawayError> {
        let failed = |source| ThrowawayError::Watchdog { server, source };
        let name = std::env::temp_dir().join(format!("laneway-{server}"));
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(WATCHDOG).arg("watchdog").arg(name).arg(stop);
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(user) = unprivileged_user()? {
            command.uid(user.uid).gid(user.gid);
        }
        let mut process = command.spawn().map_err(failed)?;
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("standard output is a pipe"));
        let mut watchdog = Watchdog { process, orders, answers };
        let directory = watchdog.answer().map_err(failed)?.into();
        Ok(Self { server, directory, watchdog: Mutex::new(watchdog) })
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a file into the directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), ThrowawayError> {
        std::fs::write(self.directory.join(name), text)
            .map_err(|source| ThrowawayError::Watchdog { server: self.server, source })
    }

    /// Runs one line of shell in the directory and waits for its end.
    pub(crate) fn run(&self, order: &str) -> Result<(), ThrowawayError> {
        let mut watchdog = self.watchdog.lock().expect("nobody panics while giving orders");
        let answer = watchdog
            .obey(order)
            .map_err(|source| ThrowawayError::Watchdog { server: self.server, source })?;
        if answer == "done" {
            return Ok(());
        }
        Err(ThrowawayError::Failed { server: self.server, order: order.into(), log: self.log() })
    }

    /// The ends of all logs in the directory.
    fn log(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.directory.join(name)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        [tail("orders.log"), tail("server.log")].join("\n")
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        let watchdog = self.watchdog.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(watchdog.orders.take());
        // Waiting keeps the next server from starting while this one still uses the machine. There is nothing
        // to be done about a watchdog that cannot be waited for.
        let _ = watchdog.process.wait();
    }
}

impl Watchdog {
    fn obey(&mut self, order: &str) -> io::Result<String> {
        let orders = self.orders.as_mut().expect("only taken when dropped");
        writeln!(orders, "{order}")?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the watchdog has ended")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

/// A TCP port of 127.0.0.1 that nobody used a moment ago.
pub(crate) fn free_port(server: &'static str) -> Result<u16, ThrowawayError> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|source| ThrowawayError::Watchdog { server, source })
}

/// The first of `directories` that has `program`, links resolved.
pub(crate) fn find_program(program: &str, directories: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.into_iter().find_map(|directory| directory.join(program).canonicalize().ok())
}

/// The directories of `PATH`.
pub(crate) fn path_directories() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

struct User {
    uid: u32,
    gid: u32,
}

/// The user to become; none when the tests do not run as root.
fn unprivileged_user() -> Result<Option<User>, ThrowawayError> {
    if !is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = ["postgres", "nobody"].iter().find_map(|name| user_in(&users, name));
    user.map(Some).ok_or(ThrowawayError::NoUser)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

fn user_in(passwd: &str, name: &str) -> Option<User> {
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(User { uid, gid })
}
