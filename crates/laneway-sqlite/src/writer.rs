//! The one thread that writes.
//!
//! SQLite has one writer at a time, so a store has one connection that writes and one thread that owns it.
//! Callers send commands and wait. The thread takes all that are waiting into one transaction, commits, and only
//! then answers: a hundred concurrent enqueues cost one flush to disk, and an answer always means *committed*.
//!
//! Always true:
//! - A command that fails is undone alone (each has a savepoint); its neighbours do not notice.
//! - If the commit fails, nothing was changed and every command of the transaction gets the error.
//! - A locked file is waited for, up to a minute; no caller sees "database is locked" before.
//! - A panic in a command is that command's error. The thread goes on.
//! - The thread ends when the store is dropped, after it has done what was sent to it.
//!
//! Not here: what the commands do (one file per verb), who is told about new work (`sleep.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use laneway_core::{HintSender, Meter, StoreError};

use crate::changes::Feed;
use crate::clock::Clock;
use crate::error::store_error;
use crate::family::{self, Families};
use crate::file::patiently;
use crate::fold::Tally;
use crate::row::Sql;
use crate::sleep::{News, Sleepers};

/// Commands that may wait; further callers wait before they send.
const COMMANDS_MAX: usize = 1_024;
/// After this long a transaction takes no further command, so that its first callers get their answer.
const TRANSACTION_TIME: Duration = Duration::from_millis(20);

/// What a command works with: the open transaction, the time, and what to tell sleepers after the commit.
pub(crate) struct Step<'c> {
    /// The connection, inside the transaction.
    pub(crate) db: &'c Connection,
    /// The time of this command, in microseconds since 1970.
    pub(crate) now: i64,
    /// What the command has made runnable.
    pub(crate) news: News,
    /// What the command has done, for counts and statistics.
    pub(crate) tally: Tally,
    /// What the command has done to children, until that is counted into their parents.
    pub(crate) families: Families,
    /// Which tasks have entered which states, for those who watch.
    pub(crate) feed: Feed,
}

/// The handle of the writing thread.
pub(crate) struct Writer {
    /// The thread holds the other end and stops when this one is dropped. `None` only while that happens.
    commands: Option<Sender<Command>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    meter: Meter,
}

impl Writer {
    /// Starts the thread, which owns `connection` from now on.
    pub(crate) fn start(
        connection: Connection,
        shown: String,
        clock: Clock,
        hints: HintSender,
        meter: Meter,
    ) -> std::io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let service =
            Service { connection, shown, clock, received, put_off: None, sleepers: Sleepers::new(hints) };
        let thread = std::thread::Builder::new().name("laneway-sqlite".to_owned()).spawn(|| service.run())?;
        let room = Arc::new(Semaphore::new(COMMANDS_MAX));
        Ok(Self { commands: Some(commands), room, thread: Some(thread), meter })
    }

    /// Runs `work` in a transaction and answers after the commit.
    ///
    /// # Cancel safety
    /// Once the command was sent it is carried out, also when nobody waits for its answer any more.
    pub(crate) async fn write<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Step<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let asked = Instant::now();
        let permit = self.permit().await?;
        self.meter.wait(asked.elapsed());
        let sent = Instant::now();
        let (reply, answer) = oneshot::channel();
        let call = Call { doing, work: Some(work), value: None, reply, _permit: permit };
        self.send(Command::Write(Box::new(call)))?;
        let answer = answer.await.map_err(|_| StoreError::Closed)?;
        self.meter.statement(doing, sent.elapsed());
        answer
    }

    /// Runs `work` on the thread between two transactions.
    pub(crate) async fn aside<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, &mut Sleepers) -> T + Send + 'static,
    {
        let permit = self.permit().await?;
        let (reply, answer) = oneshot::channel();
        let aside = move |connection: &Connection, sleepers: &mut Sleepers| {
            let value = work(connection, sleepers);
            drop(permit);
            // The error says that the caller went away.
            let _ = reply.send(value);
        };
        self.send(Command::Aside(Box::new(aside)))?;
        answer.await.map_err(|_| StoreError::Closed)
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        self.room.clone().acquire_owned().await.map_err(|_| StoreError::Closed)
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        let commands = self.commands.as_ref().ok_or(StoreError::Closed)?;
        commands.send(command).map_err(|_| StoreError::Closed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes to the store has panicked");
        }
    }
}

enum Command {
    /// Part of a transaction.
    Write(Box<dyn Work>),
    /// Between transactions.
    Aside(Aside),
}

type Aside = Box<dyn FnOnce(&Connection, &mut Sleepers) + Send>;

/// A command whose types are known only to itself: it is run, and later answered.
trait Work: Send {
    fn doing(&self) -> &'static str;
    fn run(&mut self, step: &mut Step<'_>) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, end: Result<(), StoreError>);
}

struct Call<T, F> {
    doing: &'static str,
    /// Taken when it runs.
    work: Option<F>,
    /// What it returned, kept until the commit.
    value: Option<T>,
    /// The caller waits at the other end, or has gone away.
    reply: oneshot::Sender<Result<T, StoreError>>,
    _permit: OwnedSemaphorePermit,
}

impl<T, F> Work for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Step<'_>) -> rusqlite::Result<T> + Send,
{
    fn doing(&self) -> &'static str {
        self.doing
    }

    fn run(&mut self, step: &mut Step<'_>) -> rusqlite::Result<()> {
        let work = self.work.take().expect("a command runs once");
        self.value = Some(work(step)?);
        Ok(())
    }

    fn answer(self: Box<Self>, end: Result<(), StoreError>) {
        let Self { value, reply, .. } = *self;
        // The error says that the caller went away; what it asked for is done.
        let _ = reply.send(end.and_then(|()| value.ok_or(StoreError::Closed)));
    }
}

/// How a command that was not recorded ended.
enum Failure {
    /// It was undone; the transaction goes on.
    Alone(StoreError),
    /// SQLite has undone the whole transaction.
    Whole(rusqlite::Error),
}

/// What the thread owns.
struct Service {
    connection: Connection,
    shown: String,
    clock: Clock,
    received: Receiver<Command>,
    /// Was received during a transaction and comes after it.
    put_off: Option<Command>,
    sleepers: Sleepers,
}

impl Service {
    fn run(mut self) {
        while let Some(command) = self.wait() {
            match command {
                Command::Aside(aside) => aside(&self.connection, &mut self.sleepers),
                Command::Write(first) => self.transact(first),
            }
        }
    }

    /// The next command; `None` when the store was dropped. While somebody sleeps, other processes' commits are
    /// looked for.
    fn wait(&mut self) -> Option<Command> {
        if self.put_off.is_some() {
            return self.put_off.take();
        }
        loop {
            let Some(pause) = self.sleepers.until_next_look() else { return self.received.recv().ok() };
            if pause.is_zero() {
                self.sleepers.look_abroad(&self.connection, self.clock.now_micros());
                continue;
            }
            match self.received.recv_timeout(pause) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Runs `first` and whatever else is waiting in one transaction, commits, answers, and tells sleepers.
    fn transact(&mut self, first: Box<dyn Work>) {
        if let Err(error) = patiently(|| self.connection.run("begin immediate", [])) {
            return self.refuse([first], &error);
        }
        let (done, result) = self.fill(first);
        let result = result.and_then(|news| self.connection.run("commit", []).map(|_| news));
        match result {
            Ok(news) => {
                done.into_iter().for_each(|work| work.answer(Ok(())));
                self.sleepers.tell(&self.connection, news, self.clock.now_micros());
            }
            Err(error) => {
                self.roll_back();
                self.refuse(done, &error);
            }
        }
    }

    /// Runs commands until none is waiting. Returns those that shall be answered after the commit, and what they
    /// made runnable, or the error that has undone all of them.
    fn fill(&mut self, first: Box<dyn Work>) -> (Vec<Box<dyn Work>>, rusqlite::Result<News>) {
        let started = Instant::now();
        let (mut done, mut news, mut tally) = (Vec::new(), News::default(), Tally::default());
        let feed = match Feed::begin(&self.connection, self.clock.now_micros()) {
            Ok(feed) => feed,
            Err(error) => return (vec![first], Err(error)),
        };
        let mut next = Some(first);
        while let Some(mut work) = next {
            match self.try_one(&mut *work, feed.of_command()) {
                Ok((more, counted)) => {
                    news.merge(more);
                    tally.merge(counted);
                    done.push(work);
                }
                Err(Failure::Alone(error)) => work.answer(Err(error)),
                Err(Failure::Whole(error)) => {
                    done.push(work);
                    return (done, Err(error));
                }
            }
            next = if started.elapsed() < TRANSACTION_TIME { self.next_waiting() } else { None };
        }
        let written = tally.write(&self.connection, self.clock.now_micros());
        (done, written.map(|()| news))
    }

    /// The next command that may join the transaction.
    fn next_waiting(&mut self) -> Option<Box<dyn Work>> {
        match self.received.try_recv().ok()? {
            Command::Write(work) => Some(work),
            aside => {
                self.put_off = Some(aside);
                None
            }
        }
    }

    fn try_one(&self, work: &mut dyn Work, feed: Feed) -> Result<(News, Tally), Failure> {
        let db = &self.connection;
        let mut step = Step {
            db,
            now: self.clock.now_micros(),
            news: News::default(),
            tally: Tally::default(),
            families: Families::default(),
            feed,
        };
        db.run("savepoint command", []).map_err(Failure::Whole)?;
        let result = catch_unwind(AssertUnwindSafe(|| {
            work.run(&mut step)?;
            family::fold(&mut step)?;
            step.feed.write(db, step.now)
        }));
        if let Ok(Ok(())) = result {
            db.run("release command", []).map_err(Failure::Whole)?;
            return Ok((step.news, step.tally));
        }
        let undone = if db.is_autocommit() { Ok(0) } else { undo(db) };
        match (result, undone) {
            (Ok(Err(error)), _) if db.is_autocommit() => Err(Failure::Whole(error)),
            (_, Err(error)) => Err(Failure::Whole(error)),
            (Ok(Err(error)), Ok(_)) => Err(Failure::Alone(store_error(work.doing(), &self.shown, &error))),
            (_, Ok(_)) => {
                tracing::error!(doing = work.doing(), "a command of the store panicked and was undone");
                let source = "the command panicked; this is a bug in laneway".into();
                Err(Failure::Alone(StoreError::Unexpected { doing: work.doing(), source }))
            }
        }
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.run("rollback", [])
        {
            tracing::error!(%error, "could not roll back after a failed commit");
        }
    }

    fn refuse(&self, commands: impl IntoIterator<Item = Box<dyn Work>>, error: &rusqlite::Error) {
        for work in commands {
            let refusal = store_error(work.doing(), &self.shown, error);
            work.answer(Err(refusal));
        }
    }
}

fn undo(db: &Connection) -> rusqlite::Result<usize> {
    db.run("rollback to command", [])?;
    db.run("release command", [])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    fn writer(directory: &tempfile::TempDir) -> Writer {
        let path = directory.path().join("tasks.db");
        let connection = file::open_writer(&path).unwrap();
        connection.execute_batch("create table note (id integer primary key, text text not null)").unwrap();
        Writer::start(
            connection,
            file::shown(&path),
            Clock::system(),
            HintSender::default(),
            Meter::default(),
        )
        .unwrap()
    }

    async fn note(writer: &Writer, text: String) -> Result<i64, StoreError> {
        writer
            .write("note", move |step| {
                step.db.run("insert into note (text) values (?1)", [text])?;
                Ok(step.db.last_insert_rowid())
            })
            .await
    }

    async fn count(writer: &Writer) -> i64 {
        let count =
            |step: &mut Step<'_>| step.db.query_row("select count(*) from note", [], |row| row.get(0));
        writer.write("count", count).await.unwrap()
    }

    #[tokio::test]
    async fn a_failing_command_is_undone_alone() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory);

        // Sent in one go, so that they share a transaction.
        let bad = writer.write("note", |step| {
            step.db.run("insert into note (text) values ('half')", [])?;
            step.db.run("insert into note (text) values (null)", [])
        });
        let (one, bad, two) =
            tokio::join!(note(&writer, "one".to_owned()), bad, note(&writer, "two".to_owned()));

        assert!(one.is_ok() && two.is_ok());
        assert_eq!(bad.unwrap_err().code(), "internal");
        assert_eq!(count(&writer).await, 2);
    }

    #[tokio::test]
    async fn a_panic_is_the_error_of_its_command_and_the_thread_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory);

        let panicked = writer
            .write("note", |step| {
                step.db.run("insert into note (text) values ('half')", [])?;
                if count_is_odd(step.db)? { panic!("on purpose") } else { Ok(()) }
            })
            .await;

        assert_eq!(panicked.unwrap_err().code(), "internal");
        assert!(note(&writer, "after".to_owned()).await.is_ok());
        assert_eq!(count(&writer).await, 1);
    }

    fn count_is_odd(db: &Connection) -> rusqlite::Result<bool> {
        db.query_row("select count(*) % 2 = 1 from note", [], |row| row.get(0))
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_mended() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory);
        let set_pages = |pages: i64| {
            let set =
                move |db: &Connection, _: &mut Sleepers| db.pragma_update(None, "max_page_count", pages);
            writer.aside(set)
        };
        note(&writer, "before".to_owned()).await.unwrap();
        set_pages(1).await.unwrap().unwrap();

        let full = note(&writer, "x".repeat(100_000)).await;

        assert_eq!(full.unwrap_err().code(), "storage_full");
        set_pages(1_000_000).await.unwrap().unwrap();
        assert!(note(&writer, "x".repeat(100_000)).await.is_ok());
        assert_eq!(count(&writer).await, 2);
    }

    #[tokio::test]
    async fn another_process_that_holds_the_lock_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&directory);
        let other = Connection::open(directory.path().join("tasks.db")).unwrap();
        other.execute_batch("begin immediate").unwrap();

        let waiting = note(&writer, "patient".to_owned());
        tokio::pin!(waiting);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
        other.execute_batch("rollback").unwrap();

        assert!(early.is_err(), "the lock was not respected");
        assert!(waiting.await.is_ok());
    }
}
