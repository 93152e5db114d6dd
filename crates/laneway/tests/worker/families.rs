//! Handlers that spawn: children, siblings, follow-ups, steps.

use laneway::core::{Action, Actor, Children, FamilyPolicy, State as TaskState};
use laneway::{Attempt, Failure, Payload, State, TaskId, Worker, WorkerBuilder};
use serde::{Deserialize, Serialize};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    a_family_maps_and_reduces,
    a_handler_that_fails_spawns_nothing_and_the_next_attempt_does,
    a_child_adds_siblings_until_the_work_is_done,
    children_know_when_a_sibling_has_failed,
    a_family_that_fails_fast_stops_its_running_children,
    follow_ups_run_in_the_spawners_queue_after_it,
    what_cannot_be_spawned_is_refused_at_once,
    thousands_of_children_are_stored_beside_the_coordinator,
    keyed_follow_ups_are_stored_once,
    failed_children_are_retried_without_calling_the_parents_handler,
    children_belong_to_the_trace_of_their_parent,
}

/// A task whose children are jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Split {
    children: Vec<Job>,
    #[serde(default)]
    fail_first: bool,
    #[serde(default)]
    policy: FamilyPolicy,
    #[serde(default)]
    follow_ups: Vec<Job>,
    #[serde(default)]
    keyed: bool,
}

impl Payload for Split {
    const KIND: &'static str = "split";
}

fn split_into(children: Vec<Job>) -> Split {
    Split { children, ..Default::default() }
}

async fn split(split: Split, attempt: Attempt) -> Result<String, Failure> {
    attempt.family_policy(split.policy)?;
    for child in split.children {
        attempt.spawn(laneway::task(child).max_attempts(1))?;
    }
    for job in split.follow_ups {
        let task = laneway::task(job);
        attempt.follow_up(if split.keyed { task.unique("once") } else { task })?;
    }
    if split.fail_first && attempt.number() == 1 {
        return Err(Failure::retry_after(secs(0), "not yet"));
    }
    Ok(format!("split, pending {}", attempt.has_pending_children()))
}

fn a_splitter(store: &TestStore, recorder: &Recorder, slots: usize) -> WorkerBuilder {
    a_worker(store.handle(), recorder, slots).handle(split)
}

async fn run(builder: WorkerBuilder) {
    builder.build().unwrap().run_until_empty().await.unwrap();
}

async fn state(store: &TestStore, task: TaskId) -> TaskState {
    store.view(task).await.state
}

#[derive(Serialize, Deserialize)]
struct Sum(Vec<u64>);
impl Payload for Sum {
    const KIND: &'static str = "sum";
}

#[derive(Serialize, Deserialize)]
struct Double(u64);
impl Payload for Double {
    const KIND: &'static str = "double";
}

async fn a_family_maps_and_reduces(store: &TestStore) {
    async fn map(sum: Sum, attempt: Attempt) -> Result<(), Failure> {
        assert_eq!(attempt.step(), 0);
        sum.0.into_iter().try_for_each(|n| attempt.spawn(Double(n)))
    }
    async fn reduce(_: Sum, attempt: Attempt) -> Result<u64, Failure> {
        let family = attempt.family().await?.unwrap();
        assert_eq!((attempt.step(), family.total, family.completed), (1, 3, 3));
        Ok(attempt.results::<u64>().await?.into_iter().sum())
    }
    async fn double(one: Double) -> Result<u64, Failure> {
        Ok(2 * one.0)
    }
    let task = client(store).enqueue(Sum(vec![1, 2, 3])).await.unwrap();

    run(Worker::builder(store.handle()).handle_then(map, reduce).handle(double)).await;

    let ended = client(store).wait(task).await.unwrap();
    assert_eq!(ended.result::<u64>().unwrap(), 12);
    let tree = client(store).tree(task).await.unwrap().unwrap();
    assert_eq!((tree.rows(), client(store).family(task).await.unwrap().unwrap().open), (4, 0));
}

async fn a_handler_that_fails_spawns_nothing_and_the_next_attempt_does(store: &TestStore) {
    let recorder = Recorder::default();
    let split = Split { fail_first: true, ..split_into(jobs(3, What::Nothing)) };
    let task = client(store).enqueue(split).await.unwrap();

    run(a_splitter(store, &recorder, 4)).await;

    assert_eq!(recorder.log().ended.len(), 3);
    let ended = client(store).wait(task).await.unwrap();
    assert_eq!(ended.result::<String>().unwrap(), "split, pending true");
}

#[derive(Serialize, Deserialize)]
struct Range(u64, u64);
impl Payload for Range {
    const KIND: &'static str = "range";
}

/// Halves what is large, as siblings: the parent waits for all of them.
async fn halve(range: Range, attempt: Attempt) -> Result<u64, Failure> {
    let Range(from, to) = range;
    if attempt.task().parent.is_none() {
        attempt.spawn(Range(from, to))?;
        return Ok(0);
    }
    if to - from <= 4 {
        return Ok(to - from);
    }
    let middle = from + (to - from) / 2;
    attempt.spawn_sibling(Range(from, middle))?;
    attempt.spawn_sibling(Range(middle, to))?;
    Ok(0)
}

async fn a_child_adds_siblings_until_the_work_is_done(store: &TestStore) {
    let task = client(store).enqueue(Range(0, 64)).await.unwrap();

    run(Worker::builder(store.handle()).slots(8).handle(halve)).await;

    assert_eq!(state(store, task.id).await, TaskState::Completed);
    let children = store.children(Children::of(task.id)).await.unwrap();
    let covered: u64 = children.iter().filter_map(|child| child.result.as_ref()?.decode::<u64>().ok()).sum();
    assert_eq!((children.len(), covered), (31, 64));
}

#[derive(Serialize, Deserialize)]
struct Watchful {
    fails: bool,
}
impl Payload for Watchful {
    const KIND: &'static str = "watchful";
}

async fn children_know_when_a_sibling_has_failed(store: &TestStore) {
    async fn parent(_: Split, attempt: Attempt) -> Result<(), Failure> {
        assert!(!attempt.has_failed_siblings().await?, "nobody has a parent here");
        attempt.spawn(laneway::task(Watchful { fails: true }).priority(-1))?;
        attempt.spawn(Watchful { fails: false })
    }
    async fn child(watchful: Watchful, attempt: Attempt) -> Result<bool, Failure> {
        match watchful.fails {
            true => Err(Failure::discard("on purpose")),
            false => Ok(attempt.has_failed_siblings().await?),
        }
    }
    let task = client(store).enqueue(Split::default()).await.unwrap();

    run(Worker::builder(store.handle()).slots(1).handle(parent).handle(child)).await;

    assert_eq!(state(store, task.id).await, TaskState::Failed);
    let children = store.children(Children::of(task.id)).await.unwrap();
    assert_eq!(children[1].result.as_ref().unwrap().as_str(), "true");
}

async fn a_family_that_fails_fast_stops_its_running_children(store: &TestStore) {
    let recorder = Recorder::default();
    let mut children = vec![Job { n: 0, what: What::UntilStopped }, Job { n: 1, what: What::Discard }];
    children.extend((2..10).map(|n| Job { n, what: What::UntilStopped }));
    let split = Split { policy: FamilyPolicy::FailFast, ..split_into(children) };
    let task = client(store).enqueue(split).await.unwrap();

    let worker = start(a_splitter(store, &recorder, 2));
    let ended = client(store).wait(task).await.unwrap();

    assert_eq!(ended.state(), TaskState::Failed);
    let family = ended.view().family.as_ref().unwrap();
    assert_eq!((family.failed, family.cancelled), (1, 9));
    assert_eq!(recorder.log().started.len(), 2);
    worker.stopped().await;
}

async fn follow_ups_run_in_the_spawners_queue_after_it(store: &TestStore) {
    let recorder = Recorder::default();
    let split = Split { follow_ups: jobs(2, What::Nothing), ..split_into(vec![job(7), job(8)]) };
    let task = client(store).enqueue(split).queue("analytics").priority(5).await.unwrap();

    run(a_splitter(store, &recorder, 1).queue("analytics")).await;

    assert_eq!(recorder.log().numbers(), [7, 8, 0, 1]);
    let ended = client(store).wait(task).await.unwrap();
    assert_eq!(ended.state(), TaskState::Completed);
    for (task, ..) in recorder.log().started {
        let view = store.view(task).await;
        assert_eq!(view.queue.as_str(), "analytics");
    }
}

async fn what_cannot_be_spawned_is_refused_at_once(store: &TestStore) {
    async fn bad(_: Split, attempt: Attempt) -> Result<(), Failure> {
        let sibling = attempt.spawn_sibling(job(1)).unwrap_err().to_string();
        assert!(sibling.starts_with("no_parent: "), "{sibling}");
        let name = attempt.spawn(laneway::task(job(1)).queue("")).unwrap_err().to_string();
        assert!(name.starts_with("invalid_name: "), "{name}");
        attempt.spawn(laneway::task(job(1)).unique("k"))
    }
    let task = client(store).enqueue(Split::default()).await.unwrap();

    run(Worker::builder(store.handle()).handle(bad)).await;

    let view = store.view(task.id).await;
    assert_eq!((view.state, view.attempt), (TaskState::Failed, 1));
    assert!(view.error.unwrap().starts_with("unique_child: "));
}

async fn thousands_of_children_are_stored_beside_the_coordinator(store: &TestStore) {
    let recorder = Recorder::default();
    let task = client(store).enqueue(split_into(jobs(1_500, What::Nothing))).await.unwrap();

    run(a_splitter(store, &recorder, 100)).await;

    assert_eq!(state(store, task.id).await, TaskState::Completed);
    let log = recorder.log();
    assert_eq!((log.ended.len(), log.started_more_than_once()), (1_500, vec![]));
}

async fn keyed_follow_ups_are_stored_once(store: &TestStore) {
    let recorder = Recorder::default();
    // Their children wait at the gate, so all three have spawned before the first follow-up may run.
    let child = Job { n: 1, what: What::Gate };
    let split = || Split { keyed: true, follow_ups: vec![job(9)], ..split_into(vec![child.clone()]) };
    client(store).enqueue_many([split(), split(), split()]).await.unwrap();

    let worker = start(a_splitter(store, &recorder, 6));
    recorder.until("all children run", |log| log.running == 3).await;
    recorder.open_gate();
    until("all have ended", async || count(&**store, TaskState::Completed).await == 7).await;
    worker.stopped().await;

    assert_eq!(recorder.log().numbers().iter().filter(|n| **n == 9).count(), 1);
}

async fn failed_children_are_retried_without_calling_the_parents_handler(store: &TestStore) {
    let recorder = Recorder::default();
    let children = vec![job(1), Job { n: 2, what: What::Discard }];
    let task = client(store).enqueue(split_into(children)).await.unwrap();
    run(a_splitter(store, &recorder, 4)).await;
    assert_eq!(state(store, task.id).await, TaskState::Failed);

    store.act(&Actor::program(), Action::RetryChildren, &[task.id]).await.unwrap();
    run(a_splitter(store, &recorder, 4)).await;

    assert_eq!(state(store, task.id).await, TaskState::Failed);
    assert_eq!(recorder.log().numbers().len(), 3);
    assert_eq!(store.children(Children::of(task.id)).await.unwrap().len(), 2);
}

async fn children_belong_to_the_trace_of_their_parent(store: &TestStore) {
    async fn child(_: Job, attempt: Attempt, State(seen): State<Seen>) -> Result<(), Failure> {
        seen.lock().unwrap().extend(attempt.trace().get("traceparent").cloned());
        Ok(())
    }
    type Seen = std::sync::Arc<std::sync::Mutex<Vec<String>>>;
    let seen = Seen::default();
    client(store).enqueue(split_into(vec![job(1)])).trace("traceparent", "00-7").await.unwrap();

    run(Worker::builder(store.handle()).state(seen.clone()).handle(split).handle(child)).await;

    assert_eq!(*seen.lock().unwrap(), ["00-7"]);
}
