//! Completing a task in the handler's own database transaction.

use laneway_core::Verdict;

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::handler::{FromAttempt, Setup};

/// A handler's argument with which it completes its task in a PostgreSQL transaction of its own, together with the
/// effects of the attempt: they happen exactly once.
///
/// ```no_run
/// use laneway::{Completion, Failure, State};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Pay { account: i64, cents: i64 }
/// # impl laneway::Payload for Pay { const KIND: &'static str = "pay"; }
/// # #[derive(Clone)] struct Pool;
/// # impl Pool { async fn get(&self) -> Result<tokio_postgres::Client, Failure> { unimplemented!() } }
///
/// async fn pay(pay: Pay, completion: Completion, State(pool): State<Pool>) -> Result<(), Failure> {
///     let mut client = pool.get().await?;
///     let transaction = client.transaction().await?;
///     let update = "update account set cents = cents + $2 where id = $1";
///     transaction.execute(update, &[&pay.account, &pay.cents]).await?;
///     completion.complete_in(&transaction).await?; // an error here drops the transaction: nothing has happened
///     Ok(transaction.commit().await?)
/// }
/// ```
///
/// Tasks of such handlers get a lease each, so that an open transaction holds up nobody else. After `complete_in`, commit
/// and return `Ok`; an error instead means that the task is tried again, unless the commit did happen. What the attempt has
/// spawned before `complete_in` is stored by it.
#[derive(Clone, Debug)]
pub struct Completion(Attempt);

impl FromAttempt for Completion {
    const NEEDS_OWN_LEASE: bool = true;

    fn missing(setup: &Setup<'_>) -> Option<String> {
        let problem = "asks for `Completion`, which needs a PostgresStore; this worker's store is";
        (!setup.store.can_join_transactions()).then(|| format!("{problem} {}", setup.store.name()))
    }

    fn from_attempt(attempt: &Attempt) -> Self {
        Self(attempt.clone())
    }
}

#[cfg(feature = "postgres")]
impl Completion {
    /// Records in `transaction` that the task has completed. It has when, and only when, the transaction commits.
    ///
    /// # Errors
    /// When another attempt owns or has done the task, or the database failed. Return the error, and let the transaction
    /// go without a commit.
    pub async fn complete_in(&self, transaction: &impl tokio_postgres::GenericClient) -> Result<(), Failure> {
        let settle = self.0.completion(self.continues());
        recorded(self.store().settle_in(transaction, self.0.session(), settle).await?)
    }

    /// [`complete_in`](Self::complete_in) for a sqlx transaction.
    ///
    /// # Errors
    /// As [`complete_in`](Self::complete_in).
    #[cfg(feature = "sqlx")]
    pub async fn complete_in_sqlx(
        &self,
        transaction: &mut sqlx::postgres::PgConnection,
    ) -> Result<(), Failure> {
        let settle = self.0.completion(self.continues());
        recorded(self.store().settle_in_sqlx(transaction, self.0.session(), settle).await?)
    }

    fn continues(&self) -> bool {
        self.0.handler().is_some_and(|handler| handler.continues)
    }

    fn store(&self) -> &laneway_postgres::PostgresStore {
        self.0.store().postgres().expect("`build` has checked that it is PostgreSQL")
    }
}

#[cfg(feature = "postgres")]
fn recorded(verdict: Verdict) -> Result<(), Failure> {
    if verdict.is_recorded() {
        return Ok(());
    }
    Err(Failure::retry("the lease of this attempt has ended; another attempt owns the task"))
}
