//! Orders that take half a minute to come about in earnest are given by hand.

use std::sync::Arc;
use std::time::Duration;

use laneway_core::State as TaskState;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Coordinator;
use crate::renew::Order;
use crate::vitals::Vitals;
use crate::{Attempt, Client, Failure, Payload, Stop, StoreError, StoreHandle, Summary, Worker, testing};

#[derive(Serialize, Deserialize)]
struct Wait;

impl Payload for Wait {
    const KIND: &'static str = "wait";
}

async fn wait(_: Wait, attempt: Attempt) -> Result<(), Failure> {
    Err(Failure::retry(format!("{:?}", attempt.cancelled().await)))
}

/// A coordinator whose orders come from the test.
struct Fixture {
    store: StoreHandle,
    vitals: Arc<Vitals>,
    orders: mpsc::Sender<Order>,
    stop: Stop,
    running: JoinHandle<Result<Summary, StoreError>>,
}

impl Fixture {
    async fn start() -> Self {
        let store = testing::store().await;
        let worker = Worker::builder(&store).handle(wait).build().unwrap();
        let (vitals, stop) = (Arc::new(Vitals::new(worker.slots())), Stop::default());
        let (orders, received) = mpsc::channel(1);
        let shared = Arc::clone(worker.shared());
        let coordinator = Coordinator::new(shared, Arc::clone(&vitals), received, stop.clone(), false);
        Self { store, vitals, orders, stop, running: tokio::spawn(coordinator.run()) }
    }

    async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let wanted = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wanted)
            .await
            .unwrap_or_else(|_| panic!("waited in vain until {what}"));
    }

    fn session(&self) -> laneway_core::SessionId {
        self.vitals.session().expect("it is registered").0
    }
}

#[tokio::test]
async fn a_session_that_cannot_be_renewed_stops_its_attempts_and_claims_nothing_until_it_can() {
    let fixture = Fixture::start().await;
    let task = Client::new(&fixture.store).enqueue(Wait).await.unwrap();
    fixture.until("it runs", async || fixture.vitals.is_running_something()).await;
    let session = fixture.session();

    fixture.orders.send(Order::Expires(session)).await.unwrap();
    fixture
        .until("it was given back", async || {
            let view = fixture.store.get(task.id).await.unwrap().unwrap();
            (view.state, view.attempt) == (TaskState::Pending, 0)
        })
        .await;
    assert!(!fixture.vitals.is_running_something());

    let alive = Order::Alive { session, cancel: vec![], drain: false, stop: false };
    fixture.orders.send(alive).await.unwrap();
    fixture.until("it runs again", async || fixture.vitals.is_running_something()).await;
    fixture.stop.now();
    assert_eq!(fixture.running.await.unwrap().unwrap().given_back, 2);
}

#[tokio::test]
async fn an_order_to_drain_lets_nothing_new_start_until_it_is_lifted() {
    let fixture = Fixture::start().await;
    fixture.until("it is registered", async || fixture.vitals.session().is_some()).await;
    let session = fixture.session();
    let order = |drain| Order::Alive { session, cancel: vec![], drain, stop: false };

    fixture.orders.send(order(true)).await.unwrap();
    // The channel holds one: when this is accepted, the first has been taken in.
    fixture.orders.send(order(true)).await.unwrap();
    fixture.orders.send(order(true)).await.unwrap();
    let task = Client::new(&fixture.store).enqueue(Wait).await.unwrap();
    assert_eq!(fixture.store.get(task.id).await.unwrap().unwrap().state, TaskState::Pending);

    fixture.orders.send(order(false)).await.unwrap();
    fixture.until("it runs", async || fixture.vitals.is_running_something()).await;
    fixture.stop.now();
    fixture.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_order_to_stop_lets_what_runs_finish_and_ends_the_worker() {
    let fixture = Fixture::start().await;
    fixture.until("it is registered", async || fixture.vitals.session().is_some()).await;
    let session = fixture.session();

    fixture.orders.send(Order::Alive { session, cancel: vec![], drain: false, stop: true }).await.unwrap();

    fixture.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn orders_of_an_earlier_session_are_ignored() {
    let fixture = Fixture::start().await;
    Client::new(&fixture.store).enqueue(Wait).await.unwrap();
    fixture.until("it runs", async || fixture.vitals.is_running_something()).await;

    for _ in 0..3 {
        fixture.orders.send(Order::Lost(laneway_core::SessionId::random())).await.unwrap();
    }

    assert!(fixture.vitals.is_running_something());
    fixture.stop.now();
    assert_eq!(fixture.running.await.unwrap().unwrap().lost, 0);
}
