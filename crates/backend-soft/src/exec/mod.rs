//! Executes pre-decoded functions: lanes, warps, blocks.

mod access;
mod barrier;
mod block;
mod call;
mod compute;
mod copies;
mod fault;
mod inst;
mod lanes;
mod launch;
mod rows;
mod spaces;
mod textures;
mod together;
mod warp;
mod words;

pub use access::{IN_FRAME, NARROW, atomic, load, store};
pub use block::{Block, BlockState};
pub use call::Frame;
pub use compute::{Combine, bin, carry, compare, logic, quad, select, ter, un, wide};
pub use copies::{begin, close_group, wait_all, wait_group};
pub use fault::{Fault, FaultKind};
pub use inst::{
    Access, Barrier, BarrierKind, Builtin, CallSite, Callee, Compute, Condition, Function, Inst, Op, Place,
    Reduce, Shuffle, Together, Vote,
};
pub use lanes::Lanes;
pub use launch::{Image, Launch, grid_id};
pub use rows::{Bfloat, BfloatPair, Elem, Half, HalfPair, LANES, Pred, Row, Slot};
pub use spaces::{GENERIC, GLOBAL, LOCAL, PARAM, SHARED, Space, Spaces};
pub use textures::{
    Geometry, Level, Outside, Query, ROWS, SurfaceAccess, TextureRead, query, surface_load, surface_store,
    texture_read,
};
pub use words::load_words;
