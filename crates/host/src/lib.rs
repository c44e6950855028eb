//! Namespaces, init, stdio, freezing and CRIU: the host half of a job.
//!
//! A *job* is the application's process tree in a PID and mount namespace of its own. Pid 1 is a small init of ours
//! (`dormouse-init`, built from this crate), the application is pid 2. The supervisor is whoever holds the [`Job`].
//!
//! ```text
//! Criu::find ─ probe ──────────────────────────────┐
//! Tmpfs::create ─┐                                 │
//! JobSpec ───────┴─ Job::spawn ─► Job ─ dump ─► Frozen ─ resume │ kill
//!                                  ▲               └─ HostRecord + CRIU's images ─► stored by the caller
//! RestoreSpec ─ Restored::restore ─┴─ (all tasks stopped) ─ resume
//! ```
//!
//! # Running
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::path::Path;
//! # use std::sync::Arc;
//! # use host::{Job, JobSpec, Tmpfs, driver, signals::Forwarder};
//! let forwarder = Forwarder::block()?;                      // before any thread is started
//! let mut spec = JobSpec::inherit(std::env::args_os().skip(1).collect())?; // environment, folder, streams of this process
//! let tmpfs = Tmpfs::create(8 << 30)?;                      // gone when its last holder is
//! std::fs::copy("libcuda.so.1", tmpfs.path().join("libcuda.so.1"))?; // in the job: /run/dormouse-job/libcuda.so.1
//! let shim = Path::new(host::JOB_DIR).join("libcuda.so.1");
//! spec.binds = driver::binds(&shim, "libcuda.so");          // over every name of the machine's own driver library
//! if spec.binds.is_empty() {
//!     spec.library_dir = Some(host::JOB_DIR.into());        // none here: an ld.so.cache that names ours
//! }
//! spec.hide = driver::device_nodes();
//! spec.blank = driver::blank_nodes();
//! let job = Arc::new(Job::spawn(spec, tmpfs)?);             // the application has been executed
//! forwarder.forward_to(&job)?;
//! job.wait()?.exit_like_it();                               // same exit code or signal
//! # }
//! ```
//!
//! # Checkpoint
//! ```no_run
//! # fn f(job: host::Job, criu: host::Criu, images: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
//! let mut frozen = job.dump(&criu, images, &host::DumpOptions::default(), host::MemoryWay::Written)?; // every task is stopped, and cannot see it
//! let record: &host::HostRecord = frozen.record();          // to be stored, with every file of `images` and of the tmpfs
//! // ... capture device memory and the tmpfs: nothing of the job runs here ...
//! let on_disk = frozen.take_on_disk();
//! let report = frozen.resume()?;                            // or kill(); dropping it resumes
//! on_disk.sync()?;                                          // before the image exists: it relies on these files
//! # Ok(()) }
//! ```
//!
//! # Restart
//! ```no_run
//! # fn f(criu: host::Criu, images: &std::path::Path, record: host::HostRecord) -> Result<(), Box<dyn std::error::Error>> {
//! let tmpfs = host::Tmpfs::create(8 << 30)?;                // ... fill it with the captured files ...
//! let stdio = host::Stdio::take()?;
//! let (hide, blank) = (host::driver::device_nodes(), host::driver::blank_nodes());
//! let spec = host::RestoreSpec { images, record: &record, tmpfs, stdio, hide, blank, log_level: 2 };
//! let restored = host::Restored::restore(&criu, spec)?;     // every task exists and is stopped
//! let job = restored.resume()?;                             // dropping it instead kills the job
//! # Ok(()) }
//! ```

pub mod criu;
pub mod cut;
pub mod driver;
pub mod files;
pub mod init;
mod job;
pub mod memory;
mod mounts;
mod net;
mod pagescan;
pub mod pidfd;
pub mod privilege;
pub mod raw;
pub mod signals;
pub mod stdio;
mod still;
mod tasks;
mod tmpfs;
mod unix_sockets;
mod userfault;

pub use criu::{Criu, CriuError};
pub use cut::{
    CopyRoom, DumpError, DumpOptions, DumpReport, Frozen, HostRecord, LeftOut, MemoryWay, ReadyDump,
    RestoreError, RestoreSpec, Restored, Unstoppable, by_threads, may_be_link,
};
pub use job::{Ending, Job, JobSpec, SpawnError, Target, check_privilege};
pub use mounts::Mount;
pub use net::Connection;
pub use stdio::Stdio;
pub use still::{Standstill, Still};
pub use tasks::{InnerPid, OuterPid, Task, inner_pid};
pub use tmpfs::{EXCLUDES, JOB_DIR, Scratch, Tmpfs, TmpfsError, copy_tree, next_data};
pub use userfault::{BOUNCE, all_may};
