//! Kernels that can stop half-way and go on from there: a pass over PTX.
//!
//! A kernel is marked where it may stop (`#pragma CPT`, which reaches PTX as `.pragma "cpt …"`). [`rewrite()`] makes each marker a poll of a stop flag, behind which threads that are
//! to stop save what is live there and leave; the kernel's beginning tells blocks that have not begun, that are half-way and that are done apart, so that the same kernel, launched
//! again with the same arguments, goes on where every thread was. What is saved lies in memory that a [`context`] names. (`docs/in-kernel.md`)

#![forbid(unsafe_code)]

mod additions;
pub mod context;
mod control;
mod frame;
mod graph;
mod grid;
mod group;
mod inline;
mod lasting;
mod marker;
mod names;
mod pointer;
mod poll;
mod refusal;
mod rewrite;
mod uniform;

pub use frame::{Cell, Frame, Site};
pub use group::Group;
pub use marker::is_marked;
pub use names::in_source;
pub use pointer::Pointer;
pub use poll::{Poll, UnknownPoll};
pub use refusal::{Reason, Refusal};
pub use rewrite::{Kernel, Rewritten, identity, rewrite, rewrite_with};
