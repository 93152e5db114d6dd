//! Large families: their children are stored by COPY, in the transaction of the settle that spawns them.
//!
//! The settle decides as always. If its verdict is not that the parent waits, the transaction is rolled back and the call made
//! again without COPY, so that there is one place that says what becomes of such an attempt (`family.sql`).

use std::collections::HashMap;

use laneway_core::{Advance, Advanced, Outcome, Settle, StoreError, TaskId, Verdict};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::copy::{Birth, copy_all};
use crate::error::translate;
use crate::family::IdRange;
use crate::store::{PostgresStore, read_committed};

/// From this many children on COPY, with its round trips, is faster than arrays.
const COPY_MIN: usize = 2_000;

fn is_large(settle: &Settle) -> bool {
    matches!(settle.outcome, Outcome::Completed { .. })
        && settle.spawned.as_ref().is_some_and(|spawned| spawned.children.len() >= COPY_MIN)
}

impl PostgresStore {
    /// Advances with the children of large families stored by COPY. `None`: nothing was done, go the ordinary way.
    pub(crate) async fn fan_out(
        &self,
        client: &mut tokio_postgres::Client,
        request: &Advance,
    ) -> Result<Option<Advanced>, StoreError> {
        if request.again || !request.settles.iter().any(is_large) {
            return Ok(None);
        }
        let failed = |error| translate(&self.target, "advance", error);
        let transaction = read_committed(client).await.map_err(failed)?;
        let Ok(Some(advanced)) = self.try_fan_out(&transaction, request).await else {
            transaction.rollback().await.map_err(failed)?;
            self.bounds.forget(request.session); // they passed tasks that nobody has claimed now
            return Ok(None);
        };
        transaction.commit().await.map_err(failed)?;
        Ok(Some(advanced))
    }

    async fn try_fan_out(
        &self,
        transaction: &Transaction<'_>,
        request: &Advance,
    ) -> Result<Option<Advanced>, tokio_postgres::Error> {
        let mut born = HashMap::new();
        for settle in request.settles.iter().filter(|settle| is_large(settle)) {
            let Some(ids) = self.copy_children(transaction, request, settle).await? else { return Ok(None) };
            if born.insert(settle.task, ids).is_some() {
                return Ok(None); // settled twice in one call: only the first counts
            }
        }
        let advanced = self.try_advance(transaction, request, &born).await?;
        let waits = |task: &TaskId| {
            advanced
                .settled
                .iter()
                .any(|settled| settled.task == *task && settled.verdict == Verdict::Waiting)
        };
        Ok(born.keys().all(waits).then_some(advanced))
    }

    /// Stores the children of one settle; `None` if its lease is gone.
    async fn copy_children(
        &self,
        transaction: &Transaction<'_>,
        request: &Advance,
        settle: &Settle,
    ) -> Result<Option<IdRange>, tokio_postgres::Error> {
        let text =
            format!("select {}.depth_of_children(p_session => $1, p_lease => $2, p_task => $3)", self.schema);
        let parameters = [
            (&request.session.0 as _, Type::UUID),
            (&settle.lease.id.0 as _, Type::INT8),
            (&settle.task.0 as _, Type::INT8),
        ];
        let depth: Option<i16> = transaction.query_typed(&text, &parameters).await?[0].get(0);
        let (Some(depth), Some(spawned)) = (depth, &settle.spawned) else { return Ok(None) };
        let birth = Birth { parent: settle.task.0, depth };
        let ids = copy_all(transaction, &self.schema, &spawned.children, Some(birth)).await?;
        Ok(Some(IdRange { first: ids[0], last: ids[ids.len() - 1] }))
    }
}
