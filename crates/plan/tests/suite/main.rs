//! The planner against slower ways to the same answers, its files, and what it is worth.
#![allow(clippy::unwrap_used)]

mod beyond;
mod files;
mod following;
mod optimal;
mod paper;
mod simulated;
mod support;
mod wishes;
