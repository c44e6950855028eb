//! PTX: parse, analyse, rewrite, print.
//!
//! [`parse()`] turns the text of a module into the tree of [`ast`]; a tree's `Display` gives text that parses to
//! the same tree. [`Cfg`] and [`Liveness`] tell what an interpreter or a rewriting pass must know of a body.

#![forbid(unsafe_code)]

pub mod ast;
mod bits;
mod cfg;
mod dataflow;
mod error;
mod lexer;
mod link;
mod liveness;
mod parse;
mod print;
mod reach;

pub use bits::BitSet;
pub use cfg::{Block, BlockId, Cfg, TooComplex};
pub use dataflow::Access;
pub use error::{Excerpt, ParseError, ParseErrorKind};
pub use link::{LinkError, link};
pub use liveness::Liveness;
pub use parse::{MAX_TEXT, NEWEST_ISA, parse};
pub use reach::Reach;
