//! Random scripts against both stores. `LANEWAY_SEED` adds a seed, `LANEWAY_MODEL_OPS` sets the length.
//!
//! SQLite runs a few long scripts, PostgreSQL many short ones.

use laneway_testkit::model::{check, operations, seed_of_environment};

/// One test per store and seeds, so that they run side by side and fail on their own.
macro_rules! seeds {
    ($($store:ident, $length:literal { $($name:ident: $seed:expr,)* })*) => {
        $(mod $store {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                for seed in $seed {
                    check(seed, operations($length), laneway_testkit::$store::fresh).await;
                }
            })*
        })*
    };
}

seeds! {
    sqlite, 1_500 {
        seed_1: [1],
        seed_2: [2],
        seed_3: [3],
        seed_4: [4],
        seed_5: [5],
        seed_of_the_environment: seed_of_environment().into_iter(),
    }
    postgres, 50 {
        seeds_1_to_3: 1..=3,
        seeds_4_to_6: 4..=6,
        seeds_7_to_9: 7..=9,
        seed_of_the_environment: seed_of_environment().into_iter(),
    }
}
