//! The settings of the process, read again on request.

use std::sync::{Arc, Mutex};

use laneway_server::{ReloadError, Reloaded, Server, SettingsSource, ShownSetting};
use serde_json::json;

use crate::client::Running;

/// Settings that are read again as the test says.
#[derive(Default)]
struct Source {
    mistake: Mutex<Option<String>>,
    reads: Mutex<usize>,
}

impl SettingsSource for Source {
    fn shown(&self) -> Vec<ShownSetting> {
        let value = Some(self.reads.lock().unwrap().to_string());
        vec![ShownSetting { key: "reads".into(), value, from: "the test".into(), live: true }]
    }

    fn reload(&self) -> Result<Reloaded, ReloadError> {
        if let Some(problem) = self.mistake.lock().unwrap().clone() {
            return Err(ReloadError::Refused { problem });
        }
        *self.reads.lock().unwrap() += 1;
        Ok(Reloaded { changed: vec!["reads".into()], needs_restart: vec!["store.url".into()] })
    }
}

#[tokio::test]
async fn settings_that_were_read_again_are_shown_and_what_has_changed_is_named() {
    let store = laneway_testkit::sqlite::fresh().await;
    let source = Arc::new(Source::default());
    let server = Running::built(Server::builder(store.handle()).settings(Arc::clone(&source))).await;

    let reloaded = server.call("POST", "/api/v1/settings/reload", "").await.expect(200);

    assert_eq!(reloaded, json!({"changed": ["reads"], "needs_restart": ["store.url"]}));
    assert_eq!(server.get("/api/v1/settings").await.expect(200)["settings"][0]["value"], "1");
}

#[tokio::test]
async fn a_mistake_in_the_settings_is_told_and_changes_nothing() {
    let store = laneway_testkit::sqlite::fresh().await;
    let source = Arc::new(Source::default());
    *source.mistake.lock().unwrap() = Some("laneway.toml:3: unknown key `colour`".into());
    let server = Running::built(Server::builder(store.handle()).settings(Arc::clone(&source))).await;

    let refused = server.call("POST", "/api/v1/settings/reload", "").await;

    assert_eq!(refused.problem(), (409, "invalid_settings".into(), None));
    assert_eq!(refused.json()["detail"], "laneway.toml:3: unknown key `colour`; nothing was changed");
    assert_eq!(server.get("/api/v1/settings").await.expect(200)["settings"][0]["value"], "0");
}

#[tokio::test]
async fn a_server_without_files_says_that_there_is_nothing_to_read_again() {
    let store = laneway_testkit::sqlite::fresh().await;
    let server = Running::on(store.handle()).await;

    let refused = server.call("POST", "/api/v1/settings/reload", "").await;

    assert_eq!(refused.problem().1, "not_found");
    assert!(refused.body.contains("no settings that could be read again"), "{}", refused.body);
}
