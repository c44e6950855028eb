//! PTX text: parsed, printed, analysed and linked.

mod common;
mod errors;
mod linking;
mod liveness;
mod properties;
mod roundtrip;
