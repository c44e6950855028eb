//! What the application and its GPU server say to each other: the vocabulary (ids, facts, errors), the messages, and their
//! codec. The bytes are described in `docs/wire-protocol.md`. This crate does no I/O and trusts nothing it decodes: every
//! length is checked against what is there before anything is allocated.
#![forbid(unsafe_code)]

#[macro_use]
mod record;

mod arrays;
mod codec;
mod facts;
mod graph;
mod greeting;
mod ids;
mod jit;
mod machine;
mod memory_operation;
mod messages;
mod partition;
mod reply;
mod share;
mod textures;

pub use arrays::*;
pub use codec::{DecodeError, Decoder, Encoder, MAX_LIST, Wire};
pub use cuda_abi::CuError;
pub use facts::{
    DeviceFacts, FunctionFacts, ManagedVariable, ManagedVariables, Names, Param, PinnedPlace, SessionFacts,
};
pub use graph::*;
pub use greeting::{GREETING_MAX, Greeting, Question};
pub use ids::*;
pub use jit::is_jit_number;
pub use machine::{GPUS_MAX, Gpu, Machine, Pci, Quantity, Text, uuid};
pub use memory_operation::{MemoryOperation, Until, Word};
pub use messages::*;
pub use partition::*;
pub use reply::{Output, Reply};
pub use share::*;
pub use textures::*;

/// Version of the protocol; both sides refuse any other.
pub const PROTOCOL_VERSION: u32 = 6;

/// Version of what a program asks of its own job, and of the board with the answers. A library that speaks it is linked into programs and
/// outlives this Dormouse: what it means stays, and what is new gets a version of its own beside it.
pub const ASK_VERSION: u32 = 1;
