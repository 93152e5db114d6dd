//! Two tasks of one customer, in order, on a store that needs no set-up.

use laneway_core::{
    Advance, Capacity, Json, Kind, Kinds, Lane, LaneKey, NewTask, Outcome, QueueName, Registration,
    SessionId, Store,
};
use laneway_sqlite::SqliteStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::temporary().await?;
    for order in 1..=2 {
        let payload = Json::parse(format!(r#"{{"order": {order}}}"#))?;
        let receipt =
            NewTask::new(Kind::new("mail.receipt")?, payload).lane(Lane::new(LaneKey::new("customer:7")?));
        println!("enqueued task {} for customer:7", store.enqueue(receipt).await?.id);
    }

    let session = SessionId::random();
    let queues = vec![QueueName::default()];
    let capacity = Capacity { slots: 10, free: 10, ..Default::default() };
    store
        .register(Registration { session, name: "quick start".into(), queues, kinds: Kinds::All, capacity })
        .await?;

    for number in 1.. {
        // Ten slots are free, but the lane gives one task at a time.
        let advanced = store.advance(Advance::new(session, number).claim(QueueName::default(), 10)).await?;
        let Some(claimed) = advanced.claimed.first() else { break };
        let task = &claimed.task;
        println!("claimed {} {} {:?}, attempt {}", task.kind, task.id, task.payload, task.attempt);

        let settle = Advance::new(session, number).settle(claimed.settle(Outcome::completed()));
        let settled = store.advance(settle).await?.settled;
        println!("settled task {}: {:?}", task.id, settled[0].verdict);
    }
    Ok(store.deregister(session).await?)
}
