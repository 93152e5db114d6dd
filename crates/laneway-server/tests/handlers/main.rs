//! The ready handlers, against a real HTTP server and real programs.

mod exec;
mod http;
mod support;
