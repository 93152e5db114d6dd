//! The behaviours of every store, on SQLite.

laneway_testkit::store_suite!(laneway_testkit::sqlite::fresh());
