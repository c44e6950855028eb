//! Memory and events of other processes: what the client may not assume of them.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use crate::fake::start;
use cuda_abi::{CuError, FunctionId, sys};
use cuda_shim::api::{capture::*, event::*, graph::*, graph_exec::*, graph_node::*, stream::*, vmm::*};
use cuda_shim::report::{Unsupported, listen};
use wire::Request;

/// `CU_EVENT_DISABLE_TIMING`, and `CU_EVENT_INTERPROCESS` with it.
const PLAIN: u32 = 2;
const INTERPROCESS: u32 = 2 | 4;

fn stream() -> sys::CUstream {
    let mut stream = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuStreamCreate(&raw mut stream, 1) }.unwrap();
    stream
}

fn event(flags: u32) -> sys::CUevent {
    let mut event = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuEventCreate(&raw mut event, flags) }.unwrap();
    event
}

/// Another process may be told of the record as soon as the call has returned.
#[test]
fn a_graph_that_records_for_others_has_been_launched_when_the_call_returns() {
    let fake = start();
    let behind_launch = |flags| {
        let (mut graph, mut node, mut exec) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the pointers are this function's.
        unsafe {
            cuGraphCreate(&raw mut graph, 0).unwrap();
            cuGraphAddEventRecordNode(&raw mut node, graph, null(), 0, event(flags)).unwrap();
            cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).unwrap();
            cuGraphLaunch(exec, stream()).unwrap();
        }
        let launches = |(_, request): &(usize, Request)| matches!(request, Request::GraphLaunch(_));
        fake.seen.lock().unwrap().iter().filter(|each| launches(each)).count()
    };
    assert_eq!(behind_launch(INTERPROCESS), 1, "the server has it");
    let queries = |(_, request): &(usize, Request)| matches!(request, Request::StreamQuery(_)).then_some(());
    let before = fake.picked(queries).len();
    behind_launch(PLAIN);
    assert_eq!(fake.picked(queries).len(), before, "nobody waits for what is this process's alone");
}

/// Whether it was ever recorded only the others know.
#[test]
fn a_capture_does_not_take_an_event_of_several_processes_for_one_that_was_never_recorded() {
    start();
    let stream = stream();
    let mut graph = null_mut();
    // SAFETY: handles, and a pointer of this function's.
    unsafe {
        cuStreamBeginCapture_v2(stream, 2).unwrap();
        cuStreamWaitEvent(stream, event(PLAIN), 0).unwrap();
        let refused = cuStreamWaitEvent(stream, event(INTERPROCESS), 0);
        assert_eq!(refused, Err(CuError::STREAM_CAPTURE_ISOLATION));
        assert!(cuStreamEndCapture(stream, &raw mut graph).is_err());
    }
}

#[test]
fn descriptors_of_anybody_else_are_refused_and_named() {
    static NAMED: Mutex<Vec<Unsupported>> = Mutex::new(Vec::new());
    start();
    listen(|what| NAMED.lock().unwrap().push(what));
    let mut ours = tempfile::tempfile().unwrap();
    ours.write_all(&[1; 64]).unwrap();
    let unreadable = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    for file in [unreadable.as_raw_fd(), ours.as_raw_fd(), -1, 1 << 20] {
        let mut handle = 0;
        // SAFETY: a pointer of this function's, and numbers.
        let taken = unsafe { cuMemImportFromShareableHandle(&raw mut handle, file as usize as *mut _, 1) };
        assert_eq!(taken, Err(CuError::INVALID_VALUE), "{file}");
        let named = Unsupported::ForeignHandle(FunctionId::cuMemImportFromShareableHandle);
        assert!(NAMED.lock().unwrap().contains(&named));
    }
}
