//! Following the change feed.

use super::words::*;

/// A watch whose fence has passed.
async fn a_ready_watch(store: &TestStore) -> Watch {
    let watch = store.watch(secs(600)).await.unwrap();
    until("the watch is ready", async || store.fence_passed(watch.fence).await.unwrap()).await;
    watch
}

/// Reads until `expected` single changes have arrived: state and task, in order.
async fn read(
    store: &TestStore,
    watch: Watch,
    position: &mut Position,
    expected: usize,
) -> Vec<(State, TaskId)> {
    let mut seen = Vec::new();
    until("all changes have arrived", async || {
        let read = store.changes(watch.watcher, *position, 500).await.unwrap();
        assert!(!read.gap);
        *position = read.position;
        for change in read.changes {
            seen.extend(change.tasks.iter().map(|(task, _)| (change.state, *task)));
        }
        assert!(seen.len() <= expected, "{seen:?}");
        seen.len() == expected
    })
    .await;
    seen
}

pub async fn a_watcher_sees_a_task_through_its_life(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    let mut position = watch.position;
    let task = store.given_one(a_task().kind("mail").queue("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("a", 1).await;
    worker.settle(&claimed[0], retry_after(secs(0))).await;
    let claimed = worker.claim_from("a", 1).await;
    worker.settle(&claimed[0], Outcome::GivenBack).await;
    let claimed = worker.claim_from("a", 1).await;
    worker.complete(&claimed).await;

    let seen = read(store, watch, &mut position, 8).await;

    let states: Vec<_> = seen.iter().map(|(state, _)| *state).collect();
    use State::*;
    assert_eq!(states, [Pending, Leased, Later, Pending, Leased, Pending, Leased, Completed]);
    assert!(seen.iter().all(|(_, seen)| *seen == task));
    let again = store.changes(watch.watcher, watch.position, 500).await.unwrap();
    assert!(
        again.changes.iter().all(|change| change.queue == queue("a") && change.tasks[0].1 == kind("mail"))
    );
}

pub async fn a_bulk_a_delay_a_cancel_and_a_plain_success_are_told(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    let mut position = watch.position;
    let bulk = store.given_all(tasks_like(a_task(), 300)).await;
    let seen = read(store, watch, &mut position, 300).await;
    assert_eq!(seen, bulk.iter().map(|task| (State::Pending, *task)).collect::<Vec<_>>());

    let later = store.given_one(a_task().delay(secs(60))).await;
    store.cancel(later).await.unwrap();
    let seen = read(store, watch, &mut position, 2).await;
    assert_eq!(seen, [(State::Later, later), (State::Cancelled, later)]);

    let mut worker = store.worker().await;
    let claimed = worker.claim(300).await;
    read(store, watch, &mut position, 300).await;
    worker.complete(&claimed).await;
    let seen = read(store, watch, &mut position, 300).await;
    assert!(seen.iter().all(|(state, _)| *state == State::Completed));
}

/// Of a bulk with keys only those are told that were stored, and their ids have gaps.
pub async fn of_a_bulk_only_what_was_stored_is_told(store: &TestStore) {
    store.given_all([17, 170].map(|n| a_task().unique(&n.to_string()))).await;
    let watch = a_ready_watch(store).await;
    let tasks = (0..300).map(|n| a_task().unique(&n.to_string()).into()).collect();

    let answers = store.enqueue_many(tasks).await.unwrap();

    let new = answers.iter().filter(|answer| answer.is_new()).map(|answer| (State::Pending, answer.id));
    let new: Vec<_> = new.collect();
    assert_eq!(new.len(), 298);
    let mut position = watch.position;
    assert_eq!(read(store, watch, &mut position, 298).await, new);
}

pub async fn a_dead_workers_task_and_a_retried_one_are_told(store: &TestStore) {
    let task = store.given_one(a_task().max_attempts(1)).await;
    let mut worker = store.worker().await;
    let _claimed = worker.claim_one().await;
    let watch = a_ready_watch(store).await;
    let mut position = watch.position;

    store.advance_clock(secs(31)).await;
    store.sweep().await.unwrap();
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    store.act(&Actor::new(ActorName::new("ann").unwrap()), Action::Retry, &[task]).await.unwrap();

    let seen = read(store, watch, &mut position, 4).await;
    let states: Vec<_> = seen.iter().map(|(state, _)| *state).collect();
    assert_eq!(states, [State::Pending, State::Leased, State::Failed, State::Pending]);
}

pub async fn what_operators_snooze_and_delete_is_told(store: &TestStore) {
    let [pending, later] = store.given([a_task(), a_task().delay(secs(60))]).await;
    let ended = store.given_one(a_task().queue("a").max_attempts(1)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("a", 1).await;
    worker.settle(&claimed[0], failed()).await;
    let watch = a_ready_watch(store).await;
    let mut position = watch.position;

    let snooze = Action::Snooze(secs(90));
    store.act(&Actor::program(), snooze, &[pending]).await.unwrap();
    store.act(&Actor::program(), snooze, &[later]).await.unwrap();
    let seen = read(store, watch, &mut position, 2).await;
    assert_eq!(seen, [(State::Later, pending), (State::Later, later)]);

    let before = position;
    store.act(&Actor::program(), Action::Delete, &[ended]).await.unwrap();
    let fresh = store.given_one(a_task()).await;
    store.act(&Actor::program(), Action::Delete, &[pending]).await.unwrap();
    store.act(&Actor::program(), Action::Delete, &[fresh]).await.unwrap();
    let seen = read(store, watch, &mut position, 4).await;
    let expected =
        [(State::Failed, ended), (State::Pending, fresh), (State::Later, pending), (State::Pending, fresh)];
    assert_eq!(seen, expected);
    let again = store.changes(watch.watcher, before, 500).await.unwrap();
    let deleted: Vec<_> = again.changes.iter().map(|change| change.deleted).collect();
    assert_eq!(deleted, [true, false, true, true]);
}

pub async fn what_a_bulk_snoozes_and_deletes_is_told(store: &TestStore) {
    let tasks = store.given_all(tasks_like(a_task(), 3)).await;
    let watch = a_ready_watch(store).await;
    let mut position = watch.position;

    for action in [Action::Snooze(secs(90)), Action::Delete] {
        let bulk = NewBulk::new(action, "queue:default".parse().unwrap());
        let bulk = store.start_bulk(&Actor::program(), bulk).await.unwrap();
        until("the bulk is finished", async || {
            store.bulk_step(bulk.id).await.unwrap().unwrap().state == BulkState::Finished
        })
        .await;
        let mut seen = read(store, watch, &mut position, 3).await;
        seen.sort();
        assert_eq!(seen, tasks.iter().map(|task| (State::Later, *task)).collect::<Vec<_>>());
    }
    assert_eq!(store.total().await, 0);
}

pub async fn a_reader_goes_on_where_it_stopped_in_small_steps(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(store.given_one(a_task()).await);
    }

    let (mut position, mut seen) = (watch.position, Vec::new());
    until("all changes have arrived", async || {
        let read = store.changes(watch.watcher, position, 1).await.unwrap();
        assert!(read.changes.len() <= 1 && !read.gap);
        position = read.position.to_string().parse().unwrap();
        seen.extend(read.changes.into_iter().flat_map(|change| change.tasks).map(|(task, _)| task));
        seen.len() == 5
    })
    .await;

    assert_eq!(seen, tasks);
    assert!(store.changes(watch.watcher, position, 500).await.unwrap().changes.is_empty());
}

pub async fn two_watchers_see_the_same(store: &TestStore) {
    let (one, two) = (a_ready_watch(store).await, a_ready_watch(store).await);
    let task = store.given_one(a_task()).await;

    let (mut first, mut second) = (one.position, two.position);
    assert_eq!(read(store, one, &mut first, 1).await, [(State::Pending, task)]);
    assert_eq!(read(store, two, &mut second, 1).await, [(State::Pending, task)]);
}

pub async fn a_watcher_that_was_silent_for_too_long_has_a_gap(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    store.advance_clock(secs(300)).await;
    assert!(!store.changes(watch.watcher, watch.position, 10).await.unwrap().gap);
    store.advance_clock(secs(601)).await;

    assert!(store.changes(watch.watcher, watch.position, 10).await.unwrap().gap);
    let anew = a_ready_watch(store).await;
    assert!(!store.changes(anew.watcher, anew.position, 10).await.unwrap().gap);
}

pub async fn a_watcher_that_stopped_is_unknown(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    store.unwatch(watch.watcher).await.unwrap();

    assert!(store.changes(watch.watcher, watch.position, 10).await.unwrap().gap);
}

pub async fn changes_that_were_removed_are_a_gap(store: &TestStore) {
    let watch = a_ready_watch(store).await;
    store.given_one(a_task()).await;
    for _ in 0..3 {
        store.advance_clock(secs(400)).await;
        assert!(!store.changes(watch.watcher, watch.position, 10).await.unwrap().gap);
    }

    store.maintain().await.unwrap();

    assert!(store.changes(watch.watcher, watch.position, 10).await.unwrap().gap);
}

pub async fn a_watch_of_no_time_or_of_hours_and_odd_pages_are_refused(store: &TestStore) {
    for keep in [secs(0), secs(601)] {
        assert_eq!(refusal(store.watch(keep).await).code, Code::OutOfRange);
    }
    let watch = store.watch(secs(60)).await.unwrap();
    for max in [0, 501] {
        let refused = refusal(store.changes(watch.watcher, watch.position, max).await);
        assert_eq!(refused.code, Code::OutOfRange);
    }
}
