//! The stores: the behaviours of both, what is special of one, random scripts, and what happens when much happens at once.
//!
//! One program, so that it is linked once and its tests share one PostgreSQL server. A part of it: `cargo test -p laneway-testkit
//! --test stores -- postgres::traps`.

mod cluster;
mod concurrency;
mod model;
mod postgres;
mod processes;
mod support;

/// The behaviours of every store, on PostgreSQL.
mod suite_on_postgres {
    laneway_testkit::store_suite!(laneway_testkit::postgres::fresh());
}

/// The behaviours of every store, on SQLite.
mod suite_on_sqlite {
    laneway_testkit::store_suite!(laneway_testkit::sqlite::fresh());
}
