//! A store behind a server: what it answers is what the store answers, and a lost answer does no harm.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use laneway::core::*;
use laneway_server::{RemoteOptions, RemoteStore, Server, Tokens, tokens};
use laneway_testkit::store::TestStore;
use laneway_testkit::worker::failed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::Running;
use crate::families::a_family;
use crate::on_both_stores;

on_both_stores! {
    views_are_those_of_the_store,
    families_and_workers_are_those_of_the_store,
    refusals_are_those_of_the_store,
    lines_are_stored_whole_or_not_at_all,
    a_lane_is_resumed_from_its_pause_or_its_halt_alone,
}

fn at(address: SocketAddr) -> RemoteStore {
    RemoteStore::new(RemoteOptions::new(format!("http://{address}"))).unwrap()
}

fn task(kind: &str, payload: &str) -> NewTask {
    NewTask::new(Kind::new(kind).unwrap(), Json::parse(payload).unwrap())
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn lane(key: &str) -> LaneKey {
    LaneKey::new(key).unwrap()
}

fn ann() -> Actor {
    Actor::new(ActorName::new("ann").unwrap()).because("a test")
}

async fn views_are_those_of_the_store(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let (near, far) = (store.handle(), at(server.address));
    let full = task("mail.send", r#"{"id": 9007199254740993, "f": 1.0}"#)
        .queue(queue("a/b"))
        .lane(Lane::new(lane("site/4 2")).limit(LaneLimit::at(3).unwrap()))
        .priority(-7)
        .max_attempts(3)
        .retry(RetryPolicy::List { delays_ms: vec![5] })
        .timeout(Duration::from_secs(30))
        .tag(Tag::new("nightly").unwrap())
        .unique(Unique::new(UniqueKey::new("k").unwrap()).scope(KeyScope::Within(Duration::from_secs(60))));
    let soon = task("later", "null").delay(Duration::from_secs(600));
    near.enqueue_many(vec![full.clone(), soon, task("gone", "[]")]).await.unwrap();
    near.act(&ann(), Action::Cancel, &[TaskId(3)]).await.unwrap();
    let rule = Rule::Every(Duration::from_secs(90));
    let schedule = Schedule::new(ScheduleName::new("preview").unwrap(), rule, full.clone());
    near.put_schedule(schedule.missed(Missed::All { cap: 3 })).await.unwrap();
    near.pause(&ann(), &Pausable::Kind(Kind::new("x/y").unwrap()), Some(Duration::from_secs(60)))
        .await
        .unwrap();

    for id in [1, 2, 3, 99].map(TaskId) {
        assert_eq!(near.get(id).await.unwrap(), far.get(id).await.unwrap());
        assert_eq!(near.why(id).await.unwrap(), far.why(id).await.unwrap());
        assert_eq!(near.tree(id, 10).await.unwrap(), far.tree(id, 10).await.unwrap());
        assert_eq!(near.failures(id).await.unwrap(), far.failures(id).await.unwrap());
    }
    for place in [Place::Pending, Place::Later, Place::Leased, Place::Waiting, Place::Ended] {
        let listing = Listing::of(place);
        assert_eq!(near.list(listing.clone()).await.unwrap(), far.list(listing).await.unwrap());
    }
    assert_eq!(near.counts().await.unwrap(), far.counts().await.unwrap());
    assert_eq!(near.queues().await.unwrap(), far.queues().await.unwrap());
    let name = queue("a/b");
    assert_eq!(near.counts_by_kind(&name).await.unwrap(), far.counts_by_kind(&name).await.unwrap());
    let key = lane("site/4 2");
    assert_eq!(near.lane(&name, &key).await.unwrap(), far.lane(&name, &key).await.unwrap());
    let listing = LaneListing::of(name);
    assert_eq!(near.lanes(listing.clone()).await.unwrap(), far.lanes(listing).await.unwrap());
    assert_eq!(near.pauses().await.unwrap(), far.pauses().await.unwrap());
    assert_eq!(
        near.audit(AuditPage::default()).await.unwrap(),
        far.audit(AuditPage::default()).await.unwrap()
    );
    let name = ScheduleName::new("preview").unwrap();
    assert_eq!(near.schedule(&name).await.unwrap(), far.schedule(&name).await.unwrap());
    assert_eq!(near.schedules(None, 10).await.unwrap(), far.schedules(None, 10).await.unwrap());
    assert_eq!((far.name(), near.workers().await.unwrap()), ("server", far.workers().await.unwrap()));
    assert_eq!(near.health().await.unwrap().database, far.health().await.unwrap().database);
    assert_eq!(near.name(), far.name());
}

async fn families_and_workers_are_those_of_the_store(store: &TestStore) {
    let mut worker = store.worker().await;
    let top = a_family(store, &mut worker, 4).await;
    let claimed = worker.claim(3).await;
    worker.settle(&claimed[2], failed()).await;
    worker.complete(&claimed[..1]).await;
    let server = Running::on(store.handle()).await;
    let (near, far) = (store.handle(), at(server.address));

    let tree = far.tree(top, 100).await.unwrap().unwrap();
    assert_eq!(Some(&tree), near.tree(top, 100).await.unwrap().as_ref());
    assert_eq!(tree.children.len(), 4);
    assert_eq!(near.tree(top, 2).await.unwrap(), far.tree(top, 2).await.unwrap());
    for id in tree.children.iter().map(|child| child.task.id).chain([top]) {
        assert_eq!(near.get(id).await.unwrap(), far.get(id).await.unwrap());
        assert_eq!(near.why(id).await.unwrap(), far.why(id).await.unwrap());
        assert_eq!(near.failures(id).await.unwrap(), far.failures(id).await.unwrap());
    }
    assert_eq!(near.family(top).await.unwrap(), far.family(top).await.unwrap());
    let workers = far.workers().await.unwrap();
    assert_eq!((workers.len(), &workers), (1, &near.workers().await.unwrap()));
    assert!(far.drain(&ann(), workers[0].session).await.unwrap());
    assert!(!far.drain(&ann(), workers[0].session).await.unwrap());
    assert!(!far.stop(&ann(), SessionId::random()).await.unwrap());
}

async fn refusals_are_those_of_the_store(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let far = at(server.address);
    let key = UniqueKey::new("k").unwrap();
    let reject = Unique::new(key.clone()).on_conflict(OnConflict::Reject);
    let taken = task("a", "{}").unique(reject);
    far.enqueue(taken.clone()).await.unwrap();
    let once = |payload| task("b", payload).idempotency_key(UniqueKey::new("i").unwrap());
    far.enqueue(once("1")).await.unwrap();

    let refused = far.enqueue(taken).await.unwrap_err();
    assert!(matches!(refused, StoreError::KeyTaken { key: held, holder: TaskId(1) } if held == key));
    assert_eq!(far.enqueue(once("1")).await.unwrap().effect, Effect::Existing);
    let refused = far.enqueue(once("2")).await.unwrap_err();
    assert!(matches!(refused, StoreError::IdempotencyConflict { holder: TaskId(2), .. }));
    let refused = far.enqueue(task("a", "1").priority(5_000)).await.unwrap_err();
    assert_eq!(
        refused.invalid(),
        store.handle().enqueue(task("a", "1").priority(5_000)).await.unwrap_err().invalid()
    );
    assert_eq!(refused.to_string(), "priority is 5000; allowed is -1000 to 1000");
    let ended = far.act(&ann(), Action::Cancel, &[TaskId(1), TaskId(99)]).await.unwrap();
    assert_eq!(ended, [Acted::Done, Acted::Skipped(Skip::NotFound)]);
    assert_eq!(far.cancel(TaskId(1)).await.unwrap(), Cancel::Ended(State::Cancelled));
    let edit = Edit { priority: Some(1), payload: None };
    let skipped = Acted::Skipped(Skip::Ended(State::Cancelled));
    assert_eq!(far.edit(&ann(), TaskId(1), edit).await.unwrap(), skipped);
    let refused = far.sweep().await.unwrap_err();
    assert_eq!((refused.code(), refused.is_transient()), ("unsupported", false));
}

async fn lines_are_stored_whole_or_not_at_all(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let lines = [("content-type", "application/x-ndjson")];
    let key = r#"{"kind": "a", "unique": {"key": "k"}}"#;

    let bad =
        server.send("POST", "/api/v1/tasks?whole", &lines, "{\"kind\": \"a\"}\n{\"kind\": \"\"}\n").await;
    assert_eq!(
        (bad.problem().1.as_str(), &bad.json()["line"], &bad.json()["stored"]),
        ("invalid_name", &2.into(), &0.into())
    );
    let made =
        server.send("POST", "/api/v1/tasks?whole", &lines, &format!("{key}\n\n{key}\n")).await.expect(200);
    assert_eq!(made["tasks"][0]["effect"], "made");
    assert_eq!(made["tasks"][1]["effect"], "existing");
    assert_eq!(made["tasks"][0]["id"], made["tasks"][1]["id"]);
    let long = format!("{{\"kind\": \"a\", \"payload\": \"{}\"}}\n", "x".repeat(1_000_000)).repeat(34);
    let refused = server.send("POST", "/api/v1/tasks?whole", &lines, &long).await;
    assert_eq!(refused.problem().1, "body_too_large");
    let one = server.post("/api/v1/tasks?whole", r#"{"kind": "a"}"#).await;
    assert_eq!(one.problem().1, "invalid_request");
    assert_eq!(store.handle().counts().await.unwrap()[0].tasks, 1);
}

async fn a_lane_is_resumed_from_its_pause_or_its_halt_alone(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let far = at(server.address);
    let (name, key) = (queue("q"), lane("l"));
    far.set_lane_by(
        &ann(),
        &name,
        &key,
        LaneSettings { on_failure: Some(OnFailure::Halt), ..Default::default() },
    )
    .await
    .unwrap();
    assert!(far.pause(&ann(), &Pausable::Lane(name.clone(), key.clone()), None).await.unwrap());

    assert!(!far.resume_lane_by(&ann(), &name, &key).await.unwrap());
    assert!(far.lane(&name, &key).await.unwrap().unwrap().paused);
    assert!(far.resume(&ann(), &Pausable::Lane(name.clone(), key.clone())).await.unwrap());
    assert!(!far.resume(&ann(), &Pausable::Lane(name, key)).await.unwrap());
}

/// A way to the server on which so many answers get lost.
async fn lossy(server: SocketAddr, answers: i64) -> (SocketAddr, Arc<AtomicI64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, left) = (listener.local_addr().unwrap(), Arc::new(AtomicI64::new(answers)));
    let counted = Arc::clone(&left);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let left = Arc::clone(&counted);
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(server).await.unwrap();
                let mut bytes = vec![0; 64 * 1024];
                loop {
                    let sent = client.read(&mut bytes).await.unwrap_or(0);
                    if sent == 0 || upstream.write_all(&bytes[..sent]).await.is_err() {
                        return;
                    }
                    let answered = upstream.read(&mut bytes).await.unwrap_or(0);
                    if left.fetch_sub(1, Ordering::SeqCst) > 0 || answered == 0 {
                        return; // the server has answered, and nobody hears it
                    }
                    if client.write_all(&bytes[..answered]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_whose_answer_is_lost_stores_one_task() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let (address, _) = lossy(server.address, 2).await;

    let made = at(address).enqueue(task("a", "{}")).await.unwrap();

    assert_eq!(made, Enqueued::made(TaskId(1)));
    assert_eq!(store.handle().counts().await.unwrap()[0].tasks, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_answer_is_lost_is_not_made_twice() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;
    let (address, left) = lossy(server.address, 1).await;
    let far = at(address);

    let lost = far.enqueue_many(vec![task("a", "1"), task("a", "2")]).await.unwrap_err();

    assert!(matches!(lost, StoreError::ServerUnavailable { .. }) && lost.is_transient(), "{lost:?}");
    assert_eq!((store.handle().counts().await.unwrap()[0].tasks, left.load(Ordering::SeqCst)), (2, 0));
    assert_eq!(far.counts().await.unwrap()[0].tasks, 2, "the next call is heard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_takes_no_longer_than_it_may() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = RemoteOptions::new(format!("http://{}", silent.local_addr().unwrap()));

    let far = RemoteStore::new(options.within(Duration::from_millis(100))).unwrap();
    let late = far.counts().await.unwrap_err();

    assert_eq!(std::error::Error::source(&late).unwrap().to_string(), "there was no answer within 100ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tokens_the_token_says_who_acts_and_a_secret_is_never_sent() {
    let store = laneway_testkit::sqlite::fresh().await;
    let near = store.handle();
    let request = |name, scope| tokens::TokenRequest {
        name: ActorName::new(name).unwrap(),
        scopes: vec![scope],
        expires_at: None,
    };
    let admin = tokens::issue(&*near, &Actor::program(), request("root", Scope::Admin)).await.unwrap();
    let server = Running::built(Server::builder(near.clone()).tokens(Tokens::Required)).await;
    let url = format!("http://{}", server.address);
    let far = RemoteStore::new(RemoteOptions::new(&url).token(&admin.text)).unwrap();

    let made = tokens::issue(&far, &ann(), request("shop", Scope::Enqueue)).await.unwrap();

    assert_eq!(near.token(made.token.id).await.unwrap(), Some(made.token));
    let audit = near.audit(AuditPage::default()).await.unwrap();
    assert_eq!((audit[0].actor.who.as_str(), audit[0].actor.reason.as_deref()), ("root", Some("a test")));
    let shop = RemoteStore::new(RemoteOptions::new(&url).token(&made.text)).unwrap();
    shop.enqueue(task("a", "{}")).await.unwrap();
    assert_eq!(shop.counts().await.unwrap_err().code(), "forbidden");
    assert_eq!(at(server.address).counts().await.unwrap_err().code(), "unauthorized");
}
