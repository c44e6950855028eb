//! Runs guests (CUDA programs that know nothing of Dormouse) on a device, disturbs them, and compares what they print.
//!
//! The same body runs in CI on the software device and on a real GPU: [`suite::Suite`] takes each guest of
//! [`manifest::Manifest`] through each [`scenario::Scenario`], at moments drawn from a [`seed::Seed`], and holds every
//! run against the [`reference::Reference`]. Everything is done through the `dormouse` command, as a user would.

pub mod capture;
pub mod cost;
pub mod job;
pub mod kit;
pub mod manifest;
pub mod network;
pub mod outcome;
pub mod place;
pub mod proxy;
pub mod rdmacm;
pub mod reference;
pub mod s3;
pub mod scenario;
pub mod seed;
pub mod served;
pub mod suite;
pub mod tree;
