//! Handlers: plain async functions, and how their arguments are found.
//!
//! A handler takes its payload first and then whatever it asks for: [`State`](crate::State), [`Attempt`](crate::Attempt),
//! [`Completion`](crate::Completion), or a type of the user's own that implements [`FromAttempt`]. It returns a `Result`:
//! the value is kept as the task's result, an error means that the task is tried again.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;

use laneway_core::Json;
use serde::Serialize;

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::state::States;

/// What an attempt answered: a result to keep, or why there is none.
pub(crate) type Answer = Result<Option<Json>, Failure>;
type BoxedAnswer = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// An async function that runs tasks of one kind.
///
/// Implemented for functions and closures whose first argument is a [`Payload`], whose other arguments (up to six) implement
/// [`FromAttempt`], and which return a `Result<T, E>`: `T` can be serialised, `E` is any error or a [`Failure`].
///
/// Anything else does not compile, and the compiler says what a handler is:
///
/// ```compile_fail,E0277
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Receipt;
/// # impl laneway::Payload for Receipt { const KIND: &'static str = "mail.receipt"; }
/// # fn builder() -> laneway::WorkerBuilder { unimplemented!() }
/// async fn no_result(receipt: Receipt) {}
///
/// builder().handle(no_result); // error: `…` is not a handler
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an async function from a payload to a `Result`",
    note = "a handler is `async fn(payload: P, …) -> Result<T, E>` where `P: Payload`, each other argument is \
            `State<_>`, `Attempt` or `Completion`, `T: Serialize`, and `E` is an error or `Failure`",
    note = "its future must be `Send`: nothing that is not `Send` may live across an `.await`"
)]
pub trait Handler<Arguments>: Send + Sync + 'static {
    /// What it takes.
    type Payload: Payload;

    #[doc(hidden)]
    fn needs_own_lease() -> bool;

    #[doc(hidden)]
    fn missing(setup: &Setup<'_>) -> Vec<String>;

    #[doc(hidden)]
    fn call(&self, payload: Self::Payload, attempt: &Attempt) -> BoxedAnswer;
}

/// Something that a handler can ask for.
///
/// ```
/// use laneway::{Attempt, FromAttempt};
///
/// struct Customer(Option<String>);
///
/// impl FromAttempt for Customer {
///     fn from_attempt(attempt: &Attempt) -> Self {
///         Self(attempt.task().lane.as_ref().map(|lane| lane.to_string()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot ask for `{Self}`",
    note = "handlers take their payload first, then `State<_>`, `Attempt`, `Completion`, or types that implement `FromAttempt`"
)]
pub trait FromAttempt: Sized + Send {
    /// True when the task must not share its lease with others, because the handler settles it by itself.
    const NEEDS_OWN_LEASE: bool = false;

    /// What the worker lacks so that the argument can be given; reported by
    /// [`build`](crate::WorkerBuilder::build) before anything runs.
    fn missing(setup: &Setup<'_>) -> Option<String> {
        let _ = setup;
        None
    }

    /// The argument for one attempt.
    fn from_attempt(attempt: &Attempt) -> Self;
}

/// What a worker can give to its handlers.
pub struct Setup<'a> {
    pub(crate) states: &'a States,
    pub(crate) store: &'a crate::StoreHandle,
}

impl FromAttempt for Attempt {
    fn from_attempt(attempt: &Attempt) -> Self {
        attempt.clone()
    }
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "return `Result<T, E>` where `T: Serialize` is kept as the task's result (`()` for none) and `E` is an error or `Failure`"
)]
pub trait IntoAnswer {
    #[doc(hidden)]
    fn into_answer(self) -> Answer;
}

impl<T: Serialize, E: Into<Failure>> IntoAnswer for Result<T, E> {
    fn into_answer(self) -> Answer {
        let value = self.map_err(Into::into)?;
        let result = Json::encode(&value)
            .map_err(|error| Failure::discard(format!("the handler's result cannot be kept: {error}")))?;
        Ok((result.as_str() != "null").then_some(result))
    }
}

macro_rules! impl_handler {
    ($($argument:ident)*) => {
        impl<F, Fut, P, $($argument,)*> Handler<(P, $($argument,)*)> for F
        where
            F: Fn(P, $($argument,)*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output: IntoAnswer> + Send + 'static,
            P: Payload,
            $($argument: FromAttempt,)*
        {
            type Payload = P;

            fn needs_own_lease() -> bool {
                false $(|| $argument::NEEDS_OWN_LEASE)*
            }

            fn missing(setup: &Setup<'_>) -> Vec<String> {
                let _ = setup;
                let missing: [Option<String>; _] = [$($argument::missing(setup),)*];
                missing.into_iter().flatten().collect()
            }

            fn call(&self, payload: P, attempt: &Attempt) -> BoxedAnswer {
                let _ = attempt;
                let future = self(payload, $($argument::from_attempt(attempt),)*);
                Box::pin(async move { future.await.into_answer() })
            }
        }
    };
}

impl_handler!();
impl_handler!(A);
impl_handler!(A B);
impl_handler!(A B C);
impl_handler!(A B C D);
impl_handler!(A B C D E);
impl_handler!(A B C D E G);

/// Decodes the payload and calls the handler.
type Run = dyn Fn(&Attempt) -> Result<BoxedAnswer, Failure> + Send + Sync;
type Missing = fn(&Setup<'_>) -> Vec<String>;

/// A handler as the worker keeps it: its types are forgotten.
#[derive(Clone)]
pub(crate) struct Registered {
    pub kind: Cow<'static, str>,
    pub needs_own_lease: bool,
    /// True when the task runs again after its children.
    pub continues: bool,
    missing: Vec<Missing>,
    run: Arc<Run>,
}

impl Registered {
    pub(crate) fn new<Arguments, H: Handler<Arguments>>(handler: H) -> Self {
        Self {
            kind: H::Payload::KIND.into(),
            needs_own_lease: H::needs_own_lease(),
            continues: false,
            missing: vec![H::missing],
            run: Arc::new(move |attempt| Ok(handler.call(decode(attempt)?, attempt))),
        }
    }

    /// A handler whose kind is known at run time only, and which takes payloads as they are.
    pub(crate) fn of_kind<F, Fut>(kind: String, handler: F) -> Self
    where
        F: Fn(Json, Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoAnswer> + Send + 'static,
    {
        let run = move |attempt: &Attempt| -> Result<BoxedAnswer, Failure> {
            let future = handler(attempt.payload().clone(), attempt.clone());
            Ok(Box::pin(async move { future.await.into_answer() }))
        };
        Self {
            kind: kind.into(),
            needs_own_lease: false,
            continues: false,
            missing: vec![],
            run: Arc::new(run),
        }
    }

    /// A handler of any kind, which finds its payload by itself.
    #[cfg(feature = "postgres")]
    pub(crate) fn by_attempt(run: impl Fn(&Attempt) -> BoxedAnswer + Send + Sync + 'static) -> Self {
        Self {
            kind: "".into(),
            needs_own_lease: true,
            continues: false,
            missing: vec![],
            run: Arc::new(move |attempt| Ok(run(attempt))),
        }
    }

    /// This one for the first step, `next` for those after its children have ended.
    pub(crate) fn then(self, next: Self) -> Self {
        let (first, later) = (self.run, next.run);
        Self {
            kind: self.kind,
            needs_own_lease: self.needs_own_lease || next.needs_own_lease,
            continues: true,
            missing: [self.missing, next.missing].concat(),
            run: Arc::new(move |attempt| if attempt.step() == 0 { first(attempt) } else { later(attempt) }),
        }
    }

    /// What the worker lacks to call it.
    pub(crate) fn missing(&self, setup: &Setup<'_>) -> Vec<String> {
        self.missing.iter().flat_map(|missing| missing(setup)).collect()
    }

    /// Decodes the payload and calls the handler.
    pub(crate) async fn run(&self, attempt: &Attempt) -> Answer {
        (self.run)(attempt)?.await
    }
}

/// A payload that does not fit will not fit the next time either.
fn decode<P: Payload>(attempt: &Attempt) -> Result<P, Failure> {
    let misfit = |error| format!("the payload does not fit what the handler of `{}` takes: {error}", P::KIND);
    attempt.payload().decode().map_err(|error| Failure::discard(misfit(error)))
}
