//! Checks at the start that the server has room for the worker's connections.

use tracing::warn;

use crate::store_handle::StoreHandle;
use crate::worker::WorkerError;

/// The renewing thread and the listener have a connection each.
const BESIDES_THE_POOL: usize = 2;

/// Refuses to start when the server could never give all connections, and warns when it cannot at the moment.
pub(crate) async fn check(store: &StoreHandle) -> Result<(), WorkerError> {
    let Some(postgres) = store.postgres() else { return Ok(()) };
    // A store that cannot be reached now is waited for by the coordinator.
    let Ok(room) = postgres.connection_room().await else { return Ok(()) };
    let needed = room.pool_size + BESIDES_THE_POOL;
    if needed > room.allowed {
        return Err(WorkerError::Connections { needed, allowed: room.allowed });
    }
    let free = room.allowed.saturating_sub(room.used_by_others);
    if needed > free {
        warn!(
            needed,
            free,
            allowed = room.allowed,
            "the server has fewer free connections than the worker may open"
        );
    }
    Ok(())
}
