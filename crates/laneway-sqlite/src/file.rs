//! Opens the file: refuses what is not a store or cannot be one, and sets what every connection needs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use laneway_core::StoreError;

use crate::error::{foreign, is_busy, store_error};
use crate::migrate;

/// How long anybody waits for other processes that hold the file's lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long SQLite itself waits before it tells us that the file is locked.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Versions before this one can corrupt a file in WAL mode (<https://sqlite.org/wal.html#walresetbug>).
const LIBRARY_MIN: i32 = 3_051_003;
/// Statements that a connection keeps prepared; more than we have.
const STATEMENTS_MAX: usize = 256;
/// File systems whose locks cannot be trusted between machines.
const NETWORK_FILE_SYSTEMS: [&str; 8] = ["nfs", "nfs4", "cifs", "smbfs", "smb3", "9p", "afs", "ncpfs"];

/// Opens the connection that writes, and brings the tables up to date.
pub(crate) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    check_library(rusqlite::version_number())?;
    check_place(path)?;
    let shown = shown(path);
    let failed = |error: rusqlite::Error| store_error("open the file", &shown, &error);

    let mut connection = connect(path).map_err(failed)?;
    // Before anything is set: settings like the journal mode are written into the file.
    patiently(|| migrate::owner(&connection)).map_err(failed)?.refuse_strangers(&shown)?;
    if connection.is_readonly("main").map_err(failed)? {
        let source = "the file is opened without the right to write".into();
        return Err(StoreError::ReadOnly { target: shown, source });
    }
    let mode = patiently(|| set_up_writer(&connection)).map_err(failed)?;
    if mode != "wal" {
        let problem =
            format!("SQLite keeps it in `{mode}` mode and not in WAL mode; use a file on a local disk");
        return Err(StoreError::CannotOpen { path: shown, problem });
    }
    migrate::migrate(&mut connection, &shown)?;
    Ok(connection)
}

/// Opens a connection that only reads.
pub(crate) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Copies a store into a new file, in one read transaction.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let cannot = |problem: String| StoreError::CannotOpen { path: shown(to), problem };
    if to.exists() {
        return Err(cannot("a file is there already, and a copy makes a new one".to_owned()));
    }
    let copied = connect(from).and_then(|db| db.execute("vacuum into ?1", [shown(to)]));
    copied.map(drop).map_err(|error| cannot(format!("the copy cannot be written: {error}")))
}

/// The file's name as errors show it.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Repeats `attempt` while another process holds the lock.
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            // Some statements are refused at once and not after the busy timeout, hence the pause.
            Err(error) if is_busy(&error) && started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Plans must not depend on bound values: SQLite would otherwise prepare hot statements anew on every call.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -16_000)?;
    Ok(connection)
}

/// Sets what only the writing connection needs, and returns the journal mode that the file has now.
fn set_up_writer(connection: &Connection) -> rusqlite::Result<String> {
    let mode = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    // Else what a savepoint would undo goes to a temporary file: a fifth of the time of a claim.
    connection.pragma_update(None, "temp_store", "memory")?;
    // In WAL mode anything less can lose the last commits when the power fails.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", 4_000)?;
    connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    Ok(mode)
}

fn check_library(version: i32) -> Result<(), StoreError> {
    if version >= LIBRARY_MIN {
        return Ok(());
    }
    let show =
        |number: i32| format!("SQLite {}.{}.{}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000);
    Err(StoreError::Unsupported { found: show(version), needs: show(LIBRARY_MIN) })
}

/// Says what SQLite would only call "unable to open", and keeps off read-only files even for root.
fn check_place(path: &Path) -> Result<(), StoreError> {
    let cannot = |problem: String| Err(StoreError::CannotOpen { path: shown(path), problem });
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::metadata(directory) {
        Err(error) => return cannot(format!("its directory cannot be used ({error})")),
        Ok(found) if !found.is_dir() => return cannot("its directory is a file".to_owned()),
        Ok(found) if found.permissions().readonly() => {
            return cannot("its directory is not writable".to_owned());
        }
        Ok(_) => (),
    }
    if let Some(kind) = network_file_system(directory) {
        return cannot(format!("it is on a network file system ({kind}), whose locks SQLite cannot trust"));
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => cannot("it is a directory".to_owned()),
        Ok(found) if found.permissions().readonly() => {
            let source = "the file's permissions allow no writing".into();
            Err(StoreError::ReadOnly { target: shown(path), source })
        }
        Ok(found) if !found.is_file() => Err(foreign(&shown(path), "it is not a regular file")),
        _ => Ok(()),
    }
}

/// The kind of the file system that holds `directory`, when it is a network one. `None` also where the system
/// does not tell.
fn network_file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    network_mount(&mounts, &directory)
}

fn network_mount(mounts: &str, directory: &Path) -> Option<String> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?.replace("\\040", " "), words.next()?))
        })
        .filter(|(mount, _)| directory.starts_with(mount))
        // The deepest mount holds the directory; of several at one place the last covers the others.
        .max_by_key(|(mount, _)| mount.len())
        .filter(|(_, kind)| NETWORK_FILE_SYSTEMS.contains(kind))
        .map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_refused() {
        let refused = check_library(3_040_001).unwrap_err();

        assert_eq!(refused.to_string(), "SQLite 3.40.1 is too old; SQLite 3.51.3 or newer is needed");
        assert!(check_library(rusqlite::version_number()).is_ok());
    }

    #[test]
    fn a_network_mount_is_recognised_and_its_neighbour_is_not() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/x /mnt/shared nfs4 rw 0 0\n/dev/vdb /mnt/shared/local xfs rw 0 0\n";

        assert_eq!(network_mount(mounts, Path::new("/mnt/shared/tasks")), Some("nfs4".to_owned()));
        assert_eq!(network_mount(mounts, Path::new("/mnt/shared/local")), None);
        assert_eq!(network_mount(mounts, Path::new("/var/lib")), None);
    }
}
