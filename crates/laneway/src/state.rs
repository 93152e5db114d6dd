//! What handlers share: a database pool, an HTTP client, a counter.

use std::any::{Any, TypeId};
use std::collections::HashMap;

use crate::attempt::Attempt;
use crate::handler::{FromAttempt, Setup};

/// A handler's argument that is given a clone of what the builder got with
/// [`state`](crate::WorkerBuilder::state).
///
/// ```
/// use laneway::State;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Receipt { to: String }
/// # impl laneway::Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
/// #[derive(Clone)]
/// struct Mailer;
///
/// async fn send_receipt(receipt: Receipt, State(mailer): State<Mailer>) -> Result<(), std::io::Error> {
///     # let _ = (receipt, mailer);
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct State<T>(pub T);

/// The shared values, by type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl<T: Clone + Send + Sync + 'static> FromAttempt for State<T> {
    fn missing(setup: &Setup<'_>) -> Option<String> {
        let name = std::any::type_name::<T>();
        setup.states.get::<T>().is_none().then(|| {
            format!("asks for `State<{name}>`, which the worker does not have; give it with `.state(…)`")
        })
    }

    fn from_attempt(attempt: &Attempt) -> Self {
        Self(attempt.states().get::<T>().expect("`build` has checked that it is there").clone())
    }
}
