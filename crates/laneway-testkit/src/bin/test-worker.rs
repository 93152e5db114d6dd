//! A worker to be killed: a process of its own that claims, "works" for some milliseconds, completes and sweeps until its
//! standard input is closed. Tasks of kind `parent` spawn as many children as their payload says; every fifth child adds a
//! sibling. The tests of `processes.rs` start it; nobody else should.
//!
//! ```text
//! test-worker postgres <address>
//! test-worker sqlite <file>
//! ```
//!
//! It tells what it does on standard output, one line per event, with the microseconds since 1970. What it is about to do
//! is told before, what has been answered is told after, so that what a killed process did not tell it did not do,
//! or did not know:
//!
//! ```text
//! <at> session <session>
//! <at> claimed <lease> <task> <lane or ->
//! <at> settling <lease> <task>
//! <at> settled <lease> <task> <completed or refused>
//! ```

use std::fmt::Display;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use laneway_core::{
    Advance, Capacity, Claimed, Json, Kind, Kinds, NewTask, Outcome, QueueName, Registration, Renewal,
    Renewed, SessionId, Settle, Spawned, Store, Verdict,
};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_sqlite::{SqliteOptions, SqliteStore};

type Failure = Box<dyn std::error::Error>;

/// How often it renews and sweeps.
const HOUSEKEEPING: Duration = Duration::from_millis(40);
/// Tasks at once.
const SLOTS: u32 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    // Whoever started us holds the other end; when it is gone, we go.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut arguments = std::env::args().skip(1);
    let (Some(kind), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: test-worker (postgres <address> | sqlite <file>)".into());
    };
    let store: Arc<dyn Store> = match kind.as_str() {
        "postgres" => {
            Arc::new(PostgresStore::open(PostgresOptions::new(&address).pool_size(1).migrate(false)).await?)
        }
        _ => Arc::new(SqliteStore::open(SqliteOptions::new(address)).await?),
    };
    work(&*store).await
}

async fn work(store: &dyn Store) -> Result<(), Failure> {
    let session = SessionId::random();
    let capacity = Capacity { slots: SLOTS, free: SLOTS, ..Default::default() };
    let (name, queues) = ("test-worker".into(), vec![QueueName::default()]);
    store.register(Registration { session, name, queues, kinds: Kinds::All, capacity }).await?;
    tell("session", session);
    let mut settles: Vec<Settle> = vec![];
    let mut kept_house = Instant::now();
    for number in 1.. {
        let mut advance = Advance::new(session, number).claim(QueueName::default(), SLOTS);
        advance.settles = std::mem::take(&mut settles);
        advance.settles.iter().for_each(|one| tell("settling", format!("{} {}", one.lease.id.0, one.task)));
        let leases: Vec<_> = advance.settles.iter().map(|one| one.lease.id.0).collect();
        let advanced = store.advance(advance).await?;
        for (lease, settled) in std::iter::zip(leases, &advanced.settled) {
            let verdict = if settled.verdict == Verdict::Completed { "completed" } else { "refused" };
            tell("settled", format!("{lease} {} {verdict}", settled.task));
        }
        for one in &advanced.claimed {
            let lane = one.task.lane.as_ref().map_or("-", |lane| lane.as_str());
            tell("claimed", format!("{} {} {lane}", one.lease.id.0, one.task.id));
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..8))).await;
        if kept_house.elapsed() > HOUSEKEEPING {
            let renewal = Renewal { session, capacity, leases: advanced.leases(), advance_number: number };
            if store.renew(renewal).await? == Renewed::Lost {
                return Err("the session was taken for dead".into());
            }
            store.sweep().await?;
            kept_house = Instant::now();
        }
        settles = advanced
            .claimed
            .iter()
            .map(|one| one.settle(Outcome::completed()).spawning(spawned_by(one)))
            .collect();
    }
    Ok(())
}

/// What an attempt spawns, by its kind.
fn spawned_by(claimed: &Claimed) -> Spawned {
    let number: usize = claimed.task.payload.as_str().parse().unwrap_or(0);
    let child = |number: usize| {
        NewTask::new(Kind::new("child").expect("a valid name"), Json::trusted(number.to_string()))
    };
    match claimed.task.kind.as_str() {
        "parent" => Spawned { children: (1..=number).map(child).collect(), ..Default::default() },
        "child" if number > 0 && number.is_multiple_of(5) => {
            Spawned { siblings: vec![child(0)], ..Default::default() }
        }
        _ => Spawned::default(),
    }
}

fn tell(what: &str, about: impl Display) {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    println!("{} {what} {about}", at.as_micros());
}
