//! How to reach a PostgreSQL store.

use laneway_core::Limits;

use crate::listener::Listener;

/// How statements are sent.
///
/// A good part of a short statement is being parsed and planned, so those of the hot path are worth keeping. A pooler in transaction mode must
/// not be in between, unless it knows about kept statements: it gives every transaction another session, in which they do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Statements {
    /// Kept while a listener at the same address hears what it listens to, which shows that connections are sessions of the server. Sent whole
    /// otherwise: by a program that does not listen for hints, or listens at another address.
    #[default]
    Auto,
    /// Always kept.
    Named,
    /// Always sent whole.
    Unnamed,
}

impl Statements {
    pub(crate) fn are_kept(self, listener: &Listener) -> bool {
        match self {
            Self::Auto => listener.pool_has_sessions(),
            Self::Named => true,
            Self::Unnamed => false,
        }
    }
}

/// Where the store is and how it is used.
///
/// ```
/// use laneway_postgres::PostgresOptions;
///
/// let options = PostgresOptions::new("postgres://db1,db2/app?target_session_attrs=read-write&sslmode=verify-full")
///     .schema("laneway")
///     .pool_size(4);
/// ```
#[derive(Clone)]
pub struct PostgresOptions {
    pub(crate) url: String,
    pub(crate) direct_url: Option<String>,
    pub(crate) statements: Statements,
    pub(crate) schema: String,
    pub(crate) pool_size: usize,
    pub(crate) hints: bool,
    pub(crate) migrate: bool,
    pub(crate) limits: Limits,
}

impl PostgresOptions {
    /// A store at `url`, in libpq's URL or key-value form. Several hosts and `target_session_attrs` work; `sslmode` is
    /// one of disable, prefer, require, verify-ca and verify-full, and `sslrootcert` names a file of PEM certificates.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            direct_url: None,
            statements: Statements::Auto,
            schema: "laneway".into(),
            pool_size: 8,
            hints: true,
            migrate: true,
            limits: Limits::default(),
        }
    }

    /// The address that the listener for hints uses, when `url` leads to a pooler in transaction mode.
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.direct_url = Some(url.into());
        self
    }

    /// Whether the server keeps the statements that are sent over and over. [`Statements::Auto`].
    pub fn statements(mut self, statements: Statements) -> Self {
        self.statements = statements;
        self
    }

    /// The schema that holds the tables. `laneway`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Connections at most, not counting the listener. 8.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Whether to listen for hints. True; without them sleeping workers find work by polling.
    pub fn hints(mut self, hints: bool) -> Self {
        self.hints = hints;
        self
    }

    /// Whether opening creates and updates the tables. True; safe when many processes start at once.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// What input is accepted.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

impl std::fmt::Debug for PostgresOptions {
    // The address may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOptions").field("schema", &self.schema).finish_non_exhaustive()
    }
}
