//! Runs every console block of README and docs, in order, each page in an empty directory.
//!
//! A line that begins with `$ ` is run by a shell; the lines below it are what it prints, with `…` for anything. Nothing below it means
//! that anything may be printed. `cargo run --release --` stands for the program. SQL blocks go through psql, each page to a database of its
//! own. Rust blocks are run by the library's tests, `sh` blocks where the program that they start is built: the test at the end knows
//! them all.

use std::path::{Path, PathBuf};

use crate::support::{Session, assert_matches};

/// A command and what it prints.
#[derive(Debug, Default)]
pub struct Step {
    pub command: String,
    pub prints: Vec<String>,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).expect("there is a docs directory");
    let pages = docs.map(|entry| entry.expect("a readable entry").path());
    let mut pages: Vec<_> = pages.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

pub fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut inside) = (Vec::<Step>::new(), false);
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => inside = language == "console",
            None if !inside => (),
            None => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.into(), prints: vec![] }),
                (None, Some(step)) if step.command.ends_with('\\') => step.command += &format!("\n{line}"),
                (None, Some(step)) => step.prints.push(line.into()),
                (None, None) => panic!("a console block begins with a command: {line}"),
            },
        }
    }
    steps
}

#[test]
fn every_console_block_does_what_it_shows() {
    let mut run = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        let session = Session::new();
        for step in steps(&text) {
            println!("{}: {}", page.display(), step.command);
            let command = step.command.replace("cargo run --release --", "laneway");
            let ran = session.run(&format!("{{ {command}\n}} 2>&1"));
            if !step.prints.is_empty() {
                assert_matches(&step.prints.join("\n"), &ran.out);
            }
            let fails = step.prints.iter().any(|line| line.starts_with("error:"));
            assert_eq!(
                ran.code != 0,
                fails,
                "{}: {} ended with {}\n{}",
                page.display(),
                step.command,
                ran.code,
                ran.out
            );
            run += 1;
        }
    }
    assert!(run > 30, "only {run} commands were found");
}

/// What the page about SQL takes for granted: a schema of the application, and a handler for the children.
const APPLICATION: &str = "
create schema app;
create function app.derive_batch(task bigint, payload jsonb) returns void language sql as '';
select laneway.register_handler('derive.batch', 'app.derive_batch(bigint, jsonb)');
";

#[tokio::test]
async fn every_sql_block_runs_and_says_what_it_shows() {
    let mut run = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        let blocks: Vec<_> =
            text.split("\n```sql\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
        if blocks.is_empty() {
            continue;
        }
        let session = Session::on_postgres().await;
        session.store().await;
        let script = format!("{APPLICATION}{}\n", blocks.join("\n"));
        let ran = session.run_with_input("psql -XqAt -v ON_ERROR_STOP=1 -f - $DATABASE_URL", &script);
        assert_eq!(ran.code, 0, "{}: {}{}", page.display(), ran.out, ran.err);
        // A comment behind a query is what it prints.
        let mut printed = ran.out.lines();
        for line in
            blocks.iter().flat_map(|block| block.lines()).filter(|line| line.starts_with("select state"))
        {
            let (_, expected) = line.split_once("-- ").expect("it says what it prints");
            assert!(printed.any(|line| line == expected), "{}: {line}\n{}", page.display(), ran.out);
        }
        run += blocks.len();
    }
    assert!(run >= 4, "only {run} blocks were found");
}

/// Every `sh` block, and who runs it. `./scripts/test` is what runs this test, so it is only read by a shell.
#[test]
fn every_shell_block_is_run_by_some_test() {
    let pages = pages();
    let pages: Vec<_> =
        pages.iter().map(|page| page.strip_prefix(root()).expect("in our repository")).collect();
    let names: Vec<_> = pages.iter().map(|page| page.to_str().expect("text")).collect();
    let commands = laneway_testkit::pages::shell_commands(&names);

    let known = [
        // the page about HTTP, by the server's tests
        "curl -s",
        "-d ",
        // benchmarks, by the tests of their packages
        "cargo run --release -p laneway-testkit --bin store-bench",
        "cargo run --release -p laneway --example throughput",
        "cargo run --release -p laneway-server --example http_bench",
        // below
        "./scripts/test",
        "laneway worker exec report.build -- ./build-report.sh",
    ];
    let unknown: Vec<_> =
        commands.iter().filter(|line| !known.iter().any(|known| line.starts_with(known))).collect();
    assert!(unknown.is_empty(), "no test runs {unknown:?}");
    assert!(commands.len() >= 15, "{commands:?}");
    let checked =
        Session::new().run(&format!("bash -n {0} && test -x {0}", root().join("scripts/test").display()));
    assert_eq!(checked.code, 0, "{}", checked.err);
}

/// The recipe for a program that runs tasks, as it stands there.
#[test]
fn the_recipe_for_a_program_builds_its_report() {
    let commands = laneway_testkit::pages::shell_commands(&["docs/recipes.md"]);
    let [command] = &commands[..] else { panic!("one command is expected: {commands:?}") };
    let session = Session::new();
    session.write("build-report.sh", "#!/bin/sh\nprintf '{\"built\": %s}' \"$(cat)\"\n");
    session.out("chmod +x build-report.sh && laneway enqueue report.build '[7]'");

    let mut worker = session.start(&format!("exec {command}"));
    let ran = session.run("laneway tasks wait 1 -o json");
    let stopped = session.run(&format!("kill {}", worker.id()));
    let status = worker.wait().expect("it was started");

    assert_eq!((ran.code, stopped.code), (0, 0), "{}{}", ran.out, ran.err);
    let shown = session.out("laneway tasks show 1 -o json");
    assert!(shown.contains("\"built\""), "{shown}");
    assert!(status.success(), "a worker ends well when it is told to stop");
}
