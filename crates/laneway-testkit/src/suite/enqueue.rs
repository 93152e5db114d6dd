//! What is stored when a task is enqueued.

use std::collections::BTreeMap;

use super::words::*;

pub async fn an_enqueued_task_is_pending_with_everything_it_was_given(store: &TestStore) {
    let retry = RetryPolicy::List { delays_ms: vec![100, 5_000] };
    let trace = BTreeMap::from([("traceparent".to_owned(), "00-ab-cd-01".to_owned())]);
    let task =
        a_task().kind("mail.receipt").queue("mail").priority(-7).max_attempts(3).payload(r#"{"order":7}"#);
    let task = task.with(|task| NewTask {
        retry: retry.clone(),
        timeout: Some(secs(9)),
        tags: vec![Tag::new("blue").unwrap()],
        trace: trace.clone(),
        ..task
    });

    let id = store.given_one(task).await;

    let view = store.view(id).await;
    assert_eq!((view.id, view.state), (id, State::Pending));
    assert_eq!((view.kind, view.queue, view.lane), (kind("mail.receipt"), queue("mail"), None));
    assert_eq!((view.priority, view.max_attempts, view.attempt, view.crashes), (-7, 3, 0, 0));
    assert_eq!(view.payload.unwrap().as_str(), r#"{"order":7}"#);
    let tags = vec![Tag::new("blue").unwrap()];
    let options =
        TaskOptions { timeout_ms: Some(9_000), retry: Some(retry), tags, trace, ..Default::default() };
    assert_eq!(view.options, options);
    assert_eq!((view.result, view.error, view.worker), (None, None, None));
    assert_eq!((view.due_at, view.started_at, view.ended_at), (None, None, None));
}

pub async fn a_task_without_settings_has_the_written_defaults(store: &TestStore) {
    let id = store.given_one(a_task()).await;

    let view = store.view(id).await;
    assert_eq!((view.queue, view.lane, view.priority), (queue("default"), None, 0));
    assert_eq!((view.max_attempts, view.parent, view.depth), (25, None, 0));
    assert_eq!(view.options, TaskOptions::default());
    assert!(!view.cancel_requested);
}

pub async fn a_lane_is_kept_with_the_task(store: &TestStore) {
    let id = store.given_one(a_task().lane("customer:7")).await;
    assert_eq!(store.view(id).await.lane, Some(lane_key("customer:7")), "also before a worker has met it");

    let claimed = store.worker().await.claim_one().await;

    assert_eq!(claimed.task.lane, Some(lane_key("customer:7")));
    assert_eq!(store.view(id).await.lane, Some(lane_key("customer:7")));
}

pub async fn ids_ascend_in_the_order_of_a_bulk(store: &TestStore) {
    let tasks = (0..100).map(|n| a_task().payload(&n.to_string()));

    let ids = store.given_all(tasks).await;

    assert_eq!(ids.len(), 100);
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(store.view(id).await.payload.unwrap().as_str(), n.to_string());
    }
}

pub async fn ids_ascend_from_call_to_call_over_all_handles(store: &TestStore) {
    let another = store.another().await;

    let first = store.given_one(a_task()).await;
    let second = another.enqueue(a_task().into()).await.unwrap().id;
    let [third, fourth] = store.given([a_task().lane("a"), a_task().delay(secs(5))]).await;

    assert!(first < second && second < third && third < fourth);
}

pub async fn a_bulk_with_one_bad_task_stores_nothing(store: &TestStore) {
    let bulk = vec![a_task().into(), a_task().lane("a").priority(1_001).into(), a_task().into()];

    let refused = refusal(store.enqueue_many(bulk).await);

    assert_eq!((refused.code, refused.field), (Code::OutOfRange, "priority"));
    assert!(refused.message.starts_with("task 1: "), "{}", refused.message);
    assert_eq!(store.total().await, 0);
}

pub async fn an_empty_bulk_is_an_empty_answer(store: &TestStore) {
    assert_eq!(store.enqueue_many(vec![]).await.unwrap(), []);
    assert_eq!(store.total().await, 0);
}

pub async fn a_bulk_may_mix_queues_lanes_delays_and_kinds(store: &TestStore) {
    let [free, laned, other, late] = store
        .given([
            a_task(),
            a_task().lane_of("a", 2).kind("x"),
            a_task().queue("other").lane("a"),
            a_task().delay(secs(60)).lane("a"),
        ])
        .await;

    let mut worker = store.worker().await;
    let here = worker.claim(10).await;
    let there = worker.claim_from("other", 10).await;

    assert_eq!(ids(&here), [free, laned]);
    assert_eq!(ids(&there), [other]);
    assert_eq!(store.state(late).await, State::Later);
}

pub async fn a_bulk_of_thousands_arrives_whole(store: &TestStore) {
    let tasks =
        (0..5_000).map(|n| if n % 2 == 0 { a_task() } else { a_task().lane(&format!("l{}", n % 50)) });

    let stored = store.given_all(tasks).await;

    assert_eq!(stored.len(), 5_000);
    let pending = Counts { queue: queue("default"), state: State::Pending, tasks: 5_000, more: false };
    assert_eq!(store.counts().await.unwrap(), [pending]);
}

/// A store may leave out what all tasks of a bulk have in common, and must not lose what one has alone.
pub async fn the_one_odd_task_of_a_large_bulk_keeps_what_it_says(store: &TestStore) {
    let large = format!("\"{}\"", "x".repeat(5_000));
    let odd = [
        a_task().priority(-7),
        a_task().max_attempts(3),
        a_task().with(|task| NewTask { timeout: Some(secs(9)), ..task }),
        a_task().lane("a"),
        a_task().delay(secs(60)),
        a_task().payload(&large),
        a_task().queue("other").kind("other"),
    ];
    for odd in odd {
        let mut bulk = tasks_like(a_task(), 250);
        bulk[100] = odd.clone();

        let stored = store.given_all(bulk).await;

        let task: NewTask = odd.into();
        let view = store.view(stored[100]).await;
        assert_eq!((view.kind, view.queue), (task.kind.clone(), task.queue.clone()));
        assert_eq!(view.lane, task.lane.as_ref().map(|lane| lane.key.clone()));
        assert_eq!((view.priority, view.max_attempts), (task.priority, task.max_attempts));
        assert_eq!(view.options, TaskOptions::of(&task));
        assert_eq!(view.payload.as_ref(), Some(&task.payload));
        let state = if task.when == When::Now { State::Pending } else { State::Later };
        assert_eq!((view.state, view.due_at.is_some()), (state, state == State::Later));
        let beside = store.view(stored[99]).await;
        assert_eq!((beside.priority, beside.max_attempts, beside.lane), (0, 25, None));
        assert_eq!((beside.state, beside.options), (State::Pending, TaskOptions::default()));
    }
}

pub async fn a_payload_keeps_its_text(store: &TestStore) {
    let text = r#"{ "b": 1.50, "a": [1e3, -0, "\ud83d\ude00 \" \\"],  "ä": null }"#;

    let id = store.given_one(a_task().payload(text)).await;

    assert_eq!(store.view(id).await.payload.unwrap().as_str(), text);
    assert_eq!(store.worker().await.claim_one().await.task.payload.as_str(), text);
}

pub async fn a_payload_of_exactly_one_mebibyte_is_accepted(store: &TestStore) {
    let text = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));

    let id = store.given_one(a_task().payload(&text)).await;

    assert_eq!(store.view(id).await.payload.unwrap().as_str(), text);
    assert_eq!(store.worker().await.claim_one().await.task.payload.as_str(), text);
}

pub async fn payloads_around_every_thousand_bytes_arrive_whole(store: &TestStore) {
    let texts =
        [998, 999, 1_000, 1_001, 2_000, 8_191, 100_000].map(|bytes| format!("\"{}\"", "y".repeat(bytes - 2)));

    store.given_all(texts.iter().map(|text| a_task().payload(text))).await;

    let claimed = store.worker().await.claim(10).await;
    let arrived: Vec<_> = claimed.iter().map(|one| one.task.payload.as_str()).collect();
    assert_eq!(arrived, texts);
}

pub async fn names_may_have_any_printable_character(store: &TestStore) {
    let longest = "ü".repeat(100);
    for name in ["päckchen / ünïcode.1", "o'brien\"; drop table task; --", "{a,b}\\", "%_$1", &longest] {
        let id = store.given_one(a_task().kind(name).queue(name).lane(name)).await;

        let claimed = store.worker().await.claim_from(name, 10).await;

        assert_eq!(ids(&claimed), [id]);
        let task = &claimed[0].task;
        assert_eq!((task.kind.as_str(), task.queue.as_str()), (name, name));
        assert_eq!(task.lane, Some(lane_key(name)));
    }
}

pub async fn a_task_is_seen_through_another_handle_at_once(store: &TestStore) {
    let another = store.another().await;

    let id = store.given_one(a_task().lane("a")).await;

    assert_eq!(another.get(id).await.unwrap().unwrap().state, State::Pending);
    let claimed = TestWorker::register(another).await.claim(1).await;
    assert_eq!(ids(&claimed), [id]);
}

pub async fn concurrent_enqueues_are_all_stored_under_ids_of_their_own(store: &TestStore) {
    let handles = [store.handle(), store.another().await];

    let calls = (0..60).map(|n| {
        let handle = handles[n % 2].clone();
        tokio::spawn(
            async move { handle.enqueue(a_task().lane(&format!("l{}", n % 7)).into()).await.unwrap() },
        )
    });
    let calls: Vec<_> = calls.collect();
    let mut stored = Vec::new();
    for call in calls {
        stored.push(call.await.unwrap());
    }

    stored.sort_unstable();
    stored.dedup();
    assert_eq!(stored.len(), 60);
    assert_eq!(store.total().await, 60);
}

pub async fn a_refused_task_does_not_harm_its_concurrent_neighbours(store: &TestStore) {
    let good = || store.enqueue(a_task().into());

    let (first, refused, second) =
        tokio::join!(good(), store.enqueue(a_task().priority(5_000).into()), good());

    assert_eq!(refusal(refused).code, Code::OutOfRange);
    assert_eq!(store.state(first.unwrap().id).await, State::Pending);
    assert_eq!(store.state(second.unwrap().id).await, State::Pending);
    assert_eq!(store.total().await, 2);
}
