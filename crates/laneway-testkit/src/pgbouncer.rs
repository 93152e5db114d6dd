//! A throwaway PgBouncer in transaction mode, in front of a throwaway PostgreSQL.
//!
//! In this mode a connection belongs to a client only while a transaction lasts, so nothing that lives in a
//! session (prepared statements, `set`, `listen`, session advisory locks) can be relied on.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::cluster::{Cluster, ThrowawayError};
use crate::throwaway::{Throwaway, find_program, free_port, path_directories};

const SERVER: &str = "pgbouncer";

/// A running PgBouncer. Dropping it stops it and removes its files.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _throwaway: Throwaway,
}

impl PgBouncer {
    /// Starts one that lets everybody into every database of `cluster`.
    ///
    /// # Errors
    /// When PgBouncer is not installed or does not start.
    pub async fn start(cluster: &Cluster) -> Result<Self, ThrowawayError> {
        let directories =
            path_directories().into_iter().chain(["/usr/sbin".into(), "/opt/homebrew/bin".into()]);
        let program = find_program("pgbouncer", directories)
            .ok_or(ThrowawayError::NotInstalled { program: "PgBouncer", package: "pgbouncer" })?;
        let port = free_port(SERVER)?;
        let throwaway = Throwaway::new(SERVER, "kill $(cat pgbouncer.pid)")?;
        throwaway.write("pgbouncer.ini", &settings(cluster.port(), port, throwaway.directory()))?;
        throwaway.run(&format!("'{}' -q -d pgbouncer.ini", program.display()))?;
        if !listens(port).await {
            throwaway.run("cat pgbouncer.ini; false")?;
        }
        Ok(Self { port, _throwaway: throwaway })
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

fn settings(server_port: u16, port: u16, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n\
         pidfile = {directory}/pgbouncer.pid\nlogfile = {directory}/server.log\n"
    )
}

/// True as soon as somebody listens on `port`; false when nobody does for 10 s.
async fn listens(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if TcpStream::connect(address).await.is_ok() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}
