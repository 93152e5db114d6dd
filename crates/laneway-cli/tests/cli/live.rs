//! Settings that are read again by daemons that run.

use serde_json::{Value, json};

use crate::daemons::{Daemon, get, post, until};
use crate::support::Session;

/// A program that runs until the test lets it end.
const HOLD: &str = "#!/bin/sh\ncat > /dev/null\nuntil [ -e go ]; do sleep 0.02; done\n";

fn running(session: &Session) -> usize {
    session.out("laneway tasks ls --where state:leased -o id").lines().count()
}

/// A session with a settings file, and with a program to run. Commands read `laneway.toml`, too; other files are the daemon's alone.
fn session_with(file: &str, settings: &str) -> Session {
    let session = Session::new();
    session.write("hold.sh", HOLD);
    session.out("chmod +x hold.sh");
    session.write(file, settings);
    session
}

#[tokio::test]
async fn sighup_gives_a_worker_more_slots_and_a_bad_file_changes_nothing() {
    let session = session_with("worker.toml", "worker.concurrency = 1\n");
    session.out("for n in 1 2 3 4; do laneway enqueue hold $n; done");
    let mut worker = Daemon::start(&session, "worker exec hold --config worker.toml -- ./hold.sh");
    worker.until("the worker starts with 1 slots");
    until("one runs", async || running(&session) == 1).await;

    session
        .write("worker.toml", "worker.concurrency = 3\nworker.memory_high = 0.9\nworker.memory_stop = 0.5\n");
    worker.signal("-HUP");
    let refused = worker.until("settings were not read again");
    assert!(refused.contains("memory_stop is 0.5, which is less than memory_high (0.9)"), "{refused}");
    session.write("worker.toml", "worker.concurrency = 3000000\n");
    worker.signal("-HUP");
    let refused = worker.until("settings were not read again");
    assert!(refused.contains("worker.toml:1") && refused.contains("allowed is 1 to 1000000"), "{refused}");
    assert_eq!(running(&session), 1);

    session.write("worker.toml", "worker.concurrency = 3\nworker.shutdown_grace_s = 7\n");
    worker.signal("-HUP");

    let told = worker.until("live settings were read again");
    assert!(told.contains("\"changed\":\"worker.concurrency\""), "{told}");
    worker.until("changed, but needs a restart: worker.shutdown_grace_s");
    until("three run", async || running(&session) == 3).await;
    session.write("go", "");
    until("all have ended", async || {
        session.out("laneway tasks ls --where -state:completed -o id").is_empty()
    })
    .await;
    assert!(worker.stop().success());
}

#[tokio::test]
async fn a_request_reads_the_settings_of_a_server_and_its_worker_again() {
    let session = session_with("laneway.toml", "worker.concurrency = 5\n");
    let mut server = Daemon::start(&session, "serve --worker --listen 0");
    let address = server.address();
    let body = |answer: String| -> Value {
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
    };
    let shown = |key: &str| {
        let settings = body(get(&address, "/api/v1/settings"));
        let found = settings["settings"].as_array().expect("a list").iter().find(|one| one["key"] == key);
        found.expect("every setting is shown")["value"].clone()
    };
    assert_eq!(shown("worker.concurrency"), "5");

    session.write("laneway.toml", "worker.concurrency = 6\nlog.level = \"loud=?\"\n");
    let refused = body(post(&address, "/api/v1/settings/reload", ""));
    assert_eq!((&refused["status"], &refused["code"]), (&json!(409), &json!("invalid_settings")));
    assert!(refused["detail"].as_str().expect("text").contains("laneway.toml:2"), "{refused}");
    assert_eq!(shown("worker.concurrency"), "5");

    session.write("laneway.toml", "worker.concurrency = 6\nlog.level = \"debug\"\nserver.listen = \"127.0.0.1:1\"\nstore.pool_size = 4\n");
    let reloaded = body(post(&address, "/api/v1/settings/reload", ""));

    // The flag --listen counts more than the file, so it has not changed.
    let expected =
        json!({"changed": ["worker.concurrency", "log.level"], "needs_restart": ["store.pool_size"]});
    assert_eq!(reloaded, expected);
    assert_eq!((shown("worker.concurrency"), shown("store.pool_size")), (json!("6"), json!("8")));
    until("the worker has six slots", async || get(&address, "/metrics").contains("\nworker_slots 6\n"))
        .await;
    assert!(server.stop().success());
}

#[tokio::test]
async fn a_profile_is_changed_as_a_whole_and_so_with_a_restart() {
    let session = session_with("laneway.toml", "profile = \"development\"\n");
    let mut server = Daemon::start(&session, "serve --worker --listen 0");
    let address = server.address();
    assert!(get(&address, "/metrics").contains("\nworker_slots 10\n"));

    session.write("laneway.toml", "profile = \"production\"\nworker.claim_batch_size = 7\n");
    let reloaded = post(&address, "/api/v1/settings/reload", "");

    let expected = r#"{"changed":["worker.claim_batch_size"],"needs_restart":["profile","worker.count","worker.concurrency"]}"#;
    assert!(reloaded.ends_with(expected), "{reloaded}");
    assert!(get(&address, "/metrics").contains("\nworker_slots 10\n"));
    assert!(server.stop().success());
}
