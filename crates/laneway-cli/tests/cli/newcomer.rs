//! A newcomer's path: an empty folder, a clone, and the README's commands word for word.
//!
//! The clone is of what is committed. It is built as the README says, but without optimisation, which takes a few minutes, and less
//! once the dependencies are there: they are kept beside the other builds of this workspace.

use std::path::{Path, PathBuf};

use crate::docs::{root, steps};
use crate::support::{Session, assert_matches};

/// Where the programs of this workspace are built: this test is in `debug/deps` below it.
fn target_directory() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a place");
    own.ancestors().nth(3).expect("a test is in target/debug/deps").join("newcomer")
}

#[test]
fn the_commands_of_the_readme_work_in_a_fresh_clone() {
    let mut session = Session::new();
    let (root, target) = (root().canonicalize().expect("the workspace is there"), target_directory());
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Ok(value) = std::env::var(name) {
            session.set(name, &value);
        }
    }
    session.set("CARGO_TARGET_DIR", &target.display().to_string());
    session.set("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    session.set("PATH", &format!("{}/release:{}", target.display(), std::env::var("PATH").expect("a path")));

    session.out(&format!("git clone --quiet '{}' laneway", root.display()));
    let readme = session.read("laneway/README.md");

    let steps = steps(&readme);
    assert!(
        steps.iter().any(|step| step.command == "cargo run --release -- demo"),
        "the README's first command"
    );
    let mut done = vec![];
    for step in steps {
        // The first command is for the clone, the others are for a directory of one's own.
        let place = if step.command.starts_with("cargo ") { "cd laneway && " } else { "" };
        // A build that takes what is left disturbs no other test.
        let ran = session.run(&format!("renice -n 19 $$ > /dev/null; {place}{}", step.command));
        assert_eq!(ran.code, 0, "{}\n{}{}", step.command, ran.out, ran.err);
        let said =
            if step.command.starts_with("cargo ") { after_the_build(&ran.err) + &ran.out } else { ran.out };
        assert_matches(&step.prints.join("\n"), &said);
        done.push(step.command);
    }
    assert!(done.len() >= 3, "{done:?}");
    assert!(Path::new(&target).join("release/laneway").exists(), "the README says where the program is");
}

/// What the program has said, without what cargo says before it.
fn after_the_build(err: &str) -> String {
    let lines = err.lines().skip_while(|line| !line.trim_start().starts_with("Running `"));
    lines.skip(1).map(|line| format!("{line}\n")).collect()
}
