//! Kinds that are run by functions and procedures in the database.
//!
//! Which kinds have one is read when the worker starts and once a minute; kinds that the worker itself has a handler for are
//! left to that. An attempt is one statement, in which the handler runs and the task is settled.

use std::sync::RwLock;

use laneway_core::{Kind, StoreError};

use crate::handler::Registered;
use crate::store_handle::StoreHandle;

/// The kinds that have handlers in the database; none unless the worker asked for them.
#[derive(Default)]
pub(crate) struct SqlKinds {
    is_on: bool,
    kinds: RwLock<Vec<Kind>>,
}

impl SqlKinds {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    pub(crate) fn get(&self) -> Vec<Kind> {
        self.kinds.read().expect("nothing panics while it is held").clone()
    }

    /// Reads the kinds anew, without those in `own`. True when they have changed.
    pub(crate) async fn refresh(&self, store: &StoreHandle, own: &[Kind]) -> Result<bool, StoreError> {
        if !self.is_on {
            return Ok(false);
        }
        let mut found = read_kinds(store).await?;
        found.retain(|kind| !own.contains(kind));
        let mut kinds = self.kinds.write().expect("nothing panics while it is held");
        let has_changed = *kinds != found;
        *kinds = found;
        Ok(has_changed)
    }

    /// What runs tasks of this kind, if that is in the database.
    pub(crate) fn handler(&self, kind: &Kind) -> Option<Registered> {
        self.get().contains(kind).then(run_in_database)
    }
}

#[cfg(feature = "postgres")]
async fn read_kinds(store: &StoreHandle) -> Result<Vec<Kind>, StoreError> {
    match store.postgres() {
        Some(postgres) => postgres.handler_kinds().await,
        None => Ok(vec![]),
    }
}

#[cfg(not(feature = "postgres"))]
async fn read_kinds(_: &StoreHandle) -> Result<Vec<Kind>, StoreError> {
    Ok(vec![])
}

#[cfg(feature = "postgres")]
fn run_in_database() -> Registered {
    use crate::attempt::Attempt;
    use crate::failure::Failure;

    async fn run(attempt: Attempt) -> Result<Option<laneway_core::Json>, Failure> {
        let store =
            attempt.store().postgres().ok_or_else(|| Failure::retry("the store is not PostgreSQL"))?;
        tokio::select! {
            biased;
            // Dropping the call asks the server to stop.
            _ = attempt.cancelled() => Err(Failure::retry("stopped half-way")),
            answer = store.run_handler(attempt.session(), attempt.claimed()) => {
                answer.map(|_recorded| None).map_err(Failure::from)
            }
        }
    }
    Registered::by_attempt(|attempt| Box::pin(run(attempt.clone())))
}

#[cfg(not(feature = "postgres"))]
fn run_in_database() -> Registered {
    unreachable!("there are no such kinds without PostgreSQL")
}
