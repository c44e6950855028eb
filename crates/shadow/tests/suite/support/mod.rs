//! A device and an application for tests.

mod device;
mod shadow;

pub use self::shadow::Shadow;
use ::shadow::{Access, Keeper, PAGE, Range, Userfault};
pub use device::{Model, Stream, pause};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How shadows are kept.
pub struct Kept {
    /// By so many threads.
    pub threads: usize,
    pub access: Access,
    /// Whether the kernel can map pages protected.
    pub maps_protected: bool,
    /// Whether faults of system calls are told, too.
    pub all_faults: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self { threads: 1, access: Access::Concurrent, maps_protected: true, all_faults: true }
    }
}

/// Shadows of regions of so many pages, files for them made by `file`, kept in step with `model` by so many threads.
pub fn keep(
    model: &Arc<Model>,
    pages: &[usize],
    threads: usize,
    file: impl FnMut(usize) -> OwnedFd,
) -> (Keeper, Vec<Shadow>) {
    keep_for(model, pages, Kept { threads, ..Kept::default() }, file)
}

/// The same, otherwise.
pub fn keep_for(
    model: &Arc<Model>,
    pages: &[usize],
    kept: Kept,
    mut file: impl FnMut(usize) -> OwnedFd,
) -> (Keeper, Vec<Shadow>) {
    let userfault = if kept.all_faults { Userfault::create() } else { Userfault::create_for_user_mode() };
    let opened = Userfault::open(userfault.expect(
        "as all of this crate's tests do, this one needs root's rights, or vm.unprivileged_userfaultfd = 1",
    ));
    let opened = opened.unwrap();
    let opened = if kept.maps_protected { opened } else { opened.before_linux_6_4() };
    let keeper = Keeper::new(opened, model.clone(), (kept.threads, kept.access)).unwrap();
    let shadows = pages.iter().map(|count| {
        let shadow = Shadow::new(file(count * PAGE), count * PAGE);
        let range = Range { base: shadow.address(), bytes: (count * PAGE) as u64 };
        model.add(range);
        keeper.add(range, shadow.file()).unwrap();
        shadow
    });
    let shadows = shadows.collect();
    (keeper, shadows)
}

/// A file of `bytes` bytes on a tmpfs as a job has one.
pub fn memory(bytes: usize) -> OwnedFd {
    file_on(&tmpfs(1 << 30), "shadow", bytes)
}

/// A file of `bytes` bytes on a tmpfs.
pub fn file_on(root: &OwnedFd, name: &str, bytes: usize) -> OwnedFd {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::openat(root, name, OFlags::RDWR | OFlags::CREATE, Mode::RUSR).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    file
}

/// The root of a tmpfs of `bytes` bytes that is mounted nowhere, with huge pages for who asks for them.
pub fn tmpfs(bytes: usize) -> OwnedFd {
    use rustix::mount::*;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_set_string(&context, "size", bytes.to_string()).unwrap();
    // A kernel without huge pages is tested with small ones.
    let _ = fsconfig_set_string(&context, "huge", "advise");
    fsconfig_create(&context).unwrap();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

/// Runs a test in another process, which may be ended by name, and knows by this variable which it is. How it has ended, and what it has said.
pub fn in_another_process(test: &str, variable: &str, value: &str) -> (ExitStatus, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    // What it says has room in the pipe.
    child.args(["--exact", test, "--nocapture"]).env(variable, value).env("RUST_BACKTRACE", "0");
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Long, for a machine that does much else.
    let until = Instant::now() + Duration::from_secs(120);
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(ended) => break ended,
            None if Instant::now() > until => {
                child.kill().unwrap();
                panic!("{test} waits for ever, with {variable}={value}");
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    (ended, std::io::read_to_string(child.stderr.take().unwrap()).unwrap())
}
