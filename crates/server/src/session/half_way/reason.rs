//! Why marked kernels are launched as they are.

use crate::failure::Failure;

/// Why a marked kernel is launched as it is, and a checkpoint waits for its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum AsItIs {
    /// The twin is not launched with the attributes of the launch, or not without others.
    #[error("{0}")]
    Attributes(String),
    /// Which of them are done takes more memory than there is for that.
    #[error("which of its {0} threads are done cannot be kept; launch smaller grids")]
    Threads(u64),
    /// The twin takes more registers.
    #[error(
        "no block of {0} threads fits on the device in the form that can be stopped, which takes more registers; \
         launch smaller blocks, or declare it __launch_bounds__({0})"
    )]
    Block(u64),
    /// Its blocks may wait for one another, and not all of them are there, or can stop, at a time.
    #[error(
        "all of its {blocks} blocks are on the device at a time, and may wait for one another; in the form that can be \
         stopped, which takes more registers and memory for what is saved, {room} are; launch no more than that, \
         or declare it __launch_bounds__ with the threads of a block and the blocks of a multiprocessor"
    )]
    Grid {
        /// Blocks of the launch.
        blocks: u64,
        /// How many of the twin's there is room for.
        room: u64,
    },
    /// The device is full.
    #[error("{0} bytes of device memory for what is saved of it are not there; leave some free")]
    Memory(u64),
    /// What is given to the stream meanwhile would come behind it in part.
    #[error(
        "another thread of the program has work of the same stream in hand; launch it in a stream of its own"
    )]
    Beside,
    /// The device library does not take what it takes to stop it.
    #[error("it cannot be launched such that it can be stopped: {0}")]
    Refused(Failure),
}

impl From<Failure> for AsItIs {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}
