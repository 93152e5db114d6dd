//! Lists that a filter narrows.

use std::collections::BTreeSet;

use super::words::*;

fn filter(text: &str) -> Filter {
    text.parse().unwrap_or_else(|refused| panic!("`{text}`: {refused}"))
}

/// All tasks that a filter means, in every list in which they can be.
async fn found(store: &TestStore, text: &str) -> BTreeSet<TaskId> {
    let filter = filter(text);
    let mut found = BTreeSet::new();
    for place in filter.places() {
        let mut listing = Listing::of(place).filter(filter.clone()).limit(3);
        loop {
            let page = store.list(listing.clone()).await.unwrap();
            for task in page.tasks {
                assert!(found.insert(task.id), "`{text}` repeats task {}", task.id);
            }
            match page.next {
                Some(cursor) => listing = listing.after(cursor),
                None => break,
            }
        }
    }
    found
}

async fn expect(store: &TestStore, text: &str, expected: &[TaskId]) {
    assert_eq!(found(store, text).await, expected.iter().copied().collect(), "`{text}`");
}

fn tagged(tag: &str) -> ATask {
    let tag = Tag::new(tag).unwrap();
    a_task().with(|task| NewTask { tags: vec![tag], ..task })
}

/// One task of each state that a task can be in: pending, later, leased, completed, failed, cancelled.
async fn one_of_each(store: &TestStore) -> [TaskId; 6] {
    let [completed, failing, cancelled, leased] = store.given([a_task(), a_task(), a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(4).await;
    let settles = vec![
        claimed[0].settle(Outcome::completed()),
        claimed[1].settle(failed()),
        claimed[2].settle(Outcome::Cancelled { reason: None }),
    ];
    worker.settle_all(settles).await;
    let [pending, later] = store.given([a_task(), a_task().delay(secs(60))]).await;
    [pending, later, leased, completed, failing, cancelled]
}

pub async fn a_filter_selects_by_state(store: &TestStore) {
    let [pending, later, leased, completed, failing, cancelled] = one_of_each(store).await;

    expect(store, "state:pending", &[pending]).await;
    expect(store, "state:later", &[later]).await;
    expect(store, "state:leased", &[leased]).await;
    expect(store, "state:failed", &[failing]).await;
    expect(store, "state:completed", &[completed]).await;
    expect(store, "state:failed,cancelled,later", &[failing, cancelled, later]).await;
    expect(store, "-state:failed,cancelled,later", &[pending, leased, completed]).await;
    expect(store, "state:failed state:completed", &[]).await;
    expect(store, "", &[pending, later, leased, completed, failing, cancelled]).await;
}

pub async fn a_list_has_only_what_belongs_into_it_whatever_the_filter_says(store: &TestStore) {
    one_of_each(store).await;

    let page = store.list(Listing::of(Place::Ended).filter(filter("state:pending"))).await.unwrap();

    assert_eq!(page, Page { tasks: vec![], next: None, looked: Looked::ToTheEnd });
}

pub async fn a_filter_selects_by_queue_and_kind_in_every_list(store: &TestStore) {
    let make = |kind: &str, name: &str| a_task().kind(kind).queue(name);
    let mut expected = BTreeSet::new();
    for _ in 0..2 {
        let [one, two, ..] = store
            .given([
                make("email.send", "mail"),
                make("email", "mail"),
                make("email.send", "other"),
                make("sms.send", "mail"),
                make("émail.send", "mail"),
            ])
            .await;
        expected.extend([one, two]);
    }
    let mut worker = store.worker().await;

    let text = "queue:mail kind:email.*,email";
    assert_eq!(found(store, text).await, expected);
    let claimed = worker.claim_from("mail", 10).await;
    let _others = worker.claim_from("other", 10).await;
    assert_eq!(found(store, text).await, expected);
    assert_eq!(found(store, "queue:mail kind:é*").await.len(), 2);
    worker.complete(&claimed).await;
    assert_eq!(found(store, text).await, expected);
    assert_eq!(found(store, "queue:mail -kind:email.*,email").await.len(), 4);
}

pub async fn a_filter_selects_by_lane_and_negation_means_those_without_one_too(store: &TestStore) {
    let [mine, elsewhere, other, free] = store
        .given([a_task().lane("site:42"), a_task().queue("b").lane("site:42"), a_task().lane("x"), a_task()])
        .await;

    expect(store, "lane:site:42", &[mine, elsewhere]).await;
    expect(store, "lane:site:42 queue:b", &[elsewhere]).await;
    expect(store, "-lane:site:42", &[other, free]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    worker.complete(&claimed).await;
    expect(store, "lane:site:42", &[mine, elsewhere]).await;
    expect(store, "lane:nowhere", &[]).await;
}

pub async fn a_filter_selects_by_tag(store: &TestStore) {
    let [nightly, weekly, plain] = store.given([tagged("nightly run"), tagged("weekly"), a_task()]).await;

    expect(store, "tag:\"nightly run\"", &[nightly]).await;
    expect(store, "tag:\"nightly run\",weekly", &[nightly, weekly]).await;
    expect(store, "-tag:weekly", &[nightly, plain]).await;
}

pub async fn a_filter_selects_by_worker(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 4)).await;
    let (mut one, mut two) = (store.worker().await, store.worker().await);
    let mine = ids(&one.claim(2).await);
    let _theirs = two.claim(2).await;

    let session = one.session().to_string();
    expect(store, &format!("worker:{session}"), &mine).await;
    expect(store, &format!("worker:w-{}", &session[..13]), &mine).await;
}

pub async fn a_filter_selects_by_error_text_while_a_task_waits_and_when_it_has_ended(store: &TestStore) {
    let [waiting, ended, _other] = store.given([a_task(), a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    let error = |text: &str| text.to_owned();
    worker
        .settle_all(vec![
            claimed[0].settle(Outcome::Retry { after: secs(60), error: error("421 too many connections") }),
            claimed[1].settle(Outcome::Failed { error: error("421 too many connections") }),
            claimed[2].settle(Outcome::Failed { error: error("Too Many") }),
        ])
        .await;

    expect(store, "error:\"too many\"", &[waiting, ended]).await;
    expect(store, "error:\"too many\" state:failed", &[ended]).await;
    expect(store, "error:%", &[]).await;
}

pub async fn a_filter_compares_attempts(store: &TestStore) {
    let [tried, fresh] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(0))).await;
    let again = worker.claim_one().await;
    assert_eq!(again.task.id, tried);

    expect(store, "attempt:>1", &[tried]).await;
    expect(store, "attempt:2", &[tried]).await;
    expect(store, "attempt:<=1", &[fresh]).await;
    expect(store, "attempt:0", &[fresh]).await;
}

pub async fn a_filter_compares_ages_and_moments_by_the_stores_clock(store: &TestStore) {
    let [old, done] = store.given([a_task().queue("a"), a_task().queue("b")]).await;
    store.advance_clock(secs(3_600)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_from("b", 1).await;
    worker.complete(&claimed).await;
    let new = store.given_one(a_task().queue("a")).await;
    store.advance_clock(secs(60)).await;

    expect(store, "age:>30m", &[old, done]).await;
    expect(store, "age:<30m", &[new]).await;
    // What has ended counts from its end.
    expect(store, "since:30m", &[new, done]).await;
    expect(store, "until:30m", &[old]).await;
    expect(store, "state:completed since:30m until:10s", &[done]).await;
    expect(store, "state:completed since:10s", &[]).await;
    expect(store, "state:completed until:30m", &[]).await;
    expect(store, "since:2000-01-01T00:00:00Z", &[old, new, done]).await;
    expect(store, "-since:30m", &[old]).await;
}

pub async fn a_filter_compares_payload_values_at_a_path(store: &TestStore) {
    let large = format!(r#"{{"user":{{"id":17}},"text":"{}"}}"#, "x".repeat(5_000));
    let [number, text, nested, flag, list, big] = store
        .given([
            a_task().payload(r#"{"user":{"id":17}}"#),
            a_task().payload(r#"{"user":{"id":"17"}}"#),
            a_task().payload(r#"{"user":{"id":{"id":17}}}"#),
            a_task().payload(r#"{"user":{"ok":true,"a.b":"x, \"y\"","none":null}}"#),
            a_task().payload(r#"[{"user":17}]"#),
            a_task().payload(&large),
        ])
        .await;

    expect(store, "payload.user.id:17", &[number, text, big]).await;
    expect(store, "payload.user.id.id:17", &[nested]).await;
    expect(store, "payload.user.ok:true", &[flag]).await;
    expect(store, r#"payload.user."a.b":"x, \"y\"""#, &[flag]).await;
    expect(store, "payload.user.none:null", &[]).await;
    expect(store, "payload.0.user:17", &[]).await;
    expect(store, "-payload.user.id:17", &[nested, flag, list]).await;
    let mut worker = store.worker().await;
    for claimed in worker.claim(6).await {
        worker.settle(&claimed, failed()).await;
    }
    expect(store, "payload.user.id:17", &[number, text, big]).await;
}

pub async fn a_filter_with_quotes_and_percent_signs_means_them(store: &TestStore) {
    let odd = "it's \"odd\", 100% \\ _";
    let [named, _other] = store.given([a_task().lane(odd), a_task().lane("x")]).await;

    let text = Filter::default().and(Test::Lane(lane_key(odd))).to_string();

    expect(store, &text, &[named]).await;
    expect(store, "kind:\"'; drop table task; --\"", &[]).await;
}

pub async fn a_look_for_rare_tasks_ends_and_says_how_far_it_came(store: &TestStore) {
    let rare = store.given_one(a_task().kind("rare")).await;
    store.given_all(tasks_like(a_task(), 2 * LOOK_ROWS_MAX as usize)).await;
    let late = store.given_one(a_task().kind("rare")).await;
    let listing = Listing::of(Place::Pending).filter(filter("kind:rare"));

    let page = store.list(listing.clone()).await.unwrap();

    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [rare]);
    assert_eq!(page.looked, Looked::Rows(LOOK_ROWS_MAX));
    let page = store.list(listing.clone().after(page.next.unwrap())).await.unwrap();
    assert_eq!((page.tasks.len(), page.looked), (0, Looked::Rows(LOOK_ROWS_MAX)));
    let page = store.list(listing.after(page.next.unwrap())).await.unwrap();
    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [late]);
    assert_eq!((page.next, page.looked), (None, Looked::ToTheEnd));
}

pub async fn a_look_through_history_finds_everything_page_by_page(store: &TestStore) {
    let tasks = 3 * LOOK_TEXTS_MAX as usize;
    let rare = store.given_one(a_task()).await;
    store.given_all(tasks_like(a_task(), tasks)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, Outcome::Failed { error: "needle".into() }).await;
    let rest = worker.claim(tasks as u32).await;
    let settles = rest.iter().map(|one| one.settle(Outcome::Failed { error: "hay".into() })).collect();
    worker.settle_all(settles).await;

    let first = store.list(Listing::of(Place::Ended).filter(filter("error:needle"))).await.unwrap();

    assert!(first.tasks.is_empty() && first.next.is_some());
    assert_eq!(first.looked, Looked::Rows(LOOK_TEXTS_MAX));
    expect(store, "error:needle", &[rare]).await;
}

pub async fn a_filter_over_a_kibibyte_is_refused(store: &TestStore) {
    let long = Filter::default().and(Test::Error("x".repeat(2_000)));

    let refused = refusal(store.list(Listing::of(Place::Pending).filter(long)).await);

    assert_eq!(refused.code, Code::FilterTooLong);
}
