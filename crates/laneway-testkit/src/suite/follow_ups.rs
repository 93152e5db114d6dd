//! Follow-ups: tasks that run after another one, with its family, has ended.

use super::words::*;

fn a_child() -> ATask {
    a_task().kind("child")
}

fn dropped(task: ATask) -> FollowUp {
    FollowUp { task: task.kind("after").into(), on_failure: FollowUpOnFailure::Drop }
}

fn kept(task: ATask) -> FollowUp {
    FollowUp { on_failure: FollowUpOnFailure::Keep, ..dropped(task) }
}

fn with_child(follow_ups: impl Into<Vec<FollowUp>>) -> Spawned {
    Spawned { children: vec![a_child().into()], follow_ups: follow_ups.into(), ..Default::default() }
}

fn alone(follow_ups: impl Into<Vec<FollowUp>>) -> Spawned {
    Spawned { follow_ups: follow_ups.into(), ..Default::default() }
}

/// A task that has settled like this, and what follows it.
async fn settled(
    store: &TestStore,
    worker: &mut TestWorker,
    outcome: Outcome,
    spawned: Spawned,
) -> (TaskId, Vec<TaskId>) {
    let id = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, id);
    worker.settle_all(vec![claimed.settle(outcome).spawning(spawned)]).await;
    let follow_ups = store.follow_ups(id).await.expect("a look at follow-ups");
    (id, follow_ups.iter().map(|task| task.id).collect())
}

async fn states(store: &TestStore, tasks: &[TaskId]) -> Vec<State> {
    let mut states = Vec::new();
    for task in tasks {
        states.push(store.state(*task).await);
    }
    states
}

pub async fn a_follow_up_waits_until_its_spawner_has_ended(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task()), dropped(a_task().lane("a"))]);
    let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
    let view = store.view(after[0]).await;
    assert_eq!((view.state, view.due_at, view.options.after), (State::Later, None, Some(id)));
    assert_eq!((view.parent, view.depth), (None, 0));
    let why = store.why(after[0]).await.unwrap().unwrap();
    assert_eq!(why.reasons[0], Reason::After { task: id });
    store.advance_clock(secs(3_600)).await;
    worker.stay_alive().await;

    let claimed = worker.claim(10).await;
    assert_eq!(claimed.len(), 1, "only the child");
    worker.complete(&claimed).await;

    assert_eq!(store.state(id).await, State::Completed);
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), after);
    assert_eq!(claimed[0].task.options.after, Some(id));
}

pub async fn a_follow_up_of_a_task_without_children_is_runnable_at_once(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = alone([dropped(a_task()), dropped(a_task().delay(secs(5)))]);

    let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;

    assert_eq!(store.state(id).await, State::Completed);
    assert_eq!(states(store, &after).await, [State::Pending, State::Later]);
    assert!(store.view(after[1]).await.due_at.is_some());
}

pub async fn when_the_spawner_fails_those_are_dropped_that_were_not_kept(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task()), kept(a_task())]);
    let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
    let child = worker.claim_one().await;

    worker.settle(&child, failed()).await;

    assert_eq!(states(store, &after).await, [State::Cancelled, State::Pending]);
    assert_eq!(store.view(after[0]).await.error, Some(format!("task {id} failed")));
}

pub async fn a_failed_attempt_leaves_only_what_is_kept(store: &TestStore) {
    let mut worker = store.worker().await;
    let both = || alone([dropped(a_task()), kept(a_task())]);

    let (_, after) = settled(store, &mut worker, failed(), both()).await;
    assert_eq!(states(store, &after).await, [State::Pending]);
    worker.claim(10).await;
    let (_, after) = settled(store, &mut worker, retry_after(secs(60)), both()).await;
    assert_eq!(after, []);
    let (_, after) = settled(store, &mut worker, Outcome::Cancelled { reason: None }, both()).await;
    assert_eq!(after, []);
}

pub async fn when_the_spawner_is_cancelled_so_is_what_follows(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task()), kept(a_task().delay(secs(5)))]);
    let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;

    assert_eq!(store.cancel(id).await.unwrap(), Cancel::Cancelled);

    assert_eq!(states(store, &after).await, [State::Cancelled, State::Cancelled]);
    assert_eq!(store.view(after[1]).await.error, Some(format!("task {id} was cancelled")));
}

pub async fn the_delay_of_a_follow_up_counts_from_the_end(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task().delay(secs(100)))]);
    let (_, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
    store.advance_clock(secs(200)).await;
    worker.stay_alive().await;
    let child = worker.claim(10).await;
    worker.complete(&child).await;

    assert_eq!(states(store, &after).await, [State::Later]);
    assert!(worker.claim(10).await.is_empty());
    store.advance_clock(secs(101)).await;
    worker.stay_alive().await;

    assert_eq!(ids(&worker.claim(10).await), after);
}

pub async fn a_follow_up_whose_key_is_held_is_not_stored(store: &TestStore) {
    let mut worker = store.worker().await;
    let once = || {
        let reject = Unique::new(unique_key("once")).on_conflict(OnConflict::Reject);
        [dropped(a_task().unique_as(reject)), dropped(a_task())]
    };
    let (_, first) = settled(store, &mut worker, Outcome::completed(), with_child(once())).await;
    assert_eq!(first.len(), 2);

    let other = store.given_one(a_task().priority(-1)).await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, other);
    let settle = claimed.settle(Outcome::completed()).spawning(with_child(once()));

    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    assert_eq!(store.follow_ups(other).await.unwrap().len(), 1);
}

pub async fn a_follow_up_waits_for_the_last_step(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = Spawned { then: true, ..with_child([dropped(a_task())]) };
    let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
    let child = worker.claim(1).await;
    worker.complete(&child).await;
    assert_eq!(states(store, &after).await, [State::Later]);

    let step = worker.claim(10).await;
    assert_eq!(ids(&step), [id]);
    worker.complete(&step).await;

    assert_eq!(states(store, &after).await, [State::Pending]);
}

pub async fn a_follow_up_that_waits_can_be_cancelled_deleted_and_moved_but_not_snoozed(store: &TestStore) {
    let ann = Actor::new(ActorName::new("ann").unwrap());
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task()), dropped(a_task()), dropped(a_task())]);
    let (_, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;

    for (action, task, expected) in [
        (Action::Snooze(secs(5)), after[0], Acted::Skipped(Skip::Waiting)),
        (Action::SetPriority(-3), after[0], Acted::Done),
        (Action::Cancel, after[1], Acted::Done),
        (Action::Delete, after[2], Acted::Done),
    ] {
        assert_eq!(store.act(&ann, action, &[task]).await.unwrap(), [expected], "{action:?}");
    }

    let child = worker.claim(10).await;
    worker.complete(&child).await;
    let claimed = worker.claim(10).await;
    assert_eq!((ids(&claimed), claimed[0].task.priority), (after[..1].to_vec(), -3));
}

pub async fn follow_ups_without_a_due_time_come_last_in_their_list(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = with_child([dropped(a_task()), dropped(a_task())]);
    let (_, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
    let due = store.given_one(a_task().delay(secs(60))).await;

    let mut found = Vec::new();
    let mut listing = Listing::of(Place::Later).limit(1);
    loop {
        let page = store.list(listing.clone()).await.unwrap();
        found.extend(page.tasks.iter().map(|task| task.id));
        let Some(next) = page.next else { break };
        listing = listing.after(next);
    }

    assert_eq!(found, [due, after[0], after[1]]);
    let left = worker.advance(|advance| advance.claim(queue("nobody"), 1)).await.next_due;
    assert!(left.is_some_and(|left| left <= secs(60)));
}

pub async fn a_deleted_or_cancelled_step_takes_its_follow_ups_with_it(store: &TestStore) {
    let ann = Actor::new(ActorName::new("ann").unwrap());
    let mut worker = store.worker().await;
    for action in [Action::Cancel, Action::Delete] {
        let spawned = Spawned { then: true, ..with_child([kept(a_task())]) };
        let (id, after) = settled(store, &mut worker, Outcome::completed(), spawned).await;
        let child = worker.claim(1).await;
        worker.complete(&child).await;
        assert_eq!(store.state(id).await, State::Pending);

        assert_eq!(store.act(&ann, action, &[id]).await.unwrap(), [Acted::Done]);

        assert_eq!(states(store, &after).await, [State::Cancelled]);
    }
}
