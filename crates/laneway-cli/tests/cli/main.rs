//! The real program, as people and scripts use it: commands go through a shell, and outputs are compared whole.

mod bad_input;
mod bench;
mod config;
mod daemons;
mod demo;
mod docs;
mod enqueue;
mod families;
mod help;
mod live;
mod newcomer;
mod operate;
mod remote;
mod restart;
mod support;
mod tasks;
