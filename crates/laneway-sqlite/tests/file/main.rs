//! The store in one SQLite file: opening it, sharing it, each verb, and random commands.

mod opening;
mod random;
mod sharing;
mod support;
mod verbs;
