//! Help and completions, compared with what was agreed on. `BLESS=1` writes the files anew; look at the difference.

use std::path::Path;

use crate::support::Session;

fn assert_snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/snapshots").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name} differs; run the test with BLESS=1 and look at the difference");
}

#[test]
fn every_command_has_help() {
    let session = Session::new();
    let mut all = String::new();
    for command in [
        "",
        "demo",
        "dev",
        "serve",
        "worker",
        "worker run",
        "worker exec",
        "worker http",
        "worker ls",
        "worker show",
        "worker drain",
        "worker stop",
        "enqueue",
        "tasks",
        "tasks ls",
        "tasks show",
        "tasks why",
        "tasks tree",
        "tasks wait",
        "tasks retry",
        "tasks cancel",
        "tasks delete",
        "tasks snooze",
        "tasks priority",
        "tasks edit",
        "queues",
        "queues ls",
        "queues show",
        "queues pause",
        "queues resume",
        "queues set",
        "queues drain",
        "lanes",
        "lanes ls",
        "lanes show",
        "lanes set",
        "lanes halt",
        "lanes resume",
        "schedules",
        "schedules ls",
        "schedules add",
        "schedules show",
        "schedules pause",
        "schedules resume",
        "schedules run",
        "schedules rm",
        "schedules next",
        "bulk",
        "bulk ls",
        "bulk show",
        "bulk abort",
        "bulk resume",
        "bench",
        "bench enqueue",
        "bench drain",
        "bench latency",
        "bench diff",
        "store",
        "store migrate",
        "store status",
        "store prune",
        "store snapshot",
        "config",
        "config show",
        "config init",
        "config path",
        "config explain",
        "config reference",
        "token",
        "token create",
        "token ls",
        "token revoke",
        "completions",
        "man",
        "version",
    ] {
        all += &format!("$ laneway {command} -h\n{}\n", session.out(&format!("laneway {command} -h")));
    }
    assert_snapshot("help.txt", &all);
}

#[test]
fn the_long_help_has_every_global_setting() {
    assert_snapshot("help-long.txt", &Session::new().out("laneway --help"));
}

#[test]
fn completions_are_made_for_shells() {
    let session = Session::new();

    let ran = session.run("laneway completions bash > laneway.bash && bash -n laneway.bash");

    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for shell in ["zsh", "fish"] {
        assert!(session.out(&format!("laneway completions {shell}")).contains("enqueue"));
    }
    assert!(session.out("laneway version").starts_with("laneway 0."));
}

#[test]
fn the_manual_has_a_page_per_command() {
    let session = Session::new();

    assert!(session.out("laneway man").contains(".TH laneway 1"));
    session.out("laneway man --to pages");

    for page in ["laneway.1", "laneway-tasks-retry.1", "laneway-store-snapshot.1"] {
        assert!(session.read(&format!("pages/{page}")).contains(".SH SYNOPSIS"), "{page}");
    }
}
