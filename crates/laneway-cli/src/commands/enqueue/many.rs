//! `laneway enqueue --many`: stores the lines of a file, in their order.
//!
//! A thread reads and checks lines while the store writes the chunk before. Chunks are committed one after the other, so
//! that the tasks of a lane keep the order of their lines. A file is checked to its end before anything is stored;
//! standard input can be read only once, so there a bad line ends the run, and what was stored before it is told.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use laneway_core::{Enqueued, NewTask};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::Checked;
use super::lines::{Chunk, Lines};
use crate::context::Context;
use crate::output::{Format, text};
use crate::problem::{Exit, Outcome, Problem};

/// Chunks that wait for the store at most.
const CHUNKS_AHEAD: usize = 2;

/// What was stored.
#[derive(Default, Serialize)]
struct Stored {
    stored: u64,
    duplicates: u64,
    /// The last line of what was stored.
    last_line: u64,
    seconds: f64,
}

pub async fn run(file: &Path, template: Option<NewTask>, context: &Context) -> Outcome {
    let is_stdin = file == Path::new("-");
    if !is_stdin {
        check(file, template.clone()).await?;
    }
    let opened = context.store_to_fill().await?;
    let mut chunks = read(file, template)?;
    let progress = progress(context);
    // Made once, so that a Ctrl-C while the store writes a chunk is not missed.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let (started, mut stored) = (Instant::now(), Stored::default());
    let ended = loop {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            _ = interrupted.recv() => break Ok(Exit::Interrupted),
        };
        let chunk = match chunk {
            None => break Ok(Exit::Done),
            Some(Err(problem)) => break Err(problem),
            Some(Ok(chunk)) => chunk,
        };
        match opened.store.enqueue_many(chunk.tasks).await {
            Err(error) => break Err(error.into()),
            Ok(answers) => stored.add(&answers, chunk.last_line, context)?,
        }
        progress.set_position(stored.stored);
    };
    progress.finish_and_clear();
    stored.seconds = started.elapsed().as_secs_f64();
    stored.tell(ended, context)
}

impl Stored {
    fn add(&mut self, answers: &[Enqueued], last_line: u64, context: &Context) -> Result<(), Problem> {
        let new = answers.iter().filter(|answer| answer.is_new()).count() as u64;
        self.stored += new;
        self.duplicates += answers.len() as u64 - new;
        self.last_line = last_line;
        if context.out.format == Format::Id {
            let ids: String = answers.iter().map(|answer| format!("{}\n", answer.id)).collect();
            context.out.data(&ids)?;
        }
        Ok(())
    }

    /// Says what was stored, however it ended.
    fn tell(&self, ended: Outcome, context: &Context) -> Outcome {
        let Self { stored, duplicates, last_line, seconds } = *self;
        match ended {
            Ok(Exit::Done) => {
                let rate = text::number((stored as f64 / seconds.max(0.001)) as u64);
                let sentence =
                    format!("{} in {seconds:.1} s ({rate}/s)  {duplicates} duplicates", text::tasks(stored));
                if context.out.format != Format::Id {
                    context.out.answer(self, "", &sentence)?;
                }
                Ok(Exit::Done)
            }
            Ok(exit) => {
                context.out.note(&format!(
                    "interrupted: the {} up to line {last_line} are stored",
                    text::tasks(stored)
                ));
                Ok(exit)
            }
            Err(problem) => {
                let so_far = match stored + duplicates {
                    0 => "nothing was stored".to_owned(),
                    _ => format!(
                        "the {} up to line {last_line} are stored, nothing after it",
                        text::tasks(stored)
                    ),
                };
                let exit = if stored > 0 { Exit::Partial } else { problem.exit };
                Err(Problem { exit, message: format!("{}; {so_far}", problem.message), ..problem })
            }
        }
    }
}

/// A counter for people; silent in a pipe.
fn progress(context: &Context) -> ProgressBar {
    if !context.out.is_watched() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} tasks stored, {per_sec}, {elapsed}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("a valid template"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn open(file: &Path) -> Result<(Box<dyn BufRead + Send>, String), Problem> {
    if file == Path::new("-") {
        return Ok((Box::new(BufReader::new(std::io::stdin())), "standard input".into()));
    }
    let name = file.display().to_string();
    let opened = File::open(file).map_err(|error| Problem::usage(format!("cannot read {name}: {error}")))?;
    Ok((Box::new(BufReader::with_capacity(1024 * 1024, opened)), name))
}

/// `--dry-run`: says how many lines would be stored.
pub async fn check_only(file: &Path, template: Option<NewTask>, context: &Context) -> Outcome {
    let checked = check(file, template).await?;
    let sentence = format!("would enqueue {}; nothing was stored", text::tasks(checked));
    context.out.answer(&Checked { checked }, "", &sentence)?;
    Ok(Exit::Done)
}

/// Reads the whole file, and refuses it if one of its lines is not acceptable. Returns how many tasks it has.
async fn check(file: &Path, template: Option<NewTask>) -> Result<u64, Problem> {
    let (reader, name) = open(file)?;
    let check = move || {
        let (mut lines, mut tasks) = (Lines::new(reader, name, template), 0);
        while let Some(chunk) = lines.chunk()? {
            tasks += chunk.tasks.len() as u64;
        }
        Ok(tasks)
    };
    let checked = tokio::task::spawn_blocking(check).await.expect("reading lines does not panic");
    checked.map_err(|problem: Problem| Problem {
        message: format!("{}; nothing was stored", problem.message),
        ..problem
    })
}

type Chunks = mpsc::Receiver<Result<Chunk, Problem>>;

/// Spawns a thread that reads; it ends with the file, with a bad line, or when nobody wants its chunks any more.
fn read(file: &Path, template: Option<NewTask>) -> Result<Chunks, Problem> {
    let (reader, name) = open(file)?;
    let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
    std::thread::spawn(move || {
        let mut lines = Lines::new(reader, name, template);
        while let Some(chunk) = lines.chunk().transpose() {
            let is_bad = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || is_bad {
                return;
            }
        }
    });
    Ok(chunks)
}
