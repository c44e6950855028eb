//! CRIU's protocol: protobuf messages over a socket to a `criu swrk` child (CRIU's `images/rpc.proto`).
//!
//! Its notifications are what makes a *held* dump possible: at `post-dump` everything is written and all tasks are still stopped
//! by CRIU's ptrace, which the job cannot see, until we answer. If this process dies instead, CRIU reads an end of file and lets
//! the tasks go.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};

use prost::Message;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::Criu;

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
    Reached { point: String, pid: Option<i32> },
    /// It is done.
    Done { success: bool, message: String },
}

/// What a child does between fork and exec.
pub(crate) type BeforeExec = Box<dyn FnMut() -> io::Result<()> + Send + Sync>;

/// A CRIU child serving one request.
#[derive(Debug)]
pub(crate) struct Session {
    child: Child,
    socket: OwnedFd,
}

impl Session {
    /// Starts CRIU with `passed` left open under their own numbers. `before_exec` runs in the child and may only make system
    /// calls.
    pub(crate) fn start(
        criu: &Criu,
        passed: &[BorrowedFd<'_>],
        before_exec: Option<BeforeExec>,
    ) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut numbers: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
        numbers.push(theirs.as_raw_fd());
        let mut command = criu.command();
        command.arg("swrk").arg(theirs.as_raw_fd().to_string());
        // Not the terminal's business: ^C is for the job.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut before_exec = before_exec;
        // SAFETY: only system calls, on numbers made beforehand that are open until the child has been executed.
        unsafe {
            command.pre_exec(move || {
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
        Ok(Self { child: command.spawn()?, socket: ours })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn request(&self, kind: i32, options: Options) -> io::Result<()> {
        self.send(&Request { kind, options: Some(options), notify_success: None })
    }

    /// Lets CRIU go on from the point it has reached.
    pub(crate) fn acknowledge(&self) -> io::Result<()> {
        self.send(&Request { kind: NOTIFY, options: None, notify_success: Some(true) })
    }

    fn send(&self, request: &Request) -> io::Result<()> {
        send(&self.socket, &request.encode_to_vec(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for what CRIU says next.
    pub(crate) fn next(&self) -> io::Result<Event> {
        let mut buffer = vec![0; LONGEST];
        let length = loop {
            match recv(self.socket.as_fd(), &mut buffer, RecvFlags::empty()) {
                Ok((_, length)) => break length,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let response = buffer.get(..length).map(Response::decode).ok_or(io::ErrorKind::InvalidData)?;
        let response = response.map_err(io::Error::other)?;
        Ok(match response.notify {
            Some(notify) if response.kind == NOTIFY => {
                Event::Reached { point: notify.script.unwrap_or_default(), pid: notify.pid }
            }
            _ => Event::Done { success: response.success, message: response.message.unwrap_or_default() },
        })
    }

    /// Acknowledges everything up to `point`, which is left unacknowledged. `Done` when it does not get there.
    pub(crate) fn run_to(&self, point: &str, mut seen: impl FnMut(&str, Option<i32>)) -> io::Result<Event> {
        loop {
            match self.next()? {
                Event::Reached { point: reached, pid } => {
                    seen(&reached, pid);
                    if reached == point {
                        return Ok(Event::Reached { point: reached, pid });
                    }
                    self.acknowledge()?;
                }
                done @ Event::Done { .. } => return Ok(done),
            }
        }
    }

    /// Lets CRIU go no further: it undoes what it has begun and ends.
    pub(crate) fn abandon(mut self) {
        drop(self.socket);
        // Whatever it says, it is gone.
        let _ = self.child.wait();
    }

    /// Acknowledges all that is left and waits for CRIU to end.
    pub(crate) fn finish(mut self) -> io::Result<(bool, ExitStatus)> {
        let success = matches!(self.run_to("", |_, _| {}), Ok(Event::Done { success: true, .. }));
        drop(self.socket);
        Ok((success, self.child.wait()?))
    }
}
