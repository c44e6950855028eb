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
//! ```ignore
//! let inherited = host::Inherited::take();              // first thing in main: ignored signals, stdio kinds
//! let tmpfs = host::Tmpfs::create(size_bytes)?;         // unmounts itself when the last holder is gone
//! std::fs::copy(shim, tmpfs.path().join("lib/libcuda.so.1"))?; // inside it is /run/dormouse-job/lib/libcuda.so.1
//! let mut spec = host::JobSpec::new(argv, &inherited);  // argv: Vec<OsString>; env, cwd of this process
//! spec.env.push(("DORMOUSE_SOCKET".into(), "/run/dormouse-job/control".into()));
//! spec.binds = host::driver::binds("/run/dormouse-job/lib", &["libcuda.so", "libcuda.so.1"])?;
//! spec.hide = host::driver::device_nodes();             // /dev/nvidia*
//! spec.library_dir = Some("/run/dormouse-job/lib".into()); // ld.so.cache is regenerated to name it
//! let job = host::Job::spawn(spec, tmpfs)?;             // returns once the application has been exec'ed (or could not be)
//! let ending = job.wait()?;                             // when the last process of the job has ended
//! ending.exit_like_it();                                // same exit code or signal
//! ```
//!
//! # Checkpoint
//! ```ignore
//! let frozen = job.dump(&criu, images_dir, &host::DumpOptions::default())?; // every task is stopped, invisibly to it
//! let record: &host::HostRecord = frozen.record();      // serde; store it with every file of images_dir
//! // ... capture device memory, pinned files: nothing of the job runs here ...
//! let report = frozen.resume()?;                        // or frozen.kill()?; dropping it resumes
//! ```
//!
//! # Restart
//! ```ignore
//! let tmpfs = host::Tmpfs::create(size_bytes)?;         // fill it with the captured files first
//! let restored = host::Restored::restore(&criu, host::RestoreSpec { images: dir, record, tmpfs, stdio: inherited.stdio() })?;
//! // ... every task exists and is stopped: reconnect rings, register userfaultfd regions ...
//! let job = restored.resume()?;                         // dropping it kills the job
//! ```
