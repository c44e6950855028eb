//! CRIU's protocol: protobuf messages over a socket to a `criu swrk` child (CRIU's `images/rpc.proto`).
//!
//! Its notifications are what makes a *held* dump possible: at `post-dump` everything is written and all tasks are still stopped
//! by CRIU's ptrace, which the job cannot see, until we answer. If this process dies instead, CRIU reads an end of file and lets
//! the tasks go; one that waits for something else is [told by a signal](ended_with_us).
//!
//! A CRIU that hangs is killed, with which the kernel lets go of the tasks that it traces. One that it has injected its parasite
//! into reads an end of file then and goes back by itself to where it was stopped (`fini` of CRIU's `compel/plugins/std/infect.c`).
//! Between two system calls that it injects a task cannot do without CRIU, but there CRIU waits for nothing: only if somebody has
//! stopped it does it stay there, so it is told to continue first.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::Criu;
use super::pulse::{Pulse, Sign};
use crate::net;
use crate::tasks::{self, OuterPid};

/// No message of CRIU's is longer.
const LONGEST: usize = 64 * 1024;

pub(crate) const DUMP: i32 = 1;
pub(crate) const RESTORE: i32 = 2;
const NOTIFY: i32 = 6;

/// Leave cgroups alone.
pub(crate) const CGROUPS_IGNORE: i32 = 0;
/// Lock connections with nftables rules.
pub(crate) const NETWORK_NFTABLES: i32 = 2;
/// Lock no connection: nobody outside the job holds an end.
pub(crate) const NETWORK_SKIP: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Options {
    #[prost(int32, required, tag = "1")]
    pub(crate) images_dir_fd: i32,
    #[prost(int32, optional, tag = "2")]
    pub(crate) pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) leave_running: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) tcp_established: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub(crate) file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    pub(crate) log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    pub(crate) log_file: Option<String>,
    #[prost(bool, optional, tag = "12")]
    pub(crate) notify_scripts: Option<bool>,
    #[prost(string, optional, tag = "13")]
    pub(crate) root: Option<String>,
    #[prost(int32, optional, tag = "17")]
    pub(crate) work_dir_fd: Option<i32>,
    #[prost(bool, optional, tag = "18")]
    pub(crate) link_remap: Option<bool>,
    #[prost(bool, optional, tag = "21")]
    pub(crate) force_irmap: Option<bool>,
    #[prost(bool, optional, tag = "26")]
    pub(crate) rst_sibling: Option<bool>,
    #[prost(message, repeated, tag = "27")]
    pub(crate) inherit_fd: Vec<InheritFd>,
    #[prost(int32, optional, tag = "34")]
    pub(crate) manage_cgroups_mode: Option<i32>,
    #[prost(uint32, optional, tag = "35")]
    pub(crate) ghost_limit: Option<u32>,
    #[prost(string, repeated, tag = "37")]
    pub(crate) external: Vec<String>,
    #[prost(uint32, optional, tag = "45")]
    pub(crate) timeout: Option<u32>,
    #[prost(bool, optional, tag = "48")]
    pub(crate) lazy_pages: Option<bool>,
    #[prost(string, optional, tag = "51")]
    pub(crate) config_file: Option<String>,
    #[prost(int32, optional, tag = "64")]
    pub(crate) network_lock: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InheritFd {
    #[prost(string, required, tag = "1")]
    pub(crate) key: String,
    #[prost(int32, required, tag = "2")]
    pub(crate) fd: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    options: Option<Options>,
    #[prost(bool, optional, tag = "3")]
    notify_success: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(bool, required, tag = "2")]
    success: bool,
    #[prost(message, optional, tag = "4")]
    restore: Option<RestoreResponse>,
    #[prost(message, optional, tag = "5")]
    notify: Option<Notify>,
    #[prost(int32, optional, tag = "7")]
    errno: Option<i32>,
    #[prost(string, optional, tag = "9")]
    message: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RestoreResponse {
    #[prost(int32, required, tag = "1")]
    pid: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Notify {
    #[prost(string, optional, tag = "1")]
    script: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pid: Option<i32>,
}

/// The part of `stats-dump` that we read (CRIU's `images/stats.proto`).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Stats {
    #[prost(message, optional, tag = "1")]
    pub(crate) dump: Option<DumpStats>,
}

/// Times in microseconds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DumpStats {
    #[prost(uint32, required, tag = "1")]
    pub(crate) freezing_time: u32,
    #[prost(uint32, required, tag = "2")]
    pub(crate) frozen_time: u32,
}

/// What CRIU says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It has come to this point and waits for [`Session::acknowledge`].
    Reached { point: String },
    /// It is done.
    Done { success: bool, message: String },
}

/// What a child does between fork and exec.
pub(crate) type BeforeExec = Box<dyn FnMut() -> io::Result<()> + Send + Sync>;

/// Has a CRIU that dumps get SIGALRM when the thread that starts it is gone, which ends the session before. That the socket is closed CRIU does not see while it
/// waits for a task, and one that has died with us it may never be told of (a leader whose threads are not collected). Its handler has it give up what it waits
/// for, and undo what it has begun, again and again for some seconds, and then ends it. (Where that comes in the moment in which CRIU sets its own alarm back it
/// interrupts one wait only.)
///
/// Until it asks us before it looks at the job (`pre-dump`), where it ends by itself when we are gone, the signal is ignored: while CRIU tries what the kernel can do
/// it would leave helpers that it has stopped. From then on our plugin, where CRIU has it, has it die of the signal until there
/// is a handler, and ends it if we are gone by then.
pub(crate) fn ended_with_us() -> BeforeExec {
    let us = std::process::id();
    Box::new(move || {
        // SAFETY: what is ignored has no handler.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
        set_parent_process_death_signal(Some(Signal::ALARM))?;
        let is_ours = getppid().is_some_and(|parent| parent.as_raw_pid().cast_unsigned() == us);
        if is_ours { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    })
}

/// A CRIU child serving one request. Dropping it closes the socket, at which CRIU undoes what it has begun, and waits for its end. Whom it has restored and
/// holds is killed then: it would let them run.
#[derive(Debug)]
pub(crate) struct Session {
    child: Child,
    /// None once CRIU is to go no further.
    socket: Option<OwnedFd>,
    silence: Duration,
    pulse: RefCell<Pulse>,
    /// The first process of the job, once CRIU has named it.
    init: Cell<Option<OuterPid>>,
    /// Whether that process, a child of ours, is nobody's yet: it goes with CRIU.
    orphan: Cell<bool>,
    /// The init of a restored job that has not been let go.
    holds: Cell<Option<OuterPid>>,
    /// The init of the job that it dumps.
    dumped: Cell<Option<OuterPid>>,
    /// Whether it hung.
    killed: Cell<bool>,
    /// When it was told to give up what it waits for.
    alarmed: Cell<Option<Instant>>,
}

/// How often a CRIU that says nothing is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// For how long one that is to end is waited for, before and after it is killed.
const GRACE: Duration = Duration::from_secs(5);

impl Session {
    /// Starts CRIU with `passed` left open under their own numbers, into the folders among which it writes, and with more `environment`.
    /// `before_exec` runs in the child and may only make system calls.
    pub(crate) fn start(
        criu: &Criu,
        passed: &[BorrowedFd<'_>],
        environment: Vec<(&str, OsString)>,
        before_exec: Option<BeforeExec>,
    ) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut numbers: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
        numbers.push(theirs.as_raw_fd());
        let mut command = criu.command();
        command.arg("swrk").arg(theirs.as_raw_fd().to_string());
        command.envs(environment);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut before_exec = before_exec;
        // SAFETY: only system calls, on numbers made beforehand that are open until the child has been executed.
        unsafe {
            command.pre_exec(move || {
                // Not the terminal's business: ^C is for the job. Of a group that loses us in our own session the kernel has those go on whom CRIU has
                // stopped, to see what this kernel can do, and waits for: for ever.
                rustix::process::setsid()?;
                for &fd in &numbers {
                    if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                // If we die, CRIU is to learn it from the socket and let the tasks go, not die of it.
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                before_exec.as_mut().map_or(Ok(()), |f| f())
            });
        }
        let child = command.spawn()?;
        let pulse = RefCell::new(Pulse::of(child.id(), passed));
        Ok(Self {
            child,
            socket: Some(ours),
            silence: criu.silence(),
            pulse,
            init: Cell::new(None),
            orphan: Cell::new(false),
            holds: Cell::new(None),
            dumped: Cell::new(None),
            killed: Cell::new(false),
            alarmed: Cell::new(None),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The job's init, which CRIU has made and holds, with all others, until the next [`Self::acknowledge`]; from now on the caller's to end and collect,
    /// which takes until this session is dropped.
    pub(crate) fn adopt(&self) -> Option<OuterPid> {
        self.orphan.set(false);
        self.holds.set(self.init.get());
        self.init.get()
    }

    pub(crate) fn request(&self, kind: i32, options: Options) -> io::Result<()> {
        self.orphan.set(kind == RESTORE);
        self.dumped.set(options.pid.map(OuterPid));
        self.send(&Request { kind, options: Some(options), notify_success: None })
    }

    /// Lets CRIU go on from the point it has reached.
    pub(crate) fn acknowledge(&self) -> io::Result<()> {
        self.holds.set(None);
        self.send(&Request { kind: NOTIFY, options: None, notify_success: Some(true) })
    }

    fn socket(&self) -> io::Result<&OwnedFd> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn send(&self, request: &Request) -> io::Result<()> {
        // Whoever does not read is not waited for: CRIU reads each message before the next is sent.
        send(self.socket()?, &request.encode_to_vec(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Waits for what CRIU says next, for as long as it gets somewhere; one that does not is killed ([`io::ErrorKind::TimedOut`]).
    pub(crate) fn next(&self) -> io::Result<Event> {
        let mut buffer = vec![0; LONGEST];
        let length = self.receive(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let response = buffer.get(..length).map(Response::decode).ok_or(io::ErrorKind::InvalidData)?;
        let response = response.map_err(io::Error::other)?;
        Ok(match response.notify {
            Some(notify) if response.kind == NOTIFY => {
                if let Some(pid) = notify.pid {
                    self.init.set(Some(OuterPid(pid)));
                }
                Event::Reached { point: notify.script.unwrap_or_default() }
            }
            _ => Event::Done { success: response.success, message: response.message.unwrap_or_default() },
        })
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let socket = self.socket()?;
        let look = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.min(self.silence / 4).subsec_nanos()) };
        self.pulse.borrow_mut().beat();
        loop {
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&look)) {
                Ok(0) => {
                    let mut pulse = self.pulse.borrow_mut();
                    self.dumped.get().into_iter().for_each(|init| pulse.look_at(init));
                    let sign = pulse.look(self.init.get(), self.silence);
                    drop(pulse);
                    match sign {
                        Sign::AtWork => self.alarmed.set(None),
                        Sign::Idle => self.signal(libc::SIGCONT),
                        Sign::WaitsInVain => match self.alarmed.get() {
                            None => self.alarm(),
                            Some(since) if since.elapsed() < GRACE => {}
                            Some(_) => {
                                let why =
                                    "it waited for a process of the job that had been killed, and was killed";
                                return Err(self.hung(why.to_owned()));
                            }
                        },
                        Sign::Hung(since) => {
                            let why = format!("it got nowhere for {} s and was killed", since.as_secs());
                            return Err(self.hung(why));
                        }
                    }
                }
                Ok(_) => match recv(socket.as_fd(), &mut *buffer, RecvFlags::empty()) {
                    Ok((_, length)) => return Ok(length),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                },
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Interrupts what a CRIU that dumps waits for, as [`ended_with_us`] does: it undoes what it has begun, and says so.
    fn alarm(&self) {
        self.alarmed.set(Some(Instant::now()));
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // SAFETY: a signal to a child that has not been waited for.
            unsafe { libc::kill(pid, libc::SIGALRM) };
        }
    }

    fn hung(&self, why: String) -> io::Error {
        self.give_up();
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// Kills a CRIU that hangs, having undone what its tasks would notice: they run on as soon as it is gone.
    fn give_up(&self) {
        self.signal(libc::SIGSTOP);
        if let Some(dumped) = self.dumped.get() {
            let tasks: Vec<OuterPid> = tasks::in_namespace_of(dumped).iter().map(|task| task.outer).collect();
            net::end_repair(&tasks);
        }
        self.kill();
    }

    /// Kills CRIU and what it has started for itself: a helper could hold the parasite's socket open.
    fn kill(&self) {
        self.killed.set(true);
        self.signal(libc::SIGKILL);
    }

    fn signal(&self, signal: i32) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // SAFETY: a signal to the process group of a child that has not been waited for.
            unsafe { libc::kill(-group, signal) };
        }
    }

    /// Acknowledges everything up to `point`, which is left unacknowledged. `Done` when it does not get there.
    pub(crate) fn run_to(&self, point: &str) -> io::Result<Event> {
        loop {
            match self.next()? {
                Event::Reached { point: reached } if reached == point => {
                    return Ok(Event::Reached { point: reached });
                }
                Event::Reached { .. } => self.acknowledge()?,
                done @ Event::Done { .. } => return Ok(done),
            }
        }
    }

    /// Acknowledges all that is left and waits for CRIU to end. Answers whether it has done what it was asked for.
    pub(crate) fn finish(mut self) -> io::Result<bool> {
        let success = matches!(self.run_to("")?, Event::Done { success: true, .. });
        self.end();
        Ok(success)
    }

    /// Lets CRIU go no further and collects it.
    fn end(&mut self) -> Option<ExitStatus> {
        self.socket = None;
        if !self.killed.get() {
            if let Some(status) = self.wait(GRACE) {
                return Some(status);
            }
            self.kill();
        }
        let status = self.wait(GRACE);
        if status.is_none() {
            tracing::error!(
                pid = self.child.id(),
                "CRIU cannot be killed; what it had stopped stays stopped"
            );
        }
        status
    }

    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(init) = self.holds.get() {
            for task in tasks::in_namespace_of(init) {
                // SAFETY: it takes numbers only, which stay these tasks': CRIU traces each until it is killed below, so that none is collected before.
                unsafe { libc::kill(task.outer.0, libc::SIGKILL) };
            }
            self.kill();
        }
        // Nothing new where it has been collected: the child remembers its status.
        self.end();
        if let Some(init) = self.init.get().filter(|_| self.orphan.get()) {
            let mut status = 0;
            // SAFETY: `init` is a child of ours that nobody else has waited for.
            unsafe {
                libc::kill(init.0, libc::SIGKILL);
                libc::waitpid(init.0, &mut status, 0);
            }
        }
    }
}
