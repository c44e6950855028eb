//! The application's library against a server that is a test. Each test needs a process of its own: `cargo nextest`.

mod arrays;
mod client;
mod dead_server;
mod deferred;
mod exports;
mod fake;
mod fork;
mod graphs;
mod interprocess;
mod managed;
mod no_job;
mod nvml;
mod old_calls;
mod output;
mod sticky;
mod wrap;
