//! Random scripts against both stores. `LANEWAY_SEED` adds a seed, `LANEWAY_MODEL_OPS` sets the length.

use laneway_testkit::model::{check, operations, seed_of_environment};

/// One test per store and seed, so that seeds run side by side and fail on their own.
macro_rules! seeds {
    ($($store:ident { $($name:ident: $seed:expr,)* })*) => {
        $(mod $store {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                if let Some(seed) = $seed {
                    check(seed, operations(1_500), laneway_testkit::$store::fresh).await;
                }
            })*
        })*
    };
}

seeds! {
    sqlite {
        seed_1: Some(1),
        seed_2: Some(2),
        seed_3: Some(3),
        seed_4: Some(4),
        seed_5: Some(5),
        seed_of_the_environment: seed_of_environment(),
    }
    postgres {
        seed_1: Some(1),
        seed_2: Some(2),
        seed_3: Some(3),
        seed_4: Some(4),
        seed_5: Some(5),
        seed_of_the_environment: seed_of_environment(),
    }
}
