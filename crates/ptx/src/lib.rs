//! PTX: parse, analyse, rewrite, print.

#![forbid(unsafe_code)]

pub mod ast;
