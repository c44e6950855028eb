//! What can go wrong while a kernel runs.

use std::sync::Arc;

use wire::CuError;

/// Kinds of execution errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing is there.
    IllegalAddress,
    /// The address is not a multiple of the access's size.
    Misaligned,
    /// An indirect call or branch goes nowhere.
    InvalidPc,
    /// Too many nested calls.
    StackOverflow,
    /// `trap`
    Trap,
    /// `assert` failed; what it said.
    Assert(String),
    /// Every thread of the block waits for another.
    Deadlock,
}

/// An execution error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// The address accessed or jumped to.
    pub address: u64,
    /// `%tid`
    pub thread: Option<[u32; 3]>,
    /// `%ctaid`
    pub block: [u32; 3],
    /// Function and line of the PTX text.
    pub place: Option<(Arc<str>, u32)>,
}

impl Fault {
    /// An error of that kind, of which nothing more is known yet.
    pub fn new(kind: FaultKind, address: u64) -> Self {
        Self { kind, address, thread: None, block: [0; 3], place: None }
    }

    /// What CUDA says of it.
    pub fn code(&self) -> CuError {
        match self.kind {
            FaultKind::IllegalAddress => CuError::ILLEGAL_ADDRESS,
            FaultKind::Misaligned => CuError::MISALIGNED_ADDRESS,
            FaultKind::InvalidPc => CuError::INVALID_PC,
            FaultKind::StackOverflow => CuError::HARDWARE_STACK_ERROR,
            FaultKind::Assert(_) => CuError::ASSERT,
            FaultKind::Trap | FaultKind::Deadlock => CuError::LAUNCH_FAILED,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            FaultKind::IllegalAddress => write!(f, "illegal address {:#x}", self.address)?,
            FaultKind::Misaligned => write!(f, "misaligned address {:#x}", self.address)?,
            FaultKind::InvalidPc => write!(f, "no function or label has the address {:#x}", self.address)?,
            FaultKind::StackOverflow => f.write_str("stack overflow")?,
            FaultKind::Trap => f.write_str("trap")?,
            FaultKind::Assert(message) => write!(f, "assertion failed: {message}")?,
            FaultKind::Deadlock => f.write_str("every thread of the block waits for another")?,
        }
        write!(f, ", block {:?}", self.block)?;
        if let Some(thread) = self.thread {
            write!(f, " thread {thread:?}")?;
        }
        if let Some((function, line)) = &self.place {
            write!(f, ", in {function}, line {line} of the PTX")?;
        }
        Ok(())
    }
}
