//! Throwaway PostgreSQL.
//!
//! A [`Cluster`] is a server of its own, made by `initdb` in a temporary directory and reached through a socket in
//! that directory and a random port of 127.0.0.1. It never touches a server that is already running, and it
//! is gone when the test process is gone, however that ends (see `throwaway.rs`).
//!
//! Tests of one process share one server ([`Cluster::shared`]) and get a database each, copied from a template
//! that has been migrated once. Tests that stop the server start a private one ([`Cluster::start`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

pub use crate::throwaway::ThrowawayError;
use crate::throwaway::{Throwaway, find_program, free_port, path_directories};

const SERVER: &str = "postgresql";
const TEMPLATE: &str = "laneway_template";
/// Another process may take the port between our look and the server's start.
const PORTS_TO_TRY: u32 = 5;

/// How a private server is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterOptions {
    durable: bool,
}

impl ClusterOptions {
    /// True: commits reach the disk and `shared_buffers` is 1 GB, as a benchmark needs it. Default: false, since
    /// tests do not survive a power cut anyway.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    fn settings(self, port: u16, sockets: &Path) -> String {
        let durability = if self.durable {
            "shared_buffers = '1GB'"
        } else {
            "fsync = off\nsynchronous_commit = off\nfull_page_writes = off"
        };
        format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             max_connections = 300\nmax_prepared_transactions = 5\ntimezone = 'UTC'\nlog_timezone = 'UTC'\n\
             {durability}\n",
            sockets.display()
        )
    }
}

/// A running throwaway server. Dropping it stops the server and removes its files.
#[derive(Debug)]
pub struct Cluster {
    throwaway: Arc<Throwaway>,
    pg_ctl: String,
    port: u16,
    databases: AtomicU32,
    template: OnceCell<()>,
}

impl Cluster {
    /// The server that all tests of this process share. Started by the first caller.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start; the message says what to do.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                Self::start(ClusterOptions::default()).await.unwrap_or_else(|error| panic!("{error}"))
            })
            .await
    }

    /// Starts a private server.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub async fn start(options: ClusterOptions) -> Result<Self, ThrowawayError> {
        blocking(move || Self::start_blocking(options)).await
    }

    fn start_blocking(options: ClusterOptions) -> Result<Self, ThrowawayError> {
        let programs = find_programs()?;
        let pg_ctl = format!("'{}' -D data -w -t 60", programs.join("pg_ctl").display());
        let throwaway = Throwaway::new(SERVER, &format!("{pg_ctl} -m immediate stop"))?;
        let initdb = |locale: &str| {
            throwaway.run(&format!(
                "'{}' -D data --auth=trust --no-sync --username=postgres --encoding=UTF8 --locale={locale}",
                programs.join("initdb").display()
            ))
        };
        // Some systems do not know `C.UTF-8`.
        initdb("C.UTF-8").or_else(|_| initdb("C"))?;
        throwaway.run("echo \"include '../settings.conf'\" >>data/postgresql.conf")?;

        let mut tries = 1..=PORTS_TO_TRY;
        loop {
            let port = free_port(SERVER)?;
            throwaway.write("settings.conf", &options.settings(port, throwaway.directory()))?;
            match throwaway.run(&format!("{pg_ctl} -l server.log start")) {
                Ok(()) => {
                    return Ok(Self {
                        throwaway: Arc::new(throwaway),
                        pg_ctl,
                        port,
                        databases: AtomicU32::new(0),
                        template: OnceCell::new(),
                    });
                }
                Err(error) if tries.next() == Some(PORTS_TO_TRY) => return Err(error),
                Err(_) => (),
            }
        }
    }

    /// Ends the server at once, as a crash would. Connections break; what was committed stays, unless the
    /// cluster is not durable and the machine goes down as well.
    pub async fn stop_immediately(&self) -> Result<(), ThrowawayError> {
        self.control("-m immediate stop").await
    }

    /// Starts the server again on the same port; one that still runs is ended at once before.
    pub async fn restart(&self) -> Result<(), ThrowawayError> {
        self.control("-l server.log -m immediate restart").await
    }

    async fn control(&self, command: &str) -> Result<(), ThrowawayError> {
        let throwaway = Arc::clone(&self.throwaway);
        let order = format!("{} {command}", self.pg_ctl);
        blocking(move || throwaway.run(&order)).await
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory with the server's files and its socket.
    pub fn directory(&self) -> &Path {
        self.throwaway.directory()
    }

    /// The address of a database over TCP. The user is a superuser without a password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a database over the socket in the server's directory.
    pub fn socket_url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&port={}&user=postgres", self.directory().display(), self.port)
    }

    /// A new database with Laneway's tables, copied from a template that was migrated once.
    pub async fn database(&self) -> Result<Database, ThrowawayError> {
        self.template.get_or_try_init(|| self.make_template()).await?;
        self.create_database(&format!("template {TEMPLATE}")).await
    }

    /// A new database without Laneway's tables.
    pub async fn empty_database(&self) -> Result<Database, ThrowawayError> {
        self.create_database("").await
    }

    async fn make_template(&self) -> Result<(), ThrowawayError> {
        let admin = connect(&self.url("postgres")).await?;
        // A first try may have been dropped half-way.
        admin.batch_execute(&format!("drop database if exists {TEMPLATE} with (force)")).await?;
        admin.batch_execute(&format!("create database {TEMPLATE}")).await?;
        crate::postgres::migrate(&self.url(TEMPLATE)).await;
        // A database can be copied only while nobody is connected to it.
        admin.batch_execute(&format!("alter database {TEMPLATE} allow_connections false")).await?;
        let end_all = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
        admin.execute(end_all, &[&TEMPLATE]).await?;
        Ok(())
    }

    async fn create_database(&self, from: &str) -> Result<Database, ThrowawayError> {
        let name = format!("laneway_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&self.url("postgres")).await?;
        let statement = format!("create database {name} {from}");
        // A backend that was told to end, and autovacuum, may take a moment to leave the template.
        let mut patience = (1..=100).map(|_| Duration::from_millis(20));
        loop {
            match admin.batch_execute(&statement).await {
                Ok(()) => return Ok(self.handle(name)),
                Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => match patience.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error.into()),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle(&self, name: String) -> Database {
        Database { url: self.url(&name), socket_url: self.socket_url(&name), name }
    }
}

/// A database of a throwaway server. It goes when the server goes.
#[derive(Clone, Debug)]
pub struct Database {
    /// Its name.
    pub name: String,
    /// Its address over TCP.
    pub url: String,
    /// Its address over the socket.
    pub socket_url: String,
}

impl Database {
    /// A plain connection. It ends when the client is dropped or the runtime ends.
    pub async fn connect(&self) -> Result<Client, ThrowawayError> {
        connect(&self.url).await
    }
}

async fn connect(url: &str) -> Result<Client, ThrowawayError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client; what goes wrong with the connection shows at the client's next call.
    tokio::spawn(connection);
    Ok(client)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("servers are started without panics")
}

/// The directory of the newest installed `initdb`, `pg_ctl` and `postgres`.
fn find_programs() -> Result<PathBuf, ThrowawayError> {
    let installed = versioned("/usr/lib/postgresql", "")
        .into_iter()
        .chain(versioned("/usr", "pgsql-"))
        .chain(["/opt/homebrew/bin".into(), "/usr/local/bin".into(), "/usr/local/pgsql/bin".into()]);
    let initdb = find_program("initdb", path_directories().into_iter().chain(installed));
    initdb
        .and_then(|program| program.parent().map(Path::to_owned))
        .ok_or(ThrowawayError::NotInstalled { program: "PostgreSQL (initdb)", package: "postgresql" })
}

/// The `bin` directories below `parent` whose names are `prefix` and a version, newest first.
fn versioned(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}
