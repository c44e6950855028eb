//! The application's part of a trace: how long each call took.

use cuda_abi::{CuResult, FunctionId};
use transport::{TraceKind, trace_clock};

use crate::client::{session, with};

/// Whether calls are to be traced.
#[inline]
pub fn is_on() -> bool {
    session().is_ok_and(|session| session.transport.control().is_traced())
}

/// Runs a call and puts it into the trace. Those that a thread makes before it has sent anything are not in it: it has no ring yet.
#[cold]
pub fn call(id: FunctionId, implementation: impl FnOnce() -> CuResult) -> CuResult {
    let began = trace_clock();
    let result = implementation();
    // A host callback's calls fail, and are not traced.
    let _ = with(|call| {
        call.thread.trace(TraceKind::Call, id as u16, began);
        Ok(())
    });
    result
}
