//! A store as client and worker hold it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use laneway_core::Store;

/// Any store. Made from a [`PostgresStore`](crate::PostgresStore), a [`SqliteStore`](crate::SqliteStore), or an
/// `Arc<dyn Store>`; cheap to clone.
///
/// It remembers when it is PostgreSQL, for what only PostgreSQL can do: enqueue and complete in the caller's own
/// transaction.
#[derive(Clone)]
pub struct StoreHandle {
    store: Arc<dyn Store>,
    #[cfg(feature = "postgres")]
    postgres: Option<laneway_postgres::PostgresStore>,
}

impl StoreHandle {
    /// The PostgreSQL store, if it is one.
    #[cfg(feature = "postgres")]
    pub fn postgres(&self) -> Option<&laneway_postgres::PostgresStore> {
        self.postgres.as_ref()
    }

    pub(crate) fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    pub(crate) fn can_join_transactions(&self) -> bool {
        #[cfg(feature = "postgres")]
        return self.postgres.is_some();
        #[cfg(not(feature = "postgres"))]
        return false;
    }
}

impl Deref for StoreHandle {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreHandle({})", self.store.name())
    }
}

impl From<Arc<dyn Store>> for StoreHandle {
    fn from(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            #[cfg(feature = "postgres")]
            postgres: None,
        }
    }
}

#[cfg(feature = "postgres")]
impl From<laneway_postgres::PostgresStore> for StoreHandle {
    fn from(store: laneway_postgres::PostgresStore) -> Self {
        Self { store: Arc::new(store.clone()), postgres: Some(store) }
    }
}

#[cfg(feature = "sqlite")]
impl From<laneway_sqlite::SqliteStore> for StoreHandle {
    fn from(store: laneway_sqlite::SqliteStore) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        store.into()
    }
}

impl From<&StoreHandle> for StoreHandle {
    fn from(store: &StoreHandle) -> Self {
        store.clone()
    }
}
