//! The Rust blocks of the README and of `docs/`, each run as it stands there. The last test compares them with the pages.
//!
//! Blocks are short, so that they can be read; what they leave out is around them here. A block of the README that is a whole
//! program is run as a doc test instead, and the one of `docs/http.md` by the server's tests.

use laneway::core::{
    Action, Actor, ActorName, BulkState, Json, Kind, Missed, NewBulk, NewTask, QueueName, QueueSettings,
    Rule, Schedule, ScheduleName, Serial, State as TaskState, TaskId, Unique, UniqueKey,
};
use laneway::{
    Attempt, Client, Failure, Payload, PostgresOptions, PostgresStore, SqliteStore, State, StoreHandle,
    Worker,
};
use laneway_testkit::cluster::Cluster;
use serde::{Deserialize, Serialize};

type Done = Result<(), Box<dyn std::error::Error>>;

macro_rules! payload {
    ($name:ident, $kind:literal, { $($field:ident: $type:ty),* }) => {
        #[derive(Serialize, Deserialize)]
        struct $name { $($field: $type),* }
        impl Payload for $name {
            const KIND: &'static str = $kind;
        }
    };
}

payload!(Site, "crawl", { id: String, host: String, pages: Vec<String> });
payload!(Fetch, "fetch", { page: String });
payload!(Index, "index", { site: String });
payload!(Receipt, "mail.receipt", { order: u64 });
payload!(Text, "text", { lines: Vec<String> });
payload!(Line, "line", { line: String });

async fn a_store() -> StoreHandle {
    SqliteStore::temporary().await.unwrap().into()
}

#[tokio::test]
async fn families_a_crawl() -> Done {
    async fn crawl(site: Site, attempt: Attempt) -> Result<(), Failure> {
        for page in site.pages {
            attempt.spawn(laneway::task(Fetch { page }).lane(&site.host).limit(3))?; // children: this task waits for them
        }
        attempt.follow_up(laneway::task(Index { site: site.id.clone() }).unique(site.id))?; // runs after all of it
        Ok(())
    }
    async fn fetch(fetch: Fetch) -> Result<usize, Failure> {
        Ok(fetch.page.len())
    }
    async fn index(index: Index) -> Result<String, Failure> {
        Ok(index.site)
    }
    let store = a_store().await;
    let client = Client::new(&store);
    let pages = ["/a", "/b"].map(str::to_owned).into();
    let site = client.enqueue(Site { id: "7".into(), host: "example.org".into(), pages }).await?;

    Worker::builder(&store).handle(crawl).handle(fetch).handle(index).build()?.run_until_empty().await?;

    assert_eq!(client.wait(site).await?.state(), TaskState::Completed);
    assert_eq!(client.family(site).await?.unwrap().completed, 2);
    assert_eq!(store.follow_ups(site.id).await?[0].state, TaskState::Completed);
    Ok(())
}

#[tokio::test]
async fn recipes_map_and_reduce() -> Done {
    async fn split(text: Text, attempt: Attempt) -> Result<(), Failure> {
        text.lines.into_iter().try_for_each(|line| attempt.spawn(Line { line }))
    }

    async fn count(one: Line) -> Result<usize, Failure> {
        Ok(one.line.split_whitespace().count())
    }

    async fn add_up(_: Text, attempt: Attempt) -> Result<usize, Failure> {
        Ok(attempt.results::<usize>().await?.into_iter().sum())
    }
    let store = a_store().await;
    let client = Client::new(&store);
    let lines = ["a turn for", "a lane"].map(str::to_owned).into();
    let task = client.enqueue(Text { lines }).await?;

    let worker = Worker::builder(&store).handle_then(split, add_up).handle(count).build()?;
    worker.run_until_empty().await?;

    assert_eq!(client.wait(task).await?.result::<usize>()?, 5);
    Ok(())
}

#[tokio::test]
async fn families_a_serial_queue() -> Done {
    let (store, queue) = (a_store().await, QueueName::new("orders")?);
    store
        .set_queue(&queue, QueueSettings { serial: Some(Serial::Children(4)), ..Default::default() })
        .await?;
    assert_eq!(store.queues().await?[0].serial, Serial::Children(4));
    Ok(())
}

#[tokio::test]
async fn operations_acts_and_bulks() -> Done {
    let store = a_store().await;
    let ann = Actor::new(ActorName::new("ann")?).because("the mail server is back");
    store.act(&ann, Action::Retry, &[TaskId(88121)]).await?;
    store.enqueue(NewTask::new(Kind::new("email.send")?, Json::default())).await?;
    let bulk =
        store.start_bulk(&ann, NewBulk::new(Action::Retry, "state:failed kind:email.*".parse()?)).await?;
    while store.bulk_step(bulk.id).await?.is_some_and(|bulk| bulk.state == BulkState::Running) {}
    assert_eq!(store.bulk(bulk.id).await?.unwrap().state, BulkState::Finished);
    Ok(())
}

#[tokio::test]
async fn schedules_a_daily_report() -> Done {
    let store = a_store().await;
    let report = NewTask::new(Kind::new("report.daily")?, Json::default());
    let rule = Rule::cron("0 7 * * MON-FRI", "Europe/Berlin");
    store
        .put_schedule(Schedule::new(ScheduleName::new("daily report")?, rule, report).missed(Missed::Once))
        .await?;
    assert!(store.schedule(&ScheduleName::new("daily report")?).await?.is_some());
    Ok(())
}

#[tokio::test]
async fn unique_a_key() -> Done {
    let (store, task) = (a_store().await, NewTask::new(Kind::new("report.build")?, Json::default()));
    let unique = Unique::new(UniqueKey::new("customer:7")?);
    let answer = store.enqueue(task.unique(unique)).await?; // Enqueued { id, effect: Made | Existing | … }
    assert!(answer.is_new());
    Ok(())
}

/// A worker that runs until it is told to stop: here it runs until its task has ended.
#[tokio::test]
async fn worker_a_service() -> Done {
    type Mailer = String;
    async fn send_receipt(receipt: Receipt, State(from): State<Mailer>) -> Result<String, Failure> {
        Ok(format!("{} by {from}", receipt.order))
    }
    async fn serve(store: &StoreHandle, mailer: Mailer) -> Done {
        let worker = Worker::builder(store)
            .weighted_queue("mail", 3)
            .queue("default")
            .state(mailer)
            .handle(send_receipt)
            .environment()
            .build()?; // every mistake in the description is reported here
        worker.run().await?; // until SIGTERM or SIGINT
        Ok(())
    }
    let store = a_store().await;
    let client = Client::new(&store);
    let task = client.enqueue(Receipt { order: 7 }).queue("mail").await?;

    tokio::select! {
        ended = serve(&store, "ann".into()) => panic!("it runs until it is told to stop: {ended:?}"),
        ended = client.wait(task) => assert_eq!(ended?.result::<String>()?, "7 by ann"),
    }
    Ok(())
}

/// The README's line, with the address of a server that is there.
#[tokio::test]
async fn readme_postgresql() -> Done {
    let database = Cluster::shared().await.database().await?;
    let elsewhere = async || -> Result<StoreHandle, laneway::core::StoreError> {
        let store =
            StoreHandle::from(PostgresStore::open(PostgresOptions::new("postgres://localhost/app")).await?);
        Ok(store)
    };
    let here = StoreHandle::from(PostgresStore::open(PostgresOptions::new(&database.url)).await?);
    assert_eq!(here.name(), "postgres");
    let _ = elsewhere; // compiled, and not called: the tests do not touch a server that is not theirs
    Ok(())
}

/// Code without what `rustfmt` decides: spaces, line ends, and commas before them.
fn bare(code: &str) -> String {
    code.chars().filter(|c| !c.is_whitespace() && *c != ',').collect()
}

#[test]
fn every_rust_block_of_the_pages_is_run_here() {
    let (root, own) = (format!("{}/../..", env!("CARGO_MANIFEST_DIR")), bare(include_str!("pages.rs")));
    let docs = std::fs::read_dir(format!("{root}/docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages =
        docs.filter(|page| page.extension().is_some_and(|end| end == "md") && !page.ends_with("http.md"));
    let mut compared = 0;
    for page in pages.chain([format!("{root}/README.md").into()]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in text.split("\n```rust").skip(1) {
            let (kind, code) = block.split_once('\n').unwrap();
            let code = code.split("\n```").next().unwrap();
            if kind.is_empty() && page.ends_with("README.md") {
                continue; // a whole program, run as a doc test
            }
            assert!(own.contains(&bare(code)), "{}: this block is not run:\n{code}", page.display());
            compared += 1;
        }
    }
    assert!(compared >= 10, "only {compared} blocks were found");
}

#[test]
fn the_benchmark_of_the_worker_runs_as_the_pages_say() {
    let command = "cargo run --release -p laneway --example throughput";
    let program = laneway_testkit::pages::example("laneway", "throughput");
    let tiny = ["--tasks", "200", "--only", "drain", "--store", "sqlite"];

    assert_eq!(laneway_testkit::pages::run_benchmarks(command, &program, &tiny), 2);
}
