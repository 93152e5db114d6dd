//! Alerts and boards: Prometheus' own checker reads them, and they ask only for what a scrape tells.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn alerts() -> String {
    text(&monitoring().join("alerts.yml"))
}

/// The boards, with the names of their files.
fn boards() -> Vec<(String, Value)> {
    let files = std::fs::read_dir(monitoring().join("grafana")).expect("there are boards");
    let mut boards: Vec<_> = files
        .map(|file| file.expect("a readable entry").path())
        .map(|path| {
            let board = serde_json::from_str(&text(&path));
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            (name, board.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        })
        .collect();
    boards.sort_by(|one, other| one.0.cmp(&other.0));
    boards
}

/// Everything that a board asks Prometheus.
fn questions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            let asked = ["expr", "definition"].iter().filter_map(|name| members.get(*name)?.as_str());
            found.extend(asked.map(ToOwned::to_owned));
            members.values().for_each(|member| questions(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| questions(item, found)),
        _ => (),
    }
}

/// Words that look like metrics of ours.
fn names(text: &str) -> BTreeSet<&str> {
    let prefixes = ["worker_", "queue_", "schedule_", "store_", "server_"];
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)) && !word.ends_with('_'))
        .collect()
}

/// Every metric that the pages about the worker and about HTTP list: what a scrape may tell.
fn documented() -> BTreeSet<String> {
    let pages = ["worker.md", "http.md"].map(|page| text(&monitoring().join("../docs").join(page)));
    let sections = pages.iter().map(|page| {
        let section = page.split("\n## Metrics\n").nth(1).expect("the page has a section about metrics");
        section.split("\n## ").next().expect("there is a first part")
    });
    sections.flat_map(|section| names(section).into_iter().map(ToOwned::to_owned)).collect()
}

/// Every metric that is registered, as the sources write it: counters without their `_total`.
fn registered() -> BTreeSet<&'static str> {
    let sources = [
        include_str!("../../src/metrics.rs"),
        include_str!("../../src/gauges.rs"),
        include_str!("../../../laneway/src/metrics.rs"),
        include_str!("../../../laneway/src/timings.rs"),
    ];
    let code = sources.map(|source| source.split("#[cfg(test)]").next().expect("there is a first part"));
    let lines = code.iter().flat_map(|code| code.lines()).filter(|line| !line.trim_start().starts_with("//"));
    let quoted = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    quoted.filter(|text| names(text).iter().any(|name| name == text)).collect()
}

fn promtool(arguments: &[&str]) {
    let ran = Command::new("promtool").current_dir(monitoring()).args(arguments).output();
    let ran =
        ran.expect("promtool is needed: install the package `prometheus`, or run ./scripts/test, which does");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "promtool {arguments:?}:\n{said}");
}

/// The names of all alerts.
fn alert_names(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires_when_it_should() {
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&["test", "rules", "alerts_test.yml"]);
}

#[test]
fn every_alert_has_a_test_and_a_section_of_the_page() {
    let (rules, tests) = (alerts(), text(&monitoring().join("alerts_test.yml")));
    let page = text(&monitoring().join("../docs/monitoring.md"));

    let alerts = alert_names(&rules);

    assert!(alerts.len() >= 8, "{alerts:?}");
    for alert in &alerts {
        assert!(tests.contains(alert), "alerts_test.yml does not test {alert}");
        assert!(page.contains(&format!("### {alert}\n")), "docs/monitoring.md does not tell about {alert}");
    }
    for section in page.lines().filter_map(|line| line.strip_prefix("### ")) {
        assert!(alerts.contains(&section), "docs/monitoring.md tells about {section}, which is no alert");
    }
}

#[test]
fn the_pages_list_exactly_the_metrics_that_are_registered() {
    let documented = documented();
    let bare: BTreeSet<_> = documented.iter().map(|name| name.trim_end_matches("_total")).collect();

    assert_eq!(bare, registered());
}

#[test]
fn alerts_and_boards_ask_only_for_metrics_that_a_scrape_tells() {
    let documented = documented();
    let is_told = |name: &str| {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is_times = |name: &str| name.ends_with("_seconds") || name.ends_with("_size");
        documented.contains(name)
            || of_histogram.is_some_and(|name| is_times(name) && documented.contains(name))
    };
    let rules: String = alerts()
        .lines()
        .filter(|line| !line.trim().starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut asked = vec![("alerts.yml".to_owned(), rules)];
    for (file, board) in boards() {
        let mut found = vec![];
        questions(&board, &mut found);
        assert!(found.len() > 5, "{file} asks only {found:?}");
        asked.extend(found.into_iter().map(|question| (file.clone(), question)));
    }

    for (file, text) in asked {
        for name in names(&text) {
            assert!(is_told(name), "{file} asks for {name}, which no scrape has");
        }
    }
}

#[test]
fn every_question_of_a_board_is_one_that_prometheus_understands() {
    for (file, board) in boards() {
        let mut found = vec![];
        questions(&board, &mut found);
        let rules = found.iter().filter(|question| !question.starts_with("label_values(")).enumerate();
        let rules: Vec<_> = rules
            .map(|(number, question)| {
                let expr = question.replace("$__rate_interval", "5m");
                serde_json::json!({"record": format!("question:{number}"), "expr": expr})
            })
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(&file);
        let groups = serde_json::json!({"groups": [{"name": file, "rules": rules}]});
        std::fs::write(&path, groups.to_string()).unwrap();
        promtool(&["check", "rules", path.to_str().expect("text")]);
    }
}

#[test]
fn boards_have_panels_with_ids_of_their_own_and_take_their_data_source_from_a_variable() {
    let boards = boards();
    let files: Vec<_> = boards.iter().map(|(file, _)| file.as_str()).collect();
    assert_eq!(files, ["fleet.json", "queue.json", "store.json", "worker.json"]);
    let uids: BTreeSet<_> = boards.iter().map(|(_, board)| board["uid"].as_str().unwrap()).collect();
    assert_eq!(uids.len(), boards.len());
    for (file, board) in &boards {
        let panels = board["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file} has an id twice");
        assert_eq!(board["templating"]["list"][0]["type"], "datasource", "{file}");
        for panel in panels {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{file}: {}", panel["title"]);
            assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{file}");
        }
    }
}
