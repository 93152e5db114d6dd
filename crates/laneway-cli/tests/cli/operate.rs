//! Queues, lanes, schedules, workers and the store, on both stores.

use crate::support::{Session, assert_matches};

fn queues_lanes_and_schedules(session: &Session) {
    session.run_with_input(
        "laneway enqueue page.fetch --many - --queue crawl --lane site:1 --limit 2",
        "1\n2\n3\n",
    );

    assert_matches("QUEUE …\ncrawl … 3 … 0 … 0 …", &session.out("laneway queues ls"));
    assert_eq!(
        session.out("laneway queues pause crawl --for 1h"),
        "queue crawl is paused; what runs goes on\n"
    );
    assert_matches("…\nbecause  its queue is paused by ann since …\n…", &session.out("laneway tasks why 1"));
    assert_eq!(session.out("laneway queues resume crawl"), "queue crawl goes on\n");
    assert_eq!(session.run("laneway queues resume crawl").code, 3);
    session.out("laneway queues set crawl --keep-completed none --keep-failed 90d --statistics false");
    assert_matches(
        "…\nkeeps completed  not at all\nkeeps failed     90 days\nkeeps cancelled  7 days (default)\nstatistics       off\npending          3\n\nKIND …\npage.fetch  pending      3",
        &session.out("laneway queues show crawl"),
    );

    session.out("laneway lanes set crawl site:1 --limit 5 --every 2s --on-failure halt");
    session.out("laneway lanes halt crawl site:1");
    assert_matches(
        "LANE …\nsite:1   0/5        3  2s     halted by hand",
        &session.out("laneway lanes ls crawl"),
    );
    assert_eq!(session.out("laneway lanes resume crawl site:1"), "lane site:1 goes on\n");
    assert_eq!(session.run("laneway lanes resume crawl site:1").code, 3);

    session.out("laneway schedules add nightly report '{\"a\":1}' --every 1h --no-overlap --missed all:3 --queue crawl");
    assert_matches("NAME …\nnightly  every 1h  report  crawl  in …", &session.out("laneway schedules ls"));
    assert_matches("4  enqueued by schedule nightly", &session.out("laneway schedules run nightly"));
    let again = session.run("laneway schedules run nightly");
    assert_eq!(
        (again.code, again.out.as_str()),
        (3, "nothing was enqueued: task 4 of schedule nightly is open\n")
    );
    assert_eq!(session.out("laneway schedules pause nightly"), "schedule nightly is paused\n");
    assert_matches("NAME …\nnightly …  paused  -", &session.out("laneway schedules ls"));
    session.out("laneway schedules resume nightly && laneway schedules rm nightly");
    assert_eq!(session.run("laneway schedules rm nightly").code, 3);
}

#[test]
fn queues_lanes_and_schedules_on_sqlite() {
    queues_lanes_and_schedules(&Session::new());
}

#[tokio::test]
async fn queues_lanes_and_schedules_on_postgresql() {
    queues_lanes_and_schedules(&Session::on_postgres().await);
}

#[test]
fn a_bulk_can_be_looked_at_afterwards() {
    let session = Session::new();
    session.run_with_input("laneway enqueue echo --many -", "1\n2\n");
    let id = session.out("laneway tasks cancel --where kind:echo --yes -o id --reason 'a test'");

    let shown = session.out(&format!("laneway bulk show {id}"));

    assert_matches(
        "bulk     …\naction   cancel\nwhere    kind:echo\nstate    finished\nmatched  2\ndone     2\nskipped  0\nby       ann\nreason   a test\nstarted  …",
        &shown,
    );
    assert_matches(
        "ID  ACTION …\n…  cancel … finished … 2 … 2  ann …  kind:echo\n…",
        &session.out("laneway bulk ls"),
    );
}

#[test]
fn the_store_tells_how_it_is_and_is_cleaned_up() {
    let session = Session::new();
    session.out("laneway enqueue echo");

    assert_matches(
        "store     sqlite\naddress   .laneway/laneway.db (SQLite)\ndatabase  SQLite …\ntables    version …\ntasks     1\nqueues    1\nworkers   0",
        &session.out("laneway store status"),
    );
    session.out("laneway store prune");
    assert!(
        session.out("mkdir -p sub && cd sub && laneway tasks ls -o id") == "1\n",
        "the store is found from below"
    );
}

#[test]
fn a_token_is_shown_once() {
    let session = Session::new();

    let made = session.run("laneway token create grafana --scope read,operate --for 90d");

    assert_matches("lw_1_…", &made.out);
    let listed = session.out("laneway token ls");
    assert_matches(
        "ID  NAME …\n 1  grafana  read,operate  0s ago  in 89d",
        &listed.replace("in 90d", "in 89d"),
    );
    assert_eq!(session.out("laneway token revoke 1"), "token 1 is refused within seconds\n");
    assert_eq!(session.out("laneway token ls -o id"), "");
}

fn a_task_is_edited_and_a_queue_drained(session: &Session) {
    session.out("laneway enqueue echo '[1]' --queue calm && laneway enqueue echo --queue calm");

    assert_eq!(
        session.out("laneway tasks edit 2 --payload '{\"n\": 2}' --priority -3"),
        "task 2 is changed\n"
    );
    assert_eq!(session.run("laneway tasks edit 2 --priority -3").code, 3);
    let from_input = session.run_with_input("laneway tasks edit 1 --payload -", "[7]");
    assert_eq!(from_input.out, "task 1 is changed\n");
    assert_matches("…\npriority  -3\n…", &session.out("laneway tasks show 2"));
    let missing = session.run("laneway tasks edit 99 --priority 1");
    assert_eq!(missing.code, 3);
    assert_matches("error: task 99 does not exist, or its history was removed [not_found]", &missing.err);

    assert_eq!(session.out("laneway queues drain calm"), "queue calm is paused, and nothing of it runs\n");
    session.out("laneway queues set calm --retention 3d --lane-limit 5");
    assert_matches("…\nlane limit       5\n…", &session.out("laneway queues show calm"));
    assert_matches(
        "…\nkeeps completed  3 days\nkeeps failed     3 days\nkeeps cancelled  3 days\n…",
        &session.out("laneway queues show calm"),
    );
}

#[test]
fn a_task_is_edited_and_a_queue_drained_on_sqlite() {
    a_task_is_edited_and_a_queue_drained(&Session::new());
}

#[tokio::test]
async fn a_task_is_edited_and_a_queue_drained_on_postgresql() {
    let session = Session::on_postgres().await;
    session.out("laneway store migrate --to 9");
    a_task_is_edited_and_a_queue_drained(&session);
    let refused = session.run("laneway store snapshot copy.db");
    assert_eq!(refused.code, 2);
    assert_eq!(
        refused.err,
        "error: a snapshot is for SQLite; copy a PostgreSQL store with `pg_dump --schema=laneway`\n"
    );
}

#[test]
fn a_snapshot_is_a_store_of_its_own() {
    let session = Session::new();
    session.out("laneway enqueue echo '\"kept\"'");

    assert_eq!(session.out("laneway store snapshot copy.db"), "wrote copy.db\n");
    session.out("laneway tasks delete 1");

    assert_eq!(session.out("laneway tasks ls -o id --store sqlite:copy.db"), "1\n");
    let again = session.run("laneway store snapshot copy.db");
    assert_eq!((again.code, again.err.as_str()), (2, "error: copy.db is there already; name a new file\n"));
}

#[test]
fn tables_of_another_version_are_not_promised() {
    let session = Session::new();
    let refused = session.run("laneway store migrate --to 3");

    assert_eq!(refused.code, 6);
    assert_matches("error: this program makes tables of version 9, not 3; … [unsupported]", &refused.err);
    assert!(!session.path().join(".laneway").exists());
}

#[test]
fn checking_alone_stores_nothing() {
    let session = Session::new();
    session.write("two.ndjson", "1\n2\n");

    assert_eq!(
        session.out("laneway enqueue echo --dry-run --queue q"),
        "would enqueue echo into queue=q; nothing was stored\n"
    );
    assert_eq!(
        session.out("laneway enqueue echo --many two.ndjson --dry-run"),
        "would enqueue 2 tasks; nothing was stored\n"
    );
    assert_eq!(session.run("echo nonsense | laneway enqueue echo --many - --dry-run").code, 2);
    assert_eq!(session.run("laneway enqueue echo --dry-run --priority 5000").code, 2);
    assert!(!session.path().join(".laneway").exists());
}

#[test]
fn production_asks_even_about_a_single_task() {
    let mut session = Session::new();
    let file = "[context.prod]\nproduction = true\nstore.url = \"sqlite:prod.db\"\n\n[context.lab.store]\nurl = \"sqlite:lab.db\"\n";
    session.write("laneway.toml", file);
    session.set("DATABASE_URL", "sqlite:elsewhere.db");
    session.out("laneway --context prod enqueue echo && laneway enqueue echo --context lab");

    let refused = session.run("laneway --context prod tasks cancel 1");

    assert_eq!(refused.code, 2);
    assert_matches(
        "error: change this in `prod`, which is production? There is nobody to ask; say --yes to do it",
        &refused.err,
    );
    for line in
        ["queues pause default", "schedules rm s", "worker stop w-1234", "store prune", "token revoke 1"]
    {
        assert_matches(
            "error: change this in `prod`, …",
            &session.run(&format!("laneway {line} --context prod")).err,
        );
    }
    assert_eq!(session.out("laneway tasks ls --context prod -o id"), "1\n", "looking is not asked about");
    session.out("laneway schedules next '0 7 * * *' --context prod");
    session.out("laneway tasks cancel 1 --context prod --yes");
    session.out("laneway tasks cancel 1 --context lab");
    assert!(session.path().join("prod.db").exists() && session.path().join("lab.db").exists());
    assert!(!session.path().join("elsewhere.db").exists(), "a context is above the environment");
    let unknown = session.run("laneway --context pord tasks ls");
    assert_eq!(unknown.code, 2);
    assert_matches("error: there is no context `pord` in a settings file; one of: lab, prod", &unknown.err);
    session.set("LANEWAY_CONTEXT", "lab");
    assert_matches(
        "store.url … sqlite:lab.db …/laneway.toml:6",
        &session.out("laneway config show --origin | grep store.url"),
    );
}

#[test]
fn a_queue_can_be_made_serial() {
    let session = Session::new();
    session.out("laneway enqueue echo --queue other");

    session.out("laneway queues set orders --serial 2");

    assert_matches(
        "…\nserial … one task at a time, 2 of its children at once\n…",
        &session.out("laneway queues show orders"),
    );
    assert_matches("echo 1  pending  0s ago", &session.out("laneway tasks tree 1"));
    assert_eq!(session.run("laneway queues set orders --serial many").code, 2);
}
