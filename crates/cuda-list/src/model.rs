//! What the list says, as types.

use std::collections::BTreeSet;

use crate::ctype::CType;

/// The whole list.
#[derive(Debug, Default)]
pub struct List {
    /// Chapters with at least one function, in reading order.
    pub chapters: Vec<Chapter>,
    /// Names of the types that are C enumerations.
    pub enums: BTreeSet<String>,
}

impl List {
    /// Every function, with the chapter it stands in.
    pub fn functions(&self) -> impl Iterator<Item = (&Chapter, &Function)> {
        self.chapters.iter().flat_map(|c| c.functions.iter().map(move |f| (c, f)))
    }
}

/// One file of the list.
#[derive(Debug)]
pub struct Chapter {
    /// File name without `.abi`, and the name of the shim's module that implements it.
    pub name: String,
    /// Heading for people.
    pub title: String,
    /// The header that declares its functions.
    pub header: String,
    /// In the order of the file.
    pub functions: Vec<Function>,
}

/// One function under the name that `cuGetProcAddress` knows, with all its versions.
#[derive(Debug)]
pub struct Function {
    /// Base name, without `_vN`, `_ptsz`, `_ptds`.
    pub name: String,
    /// Where it is answered.
    pub class: Class,
    /// What it touches beyond the handles among its parameters.
    pub touches: Vec<Implicit>,
    /// What a restart must know of it.
    pub replay: Replay,
    /// What of it is not supported, where the rest is.
    pub limits: Option<String>,
    /// Why it never succeeds, where it answers as the driver does for want of what it is about.
    pub never: Option<String>,
    /// Oldest first.
    pub versions: Vec<Version>,
}

/// Where a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// In the application's process, without the server.
    Client,
    /// The client sends it and goes on.
    Pipelined,
    /// The client waits for the server's answer.
    Roundtrip,
}

/// Objects used without being a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implicit {
    /// The calling thread's current context.
    Current,
}

/// What happens to the objects that a restart recreates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Nothing a restart needs.
    Nothing,
    /// A constructor: kind, and the parameter that receives the new object.
    Creates(String, String),
    /// A destructor: kind, and the parameter that names the object.
    Destroys(String, String),
    /// A change of state: kind, and the parameter that names the object (empty: the current one).
    Changes(String, String),
}

/// One version of a function: one ABI.
#[derive(Debug)]
pub struct Version {
    /// First CUDA release that has it, as 1000 × major + 10 × minor.
    pub since: u32,
    /// Exported symbol.
    pub symbol: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// The variant for programs built for per-thread default streams.
    pub per_thread: Option<PerThread>,
    /// Why it answers `CUDA_ERROR_NOT_SUPPORTED`, where it does.
    pub unsupported: Option<String>,
    /// Symbol of the version whose implementation this one shares: the newest of a run with equal parameters.
    pub implementation: String,
}

impl Version {
    /// Whether its implementation is told the default stream in an extra last argument: the stream is not a parameter.
    pub fn takes_default_stream(&self) -> bool {
        self.per_thread.is_some() && self.params.iter().all(|p| p.role != Role::Stream)
    }
}

/// A `_ptsz` or `_ptds` symbol.
#[derive(Debug)]
pub struct PerThread {
    /// First CUDA release that has it.
    pub since: u32,
    /// Exported symbol.
    pub symbol: String,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its type.
    pub c_type: CType,
    /// Its name in the header.
    pub name: String,
    /// What it is for.
    pub role: Role,
}

/// What a parameter is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Passed as it is: number, handle, callback.
    Value,
    /// A stream, NULL being the default stream.
    Stream,
    /// An address that is not followed.
    Opaque,
    /// The function reads through it.
    In(Count),
    /// The function writes through it.
    Out(Count),
    /// Both.
    InOut(Count),
}

/// How much a pointer points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// One element.
    One,
    /// As an expression of parameters or one of the list's words says.
    Rule(String),
}
