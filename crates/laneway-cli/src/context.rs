//! What every command is given.

use std::sync::Arc;

use laneway_core::{Actor, ActorName};

use crate::open::{self, Opened, Purpose};
use crate::output::Out;
use crate::problem::Problem;
use crate::settings::Settings;

/// Settings, output, and who acts.
#[derive(Clone)]
pub struct Context {
    pub settings: Settings,
    pub out: Out,
    pub actor: Actor,
    /// Nobody is asked.
    pub yes: bool,
    /// Reads the settings again, as flags, environment and files give them then.
    pub reread: Arc<dyn Fn() -> Result<Settings, Problem> + Send + Sync>,
}

impl Context {
    /// The store, to look at it or to operate it.
    pub async fn store(&self) -> Result<Opened, Problem> {
        open::open(&self.settings, Purpose::Existing).await
    }

    /// The store, to put something into it.
    pub async fn store_to_fill(&self) -> Result<Opened, Problem> {
        open::open(&self.settings, Purpose::Filling).await
    }

    /// The store, to serve it.
    pub async fn store_to_serve(&self) -> Result<Opened, Problem> {
        open::open(&self.settings, Purpose::Serving).await
    }
}

/// Who acts: the name that was given, or the user.
///
/// # Errors
/// `invalid_name`.
pub fn actor(name: Option<&str>, reason: Option<&str>) -> Result<Actor, Problem> {
    let user = || std::env::var("USER").ok().filter(|user| ActorName::new(user).is_ok());
    let name = name.map(str::to_owned).or_else(user).unwrap_or_else(|| "cli".into());
    let actor = Actor::new(ActorName::new(name)?);
    Ok(match reason {
        Some(reason) => actor.because(reason),
        None => actor,
    })
}
