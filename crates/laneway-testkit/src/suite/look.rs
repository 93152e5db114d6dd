//! Looking at tasks: one, a page, counts.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::words::*;

/// Reads a list to its end, `size` rows at a time.
async fn page_through(store: &TestStore, listing: Listing, size: u32) -> Vec<TaskView> {
    let mut seen = Vec::new();
    let mut listing = listing.limit(size);
    loop {
        let page = store.list(listing.clone()).await.unwrap();
        assert!(page.tasks.len() <= size as usize);
        seen.extend(page.tasks);
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return seen,
        }
    }
}

fn view_ids(views: &[TaskView]) -> Vec<TaskId> {
    views.iter().map(|view| view.id).collect()
}

pub async fn an_unknown_task_is_none(store: &TestStore) {
    for id in [TaskId(1), TaskId(i64::MAX), TaskId(0), TaskId(-1)] {
        assert_eq!(store.get(id).await.unwrap(), None);
    }
}

pub async fn an_empty_list_is_one_empty_page(store: &TestStore) {
    for place in [Place::Pending, Place::Later, Place::Leased, Place::Waiting, Place::Ended] {
        let page = store.list(Listing::of(place)).await.unwrap();
        assert_eq!(page, Page { tasks: vec![], next: None, looked: Looked::ToTheEnd });
    }
}

pub async fn pending_tasks_are_listed_by_id(store: &TestStore) {
    let stored = store.given_all((0..10).map(|n| a_task().priority(-n).lane(&format!("l{}", n % 3)))).await;

    let seen = page_through(store, Listing::of(Place::Pending), 3).await;

    assert_eq!(view_ids(&seen), stored);
    assert!(seen.iter().all(|view| view.state == State::Pending));
}

pub async fn later_tasks_are_listed_by_due_time_and_rows_of_one_instant_by_id(store: &TestStore) {
    let due = Timestamp::now() + secs(600);
    let same = store.given_all(tasks_like(a_task().with(|task| task.at(due)), 7)).await;
    let [last, first] = store.given([a_task().delay(secs(900)), a_task().delay(secs(60))]).await;

    let seen = page_through(store, Listing::of(Place::Later), 2).await;

    let mut expected = vec![first];
    expected.extend(same);
    expected.push(last);
    assert_eq!(view_ids(&seen), expected);
}

pub async fn leased_tasks_are_listed_by_id(store: &TestStore) {
    let stored = store.given_all(tasks_like(a_task(), 7)).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);
    let _first = one.claim(4).await;
    let _second = two.claim(3).await;

    let seen = page_through(store, Listing::of(Place::Leased), 2).await;

    assert_eq!(view_ids(&seen), stored);
    let workers: Vec<_> = seen.iter().map(|view| view.worker.unwrap()).collect();
    assert_eq!(workers[..4], [one.session(); 4]);
    assert_eq!(workers[4..], [two.session(); 3]);
}

pub async fn ended_tasks_are_listed_last_first_without_skips_or_repeats(store: &TestStore) {
    let stored = store.given_all(tasks_like(a_task(), 12)).await;
    let mut worker = store.worker().await;
    let first = worker.claim(8).await;
    let second = worker.claim(4).await;
    // All of one call end at the same instant, some of them in ways of their own.
    let mixed = first.iter().enumerate().map(|(n, one)| match n % 3 {
        0 => one.settle(Outcome::completed()),
        1 => one.settle(failed()),
        _ => one.settle(Outcome::Cancelled { reason: None }),
    });
    let mixed = mixed.collect();
    worker.settle_all(mixed).await;
    worker.complete(&second).await;

    for size in [1, 2, 5, 12, 500] {
        let seen = page_through(store, Listing::of(Place::Ended), size).await;
        assert_eq!(seen.len(), stored.len(), "pages of {size}");
        let distinct: BTreeSet<_> = view_ids(&seen).into_iter().collect();
        assert_eq!(distinct.len(), stored.len(), "pages of {size}");
        assert!(seen.iter().map(|view| view.ended_at.unwrap()).is_sorted_by(|a, b| a >= b));
        let latest: BTreeSet<_> = view_ids(&seen[..4]).into_iter().collect();
        assert_eq!(latest, ids(&second).into_iter().collect(), "pages of {size}");
    }
}

pub async fn a_cursor_stays_where_it_is_while_more_tasks_end(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 6)).await;
    let mut worker = store.worker().await;
    let old = worker.claim(4).await;
    worker.complete(&old).await;
    let first_page = store.list(Listing::of(Place::Ended).limit(2)).await.unwrap();

    let new = worker.claim(2).await;
    worker.settle_all(new.iter().map(|one| one.settle(failed())).collect()).await;
    let rest = page_through(store, Listing::of(Place::Ended).after(first_page.next.unwrap()), 2).await;

    let seen: BTreeSet<_> = view_ids(&first_page.tasks).into_iter().chain(view_ids(&rest)).collect();
    assert_eq!(seen, ids(&old).into_iter().collect());
    assert_eq!(rest.len(), 2);
}

pub async fn no_task_waits_for_children_yet(store: &TestStore) {
    store.given([a_task(), a_task().delay(secs(5))]).await;

    assert!(store.list(Listing::of(Place::Waiting)).await.unwrap().tasks.is_empty());
}

pub async fn a_list_can_be_limited_to_one_queue(store: &TestStore) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        let [mine, ..] = store.given([a_task().queue("mine"), a_task().queue("other"), a_task()]).await;
        expected.push(mine);
    }
    let mine = |place| Listing::of(place).queue(queue("mine"));
    let mut worker = store.worker().await;

    assert_eq!(view_ids(&page_through(store, mine(Place::Pending), 2).await), expected);
    let claimed = worker.claim_from("mine", 3).await;
    let _others = worker.claim(10).await;
    assert_eq!(view_ids(&page_through(store, mine(Place::Leased), 2).await), expected);
    let snoozed = claimed.iter().map(|one| one.settle(Outcome::Snooze { after: secs(60) })).collect();
    worker.settle_all(snoozed).await;
    assert_eq!(view_ids(&page_through(store, mine(Place::Later), 2).await), expected);
    for id in &expected {
        store.cancel(*id).await.unwrap();
    }
    let ended: BTreeSet<_> =
        view_ids(&page_through(store, mine(Place::Ended), 2).await).into_iter().collect();
    assert_eq!(ended, expected.into_iter().collect());
}

pub async fn a_list_of_a_queue_that_nobody_knows_is_empty(store: &TestStore) {
    store.given_one(a_task()).await;

    for place in [Place::Pending, Place::Later, Place::Leased, Place::Waiting, Place::Ended] {
        let page = store.list(Listing::of(place).queue(queue("unknown"))).await.unwrap();
        assert!(page.tasks.is_empty());
    }
}

pub async fn a_listed_task_is_the_task_that_get_shows(store: &TestStore) {
    store
        .given([a_task().lane("a").payload("[1]").priority(2), a_task().delay(secs(60)), a_task(), a_task()])
        .await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.settle(&claimed[0], failed()).await;

    for place in [Place::Pending, Place::Later, Place::Leased, Place::Ended] {
        for listed in page_through(store, Listing::of(place), 100).await {
            assert_eq!(store.view(listed.id).await, listed);
        }
    }
}

pub async fn hundreds_of_tasks_that_end_one_by_one_are_all_counted(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 450)).await;
    let mut worker = store.worker().await;
    for _ in 0..450 {
        let one = worker.claim(1).await;
        worker.complete(&one).await;
    }

    let counts = store.counts().await.unwrap();
    let counted: Vec<_> = counts.iter().map(|count| (count.state, count.tasks, count.more)).collect();
    assert_eq!(counted, [(State::Completed, 450, false)]);
}

pub async fn counts_are_by_queue_and_state(store: &TestStore) {
    store.given_all(tasks_like(a_task().queue("b").lane_of("x", 9), 6)).await;
    store.given_all(tasks_like(a_task().queue("a").delay(secs(60)), 2)).await;
    store.given_one(a_task().queue("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("b", 5).await;
    worker
        .settle_all(vec![
            claimed[0].settle(Outcome::completed()),
            claimed[1].settle(Outcome::completed()),
            claimed[2].settle(failed()),
            claimed[3].settle(Outcome::Cancelled { reason: None }),
        ])
        .await;

    let counts = store.counts().await.unwrap();

    let expected = [
        ("a", State::Pending, 1),
        ("a", State::Later, 2),
        ("b", State::Pending, 1),
        ("b", State::Leased, 1),
        ("b", State::Completed, 2),
        ("b", State::Failed, 1),
        ("b", State::Cancelled, 1),
    ];
    let expected =
        expected.map(|(name, state, tasks)| Counts { queue: queue(name), state, tasks, more: false });
    assert_eq!(counts, expected);
}

pub async fn an_empty_store_counts_nothing(store: &TestStore) {
    assert_eq!(store.counts().await.unwrap(), []);
    store.maintain().await.unwrap();
    assert_eq!(store.counts().await.unwrap(), []);
}

pub async fn house_keeping_removes_no_task(store: &TestStore) {
    let [pending, late, done] =
        store.given([a_task().lane("a").priority(5), a_task().delay(secs(60)), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    store.maintain().await.unwrap();

    assert_eq!(store.state(pending).await, State::Pending);
    assert_eq!(store.state(late).await, State::Later);
    assert_eq!(store.state(done).await, State::Completed);
    assert_eq!(ids(&worker.claim(10).await), [pending]);
}
