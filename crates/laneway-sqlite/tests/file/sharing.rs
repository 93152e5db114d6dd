//! Several callers, stores and sleepers on one file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use laneway_core::*;
use laneway_sqlite::{SqliteOptions, SqliteStore};

async fn two_stores() -> (Fixture, SqliteStore) {
    let first = fixture().await;
    let options = SqliteOptions::new(first.directory.path().join("tasks.db")).clock(first.clock.clone());
    let second = SqliteStore::open(options).await.unwrap();
    (first, second)
}

async fn asleep(store: &SqliteStore) -> Hints {
    let hints = store.hints();
    let sleep = Sleep { session: SessionId::random(), queues: vec![queue()], at_most: secs(60) };
    let fence = store.fall_asleep(sleep).await.unwrap();
    assert!(store.fence_passed(fence).await.unwrap());
    hints
}

/// The next hint, which must come.
async fn hint(hints: &mut Hints) -> Hint {
    let told = tokio::time::timeout(secs(60), hints.next()).await;
    told.expect("waited in vain for a hint").expect("hints go on")
}

/// For a while nobody was told anything.
async fn assert_silent(hints: &mut Hints) {
    let told = tokio::time::timeout(Duration::from_millis(150), hints.next()).await;
    assert!(told.is_err(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_enqueues_are_all_answered_and_all_stored() {
    let fixture = fixture().await;
    let store = Arc::new(fixture.store);

    let calls: Vec<_> = (0..500)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.enqueue(a_task()).await.unwrap().id.0 })
        })
        .collect();
    let mut found = vec![];
    for call in calls {
        found.push(call.await.unwrap());
    }

    found.sort_unstable();
    assert_eq!(found, (1..=500).collect::<Vec<_>>());
    assert_eq!(store.counts().await.unwrap()[0].tasks, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_share_the_work_and_nothing_runs_twice() {
    let (first, second) = two_stores().await;
    let tasks = (0..400).map(|n| in_lane_of(&format!("lane {}", n % 7), 3)).collect();
    first.store.enqueue_many(tasks).await.unwrap();

    let (one, two) = tokio::join!(drain(&first.store), drain(&second));

    let mut all = [one, two].concat();
    all.sort_unstable();
    assert_eq!(all, (1..=400).collect::<Vec<_>>());
    first.assert_sound().await;
}

/// Works until nothing is left that is not with the other store.
async fn drain(store: &SqliteStore) -> Vec<i64> {
    let worker = worker(store).await;
    let mut done = vec![];
    let mut settles = vec![];
    loop {
        let mut advance = worker.next().claim(queue(), 10);
        advance.settles = std::mem::take(&mut settles);
        let advanced = worker.advance(advance).await;
        assert!(advanced.settled.iter().all(|settled| settled.verdict == Verdict::Completed));
        done.extend(ids(&advanced.claimed));
        settles = advanced.claimed.iter().map(|claimed| claimed.settle(Outcome::completed())).collect();
        if settles.is_empty() && advanced.left == Left::Nothing {
            return done;
        }
    }
}

#[tokio::test]
async fn a_sleeper_is_told_about_a_task_of_its_own_process() {
    let fixture = fixture().await;
    let mut hints = asleep(&fixture.store).await;

    fixture.store.enqueue(a_task()).await.unwrap();

    assert_eq!(hint(&mut hints).await, Hint::of(queue(), 1));
}

/// A machine may stand still for a while, so not each time; but three times in a row is no luck.
#[tokio::test]
async fn a_sleeper_is_told_about_another_stores_task_within_100_ms() {
    let (first, second) = two_stores().await;
    let mut in_a_row = 0;

    for _ in 0..100 {
        let mut hints = asleep(&first.store).await;
        second.enqueue(a_task()).await.unwrap();
        let enqueued = Instant::now();
        hint(&mut hints).await;

        in_a_row = if enqueued.elapsed() < Duration::from_millis(100) { in_a_row + 1 } else { 0 };
        if in_a_row == 3 {
            return;
        }
    }
    panic!("hints take longer");
}

#[tokio::test]
async fn a_sleeper_is_told_about_a_task_that_is_due_before_it_wakes() {
    let (first, second) = two_stores().await;
    let mut hints = asleep(&first.store).await;

    first.store.enqueue(a_task().delay(secs(10))).await.unwrap();
    hint(&mut hints).await;
    second.enqueue(a_task().delay(secs(5))).await.unwrap();
    hint(&mut hints).await;

    // Neither changes when the sleeper has to wake.
    first.store.enqueue(a_task().delay(secs(20))).await.unwrap();
    second.enqueue(a_task().delay(secs(3600))).await.unwrap();
    assert_silent(&mut hints).await;
}

#[tokio::test]
async fn nobody_is_told_when_nothing_can_be_claimed() {
    let (first, second) = two_stores().await;
    first.store.enqueue_many(vec![in_lane("a"), in_lane("a")]).await.unwrap();
    let busy = worker(&first.store).await;
    let claimed = busy.claim(10).await;
    let mut hints = asleep(&first.store).await;

    // The lane is at its limit, and a renewal changes the file but makes no work.
    first.store.enqueue(in_lane("a")).await.unwrap();
    worker(&second).await;
    second.enqueue(in_lane("a")).await.unwrap();
    assert_silent(&mut hints).await;

    busy.settle(&claimed[0], Outcome::completed()).await;
    hint(&mut hints).await;
}

#[tokio::test]
async fn who_woke_up_is_not_told() {
    let fixture = fixture().await;
    let session = SessionId::random();
    let mut hints = fixture.store.hints();
    let sleep = Sleep { session, queues: vec![queue()], at_most: secs(60) };
    fixture.store.fall_asleep(sleep).await.unwrap();

    fixture.store.wake_up(session).await.unwrap();
    fixture.store.enqueue(a_task()).await.unwrap();

    assert_silent(&mut hints).await;
}
