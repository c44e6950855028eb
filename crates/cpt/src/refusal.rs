//! Kernels that cannot be stopped where they are marked.

use ptx::TooComplex;
use ptx::ast::Name;
use thiserror::Error;

use crate::{Group, in_source};

/// A marked kernel that cannot be stopped at its markers, and why: it is run as it is, and a checkpoint waits for its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel {} cannot be stopped half-way: {reason} ({place})", in_source(kernel))]
pub struct Refusal {
    /// The kernel, or the function that has the marker.
    pub kernel: Name,
    /// Where that is.
    pub place: Place,
    /// Why.
    pub reason: Reason,
}

/// Where, and why.
pub(crate) type Refused = (Place, Reason);

/// A place in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the program's source, where the module says so (`-lineinfo`): file and line.
    Source(Box<str>, u32),
    /// In the module, by the marker's number in its function, from 1.
    Marker(usize),
    /// In the module's text: its line, of what is no marker.
    Line(u32),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Source(file, line) => write!(f, "{file}:{line}"),
            Self::Marker(number) => write!(f, "its marker number {number}; -lineinfo tells the line"),
            Self::Line(line) => write!(f, "line {line} of its PTX"),
        }
    }
}

/// Why a kernel cannot be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// Some threads of a group that decides together come to a marker, others do not, or another number of times.
    #[error(
        "not all threads of a {group} come to the marker together, as they have to in a kernel {}; move it out of the branch or loop that depends on the thread",
        group.why()
    )]
    Divergent {
        /// Which.
        group: Group,
    },
    /// The marker is in a function that no kernel is known to call.
    #[error(
        "the marker is in a function that no kernel of the module calls by its name; declare it __forceinline__"
    )]
    InFunction,
    /// A function that has a marker, or calls one that does, calls itself.
    #[error("the function {} calls itself, and comes to a marker", in_source(.0))]
    Recursive(Name),
    /// Its parameters are more than values.
    #[error(
        "the function {} comes to a marker, and takes the address of a parameter, or has one in common with another; declare it __forceinline__",
        in_source(.0)
    )]
    Handed(Name),
    /// A grid stops at its barriers, and the marker says nothing about one.
    #[error(
        "the kernel has barriers of the whole grid (grid.sync()), at which it stops, and the loop of the marker has none; move it into one that has"
    )]
    BesideGrid,
    /// Something is under way, or has a state, that cannot be saved.
    #[error("{0} has a state that cannot be saved")]
    State(&'static str),
    /// It launches kernels.
    #[error(
        "it calls {0}, to launch kernels itself (dynamic parallelism), which go on when it has stopped; launch them from the host"
    )]
    Launches(Box<str>),
    /// A function is called that is not here, or nobody knows which.
    #[error("it calls {}, of which is not known what it does", in_source(.0))]
    Unknown(Box<str>),
    /// The module says that it is older than what is put into it.
    #[error("its PTX is of version {0}, and has to be of 6.2 at least")]
    Version(ptx::ast::Version),
    /// There is no room for another parameter.
    #[error("its parameters leave no room for one more")]
    Parameters,
    /// A sum's carry is handed over a marker.
    #[error("a carry (add.cc) is handed on over the marker")]
    Carry,
    /// A declaration that names too much.
    #[error(
        "its parameters, or its variables in shared or local memory, have no size, or one that no device has"
    )]
    Unsized,
    /// The module is no PTX of 64 bits.
    #[error("its addresses have {0} bits")]
    AddressSize(u32),
    /// It is larger than is looked into.
    #[error(transparent)]
    TooComplex(#[from] TooComplex),
}
