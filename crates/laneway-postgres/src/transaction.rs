//! Enqueue and settle inside the caller's own transaction.

use laneway_core::{Enqueued, NewTask, Outcome, SessionId, Settle, StoreError, Verdict, check_bulk};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::advance::{Wire, verdict};
use crate::enqueue::{Columns, enqueue_many_sql, made};
use crate::error::translate;
use crate::family::{Spawns, refuse_spawned};
use crate::store::{Parameter, PostgresStore};
use crate::unique::KeyColumns;

impl PostgresStore {
    /// Stores tasks in the caller's transaction: they exist if and only if it commits. Takes no lock that a worker can
    /// wait for, however long the transaction stays open.
    ///
    /// ```no_run
    /// # async fn example(store: laneway_postgres::PostgresStore, client: &mut tokio_postgres::Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use laneway_core::{Json, Kind, NewTask};
    ///
    /// let transaction = client.transaction().await?;
    /// transaction.execute("insert into orders (id) values (7)", &[]).await?;
    /// let receipt = NewTask::new(Kind::new("mail.receipt")?, Json::parse(r#"{"order": 7}"#)?);
    /// store.enqueue_in(&transaction, vec![receipt]).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// A task with a key holds it until this transaction ends: who enqueues the same key meanwhile waits for it, nobody
    /// else does. If the key is just being taken by another transaction, this one waits, as long as its `lock_timeout`
    /// allows.
    ///
    /// # Errors
    /// Refused input and a key that is taken leave the transaction usable; a database error leaves it failed, as any
    /// statement's would.
    pub async fn enqueue_in(
        &self,
        transaction: &impl GenericClient,
        tasks: Vec<NewTask>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        check_bulk(&tasks, &self.limits)?;
        let failed = |error| translate(&self.target, "enqueue", error);
        if tasks.iter().any(|task| task.unique.is_some()) {
            let keys = KeyColumns::of(&tasks, &self.limits, None);
            return keys.send(transaction, &self.schema, &tasks, failed).await;
        }
        let columns = Columns::of(&tasks);
        let rows = transaction.query_typed(&enqueue_many_sql(&self.schema), &columns.parameters()).await;
        rows.map(|rows| made(&rows)).map_err(failed)
    }

    /// Settles one attempt in the caller's transaction, so that its effects in this database happen exactly once: if
    /// the verdict [`is_recorded`](Verdict::is_recorded), commit; if it is `Stale` or `Already`, roll back, because
    /// another attempt owns or has done the work.
    ///
    /// The lease stays locked until the transaction ends. Claim such kinds with a lease of their own
    /// ([`Claim::alone`](laneway_core::Claim::alone)), or they hold up the settles of their neighbours. Transactions
    /// above READ COMMITTED can settle only leases of one task, and fail as [`Busy`](StoreError::Busy) when the lease has
    /// changed since their snapshot: run them again.
    ///
    /// # Errors
    /// As any statement's; the transaction has then failed.
    pub async fn settle_in(
        &self,
        transaction: &impl GenericClient,
        session: SessionId,
        settle: Settle,
    ) -> Result<Verdict, StoreError> {
        let mut settle = Settle { outcome: settle.outcome.cleaned(), ..settle };
        refuse_spawned(&mut settle, &self.limits);
        let wire = Wire::of(settle.outcome);
        let spawns = Spawns::of(&[settle.spawned.as_deref()], &[], &self.limits, None);
        let text = match &spawns {
            None => format!(
                "select {}.settle(session => $1, lease => $2, token => $3, task => $4, outcome => $5, \
                 delay => $6 * interval '1 millisecond', error => $7, result => $8::text::json)",
                self.schema
            ),
            Some(_) => format!(
                "select {0}.settle_spawning(p_session => $1, p_lease => $2, p_token => $3, p_task => $4, p_outcome => $5, \
                 p_delay_ms => $6, p_report => $7, p_result => $8{1})",
                self.schema,
                Spawns::argument(&self.schema, 9)
            ),
        };
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&session.0, Type::UUID),
            (&settle.lease.id.0, Type::INT8),
            (&settle.lease.token.0, Type::UUID),
            (&settle.task.0, Type::INT8),
            (&wire.outcome, Type::TEXT),
            (&wire.delay_ms, Type::INT8),
            (&wire.report, Type::TEXT),
            (&wire.result, Type::TEXT),
        ];
        parameters.extend(spawns.iter().flat_map(Spawns::parameters));
        let rows = transaction
            .query_typed(&text, &parameters)
            .await
            .map_err(|error| translate(&self.target, "settle", error))?;
        Ok(verdict(rows[0].get(0)))
    }

    /// Completes one attempt in the caller's transaction: [`settle_in`](Self::settle_in) for the ordinary case.
    ///
    /// # Errors
    /// As [`settle_in`](Self::settle_in).
    pub async fn complete_in(
        &self,
        transaction: &impl GenericClient,
        session: SessionId,
        claimed: &laneway_core::Claimed,
    ) -> Result<Verdict, StoreError> {
        self.settle_in(transaction, session, claimed.settle(Outcome::completed())).await
    }
}
