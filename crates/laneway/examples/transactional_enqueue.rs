//! An order and the task that confirms it are stored together or not at all, and the confirmation happens exactly once.
//!
//! ```text
//! DATABASE_URL=postgres://localhost/app cargo run --example transactional_enqueue
//! ```

use laneway::{
    Client, Completion, Failure, Payload, PostgresOptions, PostgresStore, State, StoreHandle, Worker,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

#[derive(Serialize, Deserialize)]
struct Confirm {
    order: i64,
}

impl Payload for Confirm {
    const KIND: &'static str = "order.confirm";
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn confirm(confirm: Confirm, completion: Completion, State(url): State<String>) -> Result<(), Failure> {
    let mut client = connect(&url).await?;
    let transaction = client.transaction().await?;
    let update = "update example_order set confirmed = confirmed + 1 where id = $1";
    transaction.execute(update, &[&confirm.order]).await?;
    completion.complete_in(&transaction).await?;
    Ok(transaction.commit().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        eprintln!(
            "set DATABASE_URL to the address of a PostgreSQL database that may get a table `example_order`"
        );
        return Ok(());
    };
    let store = StoreHandle::from(PostgresStore::open(PostgresOptions::new(&url)).await?);
    let mut client = connect(&url).await?;
    client
        .batch_execute("create table if not exists example_order (id bigserial primary key, confirmed int not null default 0)")
        .await?;

    let transaction = client.transaction().await?;
    let row = transaction.query_one("insert into example_order default values returning id", &[]).await?;
    let order: i64 = row.get(0);
    Client::new(&store).enqueue_in(&transaction, [Confirm { order }]).await?;
    transaction.commit().await?; // without this line there is neither an order nor a task

    let worker = Worker::builder(&store).state(url).handle(confirm).build()?;
    println!("{}", worker.run_until_empty().await?);
    let row = client.query_one("select confirmed from example_order where id = $1", &[&order]).await?;
    println!("order {order} was confirmed {} time(s)", row.get::<_, i32>(0));
    Ok(())
}
