//! Falling asleep without missing a task, and being woken.

use super::words::*;

const WARM_UP: &str = "warm-up";

/// A worker that sleeps on the default queue, and the receiver of its hints.
///
/// A store may need a moment until its listener hears, so this enqueues elsewhere until a first hint has come.
async fn asleep(store: &TestStore) -> (TestWorker, Hints) {
    let worker = store.worker().await;
    let mut hints = store.hints();
    hints.clear();
    fall_asleep(store, &worker).await;
    until("the listener hears", async || {
        store.given_one(a_task().queue(WARM_UP)).await;
        hints.is_pending()
    })
    .await;
    hints.clear();
    (worker, hints)
}

async fn fall_asleep(store: &TestStore, worker: &TestWorker) -> Fence {
    let queues = vec![queue("default"), queue(WARM_UP)];
    store.fall_asleep(Sleep { session: worker.session(), queues, at_most: secs(60) }).await.unwrap()
}

/// Waits for a hint that is about the default queue.
async fn hinted(hints: &mut Hints) {
    let hint = async {
        loop {
            let hint = hints.next().await.expect("the store is open");
            if hint.queue.is_none_or(|name| name == queue("default")) {
                return;
            }
        }
    };
    soon("a hint", hint).await;
}

pub async fn a_sleeper_is_hinted_by_an_enqueue(store: &TestStore) {
    let (mut worker, mut hints) = asleep(store).await;

    let id = store.given_one(a_task()).await;

    hinted(&mut hints).await;
    assert_eq!(ids(&worker.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_by_a_bulk_into_lanes(store: &TestStore) {
    let (mut worker, mut hints) = asleep(store).await;

    store.given([a_task().lane("a"), a_task().lane("b")]).await;

    hinted(&mut hints).await;
    assert_eq!(worker.claim(10).await.len(), 2);
}

pub async fn a_sleeper_is_hinted_when_something_will_be_due_before_it_wakes(store: &TestStore) {
    let (mut worker, mut hints) = asleep(store).await;

    store.given_one(a_task().delay(secs(5))).await;

    hinted(&mut hints).await;
    let advanced = worker.advance(|advance| advance.claim(queue("default"), 1)).await;
    assert!(advanced.next_due.is_some_and(|due| due <= secs(5)));
}

pub async fn a_sleeper_is_hinted_when_a_settle_frees_a_lane(store: &TestStore) {
    let [_, next] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut busy = store.worker().await;
    let running = busy.claim(1).await;
    let (mut sleeper, mut hints) = asleep(store).await;

    busy.complete(&running).await;

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [next]);
}

pub async fn a_sleeper_is_hinted_when_a_task_is_given_back(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut busy = store.worker().await;
    let running = busy.claim_one().await;
    let (mut sleeper, mut hints) = asleep(store).await;

    busy.settle(&running, Outcome::GivenBack).await;

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_when_a_worker_stops(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut busy = store.worker().await;
    let _running = busy.claim_one().await;
    let (mut sleeper, mut hints) = asleep(store).await;

    busy.deregister().await;

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_when_a_dead_workers_tasks_are_swept(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let _running = store.worker().await.claim_one().await;
    let (mut sleeper, mut hints) = asleep(store).await;

    store.sweep_all_but(&mut [&mut sleeper]).await;

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_when_a_queue_is_resumed(store: &TestStore) {
    store.pause_queue(&queue("default")).await.unwrap();
    let id = store.given_one(a_task()).await;
    let (mut sleeper, mut hints) = asleep(store).await;

    store.resume_queue(&queue("default")).await.unwrap();

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_when_a_kind_or_a_lane_is_resumed(store: &TestStore) {
    let actor = Actor::program();
    for what in [Pausable::Kind(kind("work")), Pausable::Lane(queue("default"), lane_key("a"))] {
        store.pause(&actor, &what, None).await.unwrap();
        let id = store.given_one(a_task().lane("a")).await;
        let (mut sleeper, mut hints) = asleep(store).await;

        store.resume(&actor, &what).await.unwrap();

        hinted(&mut hints).await;
        let claimed = sleeper.claim(1).await;
        assert_eq!(ids(&claimed), [id]);
        sleeper.complete(&claimed).await;
        sleeper.deregister().await;
    }
}

pub async fn a_sleeper_is_hinted_when_a_task_is_retried(store: &TestStore) {
    let id = store.given_one(a_task().lane("a")).await;
    store.cancel(id).await.unwrap();
    let (mut sleeper, mut hints) = asleep(store).await;

    store.act(&Actor::program(), Action::Retry, &[id]).await.unwrap();

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(1).await), [id]);
}

pub async fn a_sleeper_is_hinted_when_a_lane_may_run_more(store: &TestStore) {
    let [_, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut busy = store.worker().await;
    let _running = busy.claim_one().await;
    let (mut sleeper, mut hints) = asleep(store).await;

    store.limit_lane("a", 2).await;

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(10).await), [second]);
}

pub async fn a_sleeper_is_hinted_when_a_halted_lane_is_resumed(store: &TestStore) {
    let halting = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
    store.change_lane("a", halting).await;
    let [_, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut busy = store.worker().await;
    let running = busy.claim_one().await;
    busy.settle(&running, failed()).await;
    let (mut sleeper, mut hints) = asleep(store).await;

    store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap();

    hinted(&mut hints).await;
    assert_eq!(ids(&sleeper.claim(10).await), [second]);
}

pub async fn a_fence_is_passed_once_nothing_older_is_under_way(store: &TestStore) {
    let worker = store.worker().await;

    let fence = fall_asleep(store, &worker).await;

    until("the fence is passed", async || store.fence_passed(fence).await.unwrap()).await;
    store.wake_up(worker.session()).await.unwrap();
}

pub async fn waking_up_without_having_slept_is_harmless(store: &TestStore) {
    store.wake_up(SessionId::random()).await.unwrap();
}

pub async fn falling_asleep_twice_is_one_sleep(store: &TestStore) {
    let (worker, mut hints) = asleep(store).await;
    fall_asleep(store, &worker).await;

    store.given_one(a_task()).await;

    hinted(&mut hints).await;
    store.wake_up(worker.session()).await.unwrap();
}

/// The whole protocol: an enqueue at any moment of falling asleep is either claimed or hinted.
pub async fn a_task_enqueued_while_a_worker_falls_asleep_is_not_missed(store: &TestStore) {
    let (mut worker, mut hints) = asleep(store).await;
    let full = |advance: Advance| advance.claim(queue("default"), 10);

    for round in 0..20 {
        hints.clear();
        let enqueuer = tokio::spawn({
            let store = store.handle();
            async move { store.enqueue(a_task().into()).await.unwrap().id }
        });
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let fence = fall_asleep(store, &worker).await;
        let mut claimed = Vec::new();
        until("the worker sleeps or has found the task", async || {
            let passed = store.fence_passed(fence).await.unwrap();
            claimed = worker.advance(full).await.claimed;
            let sees = store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap();
            !claimed.is_empty() || (passed && !sees)
        })
        .await;
        if claimed.is_empty() {
            hinted(&mut hints).await;
            claimed = worker.advance(full).await.claimed;
        }
        assert_eq!(ids(&claimed), [enqueuer.await.unwrap()]);
        worker.complete(&claimed).await;
    }
}

pub async fn what_can_be_claimed_is_visible_before_falling_asleep(store: &TestStore) {
    let here = [queue("default")];
    let visible = async || store.is_claimable(&here, &Kinds::All).await.unwrap();
    let mut worker = store.worker().await;

    assert!(!visible().await, "nothing is there");
    store.given([a_task()]).await;
    assert!(visible().await, "a free task");
    let _running = worker.claim(10).await;
    assert!(!visible().await, "it runs");
    store.given([a_task().lane("a"), a_task().lane("a")]).await;
    assert!(visible().await, "a lane's head");
    let laned = worker.claim(10).await;
    assert!(!visible().await, "the lane is at its limit");
    worker.complete(&laned).await;
    assert!(visible().await, "the lane's next task");
}

pub async fn what_is_due_is_visible_before_falling_asleep(store: &TestStore) {
    let here = [queue("default")];
    store.given([a_task().delay(secs(10))]).await;

    assert!(!store.is_claimable(&here, &Kinds::All).await.unwrap());
    store.advance_clock(secs(11)).await;

    assert!(store.is_claimable(&here, &Kinds::All).await.unwrap());
}

pub async fn what_cannot_be_claimed_does_not_keep_a_worker_awake(store: &TestStore) {
    store.given([a_task().queue("other"), a_task().queue("kinds").kind("x"), a_task().queue("paused")]).await;
    store.pause_queue(&queue("paused")).await.unwrap();
    let only_y = Kinds::Only(vec![kind("y")]);

    assert!(!store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap());
    assert!(!store.is_claimable(&[queue("kinds")], &only_y).await.unwrap());
    assert!(!store.is_claimable(&[queue("paused")], &Kinds::All).await.unwrap());
    assert!(store.is_claimable(&[queue("default"), queue("other")], &Kinds::All).await.unwrap());
}

pub async fn a_sleeper_is_hinted_when_a_schedule_will_fire_before_it_wakes(store: &TestStore) {
    let (mut worker, mut hints) = asleep(store).await;
    let name = ScheduleName::new("s").unwrap();

    store.put_schedule(Schedule::new(name.clone(), Rule::Every(secs(5)), a_task().into())).await.unwrap();
    hinted(&mut hints).await;
    let advanced = worker.advance(|advance| advance.claim(queue("default"), 1)).await;
    assert!(advanced.next_due.is_some_and(|due| due <= secs(5)));

    store.pause_schedule(&name).await.unwrap();
    fall_asleep(store, &worker).await;
    hints.clear();
    store.resume_schedule(&name).await.unwrap();
    hinted(&mut hints).await;
}

pub async fn a_sleeper_is_hinted_when_a_schedule_fires(store: &TestStore) {
    let name = ScheduleName::new("s").unwrap();
    store.put_schedule(Schedule::new(name, Rule::Every(secs(1_000)), a_task().into())).await.unwrap();
    store.advance_clock(secs(1_000)).await;
    let (mut worker, mut hints) = asleep(store).await;

    let fired = store.fire_due().await.unwrap();

    hinted(&mut hints).await;
    assert_eq!(ids(&worker.claim(1).await), fired.tasks);
}

pub async fn a_cancel_and_a_drain_tell_the_worker_that_it_has_orders(store: &TestStore) {
    let task = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    let mut hints = store.hints();
    until("hints arrive", async || store.is_listening()).await;
    hints.clear();

    store.cancel(task).await.unwrap();
    let told = orders_of(&mut hints).await;
    assert!(worker.session().to_string().starts_with(&told) && told.len() >= 8);
    assert_eq!(worker.orders(std::slice::from_ref(&claimed)).await.cancel, [task]);

    store.drain(&Actor::program(), worker.session()).await.unwrap();
    assert_eq!(orders_of(&mut hints).await, told);
}

/// Whose orders the next hint of that sort is about.
async fn orders_of(hints: &mut Hints) -> String {
    loop {
        let hint = soon("a hint of orders", hints.next()).await.expect("the store is there");
        if let Some(session) = hint.orders {
            return session;
        }
    }
}
