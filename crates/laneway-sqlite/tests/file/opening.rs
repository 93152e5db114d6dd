//! Opening files: ours, others', ones that cannot be used, and many openers at once.

use std::fs;
use std::path::Path;

use crate::support::*;
use laneway_core::{Store, StoreError};
use laneway_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

async fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(SqliteOptions::new(path)).await
}

async fn refusal(path: &Path) -> StoreError {
    open(path).await.expect_err("the file should be refused")
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("theirs.db");
    Connection::open(&path).unwrap().execute_batch("create table customer (name text)").unwrap();
    let before = fs::read(&path).unwrap();

    let refused = refusal(&path).await;

    assert_eq!(refused.code(), "foreign_file", "{refused}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    let text = "milk, bread\n".repeat(100);
    fs::write(&path, &text).unwrap();

    let refused = refusal(&path).await;

    assert_eq!(refused.code(), "foreign_file", "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_place_where_no_file_can_be_made_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let a_file = directory.path().join("file");
    fs::write(&a_file, "").unwrap();
    let locked = directory.path().join("locked");
    fs::create_dir(&locked).unwrap();
    let mut permissions = fs::metadata(&locked).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&locked, permissions).unwrap();

    for path in [
        directory.path().join("missing/tasks.db"),
        a_file.join("tasks.db"),
        locked.join("tasks.db"),
        directory.path().to_owned(),
        ":memory:".into(),
    ] {
        let refused = refusal(&path).await;
        assert_eq!(refused.code(), "cannot_open", "{refused}");
    }
}

#[tokio::test]
async fn a_read_only_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    drop(open(&path).await.unwrap());
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();

    let refused = refusal(&path).await;

    assert_eq!(refused.code(), "read_only", "{refused}");
}

#[tokio::test]
async fn what_was_accepted_is_there_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    let store = open(&path).await.unwrap();
    let first = store.enqueue(in_lane("a")).await.unwrap().id;
    let second = store.enqueue(in_lane("a")).await.unwrap().id;

    drop(store);
    let store = open(&path).await.unwrap();

    let worker = worker(&store).await;
    let claimed = worker.claim(10).await;
    assert_eq!(ids(&claimed), [first.0]);
    assert!(store.get(second).await.unwrap().is_some());
    assert!(store.enqueue(a_task()).await.unwrap().id > second);
}

/// The log is copied as a crash would leave it: the store is not closed.
#[tokio::test]
async fn what_was_accepted_is_in_the_files_before_the_store_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    let store = open(&path).await.unwrap();
    let id = store.enqueue(a_task()).await.unwrap().id;

    let copy = directory.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    fs::copy(directory.path().join("tasks.db-wal"), directory.path().join("copy.db-wal")).unwrap();

    let found = open(&copy).await.unwrap().get(id).await.unwrap();
    assert_eq!(found.map(|task| task.id), Some(id));
}

#[tokio::test]
async fn a_file_of_a_newer_program_is_refused_only_if_its_change_was_breaking() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    drop(open(&path).await.unwrap());
    let add = |version: i32, breaking: bool| {
        let insert =
            "insert into migration (version, breaking, program, applied_at) values (?1, ?2, '9.1.0', 0)";
        Connection::open(&path).unwrap().execute(insert, (version, breaking)).unwrap();
    };

    let newest = "select max(version) from migration";
    let known: i32 = Connection::open(&path).unwrap().query_row(newest, [], |row| row.get(0)).unwrap();

    add(known + 1, false);
    drop(open(&path).await.unwrap());
    add(known + 2, true);
    let refused = refusal(&path).await;

    let says = format!(
        "the store has schema version {}, this program knows {known}; install laneway 9.1.0 or newer",
        known + 2
    );
    assert_eq!(refused.to_string(), says);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn eight_openers_of_a_fresh_file_all_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");

    let openers = (0..8).map(|_| {
        let path = path.clone();
        tokio::spawn(async move { open(&path).await.unwrap().enqueue(a_task()).await.unwrap().id })
    });
    let mut found = vec![];
    for opener in openers.collect::<Vec<_>>() {
        found.push(opener.await.unwrap().0);
    }

    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    fs::write(&path, "").unwrap();

    assert!(open(&path).await.is_ok());
}
