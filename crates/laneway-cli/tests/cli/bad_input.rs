//! Every way to say something wrong: what is printed, and with which code the program ends. Nothing may be changed.

use crate::support::{Session, assert_matches};

/// What is run, its exit code, and what it prints to standard error.
type Case = (&'static str, i32, &'static str);

const CASES: &[Case] = &[
    // names, numbers and times of a task
    ("laneway enqueue ''", 2, "error: kind is empty; a name has 1 to 200 bytes [invalid_name]"),
    (
        "laneway enqueue \"$(printf 'a\\033b')\"",
        2,
        "error: kind `a\\u{1b}b` contains the control character U+001B; remove it [invalid_name]",
    ),
    (
        "laneway tasks edit 1",
        2,
        "error: the following required arguments were not provided:\n  --payload <JSON>\n…",
    ),
    ("laneway tasks edit x --priority 1", 2, "error: id `x` … [invalid_id]"),
    ("laneway tasks edit 1 --payload nonsense", 2, "error: payload is not valid JSON: … [invalid_json]"),
    (
        "laneway tasks cancel --where kind:a --pace 0 --yes",
        2,
        "error: pace is 0; allowed is 1 to 100000 [out_of_range]",
    ),
    (
        "laneway worker run --kinds ' '",
        2,
        "error: worker.kinds is ` ` (from flag --kinds); allowed is names of kinds with commas, or * for all",
    ),
    ("laneway worker run --kinds other", 2, "error: the worker cannot be built: it has no handler; …"),
    (
        "laneway serve --public-url example.org",
        2,
        "error: server.public_url is `example.org` (from flag --public-url); allowed is http://HOST …",
    ),
    (
        "laneway serve --auth-mode none",
        2,
        "error: auth.mode is `none` (from flag --auth-mode); allowed is one of: auto, tokens",
    ),
    (
        "laneway serve --auth-mode tokens --listen 0",
        2,
        "error: 127.0.0.1:0 asks for tokens and the store has no token, …",
    ),
    (
        "LANEWAY_AUTH_MOOD=x laneway config show",
        2,
        "error: the variable LANEWAY_AUTH_MOOD is no setting; did you mean LANEWAY_AUTH_MODE?",
    ),
    (
        "printf '[context.a]\\nproduction = 1\\n' > c.toml; laneway --config c.toml config show",
        2,
        "error: c.toml:2: production of context `a` is not valid; allowed is true or false",
    ),
    (
        "laneway enqueue a --queue ' q'",
        2,
        "error: queue ` q` begins or ends with a space; remove it [invalid_name]",
    ),
    (
        "laneway enqueue a --lane \"$(printf '%0201d' 1)\"",
        2,
        "error: lane has 201 bytes; a name has 1 to 200 [invalid_name]",
    ),
    (
        "laneway enqueue a --limit 3",
        2,
        "error: the following required arguments were not provided:\n  --lane <KEY>\n…",
    ),
    (
        "laneway enqueue a --lane l --limit 0",
        2,
        "error: lane.limit is 0; allowed is 1 to 1000000 [out_of_range]",
    ),
    (
        "laneway enqueue a --priority 5000",
        2,
        "error: priority is 5000; allowed is -1000 to 1000 [out_of_range]",
    ),
    ("laneway enqueue a --priority high", 2, "error: invalid value 'high' for '--priority <N>': …\n…"),
    (
        "laneway enqueue a --max-attempts 0",
        2,
        "error: max_attempts is 0; allowed is 1 to 1000 [out_of_range]",
    ),
    ("laneway enqueue a --delay soon", 2, "error: delay `soon` is no time span; … [out_of_range]"),
    ("laneway enqueue a --delay 6000d", 2, "error: delay `6000d` is no time span; … [out_of_range]"),
    (
        "laneway enqueue a --delay 2000d",
        2,
        "error: delay is 2000 days; a task may be scheduled up to 5 years ahead [time_out_of_range]",
    ),
    (
        "laneway enqueue a --at 2026-03-01T12:00:00",
        2,
        "error: at `2026-03-01T12:00:00` has no zone; … [time_without_zone]",
    ),
    ("laneway enqueue a --at infinity", 2, "error: at `infinity` is no time; … [time_out_of_range]"),
    (
        "laneway enqueue a --at 1999-01-01T00:00:00Z",
        2,
        "error: due is 1999-01-01T00:00:00Z; … [time_out_of_range]",
    ),
    (
        "laneway enqueue a --delay 1s --at 2027-03-01T12:00:00Z",
        2,
        "error: the argument '--delay <SPAN>' cannot be used with '--at <TIME>'\n…",
    ),
    ("laneway enqueue a --timeout 0s", 2, "error: timeout is 0; allowed is 1 to … ms [out_of_range]"),
    ("laneway enqueue a --retry 1s,never", 2, "error: retry `never` is no time span; … [out_of_range]"),
    (
        "laneway enqueue a --unique k --unique-scope ever",
        2,
        "error: unique-scope `ever` is none; one of: open, pending, a span such as 10m [out_of_range]",
    ),
    (
        "laneway enqueue a --unique k --on-conflict win",
        2,
        "error: on_conflict `win` is none; one of: existing, replace, merge, reject [out_of_range]",
    ),
    (
        "laneway enqueue a --unique k --idempotency-key i",
        2,
        "error: the argument '--unique <KEY>' cannot be used with '--idempotency-key <KEY>'\n…",
    ),
    ("laneway enqueue a --colour red", 2, "error: unexpected argument '--colour' found\n…"),
    // payloads
    ("laneway enqueue a '{'", 2, "error: payload … [invalid_json]"),
    ("laneway enqueue a '{} x'", 2, "error: payload … [invalid_json]"),
    ("laneway enqueue a '\"\\u0000\"'", 2, "error: payload … [nul_not_allowed]"),
    ("laneway enqueue a '\"\\ud800\"'", 2, "error: payload … [invalid_unicode]"),
    ("laneway enqueue a '1e400'", 2, "error: payload contains the number 1e400, … [number_out_of_range]"),
    (
        "laneway enqueue a \"$(printf '[%.0s' $(seq 70))$(printf ']%.0s' $(seq 70))\"",
        2,
        "error: payload … [payload_too_deep]",
    ),
    (
        "head -c 1100000 /dev/zero | tr '\\0' 1 | sed 's/.*/\"&\"/' | laneway enqueue a -",
        2,
        "error: payload has 1100002 bytes, … [payload_too_large]",
    ),
    (
        "printf '\"\\377\"' | laneway enqueue a -",
        2,
        "error: the payload cannot be read from standard input: …",
    ),
    // files
    (
        "laneway enqueue a --many nowhere.ndjson",
        2,
        "error: cannot read nowhere.ndjson: No such file or directory (os error 2)",
    ),
    (
        "laneway enqueue a '{}' --many x",
        2,
        "error: the argument '[JSON]' cannot be used with '--many <FILE>'\n…",
    ),
    ("laneway enqueue", 2, "error: the following required arguments were not provided:\n  <KIND>\n…"),
    (
        "printf '1\\n\\377\\n' > f; laneway enqueue a --many f",
        2,
        "error: f:2: the line is not UTF-8; nothing was stored",
    ),
    (
        "echo '{\"kind\": \"a\", \"priority\": 5000}' > f; laneway enqueue --many f",
        2,
        "error: f:1: priority is 5000; allowed is -1000 to 1000; nothing was stored [out_of_range]",
    ),
    (
        "echo '{\"kind\": \"a\"}' > f; laneway enqueue --many f --priority 3",
        2,
        "error: flags describe tasks of one KIND; name it, or write this into the lines",
    ),
    (
        "echo '{\"payload\": 1}' > f; laneway enqueue --many f",
        2,
        "error: f:1: missing field `kind` …; nothing was stored",
    ),
    ("echo 7 > f; laneway enqueue --many f", 2, "error: f:1: invalid type: …; nothing was stored"),
    // settings
    ("laneway tasks ls --store mysql://x", 2, "error: the store's address is not valid: … [invalid_address]"),
    ("laneway tasks ls --store ''", 2, "error: store.url is empty (from flag --store); allowed is …"),
    (
        "laneway tasks ls --store env:NOTHING",
        2,
        "error: store.url (from flag --store) names the variable NOTHING, which is not set",
    ),
    (
        "laneway tasks ls --store postgres://x/y --schema 'a\"b'",
        2,
        "error: schema `a\\\"b` is not usable; … [invalid_schema]",
    ),
    ("laneway tasks ls --config nowhere.toml", 2, "error: there is no file nowhere.toml"),
    (
        "echo 'worker.cuont = 1' > t.toml; laneway tasks ls --config t.toml",
        2,
        "error: t.toml:1: unknown key `worker.cuont`; did you mean `worker.count`?",
    ),
    (
        "echo 'worker.count = -1' > t.toml; laneway tasks ls --config t.toml",
        2,
        "error: worker.count is `-1` (from t.toml:1); allowed is 1 to 10000",
    ),
    (
        "CLAIM_BATCH_SIZE=many laneway tasks ls",
        2,
        "error: worker.claim_batch_size is `many` (from env CLAIM_BATCH_SIZE); allowed is 1 to 10000",
    ),
    (
        "LANEWAY_PROFILE=prod laneway tasks ls",
        2,
        "error: profile is `prod` (from env LANEWAY_PROFILE); allowed is one of: development, staging, production",
    ),
    (
        "laneway serve --listen everywhere",
        2,
        "error: server.listen is `everywhere` (from flag --listen); allowed is HOST:PORT, or a PORT of 127.0.0.1",
    ),
    (
        "laneway worker run --queues a=0",
        2,
        "error: worker.queues is `a=0` (from flag --queues); allowed is …",
    ),
    ("laneway worker run --queues a,a", 2, "…error: the worker cannot be built: queue `a` is named twice"),
    (
        "laneway worker exec k",
        2,
        "error: the following required arguments were not provided:\n  <COMMAND>...\n…",
    ),
    (
        "laneway worker exec k -- ''",
        2,
        "error: the handler of `k` names no program; give a command after `--`",
    ),
    (
        "laneway worker exec k --snooze soon -- true",
        2,
        "error: snooze `soon` is no time span; … [out_of_range]",
    ),
    ("laneway worker http k --url ftp://x", 2, "error: `ftp://x` cannot be called: …"),
    // stores that are not there, or are something else
    ("laneway tasks ls", 5, "error: there is no store at …/.laneway/laneway.db; … [cannot_open]"),
    ("laneway enqueue a --store sqlite:no/where.db", 5, "error: cannot open … [cannot_open]"),
    (
        "laneway tasks ls --store postgres://postgres:canary@127.0.0.1:1/x",
        5,
        "error: cannot reach the database at 127.0.0.1:1/x; … [unavailable]\n  because: …\n  because: …",
    ),
    (
        "echo 'not a database, but long enough' > f.db; laneway enqueue a --store sqlite:f.db",
        6,
        "error: …f.db is not a laneway store (…); choose another file [foreign_file]…",
    ),
];

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    for (line, code, says) in CASES {
        let session = Session::new();

        let ran = session.run(line);

        assert_eq!(ran.code, *code, "{line}\n{}{}", ran.out, ran.err);
        assert_eq!(ran.out, "", "{line}");
        assert_matches(says, &ran.err);
        assert!(!ran.err.contains("canary") && !ran.err.contains("panicked"), "{line}: {}", ran.err);
        assert_eq!(stored(&session), "", "{line} stored something");
    }
}

fn stored(session: &Session) -> String {
    match session.path().join(".laneway/laneway.db").exists() {
        true => session.out("laneway tasks ls -o id"),
        false => String::new(),
    }
}

/// The same with a store that is there.
const LOOKING: &[Case] = &[
    ("laneway tasks show x", 2, "error: id `x` is not a task id; ids are whole numbers from 1 [invalid_id]"),
    ("laneway tasks show 99", 3, "error: task 99 does not exist, or its history was removed [not_found]"),
    ("laneway tasks why 99", 3, "error: task 99 does not exist, or its history was removed [not_found]"),
    ("laneway tasks wait 99", 3, "error: task 99 does not exist, or its history was removed [not_found]"),
    ("laneway tasks wait 1 --timeout 10ms", 1, "error: not all have ended in time"),
    (
        "laneway tasks ls --where colour:red",
        2,
        "error: filter at character 1: `colour` is no field; one of: … [invalid_filter]",
    ),
    ("laneway tasks ls --limit 0", 2, "error: limit is 0; allowed is 1 to 10000"),
    (
        "laneway tasks ls --after page2",
        2,
        "error: after `page2` was not made by a listing; start at the first page",
    ),
    ("laneway tasks cancel", 2, "error: the following required arguments were not provided:\n…"),
    (
        "laneway tasks cancel --where ''",
        2,
        "error: the query is empty, which means every task; say --all if you mean that",
    ),
    (
        "laneway tasks cancel 1 --where state:failed",
        2,
        "error: the argument '[ID]...' cannot be used with '--where <QUERY>'\n…",
    ),
    ("laneway tasks cancel --where kind:other --yes", 3, "error: no task matches"),
    ("laneway tasks snooze 1 --for never", 2, "error: for `never` is no time span; … [out_of_range]"),
    (
        "laneway tasks priority 1 --to 5000",
        2,
        "error: priority is 5000; allowed is -1000 to 1000 [out_of_range]",
    ),
    ("laneway queues drain ''", 2, "error: queue is empty; … [invalid_name]"),
    ("laneway queues drain q --within soon", 2, "error: within `soon` is no time span; … [out_of_range]"),
    (
        "laneway queues set q --retention soon",
        2,
        "error: retention `soon` is none; days such as 7d, none, or default",
    ),
    ("laneway queues show nowhere", 3, "error: there is no queue `nowhere`"),
    ("laneway queues set q", 2, "error: there is nothing to set; …"),
    (
        "laneway queues set q --keep-failed none",
        2,
        "error: keep_failed is 0; allowed is 1 to 3650 [out_of_range]",
    ),
    (
        "laneway queues set q --keep-failed long",
        2,
        "error: keep-failed `long` is none; days such as 7d, none, or default",
    ),
    ("laneway queues pause q --for 40d", 2, "error: pause.expires is …; allowed is 1 to … ms [out_of_range]"),
    ("laneway lanes show q l", 3, "error: there is no lane `l` in queue `q`"),
    (
        "laneway lanes ls q --order size",
        2,
        "error: order `size` is unknown; one of: backlog, held, key [invalid_name]",
    ),
    ("laneway lanes set q l", 2, "error: there is nothing to set; say --limit, --every or --on-failure"),
    ("laneway lanes set q l --limit 0", 2, "error: lane.limit is 0; allowed is 1 to 1000000 [out_of_range]"),
    (
        "laneway lanes set q l --on-failure explode",
        2,
        "error: on-failure `explode` is none; continue or halt",
    ),
    (
        "laneway worker show w-1234",
        3,
        "error: there is no living worker `w-1234`; `laneway worker ls` lists them",
    ),
    (
        "laneway schedules add s k",
        2,
        "error: the following required arguments were not provided:\n  --cron <EXPRESSION>\n…",
    ),
    (
        "laneway schedules add s k --cron '0 0 30 2 *'",
        2,
        "error: cron `0 0 30 2 *` never fires; … [invalid_schedule]",
    ),
    ("laneway schedules add s k --cron '* * * * *' --zone Mars", 2, "error: … [invalid_schedule]"),
    (
        "laneway schedules add s k --every 10ms",
        2,
        "error: every is 10ms; allowed is 1 s to … days [out_of_range]",
    ),
    (
        "laneway schedules add s k --every 1m --missed all",
        2,
        "error: missed `all` is none; skip, once, or all:N such as all:10",
    ),
    ("laneway schedules next '* * * * *' -n 0", 2, "error: n is 0; allowed is 1 to 100 [out_of_range]"),
    ("laneway schedules show s", 3, "error: there is no schedule `s`"),
    ("laneway schedules run s", 3, "error: there is no schedule `s`"),
    (
        "laneway token create ann --scope god",
        2,
        "error: scope `god` is unknown; one of: read, enqueue, operate, work, admin [invalid_name]",
    ),
    ("laneway token revoke 5", 3, "error: there is no token 5"),
    (
        "laneway serve --listen 0.0.0.0:0",
        2,
        "…error: 0.0.0.0:0 can be reached from other machines and the store has no token, …",
    ),
    ("laneway bulk show 77", 3, "error: there is no bulk 77"),
    (
        "laneway store migrate --print",
        2,
        "error: an SQLite store is made and updated whenever it is opened; there is nothing to print",
    ),
];

#[test]
fn what_is_not_there_is_said_and_changes_nothing() {
    let session = Session::new();
    session.out("laneway enqueue echo");
    let before = session.out("laneway tasks show 1 -o json");

    for (line, code, says) in LOOKING {
        let ran = session.run(line);

        assert_eq!(ran.code, *code, "{line}\n{}{}", ran.out, ran.err);
        assert_eq!(ran.out, "", "{line}");
        assert_matches(says, &ran.err);
    }
    assert_eq!(session.out("laneway tasks show 1 -o json"), before);
    assert_eq!(session.out("laneway schedules ls -o id"), "");
}

#[tokio::test]
async fn a_database_without_tables_is_told_what_to_do() {
    let database = laneway_testkit::cluster::Cluster::shared().await.empty_database().await.unwrap();
    let mut session = Session::new();
    session.set("DATABASE_URL", &database.url);

    let ran = session.run("laneway tasks ls");
    assert_eq!(ran.code, 6);
    assert_matches(
        "error: the store has schema version 0, this program needs …; run `laneway store migrate` [not_migrated]",
        &ran.err,
    );

    session.out("laneway store migrate");
    assert_matches(
        "store     postgres\naddress   …\ndatabase  PostgreSQL …\ntables    version …\ntasks     0\n…",
        &session.out("laneway store status"),
    );
    assert!(session.out("laneway store migrate --print").contains("create table task"));
}
