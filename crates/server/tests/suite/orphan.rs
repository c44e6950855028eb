//! A server whose supervisor was killed has nobody to complain to.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{CTX, Thread, ends, wait_until};
use backend_soft::{Options, SoftBackend};
use server::ServeError;
use server::control::{self, Answer, Lines, Reply, Start};
use server::memory::Layout;
use wire::{ContextCreate, Device, MemoryOperation, MemoryOperations, Stream, StreamQuery, Until, Word};

/// Serves a supervisor that says something and is gone.
fn serve(say: impl FnOnce(&mut UnixStream)) -> ServeError {
    let folder = tempfile::tempdir().unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    say(&mut ours);
    drop(ours);
    let open = || Ok(Arc::new(SoftBackend::new(Options::default())) as _);
    server::serve_on(ends(theirs), folder.path(), 1, Layout::of_session(1), open).unwrap_err()
}

#[test]
fn a_supervisor_that_is_gone_is_told_from_one_that_talks_nonsense() {
    let error = serve(|supervisor| control::say(supervisor, &Start::Rehearsal).unwrap());
    assert!(error.is_orphaned(), "{error}");
    let error = serve(|supervisor| supervisor.write_all(b"nonsense\n").unwrap());
    assert!(!error.is_orphaned(), "{error}");
}

/// Whether [`a_session_is_over_before_its_device_is_idle`] has heard of the end of its session.
static OVER: AtomicBool = AtomicBool::new(false);

#[test]
fn a_session_is_over_before_its_device_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let path = folder.path().to_owned();
    let open = || Ok(Arc::new(SoftBackend::new(Options::default())) as _);
    let ends = server::Ends { over: || OVER.store(true, Ordering::SeqCst), ..ends(theirs) };
    // Its stream waits for ever, and so does who wants its memory back.
    std::thread::spawn(move || server::serve_on(ends, &path, 1, Layout::of_session(1), open));
    control::say(&ours, &Start::Fresh).unwrap();
    let mut said = Lines::of(ours);
    let ready: Reply = said.receive().unwrap().unwrap();
    assert!(matches!(ready.answer, Answer::Ready { .. }));
    let client = transport::ClientSession::open(folder.path()).unwrap();
    let mut thread = Thread { ring: client.take_ring().unwrap(), output: vec![], more: false };
    thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
    let address = thread.alloc(4096);
    thread.put(address, &[0; 4]);
    let stream = Stream::Created(thread.streams([4])[0]);
    let word = Word { address, value: 1, wide: false };
    let wait = MemoryOperation::Wait { word, until: Until::Equal };
    thread.send(MemoryOperations { ctx: CTX, stream, operations: vec![wait] });
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream }), Ok(false));
    drop(said);
    wait_until(|| OVER.load(Ordering::SeqCst));
}
