//! The behaviours of every store, on PostgreSQL.

laneway_testkit::store_suite!(laneway_testkit::postgres::fresh());
