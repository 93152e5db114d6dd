//! A worker that is busy is not dead.

use std::time::{Duration, Instant};

use laneway::{Failure, Payload, State, Worker};
use serde::{Deserialize, Serialize};

use crate::support::*;

#[derive(Serialize, Deserialize)]
struct Block;
impl Payload for Block {
    const KIND: &'static str = "block";
}

/// Blocks the only thread of the runtime until the session was renewed twice.
async fn block(_: Block, State(probe): State<Probe>) -> Result<(), Failure> {
    let (before, deadline) = (probe.calls("renew"), Instant::now() + PATIENCE);
    while probe.calls("renew") < before + 2 {
        if Instant::now() > deadline {
            return Err(Failure::discard("nobody has renewed the session"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

async fn a_handler_that_blocks_every_thread_does_not_stop_renewals(store: &TestStore) {
    let probe = Probe::new(store.handle());
    client(store).enqueue(Block).await.unwrap();

    let worker = Worker::builder(probe.handle()).state(probe.clone()).handle(block).build().unwrap();
    let summary = worker.run_until_empty().await.unwrap();

    assert_eq!((summary.completed, summary.discarded), (1, 0));
    store.check().await;
}

#[tokio::test]
async fn a_handler_that_blocks_every_thread_does_not_stop_renewals_on_sqlite() {
    a_handler_that_blocks_every_thread_does_not_stop_renewals(&laneway_testkit::sqlite::fresh().await).await;
}

#[tokio::test]
async fn a_handler_that_blocks_every_thread_does_not_stop_renewals_on_postgres() {
    a_handler_that_blocks_every_thread_does_not_stop_renewals(&laneway_testkit::postgres::fresh().await)
        .await;
}
