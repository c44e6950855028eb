//! PTX: parse, analyse, rewrite, print.
