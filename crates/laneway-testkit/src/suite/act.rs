//! What operators do: to tasks, one by one and by filter, to queues, kinds, lanes and workers, and the record of it.

use std::time::Duration;

use super::words::*;

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap()).because("it was time")
}

async fn act<const N: usize>(store: &TestStore, action: Action, tasks: [TaskId; N]) -> [Acted; N] {
    store.act(&ann(), action, &tasks).await.expect("an action").try_into().expect("one answer per task")
}

fn skipped(skip: Skip) -> Acted {
    Acted::Skipped(skip)
}

/// Tasks that have failed, in order.
async fn failed_tasks<const N: usize>(store: &TestStore, tasks: [ATask; N]) -> [TaskId; N] {
    let ids = store.given(tasks).await;
    let mut worker = store.worker().await;
    for _ in 0..N {
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, failed()).await;
    }
    worker.deregister().await;
    ids
}

/// Takes steps until the bulk does not run any more.
async fn drive(store: &TestStore, id: BulkId) -> Bulk {
    for _ in 0..100 {
        let bulk = store.bulk_step(id).await.expect("a step").expect("the bulk is there");
        if bulk.state != BulkState::Running {
            return bulk;
        }
    }
    panic!("the bulk does not end");
}

async fn start(store: &TestStore, action: Action, filter: &str) -> Bulk {
    store.start_bulk(&ann(), NewBulk::new(action, filter.parse().unwrap())).await.expect("a bulk")
}

async fn audit(store: &TestStore) -> Vec<AuditEntry> {
    store.audit(AuditPage::default()).await.expect("the audit")
}

async fn pause(store: &TestStore, what: &Pausable) -> bool {
    store.pause(&ann(), what, None).await.expect("a pause")
}

async fn resume(store: &TestStore, what: &Pausable) -> bool {
    store.resume(&ann(), what).await.expect("an end of a pause")
}

fn the_kind(name: &str) -> Pausable {
    Pausable::Kind(kind(name))
}

fn the_lane(key: &str) -> Pausable {
    Pausable::Lane(queue("default"), lane_key(key))
}

pub async fn an_action_answers_for_each_task(store: &TestStore) {
    let [running, done] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[1..]).await;
    let [pending, later] = store.given([a_task(), a_task().delay(secs(60))]).await;

    let answers = act(store, Action::Cancel, [done, TaskId(999_999), later, running, pending, pending]).await;

    let ended = |state| skipped(Skip::Ended(state));
    let expected = [
        ended(State::Completed),
        skipped(Skip::NotFound),
        Acted::Done,
        Acted::Requested,
        Acted::Done,
        ended(State::Cancelled),
    ];
    assert_eq!(answers, expected);
    assert_eq!(worker.orders(&claimed[..1]).await.cancel, [running]);
}

pub async fn a_failed_task_that_is_retried_starts_anew(store: &TestStore) {
    for payload in ["[7]".to_owned(), format!("\"{}\"", "x".repeat(5_000))] {
        let task = a_task().payload(&payload).max_attempts(3).priority(5).with(|task| task.timeout(secs(9)));
        let id = store.given_one(task).await;
        let mut worker = store.worker().await;
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, retry_after(secs(0))).await;
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, failed()).await;
        let before = store.view(id).await;

        assert_eq!(act(store, Action::Retry, [id]).await, [Acted::Done]);

        let view = store.view(id).await;
        assert_eq!((view.state, view.attempt, view.crashes), (State::Pending, 0, 0));
        assert_eq!(view.error.as_deref(), Some("never works"), "the old errors stay");
        assert_eq!((view.payload, view.options), (before.payload, before.options));
        assert_eq!((view.enqueued_at, view.priority), (before.enqueued_at, 5));
        let claimed = worker.claim_one().await;
        assert_eq!((claimed.task.id, claimed.task.attempt), (id, 1));
        assert_eq!(claimed.task.payload.as_str(), payload);
        worker.complete(&[claimed]).await;
    }
}

pub async fn a_retried_task_has_all_its_attempts_again(store: &TestStore) {
    let id = store.given_one(a_task().max_attempts(2)).await;
    let mut worker = store.worker().await;
    for _ in 0..2 {
        let claimed = worker.claim_one().await;
        worker.settle(&claimed, retry_after(secs(0))).await;
    }
    assert_eq!(store.state(id).await, State::Failed);

    act(store, Action::Retry, [id]).await;

    let claimed = worker.claim_one().await;
    assert_eq!(worker.settle(&claimed, retry_after(secs(0))).await, Verdict::Later);
    let claimed = worker.claim_one().await;
    assert_eq!(worker.settle(&claimed, retry_after(secs(0))).await, Verdict::Failed);
    assert_eq!(store.view(id).await.attempt, 2);
}

pub async fn a_cancelled_task_can_be_retried_and_others_can_not(store: &TestStore) {
    let [completed, running, cancelled, pending, later] =
        store.given([a_task(), a_task(), a_task(), a_task(), a_task().delay(secs(60))]).await;
    store.cancel(cancelled).await.unwrap();
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[..1]).await;

    let answers =
        act(store, Action::Retry, [completed, running, cancelled, pending, later, TaskId(99)]).await;

    let open = skipped(Skip::Open);
    let completed = skipped(Skip::Ended(State::Completed));
    assert_eq!(answers, [completed, open, Acted::Done, open, open, skipped(Skip::NotFound)]);
    assert_eq!(store.state(cancelled).await, State::Pending);
}

pub async fn a_retried_task_goes_back_into_its_lane(store: &TestStore) {
    let [first] = failed_tasks(store, [a_task().lane("a")]).await;
    let [second, third] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(5).await;
    assert_eq!(ids(&claimed), [second]);

    act(store, Action::Retry, [first]).await;
    assert!(worker.claim(5).await.is_empty(), "the lane is at its limit");
    worker.complete(&claimed).await;

    for expected in [first, third] {
        let claimed = worker.claim(5).await;
        assert_eq!(ids(&claimed), [expected]);
        worker.complete(&claimed).await;
    }
}

pub async fn a_retried_task_finds_its_lane_when_that_is_long_gone(store: &TestStore) {
    let [first] = failed_tasks(store, [a_task().lane("a")]).await;
    let later = store.given_one(a_task().lane("b").delay(secs(60))).await;
    store.cancel(later).await.unwrap();
    store.advance_clock(secs(3600)).await;
    store.maintain().await.unwrap();

    assert_eq!(act(store, Action::Retry, [first, later]).await, [Acted::Done; 2]);

    let claimed = store.worker().await.claim(5).await;
    let lanes: Vec<_> = claimed.iter().map(|one| one.task.lane.clone().unwrap()).collect();
    assert_eq!((ids(&claimed), lanes), (vec![first, later], vec![lane_key("a"), lane_key("b")]));
}

pub async fn a_retried_task_takes_its_key_again_if_nobody_holds_it(store: &TestStore) {
    let [first] = failed_tasks(store, [a_task().unique("k")]).await;
    let second = store.enqueue(a_task().unique("k").into()).await.unwrap();
    assert!(second.is_new());

    assert_eq!(act(store, Action::Retry, [first]).await, [skipped(Skip::KeyHeld(second.id))]);
    assert_eq!(store.state(first).await, State::Failed);
    store.cancel(second.id).await.unwrap();
    assert_eq!(act(store, Action::Retry, [first]).await, [Acted::Done]);

    assert_eq!(store.enqueue(a_task().unique("k").into()).await.unwrap().id, first);
}

pub async fn a_task_is_snoozed_until_its_time(store: &TestStore) {
    let [free, head, next] = store.given([a_task(), a_task().lane("a"), a_task().lane("a")]).await;
    let later = store.given_one(a_task().delay(secs(5))).await;

    let answers = act(store, Action::Snooze(secs(60)), [free, head, later]).await;

    assert_eq!(answers, [Acted::Done; 3]);
    let mut worker = store.worker().await;
    store.advance_clock(secs(58)).await;
    let claimed = worker.claim(5).await;
    assert_eq!(ids(&claimed), [next], "others of the lane pass");
    worker.complete(&claimed).await;
    assert_eq!(store.state(later).await, State::Later);
    store.advance_clock(secs(3)).await;
    assert_eq!(ids(&worker.claim(5).await), [free, head, later]);
}

pub async fn a_snoozed_task_in_back_off_keeps_its_turn(store: &TestStore) {
    let [first, _second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(5))).await;

    act(store, Action::Snooze(secs(60)), [first]).await;

    store.advance_clock(secs(10)).await;
    assert!(worker.claim(5).await.is_empty());
    store.advance_clock(secs(51)).await;
    assert_eq!(ids(&worker.claim(5).await), [first]);
}

pub async fn only_a_task_that_waits_is_snoozed_or_gets_another_priority(store: &TestStore) {
    let [done, running] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[..1]).await;

    for action in [Action::Snooze(secs(60)), Action::SetPriority(7)] {
        let answers = act(store, action, [done, running, TaskId(99)]).await;
        let expected = [Skip::Ended(State::Completed), Skip::Running, Skip::NotFound].map(skipped);
        assert_eq!(answers, expected);
    }
    assert!(audit(store).await.is_empty());
}

pub async fn a_deleted_task_is_gone(store: &TestStore) {
    let [failed] = failed_tasks(store, [a_task().lane("a")]).await;
    let large = format!("\"{}\"", "x".repeat(5_000));
    let [held, behind] = store.given([a_task().lane("b"), a_task().lane("b")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(3600))).await;
    let pending = store.given_one(a_task().unique("k").payload(&large)).await;

    let answers = act(store, Action::Delete, [failed, held, pending]).await;

    assert_eq!(answers, [Acted::Done; 3]);
    for id in [failed, held, pending] {
        assert!(store.get(id).await.unwrap().is_none());
    }
    assert_eq!(store.total().await, 1);
    assert_eq!(ids(&worker.claim(5).await), [behind], "the turn that it held is free");
    assert!(store.enqueue(a_task().unique("k").into()).await.unwrap().is_new());
    assert_eq!(act(store, Action::Delete, [failed]).await, [skipped(Skip::NotFound)]);
}

pub async fn a_running_task_and_a_plain_success_are_not_deleted(store: &TestStore) {
    let [plain, running] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[..1]).await;

    let answers = act(store, Action::Delete, [plain, running]).await;

    assert_eq!(answers, [skipped(Skip::Plain), skipped(Skip::Running)]);
    assert_eq!(store.total().await, 2);
}

pub async fn a_task_with_another_priority_goes_where_it_belongs(store: &TestStore) {
    let [a, b, c] = store.given([a_task(), a_task(), a_task()]).await;
    let [d, e, f] = store.given([a_task().lane("l"), a_task().lane("l"), a_task().lane("m")]).await;
    let later = store.given_one(a_task().delay(secs(5))).await;

    let urgent = Action::SetPriority(-10);
    assert_eq!(act(store, urgent, [c, e, later]).await, [Acted::Done; 3]);
    assert_eq!(act(store, urgent, [c]).await, [skipped(Skip::Unchanged)]);
    act(store, Action::SetPriority(10), [a]).await;

    store.advance_clock(secs(6)).await;
    let mut worker = store.worker().await;
    let urgent = worker.claim(3).await;
    assert_eq!(ids(&urgent), [c, e, later]);
    worker.complete(&urgent).await;
    let rest = worker.claim(10).await;
    assert_eq!(ids(&rest), [b, d, f, a]);
    assert_eq!(store.view(a).await.priority, 10);
}

pub async fn a_paused_kind_is_not_claimed(store: &TestStore) {
    let [x, y] = store.given([a_task().kind("x"), a_task().kind("y")]).await;
    let mut worker = store.worker().await;

    assert!(pause(store, &the_kind("x")).await);
    assert!(worker.claim_kinds(&["x"], 5).await.is_empty());
    assert!(!store.is_claimable(&[queue("default")], &Kinds::Only(vec![kind("x")])).await.unwrap());
    assert_eq!(ids(&worker.claim(5).await), [y]);
    assert!(!store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap());
    assert!(resume(store, &the_kind("x")).await);
    assert!(store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap());

    assert_eq!(ids(&worker.claim(5).await), [x]);
    assert!(!resume(store, &the_kind("x")).await);
}

pub async fn a_paused_kind_holds_up_an_ordered_lane_and_is_passed_over_in_a_wider_one(store: &TestStore) {
    let [x, y] = store.given([a_task().kind("x").lane("a"), a_task().kind("y").lane("a")]).await;
    let [v, w] = store.given([a_task().kind("x").lane_of("b", 2), a_task().kind("y").lane_of("b", 2)]).await;
    let mut worker = store.worker().await;

    pause(store, &the_kind("x")).await;
    let meanwhile = worker.claim(5).await;
    resume(store, &the_kind("x")).await;
    let after = worker.claim(5).await;

    assert_eq!((ids(&meanwhile), ids(&after)), (vec![w], vec![x, v]));
    worker.complete(&after).await;
    assert_eq!(ids(&worker.claim(5).await), [y]);
}

pub async fn a_paused_lane_starts_nothing(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let other = store.given_one(a_task().lane("b")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    assert_eq!(ids(&claimed), [first]);

    assert!(pause(store, &the_lane("a")).await);
    worker.complete(&claimed).await;
    let meanwhile = worker.claim(5).await;
    let third = store.given_one(a_task().lane("a").priority(-5)).await;
    let still = worker.claim(5).await;

    assert_eq!((ids(&meanwhile), ids(&still)), (vec![other], vec![]));
    assert!(!store.lane_view("a").await.halted, "no failure has halted it");
    assert!(resume(store, &the_lane("a")).await);
    for expected in [third, second] {
        let claimed = worker.claim(5).await;
        assert_eq!(ids(&claimed), [expected]);
        worker.complete(&claimed).await;
    }
}

pub async fn a_lane_can_be_paused_before_anybody_knows_it(store: &TestStore) {
    pause(store, &the_lane("new")).await;
    store.advance_clock(secs(3600)).await;
    store.maintain().await.unwrap();
    let id = store.given_one(a_task().lane("new")).await;
    let mut worker = store.worker().await;

    assert!(worker.claim(5).await.is_empty());
    assert!(resume(store, &the_lane("new")).await);
    assert_eq!(ids(&worker.claim(5).await), [id]);
}

pub async fn a_lane_that_is_halted_and_paused_needs_both_to_be_ended(store: &TestStore) {
    let settings = LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() };
    store.set_lane(&queue("default"), &lane_key("a"), settings).await.unwrap();
    let [_, next] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    pause(store, &the_lane("a")).await;
    worker.settle(&claimed, failed()).await;

    assert!(store.resume_lane(&queue("default"), &lane_key("a")).await.unwrap());
    assert!(worker.claim(5).await.is_empty());
    assert!(resume(store, &the_lane("a")).await);
    assert_eq!(ids(&worker.claim(5).await), [next]);
}

pub async fn a_pause_ends_by_itself(store: &TestStore) {
    let whats = [Pausable::Queue(queue("default")), the_kind("work"), the_lane("a")];
    let mut worker = store.worker().await;
    for what in whats {
        let id = store.given_one(a_task().lane("a")).await;
        store.pause(&ann(), &what, Some(secs(60))).await.unwrap();

        let advanced = worker.advance(|advance| advance.claim(queue("default"), 5)).await;
        assert!(advanced.claimed.is_empty());
        assert!(advanced.next_due.unwrap() <= secs(60), "a worker knows when to look again");
        store.advance_clock(secs(61)).await;

        assert!(store.is_claimable(&[queue("default")], &Kinds::All).await.unwrap());
        let claimed = worker.claim(5).await;
        assert_eq!(ids(&claimed), [id], "{what:?}");
        worker.complete(&claimed).await;
        assert!(store.pauses().await.unwrap().is_empty());
    }
}

pub async fn pausing_again_changes_how_long(store: &TestStore) {
    let what = Pausable::Queue(queue("default"));
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;

    assert!(store.pause(&ann(), &what, Some(secs(10))).await.unwrap());
    assert!(!store.pause(&ann(), &what, None).await.unwrap());
    store.advance_clock(secs(60)).await;
    assert!(worker.claim(5).await.is_empty());
    assert!(!store.pause(&ann(), &what, Some(secs(10))).await.unwrap());
    store.advance_clock(secs(11)).await;

    assert_eq!(ids(&worker.claim(5).await), [id]);
}

pub async fn pauses_are_listed_with_who_and_why(store: &TestStore) {
    let bob = Actor::new(ActorName::new("bob").unwrap());
    store.pause(&ann(), &the_lane("a"), Some(secs(60))).await.unwrap();
    store.pause(&bob, &the_kind("work"), None).await.unwrap();

    let pauses = store.pauses().await.unwrap();

    let shown: Vec<_> = pauses.iter().map(|pause| (pause.what.clone(), pause.actor.clone())).collect();
    assert_eq!(shown, [(the_lane("a"), ann()), (the_kind("work"), bob)]);
    let lasts = pauses[0].expires_at.unwrap().duration_since(pauses[0].paused_at).unsigned_abs();
    assert!(lasts.abs_diff(secs(60)) < secs(1));
    assert_eq!(pauses[1].expires_at, None);
}

pub async fn a_worker_is_told_to_drain(store: &TestStore) {
    let mut worker = store.worker().await;
    let mut other = store.worker().await;
    assert!(!worker.orders(&[]).await.drain);

    assert!(store.drain(&ann(), worker.session()).await.unwrap());

    assert!(worker.orders(&[]).await.drain && worker.orders(&[]).await.drain);
    assert!(!other.orders(&[]).await.drain);
    assert!(!store.drain(&ann(), worker.session()).await.unwrap(), "it was told before");
    assert!(!store.drain(&ann(), SessionId::random()).await.unwrap());
    assert_eq!(audit(store).await.len(), 1);
}

pub async fn a_worker_is_told_to_stop(store: &TestStore) {
    let mut worker = store.worker().await;
    assert!(!worker.orders(&[]).await.stop);

    assert!(store.stop(&ann(), worker.session()).await.unwrap());

    let orders = worker.orders(&[]).await;
    assert!(orders.stop && !orders.drain);
    assert!(!store.stop(&ann(), worker.session()).await.unwrap(), "it was told before");
    assert!(!store.stop(&ann(), SessionId::random()).await.unwrap());
    assert_eq!(audit(store).await.len(), 1);
}

fn edit(payload: Option<&str>, priority: Option<i32>) -> Edit {
    Edit { payload: payload.map(|text| Json::parse(text).unwrap()), priority }
}

pub async fn an_edited_task_runs_with_what_it_was_given(store: &TestStore) {
    let long = format!("\"{}\"", "x".repeat(5_000));
    for (old, new) in [("1", "2"), ("1", &long), (&long, "3"), (&long, &format!("[{long}]"))] {
        let [first, second] = store.given([a_task(), a_task().payload(old)]).await;

        let edited = store.edit(&ann(), second, edit(Some(new), Some(-7))).await.unwrap();

        assert_eq!(edited, Acted::Done);
        let view = store.view(second).await;
        assert_eq!((view.payload.unwrap().as_str(), view.priority), (new, -7));
        let mut worker = store.worker().await;
        let claimed = worker.claim(2).await;
        assert_eq!(ids(&claimed), [second, first], "the more urgent one goes first");
        assert_eq!(claimed[0].task.payload.as_str(), new);
        worker.complete(&claimed).await;
    }
}

pub async fn a_task_that_is_due_later_or_stands_in_a_lane_is_edited_in_its_place(store: &TestStore) {
    let [head, second, third] =
        store.given([a_task().lane("a"), a_task().lane("a"), a_task().lane("a")]).await;
    let later = store.given_one(a_task().delay(secs(60))).await;

    for task in [head, second, later] {
        assert_eq!(store.edit(&ann(), task, edit(Some("[7]"), None)).await.unwrap(), Acted::Done);
    }
    assert_eq!(store.edit(&ann(), third, edit(None, Some(-1))).await.unwrap(), Acted::Done);

    let mut worker = store.worker().await;
    for expected in [third, head, second] {
        let claimed = worker.claim_one().await;
        assert_eq!(claimed.task.id, expected);
        worker.complete(&[claimed]).await;
    }
    assert_eq!(store.view(later).await.payload.unwrap().as_str(), "[7]");
    assert_eq!(store.state(later).await, State::Later);
}

pub async fn what_runs_or_has_ended_is_not_edited(store: &TestStore) {
    let [running, done] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[1..]).await;

    let change = async |task| store.edit(&ann(), task, edit(Some("2"), Some(1))).await;

    assert_eq!(change(running).await.unwrap(), skipped(Skip::Running));
    assert_eq!(change(done).await.unwrap(), skipped(Skip::Ended(State::Completed)));
    assert_eq!(change(TaskId(999_999)).await.unwrap(), skipped(Skip::NotFound));
    assert!(audit(store).await.is_empty());
    worker.complete(&claimed[..1]).await;
}

pub async fn an_edit_is_recorded_with_how_it_was_and_is(store: &TestStore) {
    let id = store.given_one(a_task().payload("1").priority(3)).await;

    store.edit(&ann(), id, edit(Some("2"), Some(4))).await.unwrap();
    let again = store.edit(&ann(), id, edit(Some("2"), Some(4))).await.unwrap();

    assert_eq!(again, skipped(Skip::Unchanged));
    let entries = audit(store).await;
    assert_eq!(entries.len(), 1);
    let json = |shown: &Option<Json>| {
        serde_json::from_str::<serde_json::Value>(shown.as_ref().unwrap().as_str()).unwrap()
    };
    assert_eq!((entries[0].action.as_str(), entries[0].tasks.as_slice()), ("edit", &[id][..]));
    assert_eq!(json(&entries[0].before), serde_json::json!({"payload": 1, "priority": 3}));
    assert_eq!(json(&entries[0].after), serde_json::json!({"payload": 2, "priority": 4}));
}

pub async fn an_edit_of_nothing_or_out_of_range_is_refused(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let long = format!("\"{}\"", "x".repeat(1_100_000));

    for (edit, code) in [
        (Edit::default(), Code::OutOfRange),
        (edit(None, Some(1_001)), Code::OutOfRange),
        (edit(Some(&long), None), Code::PayloadTooLarge),
    ] {
        assert_eq!(refusal(store.edit(&ann(), id, edit).await).code, code);
    }
    assert!(audit(store).await.is_empty());
}

pub async fn a_bulk_keeps_its_pace_whoever_drives_it(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 25)).await;
    store.advance_clock(secs(1)).await;
    let new = NewBulk::new(Action::Cancel, Filter::default()).pace(10);
    let bulk = store.start_bulk(&ann(), new).await.unwrap();
    assert_eq!((bulk.pace, bulk.step_size(), bulk.pause()), (Some(10), 10, secs(1)));
    let another = store.another().await;
    let matched = |bulk: Option<Bulk>| bulk.expect("the bulk is there").matched;

    assert_eq!(matched(store.bulk_step(bulk.id).await.unwrap()), 10);
    assert_eq!(matched(another.bulk_step(bulk.id).await.unwrap()), 10, "it is ahead of its pace");
    store.advance_clock(secs(60)).await;
    assert_eq!(matched(another.bulk_step(bulk.id).await.unwrap()), 20);
    assert_eq!(drive(store, bulk.id).await.matched, 25);
    for pace in [0, 100_001] {
        let new = NewBulk::new(Action::Cancel, Filter::default()).pace(pace);
        assert_eq!(refusal(store.start_bulk(&ann(), new).await).code, Code::OutOfRange);
    }
}

pub async fn bulks_are_listed_by_state(store: &TestStore) {
    let old = start(store, Action::Retry, "queue:default").await;
    for _ in 0..3 {
        let bulk = start(store, Action::Retry, "queue:default").await;
        drive(store, bulk.id).await;
    }

    let running = BulkPage { state: Some(BulkState::Running), ..BulkPage::default() };
    assert_eq!(store.bulks(running).await.unwrap(), [old]);
    let finished = BulkPage { state: Some(BulkState::Finished), limit: 2, ..BulkPage::default() };
    assert_eq!(store.bulks(finished).await.unwrap().len(), 2);
}

pub async fn a_bulk_acts_on_all_that_its_filter_means_step_by_step(store: &TestStore) {
    let tasks = (0..1_200).map(|n| a_task().kind(if n % 2 == 0 { "x" } else { "y" }).max_attempts(1));
    store.given_all(tasks).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1_200).await;
    worker.settle_all(claimed.iter().map(|one| one.settle(failed())).collect()).await;

    let bulk = start(store, Action::Retry, "state:failed kind:x").await;
    let first = store.bulk_step(bulk.id).await.unwrap().unwrap();
    let last = drive(store, bulk.id).await;

    assert_eq!((bulk.steps, bulk.matched, bulk.state), (0, 0, BulkState::Running));
    assert!(first.steps == 1 && first.matched <= 500 && first.state == BulkState::Running);
    assert_eq!((last.matched, last.done, last.state), (600, 600, BulkState::Finished));
    assert_eq!(store.bulk_step(bulk.id).await.unwrap().unwrap(), last, "it has ended");
    let retried = worker.claim(1_200).await;
    assert_eq!(retried.len(), 600);
    assert!(retried.iter().all(|one| one.task.kind == kind("x")));
}

pub async fn a_dry_run_counts_and_does_nothing(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 700)).await;
    store.given_one(a_task().delay(secs(60))).await;

    let new = NewBulk::new(Action::Cancel, Filter::default()).dry_run();
    let bulk = store.start_bulk(&ann(), new).await.unwrap();
    let last = drive(store, bulk.id).await;

    assert_eq!((last.matched, last.done), (701, 0));
    assert_eq!(store.worker().await.claim(1_000).await.len(), 700);
}

pub async fn a_bulk_can_be_stopped_and_goes_on_where_it_was(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 1_100)).await;
    let bulk = start(store, Action::Cancel, "state:pending").await;
    let first = store.bulk_step(bulk.id).await.unwrap().unwrap();

    assert!(store.set_bulk_state(&ann(), bulk.id, BulkState::Aborted).await.unwrap());
    assert!(!store.set_bulk_state(&ann(), bulk.id, BulkState::Aborted).await.unwrap());
    let stopped = store.bulk_step(bulk.id).await.unwrap().unwrap();
    assert_eq!((stopped.state, stopped.done), (BulkState::Aborted, first.done));
    assert!(store.set_bulk_state(&ann(), bulk.id, BulkState::Running).await.unwrap());
    let last = drive(store, bulk.id).await;

    assert_eq!((last.state, last.done), (BulkState::Finished, 1_100));
    assert!(!store.set_bulk_state(&ann(), bulk.id, BulkState::Aborted).await.unwrap());
}

pub async fn a_bulk_leaves_alone_what_came_after_it(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 3)).await;
    store.advance_clock(secs(1)).await;
    let bulk = start(store, Action::Delete, "").await;
    store.advance_clock(secs(1)).await;
    let after = store.given_one(a_task()).await;

    let last = drive(store, bulk.id).await;

    assert_eq!(last.done, 3);
    assert_eq!(store.state(after).await, State::Pending);
    assert_eq!(store.total().await, 1);
}

pub async fn of_two_who_take_the_same_step_one_does(store: &TestStore) {
    let tasks = store.given_all(tasks_like(a_task(), 3)).await;
    let bulk = start(store, Action::Cancel, "").await;
    let step = BulkStep { bulk: bulk.id, number: 0, tasks, place: 1, after: None, is_last: false };

    assert!(store.record_bulk_step(step.clone()).await.unwrap());
    assert!(!store.record_bulk_step(step).await.unwrap());

    let now = store.bulk(bulk.id).await.unwrap().unwrap();
    assert_eq!((now.steps, now.matched, now.done), (1, 3, 3));
    assert!(store.bulk(BulkId(999)).await.unwrap().is_none());
    assert!(store.bulk_step(BulkId(999)).await.unwrap().is_none());
}

pub async fn a_bulk_meets_tasks_in_every_place_and_ends(store: &TestStore) {
    let running = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    store.given([a_task(), a_task().delay(secs(60)), a_task().delay(secs(3600))]).await;
    store.advance_clock(secs(1)).await;

    let snoozed = drive(store, start(store, Action::Snooze(secs(600)), "").await.id).await;
    let cancelled = drive(store, start(store, Action::Cancel, "").await.id).await;

    assert_eq!((snoozed.done, cancelled.done), (3, 4), "all that waited, and all that had not ended");
    assert_eq!(worker.orders(&claimed).await.cancel, [running]);
}

pub async fn every_action_leaves_one_row_that_says_who_and_what(store: &TestStore) {
    let [one, two] = failed_tasks(store, [a_task(), a_task()]).await;
    store.act(&ann(), Action::Retry, &[one, two, TaskId(99)]).await.unwrap();
    store.act(&ann(), Action::SetPriority(3), &[one]).await.unwrap();
    store.act(&ann(), Action::Retry, &[one]).await.unwrap();
    let settings = LaneSettings { limit: Some(limit_of(4)), ..Default::default() };
    store.set_lane_by(&ann(), &queue("default"), &lane_key("a"), settings).await.unwrap();
    store.pause(&ann(), &the_kind("work"), None).await.unwrap();
    store.resume(&ann(), &the_kind("work")).await.unwrap();

    let entries = audit(store).await;

    let shown: Vec<_> = entries.iter().rev().map(|row| (row.action.as_str(), row.subject.as_str())).collect();
    let task = format!("task {one}");
    let expected = [
        ("retry", "2 tasks"),
        ("set_priority", &*task),
        ("set_lane", "lane default/a"),
        ("pause", "kind work"),
        ("resume", "kind work"),
    ];
    assert_eq!(shown, expected);
    assert!(entries.iter().all(|row| row.actor == ann()));
    let json = |json: &Option<Json>| json.as_ref().unwrap().decode::<serde_json::Value>().unwrap();
    let [.., lane, priority, retry] = &entries[..] else { panic!("five rows") };
    assert_eq!(retry.tasks, [one, two]);
    assert_eq!(
        json(&retry.before),
        serde_json::json!({one.to_string(): "failed", two.to_string(): "failed"})
    );
    assert_eq!(json(&retry.after)[one.to_string()], "pending");
    assert_eq!(
        (&json(&priority.before)[one.to_string()], &json(&priority.after)[one.to_string()]),
        (&0.into(), &3.into())
    );
    assert_eq!((lane.before.is_none(), &json(&lane.after)["limit"]), (true, &4.into()));
}

pub async fn the_audit_is_read_page_by_page(store: &TestStore) {
    for _ in 0..7 {
        pause(store, &the_kind("work")).await;
    }

    let first = store.audit(AuditPage { before: None, limit: 4 }).await.unwrap();
    let second = store.audit(AuditPage { before: Some(first[3].id), limit: 4 }).await.unwrap();

    let numbers: Vec<_> = first.iter().chain(&second).map(|row| row.id).collect();
    assert_eq!(numbers.len(), 7);
    assert!(numbers.is_sorted_by(|a, b| a > b));
}

pub async fn a_bulk_is_recorded_with_its_steps(store: &TestStore) {
    let [id] = store.given([a_task()]).await;
    store.advance_clock(secs(1)).await;
    let bulk = start(store, Action::Cancel, "queue:default").await;
    drive(store, bulk.id).await;

    let entries = audit(store).await;

    let actions: Vec<_> = entries.iter().rev().map(|row| row.action.as_str()).collect();
    assert_eq!(actions, ["start_bulk", "cancel"]);
    assert_eq!((entries[0].tasks.clone(), entries[0].actor.clone()), (vec![id], ann()));
}

pub async fn bulks_are_listed_newest_first_in_pages(store: &TestStore) {
    let mut started = vec![];
    for _ in 0..3 {
        started.insert(0, start(store, Action::Retry, "queue:default").await);
    }

    let first = store.bulks(BulkPage { limit: 2, ..BulkPage::default() }).await.unwrap();
    let second =
        store.bulks(BulkPage { before: Some(first[1].id), limit: 2, ..BulkPage::default() }).await.unwrap();

    assert_eq!([first, second].concat(), started);
    let page = BulkPage { limit: 501, ..BulkPage::default() };
    assert_eq!(refusal(store.bulks(page).await).code, Code::OutOfRange);
}

pub async fn actions_that_are_not_valid_are_refused(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let years = Duration::from_secs(6 * 366 * 86_400);

    for (action, tasks, code) in [
        (Action::SetPriority(1_001), 1, Code::OutOfRange),
        (Action::Snooze(years), 1, Code::TimeOutOfRange),
        (Action::Cancel, 1_001, Code::BulkTooLarge),
    ] {
        assert_eq!(refusal(store.act(&ann(), action, &vec![id; tasks]).await).code, code);
    }
    let bulk = NewBulk::new(Action::SetPriority(-1_001), Filter::default());
    assert_eq!(refusal(store.start_bulk(&ann(), bulk).await).code, Code::OutOfRange);
    for expires in [Duration::ZERO, secs(31 * 86_400)] {
        let refused = refusal(store.pause(&ann(), &the_kind("work"), Some(expires)).await);
        assert_eq!((refused.code, refused.field), (Code::OutOfRange, "pause.expires"));
    }
    for limit in [0, 501] {
        let page = AuditPage { before: None, limit };
        assert_eq!(refusal(store.audit(page).await).code, Code::OutOfRange);
    }
    assert_eq!(ActorName::new("").unwrap_err().code, Code::InvalidName);
    assert!(audit(store).await.is_empty());
    assert_eq!(ids(&store.worker().await.claim(5).await), [id]);
}
