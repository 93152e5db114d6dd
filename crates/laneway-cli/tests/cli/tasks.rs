//! `laneway tasks`: looking, and acting.

use crate::support::{Session, assert_matches};

#[test]
fn a_list_goes_on_where_it_stopped() {
    let session = Session::new();
    session.run_with_input("laneway enqueue echo --many -", &"1\n".repeat(5));

    let first = session.run("laneway tasks ls --limit 3 -o id");
    let after = first.err.trim().rsplit(' ').next().unwrap();
    let second = session.run(&format!("laneway tasks ls --limit 3 -o id --after {after}"));

    assert_eq!((first.out.as_str(), second.out.as_str()), ("1\n2\n3\n", "4\n5\n"));
    assert_eq!(second.err, "");
}

#[test]
fn a_query_is_counted_asked_about_and_carried_out() {
    let session = Session::new();
    session.run_with_input("laneway enqueue echo --many - --queue bulk", &"1\n".repeat(3));

    let refused = session.run("laneway tasks cancel --where queue:bulk");
    let counted = session.out("laneway tasks cancel --where queue:bulk --dry-run");
    let done = session.out("laneway tasks cancel --where queue:bulk --yes --reason 'no longer needed'");
    let again = session.run("laneway tasks cancel --where queue:bulk --yes");

    assert_eq!(refused.code, 2);
    assert_matches(
        "cancel 3 tasks\nerror: cancel 3 tasks? There is nobody to ask; say --yes to do it",
        &refused.err,
    );
    assert_eq!(counted, "would cancel 3 tasks\n");
    assert_matches("bulk …: 3 done, 0 skipped", &done);
    assert_eq!((again.code, again.err.as_str()), (3, "error: no task matches\n"));
    assert_eq!(session.out("laneway tasks ls --where state:cancelled -o id").lines().count(), 3);
}

#[test]
fn tasks_that_are_named_are_answered_one_by_one() {
    let session = Session::new();
    session.out("laneway enqueue echo");

    let ran = session.run("laneway tasks snooze 1 9 --for 1h");

    assert_eq!(ran.code, 4);
    assert_eq!(
        ran.out,
        "ID  ANSWER\n 1  snoozed\n 9  skipped: it does not exist, or its history was removed\n"
    );
    assert_eq!(session.run("laneway tasks retry 1").code, 3);
    assert_eq!(session.run("laneway tasks delete 1").out, "ID  ANSWER\n 1  deleted\n");
}

#[test]
fn what_comes_from_elsewhere_cannot_steer_the_terminal() {
    let session = Session::new();
    session.run_with_input("laneway enqueue echo --many -", "\"\\u001b[2J \u{9b}31m \u{202e}\"\n");

    let (shown, json) = (session.out("laneway tasks show 1"), session.out("laneway tasks show 1 -o json"));

    for text in [&shown, &json] {
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    }
    assert!(shown.contains(r#"payload   "\u001b[2J \u{9b}31m \u{202e}""#), "{shown}");
    assert!(json.contains(r#""payload": "\u001b[2J \u009b31m \u202e""#), "{json}");
}

#[test]
fn a_pipe_that_closes_is_no_error() {
    let session = Session::new();
    session.run_with_input("laneway enqueue echo --many -", &"1\n".repeat(5_000));

    let ran = session.run("laneway tasks ls --limit 5000 | head -1");

    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn watching_looks_again_and_again_until_it_is_interrupted() {
    let session = Session::new();
    session.out("laneway enqueue hello");

    // Three rounds, then the reader is gone.
    let lines = session.out("laneway tasks ls -o id --watch=0.1 | head -n 3");
    assert_eq!(lines, "1\n1\n1\n");

    let interrupted = session.run("timeout --preserve-status -s INT 1 laneway queues ls --watch=0.1 -o id");
    assert_eq!(interrupted.code, 130, "{}", interrupted.err);
    assert!(interrupted.out.lines().count() > 1, "{}", interrupted.out);
}

#[test]
fn only_looks_are_watched() {
    let session = Session::new();

    let refused = session.run("laneway enqueue hello --watch");
    assert_eq!((refused.code, refused.out.as_str()), (2, ""));
    assert!(refused.err.contains("`--watch` is for ls, show, why, tree and status"), "{}", refused.err);
    let refused = session.run("laneway tasks ls --watch=0");
    assert!(
        refused.code == 2 && refused.err.contains("a number of seconds from 0.1 to 3600"),
        "{}",
        refused.err
    );
}

#[test]
fn verbose_commands_log_to_standard_error() {
    let session = Session::new();

    let said = session.run("laneway enqueue hello -vv -o id");
    assert_eq!((said.code, said.out.as_str()), (0, "1\n"));
    assert!(said.err.to_lowercase().contains("debug"), "{}", said.err);
    assert_eq!(session.run("laneway enqueue hello -o id").err, "");
}
