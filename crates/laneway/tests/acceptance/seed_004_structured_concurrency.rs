//! Seed 004: structured concurrency. A parent fans out, waits for all of its children, and goes on; top-level tasks of the
//! queue run one at a time meanwhile. The document's SQL is tested where the database's own handlers are.

use laneway::core::{
    Children, Code, QueueName, QueueSettings, Serial, Serial::Children as AtOnce, State as TaskState,
};
use laneway::{Attempt, Failure, Payload, State, TaskId, Worker, WorkerBuilder};
use serde::{Deserialize, Serialize};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    a_parent_that_spawned_children_is_waiting_and_not_completed,
    the_parent_completes_when_all_children_have_completed,
    the_parent_fails_when_any_child_failed_after_all_have_finished,
    completed_at_of_the_parent_is_set_at_its_end,
    children_cannot_spawn_grandchildren_in_a_serial_queue,
    children_can_spawn_siblings_with_the_same_parent,
    the_parent_waits_for_siblings_that_were_spawned_dynamically,
    the_top_fiber_picks_exactly_one_top_level_task_at_a_time,
    no_second_top_level_task_starts_while_a_parent_waits,
    child_fibers_run_children_concurrently_up_to_the_queues_concurrency,
    two_child_fibers_never_run_the_same_child,
    uncle_tasks_are_top_level_and_run_after_the_parent_completes,
    uncle_tasks_are_deduplicated,
    has_pending_children_and_has_failed_siblings_can_be_asked,
    a_failed_child_does_not_interrupt_its_siblings,
    analyze_runs_once_after_all_batches,
    the_statistical_unit_pipeline,
}

/// One step of the document's pipeline: what it spawns and what follows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Derive {
    name: String,
    batches: Vec<Job>,
    uncles: Vec<Derive>,
}

impl Payload for Derive {
    const KIND: &'static str = "derive";
}

fn step(name: &str) -> Derive {
    Derive { name: name.into(), ..Default::default() }
}

fn with_batches(name: &str, batches: Vec<Job>) -> Derive {
    Derive { batches, ..step(name) }
}

/// The names of the steps that ran, in order.
#[derive(Clone, Default)]
struct Steps(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Steps {
    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn derive(derive: Derive, attempt: Attempt, State(steps): State<Steps>) -> Result<(), Failure> {
    steps.0.lock().unwrap().push(derive.name);
    for batch in derive.batches {
        attempt.spawn(laneway::task(batch).priority(20).max_attempts(1))?;
    }
    for uncle in derive.uncles {
        let key = uncle.name.clone();
        attempt.follow_up(laneway::task(uncle).unique(key))?;
    }
    Ok(())
}

async fn analytics(store: &TestStore) -> QueueName {
    let queue = QueueName::new("analytics").unwrap();
    store.set_queue(&queue, QueueSettings { serial: Some(AtOnce(4)), ..Default::default() }).await.unwrap();
    queue
}

async fn enqueue(store: &TestStore, derive: Derive) -> TaskId {
    analytics(store).await;
    client(store).enqueue(derive).queue("analytics").await.unwrap().id
}

fn fibers(store: &TestStore, recorder: &Recorder, steps: &Steps, slots: usize) -> WorkerBuilder {
    a_worker(store.handle(), recorder, slots).queue("analytics").handle(derive).state(steps.clone())
}

async fn run(store: &TestStore, recorder: &Recorder) -> Steps {
    let steps = Steps::default();
    fibers(store, recorder, &steps, 5).build().unwrap().run_until_empty().await.unwrap();
    steps
}

async fn until_state(store: &TestStore, task: TaskId, state: TaskState) {
    until(&format!("task {task} is {state}"), async || store.view(task).await.state == state).await;
}

fn gated(n: u64) -> Vec<Job> {
    jobs(n, What::Gate)
}

async fn a_parent_that_spawned_children_is_waiting_and_not_completed(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let parent = enqueue(store, with_batches("derive", gated(3))).await;

    let worker = start(fibers(store, &recorder, &steps, 5));
    recorder.until("the children run", |log| log.running == 3).await;

    let view = store.view(parent).await;
    assert_eq!((view.state, view.worker, view.ended_at), (TaskState::Waiting, None, None));
    let children = store.children(Children::of(parent)).await.unwrap();
    assert!(children.iter().all(|child| child.parent == Some(parent) && child.priority == 20));
    recorder.open_gate();
    until_state(store, parent, TaskState::Completed).await;
    worker.stopped().await;
}

async fn the_parent_completes_when_all_children_have_completed(store: &TestStore) {
    let recorder = Recorder::default();
    let parent = enqueue(store, with_batches("derive", jobs(5, What::Nothing))).await;

    run(store, &recorder).await;

    assert_eq!(store.view(parent).await.state, TaskState::Completed);
    assert_eq!(recorder.log().ended.len(), 5);
}

async fn the_parent_fails_when_any_child_failed_after_all_have_finished(store: &TestStore) {
    let recorder = Recorder::default();
    let mut batches = jobs(4, What::Nothing);
    batches[1].what = What::Discard;
    let parent = enqueue(store, with_batches("derive", batches)).await;

    run(store, &recorder).await;

    let view = store.view(parent).await;
    assert_eq!(view.state, TaskState::Failed);
    assert!(view.error.unwrap().starts_with("1 of 4 children failed: task "));
    assert_eq!(recorder.log().ended.len(), 4);
}

async fn completed_at_of_the_parent_is_set_at_its_end(store: &TestStore) {
    let recorder = Recorder::default();
    let parent = enqueue(store, with_batches("derive", jobs(2, What::Nothing))).await;

    run(store, &recorder).await;

    let ended_at = store.view(parent).await.ended_at.unwrap();
    for child in store.children(Children::of(parent)).await.unwrap() {
        assert!(child.ended_at.unwrap() <= ended_at);
    }
}

async fn children_cannot_spawn_grandchildren_in_a_serial_queue(store: &TestStore) {
    async fn parent(derive: Derive, attempt: Attempt) -> Result<(), Failure> {
        // A child spawns, too.
        if attempt.task().depth < 2 { attempt.spawn(laneway::task(derive).max_attempts(1)) } else { Ok(()) }
    }
    let parent_id = enqueue(store, step("derive")).await;

    let worker = Worker::builder(store.handle()).queue("analytics").handle(parent).build().unwrap();
    worker.run_until_empty().await.unwrap();

    let children = store.children(Children::of(parent_id)).await.unwrap();
    let error = children[0].error.clone().unwrap();
    assert!(error.starts_with(&format!("{}: children of a child", Code::SerialQueue)), "{error}");
    assert_eq!(store.view(parent_id).await.state, TaskState::Failed);
}

/// A batch that finds more work and spreads it over siblings.
#[derive(Serialize, Deserialize)]
struct Spread {
    left: u64,
}
impl Payload for Spread {
    const KIND: &'static str = "spread";
}

async fn spread(spread: Spread, attempt: Attempt) -> Result<(), Failure> {
    match (attempt.task().parent, spread.left) {
        (None, left) => attempt.spawn(Spread { left }),
        (Some(_), 0) => Ok(()),
        (Some(_), left) => attempt.spawn_sibling(Spread { left: left - 1 }),
    }
}

async fn spread_out(store: &TestStore, left: u64) -> TaskId {
    analytics(store).await;
    let task = client(store).enqueue(Spread { left }).queue("analytics").await.unwrap();
    let worker = Worker::builder(store.handle()).queue("analytics").slots(5).handle(spread).build().unwrap();
    worker.run_until_empty().await.unwrap();
    task.id
}

async fn children_can_spawn_siblings_with_the_same_parent(store: &TestStore) {
    let parent = spread_out(store, 3).await;

    let children = store.children(Children::of(parent)).await.unwrap();
    assert_eq!(children.len(), 4);
    assert!(children.iter().all(|child| child.parent == Some(parent) && child.depth == 1));
    assert!(children.iter().all(|child| child.state == TaskState::Completed));
}

async fn the_parent_waits_for_siblings_that_were_spawned_dynamically(store: &TestStore) {
    let parent = spread_out(store, 20).await;

    let view = store.view(parent).await;
    let family = view.family.unwrap();
    assert_eq!((view.state, family.total, family.completed), (TaskState::Completed, 21, 21));
}

async fn the_top_fiber_picks_exactly_one_top_level_task_at_a_time(store: &TestStore) {
    let recorder = Recorder::default();
    analytics(store).await;
    let tasks = jobs(20, What::Millis(1)).into_iter().map(|job| laneway::task(job).queue("analytics"));
    client(store).enqueue_many(tasks).await.unwrap();

    let workers = [(); 3].map(|()| start(fibers(store, &recorder, &Steps::default(), 5)));
    let log = recorder.until("all have run", |log| log.ended.len() == 20).await;

    assert_eq!((log.peak, log.numbers()), (1, (0..20).collect()));
    for worker in workers {
        worker.stopped().await;
    }
}

async fn no_second_top_level_task_starts_while_a_parent_waits(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    enqueue(store, with_batches("A", gated(2))).await;
    client(store).enqueue(step("B")).queue("analytics").await.unwrap();
    let second = client(store).enqueue(step("urgent")).queue("analytics").priority(-9).await.unwrap();

    let workers = [(); 2].map(|()| start(fibers(store, &recorder, &steps, 5)));
    until_state(store, second.id, TaskState::Completed).await;
    recorder.until("the children of A run", |log| log.running == 2).await;

    assert_eq!(steps.names(), ["urgent", "A"]);
    recorder.open_gate();
    until("B has run", async || steps.names().len() == 3).await;
    assert_eq!(steps.names(), ["urgent", "A", "B"]);
    for worker in workers {
        worker.stopped().await;
    }
}

async fn child_fibers_run_children_concurrently_up_to_the_queues_concurrency(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let parent = enqueue(store, with_batches("derive", gated(10))).await;

    let workers = [(); 2].map(|()| start(fibers(store, &recorder, &steps, 50)));
    recorder.until("four run", |log| log.running == 4).await;
    for open in 1..=10 {
        recorder.open_gate_below(open);
        recorder.until("the next one is done", |log| log.ended.len() as u64 >= open).await;
    }
    until_state(store, parent, TaskState::Completed).await;

    assert_eq!(recorder.log().peak, 4);
    for worker in workers {
        worker.stopped().await;
    }
}

async fn two_child_fibers_never_run_the_same_child(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let parent = enqueue(store, with_batches("derive", jobs(200, What::Nothing))).await;

    let workers = [(); 4].map(|()| start(fibers(store, &recorder, &steps, 5)));
    until_state(store, parent, TaskState::Completed).await;

    let log = recorder.log();
    assert_eq!((log.ended.len(), log.started_more_than_once()), (200, vec![]));
    for worker in workers {
        worker.stopped().await;
    }
}

async fn uncle_tasks_are_top_level_and_run_after_the_parent_completes(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let uncles = vec![step("analyze")];
    let parent = enqueue(store, Derive { uncles, ..with_batches("derive", gated(2)) }).await;

    let worker = start(fibers(store, &recorder, &steps, 5));
    recorder.until("the children run", |log| log.running == 2).await;

    let uncle = store.follow_ups(parent).await.unwrap().remove(0);
    assert_eq!((uncle.parent, uncle.depth, uncle.state), (None, 0, TaskState::Later));
    assert_eq!(steps.names(), ["derive"]);
    recorder.open_gate();
    until_state(store, uncle.id, TaskState::Completed).await;
    assert_eq!(steps.names(), ["derive", "analyze"]);
    assert_eq!(store.view(parent).await.state, TaskState::Completed);
    worker.stopped().await;
}

async fn uncle_tasks_are_deduplicated(store: &TestStore) {
    let recorder = Recorder::default();
    let derive = |name: &str| Derive { uncles: vec![step("analyze")], ..step(name) };
    enqueue(store, derive("first")).await;
    client(store).enqueue(derive("second")).queue("analytics").priority(-1).await.unwrap();
    client(store).enqueue(derive("third")).queue("analytics").priority(-1).await.unwrap();

    let steps = run(store, &recorder).await;

    // The uncle of the second has its priority and comes before the first, whose own is a new one then.
    assert_eq!(steps.names(), ["second", "third", "analyze", "first", "analyze"]);
}

async fn has_pending_children_and_has_failed_siblings_can_be_asked(store: &TestStore) {
    async fn parent(_: Derive, attempt: Attempt) -> Result<bool, Failure> {
        assert!(!attempt.has_pending_children());
        attempt.spawn(laneway::task(Spread { left: 1 }).priority(-1))?;
        attempt.spawn(Spread { left: 0 })?;
        Ok(attempt.has_pending_children())
    }
    async fn child(spread: Spread, attempt: Attempt) -> Result<bool, Failure> {
        let has_failed = attempt.has_failed_siblings().await?;
        if spread.left == 1 { Err(Failure::discard("on purpose")) } else { Ok(has_failed) }
    }
    let parent_id = enqueue(store, step("derive")).await;

    let builder = Worker::builder(store.handle()).slots(1).queue("analytics").handle(parent).handle(child);
    builder.build().unwrap().run_until_empty().await.unwrap();

    let children = store.children(Children::of(parent_id)).await.unwrap();
    assert_eq!(children[1].result.as_ref().unwrap().as_str(), "true");
}

async fn a_failed_child_does_not_interrupt_its_siblings(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let mut batches = gated(3);
    batches[0].what = What::Discard;
    let parent = enqueue(store, with_batches("derive", batches)).await;

    let worker = start(fibers(store, &recorder, &steps, 5));
    let failed = async || store.view(parent).await.family.is_some_and(|family| family.failed == 1);
    until("the first has failed", failed).await;
    recorder.until("the others run on", |log| log.running == 2).await;
    assert_eq!(store.view(parent).await.state, TaskState::Waiting);
    recorder.open_gate();
    until_state(store, parent, TaskState::Failed).await;

    let family = store.view(parent).await.family.unwrap();
    assert_eq!((family.completed, family.failed, family.cancelled), (2, 1, 0));
    worker.stopped().await;
}

async fn analyze_runs_once_after_all_batches(store: &TestStore) {
    let recorder = Recorder::default();
    let uncles = vec![step("analyze"), step("analyze")];
    enqueue(store, Derive { uncles, ..with_batches("derive", jobs(8, What::Nothing)) }).await;

    let steps = run(store, &recorder).await;

    assert_eq!((steps.names(), recorder.log().ended.len()), (vec!["derive".into(), "analyze".to_owned()], 8));
}

/// The document's example: N batches, two uncles, four children at once, serial again afterwards, and a chain of steps of
/// which two fan out themselves.
async fn the_statistical_unit_pipeline(store: &TestStore) {
    let (recorder, steps) = (Recorder::default(), Steps::default());
    let history_facet = with_batches("derive_statistical_history_facet", jobs(3, What::Nothing));
    let facet = Derive { uncles: vec![history_facet], ..step("derive_statistical_unit_facet") };
    let history =
        Derive { uncles: vec![facet], ..with_batches("derive_statistical_history", jobs(3, What::Nothing)) };
    let reports = Derive { uncles: vec![history], ..step("derive_reports") };
    let uncles = vec![step("statistical_unit_flush_staging"), reports];
    let parent =
        enqueue(store, Derive { uncles, ..with_batches("derive_statistical_unit", gated(12)) }).await;

    let workers = [(); 2].map(|()| start(fibers(store, &recorder, &steps, 10)));
    recorder.until("four batches run", |log| log.running == 4).await;
    assert_eq!(store.view(parent).await.state, TaskState::Waiting);
    assert_eq!(steps.names(), ["derive_statistical_unit"]);
    recorder.open_gate();
    until("the last step has run", async || steps.names().len() == 6).await;
    recorder.until("all batches have run", |log| log.ended.len() == 18).await;
    until("all have ended", async || count(&**store, TaskState::Completed).await == 6 + 18).await;

    let expected = [
        "derive_statistical_unit",
        "statistical_unit_flush_staging",
        "derive_reports",
        "derive_statistical_history",
        "derive_statistical_unit_facet",
        "derive_statistical_history_facet",
    ];
    assert_eq!(steps.names(), expected);
    assert_eq!(recorder.log().peak, 4);
    assert_eq!(store.view(parent).await.state, TaskState::Completed);
    let queues = store.queues().await.unwrap();
    assert!(queues.iter().any(|queue| queue.serial == Serial::ON));
    for worker in workers {
        worker.stopped().await;
    }
}
