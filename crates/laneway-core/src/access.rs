//! Who may use a store over the network: tokens and what they allow.
//!
//! A store keeps a token's number, name, scopes and the SHA-256 of its secret, never the secret. Making, showing and
//! comparing secrets is the server's part.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::ActorName;
use crate::validate::{self, Code, InvalidInput};

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// Looking.
    Read,
    /// Storing tasks.
    Enqueue,
    /// What operators do, and looking.
    Operate,
    /// Running tasks.
    Work,
    /// Everything, tokens included.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Read, Self::Enqueue, Self::Operate, Self::Work, Self::Admin];

    /// The scope as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Enqueue => "enqueue",
            Self::Operate => "operate",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }

    /// True when who has this scope may do what needs `needed`.
    ///
    /// ```
    /// use laneway_core::Scope;
    ///
    /// assert!(Scope::Operate.allows(Scope::Read));
    /// assert!(!Scope::Enqueue.allows(Scope::Read));
    /// assert!(Scope::ALL.into_iter().all(|scope| Scope::Admin.allows(scope)));
    /// ```
    pub fn allows(self, needed: Self) -> bool {
        self == needed || self == Self::Admin || (self == Self::Operate && needed == Self::Read)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or_else(|| {
            let allowed = Self::ALL.map(Self::as_str).join(", ");
            let problem = format!("`{}` is unknown; one of: {allowed}", text.escape_debug());
            InvalidInput::new(Code::InvalidName, "scope", problem)
        })
    }
}

/// The number of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub i64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The SHA-256 of a token's secret. Not shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The hash of a token that came without one: nothing is known whose SHA-256 is all zeroes.
    fn unknown() -> Self {
        Self([0; 32])
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

/// A token that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Who uses it: what it does is in the audit under this name.
    pub name: ActorName,
    /// What it allows: at least one.
    pub scopes: Vec<Scope>,
    /// The hash of its secret.
    pub hash: TokenHash,
    /// When it ceases to be valid. Never, if none is given.
    pub expires_at: Option<Timestamp>,
}

impl NewToken {
    /// Checks that it allows something.
    ///
    /// # Errors
    /// `out_of_range` without a scope, `time_out_of_range` for an expiry before 2000 or over five years ahead.
    pub fn check(&self) -> Result<(), InvalidInput> {
        if self.scopes.is_empty() {
            let allowed = Scope::ALL.map(Scope::as_str).join(", ");
            let problem = format!("is empty; give at least one of: {allowed}");
            return Err(InvalidInput::new(Code::OutOfRange, "scopes", problem));
        }
        let Some(expires_at) = self.expires_at else { return Ok(()) };
        validate::due_time(expires_at, Timestamp::now()).map_err(|refused| {
            let message = format!("expires_at {}", refused.message.trim_start_matches("due "));
            InvalidInput { field: "expires_at", message, ..refused }
        })
    }

    /// Its scopes as stores keep them: each once, in order, with commas.
    pub fn stored_scopes(&self) -> String {
        let named = Scope::ALL.into_iter().filter(|scope| self.scopes.contains(scope));
        named.map(Scope::as_str).collect::<Vec<_>>().join(",")
    }
}

/// A token as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its number.
    pub id: TokenId,
    /// Who uses it.
    pub name: ActorName,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// The hash of its secret. As JSON a token has none, and is read with one that no secret has.
    #[serde(skip, default = "TokenHash::unknown")]
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ceases to be valid.
    pub expires_at: Option<Timestamp>,
    /// True when that time has come, by the store's clock.
    pub expired: bool,
}

impl Token {
    /// True when it may do what needs `needed`, as long as it is valid.
    pub fn allows(&self, needed: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.allows(needed))
    }

    /// The scopes that a store kept.
    ///
    /// # Errors
    /// When it is not what [`NewToken::stored_scopes`] gave.
    pub fn scopes_from_stored(text: &str) -> Result<Vec<Scope>, InvalidInput> {
        text.split(',').map(str::parse).collect()
    }
}
