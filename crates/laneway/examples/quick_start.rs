//! Two mails to one customer, in order, on a store that needs no set-up.

use laneway::{Attempt, Client, Payload, SqliteStore, StoreHandle, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Receipt {
    order: u64,
}

impl Payload for Receipt {
    const KIND: &'static str = "mail.receipt";
}

async fn send_receipt(receipt: Receipt, attempt: Attempt) -> Result<String, std::io::Error> {
    println!("sending the receipt of order {}, attempt {}", receipt.order, attempt.number());
    Ok(format!("receipt {} sent", receipt.order))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::from(SqliteStore::temporary().await?);
    let client = Client::new(&store);
    let first = client.enqueue(Receipt { order: 1 }).lane("customer:7").await?;
    client.enqueue(Receipt { order: 2 }).lane("customer:7").await?;

    let worker = Worker::builder(&store).handle(send_receipt).build()?;
    let summary = worker.run_until_empty().await?; // a service calls `run`, which ends with SIGTERM

    println!("{}", client.wait(first).await?.result::<String>()?);
    println!("{summary}");
    Ok(())
}
