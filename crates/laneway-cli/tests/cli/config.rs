//! Settings: where they come from, and the pages that are made from their table.

use std::path::Path;

use crate::support::{Session, assert_matches};

#[test]
fn every_value_tells_where_it_came_from() {
    let mut session = Session::new();
    session.write("laneway.toml", "profile = \"staging\"\n\n[worker]\npoll_interval_ms = 70\n");
    session.set("MAX_CONCURRENT_TASKS", "200");
    session.set("LANEWAY_STORE_POOL_SIZE", "3");
    session.set("DATABASE_URL", "postgres://ann:secret@db/app");

    let ran = session.run("laneway config show --origin --claim-batch-size 7");

    assert_matches(
        "\
KEY                          VALUE                      FROM
profile                      staging                    …/laneway.toml:1
store.url                    postgres://ann:***@db/app  env DATABASE_URL
store.direct_url             -                          default
store.statements             auto                       default
store.schema                 laneway                    default
store.pool_size              3                          env LANEWAY_STORE_POOL_SIZE
…
worker.max_concurrent_tasks  200                        env MAX_CONCURRENT_TASKS
worker.count                 20                         profile staging
worker.concurrency           3                          profile staging
worker.claim_batch_size      7                          flag --claim-batch-size
worker.poll_interval_ms      70                         …/laneway.toml:4
…",
        &ran.out,
    );
    assert_eq!(ran.err, "effective slots: min(200, 20 x 3) = 60\n");
    assert!(!session.out("laneway config show -o json").contains("secret"));
}

#[test]
fn a_file_is_found_upward_and_a_named_one_is_above_it() {
    let session = Session::new();
    session.out(
        "mkdir -p a/b && echo 'worker.count = 2' > laneway.toml && echo 'worker.count = 3' > other.toml",
    );

    let count = |line: &str| session.out(&format!("{line} -o ndjson | grep worker.count"));
    assert!(count("cd a/b && laneway config show").contains(r#""value":"2""#));
    assert!(count("laneway config show --config other.toml").contains(r#""value":"3""#));
    assert_matches(
        "FILE …\n…/laneway.toml … read\n…config.toml  not there",
        &session.out("cd a/b; laneway config path"),
    );
}

#[test]
fn a_new_file_changes_nothing_and_is_not_overwritten() {
    let session = Session::new();
    let before = session.out("laneway config show");

    session.out("laneway config init");

    assert_eq!(session.out("laneway config show"), before);
    assert_eq!(session.run("laneway config init").code, 2);
    let all =
        session.read("laneway.toml").replace("\n#", "\n").replace("\n ", "\n# ").replace("= \"\"", "= \"x\"");
    assert!(all.contains("claim_batch_size = 50"), "{all}");
}

#[test]
fn a_setting_is_explained() {
    let explained = Session::new().out("laneway config explain worker.claim_batch_size");

    assert_matches(
        "\
key        worker.claim_batch_size
meaning    tasks that one claim takes at most; …
value      50
from       default
default    50
allowed    1 to 10000
flag       --claim-batch-size
variables  LANEWAY_WORKER_CLAIM_BATCH_SIZE, CLAIM_BATCH_SIZE
live       yes, with SIGHUP or POST /api/v1/settings/reload",
        &explained,
    );
    let ran = Session::new().run("laneway config explain worker.claim_size");
    assert_eq!(ran.code, 3);
    assert_matches("error: there is no setting `worker.claim_size`; did you mean `…`?", &ran.err);
}

#[test]
fn the_reference_page_is_what_the_program_prints() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let printed = Session::new().out("laneway config reference");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&page, &printed).expect("the page can be written");
    }

    let page = std::fs::read_to_string(page).unwrap_or_default();
    assert_eq!(page, printed, "write docs/configuration.md with `laneway config reference`");
}

#[test]
fn a_secret_is_read_from_a_file_and_never_shown() {
    let session = Session::new();
    session.write("address", "sqlite:from-file.db\n");

    session.out("laneway enqueue echo --store file:address");

    assert!(session.path().join("from-file.db").exists());
    let shown = session.out("laneway config show --store file:address");
    assert!(shown.contains("store.url                    file:address"), "{shown}");
}
