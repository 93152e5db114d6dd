//! The settings of a daemon while it runs: those that count, and how they are read again.
//!
//! SIGHUP and `POST /api/v1/settings/reload` end up here. Files are read, checked as a whole, and then what is live is applied; a
//! mistake changes nothing. What is not live keeps its value until the daemon is started again, and is named each time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use laneway::Tuning;
use laneway_server::{ReloadError, Reloaded, SettingsSource, ShownSetting};
use tracing::{info, warn};

use crate::context::Context;
use crate::daemon;
use crate::logging::{self, Logs};
use crate::problem::Problem;
use crate::settings::Settings;

type Reread = Arc<dyn Fn() -> Result<Settings, Problem> + Send + Sync>;

/// The settings of a daemon, and what they are applied to.
pub struct Live {
    /// Those that count.
    current: Mutex<Settings>,
    reread: Reread,
    /// What this command changes about the settings that were read.
    adapt: fn(&Settings) -> Settings,
    logs: Logs,
    worker: Mutex<Option<Tuning>>,
}

impl Live {
    /// Begins to log as the settings say. `adapt` is what the command changes about settings, now and whenever they are read.
    pub fn start(context: &Context, adapt: fn(&Settings) -> Settings) -> Arc<Self> {
        let settings = adapt(&context.settings);
        Arc::new(Self {
            logs: logging::start(&settings),
            current: Mutex::new(settings),
            reread: Arc::clone(&context.reread),
            adapt,
            worker: Mutex::default(),
        })
    }

    /// The settings that count now.
    pub fn settings(&self) -> Settings {
        self.current().clone()
    }

    /// From now on a worker is changed, too.
    pub fn tunes(&self, worker: Tuning) {
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
    }

    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Reads settings again because of a signal, and logs what came of it.
    pub fn hang_up(&self) {
        match self.reload() {
            Ok(Reloaded { changed, needs_restart }) => {
                info!(changed = changed.join(", "), "live settings were read again");
                if !needs_restart.is_empty() {
                    warn!("changed, but needs a restart: {}", needs_restart.join(", "));
                }
            }
            Err(error) => warn!(problem = %error, "settings were not read again"),
        }
    }

    fn current(&self) -> MutexGuard<'_, Settings> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SettingsSource for Live {
    fn shown(&self) -> Vec<ShownSetting> {
        let settings = self.settings();
        let shown = settings.all().iter().map(|value| ShownSetting {
            key: value.setting.key.into(),
            value: value.shown(),
            from: value.origin.to_string(),
            live: value.setting.live,
        });
        shown.collect()
    }

    fn reload(&self) -> Result<Reloaded, ReloadError> {
        let refused = |problem: String| ReloadError::Refused { problem };
        // Held to the end: of two that come at once, the second one compares with what the first one made of it.
        let mut current = self.current();
        let read = (self.reread)().map_err(|problem| refused(problem.message))?;
        let (next, reloaded) = current.reloaded(&(self.adapt)(&read));
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(worker) = worker {
            worker.set(daemon::tuned(&next)).map_err(|error| refused(error.to_string()))?;
        }
        self.logs.reload(&next).map_err(|error| refused(error.to_string()))?;
        *current = next;
        Ok(reloaded)
    }
}
