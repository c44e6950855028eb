//! Where and when to checkpoint.
//!
//! A [`profile`](profile::Profile) says what a run of a program had at each kernel boundary: how much was live, what the processor did meanwhile. Out of it
//! and of how often machines fail comes a plan: the boundaries at which checkpoints cost least and still are close enough to each other.
//!
//! In the order data flows: [`units`], [`profile`] (of [`runs`], in a [`format`](mod@format)), [`cost`], [`model`] (what is asked for), [`path`]
//! and [`offset`] (how it is found), `incremental` and [`expected`] (other objectives), [`planfile`](mod@planfile) (the answer),
//! [`simulate`] (what it is worth), [`online`] (the same while the program runs, without a profile), [`chart`]. Before it a program runs that is
//! recorded ([`record`], [`live`]); after it one that is recognised ([`follow`]).
//!
//! `docs/planning.md` says when which model is right.

pub mod chart;
pub mod cost;
mod error;
pub mod expected;
pub mod follow;
pub mod format;
mod incremental;
pub mod live;
pub mod model;
pub mod offset;
pub mod online;
pub mod path;
pub mod planfile;
pub mod profile;
pub mod record;
mod replace;
pub mod runs;
pub mod simulate;
pub mod synthetic;
pub mod units;
mod window;

pub use error::Error;
pub use replace::replace;
