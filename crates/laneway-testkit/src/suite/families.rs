//! Families: children, siblings, policies, steps.

use super::words::*;

const NO_TASKS: [ATask; 0] = [];

fn children(tasks: impl IntoIterator<Item = ATask>) -> Spawned {
    Spawned { children: tasks.into_iter().map(NewTask::from).collect(), ..Default::default() }
}

fn siblings(tasks: impl IntoIterator<Item = ATask>) -> Spawned {
    Spawned { siblings: tasks.into_iter().map(NewTask::from).collect(), ..Default::default() }
}

/// A child of its own kind, so that a worker can choose.
fn a_child() -> ATask {
    a_task().kind("child")
}

async fn spawn(worker: &mut TestWorker, claimed: &Claimed, spawned: Spawned) -> Verdict {
    worker.settle_all(vec![claimed.settle(Outcome::completed()).spawning(spawned)]).await[0]
}

/// A task that waits for what it spawned.
async fn parent_of(store: &TestStore, worker: &mut TestWorker, task: ATask, spawned: Spawned) -> TaskId {
    let id = store.given_one(task).await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, id);
    assert_eq!(spawn(worker, &claimed, spawned).await, Verdict::Waiting);
    id
}

async fn child_ids(store: &TestStore, parent: TaskId) -> Vec<TaskId> {
    let page = store.children(Children::of(parent)).await.expect("a page of children");
    page.iter().map(|child| child.id).collect()
}

async fn family(store: &TestStore, parent: TaskId) -> FamilyView {
    store.family(parent).await.expect("a look at a family").expect("it has children")
}

/// All, open, completed, failed, cancelled.
async fn numbers(store: &TestStore, parent: TaskId) -> [u64; 5] {
    let family = family(store, parent).await;
    [family.total, family.open, family.completed, family.failed, family.cancelled]
}

async fn error(store: &TestStore, task: TaskId) -> String {
    store.view(task).await.error.unwrap_or_default()
}

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap())
}

async fn act(store: &TestStore, action: Action, task: TaskId) -> Acted {
    store.act(&ann(), action, &[task]).await.expect("an action")[0]
}

pub async fn children_are_stored_with_the_settle_and_their_parent_waits(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().payload("[1]"), a_child().queue("other").priority(7), a_child().delay(secs(60))];

    let parent = parent_of(store, &mut worker, a_task(), children(tasks)).await;

    let view = store.view(parent).await;
    assert_eq!((view.state, view.attempt, view.worker), (State::Waiting, 1, None));
    let page = store.children(Children::of(parent)).await.unwrap();
    assert!(page.iter().all(|child| child.parent == Some(parent) && child.depth == 1));
    assert!(page.is_sorted_by_key(|child| child.id) && page[0].id > parent);
    let shown: Vec<_> =
        page.iter().map(|child| (child.queue.as_str(), child.priority, child.state)).collect();
    let expected =
        [("default", 0, State::Pending), ("other", 7, State::Pending), ("default", 0, State::Later)];
    assert_eq!(shown, expected);
    assert_eq!(page[0].payload.as_ref().unwrap().as_str(), "[1]");
    assert_eq!(numbers(store, parent).await, [3, 3, 0, 0, 0]);
    let claimed = worker.claim(10).await;
    assert_eq!((claimed.len(), claimed[0].task.parent, claimed[0].task.depth), (1, Some(parent), 1));
}

pub async fn a_parent_completes_with_its_result_when_its_last_child_has(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    let result = Some(Json::parse("\"split\"").unwrap());
    let settle = claimed.settle(Outcome::Completed { result }).spawning(children([a_child(), a_child()]));
    worker.settle_all(vec![settle]).await;
    let claimed = worker.claim(10).await;

    worker.complete(&claimed[..1]).await;
    assert_eq!(store.state(parent).await, State::Waiting);
    assert_eq!(store.view(parent).await.result, None);
    worker.complete(&claimed[1..]).await;

    let view = store.view(parent).await;
    assert_eq!((view.state, view.result.unwrap().as_str()), (State::Completed, "\"split\""));
    assert_eq!((view.attempt, view.payload.is_some(), view.ended_at.is_some()), (1, true, true));
    assert_eq!(numbers(store, parent).await, [2, 0, 2, 0, 0]);
    assert_eq!(child_ids(store, parent).await.len(), 2);
}

pub async fn a_parent_fails_after_all_its_children_when_one_has_failed(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().max_attempts(1), a_child(), a_child()];
    let parent = parent_of(store, &mut worker, a_task(), children(tasks)).await;
    let claimed = worker.claim(10).await;

    worker.settle(&claimed[0], retry_after(secs(5))).await;
    assert_eq!(store.state(parent).await, State::Waiting);
    assert_eq!(numbers(store, parent).await, [3, 2, 0, 1, 0]);
    worker.complete(&claimed[1..]).await;

    assert_eq!(store.state(parent).await, State::Failed);
    let expected = format!("1 of 3 children failed: task {}: did not work", claimed[0].task.id);
    assert_eq!(error(store, parent).await, expected);
    assert_eq!(numbers(store, parent).await, [3, 0, 2, 1, 0]);
}

pub async fn a_child_fails_only_when_its_attempts_are_spent(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child().max_attempts(2)])).await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(0))).await;
    assert_eq!(numbers(store, parent).await, [1, 1, 0, 0, 0]);

    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    assert_eq!(store.state(parent).await, State::Completed);
}

pub async fn the_first_three_errors_are_kept_and_cut(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = tasks_like(a_child(), 5);
    let parent = parent_of(store, &mut worker, a_task(), children(tasks)).await;
    let claimed = worker.claim(10).await;

    for child in &claimed {
        worker.settle(child, Outcome::Failed { error: "ä".repeat(300) }).await;
    }

    let cut = "ä".repeat(200);
    let texts: Vec<_> = claimed[..3].iter().map(|child| format!("task {}: {cut}", child.task.id)).collect();
    let expected = format!("5 of 5 children failed: {}; …", texts.join("; "));
    assert_eq!(error(store, parent).await, expected);
    assert_eq!(family(store, parent).await.errors.len(), 3);
}

pub async fn a_settle_that_does_not_count_spawns_nothing(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    let settle = claimed.settle(Outcome::completed()).spawning(children([a_child()]));
    let stale = Settle {
        lease: LeaseRef { token: LeaseToken(uuid::Uuid::new_v4()), ..claimed.lease },
        ..settle.clone()
    };

    assert_eq!(worker.settle_all(vec![stale]).await, [Verdict::Stale]);
    assert_eq!(store.total().await, 1);
    let twice = worker.settle_all(vec![settle.clone(), settle.clone()]).await;
    assert_eq!(twice, [Verdict::Waiting, Verdict::Already]);
    assert_eq!(worker.advance_again().await.settled[0].verdict, Verdict::Already);

    assert_eq!(store.total().await, 2);
    assert_eq!(numbers(store, parent).await, [1, 1, 0, 0, 0]);
}

pub async fn an_attempt_that_has_not_completed_spawns_nothing(store: &TestStore) {
    let mut worker = store.worker().await;
    for outcome in [
        retry_after(secs(60)),
        Outcome::Snooze { after: secs(60) },
        failed(),
        Outcome::Cancelled { reason: None },
    ] {
        store.given_one(a_task()).await;
        let claimed = worker.claim_one().await;
        let settle = claimed.settle(outcome).spawning(children([a_child()]));
        assert_ne!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    }

    assert_eq!(store.total().await, 4);
}

pub async fn a_request_to_cancel_meets_an_attempt_that_spawns(store: &TestStore) {
    let mut worker = store.worker().await;
    let id = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    store.cancel(id).await.unwrap();

    assert_eq!(spawn(&mut worker, &claimed, children([a_child()])).await, Verdict::Cancelled);

    assert_eq!(store.total().await, 1);
}

pub async fn siblings_are_counted_before_the_end_of_the_child_that_adds_them(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child(), a_child()])).await;
    let claimed = worker.claim(10).await;

    // The other child ends in the same step.
    let adds = claimed[0].settle(Outcome::completed()).spawning(siblings([a_child(), a_child()]));
    let verdicts = worker.settle_all(vec![adds, claimed[1].settle(Outcome::completed())]).await;

    assert_eq!(verdicts, [Verdict::Completed, Verdict::Completed]);
    assert_eq!(numbers(store, parent).await, [4, 2, 2, 0, 0]);
    let added = worker.claim(10).await;
    assert!(added.iter().all(|child| child.task.parent == Some(parent) && child.task.depth == 1));
    worker.complete(&added).await;
    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(child_ids(store, parent).await.len(), 4);
}

pub async fn failures_can_be_ignored(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = Spawned { policy: FamilyPolicy::Ignore, ..children([a_child(), a_child()]) };
    let parent = parent_of(store, &mut worker, a_task(), spawned).await;
    let claimed = worker.claim(10).await;

    worker.settle(&claimed[0], failed()).await;
    worker.settle(&claimed[1], failed()).await;

    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(numbers(store, parent).await, [2, 0, 0, 2, 0]);
}

pub async fn a_family_that_fails_fast_stops_what_is_open(store: &TestStore) {
    let mut worker = store.worker().await;
    let mut tasks = vec![a_child().priority(-1), a_child().priority(-1)];
    tasks.extend([a_child(), a_child().delay(secs(60)), a_child().lane("a")]);
    let spawned = Spawned { policy: FamilyPolicy::FailFast, ..children(tasks) };
    let parent = parent_of(store, &mut worker, a_task(), spawned).await;
    let claimed = worker.claim(2).await;

    worker.settle(&claimed[0], failed()).await;

    assert_eq!(numbers(store, parent).await, [5, 1, 0, 1, 3]);
    assert_eq!(worker.orders(&claimed[1..]).await.cancel, [claimed[1].task.id]);
    assert_eq!(store.state(parent).await, State::Waiting);
    worker.settle(&claimed[1], Outcome::Cancelled { reason: None }).await;
    assert_eq!(store.state(parent).await, State::Failed);
    let text = error(store, parent).await;
    assert!(
        text.starts_with(&format!("5 of 5 children failed: task {}: never works", claimed[0].task.id)),
        "{text}"
    );
    assert!(worker.claim(10).await.is_empty());
}

pub async fn a_sibling_that_comes_to_a_family_that_is_stopped_is_cancelled(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = Spawned { policy: FamilyPolicy::FailFast, ..children([a_child(), a_child()]) };
    let parent = parent_of(store, &mut worker, a_task(), spawned).await;
    let claimed = worker.claim(2).await;
    worker.settle(&claimed[0], failed()).await;

    spawn(&mut worker, &claimed[1], siblings([a_child()])).await;

    assert_eq!(store.state(parent).await, State::Failed);
    assert_eq!(numbers(store, parent).await, [3, 0, 1, 1, 1]);
    assert!(worker.claim(10).await.is_empty());
}

pub async fn a_child_may_have_children(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = parent_of(store, &mut worker, a_task(), children([a_child()])).await;
    let child = worker.claim_one().await;
    assert_eq!(spawn(&mut worker, &child, children([a_child(), a_child()])).await, Verdict::Waiting);
    let grandchildren = worker.claim(10).await;
    assert!(grandchildren.iter().all(|one| one.task.depth == 2 && one.task.parent == Some(child.task.id)));

    worker.complete(&grandchildren[..1]).await;
    assert_eq!(store.state(child.task.id).await, State::Waiting);
    worker.settle(&grandchildren[1], failed()).await;

    assert_eq!(store.state(child.task.id).await, State::Failed);
    assert_eq!(store.state(top).await, State::Failed);
    let inner = format!("1 of 2 children failed: task {}: never works", grandchildren[1].task.id);
    assert_eq!(error(store, top).await, format!("1 of 1 children failed: task {}: {inner}", child.task.id));
}

pub async fn a_family_that_would_be_too_deep_fails_its_parent(store: &TestStore) {
    let shallow = store.with_limits(Limits { depth_max: 1, ..Default::default() }).await;
    let mut worker = TestWorker::register(shallow).await;
    parent_of(store, &mut worker, a_task(), children([a_child()])).await;
    let child = worker.claim_one().await;

    assert_eq!(spawn(&mut worker, &child, children([a_child()])).await, Verdict::Failed);

    let expected = "family_too_deep: children would be at depth 2, the limit is 1; spawn siblings instead";
    assert_eq!(error(store, child.task.id).await, expected);
    assert_eq!(store.total().await, 2);
}

pub async fn what_is_refused_about_a_child_fails_its_parent_and_stores_nothing(store: &TestStore) {
    let small = store.with_limits(Limits { bulk_max: 2, ..Default::default() }).await;
    let mut worker = TestWorker::register(small).await;
    let refused = [
        (
            siblings([a_child()]),
            "no_parent: siblings need a parent, and this task has none; spawn children instead",
        ),
        (children([a_child().unique("k")]), "unique_child: unique.key `k` is refused"),
        (children([a_child(), a_child().priority(5_000)]), "out_of_range: task 1: priority is 5000"),
        (children(tasks_like(a_child(), 3)), "bulk_too_large: tasks are 3 in one settle, the limit is 2"),
    ];
    let count = refused.len() as u64;
    for (spawned, says) in refused {
        let id = store.given_one(a_task()).await;
        let claimed = worker.claim_one().await;
        assert_eq!(spawn(&mut worker, &claimed, spawned).await, Verdict::Failed);
        let text = error(store, id).await;
        assert!(text.starts_with(says), "{text}");
    }

    assert_eq!(store.total().await, count);
}

pub async fn a_parent_in_a_lane_keeps_its_turn_while_it_waits(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task().lane("a"), children([a_child()])).await;
    let next = store.given_one(a_task().lane("a")).await;
    assert_eq!(store.lane_view("a").await.held, 1);

    let child = worker.claim(10).await;
    assert_eq!(child.len(), 1);
    worker.complete(&child).await;

    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(ids(&worker.claim(10).await), [next]);
}

pub async fn lanes_of_children_are_lanes_of_their_own(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().lane("a"), a_child().lane("a"), a_child().lane_of("b", 2), a_child().lane("b")];

    let parent = parent_of(store, &mut worker, a_task().lane("a"), children(tasks)).await;

    // Its parent holds the turn of the other lane `a`.
    let mut claimed = worker.claim(10).await;
    assert_eq!(claimed.len(), 3);
    let keys: Vec<_> = claimed.iter().map(|one| one.task.lane.as_ref().unwrap().as_str()).collect();
    assert_eq!(keys, ["a", "b", "b"]);
    assert_eq!((store.lane_view("a").await.held, store.lane_view("a").await.pending), (1, 0));
    assert_eq!(store.lane(&queue("default"), &lane_key("b")).await.unwrap(), None);
    worker.complete(&claimed).await;
    claimed = worker.claim(10).await;
    assert_eq!(claimed.len(), 1);
    worker.complete(&claimed).await;
    assert_eq!(store.state(parent).await, State::Completed);
}

pub async fn a_child_in_a_lane_gives_its_turn_up_while_it_waits(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().lane("a"), a_child().lane("a")];
    let top = parent_of(store, &mut worker, a_task(), children(tasks)).await;
    let first = worker.claim_one().await;

    spawn(&mut worker, &first, children([a_child().lane("a")])).await;

    // The second child and, behind it, the grandchild have the lane's one turn now.
    for _ in 0..2 {
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), 1);
        worker.complete(&claimed).await;
    }
    assert_eq!(store.state(top).await, State::Completed);
}

pub async fn a_lane_that_halts_on_failure_is_halted_by_a_failed_family(store: &TestStore) {
    let settings = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
    store.change_lane("a", settings).await;
    let mut worker = store.worker().await;
    parent_of(store, &mut worker, a_task().lane("a"), children([a_child()])).await;
    store.given_one(a_task().lane("a")).await;
    let child = worker.claim_one().await;

    worker.settle(&child, failed()).await;

    assert!(store.lane_view("a").await.halted);
    assert!(worker.claim(10).await.is_empty());
}

pub async fn a_parent_takes_its_next_step_when_its_children_have_ended_well(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = Spawned { then: true, ..children([a_child(), a_child()]) };
    let parent = parent_of(store, &mut worker, a_task().payload("[7]").lane("a"), spawned).await;
    store.given_one(a_task().lane("a").priority(-1)).await;
    let claimed = worker.claim(10).await;
    let result = |text| Outcome::Completed { result: Some(Json::parse(text).unwrap()) };
    worker.settle(&claimed[0], result("1")).await;
    worker.settle(&claimed[1], result("2")).await;
    assert_eq!(store.state(parent).await, State::Pending);

    // In its lane it is still before what is more urgent.
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [parent]);
    let task = &claimed[0].task;
    assert_eq!((task.options.step, task.attempt, task.payload.as_str()), (1, 1, "[7]"));
    let page = store.children(Children::of(parent)).await.unwrap();
    let results: Vec<_> = page.iter().map(|child| child.result.as_ref().unwrap().as_str()).collect();
    assert_eq!(results, ["1", "2"]);
    worker.settle(&claimed[0], result("3")).await;

    let view = store.view(parent).await;
    assert_eq!((view.state, view.result.unwrap().as_str()), (State::Completed, "3"));
    assert_eq!(numbers(store, parent).await, [2, 0, 2, 0, 0]);
    assert_eq!(worker.claim(10).await.len(), 1);
}

pub async fn a_step_may_spawn_again_and_its_children_are_the_latest(store: &TestStore) {
    let mut worker = store.worker().await;
    let then = || Spawned { then: true, ..children([a_child()]) };
    let parent = parent_of(store, &mut worker, a_task(), then()).await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;
    let step = worker.claim_one().await;

    assert_eq!(spawn(&mut worker, &step, then()).await, Verdict::Waiting);

    let second = worker.claim_one().await;
    assert_eq!(child_ids(store, parent).await, [second.task.id]);
    worker.complete(&[second]).await;
    let step = worker.claim_one().await;
    assert_eq!((step.task.id, step.task.options.step), (parent, 2));
    worker.complete(&[step]).await;
    assert_eq!(numbers(store, parent).await, [1, 0, 1, 0, 0]);
}

pub async fn a_family_that_ended_badly_has_no_next_step(store: &TestStore) {
    let mut worker = store.worker().await;
    for (policy, state) in [(FamilyPolicy::WaitAll, State::Failed), (FamilyPolicy::Ignore, State::Pending)] {
        let spawned = Spawned { then: true, policy, ..children([a_child()]) };
        let parent = parent_of(store, &mut worker, a_task(), spawned).await;
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, failed()).await;
        assert_eq!(store.state(parent).await, state);
    }
}

pub async fn a_step_that_fails_is_tried_again(store: &TestStore) {
    let mut worker = store.worker().await;
    let spawned = Spawned { then: true, ..children([a_child()]) };
    let parent = parent_of(store, &mut worker, a_task().max_attempts(2), spawned).await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    let step = worker.claim_one().await;
    assert_eq!(worker.settle(&step, retry_after(secs(0))).await, Verdict::Later);
    let step = worker.claim_one().await;
    assert_eq!((step.task.attempt, step.task.options.step), (2, 1));
    assert_eq!(worker.settle(&step, retry_after(secs(0))).await, Verdict::Failed);

    assert_eq!(error(store, parent).await, "did not work");
    assert_eq!(numbers(store, parent).await, [1, 0, 1, 0, 0]);
}

pub async fn cancelling_a_parent_reaches_all_open_descendants(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().priority(-2), a_child().priority(-1), a_child().delay(secs(60)), a_child()];
    let top = parent_of(store, &mut worker, a_task(), children(tasks)).await;
    let inner = worker.claim_one().await;
    spawn(&mut worker, &inner, children([a_child().priority(5)])).await;
    let running = worker.claim(1).await;

    assert_eq!(store.cancel(top).await.unwrap(), Cancel::Requested);

    assert!(store.view(top).await.cancel_requested);
    assert_eq!(numbers(store, top).await, [4, 1, 0, 0, 3]);
    assert_eq!(store.state(inner.task.id).await, State::Cancelled);
    assert_eq!(worker.orders(&running).await.cancel, [running[0].task.id]);
    assert_eq!(store.cancel(top).await.unwrap(), Cancel::Requested);
    // An attempt that ends first stands; its parent is cancelled all the same.
    worker.complete(&running).await;
    assert_eq!((store.state(top).await, error(store, top).await.as_str()), (State::Cancelled, "cancelled"));
    assert_eq!(store.cancel(top).await.unwrap(), Cancel::Ended(State::Cancelled));
}

pub async fn a_parent_of_which_no_child_runs_is_cancelled_at_once(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task().lane("a"), children([a_child(), a_child()])).await;
    let other = parent_of(store, &mut worker, a_task().priority(-1), children([a_child()])).await;

    assert_eq!(store.cancel(parent).await.unwrap(), Cancel::Cancelled);
    assert_eq!(act(store, Action::Cancel, other).await, Acted::Done);

    assert_eq!((store.state(parent).await, store.state(other).await), (State::Cancelled, State::Cancelled));
    assert!(worker.claim(10).await.is_empty());
    assert_eq!(store.lane_view("a").await.held, 0);
}

pub async fn a_child_that_is_cancelled_or_deleted_counts_as_failed(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child(), a_child()])).await;
    let [first, second] = child_ids(store, parent).await.try_into().unwrap();

    assert_eq!(store.cancel(first).await.unwrap(), Cancel::Cancelled);
    assert_eq!(act(store, Action::Delete, second).await, Acted::Done);

    assert_eq!(store.state(parent).await, State::Failed);
    let expected = format!("2 of 2 children failed: task {first}: cancelled; task {second}: deleted");
    assert_eq!(error(store, parent).await, expected);
    assert_eq!(numbers(store, parent).await, [2, 0, 0, 0, 2]);
}

pub async fn a_waiting_task_is_not_snoozed_deleted_or_moved(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child()])).await;

    for action in [Action::Snooze(secs(5)), Action::Delete, Action::SetPriority(3)] {
        assert_eq!(act(store, action, parent).await, Acted::Skipped(Skip::Waiting), "{action:?}");
    }
    assert_eq!(act(store, Action::Retry, parent).await, Acted::Skipped(Skip::Open));
}

pub async fn a_retried_parent_starts_over_with_a_new_family(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child(), a_child()])).await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;
    worker.complete(&claimed[1..]).await;

    assert_eq!(act(store, Action::Retry, parent).await, Acted::Done);

    assert_eq!(store.family(parent).await.unwrap(), None);
    assert!(child_ids(store, parent).await.is_empty());
    let again = worker.claim_one().await;
    assert_eq!((again.task.id, again.task.attempt, again.task.options.step), (parent, 1, 0));
    spawn(&mut worker, &again, children([a_child()])).await;
    let child = worker.claim(10).await;
    assert_eq!(child_ids(store, parent).await, ids(&child));
    worker.complete(&child).await;
    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(numbers(store, parent).await, [1, 0, 1, 0, 0]);
}

pub async fn the_failed_children_of_a_parent_can_be_retried(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = tasks_like(a_child(), 4);
    let parent = parent_of(store, &mut worker, a_task(), children(tasks)).await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;
    worker.settle(&claimed[1], Outcome::Cancelled { reason: None }).await;
    worker.complete(&claimed[2..]).await;

    assert_eq!(act(store, Action::RetryChildren, parent).await, Acted::Done);

    let again = worker.claim_one().await;
    assert!(again.task.id == parent && again.task.options.resume);
    let resume = Spawned { again: true, ..Default::default() };
    assert_eq!(spawn(&mut worker, &again, resume).await, Verdict::Waiting);
    assert_eq!(numbers(store, parent).await, [4, 2, 2, 0, 0]);
    let retried = worker.claim(10).await;
    assert_eq!(ids(&retried), [claimed[0].task.id, claimed[1].task.id]);
    worker.complete(&retried).await;
    assert_eq!(store.state(parent).await, State::Completed);
    assert!(!store.view(parent).await.options.resume);
}

pub async fn children_that_failed_because_of_theirs_are_retried_in_the_same_way(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = parent_of(store, &mut worker, a_task(), children([a_child()])).await;
    let child = worker.claim_one().await;
    spawn(&mut worker, &child, children([a_child(), a_child()])).await;
    let inner = worker.claim(10).await;
    worker.complete(&inner[..1]).await;
    worker.settle(&inner[1], failed()).await;
    act(store, Action::RetryChildren, top).await;

    for expected in [top, child.task.id] {
        let again = worker.claim_one().await;
        assert!(again.task.id == expected && again.task.options.resume);
        spawn(&mut worker, &again, Spawned { again: true, ..Default::default() }).await;
    }
    let retried = worker.claim(10).await;
    assert_eq!(ids(&retried), [inner[1].task.id]);
    worker.complete(&retried).await;

    assert_eq!(store.state(top).await, State::Completed);
}

pub async fn a_task_without_failed_children_has_none_to_retry(store: &TestStore) {
    let mut worker = store.worker().await;
    let [single, done] = store.given([a_task(), a_task()]).await;
    let claimed = worker.claim(2).await;
    worker.settle(&claimed[0], failed()).await;
    worker.complete(&claimed[1..]).await;

    assert_eq!(act(store, Action::RetryChildren, single).await, Acted::Skipped(Skip::NoFailedChildren));
    let ended = Acted::Skipped(Skip::Ended(State::Completed));
    assert_eq!(act(store, Action::RetryChildren, done).await, ended);
    assert_eq!(store.state(single).await, State::Failed);
}

pub async fn a_child_that_is_retried_alone_is_open_again_for_its_parent(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child(), a_child()])).await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;

    assert_eq!(act(store, Action::Retry, claimed[0].task.id).await, Acted::Done);

    assert_eq!(numbers(store, parent).await, [2, 2, 0, 0, 0]);
    worker.complete(&claimed[1..]).await;
    let again = worker.claim(10).await;
    worker.complete(&again).await;
    assert_eq!(store.state(parent).await, State::Completed);
}

pub async fn a_child_that_is_retried_in_a_family_that_is_stopped_is_cancelled(store: &TestStore) {
    let mut worker = store.worker().await;
    let both = Spawned { policy: FamilyPolicy::FailFast, ..children([a_child(), a_child()]) };
    let parent = parent_of(store, &mut worker, a_task(), both).await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;

    assert_eq!(act(store, Action::Retry, claimed[0].task.id).await, Acted::Done);

    assert_eq!(store.state(claimed[0].task.id).await, State::Cancelled);
    worker.complete(&claimed[1..]).await;
    assert_eq!(store.state(parent).await, State::Failed);
    assert_eq!(numbers(store, parent).await, [2, 0, 1, 0, 1]);
}

/// A parent that has failed, and its children, which have, too.
async fn failed_family(store: &TestStore, worker: &mut TestWorker, size: usize) -> (TaskId, Vec<TaskId>) {
    let parent = parent_of(store, worker, a_task(), children(tasks_like(a_child(), size))).await;
    let claimed = worker.claim(10).await;
    for claimed in &claimed {
        worker.settle(claimed, failed()).await;
    }
    assert_eq!(store.state(parent).await, State::Failed);
    (parent, ids(&claimed))
}

pub async fn a_parent_waits_for_a_child_that_is_retried_with_it(store: &TestStore) {
    let mut worker = store.worker().await;
    for ends_first in [true, false] {
        let (parent, former) = failed_family(store, &mut worker, 2).await;
        let acted = store.act(&ann(), Action::Retry, &[parent, former[0]]).await.expect("an action");
        assert_eq!(acted, [Acted::Done, Acted::Done]);
        let claimed = worker.claim(10).await;
        assert_eq!(ids(&claimed), [parent, former[0]]);

        if ends_first {
            worker.complete(&claimed[1..]).await;
            assert_eq!(spawn(&mut worker, &claimed[0], children([a_child()])).await, Verdict::Waiting);
        } else {
            assert_eq!(spawn(&mut worker, &claimed[0], children([a_child()])).await, Verdict::Waiting);
            assert_eq!(numbers(store, parent).await, [2, 2, 0, 0, 0]);
            store.check().await;
            worker.complete(&claimed[1..]).await;
        }

        assert_eq!(store.state(parent).await, State::Waiting);
        assert_eq!(family(store, parent).await.open, 1);
        store.check().await;
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), 1);
        worker.complete(&claimed).await;
        assert_eq!(store.state(parent).await, State::Completed);
    }
}

pub async fn a_child_of_a_former_family_joins_the_one_that_its_parent_waits_for(store: &TestStore) {
    let mut worker = store.worker().await;
    let (parent, former) = failed_family(store, &mut worker, 3).await;
    act(store, Action::Retry, parent).await;
    let again = worker.claim_one().await;
    spawn(&mut worker, &again, children([a_child(), a_child()])).await;
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;

    assert_eq!(act(store, Action::Retry, former[1]).await, Acted::Done);

    // Its own failure was never one of this family, so there is one left.
    assert_eq!(numbers(store, parent).await, [3, 2, 0, 1, 0]);
    assert_eq!(child_ids(store, parent).await, [former[1], claimed[0].task.id, claimed[1].task.id]);
    store.check().await;
    worker.complete(&claimed[1..]).await;
    let joined = worker.claim_one().await;
    worker.settle(&joined, failed()).await;
    assert_eq!(numbers(store, parent).await, [3, 0, 1, 2, 0]);
    assert_eq!(store.state(parent).await, State::Failed);

    // And a cancel reaches it.
    act(store, Action::Retry, parent).await;
    let again = worker.claim_one().await;
    spawn(&mut worker, &again, children([a_child()])).await;
    act(store, Action::Retry, former[1]).await;
    assert_eq!(store.cancel(parent).await.unwrap(), Cancel::Cancelled);
    assert_eq!(store.state(former[1]).await, State::Cancelled);
}

pub async fn a_parent_that_waits_again_waits_for_what_was_retried_before(store: &TestStore) {
    let mut worker = store.worker().await;
    let (parent, retried) = failed_family(store, &mut worker, 3).await;
    for child in &retried[..2] {
        assert_eq!(act(store, Action::Retry, *child).await, Acted::Done);
    }
    let mut claimed = worker.claim(10).await;
    let running = claimed.pop().expect("two");
    // It ends with its parent: nobody waits for it then.
    worker.complete(&claimed).await;

    assert_eq!(act(store, Action::RetryChildren, parent).await, Acted::Done);
    let again = worker.claim_one().await;
    let resume = Spawned { again: true, ..Default::default() };
    assert_eq!(spawn(&mut worker, &again, resume).await, Verdict::Waiting);

    assert_eq!(numbers(store, parent).await, [2, 2, 0, 0, 0]);
    store.check().await;
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), retried[2..]);
    worker.complete(&claimed).await;
    assert_eq!(store.state(parent).await, State::Waiting);
    worker.complete(&[running]).await;
    assert_eq!(store.state(parent).await, State::Completed);
}

pub async fn the_children_of_dead_workers_come_back_and_poison_counts_as_failed(store: &TestStore) {
    let mut survivor = store.worker().await;
    let parent = parent_of(store, &mut survivor, a_task(), children([a_child()])).await;
    for _ in 0..3 {
        let mut worker = store.worker().await;
        assert_eq!(worker.claim(10).await.len(), 1);
        assert_eq!(store.state(parent).await, State::Waiting);
        store.sweep_all_but(&mut [&mut survivor]).await;
    }

    assert_eq!(store.state(parent).await, State::Failed);
    assert_eq!(numbers(store, parent).await, [1, 0, 0, 1, 0]);
}

pub async fn children_are_read_page_by_page_with_results_and_errors(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children(tasks_like(a_child(), 5))).await;
    let claimed = worker.claim(4).await;
    worker.complete(&claimed[..1]).await;
    let result = Some(Json::parse("[1]").unwrap());
    worker.settle(&claimed[1], Outcome::Completed { result }).await;
    worker.settle(&claimed[2], failed()).await;
    store.given_one(a_task()).await;

    let first = store.children(Children { limit: 3, ..Children::of(parent) }).await.unwrap();
    let after = Some(first[2].id);
    let rest = store.children(Children { limit: 3, after, ..Children::of(parent) }).await.unwrap();

    let states: Vec<_> = first.iter().chain(&rest).map(|child| child.state).collect();
    let expected = [State::Completed, State::Completed, State::Failed, State::Leased, State::Pending];
    assert_eq!(states, expected);
    // A plain success is known to be a child, too.
    assert!(first.iter().all(|child| child.parent == Some(parent) && child.depth == 1));
    assert_eq!(first[1].result.as_ref().unwrap().as_str(), "[1]");
    assert_eq!(first[2].error.as_deref(), Some("never works"));
    assert_eq!(store.children(Children::of(TaskId(999_999))).await.unwrap(), []);
    let refused = refusal(store.children(Children { limit: 501, ..Children::of(parent) }).await);
    assert_eq!(refused.code, Code::OutOfRange);
}

pub async fn waiting_tasks_are_counted_listed_and_explained(store: &TestStore) {
    let mut worker = store.worker().await;
    let tasks = [a_child().priority(-1), a_child(), a_child().delay(secs(9))];
    let parent = parent_of(store, &mut worker, a_task().kind("split"), children(tasks)).await;
    let claimed = worker.claim(1).await;
    worker.settle(&claimed[0], failed()).await;

    let counts = store.counts().await.unwrap();
    assert!(counts.iter().any(|count| count.state == State::Waiting && count.tasks == 1));
    let kinds = store.counts_by_kind(&queue("default")).await.unwrap();
    assert!(kinds.iter().any(|count| count.state == State::Waiting && count.kind == kind("split")));
    let listing = Listing::of(Place::Waiting).filter("kind:split".parse().unwrap());
    let page = store.list(listing).await.unwrap();
    assert_eq!(page.tasks, [store.view(parent).await]);
    assert_eq!(page.tasks[0].family.as_ref().unwrap().open, 2);
    let [_, second, third] = child_ids(store, parent).await.try_into().unwrap();
    let children =
        [(second, State::Pending), (third, State::Later)].map(|(task, state)| OpenChild { task, state });
    let why = store.why(parent).await.unwrap().unwrap();
    assert_eq!(why.reasons, [Reason::Waiting { open: 2, failed: 1, children: children.into() }]);
}

pub async fn a_filter_by_lane_finds_children_in_theirs(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child().lane("a"), a_child()])).await;
    let top = store.given_one(a_task().lane("a")).await;

    let listing = Listing::of(Place::Pending).filter("lane:a".parse().unwrap());
    let found: Vec<_> = store.list(listing).await.unwrap().tasks.iter().map(|task| task.id).collect();

    assert_eq!(found, [child_ids(store, parent).await[0], top]);
}

pub async fn the_key_of_a_parent_is_held_until_its_family_has_ended(store: &TestStore) {
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task().unique("k"), children([a_child()])).await;
    let second = store.enqueue(a_task().unique("k").into()).await.unwrap();
    assert_eq!((second.id, second.is_new()), (parent, false));

    let child = worker.claim(1).await;
    worker.complete(&child).await;

    assert!(store.enqueue(a_task().unique("k").into()).await.unwrap().is_new());
}

pub async fn a_family_of_thousands_ends_once(store: &TestStore) {
    const MANY: usize = 3_000;
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children(tasks_like(a_child(), MANY))).await;

    let mut ended = 0;
    while ended < MANY {
        assert_eq!(store.state(parent).await, State::Waiting);
        let claimed = worker.claim(1_000).await;
        ended += claimed.len();
        worker.complete(&claimed).await;
    }

    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(numbers(store, parent).await, [MANY as u64, 0, MANY as u64, 0, 0]);
}

/// A store may write large families in another way; they obey the same rules.
pub async fn the_tasks_of_a_large_family_have_lanes_times_and_large_payloads(store: &TestStore) {
    const MANY: usize = 2_500;
    let mut worker = store.worker().await;
    let large = format!("[\"{}\"]", "x".repeat(5_000));
    let some = [
        a_child().lane("a").priority(-2),
        a_child().lane("a").priority(-2),
        a_child().lane_of("b", 2).priority(-2),
        a_child().lane("b").priority(-2),
        a_child().payload(&large).priority(-1),
        a_child().delay(secs(60)),
        a_child().lane("c").delay(secs(60)),
    ];
    let mut spawned = children(some.into_iter().chain(tasks_like(a_child(), MANY)));
    let follow_up = a_task().kind("after").unique("once").into();
    spawned.follow_ups = vec![FollowUp { task: follow_up, on_failure: FollowUpOnFailure::Drop }];
    let total = spawned.children.len();

    let parent = parent_of(store, &mut worker, a_task().lane("a"), spawned).await;

    assert_eq!(numbers(store, parent).await, [total as u64, total as u64, 0, 0, 0]);
    let first = worker.claim(4).await;
    let keys: Vec<_> = first.iter().map(|one| one.task.lane.as_ref().map_or("-", LaneKey::as_str)).collect();
    assert_eq!(keys, ["a", "b", "b", "-"], "its parent holds the turn of the other lane `a`");
    assert!(first.iter().all(|one| one.task.parent == Some(parent) && one.task.depth == 1));
    assert_eq!(first[3].task.payload.as_str(), large);
    worker.complete(&first).await;
    store.advance_clock(secs(61)).await;
    worker.stay_alive().await;
    let mut ended = first.len();
    while ended < total {
        let claimed = worker.claim(1_000).await;
        assert!(!claimed.is_empty(), "{ended} of {total} have ended");
        assert!(claimed.iter().all(|one| one.task.kind.as_str() == "child"));
        ended += claimed.len();
        worker.complete(&claimed).await;
    }
    assert_eq!(store.state(parent).await, State::Completed);
    assert_eq!(worker.claim_one().await.task.kind.as_str(), "after");
}

pub async fn a_large_family_of_an_attempt_that_does_not_count_is_not_stored(store: &TestStore) {
    let many = || children(tasks_like(a_child(), 2_500));
    let mut worker = store.worker().await;
    store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    let settle = claimed.settle(Outcome::completed()).spawning(many());
    let lease = LeaseRef { token: LeaseToken(uuid::Uuid::new_v4()), ..claimed.lease };

    assert_eq!(worker.settle_all(vec![Settle { lease, ..settle.clone() }]).await, [Verdict::Stale]);
    store.cancel(claimed.task.id).await.unwrap();
    assert_eq!(
        worker.settle_all(vec![settle.clone(), settle.clone()]).await,
        [Verdict::Cancelled, Verdict::Already]
    );
    assert_eq!(store.total().await, 1);

    let parent = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;
    let settle = claimed.settle(Outcome::completed()).spawning(many());
    let twice = worker.settle_all(vec![settle.clone(), settle]).await;
    assert_eq!(twice, [Verdict::Waiting, Verdict::Already]);
    assert_eq!(worker.advance_again().await.settled[0].verdict, Verdict::Already);
    assert_eq!(numbers(store, parent).await, [2_500, 2_500, 0, 0, 0]);
}

pub async fn two_workers_end_a_family_together(store: &TestStore) {
    let (mut one, mut two) = (store.worker().await, store.worker().await);
    for _ in 0..10 {
        let parent = parent_of(store, &mut one, a_task(), children([a_child(), a_child()])).await;
        let (first, second) = (one.claim(1).await, two.claim(1).await);
        tokio::join!(one.complete(&first), two.complete(&second));
        // Whoever came first may have left the counting to the next.
        one.claim(0).await;
        assert_eq!(store.state(parent).await, State::Completed);
    }
}

pub async fn a_tree_shows_what_is_open_or_failed_and_counts_the_rest(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = parent_of(store, &mut worker, a_task(), children(tasks_like(a_child(), 6))).await;
    let claimed = worker.claim(6).await;
    spawn(&mut worker, &claimed[5], children([a_child()])).await;
    worker.settle(&claimed[4], failed()).await;
    worker.complete(&claimed[..4]).await;

    let tree = store.tree(top, 5).await.unwrap().unwrap();

    let shown: Vec<_> = tree.children.iter().map(|child| child.task.id).collect();
    let expected: Vec<_> = [4, 5, 0, 1].map(|n: usize| claimed[n].task.id).into();
    assert_eq!((tree.task.id, shown), (top, expected));
    assert_eq!(tree.rest, Rest { completed: 2, ..Rest::default() });
    assert_eq!(tree.rows(), 5);
    let whole = store.tree(top, 100).await.unwrap().unwrap();
    assert_eq!((whole.rows(), whole.children[1].children.len(), whole.rest), (8, 1, Rest::default()));
    assert_eq!(store.tree(TaskId(999_999), 5).await.unwrap(), None);
    assert_eq!(refusal(store.tree(top, 0).await).code, Code::OutOfRange);
}

pub async fn the_life_of_a_family_is_told_to_watchers(store: &TestStore) {
    let watch = store.watch(secs(60)).await.unwrap();
    until("the watch is ready", async || store.fence_passed(watch.fence).await.unwrap()).await;
    let mut worker = store.worker().await;
    let parent = parent_of(store, &mut worker, a_task(), children([a_child()])).await;
    let child = worker.claim(1).await;
    worker.complete(&child).await;

    let of_parent = async || -> Vec<_> {
        let changes = store.changes(watch.watcher, watch.position, 500).await.unwrap().changes;
        let told = changes.iter().filter(|change| change.tasks.iter().any(|(task, _)| *task == parent));
        told.map(|change| change.state).collect()
    };
    // Changes are told once every transaction that began before them has ended, in whatever database of the server.
    until("the end of the parent is told", async || of_parent().await.last() == Some(&State::Completed))
        .await;
    assert_eq!(of_parent().await, [State::Pending, State::Leased, State::Waiting, State::Completed]);
}

pub async fn settling_with_nothing_spawned_is_an_ordinary_end(store: &TestStore) {
    let mut worker = store.worker().await;
    let id = store.given_one(a_task()).await;
    let claimed = worker.claim_one().await;

    assert_eq!(spawn(&mut worker, &claimed, children(NO_TASKS)).await, Verdict::Completed);

    let view = store.view(id).await;
    assert_eq!((view.state, view.family, view.payload), (State::Completed, None, None));
}
