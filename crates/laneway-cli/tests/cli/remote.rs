//! Commands through a server answer what they answer at the store: output, messages and exit codes, compared line by line.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use jiff::Timestamp;

use crate::daemons::Daemon;
use crate::support::{Ran, Session, assert_matches};

/// Two stores with the same past. One is used directly, the other through a server.
struct Twins {
    near: Session,
    far: Session,
    /// Where commands of the far store are run: there is no store in it.
    client: Session,
    url: String,
    daemons: Vec<Daemon>,
}

impl Twins {
    fn new(near: Session, far: Session) -> Self {
        let mut server = Daemon::start(&far, "serve --listen 127.0.0.1:0 --log-format json");
        let url = format!("http://{}", server.address());
        Self { near, far, client: Session::new(), url, daemons: vec![server] }
    }

    /// Does the same to both stores, directly.
    fn both(&self, line: &str) {
        assert_eq!(plain(&self.near.out(line)), plain(&self.far.out(line)), "{line}");
    }

    /// Starts the same daemon on both stores.
    fn start(&mut self, arguments: &str, until: &str) {
        for session in [&self.near, &self.far] {
            let mut daemon = Daemon::start(session, arguments);
            daemon.until(until);
            self.daemons.push(daemon);
        }
    }

    fn write(&self, file: &str, text: &str) {
        self.near.write(file, text);
        self.client.write(file, text);
    }

    /// The line as it is run through the server.
    fn remote(&self, line: &str) -> Ran {
        self.client.run(&line.replace("laneway ", &format!("laneway --server {} ", self.url)))
    }

    /// Runs a line both ways, and tells what was not the same.
    fn difference(&self, line: &str, code: i32) -> Option<String> {
        let shown = |ran: &Ran| format!("exit {}\n{}{}", ran.code, plain(&ran.out), plain(&ran.err));
        let (near, far) = (shown(&self.near.run(line)), shown(&self.remote(line)));
        let is_same = near == far && near.starts_with(&format!("exit {code}\n"));
        (!is_same)
            .then(|| format!("{line}: exit {code}\n--- at the store\n{near}--- through the server\n{far}"))
    }
}

/// Text without what differs between two runs: times, ages, sessions, rates, memory, and how wide columns are.
fn plain(text: &str) -> String {
    let is_steady = |line: &&str| !line.contains("memory_percent");
    let text: String = text.lines().filter(is_steady).map(|line| format!("{line}\n")).collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-:.+_".contains(c);
    let (mut plain, mut rest) = (String::new(), text.as_str());
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let is_percent = rest[end..].starts_with('%');
        plain += if is_percent { "N" } else { blank(&rest[..end]).unwrap_or(&rest[..end]) };
        let separator = rest[end..].chars().next();
        if separator.is_some_and(|c| c != ' ' || !plain.ends_with(' ')) {
            plain.extend(separator);
        }
        rest = &rest[end + separator.map_or(0, char::len_utf8)..];
        // `3 tasks in 0.0 s (1 234/s)`
        if let Some((_, after)) = rest.split_once("/s)").filter(|_| plain.ends_with(" s (")) {
            (plain, rest) = (plain + "RATE", after);
        }
    }
    plain
}

fn blank(word: &str) -> Option<&'static str> {
    let is_span = |word: &str| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        unit.len() < word.len() && ["ms", "s", "m", "h", "d"].contains(&unit)
    };
    let short = word.trim_start_matches("worker:").strip_prefix("w-").is_some_and(|rest| rest.len() == 8);
    match word {
        _ if word.parse::<Timestamp>().is_ok() => Some("TIME"),
        _ if short || word.parse::<uuid::Uuid>().is_ok() => Some("SESSION"),
        _ if is_span(word) => Some("SPAN"),
        _ => None,
    }
}

/// A past with every state but running ones: pending, later, cancelled, failed, completed; lanes, keys, tags and a family.
fn give_past(twins: &mut Twins) {
    let numbers = r#"{"id": 9007199254740993, "n": 9223372036854775807, "f": 1.0}"#;
    for line in [
        &format!("laneway enqueue echo '{numbers}' --tag setup --priority -3 --timeout 30s --max-attempts 3"),
        "laneway enqueue echo null --tag setup --retry 1s,5s",
        "laneway enqueue mail.send '{\"to\": \"ann\"}' --queue mail --lane order:7 --limit 2 --tag setup",
        "laneway enqueue mail.send --queue mail --lane order:7 --unique ann --unique-scope 1h",
        "laneway lanes set mail order:7 --limit 2",
        "laneway enqueue mail.send --queue mail --delay 10m --idempotency-key first",
        "laneway enqueue mail.send --queue mail --at 2027-01-01T00:00:00Z",
        "laneway enqueue work.boom '[1]' --queue work --max-attempts 1",
        "laneway enqueue work.boom '[2]' --queue work --max-attempts 1",
        "laneway enqueue echo '\"gone\"' --queue gone && laneway tasks cancel 9",
        "laneway schedules add nightly report '{\"big\": 9007199254740993}' --cron '30 2 * * *' --zone Europe/Berlin --lane l:1 --tag t",
        "laneway schedules add 'preview' report --every 90m --no-overlap --missed all:3 --delay 5s",
    ] {
        twins.both(line);
    }
    twins.start("worker exec work.boom --queues work --name hand --concurrency 1 -- false", "");
    twins.both("laneway tasks wait 7 8 --timeout 60s || true");
}

/// Every command, with what it exits with. Later lines see what earlier ones have done.
const LINES: &[(&str, i32)] = &[
    // Looking.
    ("laneway tasks ls", 0),
    ("laneway tasks ls -o wide", 0),
    ("laneway tasks ls -o json", 0),
    ("laneway tasks ls -o ndjson", 0),
    ("laneway tasks ls --limit 3 -o id", 0),
    ("laneway tasks ls --limit 3 --after 0.0-2 -o json", 0),
    ("laneway tasks ls --where 'state:failed error:\"1\" since:1h'", 0),
    ("laneway tasks ls --where 'payload.to:ann -queue:work'", 0),
    ("laneway tasks ls --where 'nonsense:x'", 2),
    ("laneway tasks ls --limit 0", 2),
    ("laneway tasks show 1", 0),
    ("laneway tasks show 1 -o json", 0),
    ("laneway tasks show 2", 0),
    ("laneway tasks show 4 -o json", 0),
    ("laneway tasks show 5 -o json", 0),
    ("laneway tasks show 7 -o json", 0),
    ("laneway tasks show 9 -o json", 0),
    ("laneway tasks show 99", 3),
    ("laneway tasks show x", 2),
    ("laneway tasks why 1", 0),
    ("laneway tasks why 3 -o json", 0),
    ("laneway tasks why 5 -o json", 0),
    ("laneway tasks why 7 -o json", 0),
    ("laneway tasks why 99", 3),
    ("laneway tasks tree 1 -o json", 0),
    ("laneway tasks tree 7", 0),
    ("laneway tasks tree 7 --rows 0", 2),
    ("laneway tasks tree 99", 3),
    ("laneway tasks wait 9", 1),
    ("laneway tasks wait 7 8 -o json", 1),
    ("laneway tasks wait 1 --timeout 50ms", 1),
    ("laneway tasks wait 99", 3),
    ("laneway queues ls", 0),
    ("laneway queues ls -o json", 0),
    ("laneway queues show work", 0),
    ("laneway queues show mail -o json", 0),
    ("laneway queues show nowhere", 3),
    ("laneway lanes ls mail", 0),
    ("laneway lanes ls mail --order key --limit 1 -o json", 0),
    ("laneway lanes ls mail --order colour", 2),
    ("laneway lanes show mail order:7 -o json", 0),
    ("laneway lanes show mail nowhere", 3),
    ("laneway worker ls", 0),
    ("laneway worker ls -o json", 0),
    ("laneway worker show $(laneway worker ls -o id)", 0),
    ("laneway worker show w-00000000", 3),
    ("laneway worker show x", 3),
    ("laneway schedules ls", 0),
    ("laneway schedules ls -o json", 0),
    ("laneway schedules show nightly", 0),
    ("laneway schedules show preview -o json", 0),
    ("laneway schedules show nowhere", 3),
    ("laneway schedules next '0 7 * * MON-FRI' -n 2 -o id", 0),
    ("laneway bulk ls -o json", 0),
    ("laneway bulk show 99", 3),
    ("laneway token ls -o json", 0),
    // Acting on tasks that are named.
    ("laneway tasks snooze 1 2 --for 1h --reason 'a\nb'", 0),
    ("laneway tasks snooze 1 --for 9999w", 2),
    ("laneway tasks priority 3 9 --to 5 -o json", 4),
    ("laneway tasks priority 3 --to 5000", 2),
    ("laneway tasks edit 1 --payload '{\"id\": 9007199254740995}' --priority 7", 0),
    ("laneway tasks edit 1 --payload '{\"id\": 9007199254740995}' --priority 7 -o json", 3),
    ("laneway tasks edit 1 --payload null", 0),
    ("laneway tasks edit 9 --priority 1", 3),
    ("laneway tasks edit 99 --priority 1", 3),
    ("laneway tasks show 1", 0),
    ("laneway tasks cancel 2 9 99", 4),
    ("laneway tasks cancel 9 -o json", 3),
    ("laneway tasks cancel x", 2),
    ("laneway tasks retry 2 3", 4),
    ("laneway tasks retry 9 -o json", 0),
    ("laneway tasks retry --children 7", 3),
    ("laneway tasks delete 9 99 -o json", 4),
    ("laneway tasks show 9", 3),
    // Acting on those that a query means.
    ("laneway tasks cancel --where kind:mail.send --dry-run -o json", 0),
    ("laneway tasks cancel --where kind:mail.send", 2),
    ("laneway tasks cancel --where kind:nowhere --yes", 3),
    ("laneway tasks cancel --where '' --yes", 2),
    ("laneway tasks snooze --where 'queue:mail state:pending' --for 2h --yes", 0),
    ("laneway tasks cancel --where kind:mail.send --yes --reason 'the site is gone' -o json", 0),
    ("laneway tasks priority --where '' --all --to 4 --pace 1000 --yes", 0),
    ("laneway tasks retry --where state:cancelled --yes --pace 0", 2),
    ("laneway bulk ls", 0),
    ("laneway bulk ls --limit 2 -o json", 0),
    ("laneway bulk ls --limit 0", 2),
    ("laneway bulk show 2 -o json", 0),
    ("laneway bulk abort 2", 0),
    ("laneway bulk abort 99", 3),
    ("laneway bulk resume 2 -o json", 0),
    ("laneway bulk resume 99", 3),
    // Queues and lanes.
    ("laneway queues pause mail --for 1h", 0),
    ("laneway queues pause mail -o json", 0),
    ("laneway queues pause mail --for 0s", 2),
    ("laneway queues show mail", 0),
    ("laneway tasks why 3 -o json", 0),
    ("laneway queues resume mail", 0),
    ("laneway queues resume mail", 3),
    (
        "laneway queues set 'a/b c' --keep-completed none --keep-failed 90d --statistics false --lane-limit unlimited",
        0,
    ),
    ("laneway queues set mail --keep-failed none", 2),
    ("laneway queues set mail --serial 2", 0),
    ("laneway queues set gone --serial 2 -o json", 0),
    ("laneway queues ls -o json", 0),
    ("laneway queues drain calm -o json", 0),
    ("laneway lanes set mail 'site/4 2' --limit 5 --every 2s --on-failure halt", 0),
    ("laneway lanes set mail order:7 --limit none", 0),
    ("laneway lanes halt mail order:7", 0),
    ("laneway lanes halt mail order:7 --for 1h", 0),
    ("laneway lanes ls mail --order key", 0),
    ("laneway lanes show mail 'site/4 2' -o json", 0),
    ("laneway lanes resume mail order:7", 0),
    ("laneway lanes resume mail order:7", 3),
    // Schedules.
    (
        "laneway schedules add hourly echo '{\"n\": 9223372036854775807}' --every 1h --unique one --queue mail -o json",
        0,
    ),
    ("laneway schedules add hourly echo --every 1ms", 2),
    ("laneway schedules add bad echo --cron 'x'", 2),
    ("laneway schedules run preview", 0),
    ("laneway schedules run preview -o json", 3),
    ("laneway schedules run nowhere", 3),
    ("laneway schedules pause nightly", 0),
    ("laneway schedules pause nightly", 3),
    ("laneway schedules show nightly -o json", 0),
    ("laneway schedules resume nightly", 0),
    ("laneway schedules resume nightly", 3),
    ("laneway schedules rm preview", 0),
    ("laneway schedules rm preview", 3),
    ("laneway schedules ls -o id", 0),
    // Tokens.
    ("laneway token create shop --scope enqueue,read --for 90d -o id", 0),
    ("laneway token create shop --scope colour", 2),
    ("laneway token create '' --scope read", 2),
    ("laneway token ls", 0),
    ("laneway token revoke 1", 0),
    ("laneway token revoke 1", 3),
    // Storing. What a server is given without a key gets one, so that these come last.
    ("laneway enqueue echo '{\"a\": 1}'", 0),
    ("laneway enqueue echo -o json", 0),
    ("laneway enqueue echo --queue q --lane l --limit 3 --delay 10m", 0),
    ("laneway enqueue echo --unique once -o json", 0),
    ("laneway enqueue echo --unique once -o json", 0),
    ("laneway enqueue echo '[2]' --unique once --on-conflict replace", 0),
    ("laneway enqueue echo --unique once --on-conflict reject", 1),
    ("laneway enqueue echo '[3]' --idempotency-key k", 0),
    ("laneway enqueue echo '[3]' --idempotency-key k", 0),
    ("laneway enqueue echo '[4]' --idempotency-key k", 1),
    ("laneway enqueue echo --dry-run", 0),
    ("laneway enqueue echo '{'", 2),
    ("laneway enqueue echo --priority 5000", 2),
    ("laneway enqueue '' ", 2),
    ("laneway enqueue page.fetch --many pages.ndjson -o id", 0),
    ("laneway enqueue page.fetch --many pages.ndjson", 0),
    ("laneway enqueue --many whole.ndjson --dry-run -o json", 0),
    ("laneway enqueue --many whole.ndjson -o id", 0),
    ("printf '{\"kind\": \"x\"}\\nno\\n' | laneway enqueue --many -", 4),
    ("laneway enqueue x --many nowhere.ndjson", 2),
    ("laneway tasks ls --where kind:whole -o id", 0),
    ("laneway tasks delete --where kind:page.fetch --yes -o json", 0),
    ("laneway worker drain $(laneway worker ls -o id)", 0),
    ("laneway worker drain w-00000000", 3),
    ("laneway worker stop $(laneway worker ls -o id)", 0),
];

fn every_command_is_the_same_through_a_server(near: Session, far: Session) {
    let mut twins = Twins::new(near, far);
    give_past(&mut twins);
    twins.write("pages.ndjson", "\"/a\"\n\n\"/b\"\n9007199254740993\n");
    twins.write(
        "whole.ndjson",
        "{\"kind\": \"whole\", \"payload\": {\"a\": 1}, \"queue\": \"w\", \"lane\": {\"key\": \"l\", \"limit\": \"unlimited\"}, \"tags\": [\"t\"]}\n\
         {\"kind\": \"whole\", \"unique\": {\"key\": \"k\"}, \"delay_ms\": 500}\n{\"kind\": \"whole\", \"unique\": {\"key\": \"k\"}}\n",
    );

    let differences: Vec<_> = LINES.iter().filter_map(|(line, code)| twins.difference(line, *code)).collect();

    assert!(differences.is_empty(), "{}", differences.join("\n"));

    let status = |ran: Ran| {
        let text = plain(&ran.out);
        let kept =
            |line: &&str| ["store", "database", "tasks", "queues"].iter().any(|key| line.starts_with(key));
        text.lines().filter(kept).collect::<Vec<_>>().join("\n")
    };
    let (near, far) = (twins.near.run("laneway store status"), twins.remote("laneway store status"));
    assert!(far.out.contains(&format!("{} (Laneway server)", twins.url)), "{}", far.out);
    assert_eq!(status(near), status(far));
    assert!(!twins.client.path().join(".laneway").exists(), "no store is made beside the server");
}

#[test]
fn every_command_is_the_same_through_a_server_on_sqlite() {
    every_command_is_the_same_through_a_server(Session::new(), Session::new());
}

#[tokio::test]
async fn every_command_is_the_same_through_a_server_on_postgresql() {
    let (near, far) = (Session::on_postgres().await, Session::on_postgres().await);
    for session in [&near, &far] {
        session.out("laneway store migrate");
    }
    tokio::task::spawn_blocking(move || every_command_is_the_same_through_a_server(near, far))
        .await
        .expect("the comparison");
}

#[test]
fn thousands_of_lines_are_stored_through_a_server_in_their_order() {
    let far = Session::new();
    let mut server = Daemon::start(&far, "serve --listen 127.0.0.1:0 --log-format json");
    let client = Session::new();
    let lines: String = (0..25_000_u64).map(|n| format!("{}\n", 9_007_199_254_740_993 + n)).collect();
    client.write("many.ndjson", &lines);

    let url = format!("http://{}", server.address());
    let told = client.out(&format!("laneway --server {url} enqueue page --many many.ndjson -o json"));

    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["stored"], &told["last_line"]), (&25_000.into(), &25_000.into()));
    let listed = client.out(&format!("laneway --server {url} tasks ls --limit 5000 -o ndjson"));
    let payloads: Vec<_> =
        listed.lines().map(|line| line.split("\"payload\":").nth(1).expect("a payload")).collect();
    assert!(payloads[0].starts_with("9007199254740993,") && payloads[4_999].starts_with("9007199254745992,"));
}

#[test]
fn a_token_is_asked_for_and_never_shown() {
    let far = Session::new();
    let made =
        |scope: &str| far.out(&format!("laneway token create {scope} --scope {scope}")).trim().to_owned();
    let (reads, enqueues, admin) = (made("read"), made("enqueue"), made("admin"));
    let mut server = Daemon::start(&far, "serve --listen 127.0.0.1:0 --auth-mode tokens --log-format json");
    let mut client = Session::new();
    client.set("LANEWAY_SERVER_URL", &format!("http://{}", server.address()));
    client.write("token", &format!("{enqueues}\n"));
    client.write(
        "laneway.toml",
        &format!("[context.far]\nserver.url = \"http://{}\"\nserver.token = \"env:ADMIN\"\n", "127.0.0.1:1"),
    );

    let none = client.run("laneway tasks ls");
    assert_eq!((none.code, none.out.as_str()), (1, ""));
    assert_matches(
        "error: the server at http://… asks for a token with the scope `read`; make one where the store is, with `laneway token create NAME --scope read`, and give it as server.token (LANEWAY_SERVER_TOKEN) [unauthorized]",
        &none.err,
    );
    let unknown = client.run("laneway tasks ls --server-token lw_9_x");
    assert_eq!(unknown.code, 1);
    assert_matches("error: the server at http://… does not know the token; …[unauthorized]", &unknown.err);
    let narrow = client.run(&format!("LANEWAY_SERVER_TOKEN={reads} laneway queues pause mail"));
    assert_eq!(narrow.code, 1);
    assert_matches(
        "error: the server at http://… does not allow it: this needs the scope `operate`, the token has: read; make one where the store is, with `laneway token create NAME --scope operate`, … [forbidden]",
        &narrow.err,
    );
    assert_eq!(client.run("laneway tasks ls --server-token ''").code, 2);

    // Who may only enqueue can, also many; secrets are read from where they are.
    client.out("laneway enqueue echo --server-token file:token");
    assert_eq!(
        client.run_with_input("laneway enqueue echo --many - --server-token file:token", "1\n2\n").code,
        0
    );
    assert_eq!(client.out(&format!("T={reads} laneway tasks ls -o id --server-token env:T")), "1\n2\n3\n");
    // What is done is in the audit under the token's name, whoever the caller says to be.
    client.out(&format!(
        "LANEWAY_SERVER_TOKEN={admin} laneway tasks cancel --where kind:echo --yes --actor eve"
    ));
    assert_matches(
        "ID …\n… admin …\n… admin …",
        &client.out(&format!("T={reads} laneway bulk ls --server-token env:T")),
    );

    let shown = client.out(&format!("LANEWAY_SERVER_TOKEN={admin} laneway config show --origin"));
    assert_matches("…\nserver.token …***… env LANEWAY_SERVER_TOKEN\n…", &shown);
    assert!(!shown.contains(admin.as_str()));
    let context = client.run(&format!("ADMIN={admin} laneway --context far tasks ls"));
    assert_eq!(context.code, 5, "the context's server counts, and there is none: {}", context.err);
}

/// Answers every connection with the same text, until the test is over.
fn impostor(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            // Whoever breaks off gets no answer.
            let _ = stream.read(&mut request).and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    address
}

#[test]
fn what_is_no_server_is_told_apart_from_one_that_is_down() {
    let session = Session::new();
    let page = impostor("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi");
    let proxy = impostor("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    let silent = impostor("");
    for (arguments, code, says) in [
        (
            "--server http://127.0.0.1:1 tasks ls",
            5,
            "error: cannot reach a Laneway server at http://127.0.0.1:1; check that it is running and that the address is right [unavailable]\n  because: Connection refused …",
        ),
        (
            &format!("--server http://{page} tasks ls"),
            5,
            "error: cannot reach a Laneway server at …\n  because: what is there answers 200 OK (`text/html`), which no Laneway server does",
        ),
        (
            &format!("--server http://{proxy} enqueue echo"),
            5,
            "error: cannot reach a Laneway server at …\n  because: what is there answers 503 Service Unavailable: the server behind it does not",
        ),
        (
            &format!("--server http://{silent} queues pause a"),
            5,
            "error: cannot reach a Laneway server at …\n…",
        ),
        (&format!("--server https://{page} tasks ls"), 5, "error: cannot reach a Laneway server at …\n…"),
        (
            "--server localhost:7420 tasks ls",
            2,
            "error: server.url is `localhost:7420` (from flag --server); allowed is http://HOST or https://HOST, with a path if it has one",
        ),
        ("--server http://ann:secret@host tasks ls", 2, "error: server.url is `http://ann:***@host` …"),
        (
            "--server http://host/?q=1 tasks ls",
            2,
            "error: the store's address is not valid: … [invalid_address]",
        ),
        (
            "--server http://host --store sqlite:a.db tasks ls",
            2,
            "error: a store (from flag --store) and a server (from flag --server) are both given; give one of them",
        ),
    ] {
        let ran = session.run(&format!("laneway {arguments}"));
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{arguments}\n{}", ran.err);
        assert_matches(says, &ran.err);
    }
}

#[test]
fn what_needs_the_store_itself_says_so() {
    let mut session = Session::new();
    let refused = |session: &Session, line: &str, from: &str| {
        let ran = session.run(line);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{line}\n{}", ran.err);
        assert_matches(&format!("error: this cannot be done through a server (from {from}); …"), &ran.err);
    };
    for command in [
        "dev",
        "demo",
        "serve",
        "worker run",
        "worker exec echo -- cat",
        "worker http echo --url http://localhost",
        "bench enqueue",
        "store migrate",
        "store prune",
        "store snapshot copy.db",
    ] {
        refused(&session, &format!("laneway --server http://127.0.0.1:1 {command}"), "flag --server");
    }

    session.set("LANEWAY_SERVER_URL", "http://127.0.0.1:1");
    refused(&session, "laneway worker run", "env LANEWAY_SERVER_URL");
    // A store that is named on the command line, and one of the command's own, are not in question.
    session.out("laneway --store sqlite:.laneway/laneway.db enqueue echo && laneway --store sqlite:.laneway/laneway.db store prune");
    let mut dev = Daemon::start(&session, "dev --listen 0");
    let line = dev.until("/metrics");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    session.out(&format!("laneway --server http://{address} queues ls"));
    assert!(dev.stop().success());
    assert_eq!(session.run("laneway tasks ls").code, 5);
}

#[test]
fn a_server_below_a_path_is_reached_with_it() {
    let far = Session::new();
    let mut server =
        Daemon::start(&far, "serve --listen 127.0.0.1:0 --base-path /tools/tasks --log-format json");
    let address = server.address();
    let client = Session::new();

    assert_eq!(
        client.out(&format!("laneway --server http://{address}/tools/tasks/ enqueue echo -o id")),
        "1\n"
    );
    let lost = client.run(&format!("laneway --server http://{address} tasks ls"));

    assert_eq!(lost.code, 5);
    assert_matches("error: cannot reach …\n  because: there is nothing at `/api/v1/tasks`; …", &lost.err);
}

/// Ends TLS in front of a server, as a proxy does. The certificate is for `localhost`.
async fn tls_in_front_of(address: String, session: &Session) -> u16 {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    session.out(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 2 \
         -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE 2>/dev/null",
    );
    let certificate = CertificateDer::from_pem_file(session.path().join("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(session.path().join("key.pem")).expect("a key");
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("they belong together");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            // Whoever does not trust the certificate breaks off.
            let Ok(mut client) = acceptor.accept(socket).await else { continue };
            let mut server = tokio::net::TcpStream::connect(&address).await.expect("the server listens");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_over_tls_if_its_certificate_holds() {
    let (far, client) = (Session::new(), Session::new());
    let mut server = Daemon::start(&far, "serve --listen 127.0.0.1:0 --log-format json");
    let port = tls_in_front_of(server.address(), &client).await;

    let trusted = client
        .run(&format!("SSL_CERT_FILE=cert.pem laneway --server https://localhost:{port} enqueue echo -o id"));
    let unknown = client.run(&format!("laneway --server https://localhost:{port} tasks ls"));

    assert_eq!((trusted.code, trusted.out.as_str()), (0, "1\n"), "{}", trusted.err);
    assert_eq!(unknown.code, 5);
    assert_matches(
        "error: cannot reach a Laneway server at https://localhost:…\n  because: invalid peer certificate: …",
        &unknown.err,
    );
}
