//! Live changes: nothing is missed, a client that comes back goes on, a gap is told.

use laneway_testkit::store::{TestStore, a_task, until};
use serde_json::Value;

use crate::client::{Event, Running};

crate::on_both_stores! {
    a_stream_tells_changes_and_goes_on_where_a_client_stopped,
    a_stream_is_about_what_was_asked_for,
}

/// The tasks that an event names, and the state that they entered.
fn told(event: &Event) -> Vec<(String, i64)> {
    let data: Value = serde_json::from_str(&event.data).unwrap();
    let mut told = vec![];
    for change in data["changes"].as_array().unwrap() {
        let state = change["state"].as_str().unwrap();
        let tasks = change["tasks"].as_array().unwrap().iter();
        told.extend(tasks.map(|task| (state.to_owned(), task["id"].as_i64().unwrap())));
    }
    told
}

fn entered(state: &str, id: laneway::core::TaskId) -> (String, i64) {
    (state.to_owned(), id.0)
}

async fn a_stream_tells_changes_and_goes_on_where_a_client_stopped(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let mut first = server.follow("", None).await;
    first.expect("ready").await;
    let mut second = server.follow("", None).await;
    second.expect("ready").await;

    let one = store.given_one(a_task()).await;
    let seen = first.expect("changes").await;
    assert_eq!(told(&seen), [entered("pending", one)]);
    assert_eq!(told(&second.expect("changes").await), [entered("pending", one)]);
    drop(first);
    store.cancel(one).await.unwrap();
    assert_eq!(told(&second.expect("changes").await), [entered("cancelled", one)]);

    let mut back = server.follow("", Some(&seen.id)).await;
    assert_eq!(told(&back.expect("changes").await), [entered("cancelled", one)]);
    back.expect("ready").await;
    let two = store.given_one(a_task()).await;
    assert_eq!(told(&back.expect("changes").await), [entered("pending", two)]);

    // Another process does not know what was told before it began to watch.
    let other = Running::on(store.handle()).await;
    let mut elsewhere = other.follow("", Some(&seen.id)).await;
    elsewhere.expect("gap").await;
    let three = store.given_one(a_task()).await;
    assert_eq!(told(&elsewhere.expect("changes").await), [entered("pending", three)]);
}

async fn a_stream_is_about_what_was_asked_for(store: &TestStore) {
    let server = Running::on(store.handle()).await;
    let mut mail = server.follow("?queue=mail", None).await;
    mail.expect("ready").await;
    let mut cancelled = server.follow("?state=cancelled,failed", None).await;
    cancelled.expect("ready").await;

    let other = store.given_one(a_task()).await;
    store.cancel(other).await.unwrap();
    let meant = store.given_one(a_task().queue("mail")).await;

    assert_eq!(told(&mail.expect("changes").await), [entered("pending", meant)]);
    assert_eq!(told(&cancelled.expect("changes").await), [entered("cancelled", other)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_says_goodbye_and_finishes_what_is_under_way() {
    let store = laneway_testkit::sqlite::fresh().await;
    let id = store.given_one(a_task()).await;
    let mut server = Running::on(store.handle()).await;
    let mut events = server.follow("", None).await;
    events.expect("ready").await;
    let address = server.address;
    let waiting = format!("/api/v1/tasks/{id}/result?wait=30");
    let under_way = server.get(&waiting);

    let (answer, ()) = tokio::join!(under_way, async {
        // The one that waits, and the one that asks.
        let both = "server_requests_under_way 2";
        until("the request is under way", async || server.get("/metrics").await.body.contains(both)).await;
        server.stop.cancel();
    });

    assert_eq!(answer.status, 202, "{}", answer.body);
    events.expect("bye").await;
    assert_eq!(events.next().await, None);
    server.end().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
