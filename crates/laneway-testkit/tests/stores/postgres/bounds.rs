//! Claims that start where the last one stopped (`bounds.rs` of the store): nothing is lost by it, and nothing is walked twice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use laneway_core::{Advance, Claimed, Outcome, Scan, Settle, Store, TaskId, Verdict};
use laneway_testkit::store::{a_task, ids_of, queue, secs, until};
use laneway_testkit::worker::{TestWorker, retry_after};
use tokio_postgres::IsolationLevel;

use crate::support::{Fixture, fixture};

const TASKS: usize = 20_000;
const WORKERS: usize = 3;
const CLAIM: u32 = 50;

/// What the workers have done so far.
#[derive(Default)]
struct Done {
    completed: Mutex<BTreeSet<TaskId>>,
    twice: AtomicUsize,
}

/// Most attempts succeed at once; some come back under their old ids first, behind the place where claims look.
fn settle(claimed: &Claimed) -> Settle {
    let is_first = claimed.task.attempt <= 1;
    claimed.settle(match claimed.task.id.0 % 50 {
        7 if is_first => retry_after(secs(0)),
        13 if fastrand::bool() => Outcome::GivenBack,
        _ => Outcome::completed(),
    })
}

/// Claims and settles as a coordinator does, quickly, until everything is done.
async fn work(mut worker: TestWorker, done: Arc<Done>) {
    let mut settles = vec![];
    while done.completed.lock().unwrap().len() < TASKS || !settles.is_empty() {
        let step = |advance: Advance| {
            Advance { scan: Scan::Auto, settles, ..advance }.claim(queue("default"), CLAIM)
        };
        let advanced = worker.advance(step).await;
        for settled in advanced.settled.iter().filter(|settled| settled.verdict == Verdict::Completed) {
            let is_new = done.completed.lock().unwrap().insert(settled.task);
            done.twice.fetch_add(usize::from(!is_new), Ordering::Relaxed);
        }
        settles = advanced.claimed.iter().map(settle).collect();
    }
}

/// Entries of the index that claims use, as far as they were read.
async fn entries_read(fixture: &Fixture) -> i64 {
    fixture
        .value("select idx_tup_read from pg_stat_user_indexes where schemaname = 'laneway' and indexrelname = 'task_next_idx'")
        .await
}

/// A snapshot that is kept open keeps all that was claimed in the indexes. Workers that look from the beginning each time would
/// read half of all tasks with each claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_is_worked_off_from_where_claims_stopped_and_nothing_is_lost() {
    let fixture = fixture().await;
    let stored = fixture.store.enqueue_many(vec![a_task().into(); TASKS]).await.unwrap();
    let mut old = fixture.connect().await;
    let snapshot = old.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.unwrap();
    snapshot.batch_execute("select 1 from laneway.task limit 1").await.unwrap();

    let (done, began) = (Arc::new(Done::default()), Instant::now());
    let mut workers = vec![];
    for _ in 0..WORKERS {
        workers.push(tokio::spawn(work(fixture.worker().await, done.clone())));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let took = began.elapsed();
    snapshot.rollback().await.unwrap();

    let completed: Vec<_> = done.completed.lock().unwrap().iter().copied().collect();
    assert_eq!(completed, ids_of(&stored));
    assert_eq!(done.twice.load(Ordering::Relaxed), 0, "tasks were completed twice");
    // The server counts what a session did when it is idle for a moment.
    let mut read = 0;
    until("the server has counted", async || {
        read = entries_read(&fixture).await;
        read >= TASKS as i64
    })
    .await;
    // Each worker looks from the beginning about once a second, however slow the machine is.
    let always = (TASKS * TASKS / CLAIM as usize / 2) as f64;
    let most = always / 4.0 + took.as_secs_f64() * (WORKERS * TASKS) as f64;
    assert!(
        (read as f64) < most,
        "{read} entries were read in {took:?}, {always} if always from the beginning"
    );
    fixture.check().await;
}
