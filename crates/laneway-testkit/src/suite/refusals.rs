//! Input that is refused: with a stable code, the field, and nothing stored.

use std::time::Duration;

use jiff::{Timestamp, ToSpan};

use super::words::*;

/// Enqueues a task that must be refused, alone and in a bulk.
async fn refused(store: &TestStore, task: ATask, code: &str, field: &str) {
    let task = NewTask::from(task);
    let alone = refusal(store.enqueue(task.clone()).await);
    let in_bulk = refusal(store.enqueue_many(vec![a_task().into(), task]).await);

    for refused in [alone, in_bulk] {
        assert_eq!((refused.code.as_str(), refused.field), (code, field), "{}", refused.message);
    }
    assert_eq!(store.total().await, 0, "something was stored");
}

/// Checks input that is refused before a store can see it.
async fn unmade<T: std::fmt::Debug>(
    store: &TestStore,
    made: Result<T, InvalidInput>,
    code: &str,
    field: &str,
) {
    let refused = made.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.field), (code, field), "{}", refused.message);
    assert_eq!(store.total().await, 0);
}

pub async fn a_payload_over_one_mebibyte(store: &TestStore) {
    let text = format!("\"{}\"", "x".repeat(1024 * 1024 - 1));

    refused(store, a_task().payload(&text), "payload_too_large", "payload").await;
}

pub async fn a_payload_over_the_limit_that_was_configured(store: &TestStore) {
    let small = store.with_limits(Limits { payload_bytes_max: 10, bulk_max: 2, ..Default::default() }).await;
    small.enqueue(a_task().payload("[1,2,3,45]").into()).await.unwrap();

    let refused = refusal(small.enqueue(a_task().payload("[1,2,3,456]").into()).await);

    assert_eq!((refused.code, refused.field), (Code::PayloadTooLarge, "payload"));
    assert!(refused.message.contains("11 bytes, the limit is 10"), "{}", refused.message);
    assert_eq!(store.total().await, 1);
}

pub async fn a_bulk_over_the_limit_that_was_configured(store: &TestStore) {
    let small = store.with_limits(Limits { bulk_max: 2, ..Default::default() }).await;
    small.enqueue_many(vec![a_task().into(); 2]).await.unwrap();

    let refused = refusal(small.enqueue_many(vec![a_task().into(); 3]).await);

    assert_eq!((refused.code, refused.field), (Code::BulkTooLarge, "tasks"));
    assert_eq!(store.total().await, 2);
}

pub async fn a_bulk_over_a_hundred_thousand(store: &TestStore) {
    let refused = refusal(store.enqueue_many(vec![a_task().into(); 100_001]).await);

    assert_eq!((refused.code, refused.field), (Code::BulkTooLarge, "tasks"));
    assert_eq!(store.total().await, 0);
}

pub async fn a_payload_that_is_nested_too_deeply(store: &TestStore) {
    let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));

    unmade(store, Json::parse(deep(65)), "payload_too_deep", "payload").await;
    store.given_one(a_task().payload(&deep(64))).await;
    assert_eq!(store.worker().await.claim_one().await.task.payload.as_str(), deep(64));
}

pub async fn a_payload_with_a_nul_character(store: &TestStore) {
    for text in [r#""a\u0000b""#, r#"{"\u0000":1}"#] {
        unmade(store, Json::parse(text), "nul_not_allowed", "payload").await;
    }
    unmade(store, Json::encode(&"a\0b"), "nul_not_allowed", "payload").await;
}

pub async fn a_payload_with_half_a_surrogate_pair(store: &TestStore) {
    for text in [r#""\ud800""#, r#""\udc00 x""#, r#""\ud800\u0041""#] {
        unmade(store, Json::parse(text), "invalid_unicode", "payload").await;
    }
}

pub async fn a_payload_with_a_number_that_fits_nowhere(store: &TestStore) {
    for text in ["9223372036854775808", "-9223372036854775809", "[1e400]", r#"{"n":-1e309}"#] {
        unmade(store, Json::parse(text), "number_out_of_range", "payload").await;
    }
    store.given_one(a_task().payload("[9223372036854775807,-9223372036854775808,1.7e308]")).await;
}

pub async fn a_payload_that_is_not_json(store: &TestStore) {
    for text in ["", "{", "{} x", "NaN", "'a'"] {
        unmade(store, Json::parse(text), "invalid_json", "payload").await;
    }
}

pub async fn an_empty_name(store: &TestStore) {
    unmade(store, Kind::new(""), "invalid_name", "kind").await;
    unmade(store, QueueName::new(""), "invalid_name", "queue").await;
    unmade(store, LaneKey::new(""), "invalid_name", "lane").await;
    unmade(store, Tag::new(""), "invalid_name", "tag").await;
}

pub async fn a_name_over_two_hundred_bytes(store: &TestStore) {
    let long = "ü".repeat(101);

    unmade(store, Kind::new(&*long), "invalid_name", "kind").await;
    unmade(store, QueueName::new(&*long), "invalid_name", "queue").await;
    unmade(store, LaneKey::new(&*long), "invalid_name", "lane").await;
    unmade(store, Tag::new(long), "invalid_name", "tag").await;
}

pub async fn a_name_with_characters_that_nobody_sees(store: &TestStore) {
    for text in ["a\0b", "a\nb", "a\u{7f}", "a\u{202E}b", " a", "a ", "a\u{85}"] {
        unmade(store, Kind::new(text), "invalid_name", "kind").await;
        unmade(store, QueueName::new(text), "invalid_name", "queue").await;
        unmade(store, LaneKey::new(text), "invalid_name", "lane").await;
        unmade(store, Tag::new(text), "invalid_name", "tag").await;
    }
}

pub async fn a_priority_outside_a_thousand(store: &TestStore) {
    for priority in [1_001, -1_001, i32::MIN, i32::MAX] {
        refused(store, a_task().priority(priority), "out_of_range", "priority").await;
    }
}

pub async fn attempts_outside_one_to_a_thousand(store: &TestStore) {
    for attempts in [0, 1_001, u32::MAX] {
        refused(store, a_task().max_attempts(attempts), "out_of_range", "max_attempts").await;
    }
}

pub async fn a_lane_limit_outside_one_to_a_million(store: &TestStore) {
    for limit in [0, 1_000_001, u32::MAX] {
        unmade(store, LaneLimit::at(limit), "out_of_range", "lane.limit").await;
    }
    store.given([a_task().lane_of("a", 1), a_task().lane_of("b", 1_000_000)]).await;
}

pub async fn a_negative_delay(store: &TestStore) {
    for secs in [-1.0, -0.001, f64::NAN, f64::INFINITY] {
        unmade(store, laneway_core::validate::delay_from_secs(secs), "out_of_range", "delay").await;
    }
}

pub async fn a_delay_of_more_than_five_years(store: &TestStore) {
    for delay in [secs(5 * 366 * 86_400 + 1), Duration::MAX] {
        refused(store, a_task().delay(delay), "time_out_of_range", "delay").await;
    }
    store.given_one(a_task().delay(secs(5 * 366 * 86_400))).await;
}

pub async fn a_due_time_before_the_year_2000(store: &TestStore) {
    let early = [Timestamp::MIN, "1999-12-31T23:59:59Z".parse().unwrap()];
    for due in early {
        refused(store, a_task().with(|task| task.at(due)), "time_out_of_range", "due").await;
    }
}

pub async fn a_due_time_more_than_five_years_ahead(store: &TestStore) {
    let late = [Timestamp::MAX, Timestamp::now() + (5 * 367 * 24).hours()];
    for due in late {
        refused(store, a_task().with(|task| task.at(due)), "time_out_of_range", "due").await;
    }
}

pub async fn a_timeout_of_nothing_or_of_months(store: &TestStore) {
    for timeout in [Duration::ZERO, secs(31 * 86_400)] {
        refused(store, a_task().with(|task| task.timeout(timeout)), "out_of_range", "timeout").await;
    }
}

pub async fn a_retry_policy_without_steps_or_with_endless_ones(store: &TestStore) {
    let month_ms = 31 * 86_400_000;
    for delays_ms in [vec![], vec![1; 101], vec![month_ms]] {
        let policy = RetryPolicy::List { delays_ms };
        refused(store, a_task().with(|task| task.retry(policy)), "out_of_range", "retry").await;
    }
}

pub async fn more_than_thirty_two_tags(store: &TestStore) {
    let tags = vec![Tag::new("blue").unwrap(); 33];

    refused(store, a_task().with(|task| NewTask { tags, ..task }), "out_of_range", "tags").await;
}

pub async fn a_trace_context_with_control_characters(store: &TestStore) {
    let trace = [("traceparent".to_owned(), "a\nb".to_owned())].into();

    refused(store, a_task().with(|task| NewTask { trace, ..task }), "invalid_name", "trace").await;
}

pub async fn a_page_of_none_or_of_more_than_five_hundred(store: &TestStore) {
    for place in [Place::Pending, Place::Later, Place::Leased, Place::Waiting, Place::Ended] {
        for limit in [0, 501, u32::MAX] {
            let refused = refusal(store.list(Listing::of(place).limit(limit)).await);
            assert_eq!((refused.code, refused.field), (Code::OutOfRange, "limit"));
        }
    }
}

pub async fn a_lane_interval_of_more_than_thirty_days(store: &TestStore) {
    let settings = LaneSettings { interval: Some(secs(31 * 86_400)), ..Default::default() };

    let refused = refusal(store.set_lane(&queue("default"), &lane_key("a"), settings).await);

    assert_eq!((refused.code, refused.field), (Code::OutOfRange, "lane.interval"));
    assert_eq!(store.lane(&queue("default"), &lane_key("a")).await.unwrap(), None);
}
