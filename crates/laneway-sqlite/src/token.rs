//! Tokens of the server. Whether one has expired is told by the store's clock.

use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use laneway_core::{Actor, ActorName, NewToken, Token, TokenHash, TokenId};

use crate::audit::{self, Record};
use crate::error::unreadable;
use crate::row::{self, Sql};
use crate::writer::Step;

const INSERT: &str = "
insert into token (name, scopes, hash, created_at, expires_at)
values (?1, ?2, ?3, ?4, ?5)
returning id";

const LIST: &str = "
select id,
       name,
       scopes,
       hash,
       created_at,
       expires_at,
       coalesce(expires_at <= ?2, 0)
from token
where ?1 is null
   or id = ?1
order by id";

/// Stores a token, which was checked.
pub(crate) fn create(step: &Step<'_>, actor: &Actor, new: &NewToken) -> rusqlite::Result<Token> {
    let expires_at = new.expires_at.map(jiff::Timestamp::as_microsecond);
    let row = params![new.name.as_str(), new.stored_scopes(), new.hash.0, step.now, expires_at];
    let id: i64 = step.db.prepare_cached(INSERT)?.query_row(row, |row| row.get(0))?;
    let after = Some(shown(new.name.as_str(), &new.stored_scopes()));
    let subject = format!("token {id}");
    let record = Record { action: "create_token", subject, tasks: &[], before: None, after };
    audit::record(step, actor, record)?;
    list(step.db, Some(TokenId(id)), step.now)?.pop().ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Removes a token. False when there is none.
pub(crate) fn revoke(step: &Step<'_>, actor: &Actor, id: TokenId) -> rusqlite::Result<bool> {
    let remove = "delete from token where id = ?1 returning name, scopes";
    let read = |row: &Row<'_>| Ok(shown(&row.get::<_, String>(0)?, &row.get::<_, String>(1)?));
    let Some(before) = step.db.first(remove, [id.0], read)? else { return Ok(false) };
    let subject = format!("token {id}");
    let record = Record { action: "revoke_token", subject, tasks: &[], before: Some(before), after: None };
    audit::record(step, actor, record)?;
    Ok(true)
}

/// All tokens, or the one with this number.
pub(crate) fn list(db: &Connection, id: Option<TokenId>, now: i64) -> rusqlite::Result<Vec<Token>> {
    db.all(LIST, params![id.map(|id| id.0), now], |row| {
        Ok(Token {
            id: TokenId(row.get(0)?),
            name: ActorName::new(row.get::<_, String>(1)?).map_err(unreadable)?,
            scopes: Token::scopes_from_stored(row.get_ref(2)?.as_str()?).map_err(unreadable)?,
            hash: TokenHash(row.get(3)?),
            created_at: row::timestamp(row.get(4)?)?,
            expires_at: row.get::<_, Option<i64>>(5)?.map(row::timestamp).transpose()?,
            expired: row.get(6)?,
        })
    })
}

fn shown(name: &str, scopes: &str) -> Value {
    json!({"name": name, "scopes": scopes})
}
