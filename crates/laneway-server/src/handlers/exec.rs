//! Handles a kind by starting a program.
//!
//! The payload is on its standard input, its standard output is the result (JSON if it is some, else text), and the end of its
//! standard error is kept with a failure. It runs in a process group of its own: when the attempt times out, is cancelled or
//! dropped, everything that it has started ends with it.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | completed |
//! | 100 | failed for good |
//! | 101 | not now: again in a minute, not charged |
//! | any other, or a signal | failed, tried again by the task's policy |

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use laneway::core::Json;
use laneway::{Attempt, Failure, WorkerBuilder};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::SetupError;
use super::call::as_json;

/// Bytes of standard output that are kept as the result.
const RESULT_MAX: usize = 1024 * 1024;
/// Bytes of standard error that are kept with a failure: the last ones.
const ERROR_MAX: usize = 8 * 1024;
/// From asking a program to end until it is made to.
const PATIENCE: Duration = Duration::from_secs(2);

/// A program that handles tasks of one kind.
#[derive(Clone, Debug)]
pub struct Program {
    kind: String,
    command: Vec<String>,
    fail_code: i32,
    snooze_code: i32,
    snooze: Duration,
}

impl Program {
    /// Starts `command` (the program, then its arguments) for every task of `kind`.
    ///
    /// # Errors
    /// When there is no program.
    pub fn new<S: Into<String>>(
        kind: impl Into<String>,
        command: impl IntoIterator<Item = S>,
    ) -> Result<Self, SetupError> {
        let (kind, command): (_, Vec<_>) = (kind.into(), command.into_iter().map(Into::into).collect());
        if command.first().is_none_or(String::is_empty) {
            return Err(SetupError::NoProgram { kind });
        }
        Ok(Self { kind, command, fail_code: 100, snooze_code: 101, snooze: Duration::from_secs(60) })
    }

    /// The exit code that means "failed for good". 100.
    pub fn fail_code(mut self, code: i32) -> Self {
        self.fail_code = code;
        self
    }

    /// The exit code that means "not now", and for how long. 101, a minute.
    pub fn snooze_code(mut self, code: i32, snooze: Duration) -> Self {
        (self.snooze_code, self.snooze) = (code, snooze);
        self
    }

    /// Lets a worker handle the kind.
    pub fn add_to(self, worker: WorkerBuilder) -> WorkerBuilder {
        let kind = self.kind.clone();
        worker.handle_kind(kind, move |payload: Json, attempt: Attempt| {
            let program = self.clone();
            async move { program.run(payload, attempt).await }
        })
    }

    async fn run(&self, payload: Json, attempt: Attempt) -> Result<Value, Failure> {
        let mut child = self.start(&attempt)?;
        let group = Group::of(&child);
        let mut input = child.stdin.take();
        let feed = async {
            // A program need not read its input.
            if let Some(input) = &mut input {
                let _ = input.write_all(payload.as_str().as_bytes()).await;
            }
            drop(input);
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let talk = async {
            let (result, error, ()) =
                tokio::join!(read_first(stdout, RESULT_MAX), read_last(stderr, ERROR_MAX), feed);
            (result, error, child.wait().await)
        };
        tokio::select! {
            (result, error, status) = talk => {
                group.has_ended();
                self.judge(result, &error, status?)
            }
            reason = attempt.cancelled() => {
                group.end(&mut child).await;
                Err(Failure::retry(format!("stopped: {reason:?}")))
            }
        }
    }

    fn start(&self, attempt: &Attempt) -> Result<Child, Failure> {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("LANEWAY_TASK", attempt.id().to_string())
            .env("LANEWAY_KIND", attempt.task().kind.as_str())
            .env("LANEWAY_ATTEMPT", attempt.number().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(parent) = attempt.trace().get("traceparent") {
            command.env("TRACEPARENT", parent);
        }
        let started = command.spawn();
        started
            .map_err(|error| Failure::retry(format!("`{}` could not be started: {error}", self.command[0])))
    }

    fn judge(&self, result: Option<Vec<u8>>, error: &str, status: ExitStatus) -> Result<Value, Failure> {
        let told = |what: String| if error.is_empty() { what } else { format!("{what}: {error}") };
        match (status.code(), result) {
            (Some(0), Some(result)) => Ok(as_json(result.trim_ascii())),
            (Some(0), None) => Err(Failure::discard(format!(
                "the program wrote more than {RESULT_MAX} bytes; keep the data elsewhere"
            ))),
            (Some(code), _) if code == self.fail_code => {
                Err(Failure::discard(told(format!("exit code {code}"))))
            }
            (Some(code), _) if code == self.snooze_code => Err(Failure::snooze(self.snooze)),
            (Some(code), _) => Err(Failure::retry(told(format!("exit code {code}")))),
            (None, _) => Err(Failure::retry(told(format!("ended by a signal ({status})")))),
        }
    }
}

/// Everything that a stream says, or `None` when it is more than `most`. It is read to its end in any case, so that the
/// program is not held up.
async fn read_first(stream: Option<impl AsyncRead + Unpin>, most: usize) -> Option<Vec<u8>> {
    let mut kept = vec![];
    let mut is_all = true;
    read(stream, |some| {
        is_all = is_all && kept.len() + some.len() <= most;
        if is_all {
            kept.extend_from_slice(some);
        }
    })
    .await;
    is_all.then_some(kept)
}

/// The end of what a stream says.
async fn read_last(stream: Option<impl AsyncRead + Unpin>, most: usize) -> String {
    let mut kept = vec![];
    read(stream, |some| {
        kept.extend_from_slice(some);
        kept.drain(..kept.len().saturating_sub(most));
    })
    .await;
    String::from_utf8_lossy(&kept).trim().to_owned()
}

async fn read(stream: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut stream) = stream else { return };
    let mut buffer = [0; 8 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        take(&buffer[..read]);
    }
}

/// The processes of one attempt. Dropped while they run, they are killed.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    /// Asks all of them to end, waits a while for the program, and kills what is left.
    async fn end(self, program: &mut Child) {
        if let Some(group) = self.0 {
            // Whoever has ended already cannot be told.
            let _ = kill_process_group(group, Signal::TERM);
            let _ = tokio::time::timeout(PATIENCE, program.wait()).await;
        }
    }

    /// The program has ended by itself.
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
