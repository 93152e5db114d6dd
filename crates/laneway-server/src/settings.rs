//! The settings of the process that a server runs in: what it tells of them, and how they are read again.

use std::sync::Arc;

use serde::Serialize;

/// A setting as `GET /api/v1/settings` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownSetting {
    /// Its name.
    pub key: String,
    /// Its value, without passwords; none when it is not set.
    pub value: Option<String>,
    /// Where the value came from.
    pub from: String,
    /// Whether the process reads it again while it runs.
    pub live: bool,
}

/// What came of reading settings again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new values count from now on.
    pub changed: Vec<String>,
    /// Keys that have new values which count after a restart only.
    pub needs_restart: Vec<String>,
}

/// Why settings were not read again. The old ones stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The process has no settings that could be read again.
    #[error("this server has no settings that could be read again; restart it with others")]
    Unsupported,
    /// Something in them is not allowed.
    #[error("{problem}; nothing was changed")]
    Refused {
        /// What is not allowed, and where it is written.
        problem: String,
    },
}

/// Where a server gets the settings of its process from. A list of [`ShownSetting`] is one that cannot be read again.
pub trait SettingsSource: Send + Sync + 'static {
    /// The settings that count now.
    fn shown(&self) -> Vec<ShownSetting>;

    /// Reads them again and applies what can be changed while the process runs. May wait for files.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing is changed then.
    fn reload(&self) -> Result<Reloaded, ReloadError> {
        Err(ReloadError::Unsupported)
    }
}

impl SettingsSource for Vec<ShownSetting> {
    fn shown(&self) -> Vec<ShownSetting> {
        self.clone()
    }
}

impl<S: SettingsSource> SettingsSource for Arc<S> {
    fn shown(&self) -> Vec<ShownSetting> {
        (**self).shown()
    }

    fn reload(&self) -> Result<Reloaded, ReloadError> {
        (**self).reload()
    }
}
