//! Tokens of the server: each verb is one call of a function in `token.sql`.

use laneway_core::{Actor, NewToken, StoreError, Token, TokenHash, TokenId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::advance::stored_name;
use crate::store::{Parameter, PostgresStore};

impl PostgresStore {
    pub(crate) async fn store_token(&self, actor: &Actor, new: NewToken) -> Result<Token, StoreError> {
        new.check()?;
        let call = "create_token(p_who => $1, p_reason => $2, p_name => $3, p_scopes => $4, p_hash => $5, \
                    p_expires_at => $6)";
        let parameters: &[Parameter<'_>] = &[
            (&actor.who.as_str(), Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&new.name.as_str(), Type::TEXT),
            (&new.stored_scopes(), Type::TEXT),
            (&new.hash.0.as_slice(), Type::BYTEA),
            (&new.expires_at, Type::TIMESTAMPTZ),
        ];
        token(&self.call("create a token", call, parameters).await?[0])
    }

    pub(crate) async fn remove_token(&self, actor: &Actor, id: TokenId) -> Result<bool, StoreError> {
        let call = "revoke_token(p_who => $1, p_reason => $2, p_id => $3)";
        let parameters: &[Parameter<'_>] =
            &[(&actor.who.as_str(), Type::TEXT), (&actor.reason, Type::TEXT), (&id.0, Type::INT8)];
        Ok(self.call("revoke a token", call, parameters).await?[0].get(0))
    }

    /// All tokens, or the one with this number.
    pub(crate) async fn list_tokens(&self, id: Option<TokenId>) -> Result<Vec<Token>, StoreError> {
        let id = id.map(|id| id.0);
        let rows = self.call("list tokens", "list_tokens(p_id => $1)", &[(&id, Type::INT8)]).await?;
        rows.iter().map(token).collect()
    }
}

fn token(row: &Row) -> Result<Token, StoreError> {
    let hash = row.get::<_, &[u8]>("hash").try_into();
    let hash =
        hash.map_err(|error| StoreError::Unexpected { doing: "read a token", source: Box::new(error) })?;
    Ok(Token {
        id: TokenId(row.get("id")),
        name: stored_name(row.get("name")),
        scopes: Token::scopes_from_stored(row.get("scopes"))?,
        hash: TokenHash(hash),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        expired: row.get("expired"),
    })
}
