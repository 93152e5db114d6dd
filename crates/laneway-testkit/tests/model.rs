//! Random scripts against both stores. `LANEWAY_SEED` adds a seed, `LANEWAY_MODEL_OPS` sets the length.

use laneway_testkit::model::{check, operations, seeds};
use laneway_testkit::{postgres, sqlite};

#[tokio::test]
async fn sqlite_does_what_the_model_allows() {
    for seed in seeds() {
        check(seed, operations(1_500), sqlite::fresh).await;
    }
}

#[tokio::test]
async fn postgres_does_what_the_model_allows() {
    for seed in seeds() {
        check(seed, operations(1_500), postgres::fresh).await;
    }
}
