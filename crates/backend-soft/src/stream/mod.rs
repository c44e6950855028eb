//! Streams: work in order, on a thread of its own for each stream.
//!
//! All of CUDA's ordering rules become one: a piece of work waits for *tickets* taken when it was submitted. A ticket is a
//! stream and a number, complete when that stream has done that many pieces. Tickets only point backwards, so nothing waits in a
//! circle.

mod context;
mod event;
mod interprocess;
mod operations;
mod queue;
mod work;

pub use context::Context;
pub use event::{Event, Record};
pub use interprocess::{Interprocess, Signal};
pub use operations::validate as validate_operations;
pub use queue::{Stream, Ticket};
pub use work::{Choice, Copy3, Side, Work};
