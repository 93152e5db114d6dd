//! Measures single tasks over HTTP: how many a second, and how long one takes.
//!
//! ```text
//! cargo run --release -p laneway-server --example http_bench                  a line of text
//! cargo run --release -p laneway-server --example http_bench -- --json        one JSON object
//! cargo run --release -p laneway-server --example http_bench -- --store sqlite --clients 50 --seconds 5
//! ```
//!
//! The server and a throwaway PostgreSQL that syncs to disk run on one machine with the clients, which are a process of
//! their own: plain sockets, one connection each, the next task when the answer to the one before is there.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use laneway::core::{Listing, Place, Store, StoreError};
use laneway::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use laneway_server::Server;
use laneway_testkit::cluster::{Cluster, ClusterOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error>;

/// Before it counts, so that connections, plans and pages are warm.
const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| arguments.iter().skip_while(|found| *found != name).nth(1).cloned();
    let clients = option("--clients").map_or(Ok(50), |text| text.parse())?;
    let seconds = option("--seconds").map_or(Ok(5), |text| text.parse())?;
    if let Some(address) = option("--client-of") {
        return clients_of(&address, clients, Duration::from_secs(seconds));
    }
    let store = option("--store").unwrap_or_else(|| "postgres".to_owned());
    let mut report = measure(&store, clients, seconds)?;
    report["store"] = store.into();
    if arguments.iter().any(|found| found == "--json") {
        println!("{report}");
    } else {
        println!(
            "{} clients: {} tasks/s, p50 {} ms, p99 {} ms",
            report["clients"],
            report["http_enqueue_per_s"],
            report["http_enqueue_p50_ms"],
            report["http_enqueue_p99_ms"]
        );
    }
    Ok(())
}

/// Runs the server here and the clients in another process.
#[tokio::main]
async fn measure(store: &str, clients: usize, seconds: u64) -> Result<Value, Failure> {
    let directory = tempfile::tempdir()?;
    let cluster;
    let store: Arc<dyn Store> = match store {
        "sqlite" => Arc::new(SqliteStore::open(SqliteOptions::new(directory.path().join("bench.db"))).await?),
        _ => {
            cluster = Cluster::start(ClusterOptions::default().durable(true)).await?;
            let database = cluster.database().await?;
            Arc::new(PostgresStore::open(PostgresOptions::new(&database.socket_url)).await?)
        }
    };
    let bound = Server::builder(store.clone()).listen("127.0.0.1:0".parse()?).build()?.bind().await?;
    let address = bound.address().to_string();
    let stop = CancellationToken::new();
    let served = tokio::spawn(bound.serve(stop.clone()));
    let client = Command::new(std::env::current_exe()?)
        .args(["--client-of", &address])
        .args(["--clients", &clients.to_string(), "--seconds", &seconds.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = tokio::task::spawn_blocking(move || client.wait_with_output()).await??;
    stop.cancel();
    served.await?;
    let mut report: Value = serde_json::from_slice(&output.stdout)?;
    report["stored"] = stored(&*store).await?.into();
    Ok(report)
}

/// How many tasks there are. Counts of a long queue stop early, so they are listed.
async fn stored(store: &dyn Store) -> Result<u64, StoreError> {
    let (mut stored, mut listing) = (0, Listing::of(Place::Pending).limit(500));
    loop {
        let page = store.list(listing.clone()).await?;
        stored += page.tasks.len() as u64;
        match page.next {
            Some(next) => listing = listing.after(next),
            None => return Ok(stored),
        }
    }
}

/// The other process: all clients on one thread.
#[tokio::main(flavor = "current_thread")]
async fn clients_of(address: &str, clients: usize, lasting: Duration) -> Result<(), Failure> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + lasting;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..clients {
        running.spawn(client(address.to_owned(), number, begin, end));
    }
    let mut micros: Vec<u64> = vec![];
    while let Some(times) = running.join_next().await {
        micros.extend(times?.map_err(|error| format!("a client failed: {error}"))?);
    }
    micros.sort_unstable();
    let quantile = |share: f64| {
        let place = ((micros.len() as f64 * share) as usize).min(micros.len().saturating_sub(1));
        micros.get(place).map_or(0.0, |micros| *micros as f64 / 1_000.0)
    };
    let per_second = micros.len() as f64 / lasting.as_secs_f64();
    println!(
        "{}",
        json!({
            "clients": clients,
            "http_enqueue_per_s": per_second.round(),
            "http_enqueue_p50_ms": quantile(0.5),
            "http_enqueue_p99_ms": quantile(0.99),
        })
    );
    Ok(())
}

/// One client; returns how long each answer took, in microseconds.
async fn client(address: String, number: usize, begin: Instant, end: Instant) -> std::io::Result<Vec<u64>> {
    let mut socket = TcpStream::connect(&address).await?;
    socket.set_nodelay(true)?;
    let body = format!(r#"{{"kind":"mail.send","payload":{{"to":"ann@example.org","client":{number}}}}}"#);
    let request = format!(
        "POST /api/v1/tasks HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (mut times, mut buffer) = (vec![], vec![0; 4096]);
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(times);
        }
        socket.write_all(request.as_bytes()).await?;
        read_answer(&mut socket, &mut buffer).await?;
        if sent >= begin {
            times.push(sent.elapsed().as_micros() as u64);
        }
    }
}

/// Reads one answer, which ends with the `}` of its body.
async fn read_answer(socket: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut length = 0;
    loop {
        let read = socket.read(&mut buffer[length..]).await?;
        length += read;
        let answer = &buffer[..length];
        if read == 0 || !answer.starts_with(&b"HTTP/1.1 201"[..length.min(12)]) {
            return Err(std::io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        if answer.ends_with(b"}") {
            return Ok(());
        }
    }
}
