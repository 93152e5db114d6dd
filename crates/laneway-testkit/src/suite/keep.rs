//! What is kept of ended tasks, for how long, and what is counted of them.

use std::time::Duration;

use jiff::Timestamp;

use super::words::*;

const DAY: Duration = Duration::from_secs(86_400);

async fn count_of(store: &TestStore, name: &str, state: State) -> u64 {
    let counts = store.counts().await.unwrap();
    counts
        .iter()
        .find(|count| count.queue == queue(name) && count.state == state)
        .map_or(0, |count| count.tasks)
}

/// Completes one task of a queue, fails a second and cancels a third; returns them.
async fn one_end_of_each(store: &TestStore, name: &str) -> [TaskId; 3] {
    let tasks = store.given([a_task().queue(name), a_task().queue(name), a_task().queue(name)]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from(name, 3).await;
    let settles = vec![
        claimed[0].settle(Outcome::completed()),
        claimed[1].settle(failed()),
        claimed[2].settle(Outcome::Cancelled { reason: None }),
    ];
    worker.settle_all(settles).await;
    worker.deregister().await;
    tasks
}

/// Lets days pass. History is removed only once every transaction that was under way when it was written is over, which
/// on a server that is shared with other tests takes a moment.
async fn pass_days(store: &TestStore, days: u32) {
    store.advance_clock(DAY * days).await;
    store.maintain().await.unwrap();
}

/// Waits until house-keeping has removed a task.
async fn expect_gone(store: &TestStore, task: TaskId) {
    until("history is removed", async || {
        store.maintain().await.unwrap();
        !is_there(store, task).await
    })
    .await;
}

/// Waits until house-keeping has gathered what is expected, and returns it.
async fn gathered(store: &TestStore, series: Series, expected: impl Fn(&Point) -> bool) -> Point {
    until("statistics are gathered", async || {
        store.maintain().await.unwrap();
        expected(&store.series(series.clone()).await.unwrap()[0])
    })
    .await;
    store.series(series).await.unwrap().remove(0)
}

async fn is_there(store: &TestStore, task: TaskId) -> bool {
    store.get(task).await.unwrap().is_some()
}

fn keep(completed: Keep, failed: Keep) -> QueueSettings {
    QueueSettings { keep_completed: Some(completed), keep_failed: Some(failed), ..Default::default() }
}

pub async fn counts_are_the_same_before_and_after_house_keeping(store: &TestStore) {
    one_end_of_each(store, "a").await;
    let before = store.counts().await.unwrap();

    store.maintain().await.unwrap();
    assert_eq!(store.counts().await.unwrap(), before);
    one_end_of_each(store, "a").await;

    assert_eq!(count_of(store, "a", State::Completed).await, 2);
    assert_eq!(count_of(store, "a", State::Failed).await, 2);
    store.maintain().await.unwrap();
    assert_eq!(count_of(store, "a", State::Cancelled).await, 2);
}

pub async fn the_tasks_of_a_queue_are_counted_by_kind_and_state(store: &TestStore) {
    store.given([a_task().kind("b"), a_task().kind("a"), a_task().kind("a"), a_task().kind("a")]).await;
    store.given([a_task().kind("a").delay(secs(60)), a_task().kind("a").queue("other")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    worker.complete(&claimed[..1]).await;
    worker.settle(&claimed[1], failed()).await;

    let counts = store.counts_by_kind(&queue("default")).await.unwrap();

    let expected = [
        ("a", State::Pending, 1),
        ("a", State::Later, 1),
        ("a", State::Leased, 1),
        ("a", State::Failed, 1),
        ("b", State::Completed, 1),
    ];
    let expected =
        expected.map(|(name, state, tasks)| KindCounts { kind: kind(name), state, tasks, more: false });
    assert_eq!(counts, expected);
    store.maintain().await.unwrap();
    assert_eq!(store.counts_by_kind(&queue("default")).await.unwrap(), expected);
    assert_eq!(store.counts_by_kind(&queue("nobody")).await.unwrap(), []);
}

pub async fn very_many_pending_tasks_are_counted_up_to_a_bound_that_is_told(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 10_001)).await;

    let counts = store.counts().await.unwrap();

    let pending = Counts { queue: queue("default"), state: State::Pending, tasks: 10_000, more: true };
    assert_eq!(counts, [pending]);
    assert!(store.counts_by_kind(&queue("default")).await.unwrap()[0].more);
}

pub async fn a_queue_shows_since_when_its_oldest_task_is_ready(store: &TestStore) {
    store.given([a_task().lane("a").priority(5), a_task().queue("b").delay(secs(1_000))]).await;
    let first = store.view(store.given_one(a_task()).await).await.enqueued_at;
    store.advance_clock(secs(500)).await;
    store.given([a_task().priority(-5), a_task().lane("b"), a_task().queue("c")]).await;
    store.pause_queue(&queue("d")).await.unwrap();

    let queues = store.queues().await.unwrap();

    let named = |name: &str| queues.iter().find(|view| view.queue == queue(name)).cloned();
    let default = named("default").unwrap();
    let off = default.oldest_ready_at.unwrap().duration_since(first).abs();
    assert!(off.as_secs() < 100, "{default:?}");
    assert_eq!(default.paused_at, None);
    let newer = named("c").unwrap().oldest_ready_at.unwrap();
    assert!(newer.duration_since(first).as_secs() >= 400);
    assert!(named("d").unwrap().paused_at.is_some());
    assert_eq!(named("b").unwrap().oldest_ready_at, None);
}

pub async fn a_queue_is_listed_wherever_its_tasks_are(store: &TestStore) {
    store.given([a_task().queue("pending"), a_task().queue("later").delay(secs(1_000))]).await;
    store.given(["leased", "waiting", "ended", "failed"].map(|name| a_task().queue(name))).await;
    let mut worker = store.worker().await;
    let _leased = worker.claim_from("leased", 1).await;
    let parent = worker.claim_from("waiting", 1).await.remove(0);
    let spawned = Spawned { children: vec![a_task().queue("child").into()], ..Default::default() };
    worker.settle_all(vec![parent.settle(Outcome::completed()).spawning(spawned)]).await;
    let ended = worker.claim_from("ended", 1).await;
    worker.complete(&ended).await;
    let last = worker.claim_from("failed", 1).await.remove(0);
    worker.settle(&last, failed()).await;

    let queues = store.queues().await.unwrap();

    for name in ["pending", "later", "leased", "waiting", "child", "ended", "failed"] {
        assert!(queues.iter().any(|view| view.queue == queue(name)), "{name} is missing: {queues:?}");
    }
}

pub async fn a_queue_shows_since_when_its_oldest_parent_waits(store: &TestStore) {
    let parents = store.given([a_task().queue("p"), a_task().queue("p"), a_task().queue("q")]).await;
    let mut worker = store.worker().await;
    let first = worker.claim_from("p", 1).await.remove(0);
    let started = store.view(parents[0]).await.started_at.unwrap();
    let spawned = || Spawned { children: vec![a_task().into()], ..Default::default() };
    worker.settle_all(vec![first.settle(Outcome::completed()).spawning(spawned())]).await;
    store.advance_clock(secs(500)).await;
    let second = worker.claim_from("p", 1).await.remove(0);
    worker.settle_all(vec![second.settle(Outcome::completed()).spawning(spawned())]).await;

    let queues = store.queues().await.unwrap();

    let named = |name: &str| queues.iter().find(|view| view.queue == queue(name)).unwrap().oldest_waiting_at;
    assert_eq!(named("p"), Some(started));
    assert_eq!(named("q"), None);
}

pub async fn a_task_that_was_due_is_ready_since_then(store: &TestStore) {
    let task = store.given_one(a_task().delay(secs(1_000))).await;
    let enqueued_at = store.view(task).await.enqueued_at;
    store.advance_clock(secs(1_100)).await;
    let mut worker = store.worker().await;
    worker.claim_from("other", 1).await;

    let queues = store.queues().await.unwrap();

    let ready_at = queues.iter().find_map(|view| view.oldest_ready_at).unwrap();
    assert_eq!(ready_at.duration_since(enqueued_at).as_secs(), 1_000);
}

pub async fn a_queue_that_keeps_no_successes_leaves_nothing_behind(store: &TestStore) {
    store.set_queue(&queue("a"), keep(Keep::Nothing, Keep::Default)).await.unwrap();

    let [completed, failing, cancelled] = one_end_of_each(store, "a").await;
    let [kept, ..] = one_end_of_each(store, "b").await;

    assert!(!is_there(store, completed).await);
    assert!(
        is_there(store, failing).await && is_there(store, cancelled).await && is_there(store, kept).await
    );
    assert_eq!(count_of(store, "a", State::Completed).await, 0);
    let mut worker = store.worker().await;
    let task = store.given_one(a_task().queue("a")).await;
    let again = worker.claim_from("a", 1).await;
    let verdict = worker.settle(&again[0], retry_after(secs(0))).await;
    assert_eq!(verdict, Verdict::Later);
    let last = worker.claim_from("a", 1).await;
    let result = Outcome::Completed { result: Some(Json::trusted("1")) };
    assert_eq!(worker.settle(&last[0], result).await, Verdict::Completed);
    assert!(!is_there(store, task).await);
    assert_eq!(store.cancel(task).await.unwrap(), Cancel::NotFound);
    assert_eq!(store.failures(task).await.unwrap(), []);
}

pub async fn history_goes_after_seven_days_and_failures_after_thirty(store: &TestStore) {
    let [completed, failing, cancelled] = one_end_of_each(store, "a").await;

    pass_days(store, 7).await;
    assert!(is_there(store, completed).await && is_there(store, cancelled).await);
    pass_days(store, 1).await;
    expect_gone(store, completed).await;
    expect_gone(store, cancelled).await;
    assert!(is_there(store, failing).await);
    assert_eq!(count_of(store, "a", State::Completed).await, 0);
    assert_eq!(count_of(store, "a", State::Failed).await, 1);
    pass_days(store, 23).await;
    expect_gone(store, failing).await;
    assert_eq!(store.counts().await.unwrap(), []);
}

pub async fn house_keeping_tells_what_it_has_removed(store: &TestStore) {
    one_end_of_each(store, "a").await;
    one_end_of_each(store, "b").await;
    let longer = QueueSettings { keep_cancelled: Some(Keep::Days(100)), ..Default::default() };
    store.set_queue(&queue("b"), longer).await.unwrap();
    store.advance_clock(DAY * 40).await;

    let mut removed = std::collections::BTreeMap::<State, u64>::new();
    until("what is over has gone", async || {
        for (state, tasks) in store.maintain().await.unwrap().removed {
            *removed.entry(state).or_default() += tasks;
        }
        removed.values().sum::<u64>() >= 5
    })
    .await;

    let expected = [(State::Completed, 2), (State::Failed, 2), (State::Cancelled, 1)];
    assert_eq!(removed, expected.into());
    assert_eq!(store.total().await, 1);
}

pub async fn every_queue_keeps_its_history_as_long_as_it_says(store: &TestStore) {
    store.set_queue(&queue("short"), keep(Keep::Days(1), Keep::Days(2))).await.unwrap();
    store.set_queue(&queue("long"), keep(Keep::Days(100), Keep::Days(100))).await.unwrap();
    let short = one_end_of_each(store, "short").await;
    let long = one_end_of_each(store, "long").await;

    pass_days(store, 2).await;
    expect_gone(store, short[0]).await;
    assert!(is_there(store, short[1]).await);
    pass_days(store, 60).await;
    expect_gone(store, short[1]).await;
    assert!(is_there(store, long[0]).await && is_there(store, long[1]).await);
    assert_eq!(count_of(store, "long", State::Completed).await, 1);
    pass_days(store, 60).await;
    expect_gone(store, long[0]).await;
    expect_gone(store, long[1]).await;
}

pub async fn settings_of_a_queue_are_shown_and_those_not_named_stay(store: &TestStore) {
    store.set_queue(&queue("a"), keep(Keep::Days(3), Keep::Days(4))).await.unwrap();
    let off = QueueSettings { statistics: Some(false), ..Default::default() };
    store.set_queue(&queue("a"), off).await.unwrap();
    let back = QueueSettings { keep_failed: Some(Keep::Default), ..Default::default() };
    store.set_queue(&queue("a"), back).await.unwrap();

    let queues = store.queues().await.unwrap();

    let [view] = &queues[..] else { panic!("{queues:?}") };
    assert_eq!((view.keep_completed, view.keep_failed), (Keep::Days(3), Keep::Default));
    assert_eq!((view.keep_cancelled, view.statistics), (Keep::Default, false));
}

pub async fn a_changed_setting_of_a_queue_is_recorded_once(store: &TestStore) {
    let ann = Actor::new(ActorName::new("ann").unwrap());
    store.set_queue_by(&ann, &queue("a"), keep(Keep::Days(3), Keep::Days(4))).await.unwrap();
    store.set_queue_by(&ann, &queue("a"), keep(Keep::Days(3), Keep::Days(4))).await.unwrap();
    let off = QueueSettings { statistics: Some(false), ..Default::default() };
    store.set_queue_by(&ann, &queue("a"), off).await.unwrap();

    let entries = store.audit(AuditPage::default()).await.unwrap();

    let [second, first] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((first.action.as_str(), first.subject.as_str(), &first.actor), ("set_queue", "queue a", &ann));
    let json = |json: &Option<Json>| json.as_ref().map(|json| json.decode::<serde_json::Value>().unwrap());
    let shown = |statistics| {
        serde_json::json!({
            "keep_completed_days": 3, "keep_failed_days": 4, "keep_cancelled_days": null, "statistics": statistics, "serial": 0, "lane_limit": 1
        })
    };
    assert_eq!((json(&first.before), json(&first.after)), (None, Some(shown(true))));
    assert_eq!((json(&second.before), json(&second.after)), (Some(shown(true)), Some(shown(false))));
}

pub async fn new_lanes_have_the_limit_of_their_queue(store: &TestStore) {
    let three = QueueSettings { lane_limit: Some(limit_of(3)), ..Default::default() };
    store.given([a_task().lane("old")]).await;
    let mut worker = store.worker().await;
    worker.claim(0).await;

    store.set_queue(&queue("default"), three).await.unwrap();

    store.given_all(tasks_like(a_task().lane("new"), 5)).await;
    store.given_all(tasks_like(a_task().lane_of("told", 2), 5)).await;
    store.given_all(tasks_like(a_task().lane("old"), 5)).await;
    let claimed = worker.claim(100).await;
    let of = |key| claimed.iter().filter(|one| one.task.lane == Some(lane_key(key))).count();
    assert_eq!((of("old"), of("new"), of("told")), (1, 3, 2));
    store.change_lane("made", LaneSettings { interval: Some(secs(0)), ..Default::default() }).await;
    assert_eq!(store.lane_view("made").await.limit, limit_of(3), "also one that an operator makes");
    let view = store.queues().await.unwrap().remove(0);
    assert_eq!(view.lane_limit, limit_of(3));
    worker.complete(&claimed).await;
}

pub async fn days_outside_one_to_3650_are_refused(store: &TestStore) {
    for settings in [
        keep(Keep::Days(0), Keep::Default),
        keep(Keep::Days(3_651), Keep::Default),
        keep(Keep::Default, Keep::Nothing),
    ] {
        let refused = refusal(store.set_queue(&queue("a"), settings).await);
        assert_eq!(refused.code, Code::OutOfRange);
    }
    assert_eq!(store.queues().await.unwrap(), []);
}

pub async fn the_newest_twenty_failed_attempts_are_kept(store: &TestStore) {
    let task = store.given_one(a_task().max_attempts(24)).await;
    let mut worker = store.worker().await;
    for attempt in 1..=24 {
        let claimed = worker.claim_one().await;
        let error = format!("attempt {attempt}");
        worker.settle(&claimed, Outcome::Retry { after: secs(0), error }).await;
    }

    let failures = store.failures(task).await.unwrap();

    assert_eq!(store.state(task).await, State::Failed);
    let attempts: Vec<_> = failures.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (4..=24).rev().collect::<Vec<_>>());
    assert!(failures.iter().all(|failure| failure.error == format!("attempt {}", failure.attempt)));
    assert_eq!(store.failures(TaskId(999)).await.unwrap(), []);
}

fn whole_hour(store_now: Timestamp) -> Series {
    let minutes = store_now.as_second().div_euclid(60) - 30;
    let from = Timestamp::from_second(minutes * 60).unwrap();
    Series { queue: None, from, to: from + secs(3_600), step: secs(3_600) }
}

pub async fn statistics_tell_what_a_queue_did_and_how_long_it_took(store: &TestStore) {
    let task = store.given_one(a_task().queue("a")).await;
    let series = whole_hour(store.view(task).await.enqueued_at);
    store.given_all(tasks_like(a_task().queue("a"), 4)).await;
    store.given_all(tasks_like(a_task().queue("b"), 300)).await;
    store.advance_clock(secs(300)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("a", 4).await;
    store.advance_clock(secs(600)).await;
    worker.complete(&claimed[..2]).await;
    worker.settle_all(vec![claimed[2].settle(failed()), claimed[3].settle(retry_after(secs(0)))]).await;

    let of_a = Series { queue: Some(queue("a")), ..series.clone() };
    let one = gathered(store, of_a, |point| point.started == 4 && point.failed == 1).await;
    let all = &store.series(series.clone()).await.unwrap()[0];
    let minutes = store.series(Series { step: secs(60), ..series.clone() }).await.unwrap();

    assert_eq!((one.enqueued, one.started, one.completed, one.failed), (5, 4, 2, 1));
    assert_eq!(all.enqueued, 305);
    assert_eq!((one.waits.total(), one.runs.total()), (3, 3));
    // Five minutes of waiting and ten of running, and what the test itself took.
    assert_eq!(one.waits.quantile(0.5), Some(Duration::from_millis(524_288)));
    assert_eq!(one.runs.quantile(0.5), Some(Duration::from_millis(1_048_576)));
    assert_eq!(minutes.len(), 60);
    assert_eq!(minutes.iter().map(|point| point.completed).sum::<u64>(), 2);
    assert_eq!(minutes.iter().map(|point| point.enqueued).sum::<u64>(), 305);
    assert_eq!(store.series(Series { queue: Some(queue("no")), ..series }).await.unwrap()[0].enqueued, 0);
}

pub async fn totals_tell_what_each_queue_did(store: &TestStore) {
    let task = store.given_one(a_task().queue("a")).await;
    let Series { from, to, .. } = whole_hour(store.view(task).await.enqueued_at);
    store.given_all(tasks_like(a_task().queue("b"), 3)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("b", 2).await;
    worker.settle_all(vec![claimed[0].settle(Outcome::completed()), claimed[1].settle(failed())]).await;

    until("statistics are gathered", async || {
        store.maintain().await.unwrap();
        store.totals(from, to).await.unwrap().iter().any(|totals| totals.failed == 1)
    })
    .await;

    let totals = store.totals(from, to).await.unwrap();
    let shown: Vec<_> =
        totals.iter().map(|t| (t.queue.as_str(), t.enqueued, t.started, t.completed)).collect();
    assert_eq!(shown, [("a", 1, 0, 0), ("b", 3, 2, 1)]);
    assert!(store.totals(to, to + DAY).await.unwrap().is_empty());
}

pub async fn a_claimed_task_says_how_long_it_was_runnable(store: &TestStore) {
    store.given([a_task(), a_task().delay(secs(1_000))]).await;
    let mut worker = store.worker().await;
    store.advance_clock(secs(10)).await;

    let at_once = worker.advance(|advance| advance.claim(queue("default"), 5)).await.claimed;
    let again = worker.advance_again().await.claimed;
    store.advance_clock(secs(993)).await;
    worker.stay_alive().await;
    let due = worker.claim_one().await;

    // What the test itself took comes on top.
    let is_about = |waited: Duration, seconds| (seconds..seconds + 30).contains(&waited.as_secs());
    assert!(is_about(at_once[0].waited, 10), "{:?}", at_once[0].waited);
    assert_eq!(again[0].waited, at_once[0].waited);
    assert!(is_about(due.waited, 3), "{:?}", due.waited);
}

pub async fn a_store_tells_its_versions_and_what_its_tables_take(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 10)).await;

    let health = store.health().await.unwrap();

    assert!(health.schema_version > 0 && health.database.contains(' '), "{health:?}");
    assert!(health.tables.iter().map(|table| table.bytes).sum::<u64>() > 0, "{health:?}");
    assert!(health.tables.is_sorted_by(|one, next| one.bytes >= next.bytes), "{health:?}");
    assert!(store.meter().statements().iter().any(|(op, times)| *op == "enqueue" && times.count() > 0));
}

pub async fn waiting_counts_from_when_a_task_was_due(store: &TestStore) {
    let task = store.given_one(a_task().delay(secs(1_000))).await;
    let series = whole_hour(store.view(task).await.enqueued_at);
    store.advance_clock(secs(1_300)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    let point = gathered(store, series, |point| point.completed == 1).await;

    assert_eq!(point.waits.quantile(1.0), Some(Duration::from_millis(524_288)));
}

pub async fn a_large_settle_is_counted_whole(store: &TestStore) {
    let tasks = store.given_all(tasks_like(a_task(), 1_000)).await;
    let series = whole_hour(store.view(tasks[0]).await.enqueued_at);
    let mut worker = store.worker().await;
    let claimed = worker.claim(1_000).await;
    worker.complete(&claimed).await;

    let point = gathered(store, series, |point| point.completed > 0 && point.started > 0).await;

    assert_eq!((point.enqueued, point.started, point.completed), (1_000, 1_000, 1_000));
    assert_eq!((point.waits.total(), point.runs.total()), (1_000, 1_000));
}

pub async fn a_queue_without_statistics_has_none(store: &TestStore) {
    let off = QueueSettings { statistics: Some(false), ..Default::default() };
    store.set_queue(&queue("a"), off).await.unwrap();
    let [task, ..] = one_end_of_each(store, "a").await;
    let [other, ..] = one_end_of_each(store, "b").await;
    let series = whole_hour(store.view(task).await.enqueued_at);
    let of_b = Series { queue: Some(store.view(other).await.queue), ..series.clone() };
    gathered(store, of_b, |point| point.completed == 1 && point.started == 3).await;

    let of_a = Series { queue: Some(queue("a")), ..series };
    let points = store.series(of_a.clone()).await.unwrap();

    assert_eq!(points, of_a.empty());
    assert_eq!(count_of(store, "a", State::Completed).await, 1);
}

pub async fn a_queue_that_keeps_no_successes_still_counts_them(store: &TestStore) {
    store.set_queue(&queue("a"), keep(Keep::Nothing, Keep::Default)).await.unwrap();
    let [_, failing, _] = one_end_of_each(store, "a").await;
    let series = whole_hour(store.view(failing).await.enqueued_at);

    let point = gathered(store, series, |point| point.completed == 1 && point.failed == 1).await;

    assert_eq!((point.completed, point.failed, point.cancelled), (1, 1, 1));
}

pub async fn a_series_of_too_many_points_or_odd_steps_is_refused(store: &TestStore) {
    let from: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for (span, step) in [(3_600, 0), (3_600, 90), (200_000, 60), (0, 60)] {
        let series = Series { queue: None, from, to: from + secs(span), step: secs(step) };
        assert_eq!(refusal(store.series(series).await).code, Code::OutOfRange);
    }
}

pub async fn a_lane_that_is_only_needed_later_keeps_its_limit(store: &TestStore) {
    let mut worker = store.worker().await;
    let later = || a_task().lane_of("a", 3).delay(secs(3_000));
    store.given([later(), later(), later()]).await;
    assert_eq!(worker.claim(10).await, []);

    store.advance_clock(secs(2_000)).await;
    store.maintain().await.unwrap();

    assert_eq!(store.lane_view("a").await.limit, LaneLimit::at(3).unwrap());
    store.advance_clock(secs(2_000)).await;
    worker.stay_alive().await;
    assert_eq!(worker.claim(10).await.len(), 3);
}

pub async fn an_empty_lane_remembers_its_limit_for_ten_minutes(store: &TestStore) {
    let mut worker = store.worker().await;
    store.given_one(a_task().lane_of("a", 3)).await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;
    assert_eq!(worker.claim(1).await, []);

    store.maintain().await.unwrap();
    assert_eq!(store.lane_view("a").await.limit, LaneLimit::at(3).unwrap());
    store.advance_clock(secs(500)).await;
    store.maintain().await.unwrap();
    assert_eq!(store.lane_view("a").await.limit, LaneLimit::at(3).unwrap());
    store.advance_clock(secs(200)).await;
    store.maintain().await.unwrap();
    assert_eq!(store.lane(&queue("default"), &lane_key("a")).await.unwrap(), None);
}
