//! A server whose supervisor was killed has nobody to complain to.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::common::ends;
use backend_soft::{Options, SoftBackend};
use server::ServeError;
use server::control::{self, Start};
use server::memory::Layout;

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
