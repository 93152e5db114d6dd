//! Counts words in parallel: one task splits a text, its children count, and its second step adds up.

use std::collections::BTreeMap;

use laneway::{Attempt, Client, Failure, Payload, SqliteStore, StoreHandle, Worker};
use serde::{Deserialize, Serialize};

type Words = BTreeMap<String, u64>;

#[derive(Serialize, Deserialize)]
struct CountWords {
    text: String,
}
impl Payload for CountWords {
    const KIND: &'static str = "words.count";
}

#[derive(Serialize, Deserialize)]
struct CountLine {
    line: String,
}
impl Payload for CountLine {
    const KIND: &'static str = "words.count_line";
}

/// The first step: a child for each line. They are stored when it returns, and then it waits for them.
async fn split(all: CountWords, attempt: Attempt) -> Result<(), Failure> {
    all.text.lines().try_for_each(|line| attempt.spawn(CountLine { line: line.to_owned() }))
}

async fn count(one: CountLine) -> Result<Words, Failure> {
    let mut words = Words::new();
    one.line.split_whitespace().for_each(|word| *words.entry(word.to_owned()).or_default() += 1);
    Ok(words)
}

/// The second step, when all children have completed.
async fn reduce(_: CountWords, attempt: Attempt) -> Result<Words, Failure> {
    let mut total = Words::new();
    for (word, n) in attempt.results::<Words>().await?.into_iter().flatten() {
        *total.entry(word).or_default() += n;
    }
    Ok(total)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::from(SqliteStore::temporary().await?);
    let client = Client::new(&store);
    let text = "a turn for a lane\na lane for a task\na task for a turn".to_owned();
    let task = client.enqueue(CountWords { text }).await?;

    let worker = Worker::builder(&store).handle_then(split, reduce).handle(count).build()?;
    worker.run_until_empty().await?;

    println!("{:?}", client.wait(task).await?.result::<Words>()?);
    Ok(())
}
