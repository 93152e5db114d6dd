//! Programs as handlers.

use std::time::Duration;

use laneway::core::{State as TaskState, TaskView};
use laneway::{Client, Payload, Stop, Worker};
use laneway_server::handlers::Program;
use laneway_testkit::store::until;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::*;

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}
impl Payload for Greet {
    const KIND: &'static str = "greet";
}

fn ann() -> Greet {
    Greet { name: "Ann".into() }
}

fn shell(script: &str) -> Program {
    Program::new("greet", ["sh", "-c", script]).unwrap()
}

async fn run_shell(script: &str) -> TaskView {
    run(ann(), |worker| shell(script).add_to(worker)).await
}

#[tokio::test]
async fn a_program_gets_the_payload_and_its_output_is_the_result() {
    let json = run_shell(
        r#"read p; echo "{\"hi\": $p, \"kind\": \"$LANEWAY_KIND\", \"attempt\": $LANEWAY_ATTEMPT}""#,
    )
    .await;
    let text = run_shell("echo ' hello '").await;
    let nothing = run_shell("true").await;

    assert_eq!(json.state, TaskState::Completed);
    assert_eq!(result(&json), json!({"hi": {"name": "Ann"}, "kind": "greet", "attempt": 1}));
    assert_eq!(result(&text), json!("hello"));
    assert_eq!((nothing.state, nothing.result), (TaskState::Completed, None));
}

#[tokio::test]
async fn the_exit_code_says_what_becomes_of_the_task() {
    let again = run_shell("echo went wrong >&2; exit 1").await;
    let never = run_shell("echo bad input >&2; exit 100").await;
    let not_now = run_shell("exit 101").await;
    let killed = run_shell("kill -9 $$").await;

    assert_eq!(
        (again.state, again.attempt, again.error.as_deref()),
        (TaskState::Failed, 3, Some("exit code 1: went wrong"))
    );
    assert_eq!(
        (never.state, never.attempt, never.error.as_deref()),
        (TaskState::Failed, 1, Some("exit code 100: bad input"))
    );
    assert_eq!((not_now.state, not_now.attempt), (TaskState::Later, 0));
    assert_eq!((killed.state, killed.attempt), (TaskState::Failed, 3));
    assert!(killed.error.unwrap().contains("signal"));
    let other = run(ann(), |worker| shell("exit 3").fail_code(3).add_to(worker)).await;
    assert_eq!((other.state, other.attempt), (TaskState::Failed, 1));
}

#[tokio::test]
async fn long_output_is_cut_and_does_not_hold_the_program_up() {
    let errors = run_shell("yes error | head -c 1000000 >&2; echo the end >&2; exit 100").await;
    let output = run_shell("yes output | head -c 2000000").await;

    let error = errors.error.unwrap();
    assert!(error.len() < 9_000 && error.ends_with("the end"), "{}", error.len());
    assert_eq!((output.state, output.attempt), (TaskState::Failed, 1));
    assert!(output.error.unwrap().contains("more than 1048576 bytes"));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_tried_again_and_none_at_all_is_refused() {
    let program = Program::new("greet", ["/does/not/exist"]).unwrap();
    let task = run(ann(), |worker| program.add_to(worker)).await;

    assert_eq!((task.state, task.attempt), (TaskState::Failed, 3));
    assert!(task.error.unwrap().contains("could not be started"));
    assert!(Program::new("greet", Vec::<String>::new()).is_err());
}

/// True while a process lives; one that nobody has waited for does not.
fn lives(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// A program that starts another one, writes down its number, and waits.
fn with_child(file: &std::path::Path) -> Program {
    shell(&format!("trap '' TERM; sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait; wait", file.display()))
}

#[tokio::test]
async fn what_a_program_has_started_ends_with_its_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let store = store().await;
    let client = Client::new(&store);

    // On a slow machine the first program may not have got as far as to start the other one.
    for timeout in [1, 10, 100] {
        let draft = client.enqueue(ann()).timeout(Duration::from_secs(timeout));
        let task = draft.max_attempts(1).await.unwrap();
        let worker = with_child(&file).add_to(Worker::builder(&store)).build().unwrap();
        worker.run_until_empty().await.unwrap();

        let view = store.get(task.id).await.unwrap().unwrap();
        let timed_out = format!("timed out after {timeout}s");
        assert_eq!((view.state, view.error), (TaskState::Failed, Some(timed_out)));
        if file.exists() {
            break;
        }
    }

    let process = std::fs::read_to_string(&file).unwrap();
    until("the other program has ended", async || !lives(process.trim())).await;
}

#[tokio::test]
async fn what_a_program_has_started_ends_with_its_cancel() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let store = store().await;
    let task = Client::new(&store).enqueue(ann()).await.unwrap();
    let worker = with_child(&file).add_to(Worker::builder(&store)).build().unwrap();
    let stop = Stop::default();
    let running = tokio::spawn(worker.run_until(stop.clone()));
    until("it has started another", async || file.exists()).await;
    let process = std::fs::read_to_string(&file).unwrap();
    assert!(lives(process.trim()));

    Client::new(&store).cancel(task.id).await.unwrap();

    let ended = Client::new(&store).wait(task).await.unwrap();
    assert_eq!(ended.state(), TaskState::Cancelled);
    until("the other program has ended", async || !lives(process.trim())).await;
    stop.drain();
    running.await.unwrap().unwrap();
}
