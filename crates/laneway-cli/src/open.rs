//! The one place where a store is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use laneway::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Statements, StoreHandle};
use laneway_core::{Store, StoreError};
use laneway_server::{RemoteOptions, RemoteStore};
use tracing::debug;

use crate::problem::{Exit, Problem};
use crate::settings::{Origin, Settings};

/// What a command needs from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look or to operate: the store must be there, with its tables.
    Existing,
    /// To put something into it: an SQLite file is made if there is none.
    Filling,
    /// To serve it: listens for hints, and brings PostgreSQL's tables up to date unless the settings say no.
    Serving,
}

/// An open store.
#[derive(Clone)]
pub struct Opened {
    /// As client and worker take it.
    pub handle: StoreHandle,
    /// As the server takes it.
    pub store: Arc<dyn Store>,
    /// Where it is, without a password.
    pub shown: String,
}

impl Opened {
    /// The store for a server that runs beside a worker: on PostgreSQL with connections of its own, so that looks never take
    /// those of the worker. SQLite has one writer, and readers that wait for nobody.
    ///
    /// # Errors
    /// When it cannot be reached any more.
    pub async fn beside_worker(&self, settings: &Settings) -> Result<Arc<dyn Store>, Problem> {
        match Address::read(settings)? {
            Address::Sqlite(_) => Ok(Arc::clone(&self.store)),
            Address::Postgres(url) => {
                let options = postgres_options(settings, url)?;
                let connections = settings.whole("store.ui_pool_size").unwrap_or(2) as usize;
                let options = options.pool_size(connections).hints(false).migrate(false);
                Ok(Arc::new(PostgresStore::open(options).await?))
            }
        }
    }
}

/// An address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Address {
    /// Reads the address that the settings name.
    ///
    /// # Errors
    /// `invalid_address` when it begins like neither.
    pub fn read(settings: &Settings) -> Result<Self, Problem> {
        let text = settings.text("store.url")?.unwrap_or_default();
        if let Some(path) = text.strip_prefix("sqlite:") {
            return Ok(Self::Sqlite(base(settings, path).join(path)));
        }
        if ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme))
            || text.contains("host=")
        {
            return Ok(Self::Postgres(text));
        }
        let problem = "store.url begins neither with postgres:// nor with sqlite:; write postgres://host/database or sqlite:FILE";
        Err(StoreError::Address { problem: problem.into() }.into())
    }

    /// The address as people may see it.
    pub fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => {
                let here = std::env::current_dir().ok();
                let path = here
                    .and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned))
                    .unwrap_or(path.clone());
                format!("{} (SQLite)", path.display())
            }
            Self::Postgres(url) => without_password(url),
        }
    }
}

/// What a relative SQLite file is relative to: the file that names it, the directory that has a `.laneway` already, or the
/// working directory.
fn base(settings: &Settings, path: &str) -> PathBuf {
    let first =
        Path::new(path).components().next().map(|part| part.as_os_str().to_owned()).unwrap_or_default();
    match &settings.value("store.url").origin {
        Origin::File { path, .. } => path.parent().unwrap_or(Path::new(".")).to_owned(),
        Origin::Default => {
            let mut above = settings.working().ancestors();
            above.find(|directory| directory.join(&first).is_dir()).unwrap_or(settings.working()).to_owned()
        }
        _ => settings.working().to_owned(),
    }
}

/// An address whose password is not shown: `postgres://user:***@host/database`.
pub fn without_password(url: &str) -> String {
    let hidden = |text: &str| match text.split_once(':') {
        Some((user, _)) => format!("{user}:***"),
        None => text.to_owned(),
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        let part = |part: &str| {
            if part.starts_with("password=") { "password=***".to_owned() } else { part.to_owned() }
        };
        return url.split(' ').map(part).collect::<Vec<_>>().join(" ");
    };
    let rest = match rest.split_once('?') {
        Some((place, options)) => {
            let option = |option: &str| {
                if option.starts_with("password=") { "password=***".to_owned() } else { option.to_owned() }
            };
            format!("{place}?{}", options.split('&').map(option).collect::<Vec<_>>().join("&"))
        }
        None => rest.to_owned(),
    };
    match rest.rsplit_once('@') {
        Some((user, place)) => format!("{scheme}://{}@{place}", hidden(user)),
        None => format!("{scheme}://{rest}"),
    }
}

/// Opens the store that the settings name, or the one behind the server that they name.
///
/// # Errors
/// When it cannot be reached, or does not fit this program. A server is not called before it is needed.
pub async fn open(settings: &Settings, purpose: Purpose) -> Result<Opened, Problem> {
    if let Some(url) = settings.server()? {
        return remote(url, settings.text("server.token")?);
    }
    let address = Address::read(settings)?;
    let shown = address.shown();
    debug!(store = shown, ?purpose, "opening the store");
    match address {
        Address::Sqlite(path) => sqlite(&path, purpose).await.map(|store| {
            let store: Arc<dyn Store> = Arc::new(store);
            Opened { handle: Arc::clone(&store).into(), store, shown }
        }),
        Address::Postgres(url) => postgres(settings, url, purpose).await.map(|store| Opened {
            handle: store.clone().into(),
            store: Arc::new(store),
            shown,
        }),
    }
}

fn remote(url: &str, token: Option<String>) -> Result<Opened, Problem> {
    let options = RemoteOptions::new(url);
    let store = RemoteStore::new(match token {
        Some(token) => options.token(token),
        None => options,
    })?;
    let shown = format!("{} (Laneway server)", store.url());
    debug!(server = shown, "talking to a server");
    let store: Arc<dyn Store> = Arc::new(store);
    Ok(Opened { handle: Arc::clone(&store).into(), store, shown })
}

/// Opens an SQLite store.
///
/// # Errors
/// When it is not there and shall be, or cannot be opened.
pub async fn sqlite(path: &Path, purpose: Purpose) -> Result<SqliteStore, Problem> {
    if purpose == Purpose::Existing && !path.exists() {
        let problem = format!(
            "there is no store at {}; `laneway enqueue` and `laneway dev` make one, --store names another",
            path.display()
        );
        return Err(Problem { code: Some("cannot_open"), ..Problem::new(Exit::Unreachable, problem) });
    }
    // Only the directory that we name ourselves; another one that is missing is probably a mistake.
    if let Some(parent) = path.parent().filter(|parent| parent.ends_with(".laneway") && !parent.exists()) {
        std::fs::create_dir_all(parent).map_err(|error| StoreError::CannotOpen {
            path: parent.display().to_string(),
            problem: error.to_string(),
        })?;
    }
    Ok(SqliteStore::open(SqliteOptions::new(path)).await?)
}

async fn postgres(settings: &Settings, url: String, purpose: Purpose) -> Result<PostgresStore, Problem> {
    let serves = purpose == Purpose::Serving;
    let pool_size = settings.whole("store.pool_size").unwrap_or(8) as usize;
    let options = postgres_options(settings, url)?
        .pool_size(if serves { pool_size } else { pool_size.min(2) })
        .hints(serves && !settings.is("worker.wake", "poll"))
        .migrate(serves && settings.is("store.migrate", "auto"));
    Ok(PostgresStore::open(options).await?)
}

/// Where it is, whatever it is for.
fn postgres_options(settings: &Settings, url: String) -> Result<PostgresOptions, Problem> {
    let statements = match settings.text("store.statements")?.as_deref() {
        Some("named") => Statements::Named,
        Some("unnamed") => Statements::Unnamed,
        _ => Statements::Auto,
    };
    let options = PostgresOptions::new(url)
        .schema(settings.text("store.schema")?.unwrap_or_default())
        .statements(statements);
    Ok(match settings.text("store.direct_url")? {
        Some(direct) => options.direct_url(direct),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("postgres://ann:secret@db/app", "postgres://ann:***@db/app"),
            ("postgres://ann:se@cret@db/app", "postgres://ann:***@db/app"),
            ("postgres://db/app?user=ann&password=secret", "postgres://db/app?user=ann&password=***"),
            ("host=db user=ann password=secret", "host=db user=ann password=***"),
            ("postgres://db/app", "postgres://db/app"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
