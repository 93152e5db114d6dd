//! How attempts end, and which settles count.

use super::words::*;

pub async fn a_completed_task_has_ended(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, Outcome::completed()).await, Verdict::Completed);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.crashes), (State::Completed, 1, 0));
    assert_eq!((view.worker, view.error, view.result), (None, None, None));
    assert!(view.ended_at.is_some());
    assert!(worker.claim(1).await.is_empty());
}

pub async fn a_plain_success_keeps_kind_and_queue_but_not_its_payload(store: &TestStore) {
    let tagged = |task: NewTask| task.tag(Tag::new("blue").unwrap());
    let id = store.given_one(a_task().kind("mail").queue("q").payload("[1]").with(tagged)).await;
    let mut worker = store.worker().await;

    let claimed = worker.claim_from("q", 1).await;
    worker.complete(&claimed).await;

    let view = store.view(id).await;
    assert_eq!((view.kind, view.queue), (kind("mail"), queue("q")));
    assert_eq!((view.payload, view.options), (None, TaskOptions::default()));
}

pub async fn a_success_with_a_result_keeps_result_and_payload(store: &TestStore) {
    let id = store.given_one(a_task().payload("[1]").priority(4).lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    let result = Json::parse(r#"{ "sent": true }"#).unwrap();
    let outcome = Outcome::Completed { result: Some(result.clone()) };
    assert_eq!(worker.settle(&claimed, outcome).await, Verdict::Completed);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.priority), (State::Completed, 1, 4));
    assert_eq!(view.result, Some(result));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
}

pub async fn a_success_at_the_second_attempt_keeps_its_payload(store: &TestStore) {
    let id = store.given_one(a_task().payload("[1]")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(0))).await;

    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt), (State::Completed, 2));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
}

pub async fn a_failed_task_keeps_its_error_and_payload(store: &TestStore) {
    let tagged = |task: NewTask| task.tag(Tag::new("blue").unwrap());
    let id = store.given_one(a_task().payload("[1]").with(tagged)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, failed()).await, Verdict::Failed);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.max_attempts), (State::Failed, 1, 25));
    assert_eq!(view.error.as_deref(), Some("never works"));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
    assert_eq!(view.options.tags, [Tag::new("blue").unwrap()]);
    assert!(view.ended_at.is_some() && view.worker.is_none());
}

pub async fn a_retried_task_waits_and_an_attempt_is_charged(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, retry_after(secs(20))).await, Verdict::Later);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.crashes), (State::Later, 1, 0));
    assert_eq!(view.error.as_deref(), Some("did not work"));
    assert!(view.due_at.is_some() && view.worker.is_none() && view.ended_at.is_none());
    assert!(worker.claim(1).await.is_empty());
}

pub async fn a_retried_task_runs_again_as_the_next_attempt(store: &TestStore) {
    let id = store.given_one(a_task().payload("[1]")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, retry_after(secs(20))).await;

    store.advance_clock(secs(21)).await;
    let again = worker.claim_one().await;

    assert_eq!((again.task.id, again.task.attempt), (id, 2));
    assert_eq!(again.task.payload.as_str(), "[1]");
    assert_ne!(again.lease.token, claimed.lease.token);
    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt), (State::Leased, 2));
    assert_eq!(view.error.as_deref(), Some("did not work"));
}

pub async fn a_retry_of_the_last_attempt_has_failed(store: &TestStore) {
    let id = store.given_one(a_task().max_attempts(2)).await;
    let mut worker = store.worker().await;
    let first = worker.claim_one().await;
    assert_eq!(worker.settle(&first, retry_after(secs(0))).await, Verdict::Later);

    let second = worker.claim_one().await;
    assert_eq!(worker.settle(&second, retry_after(secs(0))).await, Verdict::Failed);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt), (State::Failed, 2));
    assert_eq!(view.error.as_deref(), Some("did not work"));
}

pub async fn a_retry_of_an_only_attempt_has_failed(store: &TestStore) {
    let id = store.given_one(a_task().max_attempts(1).lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, retry_after(secs(5))).await, Verdict::Failed);
    assert_eq!(store.state(id).await, State::Failed);
}

pub async fn a_snooze_charges_nothing(store: &TestStore) {
    let id = store.given_one(a_task().max_attempts(1)).await;
    let mut worker = store.worker().await;

    for _ in 0..3 {
        let claimed = worker.claim_one().await;
        assert_eq!(claimed.task.attempt, 1);
        assert_eq!(worker.settle(&claimed, Outcome::Snooze { after: secs(10) }).await, Verdict::Later);
        let view = store.view(id).await;
        assert_eq!((view.state, view.attempt, view.error), (State::Later, 0, None));
        assert!(worker.claim(1).await.is_empty());
        store.advance_clock(secs(11)).await;
        worker.stay_alive().await;
    }

    assert_eq!(worker.claim_one().await.task.id, id);
}

pub async fn a_task_given_back_is_pending_at_once_and_not_charged(store: &TestStore) {
    let [id, behind] = store.given([a_task().max_attempts(1), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    assert_eq!(worker.settle(&claimed, Outcome::GivenBack).await, Verdict::Pending);

    let view = store.view(id).await;
    assert_eq!((view.state, view.attempt, view.crashes), (State::Pending, 0, 0));
    let again = worker.claim(2).await;
    assert_eq!(ids(&again), [id, behind]);
    assert_eq!(again[0].task.attempt, 1);
}

pub async fn a_cancelled_attempt_keeps_its_reason(store: &TestStore) {
    let [with, without] = store.given([a_task().payload("[1]"), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    let reason = Some("no longer wanted".to_owned());
    let verdicts = worker
        .settle_all(vec![
            claimed[0].settle(Outcome::Cancelled { reason }),
            claimed[1].settle(Outcome::Cancelled { reason: None }),
        ])
        .await;

    assert_eq!(verdicts, [Verdict::Cancelled, Verdict::Cancelled]);
    let view = store.view(with).await;
    assert_eq!((view.state, view.error.as_deref()), (State::Cancelled, Some("no longer wanted")));
    assert_eq!(view.payload.unwrap().as_str(), "[1]");
    assert_eq!(store.view(without).await.error.as_deref(), Some("cancelled"));
}

pub async fn every_task_of_a_lease_has_an_outcome_of_its_own(store: &TestStore) {
    store.given_all((0..6).map(|n| a_task().lane_of("a", 9).priority(n))).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(6).await;
    let outcomes = [
        failed(),
        Outcome::completed(),
        Outcome::GivenBack,
        retry_after(secs(60)),
        Outcome::Snooze { after: secs(60) },
        Outcome::Cancelled { reason: None },
    ];

    let settles = claimed.iter().zip(outcomes).map(|(one, outcome)| one.settle(outcome)).collect();
    let verdicts = worker.settle_all(settles).await;

    let expected = [
        (Verdict::Failed, State::Failed),
        (Verdict::Completed, State::Completed),
        (Verdict::Pending, State::Pending),
        (Verdict::Later, State::Later),
        (Verdict::Later, State::Later),
        (Verdict::Cancelled, State::Cancelled),
    ];
    for ((one, verdict), expected) in claimed.iter().zip(verdicts).zip(expected) {
        assert_eq!((verdict, store.state(one.task.id).await), expected);
    }
}

pub async fn a_lease_is_settled_piece_by_piece_in_any_order(store: &TestStore) {
    store.given_all((0..5).map(|n| if n % 2 == 0 { a_task() } else { a_task().lane(&n.to_string()) })).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(5).await;

    for place in [3, 0, 4, 1, 2] {
        assert_eq!(store.state(claimed[place].task.id).await, State::Leased);
        worker.complete(&claimed[place..=place]).await;
        assert_eq!(store.state(claimed[place].task.id).await, State::Completed);
    }
}

pub async fn a_settle_with_a_wrong_token_is_stale_and_changes_nothing(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    let mut forged = claimed.clone();
    forged.lease.token = LeaseToken(uuid::Uuid::new_v4());

    assert_eq!(worker.settle(&forged, Outcome::completed()).await, Verdict::Stale);
    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&[claimed]).await;
}

pub async fn a_settle_by_another_session_is_stale_and_changes_nothing(store: &TestStore) {
    let id = store.given_one(a_task().lane("a")).await;
    let (mut owner, mut thief) = (store.worker().await, store.worker().await);
    let claimed = owner.claim_one().await;

    assert_eq!(thief.settle(&claimed, failed()).await, Verdict::Stale);

    assert_eq!(store.state(id).await, State::Leased);
    owner.complete(&[claimed]).await;
}

pub async fn a_settle_of_a_task_that_was_never_in_the_lease_is_stale(store: &TestStore) {
    let [mine, other] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    assert_eq!(claimed.task.id, mine);

    let settle = Settle { task: other, ..claimed.settle(Outcome::completed()) };

    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Stale]);
    assert_eq!(store.state(other).await, State::Pending);
    assert_eq!(store.state(mine).await, State::Leased);
}

pub async fn a_settle_of_an_unknown_lease_is_stale(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    let lease = LeaseRef { id: LeaseId(claimed.lease.id.0 + 1_000), ..claimed.lease };

    let settle = Settle { lease, ..claimed.settle(Outcome::completed()) };
    assert_eq!(worker.settle_all(vec![settle]).await, [Verdict::Stale]);
    assert_eq!(store.state(id).await, State::Leased);
}

pub async fn a_worker_that_comes_back_too_late_is_stale(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let (mut late, mut next) = (store.worker().await, store.worker().await);
    let old = late.claim_one().await;
    store.sweep_all_but(&mut [&mut next]).await;
    let new = next.claim_one().await;
    assert_eq!(new.task.id, id);

    let advanced = late.advance(|advance| advance.settle(old.settle(failed()))).await;

    assert_eq!(advanced.settled[0].verdict, Verdict::Stale);
    assert!(advanced.session_lost);
    assert_eq!(store.state(id).await, State::Leased);
    next.complete(&[new]).await;
}

pub async fn an_attempt_before_a_retry_is_stale_after_it(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let old = worker.claim_one().await;
    worker.settle(&old, retry_after(secs(0))).await;
    let new = worker.claim_one().await;

    assert_eq!(worker.settle(&old, failed()).await, Verdict::Stale);

    assert_eq!(store.state(id).await, State::Leased);
    worker.complete(&[new]).await;
}

pub async fn a_second_settle_of_one_task_changes_nothing(store: &TestStore) {
    let [first, second] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.complete(&claimed[..1]).await;

    assert_eq!(worker.settle(&claimed[0], failed()).await, Verdict::Already);

    assert_eq!(store.state(first).await, State::Completed);
    assert_eq!(store.state(second).await, State::Leased);
}

pub async fn a_second_settle_after_the_lease_has_ended_changes_nothing(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;

    assert_eq!(worker.settle(&claimed, Outcome::completed()).await, Verdict::Stale);
    assert_eq!(store.state(id).await, State::Failed);
}

pub async fn of_two_settles_in_one_call_the_first_counts(store: &TestStore) {
    let [one, _] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    let verdicts =
        worker.settle_all(vec![claimed[0].settle(failed()), claimed[0].settle(Outcome::completed())]).await;

    assert_eq!(verdicts, [Verdict::Failed, Verdict::Already]);
    assert_eq!(store.state(one).await, State::Failed);
}

pub async fn of_two_settles_of_a_whole_lease_the_first_counts(store: &TestStore) {
    let id = store.given_one(a_task().lane("a")).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    let verdicts =
        worker.settle_all(vec![claimed.settle(Outcome::completed()), claimed.settle(failed())]).await;

    assert_eq!(verdicts, [Verdict::Completed, Verdict::Already]);
    assert_eq!(store.state(id).await, State::Completed);
}

pub async fn a_completion_behind_another_outcome_of_the_same_task_does_not_count(store: &TestStore) {
    let outcomes = [retry_after(secs(60)), Outcome::Snooze { after: secs(60) }, failed()];
    let stored = store.given_all(tasks_like(a_task().lane_of("a", 9), outcomes.len())).await;
    let mut worker = store.worker().await;

    for outcome in outcomes {
        let claimed = worker.claim_one().await;
        let settles = vec![claimed.settle(outcome), claimed.settle(Outcome::completed())];
        let verdicts = worker.settle_all(settles).await;
        assert_ne!(verdicts[0], Verdict::Completed);
        assert_eq!(verdicts[1], Verdict::Already);
    }

    assert_eq!(store.state(stored[0]).await, State::Later);
    assert_eq!(store.state(stored[1]).await, State::Later);
    assert_eq!(store.state(stored[2]).await, State::Failed);
}

pub async fn good_and_stale_settles_of_one_call_are_judged_apart(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 3)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    let other = worker.claim_one().await;
    let mut forged = claimed[0].clone();
    forged.lease.token = LeaseToken(uuid::Uuid::new_v4());

    let done = Outcome::completed;
    let verdicts = worker
        .settle_all(vec![other.settle(done()), forged.settle(done()), claimed[1].settle(failed())])
        .await;

    assert_eq!(verdicts, [Verdict::Completed, Verdict::Stale, Verdict::Failed]);
    assert_eq!(store.state(claimed[0].task.id).await, State::Leased);
}

pub async fn successes_of_one_lease_are_judged_one_by_one(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 6)).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(5).await;
    let mut foreign = worker.claim_one().await;
    let other = foreign.clone();
    foreign.lease = claimed[0].lease;
    worker.complete(&claimed[..2]).await;

    let named = [&claimed[2], &claimed[1], &foreign, &claimed[3]];
    let verdicts = worker.settle_all(named.map(|one| one.settle(Outcome::completed())).to_vec()).await;

    assert_eq!(verdicts, [Verdict::Completed, Verdict::Already, Verdict::Stale, Verdict::Completed]);
    assert_eq!(store.state(other.task.id).await, State::Leased);
    assert_eq!(store.state(claimed[4].task.id).await, State::Leased);
    worker.complete(&[claimed[4].clone(), other]).await;
}

pub async fn a_repeated_advance_settles_nothing_twice(store: &TestStore) {
    let [first, second] = store.given([a_task(), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;
    worker.settle_all(claimed.iter().map(|one| one.settle(failed())).collect()).await;

    let repeated = worker.advance_again().await;

    assert!(repeated.settled.iter().all(|settled| settled.verdict == Verdict::Already), "{repeated:?}");
    assert_eq!(store.state(first).await, State::Failed);
    assert_eq!(store.state(second).await, State::Failed);
}

pub async fn a_repeated_advance_hands_out_the_same_tasks_and_no_more(store: &TestStore) {
    let stored =
        store.given_all((0..6).map(|n| if n < 3 { a_task() } else { a_task().lane(&n.to_string()) })).await;
    let mut worker = store.worker().await;
    let first = worker.claim(4).await;

    let repeated = worker.advance_again().await;

    let proofs = |claimed: &[Claimed]| -> Vec<_> {
        claimed.iter().map(|one| (one.task.clone(), one.lease.id, one.lease.token)).collect()
    };
    assert_eq!(proofs(&repeated.claimed), proofs(&first));
    let rest = worker.claim(10).await;
    assert_eq!(first.len() + rest.len(), stored.len());
    worker.complete(&repeated.claimed).await;
}

pub async fn a_repeated_advance_hands_out_only_what_is_not_settled(store: &TestStore) {
    store.given_all(tasks_like(a_task(), 3)).await;
    let mut worker = store.worker().await;
    let first = worker.claim(3).await;
    let settled = Advance::new(worker.session(), 99).settle(first[1].settle(Outcome::completed()));
    store.advance(settled).await.unwrap();

    let repeated = worker.advance_again().await;

    assert_eq!(ids(&repeated.claimed), [first[0].task.id, first[2].task.id]);
}

pub async fn a_repeated_advance_whose_first_try_was_lost_is_carried_out(store: &TestStore) {
    let [first, second] = store.given([a_task().lane("a"), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let running = worker.claim_one().await;

    let step = |advance: Advance| {
        let advance = advance.settle(running.settle(Outcome::completed())).claim(queue("default"), 1);
        Advance { again: true, ..advance }
    };
    let advanced = worker.advance(step).await;

    assert_eq!(advanced.settled[0].verdict, Verdict::Completed);
    assert_eq!(ids(&advanced.claimed), [second]);
    assert_eq!(store.state(first).await, State::Completed);
}

pub async fn a_repeated_advance_of_a_dead_session_is_stale(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;
    store.sweep_all_but(&mut []).await;

    let step = |advance: Advance| {
        let advance = advance.settle(claimed.settle(Outcome::completed())).claim(queue("default"), 1);
        Advance { again: true, ..advance }
    };
    let advanced = worker.advance(step).await;

    assert_eq!(advanced.settled[0].verdict, Verdict::Stale);
    assert!(advanced.session_lost && advanced.claimed.is_empty());
    assert_eq!(store.state(id).await, State::Pending);
}

pub async fn an_error_with_a_nul_character_is_recorded(store: &TestStore) {
    let [id, cancelled] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    worker
        .settle_all(vec![
            claimed[0].settle(Outcome::Failed { error: "a\0b".into() }),
            claimed[1].settle(Outcome::Cancelled { reason: Some("\0".into()) }),
        ])
        .await;

    assert_eq!(store.view(id).await.error.as_deref(), Some("a\u{FFFD}b"));
    assert_eq!(store.view(cancelled).await.error.as_deref(), Some("\u{FFFD}"));
}

pub async fn an_over_long_error_is_cut(store: &TestStore) {
    let [retried, gone] = store.given([a_task(), a_task()]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    let error = "ä".repeat(100_000);
    worker
        .settle_all(vec![
            claimed[0].settle(Outcome::Retry { after: secs(5), error: error.clone() }),
            claimed[1].settle(Outcome::Failed { error }),
        ])
        .await;

    for id in [retried, gone] {
        let kept = store.view(id).await.error.unwrap();
        assert!(kept.len() <= 64 * 1024 && kept.ends_with("(cut)"), "{} bytes", kept.len());
    }
}

pub async fn an_over_long_result_is_replaced_by_a_note(store: &TestStore) {
    let id = store.given_one(a_task()).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim_one().await;

    let result = Some(Json::encode(&"x".repeat(70_000)).unwrap());
    assert_eq!(worker.settle(&claimed, Outcome::Completed { result }).await, Verdict::Completed);

    let kept = store.view(id).await.result.unwrap();
    assert_eq!(kept.as_str(), r#"{"truncated":true,"bytes":70002}"#);
}

pub async fn an_endless_delay_is_cut_to_five_years(store: &TestStore) {
    let [retried, snoozed] = store.given([a_task(), a_task().lane("a")]).await;
    let mut worker = store.worker().await;
    let claimed = worker.claim(2).await;

    worker
        .settle_all(vec![
            claimed[0].settle(retry_after(std::time::Duration::MAX)),
            claimed[1].settle(Outcome::Snooze { after: std::time::Duration::MAX }),
        ])
        .await;

    for id in [retried, snoozed] {
        let view = store.view(id).await;
        let days = view.due_at.unwrap().duration_since(view.enqueued_at).as_secs() / 86_400;
        assert_eq!((view.state, days), (State::Later, 5 * 366));
    }
}
