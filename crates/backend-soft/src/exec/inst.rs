//! The pre-decoded form of a function.

use std::sync::Arc;

use super::{Fault, Lanes, Pred, Row, Slot};

/// Computes on all lanes of a mask; cannot fail.
///
/// # Safety
/// The instruction belongs to the function of the frame that the lanes are in.
pub type Compute = unsafe fn(&mut Lanes, &Inst, u32);

/// Accesses memory for all lanes of a mask.
///
/// # Safety
/// As for [`Compute`].
pub type Access = unsafe fn(&mut Lanes, &Inst, u32) -> Result<(), Box<Fault>>;

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Arithmetic and moves.
    Compute(Compute),
    /// Loads, stores, atomics.
    Access(Access),
    /// Goes to an instruction of the function.
    Branch(u32),
    /// Goes where the index in the first source says, in one of the function's tables.
    BranchIndexed(u32),
    /// One of the function's call sites.
    Call(u32),
    /// Leaves the frame; in a kernel, the thread.
    Return,
    /// Ends the thread.
    Exit,
    /// Ends the kernel with an error.
    Trap,
    /// Waits for other threads of the block.
    Barrier(Barrier),
    /// Waits for other lanes of the warp, then does something with them.
    Together(Together),
    /// Lets others run.
    Yield,
}

/// What a barrier instruction does. The barrier's number is the first source; the thread count, if any, the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Whether a thread count is given.
    pub counted: bool,
    /// What comes of it.
    pub kind: BarrierKind,
}

/// What comes of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// Arrives without waiting.
    Arrive,
    /// Waits.
    Sync,
    /// Waits and counts the threads whose predicate is true.
    Popc,
    /// Waits and tells whether all predicates are true.
    And,
    /// Waits and tells whether any predicate is true.
    Or,
}

/// What the lanes of a warp do together. The member mask is the last source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// `bar.warp.sync`
    Sync,
    /// `shfl.sync`
    Shuffle(Shuffle),
    /// `vote.sync`
    Vote(Vote),
    /// `match.any.sync`
    MatchAny {
        /// Whether values have 64 bits.
        wide: bool,
    },
    /// `match.all.sync`
    MatchAll {
        /// Whether values have 64 bits.
        wide: bool,
    },
    /// `redux.sync`
    Reduce(Reduce),
    /// `elect.sync`
    Elect,
}

/// What `redux.sync` computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduce {
    Add,
    MinSigned,
    MaxSigned,
    MinUnsigned,
    MaxUnsigned,
    And,
    Or,
    Xor,
}

/// The lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What a vote tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// A predicate as an operand, possibly complemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The predicate.
    pub pred: Pred,
    /// Whether it is complemented.
    pub negated: bool,
}

impl Condition {
    /// Always true.
    pub const ALWAYS: Condition = Condition { pred: Pred::TRUE, negated: false };
}

/// A pre-decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// Lanes for which it is executed.
    pub guard: Condition,
    /// Destinations.
    pub d: [Slot; 4],
    /// Sources.
    pub s: [Slot; 4],
    /// Predicate destinations.
    pub p: [Pred; 2],
    /// Predicate sources.
    pub c: [Condition; 2],
    /// An offset or a selector.
    pub imm: u64,
    /// How a memory access makes its address of `s[0]` and `imm`.
    pub mode: u8,
    /// Elements of a memory access.
    pub width: u8,
    /// Line of the PTX text.
    pub line: u32,
}

impl Inst {
    /// The source of a store's element: stores have no destinations, so the values lie in their place.
    #[inline(always)]
    pub fn stored(&self, element: usize) -> Slot {
        self.d[element]
    }
}

/// Where a value that is passed to or from a function lies in the local memory of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the frame's start, bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// What a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee {
    /// A function of the image, by index.
    Direct(usize),
    /// The function whose address is in the slot.
    Indirect(Slot),
    /// A function of the device itself.
    Builtin(Builtin),
}

/// Functions that the device provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// `vprintf(format, arguments)`
    Vprintf,
    /// `__assertfail(message, file, line, function, size)`
    AssertFail,
    /// `cudaGraphSetConditional(handle, value)`
    SetConditional,
}

/// A call.
#[derive(Clone, Debug)]
pub struct CallSite {
    /// What is called.
    pub callee: Callee,
    /// Arguments, in the caller's frame.
    pub args: Vec<Place>,
    /// Results, in the caller's frame.
    pub returns: Vec<Place>,
}

/// A function ready to run.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: Arc<str>,
    /// Its code; the last instruction does not fall through.
    pub code: Vec<Inst>,
    /// Rows of its frame.
    pub rows: usize,
    /// Predicates of its frame, [`Pred::RESERVED`] included.
    pub preds: usize,
    /// Rows that hold its constants.
    pub consts: Vec<Row>,
    /// Local memory of its frame, bytes: parameters, results, variables.
    pub local_bytes: u64,
    /// Parameters, in its frame (of a kernel: in the parameter buffer).
    pub params: Vec<Place>,
    /// Results, in its frame.
    pub returns: Vec<Place>,
    /// Its calls.
    pub calls: Vec<CallSite>,
    /// Its branch tables.
    pub tables: Vec<Vec<u32>>,
}
