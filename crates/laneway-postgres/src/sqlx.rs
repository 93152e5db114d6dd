//! The same inside a sqlx transaction.

use laneway_core::{Enqueued, NewTask, SessionId, Settle, StoreError, TaskId, Verdict, check_bulk};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::advance::{Wire, verdict};
use crate::enqueue::{Columns, enqueue_many_sql};
use crate::error::translate_code;
use crate::family::{Spawns, refuse_spawned};
use crate::store::PostgresStore;
use crate::unique::{KeyColumns, answers_of, enqueue_keyed_sql};

impl PostgresStore {
    /// [`enqueue_in`](Self::enqueue_in) for a sqlx transaction.
    ///
    /// ```no_run
    /// # async fn example(store: laneway_postgres::PostgresStore, pool: sqlx::PgPool, task: laneway_core::NewTask)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// store.enqueue_in_sqlx(&mut transaction, vec![task]).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`enqueue_in`](Self::enqueue_in).
    pub async fn enqueue_in_sqlx(
        &self,
        transaction: &mut PgConnection,
        tasks: Vec<NewTask>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        check_bulk(&tasks, &self.limits)?;
        let failed = |error| self.sqlx_failed("enqueue", error);
        let has_keys = tasks.iter().any(|task| task.unique.is_some());
        let columns = Columns::of(&tasks);
        let dues: Vec<_> = columns.dues.iter().map(|due| due.map(|due| due.to_string())).collect();
        let text = if has_keys { enqueue_keyed_sql(&self.schema) } else { enqueue_many_sql(&self.schema) };
        // sqlx has no type for our timestamps; as text they lose nothing.
        let text = text.replace("$9", "$9::text[]::timestamptz[]");
        let mut query = sqlx::query(AssertSqlSafe(text))
            .bind(columns.kinds)
            .bind(columns.payloads)
            .bind(columns.queues)
            .bind(columns.priorities)
            .bind(columns.max_attempts)
            .bind(columns.lanes)
            .bind(columns.lane_limits)
            .bind(columns.delays_ms)
            .bind(dues)
            .bind(columns.extras);
        if has_keys {
            let keys = KeyColumns::of(&tasks, &self.limits, None);
            query = query
                .bind(keys.keys)
                .bind(keys.scopes)
                .bind(keys.windows_ms)
                .bind(keys.conflicts)
                .bind(keys.hashes)
                .bind(keys.bytes_max)
                .bind(keys.wait_ms);
        }
        let row = query.fetch_one(transaction).await.map_err(failed)?;
        let ids: Vec<i64> = row.try_get(0).map_err(failed)?;
        if has_keys {
            return answers_of(&tasks, ids, row.try_get(1).map_err(failed)?);
        }
        Ok(ids.into_iter().map(|id| Enqueued::made(TaskId(id))).collect())
    }

    /// [`settle_in`](Self::settle_in) for a sqlx transaction.
    ///
    /// # Errors
    /// As [`settle_in`](Self::settle_in).
    pub async fn settle_in_sqlx(
        &self,
        transaction: &mut PgConnection,
        session: SessionId,
        settle: Settle,
    ) -> Result<Verdict, StoreError> {
        let mut settle = Settle { outcome: settle.outcome.cleaned(), ..settle };
        refuse_spawned(&mut settle, &self.limits);
        let wire = Wire::of(settle.outcome);
        let spawns = Spawns::of(&[settle.spawned.as_deref()], &[], &self.limits, None);
        let text = match &spawns {
            None => format!(
                "select {}.settle(session => $1::text::uuid, lease => $2, token => $3::text::uuid, task => $4, outcome => $5, \
                 delay => $6 * interval '1 millisecond', error => $7, result => $8::text::json)",
                self.schema
            ),
            Some(_) => format!(
                "select {0}.settle_spawning(p_session => $1::text::uuid, p_lease => $2, p_token => $3::text::uuid, p_task => $4, \
                 p_outcome => $5, p_delay_ms => $6, p_report => $7, p_result => $8, \
                 p_spawn => json_populate_record(null::{0}.spawn, $9::text::json))",
                self.schema
            ),
        };
        let mut query = sqlx::query(AssertSqlSafe(text))
            .bind(session.to_string())
            .bind(settle.lease.id.0)
            .bind(settle.lease.token.0.to_string())
            .bind(settle.task.0)
            .bind(wire.outcome)
            .bind(wire.delay_ms)
            .bind(wire.report)
            .bind(wire.result);
        if let Some(spawns) = &spawns {
            query = query.bind(spawns.json().to_string());
        }
        let row = query.fetch_one(transaction).await.map_err(|error| self.sqlx_failed("settle", error))?;
        let text: String = row.try_get(0).map_err(|error| self.sqlx_failed("settle", error))?;
        Ok(verdict(&text))
    }

    fn sqlx_failed(&self, doing: &'static str, error: sqlx::Error) -> StoreError {
        let target = self.target.to_string();
        let code = error.as_database_error().and_then(|database| database.code()).map(String::from);
        match (&error, code) {
            (_, Some(code)) => translate_code(&code, target, doing, error.into()),
            (sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut, None) => {
                StoreError::Unavailable { target, source: error.into() }
            }
            _ => StoreError::Unexpected { doing, source: error.into() },
        }
    }
}
