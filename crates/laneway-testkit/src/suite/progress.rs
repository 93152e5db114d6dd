//! How far running attempts are.

use super::words::*;

fn report(claimed: &Claimed, progress: impl Into<Progress>) -> Report {
    Report { task: claimed.task.id, lease: claimed.lease.id, progress: progress.into() }
}

pub async fn a_running_task_shows_what_it_has_told_last(store: &TestStore) {
    let [first, second] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    let told = vec![report(&claimed[0], 0.25), report(&claimed[1], Progress::of(3, 4).note("pages"))];
    store.report_progress(worker.session(), told).await.unwrap();
    store.report_progress(worker.session(), vec![report(&claimed[0], (1, 2))]).await.unwrap();

    let (one, two) = (store.view(first).await.progress.unwrap(), store.view(second).await.progress.unwrap());

    assert_eq!((one.fraction, one.note.as_deref()), (0.5, Some("1 of 2")));
    assert_eq!((two.fraction, two.note.as_deref()), (0.75, Some("pages")));
    assert!(one.at >= two.at);
    let listed = store.list(Listing::of(Place::Leased)).await.unwrap().tasks;
    let listed: Vec<_> = listed.into_iter().map(|task| task.progress).collect();
    assert_eq!(listed, [Some(one), Some(two)]);
}

pub async fn progress_is_gone_with_its_attempt(store: &TestStore) {
    let [settled, other] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    let told = claimed.iter().map(|claimed| report(claimed, 0.9)).collect();
    store.report_progress(worker.session(), told).await.unwrap();

    worker.settle(&claimed[0], retry_after(secs(0))).await;
    assert_eq!(store.view(settled).await.progress, None);
    let again = worker.claim_one().await;
    assert_eq!((again.task.id, store.view(settled).await.progress), (settled, None));

    store.maintain().await.unwrap();
    assert!(store.view(other).await.progress.is_some());
    worker.complete(&[claimed[1].clone(), again]).await;
    assert_eq!(store.view(other).await.progress, None);
}

pub async fn progress_of_tasks_that_run_elsewhere_is_passed_over(store: &TestStore) {
    let task = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let stranger = store.worker().await;
    let claimed = worker.claim_one().await;

    store.report_progress(stranger.session(), vec![report(&claimed, 0.5)]).await.unwrap();
    let of_nothing = Report { task: TaskId(i64::MAX), ..report(&claimed, 0.5) };
    let of_another_lease = Report { lease: LeaseId(i64::MAX), ..report(&claimed, 0.5) };
    store.report_progress(worker.session(), vec![of_nothing, of_another_lease]).await.unwrap();
    store.report_progress(worker.session(), vec![]).await.unwrap();
    assert_eq!(store.view(task).await.progress, None);

    worker.complete(std::slice::from_ref(&claimed)).await;
    store.report_progress(worker.session(), vec![report(&claimed, 0.5)]).await.unwrap();
    assert_eq!(store.view(task).await.progress, None);
}

pub async fn progress_outside_of_its_range_and_long_notes_are_cut(store: &TestStore) {
    let tasks = store.given_all(tasks_like(a_task(), 3)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(3).await;
    let wild = [Progress::at(f64::NAN), Progress::at(-1.0), Progress::of(7, 2).note("ä\0".repeat(2_000))];
    let told = claimed.iter().zip(wild).map(|(claimed, wild)| report(claimed, wild)).collect();

    store.report_progress(worker.session(), told).await.unwrap();

    let mut shown = vec![];
    for task in tasks {
        shown.push(store.view(task).await.progress.unwrap());
    }
    assert_eq!(shown.iter().map(|shown| shown.fraction).collect::<Vec<_>>(), [0.0, 0.0, 1.0]);
    let note = shown[2].note.as_deref().unwrap();
    assert!(note.len() <= PROGRESS_NOTE_MAX && note.starts_with("ä\u{FFFD}ä"));
}
