//! Reads tasks from lines of JSON.
//!
//! With a template (a kind was named on the command line) a line is a payload. Without one a line is a whole task, as the HTTP
//! interface takes it. Empty lines are skipped. A line that is not acceptable is refused with its file and number.

use std::io::BufRead;

use laneway_core::{Json, NewTask};
use laneway_server::wire::TaskRequest;

use crate::problem::Problem;

/// Tasks that are stored in one call.
const CHUNK_TASKS: usize = 10_000;
/// Bytes of payload that are stored in one call, about.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;

/// Tasks of neighbouring lines.
pub struct Chunk {
    pub tasks: Vec<NewTask>,
    /// The number of the last line in it.
    pub last_line: u64,
}

/// Reads lines and makes tasks of them.
pub struct Lines<R> {
    reader: R,
    /// What the reader is called in refusals.
    name: String,
    template: Option<NewTask>,
    line: u64,
    buffer: Vec<u8>,
    /// A bad line that is told after the chunk before it.
    bad: Option<Problem>,
}

impl<R: BufRead> Lines<R> {
    pub fn new(reader: R, name: String, template: Option<NewTask>) -> Self {
        Self { reader, name, template, line: 0, buffer: vec![], bad: None }
    }

    /// The tasks of the next lines; none when there are no more.
    ///
    /// # Errors
    /// The first line that is not acceptable.
    pub fn chunk(&mut self) -> Result<Option<Chunk>, Problem> {
        if let Some(bad) = self.bad.take() {
            return Err(bad);
        }
        let (mut tasks, mut bytes, mut last_line) = (vec![], 0, self.line);
        while tasks.len() < CHUNK_TASKS && bytes < CHUNK_BYTES {
            match self.task() {
                Ok(None) => break,
                Ok(Some(task)) => {
                    bytes += task.payload.as_str().len();
                    last_line = self.line;
                    tasks.push(task);
                }
                Err(bad) if tasks.is_empty() => return Err(bad),
                Err(bad) => {
                    self.bad = Some(bad);
                    break;
                }
            }
        }
        Ok((!tasks.is_empty()).then_some(Chunk { tasks, last_line }))
    }

    /// The task of the next line that is not empty.
    fn task(&mut self) -> Result<Option<NewTask>, Problem> {
        loop {
            self.buffer.clear();
            let read = self.reader.read_until(b'\n', &mut self.buffer);
            self.line += 1;
            if read.map_err(|error| self.refuse(error))? == 0 {
                return Ok(None);
            }
            let text = std::str::from_utf8(&self.buffer).map_err(|_| self.refuse("the line is not UTF-8"))?;
            let text = text.trim();
            if !text.is_empty() {
                return self.parse(text).map(Some).map_err(|problem| self.refused(problem));
            }
        }
    }

    fn parse(&self, text: &str) -> Result<NewTask, Problem> {
        let task = match &self.template {
            Some(template) => NewTask { payload: Json::parse(text)?, ..template.clone() },
            None => whole(text)?,
        };
        task.check(&Default::default())?;
        Ok(task)
    }

    fn refuse(&self, problem: impl std::fmt::Display) -> Problem {
        Problem::usage(format!("{}:{}: {problem}", self.name, self.line))
    }

    fn refused(&self, problem: Problem) -> Problem {
        Problem { message: format!("{}:{}: {}", self.name, self.line, problem.message), ..problem }
    }
}

fn whole(text: &str) -> Result<NewTask, Problem> {
    let request: TaskRequest =
        serde_json::from_str(text).map_err(|error| Problem::usage(error.to_string()))?;
    Ok(request.into_task()?)
}
