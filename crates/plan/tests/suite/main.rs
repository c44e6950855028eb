//! The planner against slower ways to the same answers.
#![allow(clippy::unwrap_used)]

mod optimal;
mod support;
