//! A stream of tasks, one per line, stored in pieces while it arrives.
//!
//! Memory stays bounded: a piece is at most a thousand tasks or a mebibyte or so, and the next is read only when the one
//! before is stored. A bad line ends the stream; what was stored before it stays, and the answer says how much that is.
//! A stream that is to be stored whole is one piece, which is larger.

use std::time::Duration;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use http_body_util::BodyExt;
use laneway_core::{NewTask, Store, StoreError, check_bulk};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::enqueue::Checked;
use crate::input::{BODY_BYTES_MAX, decode};
use crate::problem::Problem;
use crate::wire::{Enqueued, EnqueuedMany, TaskRequest};

/// When a piece is stored.
const PIECE: Size = Size { tasks: 1_000, bytes: 1024 * 1024 };
/// What a stream that is stored whole may have.
const WHOLE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Streams that are stored whole at once, so that their memory is bounded; others wait.
static WHOLE_AT_ONCE: Semaphore = Semaphore::const_new(8);
/// How long the sender may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What became of a stream.
#[derive(Debug, Default, Serialize)]
pub(super) struct Stored {
    /// Lines that are stored, or whose key was held.
    stored: u64,
    /// Of those, lines whose key was held by another task.
    existing: u64,
}

/// Stores the tasks of a stream.
pub(super) async fn store(store: &dyn Store, body: Body) -> Result<Stored, Problem> {
    let mut stream = Stream::new(store);
    match stream.run(body).await {
        Ok(()) => Ok(stream.stored),
        Err(problem) => Err(problem.stored(stream.stored.stored)),
    }
}

/// Stores all tasks of a stream or none, and answers each.
pub(super) async fn store_whole(store: &dyn Store, body: Body) -> Result<EnqueuedMany, Problem> {
    let _permit = WHOLE_AT_ONCE.acquire().await.expect("it is never closed");
    let mut stream = Stream { flushes_at: None, ..Stream::new(store) };
    match stream.run(body).await {
        Ok(()) => Ok(EnqueuedMany { tasks: stream.answers }),
        Err(problem) => Err(problem.stored(0)),
    }
}

/// Checks the tasks of a stream, and stores nothing.
pub(super) async fn check(store: &dyn Store, body: Body) -> Result<Checked, Problem> {
    let mut stream = Stream { is_dry: true, ..Stream::new(store) };
    match stream.run(body).await {
        Ok(()) => Ok(Checked { checked: stream.checked }),
        Err(problem) => Err(problem.stored(0)),
    }
}

async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        let Ok(frame) = tokio::time::timeout(SILENCE_MAX, body.frame()).await else {
            return Err(Problem::new("timeout", "no line has arrived for 30 s; send the rest again"));
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Problem::new("invalid_request", "the stream of tasks broke off")),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(_) => continue, // trailers
            },
        }
    }
}

/// How many tasks, and how many bytes of lines.
#[derive(Clone, Copy)]
struct Size {
    tasks: usize,
    bytes: usize,
}

/// Tasks that are stored together.
#[derive(Default)]
struct Piece {
    tasks: Vec<NewTask>,
    /// Their lines.
    lines: Vec<u64>,
    bytes: usize,
}

struct Stream<'a> {
    store: &'a dyn Store,
    /// The beginning of a line whose end has not arrived.
    pending: BytesMut,
    piece: Piece,
    /// A piece of this size is stored before the next line is read; none: all lines are one piece.
    flushes_at: Option<Size>,
    /// What became of each task, if all lines are one piece.
    answers: Vec<Enqueued>,
    /// True when nothing is stored.
    is_dry: bool,
    stored: Stored,
    checked: u64,
    /// Lines that were read.
    line: u64,
}

impl<'a> Stream<'a> {
    fn new(store: &'a dyn Store) -> Self {
        Self {
            store,
            pending: BytesMut::new(),
            piece: Piece::default(),
            flushes_at: Some(PIECE),
            answers: vec![],
            is_dry: false,
            stored: Stored::default(),
            checked: 0,
            line: 0,
        }
    }

    async fn run(&mut self, mut body: Body) -> Result<(), Problem> {
        while let Some(chunk) = next_chunk(&mut body).await? {
            self.take(&chunk).await?;
        }
        let last = self.pending.split();
        self.read(&last).await?;
        self.flush().await
    }

    async fn take(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = self.pending.split();
            self.read(&line).await?;
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() > BODY_BYTES_MAX {
            let detail = format!("a line has more than {BODY_BYTES_MAX} bytes; one line is one task");
            return Err(at_line(Problem::new("body_too_large", detail), self.line + 1));
        }
        Ok(())
    }

    async fn read(&mut self, line: &[u8]) -> Result<(), Problem> {
        self.line += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let number = self.line;
        let request: TaskRequest = decode(line).map_err(|problem| at_line(problem, number))?;
        let task = request.into_task().map_err(|refused| at_line(refused.into(), number))?;
        self.piece.tasks.push(task);
        self.piece.lines.push(number);
        self.piece.bytes += line.len();
        self.flush_if_full().await
    }

    async fn flush_if_full(&mut self) -> Result<(), Problem> {
        let has = Size { tasks: self.piece.tasks.len(), bytes: self.piece.bytes };
        match self.flushes_at {
            Some(full) if has.tasks >= full.tasks || has.bytes >= full.bytes => self.flush().await,
            Some(_) => Ok(()),
            None if has.bytes > WHOLE_BYTES_MAX || has.tasks > self.store.limits().bulk_max => {
                let (tasks, bytes) = (self.store.limits().bulk_max, WHOLE_BYTES_MAX);
                let detail = format!(
                    "more than {tasks} lines or {bytes} bytes are to be stored whole; send them in parts"
                );
                Err(Problem::new("body_too_large", detail).field("whole"))
            }
            None => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), Problem> {
        let piece = std::mem::take(&mut self.piece);
        if piece.tasks.is_empty() {
            return Ok(());
        }
        let located = |error: StoreError| {
            let line =
                error.invalid().and_then(|refused| piece.lines.get(place_in(&refused.message)).copied());
            Problem::from(error).line(line)
        };
        if self.is_dry {
            check_bulk(&piece.tasks, &self.store.limits()).map_err(|refused| located(refused.into()))?;
            self.checked += piece.tasks.len() as u64;
            return Ok(());
        }
        let enqueued = self.store.enqueue_many(piece.tasks).await.map_err(located)?;
        self.stored.stored += enqueued.len() as u64;
        self.stored.existing += enqueued.iter().filter(|answer| !answer.is_new()).count() as u64;
        if self.flushes_at.is_none() {
            self.answers = enqueued.into_iter().map(Enqueued::from).collect();
        }
        Ok(())
    }
}

/// Which task of a bulk a refusal is about: the store begins with `task 7: ` unless there is only one.
fn place_in(message: &str) -> usize {
    let place = message.strip_prefix("task ").and_then(|rest| rest.split(':').next());
    place.and_then(|place| place.parse().ok()).unwrap_or(0)
}

fn at_line(problem: Problem, line: u64) -> Problem {
    problem.line(Some(line))
}
