//! Families and `tasks why`, as the program shows them. The test is the worker, one step at a time.

use laneway_core::{
    Actor, ActorName, Capacity, Claimed, FollowUp, Kind, Kinds, NewTask, Outcome, Pausable, Registration,
    Spawned, TaskId,
};
use laneway_testkit::store::{ATask, a_task, secs};
use laneway_testkit::worker::{TestWorker, failed, retry_after};

use crate::support::{Session, assert_matches};

const HOUR: u64 = 3_600;

/// Makes a test of each function for either store.
macro_rules! on_both_stores {
    ($($test:ident,)*) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Session::new()).await;
            })*
        }
        mod on_postgresql {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Session::on_postgres().await).await;
            })*
        }
    };
}

on_both_stores! {
    a_family_is_drawn_and_its_failed_children_run_again,
    every_reason_is_told,
}

fn enqueue(session: &Session, what: &str) -> TaskId {
    session.out(&format!("laneway enqueue {what} -o id")).trim().parse().expect("an id")
}

fn spawning(children: Vec<ATask>, follow_ups: Vec<ATask>) -> Spawned {
    let follow_up = |task: ATask| FollowUp { task: task.into(), on_failure: Default::default() };
    Spawned {
        children: children.into_iter().map(NewTask::from).collect(),
        follow_ups: follow_ups.into_iter().map(follow_up).collect(),
        ..Default::default()
    }
}

async fn spawn(worker: &mut TestWorker, claimed: &Claimed, spawned: Spawned) {
    worker.settle_all(vec![claimed.settle(Outcome::completed()).spawning(spawned)]).await;
}

async fn a_family_is_drawn_and_its_failed_children_run_again(session: &Session) {
    let top = enqueue(session, "units.refresh");
    let store = session.store().await;
    let mut worker = TestWorker::register(store.clone()).await;
    let claimed = worker.claim_one().await;
    let child = || a_task().kind("units.refresh_batch");
    spawn(
        &mut worker,
        &claimed,
        spawning(vec![child(), child(), child()], vec![a_task().kind("db.analyze")]),
    )
    .await;
    let children = worker.claim(3).await;
    worker.complete(&children[..1]).await;
    worker.settle(&children[1], failed()).await;
    let [first, second, third] = [0, 1, 2].map(|n: usize| children[n].task.id);
    let after = store.follow_ups(top).await.unwrap()[0].id;

    assert_matches(
        &format!(
            "units.refresh {top}  waiting  … ago  1/3 completed, 1 open, 1 failed\n\
             ├─ units.refresh_batch {second}  failed  … ago  never works\n\
             ├─ units.refresh_batch {third}  leased  for …\n\
             ├─ units.refresh_batch {first}  completed  … ago\n\
             └─ then db.analyze {after}  later"
        ),
        &session.out(&format!("laneway tasks tree {top}")),
    );
    assert_matches(
        &format!(
            "units.refresh {top}  waiting  … ago  1/3 completed, 1 open, 1 failed\n\
             ├─ units.refresh_batch {second}  failed  … ago  never works\n\
             ├─ 1 more open\n\
             ├─ 1 more completed\n\
             └─ then db.analyze {after}  later"
        ),
        &session.out(&format!("laneway tasks tree {top} --rows 3")),
    );
    let json: serde_json::Value =
        serde_json::from_str(&session.out(&format!("laneway tasks tree {top} --rows 3 -o json"))).unwrap();
    assert_eq!(
        json["tree"]["rest"],
        serde_json::json!({"open": 1, "completed": 1, "failed": 0, "cancelled": 0})
    );
    assert_eq!(session.run("laneway tasks tree 99").code, 3);
    assert_eq!(session.run(&format!("laneway tasks tree {top} --rows 0")).code, 2);

    worker.complete(&children[2..]).await;
    assert_matches(
        &format!("ID  ANSWER\n…{top}  waits for its failed children again"),
        &session.out(&format!("laneway tasks retry {top} --children")),
    );
    let resumed = worker.claim_one().await;
    assert!(resumed.task.id == top && resumed.task.options.resume);
    spawn(&mut worker, &resumed, Spawned { again: true, ..Default::default() }).await;
    let again = worker.claim(5).await;
    assert_eq!(again.iter().map(|one| one.task.id).collect::<Vec<_>>(), [second], "only the one that failed");
    worker.complete(&again).await;

    // What was to follow it was dropped when it failed, and stays so.
    assert_matches(
        &format!(
            "units.refresh {top}  completed  … ago  3/3 completed\n…\n└─ then db.analyze {after}  cancelled  … ago  task {top} failed"
        ),
        &session.out(&format!("laneway tasks tree {top}")),
    );
    let none = session.run(&format!("laneway tasks retry {after} --children"));
    assert_eq!(none.code, 3, "{}", none.out);
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
}

/// What `tasks why` gives as reasons, line by line.
fn because(session: &Session, task: TaskId) -> String {
    let said = session.out(&format!("laneway tasks why {task}"));
    let (_, reasons) = said.split_once("because").expect("it gives reasons");
    reasons.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

async fn every_reason_is_told(session: &Session) {
    let tells = |task, expected: &str| assert_matches(expected, &because(session, task));
    let later = enqueue(session, "mail --delay 1h");
    let start = "start one with `laneway worker exec mail -- PROGRAM`, or from Rust";
    tells(later, &format!("it is due … (in …)\nno worker serves the queue default; {start}"));
    let elsewhere = enqueue(session, "mail --queue 'night shift'");
    let start_there =
        "start one with `laneway worker exec mail --queues 'night shift' -- PROGRAM`, or from Rust";
    tells(elsewhere, &format!("no worker serves the queue 'night shift'; {start_there}"));

    let store = session.store().await;
    let other = TestWorker::unregistered(store.clone());
    let kinds = Kinds::Only(vec![Kind::new("sms").unwrap()]);
    store.register(Registration { kinds, ..other.registration() }).await.unwrap();
    let first = enqueue(session, "mail");
    tells(first, &format!("no worker of the queue default handles mail (there is test); {start}"));
    let mut worker = TestWorker::register(store.clone()).await;
    let second = enqueue(session, "mail");
    tells(first, "nothing: the next claim takes it");
    tells(second, "1 ahead of it");

    let claimed = worker.claim_one().await;
    tells(first, "it is running on test since …");
    worker.settle(&claimed, retry_after(secs(HOUR))).await;
    tells(first, "attempt 1 failed: did not work; the next one is in …");
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    tells(second, "it has ended as failed … ago: never works");

    worker.stay_alive().await;
    let (holder, behind) = (enqueue(session, "mail --lane a"), enqueue(session, "mail --lane a"));
    let claimed = worker.claim_one().await;
    tells(behind, &format!("its lane is at its limit of 1: {holder} on test"));
    worker.settle(&claimed, retry_after(secs(HOUR))).await;
    tells(behind, &format!("its lane is at its limit of 1: {holder} in back-off"));

    let (parent, behind) = (enqueue(session, "mail --lane b"), enqueue(session, "mail --lane b"));
    let claimed = worker.claim_one().await;
    let child = a_task().kind("child").delay(secs(HOUR));
    spawn(&mut worker, &claimed, spawning(vec![child], vec![a_task().kind("after")])).await;
    let (child, after) = (TaskId(behind.0 + 1), TaskId(behind.0 + 2));
    tells(parent, &format!("1 of its children is open: {child} later"));
    tells(after, &format!("it runs after task {parent}, which has not ended"));
    tells(behind, &format!("its lane is at its limit of 1: {parent} waiting for its children"));

    worker.stay_alive().await;
    let ann = Actor::new(ActorName::new("ann").unwrap());
    session.out("laneway queues pause default --for 1h && laneway lanes halt default b");
    store.pause(&ann, &Pausable::Kind(Kind::new("mail").unwrap()), None).await.unwrap();
    tells(
        behind,
        "its queue is paused by ann since …, until …\nits lane is paused by ann since …\nits kind is paused by ann since …\n…",
    );
    session.out("laneway queues resume default");
    store.resume(&ann, &Pausable::Kind(Kind::new("mail").unwrap())).await.unwrap();

    session.out("laneway lanes set default c --on-failure halt && laneway lanes set default d --every 1h");
    let (_, halted) = (enqueue(session, "mail --lane c"), enqueue(session, "mail --lane c"));
    let claimed = worker.claim_one().await;
    worker.settle(&claimed, failed()).await;
    tells(halted, "a failure has halted its lane; go on with `laneway lanes resume default c`");
    let (_, resting) = (enqueue(session, "mail --lane d"), enqueue(session, "mail --lane d"));
    let claimed = worker.claim(1).await;
    worker.complete(&claimed).await;
    worker.stay_alive().await;
    tells(resting, "its lane rests; the next start is in …");

    let full = Capacity { slots: 1, free: 0, ..Default::default() };
    store.register(Registration { capacity: full, ..worker.registration() }).await.unwrap();
    let waits = enqueue(session, "mail");
    tells(waits, "no worker that could run it has a free slot");
}
