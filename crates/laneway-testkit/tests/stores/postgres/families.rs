//! Families on PostgreSQL: races that are driven step by step, and handlers in the database.
//!
//! Transactions are left open at the moment that matters, while others do what they would do then. No parent may end early, twice
//! or never; what one step could not reach, one sweep does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::support::{Fixture, check_families, fixture, whole_message};
use laneway_core::{
    Acted, Action, Actor, ActorName, Cancel, Children, Claimed, FamilyPolicy, FollowUp, FollowUpOnFailure,
    Keep, Kinds, NewTask, Outcome, QueueName, QueueSettings, Serial, Settle, Skip, Spawned, State, Store,
    TaskId, Verdict,
};
use laneway_testkit::store::{ATask, a_task, soon, tasks_like, until};
use laneway_testkit::worker::{TestWorker, failed, ids};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// A worker's step as plain SQL, so that it can be left uncommitted: settles one task, which may add a sibling or spawn children.
const STEP: &str = "
create function public.step(
    p_session uuid, p_number bigint, p_lease bigint, p_token uuid, p_task bigint, p_children int, p_siblings int
) returns text language sql volatile as $$
    select a.verdicts[1]
    from laneway.advance(
        p_session, p_number, false, array[p_lease], array[p_token], array[p_task], array['completed'], array[0],
        array[null]::text[], array[null]::text[], '{}', '{}', '{}', '{}', '{}', null,
        row(array['wait_all'], array[p_children], array[p_siblings], null, null, 8, null,
            array_fill(1, array[p_children + p_siblings]),
            array_fill('child'::text, array[p_children]) || array_fill('sibling'::text, array[p_siblings]),
            array_fill('child'::text, array[p_children + p_siblings]), array_fill('{}'::text, array[p_children + p_siblings]),
            array_fill('default'::text, array[p_children + p_siblings]), array_fill(0, array[p_children + p_siblings]),
            array_fill(25, array[p_children + p_siblings]), null, null, null, null, null, null)::laneway.spawn
    ) a
    where a.verdicts is not null
$$;";

async fn scene() -> Fixture {
    let fixture = fixture().await;
    fixture.connect().await.batch_execute(STEP).await.unwrap();
    fixture
}

/// A connection with an open transaction.
async fn begin(fixture: &Fixture) -> Client {
    let client = fixture.connect().await;
    client.batch_execute("begin").await.unwrap();
    client
}

/// Settles a task as completed in an open transaction.
async fn settle(
    client: &Client,
    worker: &TestWorker,
    claimed: &Claimed,
    children: i32,
    siblings: i32,
) -> String {
    let number = worker.advance_number() as i64 + 1;
    let (lease, token, task) = (claimed.lease.id.0, claimed.lease.token.0, claimed.task.id.0);
    let call = "select public.step($1, $2, $3, $4, $5, $6, $7)";
    let session = worker.session().0;
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&session, &number, &lease, &token, &task, &children, &siblings];
    soon("a step waits for nobody", client.query_one(call, &parameters)).await.unwrap().get(0)
}

async fn run(client: &Client, sql: &str) {
    soon("a statement", client.batch_execute(sql)).await.unwrap();
}

fn children(tasks: Vec<ATask>) -> Spawned {
    Spawned { children: tasks.into_iter().map(NewTask::from).collect(), ..Default::default() }
}

/// A waiting parent, and its children, each claimed by a worker of its own.
async fn family<const N: usize>(
    fixture: &Fixture,
    policy: FamilyPolicy,
) -> (TaskId, [(TestWorker, Claimed); N]) {
    let mut worker = fixture.worker().await;
    let parent = fixture.given(a_task()).await;
    let claimed = worker.claim_one().await;
    let spawned = Spawned { policy, ..children(tasks_like(a_task(), N)) };
    let settle = claimed.settle(Outcome::completed()).spawning(spawned);
    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    let mut claims = vec![];
    for _ in 0..N {
        let mut worker = fixture.worker().await;
        let claimed = worker.claim_one().await;
        claims.push((worker, claimed));
    }
    (parent, claims.try_into().unwrap_or_else(|_| unreachable!("there are as many")))
}

async fn is_claimable(fixture: &Fixture) -> bool {
    fixture.store.is_claimable(&[QueueName::default()], &Kinds::All).await.unwrap()
}

#[tokio::test]
async fn the_last_two_children_end_together() {
    let scene = scene().await;
    let (parent, [(one, first), (two, second)]) = family(&scene, FamilyPolicy::WaitAll).await;

    // Both have settled before either commits: the second finds the parent locked, and leaves its tally.
    let (left, right) = (begin(&scene).await, begin(&scene).await);
    settle(&left, &one, &first, 0, 0).await;
    settle(&right, &two, &second, 0, 0).await;
    run(&right, "commit").await;
    run(&left, "commit").await;

    assert_eq!(scene.state(parent).await, Some(State::Waiting));
    assert!(is_claimable(&scene).await, "nobody may sleep while there is something to count");
    scene.worker().await.claim(1).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

#[tokio::test]
async fn one_sweep_ends_a_parent_whose_tallies_were_left() {
    let scene = scene().await;
    let (parent, [(one, first), (two, second)]) = family(&scene, FamilyPolicy::WaitAll).await;
    let (left, right) = (begin(&scene).await, begin(&scene).await);
    settle(&left, &one, &first, 0, 0).await;
    settle(&right, &two, &second, 0, 0).await;
    run(&left, "commit").await;
    run(&right, "commit").await;

    scene.store.sweep().await.unwrap();

    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

#[tokio::test]
async fn a_sibling_is_added_while_the_last_other_child_ends() {
    let scene = scene().await;
    let (parent, [(one, first), (mut two, second)]) = family(&scene, FamilyPolicy::WaitAll).await;

    let adding = begin(&scene).await;
    settle(&adding, &one, &first, 0, 1).await;
    two.complete(&[second]).await; // the only child that anybody else can see
    assert_eq!(scene.state(parent).await, Some(State::Waiting));
    run(&adding, "commit").await;
    scene.store.sweep().await.unwrap();

    assert_eq!(scene.state(parent).await, Some(State::Waiting), "the sibling is open");
    let sibling = two.claim(1).await;
    two.complete(&sibling).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    assert_eq!(scene.store.family(parent).await.unwrap().unwrap().total, 3);
    scene.check().await;
}

#[tokio::test]
async fn a_fan_out_that_was_not_committed_has_not_happened() {
    let scene = scene().await;
    let mut worker = scene.worker().await;
    let parent = scene.given(a_task()).await;
    let claimed = worker.claim_one().await;

    let dying = begin(&scene).await;
    assert_eq!(settle(&dying, &worker, &claimed, 100, 0).await, "waiting");
    drop(dying);
    scene.silence(&worker).await;
    soon("the lease comes back", async { while scene.store.sweep().await.unwrap().given_back == 0 {} }).await;

    let mut other = scene.worker().await;
    let claimed = other.claim_one().await;
    assert_eq!((claimed.task.id, claimed.task.crashes), (parent, 1));
    let settle = claimed.settle(Outcome::completed()).spawning(children(tasks_like(a_task(), 2)));
    assert_eq!(other.settle_all(vec![settle]).await, [Verdict::Waiting]);
    assert_eq!(scene.total().await, 3, "nothing is spawned twice");
    scene.check().await;
}

#[tokio::test]
async fn a_fan_in_that_was_not_committed_is_made_good() {
    let scene = scene().await;
    let (parent, [(one, first)]) = family(&scene, FamilyPolicy::WaitAll).await;

    let dying = begin(&scene).await;
    settle(&dying, &one, &first, 0, 0).await; // has ended the parent, but for the commit
    drop(dying);
    soon("the parent is free again", async {
        while scene.value::<i64>("select count(*) from pg_locks where locktype = 'transactionid'").await > 0 {
        }
    })
    .await;

    assert_eq!(scene.state(parent).await, Some(State::Waiting));
    let mut one = one;
    one.complete(&[first]).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

#[tokio::test]
async fn a_cancel_meets_the_end_of_the_last_child() {
    let scene = scene().await;
    let (parent, [(one, first)]) = family(&scene, FamilyPolicy::WaitAll).await;

    // The child was first: the parent has completed when the cancel gets hold of it.
    let ending = begin(&scene).await;
    settle(&ending, &one, &first, 0, 0).await;
    let store = scene.store.clone();
    let cancelling = tokio::spawn(async move { store.cancel(parent).await.unwrap() });
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    soon("the cancel waits", async { while !scene.value::<bool>(waits).await {} }).await;
    run(&ending, "commit").await;
    assert_eq!(soon("the cancel", cancelling).await.unwrap(), Cancel::Ended(State::Completed));

    // The cancel was first: the child's end counts, and the parent ends as cancelled.
    let (parent, [(mut one, first)]) = family(&scene, FamilyPolicy::WaitAll).await;
    let cancelling = begin(&scene).await;
    cancelling.execute("select laneway.cancel($1)", &[&parent.0]).await.unwrap();
    run(&cancelling, "commit").await;
    assert_eq!(one.orders(std::slice::from_ref(&first)).await.cancel, [first.task.id]);
    one.complete(&[first]).await;
    assert_eq!(scene.state(parent).await, Some(State::Cancelled));
    scene.check().await;
}

#[tokio::test]
async fn what_a_failing_family_could_not_reach_is_told_by_the_next_sweep() {
    let scene = scene().await;
    let (parent, [(mut one, first), (mut two, second)]) = family(&scene, FamilyPolicy::FailFast).await;
    let held = begin(&scene).await;
    held.execute("select from laneway.lease where id = $1 for update", &[&second.lease.id.0]).await.unwrap();

    soon("nobody waits for a lease of others", one.settle(&first, failed())).await;
    assert!(two.orders(std::slice::from_ref(&second)).await.cancel.is_empty());
    run(&held, "rollback").await;
    scene.store.sweep().await.unwrap();

    assert_eq!(two.orders(std::slice::from_ref(&second)).await.cancel, [second.task.id]);
    two.settle(&second, Outcome::Cancelled { reason: None }).await;
    assert_eq!(scene.state(parent).await, Some(State::Failed));
    scene.check().await;
}

/// A parent that has failed, and its two children because of which it has.
async fn failed_family(fixture: &Fixture) -> (TaskId, [TaskId; 2]) {
    let (parent, claims) = family::<2>(fixture, FamilyPolicy::WaitAll).await;
    let children = [claims[0].1.task.id, claims[1].1.task.id];
    for (mut worker, claimed) in claims {
        worker.settle(&claimed, failed()).await;
    }
    assert_eq!(fixture.state(parent).await, Some(State::Failed));
    (parent, children)
}

async fn act(fixture: &Fixture, action: Action, task: TaskId) -> Acted {
    fixture.store.act(&Actor::program(), action, &[task]).await.unwrap()[0]
}

/// The next attempt of a parent whose children are asked again, and what its worker says then.
async fn resumed(fixture: &Fixture, parent: TaskId) -> (TestWorker, Settle) {
    let mut worker = fixture.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, parent);
    let again = Spawned { again: true, ..Default::default() };
    (worker, claimed.settle(Outcome::completed()).spawning(again))
}

/// `child` is all that is left to run, and its end is that of its parent.
async fn last_child_completes(fixture: &Fixture, worker: &mut TestWorker, child: TaskId, parent: TaskId) {
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, child);
    worker.settle(&claimed, Outcome::completed()).await;
    assert_eq!(fixture.state(parent).await, Some(State::Completed));
    fixture.check().await;
}

#[tokio::test]
async fn a_parent_that_waits_again_is_told_by_a_child_that_is_just_ending() {
    let scene = scene().await;
    let (parent, [first, second]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    let ending = begin(&scene).await;
    let settle = format!(
        "select laneway.settle('{}', {}, '{}', {first}, 'completed')",
        worker.session().0,
        claimed.lease.id.0,
        claimed.lease.token.0
    );
    run(&ending, &settle).await;

    // The parent still sees it run.
    assert_eq!(act(&scene, Action::RetryChildren, parent).await, Acted::Done);
    let (mut worker, settle) = resumed(&scene, parent).await;
    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    assert_eq!(open_and_total(&scene, parent).await, [2, 2]);
    run(&ending, "commit").await;

    scene.store.sweep().await.unwrap();
    assert_eq!(open_and_total(&scene, parent).await, [1, 2]);
    last_child_completes(&scene, &mut worker, second, parent).await;
}

#[tokio::test]
async fn a_parent_does_not_start_anew_while_what_a_child_tells_it_is_dropped() {
    let scene = scene().await;
    let (parent, [first, second]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    // It finds that nobody waits to be told.
    let ending = begin(&scene).await;
    assert_eq!(settle(&ending, &worker, &claimed, 0, 0).await, "completed");

    // The parent would still see it run, and wait to be told.
    assert_eq!(act(&scene, Action::RetryChildren, parent).await, Acted::Skipped(Skip::Busy));
    run(&ending, "commit").await;

    assert_eq!(act(&scene, Action::RetryChildren, parent).await, Acted::Done);
    let (mut worker, settle) = resumed(&scene, parent).await;
    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Waiting]);
    last_child_completes(&scene, &mut worker, second, parent).await;
}

#[tokio::test]
async fn what_a_forgotten_child_tells_is_not_kept() {
    let scene = scene().await;
    let mut worker = scene.worker().await;
    for outcome in [failed(), Outcome::completed()] {
        let (parent, [first, _]) = failed_family(&scene).await;
        // The parent starts over and ends without children: as a success it leaves no more than its place in an array.
        assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, outcome).await;
        assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
        let claimed = worker.claim_one().await;
        assert_eq!(claimed.task.id, first);

        worker.settle(&claimed, Outcome::completed()).await;

        assert_eq!(scene.value::<i64>("select count(*) from laneway.tally").await, 0);
        scene.check().await;
    }
}

#[tokio::test]
async fn a_parent_that_waits_again_waits_for_a_child_that_is_just_being_retried() {
    let scene = scene().await;
    let (parent, [first, _]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::RetryChildren, parent).await, Acted::Done);
    let (mut worker, settle) = resumed(&scene, parent).await;
    let retrying = retry_and_hold(&scene, first).await;

    let waiting = tokio::spawn(async move { (worker.settle_all(vec![settle]).await, worker) });
    scene.until_somebody_waits().await;
    run(&retrying, "commit").await;

    let (verdicts, mut worker) = waiting.await.unwrap();
    assert_eq!(verdicts, [Verdict::Waiting]);
    scene.check().await;
    for state in [State::Waiting, State::Completed] {
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, Outcome::completed()).await;
        assert_eq!(scene.state(parent).await, Some(state));
    }
    scene.check().await;
}

async fn retry_and_hold(fixture: &Fixture, task: TaskId) -> Client {
    let retrying = begin(fixture).await;
    run(&retrying, &format!("set local search_path to laneway; select retry_task({task}, false, true)"))
        .await;
    retrying
}

async fn open_and_total(fixture: &Fixture, parent: TaskId) -> [u64; 2] {
    let family = fixture.store.family(parent).await.unwrap().unwrap();
    [family.open, family.total]
}

#[tokio::test]
async fn a_child_that_is_just_being_retried_joins_the_new_family_of_its_parent() {
    let scene = scene().await;
    let (parent, [first, _]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    let retrying = retry_and_hold(&scene, first).await;

    // The parent cannot see it, and does not wait for whoever retries it.
    let spawning = claimed.settle(Outcome::completed()).spawning(children(vec![a_task()]));
    assert_eq!(soon("a settle", worker.settle_all(vec![spawning])).await, [Verdict::Waiting]);
    assert_eq!(open_and_total(&scene, parent).await, [1, 1]);
    run(&retrying, "commit").await;

    assert_eq!(open_and_total(&scene, parent).await, [2, 2]);
    scene.check().await;
    for state in [State::Waiting, State::Completed] {
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, Outcome::completed()).await;
        assert_eq!(scene.state(parent).await, Some(state));
    }
    scene.check().await;
}

#[tokio::test]
async fn a_parent_stays_where_it_is_while_a_child_of_it_is_retried() {
    // Ended.
    let scene = scene().await;
    let (parent, [first, second]) = failed_family(&scene).await;
    let retrying = retry_and_hold(&scene, first).await;
    for action in [Action::Retry, Action::RetryChildren] {
        assert_eq!(act(&scene, action, parent).await, Acted::Skipped(Skip::Busy));
    }
    run(&retrying, "rollback").await;

    // Pending.
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    let retrying = retry_and_hold(&scene, first).await;
    let mut worker = scene.worker().await;
    assert!(worker.claim(10).await.is_empty());
    run(&retrying, "rollback").await;

    // Waiting: its only open child ends, and the other one is its child again.
    let claimed = worker.claim_one().await;
    let spawning = claimed.settle(Outcome::completed()).spawning(children(vec![a_task(), a_task()]));
    assert_eq!(worker.settle_all(vec![spawning]).await, [Verdict::Waiting]);
    let claimed = worker.claim(10).await;
    worker.settle(&claimed[0], failed()).await;
    let retrying = retry_and_hold(&scene, claimed[0].task.id).await;
    soon("a settle", worker.settle(&claimed[1], Outcome::completed())).await;
    scene.store.sweep().await.unwrap();
    assert_eq!(scene.state(parent).await, Some(State::Waiting));
    run(&retrying, "commit").await;
    scene.store.sweep().await.unwrap();
    assert_eq!(open_and_total(&scene, parent).await, [1, 2]);
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::completed()).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    assert_eq!(scene.state(second).await, Some(State::Failed));
    scene.check().await;
}

#[tokio::test]
async fn what_former_children_tell_a_parent_that_runs_keeps_nobody_awake() {
    let scene = scene().await;
    let (parent, [first, _]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    let (mut one, mut two) = (scene.worker().await, scene.worker().await);
    let claimed = one.claim_one().await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    let former = two.claim_one().await;
    two.settle(&former, Outcome::completed()).await;

    let tallies = async || scene.value::<i64>("select count(*) from laneway.tally").await;
    assert!(tallies().await > 0);
    assert!(!is_claimable(&scene).await);

    // It counts for itself, or is not interested.
    one.settle(
        &claimed,
        Outcome::Retry { after: std::time::Duration::from_secs(3600), error: "not yet".into() },
    )
    .await;
    scene.store.sweep().await.unwrap();
    assert_eq!(tallies().await, 0);
    scene.check().await;
}

/// A parent whose settle, which is not committed, has counted a former child as running, and that child, which has failed since. The
/// parent is in one lease with another task, so that the lease stays.
async fn about_to_wait(scene: &Fixture) -> (TaskId, TaskId, Client) {
    let (parent, [first, _]) = failed_family(scene).await;
    assert_eq!(act(scene, Action::Retry, first).await, Acted::Done);
    let (mut one, mut two) = (scene.worker().await, scene.worker().await);
    let running = two.claim_one().await;
    assert_eq!(act(scene, Action::Retry, parent).await, Acted::Done);
    let neighbour = scene.given(a_task()).await;
    let claimed = one.claim(2).await;
    assert_eq!(ids(&claimed), [parent, neighbour]);
    let waiting = begin(scene).await;
    assert_eq!(settle(&waiting, &one, &claimed[0], 1, 0).await, "waiting");
    two.settle(&running, failed()).await;
    (parent, first, waiting)
}

/// Its failure, which the parent is to be told, is taken off, and nothing else is left to do but two children.
async fn check_retried(scene: &Fixture, parent: TaskId) {
    assert_eq!(open_and_total(scene, parent).await, [2, 2]);
    let mut worker = scene.worker().await;
    let claimed = worker.claim(10).await;
    worker.complete(&claimed).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

#[tokio::test]
async fn a_child_is_not_retried_while_its_parent_is_about_to_wait() {
    let scene = scene().await;
    let (parent, first, waiting) = about_to_wait(&scene).await;

    assert_eq!(soon("an answer", act(&scene, Action::Retry, first)).await, Acted::Skipped(Skip::Busy));
    run(&waiting, "commit").await;

    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    check_retried(&scene, parent).await;
}

/// A retry finds its parent in a lease, and then asks whether somebody settles it.
#[tokio::test]
async fn a_child_is_not_retried_as_that_of_a_running_parent_when_this_has_just_begun_to_wait() {
    const HOLD_UP: &str = "
        alter function laneway.is_settled_by_nobody rename to is_settled_by_nobody_then;
        create function laneway.is_settled_by_nobody(p_task bigint, p_lease bigint) returns boolean language plpgsql as $$
        begin
            perform pg_advisory_xact_lock(1);
            return is_settled_by_nobody_then(p_task, p_lease);
        end $$";
    let scene = scene().await;
    let (parent, first, waiting) = about_to_wait(&scene).await;
    let holding_up = begin(&scene).await;
    run(&holding_up, "select pg_advisory_xact_lock(1)").await;
    run(&scene.connect().await, &format!("set search_path to laneway; {HOLD_UP}")).await;

    let store = scene.store.clone();
    let retrying =
        tokio::spawn(async move { store.act(&Actor::program(), Action::Retry, &[first]).await.unwrap() });
    scene.until_somebody_waits().await;
    run(&waiting, "commit").await;
    run(&holding_up, "commit").await;

    assert_eq!(retrying.await.unwrap(), [Acted::Done]);
    check_retried(&scene, parent).await;
}

/// After an outage many children are retried by themselves.
#[tokio::test]
async fn what_many_former_children_tell_holds_up_no_family() {
    let scene = scene().await;
    scene.store.enqueue_many(vec![a_task().queue("idle").into(); 2_500]).await.unwrap();
    let (parent, [(mut worker, claimed)]) = family(&scene, FamilyPolicy::WaitAll).await;
    run(
        &scene.connect().await,
        "insert into laneway.tally (parent_id, delta, completed) select id, -1, 1 from laneway.task",
    )
    .await;

    worker.settle(&claimed, Outcome::completed()).await;

    assert_eq!(scene.state(parent).await, Some(State::Completed));
    for _ in 0..3 {
        scene.store.sweep().await.unwrap();
    }
    assert_eq!(scene.value::<i64>("select count(*) from laneway.tally").await, 0);
}

/// Whoever holds a parent for long, in a transaction of an application, is not waited for: the others would be undone with it.
#[tokio::test]
async fn a_child_whose_parent_is_held_is_busy_and_others_are_retried() {
    let scene = scene().await;
    let (parent, [(mut one, first), _]) = family(&scene, FamilyPolicy::WaitAll).await;
    one.settle(&first, failed()).await;
    let single = scene.given(a_task()).await;
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    let holding = begin(&scene).await;
    run(&holding, &format!("select from laneway.waiting where id = {parent} for update")).await;

    let both = [first.task.id, single];
    let acted = soon("an answer", scene.store.act(&Actor::program(), Action::Retry, &both)).await;

    assert_eq!(acted.unwrap(), [Acted::Skipped(Skip::Busy), Acted::Done]);
}

/// The parent's settle waits for the first of them, and holds the parent: to wait for it with each of the others would take long.
#[tokio::test]
async fn children_whose_parent_is_held_are_all_busy_at_once() {
    let scene = scene().await;
    let mut worker = scene.worker().await;
    let parent = scene.given(a_task()).await;
    let claimed = worker.claim_one().await;
    let spawning = claimed.settle(Outcome::completed()).spawning(children(tasks_like(a_task(), 200)));
    worker.settle_all(vec![spawning]).await;
    let claimed = worker.claim(200).await;
    worker.settle_all(claimed.iter().map(|claimed| claimed.settle(failed())).collect()).await;
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    let running = worker.claim_one().await;
    let holding = begin(&scene).await;
    run(&holding, &format!("select from laneway.lease where id = {} for update", running.lease.id.0)).await;

    let asked = std::time::Instant::now();
    let acted = scene.store.act(&Actor::program(), Action::Retry, &ids(&claimed)).await.unwrap();

    assert_eq!(acted, [Acted::Skipped(Skip::Busy); 200]);
    assert!(asked.elapsed() < std::time::Duration::from_secs(3), "{:?}", asked.elapsed());
}

/// A family that is added up in a transaction of an application.
#[tokio::test]
async fn what_former_children_tell_keeps_no_parent_from_starting() {
    let scene = scene().await;
    let (parent, [first, _]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    worker.settle(&claimed, Outcome::completed()).await;

    let folding = begin(&scene).await;
    run(&folding, "set local search_path to laneway; select fold_families()").await;

    assert_eq!(worker.claim_one().await.task.id, parent);
}

/// Ids of siblings that a former child adds may lie on both sides of those of a large new family, which is stored before it is counted.
#[tokio::test]
async fn a_large_family_among_the_siblings_of_former_children_is_counted_once() {
    let scene = scene().await;
    let (parent, [first, _]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, parent).await, Acted::Done);
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    run(&scene.connect().await, &format!("insert into laneway.brood values ({parent}, 1, 1000000)")).await;

    let spawning = claimed.settle(Outcome::completed()).spawning(children(tasks_like(a_task(), 2_500)));
    assert_eq!(worker.settle_all(vec![spawning]).await, [Verdict::Waiting]);

    assert_eq!(open_and_total(&scene, parent).await, [2_501, 2_501]);
    scene.check().await;
}

/// Operators whose transactions do several things, stay open for a while, and are sometimes undone.
#[tokio::test]
async fn families_end_whatever_is_done_in_transactions_that_stay_open() {
    let scene = scene().await;
    let first = scene.given(a_task()).await;
    for _ in 0..9 {
        scene.given(a_task()).await;
    }
    let last_known = Arc::new(AtomicI64::new(first.0));
    let mut operators = JoinSet::new();
    for _ in 0..3 {
        let (client, last_known) = (scene.connect().await, Arc::clone(&last_known));
        run(&client, "set search_path to laneway; set deadlock_timeout to '20ms'").await;
        operators.spawn(async move {
            for _ in 0..60 {
                let is_kept = operate_for_a_while(&client, last_known.load(Ordering::Relaxed) + 5).await;
                run(&client, if is_kept { "commit" } else { "rollback" }).await;
            }
        });
    }
    let mut workers = JoinSet::new();
    let are_done = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let (mut worker, last_known) = (scene.worker().await, Arc::clone(&last_known));
        let are_done = Arc::clone(&are_done);
        workers.spawn(async move {
            while !are_done.load(Ordering::Relaxed) {
                let claimed = worker.claim(3).await;
                let ids = claimed.iter().map(|claimed| claimed.task.id.0);
                last_known.fetch_max(ids.max().unwrap_or(0), Ordering::Relaxed);
                worker.settle_all(claimed.iter().map(settle_somehow).collect()).await;
            }
        });
    }
    operators.join_all().await;
    until("all have ended", async || {
        scene.store.sweep().await.unwrap();
        scene.store.counts().await.unwrap().iter().all(|count| count.state.has_ended())
    })
    .await;
    are_done.store(true, Ordering::Relaxed);
    workers.join_all().await;

    check_families(&scene.store).await;
    scene.check().await;
}

/// Does a few things to tasks up to `last` in a transaction that is left open. Returns whether they should be kept.
async fn operate_for_a_while(client: &Client, last: i64) -> bool {
    run(client, "begin").await;
    for _ in 0..fastrand::u8(1..=3) {
        let action = fastrand::choice(["cancel", "delete", "retry", "retry", "retry_children"]).unwrap();
        let tasks: Vec<_> = (0..fastrand::u8(1..=3)).map(|_| fastrand::i64(1..=last)).collect();
        let act = "select act('ann', null, $1, $2, 0, 0::smallint)";
        if let Err(error) = client.query_one(act, &[&action, &tasks]).await {
            let code = error.code().unwrap_or_else(|| panic!("{error:?}"));
            assert!(
                [SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE].contains(code),
                "{error:?}"
            );
            return false;
        }
        let stay = format!("select pg_sleep({})", fastrand::f64() * 0.01);
        run(client, &stay).await;
    }
    fastrand::u8(..4) > 0
}

fn settle_somehow(claimed: &Claimed) -> Settle {
    let task = &claimed.task;
    if task.options.resume {
        let again = Spawned { again: true, ..Default::default() };
        return claimed.settle(Outcome::completed()).spawning(again);
    } else if fastrand::u8(..4) == 0 {
        return claimed.settle(failed());
    }
    let size = if task.depth < 2 && task.options.step == 0 { fastrand::usize(..4) } else { 0 };
    let policies = [FamilyPolicy::WaitAll, FamilyPolicy::FailFast, FamilyPolicy::Ignore];
    let new = |n| tasks_like(a_task(), n).into_iter().map(NewTask::from).collect();
    claimed.settle(Outcome::completed()).spawning(Spawned {
        children: new(size),
        siblings: new(usize::from(task.depth > 0 && fastrand::u8(..8) == 0)),
        policy: fastrand::choice(policies).unwrap(),
        then: size > 0 && fastrand::bool(),
        ..Default::default()
    })
}

/// A parent reopens its failed children, and then counts those that are open.
#[tokio::test]
async fn a_child_that_fails_while_its_parent_reopens_others_is_reopened_too() {
    const HOLD_UP: &str = "
        alter function laneway.restart_task rename to restart_task_then;
        create function laneway.restart_task(p_row ended) returns void language plpgsql as $$
        begin
            perform restart_task_then(p_row);
            perform pg_advisory_xact_lock(1);
        end $$";
    let scene = scene().await;
    let (parent, [first, second]) = failed_family(&scene).await;
    assert_eq!(act(&scene, Action::Retry, first).await, Acted::Done);
    let mut other = scene.worker().await;
    let running = other.claim_one().await;
    assert_eq!(act(&scene, Action::RetryChildren, parent).await, Acted::Done);
    let (mut worker, settle) = resumed(&scene, parent).await;
    let holding_up = begin(&scene).await;
    run(&holding_up, "select pg_advisory_xact_lock(1)").await;
    run(&scene.connect().await, &format!("set search_path to laneway; {HOLD_UP}")).await;

    let waiting = tokio::spawn(async move { (worker.settle_all(vec![settle]).await, worker) });
    scene.until_somebody_waits().await;
    other.settle(&running, failed()).await;
    run(&holding_up, "commit").await;

    let (verdicts, mut worker) = waiting.await.unwrap();
    assert_eq!(verdicts, [Verdict::Waiting]);
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [first, second]);
    worker.complete(&claimed).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

#[tokio::test]
async fn a_follow_up_that_somebody_holds_is_let_go_by_the_next_sweep() {
    let scene = scene().await;
    let mut worker = scene.worker().await;
    let parent = scene.given(a_task()).await;
    let claimed = worker.claim_one().await;
    let follow_up = FollowUp { task: a_task().kind("after").into(), on_failure: FollowUpOnFailure::Drop };
    let spawned = Spawned { follow_ups: vec![follow_up], ..children(vec![a_task()]) };
    worker.settle_all(vec![claimed.settle(Outcome::completed()).spawning(spawned)]).await;
    let child = worker.claim(1).await;

    let operator = begin(&scene).await;
    run(&operator, "select from laneway.later for update").await;
    soon("nobody waits for an operator", worker.complete(&child)).await;
    assert_eq!(scene.state(parent).await, Some(State::Completed));
    assert!(worker.claim(1).await.is_empty());
    run(&operator, "rollback").await;
    scene.store.sweep().await.unwrap();

    assert_eq!(worker.claim_one().await.task.kind.as_str(), "after");
    scene.check().await;
}

#[tokio::test]
async fn a_key_that_is_just_being_taken_puts_a_settle_off() {
    let scene = scene().await;
    let mut worker = scene.worker().await;
    scene.given(a_task()).await;
    let claimed = worker.claim_one().await;
    let follow_up =
        FollowUp { task: a_task().kind("flush").unique("k").into(), on_failure: FollowUpOnFailure::Drop };
    let spawned = Spawned { follow_ups: vec![follow_up], ..Default::default() };
    let settle = claimed.settle(Outcome::completed()).spawning(spawned);

    let taking = begin(&scene).await;
    run(&taking, "select laneway.enqueue('flush', unique_key => 'k')").await;
    let mut advance = laneway_core::Advance::new(worker.session(), 10);
    advance.settles = vec![settle.clone()];
    let busy = soon("two seconds at most", scene.store.advance(advance)).await.unwrap_err();
    assert!(busy.is_transient(), "{busy}");
    run(&taking, "commit").await;

    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Completed]);
    assert_eq!(scene.total().await, 2, "the holder stays alone");
    scene.check().await;
}

// Handlers in the database.

const HANDLERS: &str = "
create schema app;
create table app.effect (task bigint, what text);
create procedure app.derive(task bigint, payload jsonb) language plpgsql as $$
begin
    for batch in 1 .. (payload->>'batches')::int loop
        perform laneway.spawn('derive.batch', json_build_object('batch', batch), parent_id => task);
    end loop;
    perform laneway.follow_up('flush', unique_key => 'flush');
    insert into app.effect values (task, 'derive');
end $$;
create function app.batch(task bigint, payload json) returns jsonb language plpgsql as $$
begin
    insert into app.effect values (task, 'batch');
    if payload->>'batch' = '2' then
        perform laneway.spawn('derive.batch', '{\"batch\": 99}', parent_id => (select parent_id from laneway.get_task(task)));
    elsif payload->>'batch' = '13' then
        raise exception 'no luck with %', payload->>'batch';
    end if;
    return jsonb_build_object('batch', payload->'batch', 'siblings_failed', laneway.has_failed_siblings(task));
end $$;
create function app.flush(task bigint, payload jsonb) returns void language sql as $$ insert into app.effect values (task, 'flush') $$;
select laneway.register_handler('derive', 'app.derive(bigint, jsonb)'),
    laneway.register_handler('derive.batch', 'app.batch(bigint, json)'),
    laneway.register_handler('flush', 'app.flush(bigint, jsonb)');";

async fn with_handlers() -> (Fixture, Client) {
    let scene = scene().await;
    let client = scene.connect().await;
    client.batch_execute(HANDLERS).await.unwrap();
    (scene, client)
}

async fn process(client: &Client, queue: &str) {
    run(client, &format!("call laneway.process_tasks(queue => '{queue}')")).await;
}

async fn states(client: &Client, kind: &str) -> Vec<String> {
    let text =
        "select v.state from generate_series(1, 50) i, laneway.get_task(i) v where v.kind = $1 order by v.id";
    client.query(text, &[&kind]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_pipeline_runs_round_by_round_and_can_be_rolled_back() {
    let (scene, client) = with_handlers().await;
    let serial = QueueSettings { serial: Some(Serial::Children(4)), ..Default::default() };
    scene.store.set_queue(&QueueName::new("analytics").unwrap(), serial).await.unwrap();

    run(&client, "begin").await;
    run(&client, "select laneway.enqueue('derive', '{\"batches\": 6}', queue => 'analytics')").await;
    process(&client, "analytics").await;
    assert_eq!(states(&client, "derive").await, ["waiting"]);
    assert_eq!(states(&client, "derive.batch").await, ["pending"; 6]);
    process(&client, "analytics").await;
    let mut batches = states(&client, "derive.batch").await;
    batches.sort();
    assert_eq!(
        batches,
        [["completed"; 4].as_slice(), &["pending"; 3]].concat(),
        "four at a time, one more was added"
    );
    process(&client, "analytics").await;
    assert_eq!(states(&client, "derive").await, ["completed"]);
    assert_eq!(states(&client, "flush").await, ["pending"]);
    process(&client, "analytics").await;
    assert_eq!(states(&client, "flush").await, ["completed"]);
    let effects: i64 = client.query_one("select count(*) from app.effect", &[]).await.unwrap().get(0);
    assert_eq!(effects, 9);
    run(&client, "rollback").await;

    assert_eq!(scene.total().await, 0);
    scene.check().await;
}

#[tokio::test]
async fn an_error_undoes_what_the_handler_did_and_is_tried_again() {
    let (scene, client) = with_handlers().await;
    run(
        &client,
        "select laneway.enqueue('derive.batch', '{\"batch\": 13}', max_attempts => 2, retry => '{\"list\": {\"delays_ms\": [0]}}')",
    )
    .await;

    process(&client, "default").await;
    let task = TaskId(client.query_one("select id from laneway.later", &[]).await.unwrap().get(0));
    let view = scene.store.get(task).await.unwrap().unwrap();
    assert_eq!((view.attempt, view.error.as_deref()), (1, Some("no luck with 13")));
    process(&client, "default").await;

    assert_eq!(scene.state(task).await, Some(State::Failed));
    assert_eq!(scene.value::<i64>("select count(*) from app.effect").await, 0);
    scene.check().await;
}

#[tokio::test]
async fn a_worker_runs_a_handler_in_the_transaction_of_its_settle() {
    let (scene, client) = with_handlers().await;
    run(&client, "select laneway.enqueue('derive', '{\"batches\": 2}')").await;
    let mut worker = scene.worker().await;
    let claimed = worker.claim_one().await;

    let verdict = scene.store.run_handler(worker.session(), &claimed).await.unwrap();

    assert_eq!(verdict, Verdict::Waiting);
    let again = scene.store.run_handler(worker.session(), &claimed).await.unwrap_err();
    assert_eq!(again.to_string(), format!("task {} is not leased by this worker any more", claimed.task.id));
    assert_eq!(scene.value::<i64>("select count(*) from app.effect").await, 1);
    let kinds: Vec<_> = scene.store.handler_kinds().await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(kinds, ["derive", "derive.batch", "flush"]);
    assert_eq!(ids(&worker.claim(10).await).len(), 2);
    scene.check().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_a_remedy() {
    let (scene, client) = with_handlers().await;
    run(&client, "create function app.misfit(text) returns void language sql as ''").await;
    for (statement, message) in [
        (
            "select laneway.register_handler('x', 'app.missing(bigint, jsonb)')",
            "handler `app.missing(bigint, jsonb)` does not exist",
        ),
        (
            "select laneway.register_handler('x', 'app.misfit(text)')",
            "handler `app.misfit(pg_catalog.text)` does not fit",
        ),
        ("select laneway.spawn('x')", "no handler is running in this transaction"),
        ("select laneway.follow_up('x')", "no handler is running in this transaction"),
        ("call laneway.process_tasks(max => 0)", "max is 0; allowed is 1 to 10000"),
    ] {
        let refused = client.batch_execute(statement).await.unwrap_err();
        assert!(whole_message(&refused).contains(message), "{statement}: {}", whole_message(&refused));
    }
    assert!(
        client.query_one("select laneway.unregister_handler('flush')", &[]).await.unwrap().get::<_, bool>(0)
    );
    assert!(
        !client.query_one("select laneway.unregister_handler('flush')", &[]).await.unwrap().get::<_, bool>(0)
    );
    scene.check().await;
}

#[tokio::test]
async fn a_family_that_was_made_in_sql_can_be_retried_in_sql() {
    let (scene, client) = with_handlers().await;
    run(
        &client,
        "create or replace function app.batch(task bigint, payload json) returns jsonb language plpgsql as $$
        begin
            if not exists (select from app.effect where what = 'repaired') then raise 'broken'; end if;
            return null;
        end $$",
    )
    .await;
    run(&client, "insert into laneway.queue (name) values ('default') on conflict do nothing").await;
    run(&client, "select laneway.enqueue('derive', '{\"batches\": 1}')").await;
    process(&client, "default").await;
    let parent = TaskId(scene.value("select id from laneway.waiting").await);
    scene.store.act(&ann(), Action::Cancel, &[TaskId(parent.0 + 1)]).await.unwrap();
    assert_eq!(scene.state(parent).await, Some(State::Failed));

    run(&client, "insert into app.effect values (0, 'repaired')").await;
    scene.store.act(&ann(), Action::RetryChildren, &[parent]).await.unwrap();
    process(&client, "default").await;
    assert_eq!(scene.state(parent).await, Some(State::Waiting));
    process(&client, "default").await;

    assert_eq!(scene.state(parent).await, Some(State::Completed));
    scene.check().await;
}

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap())
}

/// Where the children of a task are is kept as long as the task, and goes with it.
#[tokio::test]
async fn retention_forgets_where_children_were() {
    let fixture = fixture().await;
    let broods = async || fixture.value::<i64>("select count(*) from laneway.brood").await;
    let mut parents = vec![];
    for keep in [Keep::Default, Keep::Nothing] {
        let settings = QueueSettings { keep_completed: Some(keep), ..Default::default() };
        fixture.store.set_queue(&QueueName::default(), settings).await.unwrap();
        let (parent, claims) = family::<2>(&fixture, FamilyPolicy::WaitAll).await;
        for (mut worker, claimed) in claims {
            worker.complete(&[claimed]).await;
        }
        parents.push(parent);
    }
    assert_eq!(broods().await, 2);
    assert_eq!(fixture.state(parents[1]).await, None, "nothing is kept of it");

    // A round of house-keeping begins anywhere, so it may take some.
    until("the second is forgotten", async || {
        fixture.store.maintain().await.unwrap();
        broods().await == 1
    })
    .await;

    assert_eq!(fixture.state(parents[0]).await, Some(State::Completed));
    assert_eq!(fixture.store.children(Children::of(parents[0])).await.unwrap().len(), 2);
    fixture.check().await;
}
