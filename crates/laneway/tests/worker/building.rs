//! Every mistake in a worker's description is told at once, before anything runs.

use laneway::{Completion, Failure, Payload, SqliteStore, State, Worker};
use serde::{Deserialize, Serialize};

use crate::support::*;

#[derive(Clone)]
struct Mailer;

#[derive(Serialize, Deserialize)]
struct Bad;
impl Payload for Bad {
    const KIND: &'static str = "";
}

async fn needs_mailer(_: Job, _: State<Mailer>) -> Result<(), Failure> {
    Ok(())
}

async fn needs_transaction(_: Job, _: Completion) -> Result<(), Failure> {
    Ok(())
}

async fn bad_kind(_: Bad) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn all_mistakes_are_reported_together() {
    let store = SqliteStore::temporary().await.unwrap();

    let error = Worker::builder(store)
        .queue("mail")
        .queue("mail")
        .queue("")
        .weighted_queue("slow", 0)
        .slots(0)
        .claim_size(0)
        .min_free_ratio(2.0)
        .handle(needs_mailer)
        .handle(needs_transaction)
        .handle(bad_kind)
        .build()
        .err()
        .unwrap();

    let expected = [
        "slots is 0; allowed is 1 to 1000000",
        "claim_size is 0; allowed is 1 to 10000",
        "min_free_ratio is 2; allowed is 0 to 1",
        "queue `mail` is named twice",
        "queue is empty; a name has 1 to 200 bytes",
        "the weight of queue `slow` is 0; allowed is 1 to 1000",
        "the handler of `job` asks for `State<worker::building::Mailer>`, which the worker does not have; \
         give it with `.state(…)`",
        "the handler of `job` asks for `Completion`, which needs a PostgresStore; this worker's store is sqlite",
        "kind `job` has two handlers",
        "kind is empty; a name has 1 to 200 bytes",
    ];
    assert_eq!(error.problems, expected);
    assert!(error.to_string().starts_with("the worker cannot be built: slots is 0;"));
}

#[tokio::test]
async fn a_worker_without_handlers_is_a_mistake() {
    let error = Worker::builder(SqliteStore::temporary().await.unwrap()).build().err().unwrap();

    assert_eq!(error.problems, ["it has no handler; add one with `.handle(…)`"]);
}

#[tokio::test]
async fn profiles_set_the_slots() {
    for (profile, slots) in [
        (laneway::Profile::Development, 10),
        (laneway::Profile::Staging, 60),
        (laneway::Profile::Production, 500),
    ] {
        let store = SqliteStore::temporary().await.unwrap();
        let worker = a_worker(store, &Recorder::default(), 1_000).profile(profile).build().unwrap();
        assert_eq!(worker.slots(), slots);
    }
}
