//! `dev`, `serve` and workers as real processes: together, killed, and stopped in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use laneway_core::BulkState;
use laneway_testkit::store::PATIENCE;

use crate::support::{Session, program};

/// A daemon whose lines can be waited for.
pub struct Daemon {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Daemon {
    pub fn start(session: &Session, arguments: &str) -> Self {
        let mut child =
            session.command(program()).args(arguments.split(' ')).spawn().expect("the program is there");
        let (sender, lines) = channel();
        let out: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
        for pipe in out {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    // Nobody waits for lines once the test is over.
                    let _ = sender.send(line);
                }
            });
        }
        Self { child, lines, seen: vec![] }
    }

    /// Waits for a line that contains `wanted`.
    pub fn until(&mut self, wanted: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(wanted) => return line,
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line with `{wanted}`; seen:\n{}", self.seen.join("\n"))
                }
            }
        }
    }

    /// The address that a server has said.
    pub fn address(&mut self) -> String {
        let line = self.until("serving HTTP");
        let after = line.split("\"address\":\"").nth(1).expect("the log names its address");
        after.split('"').next().expect("a quote ends it").to_owned()
    }

    pub fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(done.expect("there is a kill").success());
    }

    /// Waits for its end.
    pub fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("it was started")
    }

    /// Ends it in order.
    pub fn stop(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.child.wait().expect("it was started")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It is gone already if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `done`, while others go on.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done().await {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn get(address: &str, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

pub fn post(address: &str, path: &str, body: &str) -> String {
    let length = body.len();
    let head = format!(
        "Host: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}"
    );
    ask(address, &format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n{body}"))
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers text");
    answer
}

/// Waits until `done`.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn completed(session: &Session) -> u64 {
    let queues: serde_json::Value = serde_json::from_str(&session.out("laneway queues ls -o json")).unwrap();
    let counts = queues["queues"][0]["counts"].as_array().cloned().unwrap_or_default();
    counts
        .iter()
        .filter(|count| count["state"] == "completed")
        .filter_map(|count| count["tasks"].as_u64())
        .sum()
}

#[test]
fn dev_runs_tasks_and_tells_about_them() {
    let mut session = Session::new();
    session.set("DATABASE_URL", "postgres://elsewhere/important");
    let mut dev = Daemon::start(&session, "dev --listen 0");
    dev.until("development mode, do not expose");
    dev.until("laneway enqueue echo '\"hello\"' --store sqlite:.laneway/laneway.db");
    dev.until("worker  joined");

    let id = session.out("laneway enqueue echo '{\"a\": 1}' --store sqlite:.laneway/laneway.db -o id");

    dev.until(&format!("task    completed  echo {}", id.trim()));
    let waited = session.out(&format!("laneway tasks wait {} --store sqlite:.laneway/laneway.db", id.trim()));
    assert_eq!(waited, "ID  STATE      RESULT\n 1  completed  {\"a\": 1}\n");
    assert!(dev.stop().success());
}

#[test]
fn nothing_that_was_accepted_is_lost_when_dev_is_killed_under_load() {
    const TASKS: usize = 20_000;
    let session = Session::new();
    let mut dev = Daemon::start(&session, "dev --listen 0");
    dev.until("worker  joined");

    let mut producer = session.start("laneway enqueue echo --many - -o id");
    let mut input = producer.stdin.take().expect("piped");
    let lines: String = (0..TASKS).map(|n| format!("{n}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let mut accepted = BufReader::new(producer.stdout.take().expect("piped")).lines();
    accepted.next().expect("the first chunk is accepted").expect("an id");
    wait_until("some tasks end", || completed(&session) > 0);
    dev.signal("-KILL");
    let accepted = 1 + accepted.map_while(Result::ok).count();
    writer.join().expect("no panic").expect("the producer reads everything");
    assert!(producer.wait().expect("it was started").success());
    assert_eq!(accepted, TASKS);

    let again = Daemon::start(&session, "dev --listen 0");
    wait_until("all tasks end", || completed(&session) == TASKS as u64);

    assert_eq!(session.out("laneway tasks ls --where -state:completed -o id"), "");
    assert!(again.stop().success());
}

#[tokio::test]
async fn two_daemons_and_three_workers_share_one_postgresql() {
    const TASKS: u64 = 6_000;
    let session = Session::on_postgres().await;
    let mut daemons = [(); 2].map(|()| Daemon::start(&session, "serve --listen 0"));
    let addresses = daemons.each_mut().map(Daemon::address);
    let mut workers = [(); 3].map(|()| Daemon::start(&session, "worker run --concurrency 20"));
    for worker in &mut workers {
        worker.until("the worker starts with 20 slots");
    }
    wait_until("all workers register", || session.out("laneway worker ls -o id").lines().count() == 3);

    let lines: String = (0..TASKS)
        .map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n},\"lane\":\"l{}\"}}\n", n % 50))
        .collect();
    assert_eq!(session.run_with_input("laneway enqueue --many -", &lines).code, 0);
    wait_until("all tasks end", || completed(&session) == TASKS);

    for address in &addresses {
        assert!(get(address, "/readyz").starts_with("HTTP/1.1 200"));
        assert!(get(address, "/api/v1/tasks/1").contains("\"state\":\"completed\""));
    }
    let first = session.out("laneway worker ls -o id").lines().next().map(str::to_owned).expect("a worker");
    assert_eq!(
        session.out(&format!("laneway worker drain {first}")),
        format!("worker {first} takes nothing new\n")
    );
    for daemon in daemons.into_iter().chain(workers) {
        assert!(daemon.stop().success());
    }
    assert_eq!(session.out("laneway worker ls -o id"), "", "workers leave when they stop");
}

#[test]
fn a_daemon_logs_json_and_reads_its_level_again() {
    let session = Session::new();
    session.write("laneway.toml", "log.level = \"info\"\n");
    let mut worker = Daemon::start(&session, "worker run");
    let first = worker.until("the worker starts with 1000 slots");
    assert!(serde_json::from_str::<serde_json::Value>(&first).is_ok(), "{first}");

    session.write("laneway.toml", "log.level = \"loud=?\"\n");
    worker.signal("-HUP");
    worker.until("settings were not read again");
    session.write("laneway.toml", "log.level = \"debug\"\n");
    worker.signal("-HUP");
    worker.until("live settings were read again");

    assert!(worker.stop().success());
}

#[test]
fn a_server_that_others_can_reach_needs_a_token() {
    let session = Session::new();
    let token = session.out("laneway token create ann --scope read");

    let mut server = Daemon::start(&session, "serve --listen 0.0.0.0:0");
    let address = server.address().replace("0.0.0.0", "127.0.0.1");

    assert!(get(&address, "/livez").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/api/v1/tasks").starts_with("HTTP/1.1 401"));
    let mut stream = TcpStream::connect(&address).expect("the server listens");
    let bearer = token.trim();
    write!(stream, "GET /api/v1/tasks HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {bearer}\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.stop().success());
}

#[test]
fn a_program_handles_a_kind() {
    let session = Session::new();
    session.write(
        "handle.sh",
        "read payload; [ \"$payload\" = 1 ] && exit 100; echo \"{\\\"got\\\": $payload}\"",
    );
    let mut worker = Daemon::start(&session, "worker exec hello -- sh handle.sh");
    worker.until("the worker starts with");

    let ids = session.run_with_input("laneway enqueue hello --many - -o id", "7\n1\n");
    assert_eq!(ids.out, "1\n2\n");

    let waited = session.run("laneway tasks wait 1 2");
    assert_eq!(waited.code, 1, "{}{}", waited.out, waited.err);
    assert!(waited.out.contains(" 1  completed  {\"got\":7}\n 2  failed "), "{}", waited.out);
    assert!(worker.stop().success());
}

#[test]
fn an_endpoint_handles_a_kind() {
    let session = Session::new();
    let mut server = Daemon::start(&session, "serve --listen 0");
    let address = server.address();
    let relay = format!("worker http relay --url http://{address}/api/v1/tasks --http-targets any");
    let mut worker = Daemon::start(&session, &relay);
    worker.until("the worker starts with");

    session.out("laneway enqueue relay '{\"kind\": \"passed.on\"}'");

    assert_eq!(session.run("laneway tasks wait 1").code, 0);
    assert_eq!(session.out("laneway tasks ls --where kind:passed.on -o id"), "2\n");
    assert!(worker.stop().success() && server.stop().success());
}

/// A collector of OpenTelemetry: says 200 to everything and passes on what it got.
#[cfg(feature = "otel")]
fn collector() -> (String, Receiver<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (sender, got) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = vec![];
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                request.extend_from_slice(&chunk[..n]);
                if is_whole(&request) {
                    // The worker may be gone already.
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    let _ = sender.send(std::mem::take(&mut request));
                }
            }
        }
    });
    (format!("http://{address}"), got)
}

#[cfg(feature = "otel")]
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let length = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    let Some(head) = request.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    request.len() - head - 4 >= length.unwrap_or(0usize)
}

#[cfg(feature = "otel")]
#[test]
fn a_daemon_sends_its_traces_to_the_collector_that_the_environment_names() {
    let (endpoint, got) = collector();
    let mut session = Session::new();
    session.set("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut worker = Daemon::start(&session, "worker exec traced.kind -- true");
    worker.until("the worker starts with");
    session.out("laneway enqueue traced.kind");
    assert_eq!(session.run("laneway tasks wait 1").code, 0);
    assert!(worker.stop().success());

    // A batch may hold other spans only; the last one has been sent when the worker has ended.
    let requests: Vec<_> =
        got.try_iter().map(|request| String::from_utf8_lossy(&request).into_owned()).collect();
    assert!(requests.iter().all(|request| request.starts_with("POST /v1/traces ")), "{requests:?}");
    let all = requests.concat();
    assert!(
        ["attempt", "traced.kind", "service.name", "laneway"].iter().all(|word| all.contains(word)),
        "{all}"
    );
}

/// What a server has begun and another one ends, although the first was killed in the middle of it.
#[tokio::test]
async fn a_bulk_whose_server_is_killed_is_finished_by_another() {
    let session = Session::on_postgres().await;
    let mut first = Daemon::start(&session, "serve --listen 0");
    let address = first.address();
    session.run_with_input("laneway enqueue echo --many -", &"1\n".repeat(150));
    let started = post(&address, "/api/v1/bulk", r#"{"action": "cancel", "q": "kind:echo", "pace": 50}"#);
    assert!(started.starts_with("HTTP/1.1 202"), "{started}");
    let store = session.store().await;
    let bulk = store.bulks(Default::default()).await.unwrap().remove(0).id;
    let now = async || store.bulk(bulk).await.unwrap().unwrap();
    until("a step is taken", async || now().await.done >= 50).await;

    first.signal("-KILL");
    first.child.wait().unwrap();
    let left = now().await;
    assert!(left.state == BulkState::Running && left.done < 150, "{left:?}");
    let second = Daemon::start(&session, "serve --listen 0");

    until("the bulk is finished", async || now().await.state == BulkState::Finished).await;
    assert_eq!((now().await.matched, now().await.done), (150, 150), "each task once");
    assert!(second.stop().success());
}

#[test]
fn a_worker_shows_its_metrics_and_ends_when_it_is_told_to() {
    let session = Session::new();
    session.out("laneway enqueue echo");
    let mut worker = Daemon::start(&session, "worker run --metrics-listen 0 --profile staging --kinds echo");
    let line = worker.until("serving metrics");
    let address =
        line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
    session.out("laneway tasks wait 1");

    let metrics = get(&address, "/metrics");
    assert!(metrics.contains("worker_slots 60") && metrics.contains(r#"profile="staging"} 1"#), "{metrics}");
    assert!(get(&address, "/livez").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/api/v1/tasks").starts_with("HTTP/1.1 404"), "only probes are there");
    let id = session.out("laneway worker ls -o id");
    assert!(session.out(&format!("laneway worker show {}", id.trim())).contains("echo"));
    let told = session.out(&format!("laneway worker stop {}", id.trim()));

    assert_eq!(told, format!("worker {} ends when what it runs has finished\n", id.trim()));
    worker.until("an operator has told the worker to stop");
    assert!(worker.child.wait().unwrap().success());
    assert_eq!(session.out("laneway worker ls -o id"), "");
}

#[test]
fn a_server_tells_its_settings_and_may_be_read_only() {
    let mut session = Session::new();
    session.out("laneway enqueue echo");
    session.set("LANEWAY_SERVER_READ_ONLY", "true");
    let mut server =
        Daemon::start(&session, "serve --listen 0 --public-url https://tasks.example.org/laneway");
    let address = server.address();

    let settings = get(&address, "/api/v1/settings");
    let read_only =
        r#"{"key":"server.read_only","value":"true","from":"env LANEWAY_SERVER_READ_ONLY","live":false}"#;
    assert!(settings.contains(read_only), "{settings}");
    assert!(post(&address, "/api/v1/tasks/1/cancel", "").starts_with("HTTP/1.1 403"));
    let proxied = "GET /api/v1/tasks/1 HTTP/1.1\r\nHost: tasks.example.org\r\nConnection: close\r\n\r\n";
    assert!(ask(&address, proxied).starts_with("HTTP/1.1 200"));
    assert!(ask(&address, &proxied.replace("tasks.", "evil.")).starts_with("HTTP/1.1 403"));
    assert!(server.stop().success());
}

/// Requests that wait in the database take all connections that HTTP has; the worker has its own.
#[tokio::test]
async fn looks_that_hang_do_not_keep_a_worker_in_the_same_process_from_working() {
    let session = Session::on_postgres().await;
    let mut server = Daemon::start(&session, "serve --worker --listen 0 --pool-size 2 --ui-pool-size 2");
    let address = server.address();
    let mut locks = session.start("psql -XqAt $DATABASE_URL");
    let mut psql = locks.stdin.take().expect("piped");
    writeln!(psql, "begin; lock table laneway.audit in access exclusive mode; select 'locked';")
        .expect("it reads");
    let mut said = BufReader::new(locks.stdout.take().expect("piped")).lines();
    assert_eq!(said.next().expect("a line").expect("text"), "locked");
    let looks = [(); 2].map(|()| {
        let address = address.clone();
        std::thread::spawn(move || get(&address, "/api/v1/audit"))
    });
    let hanging = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    wait_until("both looks hang", || {
        session.out(&format!("psql -XqAt -c \"{hanging}\" $DATABASE_URL")).trim() == "2"
    });

    session.run_with_input("laneway enqueue echo --many -", &"1\n".repeat(50));
    wait_until("all tasks have run", || completed(&session) == 50);

    assert!(!looks.iter().any(|look| look.is_finished()), "they still have both connections");
    assert!(get(&address, "/api/v1/queues").starts_with("HTTP/1.1 503"), "none is left for another look");
    writeln!(psql, "commit;").expect("it reads");
    drop(psql);
    for look in looks {
        assert!(look.join().expect("no panic").starts_with("HTTP/1.1 200"));
    }
    assert!(locks.wait().expect("it was started").success());
    assert!(server.stop().success());
}

#[test]
fn a_server_below_a_path_says_where_it_is() {
    let session = Session::new();
    let mut dev = Daemon::start(&session, "dev --listen 0 --base-path /tools/tasks");
    let line = dev.until("/tools/tasks/api/v1");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");

    assert!(get(address, "/tools/tasks/api/v1/queues").starts_with("HTTP/1.1 200"));
    assert!(get(address, "/api/v1/queues").starts_with("HTTP/1.1 404"));

    let refused = session.run("laneway serve --base-path tasks");
    assert_eq!(refused.code, 2);
    let told = "error: server.base_path is `tasks` (from flag --base-path); allowed is /, or /NAME/NAME with names of letters, digits, -, ., _ and ~\n";
    assert_eq!(refused.err, told);
    assert!(dev.stop().success());
}
