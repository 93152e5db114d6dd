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
    postgres, 140 {
        seeds_1_to_8: 1..=8,
        seeds_9_to_16: 9..=16,
        seeds_17_to_25: 17..=25,
        seed_of_the_environment: seed_of_environment().into_iter(),
    }
}
