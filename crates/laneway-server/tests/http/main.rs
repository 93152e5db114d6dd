//! A real server on a random port, and clients of plain sockets.

mod access;
mod bad_input;
mod base_path;
mod client;
mod counted;
mod documents;
mod families;
mod metrics;
mod monitoring;
mod outage;
mod remote;
mod routes;
mod settings;
mod stream;
mod surface;
mod tasks;

/// Makes a test of each function for either store. Each gets a store of its own, whose invariants are checked afterwards.
#[macro_export]
macro_rules! on_both_stores {
    ($($test:ident,)*) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let store = laneway_testkit::sqlite::fresh().await;
                super::$test(&store).await;
                store.check().await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let store = laneway_testkit::postgres::fresh().await;
                super::$test(&store).await;
                store.check().await;
            })*
        }
    };
}
