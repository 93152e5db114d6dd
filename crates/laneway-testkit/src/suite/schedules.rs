//! Tasks that are enqueued again and again.
//!
//! Intervals are a thousand seconds, so that the moments that a test itself takes never decide anything.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::words::*;

const INTERVAL: Duration = Duration::from_secs(1_000);

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

/// A schedule `s` that fires every thousand seconds.
fn a_schedule() -> Schedule {
    Schedule::new(name("s"), Rule::Every(INTERVAL), a_task().into())
}

/// Puts a schedule, which must be valid.
async fn put(store: &TestStore, schedule: Schedule) -> ScheduleView {
    store.put_schedule(schedule).await.unwrap()
}

/// The schedule `s`, which must exist.
async fn seen(store: &TestStore) -> ScheduleView {
    store.schedule(&name("s")).await.unwrap().unwrap()
}

/// Lets this many intervals pass.
async fn intervals(store: &TestStore, n: u32) {
    store.advance_clock(INTERVAL * n).await;
}

/// Fires what is due and returns the tasks.
async fn fire(store: &TestStore) -> Vec<TaskId> {
    store.fire_due().await.unwrap().tasks
}

/// The fire times of tasks, as the number of the interval.
async fn fired_at(store: &TestStore, tasks: &[TaskId]) -> Vec<i64> {
    let anchor = seen(store).await.anchor_at;
    let mut numbers = vec![];
    for task in tasks {
        let at = store.view(*task).await.options.fire.unwrap().at.unwrap();
        let since = at.duration_since(anchor);
        assert_eq!(since.as_micros() % INTERVAL.as_micros() as i128, 0, "{at} is not on the beat");
        numbers.push(since.as_secs() / INTERVAL.as_secs() as i64);
    }
    numbers
}

pub async fn a_new_schedule_has_all_that_it_was_given_and_a_next_fire(store: &TestStore) {
    let task =
        a_task().kind("report").queue("reports").lane_of("daily", 2).payload(r#"{"b": 1.50, "a": [ ]}"#);
    let task = task.priority(-3).delay(secs(5)).max_attempts(4).with(|task| {
        let retry = RetryPolicy::List { delays_ms: vec![1, 2] };
        NewTask { trace: [("traceparent".into(), "00-1".into())].into(), ..task }
            .timeout(secs(9))
            .retry(retry)
            .tag(Tag::new("night").unwrap())
    });
    let schedule = Schedule::new(
        name("nightly report"),
        Rule::cron("*/5 30 2 * * MON-FRI", "Europe/Berlin"),
        task.into(),
    );
    let schedule = schedule.missed(Missed::All { cap: 7 }).overlap(Overlap::SkipWhileOpen);

    let put = put(store, schedule.clone()).await;

    let seen = store.schedule(&schedule.name).await.unwrap().unwrap();
    assert_eq!(seen, put);
    assert_eq!(seen.schedule, schedule);
    assert_eq!((seen.paused_at, seen.last_fire_at, seen.last_task, seen.overdue), (None, None, None, None));
    assert!(seen.next_fire_at.unwrap() > Timestamp::now());
    assert_eq!(store.schedule(&name("another")).await.unwrap(), None);
}

pub async fn a_schedule_fires_when_its_time_has_come_and_not_before(store: &TestStore) {
    put(store, a_schedule()).await;

    assert!(fire(store).await.is_empty());
    store.advance_clock(INTERVAL - secs(30)).await;
    assert!(fire(store).await.is_empty());
    store.advance_clock(secs(31)).await;
    let tasks = fire(store).await;

    assert_eq!(fired_at(store, &tasks).await, [1]);
    assert!(fire(store).await.is_empty(), "it fired twice");
    assert_eq!(ids(&store.worker().await.claim(10).await), tasks);
}

pub async fn a_fired_task_has_everything_that_the_schedule_says_and_its_fire_time(store: &TestStore) {
    let text = r#"{"z": 1,  "a": "ä"}"#;
    let task =
        a_task().kind("report").queue("reports").lane("daily").payload(text).priority(7).max_attempts(3);
    let before = put(
        store,
        Schedule::new(name("s"), Rule::Every(INTERVAL), task.with(|task| task.timeout(secs(9))).into()),
    )
    .await;
    intervals(store, 1).await;

    let [task] = fire(store).await[..] else { panic!("one task") };

    let view = store.view(task).await;
    assert_eq!(
        (view.kind.as_str(), view.queue.as_str(), view.priority, view.max_attempts),
        ("report", "reports", 7, 3)
    );
    assert_eq!(view.payload.unwrap().as_str(), text);
    assert_eq!(view.options.timeout_ms, Some(9_000));
    assert_eq!(view.options.fire, Some(Fire { schedule: name("s"), at: before.next_fire_at }));
    let after = seen(store).await;
    assert_eq!((after.last_fire_at, after.last_task), (before.next_fire_at, Some(task)));
    let claimed = store.worker().await.claim_from("reports", 1).await;
    assert_eq!(claimed[0].task.lane, Some(lane_key("daily")));
    assert_eq!(claimed[0].task.options.fire.as_ref().unwrap().at, before.next_fire_at);
}

pub async fn a_scheduled_task_with_a_delay_waits_after_its_fire(store: &TestStore) {
    put(store, Schedule::new(name("s"), Rule::Every(INTERVAL), a_task().delay(secs(50)).into())).await;
    intervals(store, 1).await;

    let tasks = fire(store).await;

    assert_eq!(store.state(tasks[0]).await, State::Later);
    store.advance_clock(secs(51)).await;
    assert_eq!(ids(&store.worker().await.claim(1).await), tasks);
}

pub async fn an_interval_keeps_its_beat_however_late_it_is_fired(store: &TestStore) {
    put(store, a_schedule().missed(Missed::Once)).await;

    store.advance_clock(INTERVAL + secs(400)).await;
    let late = fire(store).await;
    store.advance_clock(INTERVAL - secs(390)).await;
    let on_time = fire(store).await;

    assert_eq!(fired_at(store, &late).await, [1]);
    assert_eq!(fired_at(store, &on_time).await, [2]);
}

pub async fn a_cron_schedule_fires_at_the_times_of_its_zone(store: &TestStore) {
    let rule = Rule::cron("30 2 * * *", "America/New_York");
    let view = put(store, Schedule::new(name("s"), rule.clone(), a_task().into())).await;
    let [first, second] = rule.preview(Timestamp::now(), 2).unwrap()[..] else { panic!("two fires") };
    assert_eq!(view.next_fire_at, Some(first));
    assert_eq!(view.preview(2).unwrap(), [first, second]);

    store.advance_clock(first.duration_since(Timestamp::now()).unsigned_abs() + secs(1)).await;
    let tasks = fire(store).await;

    assert_eq!(tasks.len(), 1);
    assert_eq!(seen(store).await.next_fire_at, Some(second));
}

pub async fn missed_fires_are_skipped_unless_told_otherwise(store: &TestStore) {
    put(store, a_schedule()).await;
    store.advance_clock(INTERVAL * 5 + secs(300)).await;

    let fired = store.fire_due().await.unwrap();

    assert_eq!((fired.tasks, fired.skipped), (vec![], 1));
    let after = seen(store).await;
    assert_eq!(after.next_fire_at.unwrap(), after.anchor_at + INTERVAL * 6);
    assert_eq!((after.last_task, after.overdue), (None, None));
    assert_eq!(store.total().await, 0);
}

pub async fn missed_fires_can_be_made_up_for_once(store: &TestStore) {
    put(store, a_schedule().missed(Missed::Once)).await;
    store.advance_clock(INTERVAL * 5 + secs(300)).await;

    let tasks = fire(store).await;

    assert_eq!(fired_at(store, &tasks).await, [5]);
    assert!(fire(store).await.is_empty());
}

pub async fn all_missed_fires_can_be_made_up_for(store: &TestStore) {
    put(store, a_schedule().missed(Missed::All { cap: 100 })).await;
    store.advance_clock(INTERVAL * 5 + secs(300)).await;

    let tasks = fire(store).await;

    assert_eq!(fired_at(store, &tasks).await, [1, 2, 3, 4, 5]);
    assert!(tasks.is_sorted());
    assert!(fire(store).await.is_empty());
}

pub async fn of_too_many_missed_fires_the_last_are_made_up_for(store: &TestStore) {
    put(store, a_schedule().missed(Missed::All { cap: 3 })).await;
    store.advance_clock(INTERVAL * 50 + secs(300)).await;

    let tasks = fire(store).await;

    assert_eq!(fired_at(store, &tasks).await, [48, 49, 50]);
    assert_eq!(seen(store).await.last_task, tasks.last().copied());
}

pub async fn a_schedule_may_overlap_itself(store: &TestStore) {
    put(store, a_schedule()).await;

    intervals(store, 1).await;
    fire(store).await;
    intervals(store, 1).await;
    fire(store).await;

    assert_eq!(store.worker().await.claim(10).await.len(), 2);
}

pub async fn a_schedule_that_may_not_overlap_waits_for_the_end_of_its_task(store: &TestStore) {
    put(store, a_schedule().overlap(Overlap::SkipWhileOpen)).await;
    let mut worker = store.worker().await;
    let skips = async |worker: &mut TestWorker| {
        intervals(store, 1).await;
        worker.stay_alive().await;
        let fired = store.fire_due().await.unwrap();
        assert_eq!((fired.tasks, fired.skipped), (vec![], 1));
    };
    intervals(store, 1).await;
    worker.stay_alive().await;
    let [task] = fire(store).await[..] else { panic!("one task") };

    skips(&mut worker).await; // pending
    let claimed = worker.claim_one().await;
    skips(&mut worker).await; // leased
    worker.settle(&claimed, retry_after(INTERVAL * 2)).await;
    skips(&mut worker).await; // later
    intervals(store, 1).await;
    worker.stay_alive().await;
    let again = worker.claim_one().await;
    assert_eq!(again.task.id, task);
    worker.settle(&again, Outcome::Failed { error: "enough".into() }).await;

    let tasks = fire(store).await;
    assert_eq!(fired_at(store, &tasks).await, [5]);
}

pub async fn a_schedule_that_may_not_overlap_makes_up_for_what_it_missed_with_one_task(store: &TestStore) {
    put(store, a_schedule().missed(Missed::All { cap: 10 }).overlap(Overlap::SkipWhileOpen)).await;
    store.advance_clock(INTERVAL * 4 + secs(300)).await;

    let tasks = fire(store).await;

    assert_eq!(fired_at(store, &tasks).await, [4]);
}

pub async fn a_cancelled_task_is_not_open(store: &TestStore) {
    put(store, a_schedule().overlap(Overlap::SkipWhileOpen)).await;
    intervals(store, 1).await;
    let first = fire(store).await;
    store.cancel(first[0]).await.unwrap();

    intervals(store, 1).await;

    assert_eq!(fire(store).await.len(), 1);
}

pub async fn a_fire_whose_key_is_taken_is_skipped(store: &TestStore) {
    for (place, rule) in [OnConflict::Existing, OnConflict::Reject].into_iter().enumerate() {
        let key = Unique::new(UniqueKey::new(format!("key {place}")).unwrap()).on_conflict(rule);
        let task = a_task().with(|task| task.unique(key));
        let all = Missed::All { cap: 10 };
        put(store, Schedule::new(name("s"), Rule::Every(INTERVAL), task.into()).missed(all)).await;
        store.advance_clock(INTERVAL * 3 + secs(300)).await;
        let [first] = fire(store).await[..] else { panic!("one task for one key") };

        intervals(store, 1).await;
        let fired = store.fire_due().await.unwrap();

        assert_eq!((fired.tasks, fired.skipped), (vec![], 1));
        assert_eq!(store.run_schedule(&name("s")).await.unwrap(), Ran::Open(first));
        store.cancel(first).await.unwrap();
        intervals(store, 1).await;
        assert_eq!(fire(store).await.len(), 1);
        store.remove_schedule(&name("s")).await.unwrap();
    }
}

pub async fn a_paused_schedule_does_not_fire_and_makes_up_for_nothing(store: &TestStore) {
    put(store, a_schedule().missed(Missed::All { cap: 10 })).await;

    assert!(store.pause_schedule(&name("s")).await.unwrap());
    assert!(!store.pause_schedule(&name("s")).await.unwrap());
    let paused = seen(store).await;
    assert!(paused.paused_at.is_some() && paused.next_fire_at.is_none());
    assert_eq!(paused.preview(3).unwrap(), []);
    store.advance_clock(INTERVAL * 3 + secs(300)).await;
    assert_eq!(store.fire_due().await.unwrap(), Fired::default());

    assert!(store.resume_schedule(&name("s")).await.unwrap());
    assert!(!store.resume_schedule(&name("s")).await.unwrap());
    assert!(fire(store).await.is_empty());
    intervals(store, 1).await;
    let tasks = fire(store).await;
    assert_eq!(fired_at(store, &tasks).await, [4]);
}

pub async fn a_schedule_can_be_run_by_hand_without_moving_its_next_fire(store: &TestStore) {
    let before = put(store, a_schedule()).await;

    let Ran::Enqueued(first) = store.run_schedule(&name("s")).await.unwrap() else {
        panic!("it may overlap")
    };

    let after = seen(store).await;
    assert_eq!((after.next_fire_at, after.last_fire_at), (before.next_fire_at, None));
    assert_eq!(after.last_task, Some(first));
    assert_eq!(store.view(first).await.options.fire, Some(Fire { schedule: name("s"), at: None }));
    intervals(store, 1).await;
    let tasks = fire(store).await;
    assert_eq!(fired_at(store, &tasks).await, [1]);
    store.pause_schedule(&name("s")).await.unwrap();
    assert!(matches!(store.run_schedule(&name("s")).await.unwrap(), Ran::Enqueued(_)));
    assert_eq!(seen(store).await.next_fire_at, None);
}

pub async fn a_run_by_hand_counts_as_open_where_overlap_is_not_allowed(store: &TestStore) {
    put(store, a_schedule().overlap(Overlap::SkipWhileOpen)).await;
    let Ran::Enqueued(task) = store.run_schedule(&name("s")).await.unwrap() else {
        panic!("nothing is open")
    };

    assert_eq!(store.run_schedule(&name("s")).await.unwrap(), Ran::Open(task));
    intervals(store, 1).await;
    assert_eq!(store.fire_due().await.unwrap().skipped, 1);

    assert_eq!(store.total().await, 1);
}

pub async fn putting_the_same_rule_again_leaves_the_next_fire_alone(store: &TestStore) {
    let before = put(store, a_schedule()).await;
    store.advance_clock(INTERVAL / 2).await;

    let changed =
        Schedule::new(name("s"), Rule::Every(INTERVAL), a_task().kind("other").into()).missed(Missed::Once);
    let after = put(store, changed).await;

    assert_eq!((after.next_fire_at, after.anchor_at), (before.next_fire_at, before.anchor_at));
    store.advance_clock(INTERVAL / 2).await;
    let tasks = fire(store).await;
    assert_eq!(store.view(tasks[0]).await.kind, kind("other"));
}

pub async fn a_changed_rule_sets_the_next_fire_anew(store: &TestStore) {
    put(store, a_schedule()).await;
    store.advance_clock(INTERVAL * 3 + secs(300)).await;

    let changed =
        Schedule::new(name("s"), Rule::Every(INTERVAL * 10), a_task().into()).missed(Missed::All { cap: 9 });
    let after = put(store, changed).await;

    assert_eq!(after.next_fire_at.unwrap(), after.anchor_at + INTERVAL * 10);
    assert!(fire(store).await.is_empty(), "fires of the old rule are gone with it");
    intervals(store, 10).await;
    assert_eq!(fire(store).await.len(), 1);
}

pub async fn a_paused_schedule_stays_paused_when_it_is_changed(store: &TestStore) {
    put(store, a_schedule()).await;
    store.pause_schedule(&name("s")).await.unwrap();

    let after = put(store, Schedule::new(name("s"), Rule::cron("* * * * *", "UTC"), a_task().into())).await;

    assert!(after.paused_at.is_some() && after.next_fire_at.is_none());
    assert_eq!(seen(store).await, after);
    assert!(store.resume_schedule(&name("s")).await.unwrap());
    let next = seen(store).await.next_fire_at.unwrap();
    assert!(next.duration_since(Timestamp::now()) <= SignedDuration::from_secs(60));
}

pub async fn a_removed_schedule_fires_no_more_and_its_tasks_stay(store: &TestStore) {
    put(store, a_schedule()).await;
    intervals(store, 1).await;
    let tasks = fire(store).await;
    intervals(store, 1).await;

    assert!(store.remove_schedule(&name("s")).await.unwrap());

    assert!(!store.remove_schedule(&name("s")).await.unwrap());
    assert!(fire(store).await.is_empty());
    assert_eq!(store.schedule(&name("s")).await.unwrap(), None);
    assert_eq!(ids(&store.worker().await.claim(10).await), tasks);
}

pub async fn what_is_unknown_is_answered_and_changes_nothing(store: &TestStore) {
    let nobody = name("nobody");

    assert!(!store.pause_schedule(&nobody).await.unwrap());
    assert!(!store.resume_schedule(&nobody).await.unwrap());
    assert!(!store.remove_schedule(&nobody).await.unwrap());
    assert_eq!(store.run_schedule(&nobody).await.unwrap(), Ran::NotFound);

    assert_eq!(store.schedules(None, 10).await.unwrap(), []);
    assert_eq!(store.total().await, 0);
}

pub async fn however_many_fire_at_once_each_fire_time_counts_once(store: &TestStore) {
    let handles = [store.another().await, store.another().await, store.handle()];
    for number in 0..5 {
        put(store, Schedule::new(name(&format!("s{number}")), Rule::Every(INTERVAL), a_task().into())).await;
    }
    let mut tasks = vec![];
    for _ in 0..4 {
        intervals(store, 1).await;

        let [first, second, third] = handles.each_ref().map(|handle| handle.fire_due());
        let (first, second, third) = tokio::join!(first, second, third);

        tasks.extend([first, second, third].into_iter().flat_map(|fired| fired.unwrap().tasks));
        // Whoever came second to a schedule may have left others to the first one; nothing is left behind.
        tasks.extend(fire(store).await);
    }

    let mut fires = vec![];
    for task in &tasks {
        let fire = store.view(*task).await.options.fire.unwrap();
        fires.push((fire.schedule, fire.at));
    }
    fires.sort();
    fires.dedup();
    assert_eq!((tasks.len(), fires.len()), (20, 20));
}

pub async fn changing_a_schedule_while_it_fires_loses_and_doubles_nothing(store: &TestStore) {
    put(store, a_schedule()).await;
    let (firing, changing) = (store.another().await, store.another().await);
    let mut tasks = vec![];
    for round in 0..8_u32 {
        intervals(store, 1).await;

        let changed = a_schedule().missed(if round % 2 == 0 { Missed::Once } else { Missed::Skip });
        let (fired, changed) = tokio::join!(firing.fire_due(), changing.put_schedule(changed));

        changed.unwrap();
        tasks.extend(fired.unwrap().tasks);
        tasks.extend(fire(store).await);
    }

    assert_eq!(fired_at(store, &tasks).await, [1, 2, 3, 4, 5, 6, 7, 8]);
}

pub async fn an_idle_worker_is_told_when_the_next_schedule_fires(store: &TestStore) {
    put(store, a_schedule()).await;
    let mut worker = store.worker().await;

    let advanced = worker.advance(|advance| advance.claim(queue("default"), 1)).await;

    let until = advanced.next_due.unwrap();
    assert!(until <= INTERVAL && until > INTERVAL - secs(60), "{until:?}");
    store.pause_schedule(&name("s")).await.unwrap();
    let advanced = worker.advance(|advance| advance.claim(queue("default"), 1)).await;
    assert_eq!(advanced.next_due, None);
}

pub async fn schedules_are_listed_by_name_in_pages(store: &TestStore) {
    for text in ["b", "d", "a", "c"] {
        put(store, Schedule::new(name(text), Rule::Every(INTERVAL), a_task().into())).await;
    }
    let names = |page: Vec<ScheduleView>| {
        page.into_iter().map(|view| view.schedule.name.to_string()).collect::<Vec<_>>()
    };

    assert_eq!(names(store.schedules(None, 3).await.unwrap()), ["a", "b", "c"]);
    assert_eq!(names(store.schedules(Some(&name("c")), 3).await.unwrap()), ["d"]);
    assert_eq!(names(store.schedules(Some(&name("d")), 3).await.unwrap()), [""; 0]);
    for limit in [0, 501] {
        assert_eq!(refusal(store.schedules(None, limit).await).code, Code::OutOfRange);
    }
}

pub async fn a_schedule_that_nobody_fires_is_shown_as_overdue(store: &TestStore) {
    put(store, a_schedule()).await;
    assert_eq!(seen(store).await.overdue, None);

    store.advance_clock(INTERVAL + secs(500)).await;

    let overdue = store.schedules(None, 1).await.unwrap()[0].overdue.unwrap();
    assert!(overdue >= secs(500) && overdue < secs(600), "{overdue:?}");
}

pub async fn more_schedules_than_one_call_fires_are_fired_by_the_next(store: &TestStore) {
    for number in 0..130 {
        put(store, Schedule::new(name(&format!("s{number}")), Rule::Every(INTERVAL), a_task().into())).await;
    }
    intervals(store, 1).await;

    let (first, second) = (store.fire_due().await.unwrap(), store.fire_due().await.unwrap());

    assert_eq!((first.tasks.len(), first.more), (100, true));
    assert_eq!((second.tasks.len(), second.more), (30, false));
}

pub async fn a_preview_is_bounded(store: &TestStore) {
    let view = put(store, a_schedule()).await;

    let fires = view.preview(100).unwrap();

    assert_eq!(fires.len(), 100);
    assert_eq!(fires[99], view.anchor_at + INTERVAL * 100);
    for n in [0, 101] {
        assert_eq!(view.preview(n).unwrap_err().code, Code::OutOfRange);
        assert_eq!(view.schedule.rule.preview(view.anchor_at, n).unwrap_err().code, Code::OutOfRange);
    }
}

pub async fn bad_schedules_are_refused_and_change_nothing(store: &TestStore) {
    let before = put(store, a_schedule()).await;
    let large = a_task().payload(&format!("\"{}\"", "x".repeat(900_000)));
    let with = |rule| Schedule { rule, ..a_schedule() };
    let task = |task: ATask| Schedule { task: task.into(), ..a_schedule() };
    for (schedule, code, field) in [
        (with(Rule::cron("* * * *", "UTC")), "invalid_schedule", "cron"),
        (with(Rule::cron("61 * * * *", "UTC")), "invalid_schedule", "cron"),
        (with(Rule::cron("0 0 30 2 *", "UTC")), "invalid_schedule", "cron"),
        (with(Rule::cron("*/30 2 25-31 3 +SUN", "Europe/Berlin")), "invalid_schedule", "cron"),
        (with(Rule::cron("*,".repeat(200), "UTC")), "invalid_schedule", "cron"),
        (with(Rule::cron("* * * * *", "Europe/Nowhere")), "invalid_schedule", "zone"),
        (with(Rule::Every(Duration::from_millis(999))), "out_of_range", "every"),
        (with(Rule::Every(Duration::MAX)), "out_of_range", "every"),
        (a_schedule().missed(Missed::All { cap: 0 }), "out_of_range", "missed.cap"),
        (a_schedule().missed(Missed::All { cap: 1_001 }), "out_of_range", "missed.cap"),
        (task(large).missed(Missed::All { cap: 1_000 }), "out_of_range", "missed.cap"),
        (task(a_task().priority(1_001)), "out_of_range", "priority"),
        (task(a_task().with(|task| task.at(Timestamp::now()))), "invalid_schedule", "task"),
        (
            task(a_task().with(|task| task.idempotency_key(UniqueKey::new("k").unwrap()))),
            "invalid_schedule",
            "task",
        ),
    ] {
        let refused = refusal(store.put_schedule(schedule).await);
        assert_eq!((refused.code.as_str(), refused.field), (code, field), "{}", refused.message);
    }

    assert_eq!(seen(store).await, before);
    for text in ["", " s", "a\nb", &"x".repeat(201)] {
        let refused = ScheduleName::new(text).unwrap_err();
        assert_eq!((refused.code.as_str(), refused.field), ("invalid_name", "schedule"));
    }
}

pub async fn every_change_of_a_schedule_is_in_the_audit(store: &TestStore) {
    let ann = Actor::new(ActorName::new("ann").unwrap()).because("a holiday");
    store.put_schedule_by(&ann, a_schedule()).await.unwrap();
    store.put_schedule_by(&ann, a_schedule()).await.unwrap();
    store.put_schedule_by(&ann, a_schedule().missed(Missed::All { cap: 7 })).await.unwrap();
    store.pause_schedule_by(&ann, &name("s")).await.unwrap();
    store.pause_schedule_by(&ann, &name("s")).await.unwrap();
    let Ran::Enqueued(task) = store.run_schedule_by(&ann, &name("s")).await.unwrap() else {
        panic!("it may overlap")
    };
    store.resume_schedule_by(&ann, &name("s")).await.unwrap();
    store.remove_schedule_by(&ann, &name("s")).await.unwrap();
    store.remove_schedule_by(&ann, &name("s")).await.unwrap();

    let mut entries = store.audit(AuditPage::default()).await.unwrap();
    entries.reverse();

    let actions: Vec<_> = entries.iter().map(|entry| entry.action.as_str()).collect();
    let expected = [
        "put_schedule",
        "put_schedule",
        "pause_schedule",
        "run_schedule",
        "resume_schedule",
        "remove_schedule",
    ];
    assert_eq!(actions, expected, "what changed nothing is not recorded");
    assert!(entries.iter().all(|entry| entry.subject == "schedule s" && entry.actor == ann));
    assert_eq!(entries[3].tasks, [task]);

    let json = |json: &Option<Json>| json.as_ref().unwrap().decode::<serde_json::Value>().unwrap();
    let [made, changed, paused, .., removed] = &entries[..] else { panic!("six entries") };
    let shown = json(&made.after);
    assert_eq!(
        (&made.before, &shown["every_ms"], &shown["task"]["kind"]),
        (&None, &1_000_000.into(), &"work".into())
    );
    assert_eq!(
        (&shown["missed"], &shown["overlap"], &shown["paused"]),
        (&"skip".into(), &"allow".into(), &false.into())
    );
    assert_eq!((json(&changed.before), &json(&changed.after)["missed_cap"]), (shown, &7.into()));
    assert_eq!(
        (&json(&paused.before)["paused"], &json(&paused.after)["paused"]),
        (&false.into(), &true.into())
    );
    assert_eq!((json(&removed.before), &removed.after), (json(&changed.after), &None));
}

pub async fn a_program_that_changes_schedules_is_in_the_audit_as_such(store: &TestStore) {
    put(store, a_schedule()).await;
    store.run_schedule(&name("s")).await.unwrap();
    store.pause_schedule(&name("s")).await.unwrap();
    store.resume_schedule(&name("s")).await.unwrap();
    store.remove_schedule(&name("s")).await.unwrap();
    assert_eq!(store.run_schedule(&name("s")).await.unwrap(), Ran::NotFound);

    let entries = store.audit(AuditPage::default()).await.unwrap();

    assert_eq!(entries.len(), 5);
    assert!(entries.iter().all(|entry| entry.actor == Actor::program()));
}
