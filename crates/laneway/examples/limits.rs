//! Crawl jobs with a limit each: three pages of a site at a time, whatever the number of slots, and every site gets its turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::{Attempt, Client, Payload, SqliteStore, State, StoreHandle, Worker, task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Page {
    url: String,
}

impl Payload for Page {
    const KIND: &'static str = "page.fetch";
}

/// Running now and at most, by site.
type Running = Arc<Mutex<HashMap<String, (usize, usize)>>>;

async fn fetch(_page: Page, attempt: Attempt, State(running): State<Running>) -> Result<(), std::io::Error> {
    let site = attempt.task().lane.as_ref().map(ToString::to_string).unwrap_or_default();
    {
        let mut running = running.lock().expect("no panics");
        let (now, most) = running.entry(site.clone()).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    running.lock().expect("no panics").entry(site).or_default().0 -= 1;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::from(SqliteStore::temporary().await?);
    let pages = (0..100).map(|page| {
        let site = page % 5;
        task(Page { url: format!("https://site{site}.example/{page}") }).lane(format!("site:{site}")).limit(3)
    });
    Client::new(&store).enqueue_many(pages).await?;

    let running = Running::default();
    let worker = Worker::builder(&store).slots(500).state(running.clone()).handle(fetch).build()?;
    let summary = worker.run_until_empty().await?;

    let mut sites: Vec<_> = running.lock().expect("no panics").clone().into_iter().collect();
    sites.sort();
    for (site, (_, most)) in sites {
        println!("{site}: at most {most} at once");
    }
    println!("{summary}");
    Ok(())
}
