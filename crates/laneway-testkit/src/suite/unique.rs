//! Unique and idempotency keys.

use super::words::*;

/// Enqueues one task and returns the whole answer.
async fn enqueue(store: &TestStore, task: ATask) -> Enqueued {
    store.enqueue(task.into()).await.expect("the task is valid")
}

fn with(on_conflict: OnConflict) -> Unique {
    Unique::new(unique_key("k")).on_conflict(on_conflict)
}

fn while_pending() -> Unique {
    Unique::new(unique_key("k")).scope(KeyScope::WhilePending)
}

fn within(time: std::time::Duration) -> Unique {
    Unique::new(unique_key("k")).scope(KeyScope::Within(time))
}

fn idempotent() -> Unique {
    Unique::idempotent(unique_key("k"))
}

async fn payload(store: &TestStore, id: TaskId) -> String {
    store.view(id).await.payload.expect("a payload").as_str().to_owned()
}

/// The task that a refusal names, with its code.
fn holder(answer: Result<impl std::fmt::Debug, StoreError>) -> (&'static str, TaskId) {
    match answer {
        Err(
            error @ (StoreError::KeyTaken { holder, .. } | StoreError::IdempotencyConflict { holder, .. }),
        ) => (error.code(), holder),
        other => panic!("should have met another task, but the answer was {other:?}"),
    }
}

pub async fn a_second_task_with_the_same_key_is_not_stored(store: &TestStore) {
    let first = enqueue(store, a_task().unique("k")).await;
    let second = enqueue(store, a_task().unique("k")).await;

    assert_eq!(first.effect, Effect::Made);
    assert_eq!(second, Enqueued { id: first.id, effect: Effect::Existing });
    assert_eq!(store.total().await, 1);
    assert_eq!(store.view(first.id).await.options.unique, Some(Unique::new(unique_key("k"))));
}

pub async fn a_key_belongs_to_a_kind_in_a_queue(store: &TestStore) {
    let answers = [
        enqueue(store, a_task().unique("k")).await,
        enqueue(store, a_task().unique("l")).await,
        enqueue(store, a_task().unique("k").kind("other")).await,
        enqueue(store, a_task().unique("k").queue("other")).await,
        enqueue(store, a_task().unique("k").lane("a")).await,
    ];

    let effects = answers.map(|answer| answer.effect);
    assert_eq!(effects, [Effect::Made, Effect::Made, Effect::Made, Effect::Made, Effect::Existing]);
}

pub async fn a_key_is_free_when_its_task_has_ended(store: &TestStore) {
    let mut worker = store.worker().await;
    for outcome in [Outcome::completed(), failed(), Outcome::Completed { result: Some(Json::default()) }] {
        let first = enqueue(store, a_task().unique("k")).await;
        let claimed = worker.claim_one().await;
        let while_it_runs = enqueue(store, a_task().unique("k")).await;

        worker.settle(&claimed, outcome).await;

        assert_eq!(while_it_runs, Enqueued { id: first.id, effect: Effect::Existing });
        let next = enqueue(store, a_task().unique("k")).await;
        assert!(next.is_new());
        store.cancel(next.id).await.unwrap();
    }
}

pub async fn a_key_is_free_when_its_task_was_cancelled(store: &TestStore) {
    for task in [a_task(), a_task().delay(secs(60)), a_task().unique_as(while_pending())] {
        let first = enqueue(store, task.clone().unique("k")).await;

        store.cancel(first.id).await.unwrap();

        let second = enqueue(store, task.unique("k")).await;
        assert!(second.is_new());
        store.cancel(second.id).await.unwrap();
    }
}

pub async fn a_task_that_runs_again_keeps_its_key_until_it_has_ended(store: &TestStore) {
    let first = enqueue(store, a_task().unique("k")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    worker.settle(&claimed, retry_after(secs(5))).await;
    assert_eq!(enqueue(store, a_task().unique("k")).await.id, first.id);
    store.advance_clock(secs(6)).await;
    let claimed = worker.claim_one().await;
    assert_eq!(enqueue(store, a_task().unique("k")).await.id, first.id);
    worker.settle(&claimed, Outcome::GivenBack).await;
    assert_eq!(enqueue(store, a_task().unique("k")).await.id, first.id);
}

pub async fn a_key_outlives_a_dead_worker_and_not_a_poisonous_task(store: &TestStore) {
    let first = enqueue(store, a_task().unique("k")).await;
    for _ in 0..3 {
        let mut worker = store.worker().await;
        let _claimed = worker.claim_one().await;
        assert_eq!(enqueue(store, a_task().unique("k")).await.id, first.id);
        store.sweep_all_but(&mut []).await;
    }

    assert_eq!(store.state(first.id).await, State::Failed);
    assert!(enqueue(store, a_task().unique("k")).await.is_new());
}

pub async fn a_key_while_pending_is_free_when_its_task_starts(store: &TestStore) {
    let first = enqueue(store, a_task().unique_as(while_pending())).await;
    let second = enqueue(store, a_task().unique_as(while_pending())).await;
    let mut worker = store.worker().await;
    let _claimed = worker.claim_one().await;

    let third = enqueue(store, a_task().unique_as(while_pending())).await;

    assert_eq!(second, Enqueued { id: first.id, effect: Effect::Existing });
    assert!(third.is_new());
}

pub async fn a_task_that_comes_back_does_not_take_its_pending_key_again(store: &TestStore) {
    let first = enqueue(store, a_task().unique_as(while_pending())).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    let second = enqueue(store, a_task().unique_as(while_pending())).await;

    worker.settle(&claimed, Outcome::GivenBack).await;
    let third = enqueue(store, a_task().unique_as(while_pending())).await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(0))).await;
    let fourth = enqueue(store, a_task().unique_as(while_pending())).await;

    assert_eq!((claimed.task.id, store.state(first.id).await.has_ended()), (first.id, false));
    assert!(second.is_new());
    assert_eq!([third.id, fourth.id], [second.id; 2]);
    assert_eq!(ids(&worker.claim(5).await), [first.id, second.id]);
}

pub async fn a_key_for_a_time_outlives_its_task_and_ends_with_its_time(store: &TestStore) {
    let first = enqueue(store, a_task().unique_as(within(secs(60)))).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    store.advance_clock(secs(58)).await;
    let early = enqueue(store, a_task().unique_as(within(secs(60)))).await;
    store.advance_clock(secs(2)).await;
    let late = enqueue(store, a_task().unique_as(within(secs(60)))).await;
    let again = enqueue(store, a_task().unique_as(within(secs(60)))).await;

    assert_eq!(early, Enqueued { id: first.id, effect: Effect::Existing });
    assert!(late.is_new());
    assert_eq!(again.id, late.id);
}

pub async fn house_keeping_removes_keys_whose_time_is_over_and_no_others(store: &TestStore) {
    let key = |key: &str, scope| a_task().unique_as(Unique::new(unique_key(key)).scope(scope));
    let over = enqueue(store, key("over", KeyScope::Within(secs(10)))).await;
    let lasts = enqueue(store, key("lasts", KeyScope::Within(secs(60)))).await;
    let open = enqueue(store, key("open", KeyScope::WhileOpen)).await;
    store.advance_clock(secs(11)).await;

    store.maintain().await.unwrap();

    assert!(enqueue(store, key("over", KeyScope::Within(secs(10)))).await.id > over.id);
    assert_eq!(enqueue(store, key("lasts", KeyScope::Within(secs(60)))).await.id, lasts.id);
    assert_eq!(enqueue(store, key("open", KeyScope::WhileOpen)).await.id, open.id);
}

pub async fn a_task_that_shall_be_refused_names_the_one_that_is_there(store: &TestStore) {
    let first = enqueue(store, a_task().unique("k")).await;

    let refused = store.enqueue(a_task().unique_as(with(OnConflict::Reject)).into()).await;

    assert_eq!(holder(refused), ("unique_conflict", first.id));
    assert_eq!(store.total().await, 1);
}

pub async fn a_bulk_with_one_refused_key_stores_nothing(store: &TestStore) {
    let first = enqueue(store, a_task().unique("k").payload("[1]")).await;

    for fillers in [2, 300] {
        let mut bulk: Vec<NewTask> = vec![a_task().lane("a").into(); fillers];
        bulk.push(a_task().unique("other").into());
        bulk.push(a_task().unique_as(with(OnConflict::Replace)).payload("[2]").into());
        bulk.push(a_task().unique_as(with(OnConflict::Reject)).into());
        assert_eq!(holder(store.enqueue_many(bulk).await), ("unique_conflict", first.id));
    }

    assert_eq!(store.total().await, 1);
    assert!(enqueue(store, a_task().unique("other")).await.is_new());
}

pub async fn a_bulk_stores_what_is_new_and_names_what_is_there(store: &TestStore) {
    let there = enqueue(store, a_task().unique("there")).await;

    for (fillers, prefix) in [(3, "few"), (300, "many")] {
        let new = |n: usize| a_task().unique(&format!("{prefix} {n}")).lane("a").payload(&n.to_string());
        let mut bulk: Vec<NewTask> = (0..fillers).map(|n| new(n).into()).collect();
        bulk.insert(1, a_task().unique("there").into());
        bulk.push(new(0).into());
        bulk.push(a_task().delay(secs(5)).into());

        let answers = store.enqueue_many(bulk).await.unwrap();

        assert_eq!(answers[1], Enqueued { id: there.id, effect: Effect::Existing });
        assert_eq!(answers[fillers + 1], Enqueued { id: answers[0].id, effect: Effect::Existing });
        let new: Vec<_> = answers.iter().filter(|answer| answer.is_new()).collect();
        assert_eq!(new.len(), fillers + 1);
        assert!(new.is_sorted());
        assert_eq!(payload(store, answers[2].id).await, "1");
    }
}

pub async fn a_replaced_payload_leaves_everything_else_as_it_was(store: &TestStore) {
    let large = format!("\"{}\"", "x".repeat(3_000));
    for delay in [secs(0), secs(60)] {
        let task = a_task().lane("a").priority(3).delay(delay).payload("[1]").unique("k");
        let first = enqueue(store, task).await;
        let before = store.view(first.id).await;
        for new in ["[2]", &large, "[3]"] {
            let replace = a_task().lane("b").priority(9).payload(new).unique_as(with(OnConflict::Replace));
            let replaced = enqueue(store, replace).await;

            assert_eq!(replaced, Enqueued { id: first.id, effect: Effect::Replaced });
            let expected = TaskView { payload: Some(Json::trusted(new)), ..before.clone() };
            assert_eq!(store.view(first.id).await, expected);
        }
        store.cancel(first.id).await.unwrap();
    }
}

pub async fn merged_payloads_have_the_members_of_both(store: &TestStore) {
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(2_000));
    for (old, new, merged) in [
        (
            r#"{"a": 1.0, "b": [1, 2]}"#,
            r#"{"b": {"c": 1e2}, "d\n": "\u00e4"}"#,
            r#"{"a":1.0,"b":{"c": 1e2},"d\n":"\u00e4"}"#,
        ),
        ("{}", "{}", "{}"),
        ("[1]", r#"{"a": 1}"#, r#"{"a": 1}"#),
        (r#"{"a": 1}"#, "7", "7"),
        (r#"{"a":1}"#, &large, &large.replace('{', r#"{"a":1,"#)),
        (&large, r#"{"a":1}"#, &large.replace('}', r#","a":1}"#)),
    ] {
        let first = enqueue(store, a_task().payload(old).unique("k")).await;

        let answer = enqueue(store, a_task().payload(new).unique_as(with(OnConflict::Merge))).await;

        assert_eq!(answer, Enqueued { id: first.id, effect: Effect::Merged });
        assert_eq!(payload(store, first.id).await, merged);
        let mut worker = store.worker().await;
        let claimed = worker.claim_one().await;
        assert_eq!(claimed.task.payload.as_str(), merged);
        worker.complete(&[claimed]).await;
    }
}

pub async fn a_merged_payload_that_is_too_large_changes_nothing(store: &TestStore) {
    let small = store.with_limits(Limits { payload_bytes_max: 20, ..Limits::default() }).await;
    let first = small.enqueue(a_task().payload(r#"{"a":12345678}"#).unique("k").into()).await.unwrap();

    let more = a_task().payload(r#"{"b":12345678}"#).unique_as(with(OnConflict::Merge));
    let refused = refusal(small.enqueue(more.into()).await);

    assert_eq!(refused.code, Code::PayloadTooLarge);
    assert_eq!(
        refused.message,
        "payload has 27 bytes once merged, the limit is 20; keep the data elsewhere and enqueue a reference"
    );
    assert_eq!(payload(store, first.id).await, r#"{"a":12345678}"#);
}

pub async fn a_task_that_runs_or_has_ended_is_not_changed(store: &TestStore) {
    let mut worker = store.worker().await;
    for change in [OnConflict::Replace, OnConflict::Merge] {
        let task =
            |n: u32| a_task().payload(&format!("[{n}]")).unique_as(within(secs(60)).on_conflict(change));
        let first = enqueue(store, task(1)).await;
        let claimed = worker.claim_one().await;
        let running = enqueue(store, task(2)).await;
        worker.settle(&claimed, Outcome::Completed { result: Some(Json::default()) }).await;
        let ended = enqueue(store, task(3)).await;

        assert_eq!([running, ended], [Enqueued { id: first.id, effect: Effect::Existing }; 2]);
        assert_eq!(payload(store, first.id).await, "[1]");
        store.advance_clock(secs(61)).await;
    }
}

pub async fn a_repeated_enqueue_with_an_idempotency_key_makes_no_second_task(store: &TestStore) {
    let task = || a_task().payload("[1]").lane("a").delay(secs(5)).unique_as(idempotent());
    let first = enqueue(store, task()).await;
    let again = enqueue(store, task()).await;
    store.cancel(first.id).await.unwrap();
    let after_its_end = enqueue(store, task()).await;
    store.advance_clock(secs(24 * 3600)).await;
    let tomorrow = enqueue(store, task()).await;

    assert_eq!([again, after_its_end], [Enqueued { id: first.id, effect: Effect::Existing }; 2]);
    assert!(tomorrow.is_new());
}

pub async fn an_idempotency_key_with_other_content_is_a_conflict(store: &TestStore) {
    let task = || a_task().payload("[1]").unique_as(idempotent());
    let first = enqueue(store, task()).await;

    for other in [
        task().payload("[2]"),
        task().kind("other"),
        task().queue("other"),
        task().priority(1),
        task().lane("a"),
    ] {
        assert_eq!(holder(store.enqueue(other.into()).await), ("idempotency_conflict", first.id));
    }

    assert_eq!(store.total().await, 1);
    assert!(enqueue(store, a_task().unique("k")).await.is_new(), "unique keys are a space of their own");
}

pub async fn of_many_concurrent_enqueues_of_one_key_one_is_stored(store: &TestStore) {
    let handles = [store.handle(), store.another().await];
    for round in 0..5 {
        let calls: Vec<_> = (0..20)
            .map(|n| {
                let (handle, task) = (handles[n % 2].clone(), a_task().unique(&format!("k{round}")));
                tokio::spawn(async move { handle.enqueue(task.into()).await.unwrap() })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }

        assert_eq!(answers.iter().filter(|answer| answer.is_new()).count(), 1);
        assert!(answers.iter().all(|answer| answer.id == answers[0].id));
    }
    assert_eq!(store.total().await, 5);
}

pub async fn keys_that_are_not_valid_are_refused(store: &TestStore) {
    assert_eq!(UniqueKey::new("").unwrap_err().to_string(), "unique.key is empty; a name has 1 to 200 bytes");
    for (unique, says) in [
        (within(secs(0)), "unique.within is 0; allowed is 1 to 2592000000 ms"),
        (within(secs(31 * 24 * 3600)), "unique.within is 2678400000; allowed is 1 to 2592000000 ms"),
        (
            idempotent().scope(KeyScope::WhileOpen),
            "unique.scope of an idempotency key is a length of time; use `Within`",
        ),
    ] {
        let refused = refusal(store.enqueue(a_task().unique_as(unique).into()).await);
        assert_eq!((refused.code, refused.message.as_str()), (Code::OutOfRange, says));
    }
    assert_eq!(store.total().await, 0);
}
