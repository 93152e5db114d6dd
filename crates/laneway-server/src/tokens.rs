//! Tokens: made once, shown once, kept as a hash.
//!
//! A token reads `lw_<number>_<secret>`. The secret is 32 random bytes; the store has only its SHA-256. The number finds the
//! row, the hash is compared in a time that does not depend on where it differs.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use laneway_core::{Actor, ActorName, NewToken, Scope, Store, StoreError, Token, TokenHash, TokenId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A token that was seen is believed for this long: how late a revocation may come.
const BELIEVED_FOR: Duration = Duration::from_secs(2);

/// A token that was just made.
#[derive(Clone, Debug)]
pub struct Issued {
    /// What the store keeps.
    pub token: Token,
    /// What its user sends: `Authorization: Bearer lw_…`. It cannot be shown again.
    pub text: String,
}

/// What a new token shall be.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// Who uses it: what it does is in the audit under this name.
    pub name: ActorName,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it ceases to be valid.
    pub expires_at: Option<Timestamp>,
}

/// Makes a token.
///
/// ```
/// use laneway::SqliteStore;
/// use laneway::core::{Actor, ActorName, Scope};
/// use laneway_server::tokens::{TokenRequest, issue};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = SqliteStore::temporary().await?;
/// let request = TokenRequest { name: ActorName::new("grafana")?, scopes: vec![Scope::Read], expires_at: None };
/// let issued = issue(&store, &Actor::program(), request).await?;
/// assert!(issued.text.starts_with("lw_1_"));
/// # Ok(()) }
/// ```
///
/// # Errors
/// What [`NewToken::check`] refuses, and what keeps the store from storing it.
pub async fn issue(store: &dyn Store, actor: &Actor, request: TokenRequest) -> Result<Issued, StoreError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| StoreError::Unexpected { doing: "make a secret", source: error.into() })?;
    let secret = hex(&secret);
    let TokenRequest { name, scopes, expires_at } = request;
    let token = store.create_token(actor, NewToken { name, scopes, hash: hash(&secret), expires_at }).await?;
    let text = format!("lw_{}_{secret}", token.id);
    Ok(Issued { token, text })
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// The 32 bytes that 64 hexadecimal digits stand for.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn hash(secret: &str) -> TokenHash {
    TokenHash(Sha256::digest(secret.as_bytes()).into())
}

/// Knows tokens that were seen lately, so that not every request asks the store.
#[derive(Default)]
pub(crate) struct Seen(Mutex<HashMap<TokenId, (Token, Instant)>>);

impl Seen {
    /// The token that a text stands for; none when it is not one of ours, was revoked or has expired.
    pub(crate) async fn find(&self, store: &dyn Store, text: &str) -> Result<Option<Token>, StoreError> {
        let Some((id, secret)) = parts(text) else { return Ok(None) };
        let token = match self.known(id) {
            Some(token) => Some(token),
            None => self.ask(store, id).await?,
        };
        let is_it = |token: &Token| bool::from(token.hash.0.ct_eq(&hash(secret).0)) && !token.expired;
        Ok(token.filter(is_it))
    }

    fn known(&self, id: TokenId) -> Option<Token> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, at) = seen.get(&id)?;
        (at.elapsed() < BELIEVED_FOR).then(|| token.clone())
    }

    async fn ask(&self, store: &dyn Store, id: TokenId) -> Result<Option<Token>, StoreError> {
        let found = store.token(id).await?;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &found {
            Some(token) => drop(seen.insert(id, (token.clone(), Instant::now()))),
            None => drop(seen.remove(&id)),
        }
        Ok(found)
    }
}

/// The number and the secret of a token's text.
fn parts(text: &str) -> Option<(TokenId, &str)> {
    let (id, secret) = text.strip_prefix("lw_")?.split_once('_')?;
    Some((TokenId(id.parse().ok()?), secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_as_they_are_written() {
        let bytes: [u8; 32] = std::array::from_fn(|place| place as u8 * 8);
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
        for text in ["", "0", &"0".repeat(63), &"+1".repeat(32), &"é".repeat(32)] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_looks_like_a_token_is_looked_up() {
        assert_eq!(parts("lw_17_abc"), Some((TokenId(17), "abc")));
        for text in ["", "lw_", "lw_x_abc", "lw_17", "17_abc", "Bearer lw_17_abc"] {
            assert_eq!(parts(text), None, "{text}");
        }
    }
}
