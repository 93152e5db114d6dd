//! Sending statements.
//!
//! Those of the hot path are the same each time, and a good part of a short one is being parsed and planned. So the server keeps them, where
//! a connection is known to be one session of the server. Behind a pooler in transaction mode it is not: there the name of a kept
//! statement means nothing, or somebody else's statement, and everything is sent whole.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient, Row};

use crate::store::Parameter;

/// Where statements can be sent to.
pub(crate) trait Connection: Sync {
    fn rows(
        &self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// Every connection and transaction: statements are sent whole.
impl<C: GenericClient + Sync> Connection for C {
    async fn rows(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.query_typed(text, parameters).await
    }
}

/// A session of the server, outside of a transaction: it keeps the statements that it is sent.
pub(crate) struct Session<'a>(pub &'a ClientWrapper);

impl Connection for Session<'_> {
    async fn rows(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let types: Vec<Type> = parameters.iter().map(|(_, of)| of.clone()).collect();
        let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        let answer = match self.0.prepare_typed_cached(text, &types).await {
            Ok(statement) => self.0.query(&statement, &values).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if is_outdated(&error) => {
                self.0.statement_cache.remove(text, &types);
                self.0.query_typed(text, parameters).await
            }
            answer => answer,
        }
    }
}

/// True when a kept statement is gone, or a migration has changed what it answers with. It did nothing then.
fn is_outdated(error: &Error) -> bool {
    let states = [
        SqlState::FEATURE_NOT_SUPPORTED, // cached plan must not change result type
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
    ];
    error.code().is_some_and(|state| states.contains(state))
}
