//! How a session starts: the shim asks on the job's hello socket, the supervisor answers when the server is ready.

use crate::{Result, TransportError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::{
    ASK_VERSION, Decoder, Encoder, GREETING_MAX, Greeting, Machine, PROTOCOL_VERSION, Question, Wire,
};

/// Asks for a session on `path` and waits until the server is ready, which a checkpoint that is under way puts off for as long
/// as it takes; tells the session's number. `visible`: this process's `CUDA_VISIBLE_DEVICES`.
///
/// # Errors
/// [`TransportError::Io`] when there is no such socket, [`TransportError::Refused`] with the supervisor's reason,
/// [`TransportError::Greeting`] when the supervisor goes away.
pub fn ask(path: &Path, visible: Option<String>) -> Result<u32> {
    match exchange(path, &Greeting::Hello { protocol: PROTOCOL_VERSION, visible }, None)? {
        Greeting::Welcome { session } => Ok(session),
        other => Err(no_answer(other)),
    }
}

/// Asks on `path` which GPUs the machine has, as they are now.
///
/// # Errors
/// As [`ask`]'s, and [`TransportError::Timeout`] when nobody answers within `patience`.
pub fn ask_devices(path: &Path, patience: Duration) -> Result<Machine> {
    match exchange(path, &Greeting::Devices { protocol: PROTOCOL_VERSION }, Some(patience))? {
        Greeting::Machine(machine) => Ok(machine),
        other => Err(no_answer(other)),
    }
}

/// Asks something of the job itself on `path`; tells the number under which the board will have the answer ([`crate::board`]).
///
/// # Errors
/// As [`ask_devices`]'s, and [`TransportError::NotAsked`].
pub fn ask_job(path: &Path, question: Question, patience: Duration) -> Result<u64> {
    match exchange(path, &Greeting::Ask { version: ASK_VERSION, question }, Some(patience))? {
        Greeting::Asked { ticket } => Ok(ticket),
        other => Err(no_answer(other)),
    }
}

/// All other threads of this process stand still as long as it lives. They may hold any lock: whoever has it allocates nothing.
#[derive(Debug)]
pub struct Stillness {
    _socket: OwnedFd,
    /// Given back when the others go on: not before, they may be allocating.
    _buffers: [Vec<u8>; 2],
}

/// Asks on `path` that all other threads of this process stand still; `thread` is the number of this one, as the job knows it.
///
/// # Errors
/// As [`ask`]'s.
pub fn ask_still(path: &Path, thread: u32) -> Result<Stillness> {
    match converse(path, &Greeting::Still { protocol: PROTOCOL_VERSION, thread }, None)? {
        (Greeting::Stilled, stillness) => Ok(stillness),
        (other, _) => Err(no_answer(other)),
    }
}

/// Which faults a process has told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// All of its memory.
    All,
    /// Those of its own code: the kernel itself fails where it touches a page that is not there, in a system call.
    UserMode,
}

/// Gives the faults of this process's memory, by a userfaultfd made for that, to the session at the other end of `path`. Nothing of it
/// is left here. Where the process may have none of all faults, it is one of [`Faults::UserMode`] if that `will_do`. Answers which.
///
/// # Errors
/// As [`ask`]'s; [`TransportError::Io`] with `PermissionDenied` where this process may have no userfaultfd.
pub fn give_userfault(path: &Path, will_do: bool) -> Result<Faults> {
    use rustix::io::Errno;
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    /// `UFFD_USER_MODE_ONLY`, of <linux/userfaultfd.h>.
    const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
    let socket = call(path)?;
    // While the connection is there, which a checkpoint waits for, not before.
    let make = |faults| {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let flags = match faults {
            Faults::All => flags,
            Faults::UserMode => flags | USER_MODE_ONLY,
        };
        // SAFETY: it takes effect on memory only when that is registered.
        (faults, unsafe { userfaultfd(flags) })
    };
    let (faults, made) = match make(Faults::All) {
        (_, Err(Errno::PERM)) if will_do => make(Faults::UserMode),
        made => made,
    };
    let greeting = Greeting::Userfault { protocol: PROTOCOL_VERSION };
    say_with(&socket, path, &greeting, made.as_ref().ok().map(AsFd::as_fd))?;
    made.map(drop).map_err(TransportError::io("cannot make a userfaultfd for the session at", path))?;
    match hear(&socket, path, &mut vec![0u8; GREETING_MAX])? {
        (Greeting::Welcome { .. }, _) => Ok(faults),
        (other, _) => Err(no_answer(other)),
    }
}

fn exchange(path: &Path, question: &Greeting, patience: Option<Duration>) -> Result<Greeting> {
    converse(path, question, patience).map(|(answer, _)| answer)
}

/// Says one thing and hears another; the connection is still there then.
fn converse(path: &Path, question: &Greeting, patience: Option<Duration>) -> Result<(Greeting, Stillness)> {
    let socket = call(path)?;
    if let Some(patience) = patience {
        set_timeouts(&socket, path, patience)?;
    }
    // Not on the stack, which is an application thread's.
    let mut buffer = vec![0u8; GREETING_MAX];
    let said = say(&socket, path, question)?;
    let (answer, _) = hear(&socket, path, &mut buffer)?;
    Ok((answer, Stillness { _socket: socket, _buffers: [said, buffer] }))
}

fn call(path: &Path) -> Result<OwnedFd> {
    let socket = seqpacket(path)?;
    let address = SocketAddrUnix::new(path).map_err(TransportError::io("cannot name", path))?;
    connect(&socket, &address).map_err(TransportError::io("cannot connect to", path))?;
    Ok(socket)
}

fn no_answer(greeting: Greeting) -> TransportError {
    match greeting {
        Greeting::Refused { reason } => TransportError::Refused(reason),
        Greeting::NotAsked { code, reason } => TransportError::NotAsked { code, reason },
        _ => wire::DecodeError::Invalid { what: "answer to a greeting", value: 0 }.into(),
    }
}

/// The longest reason, bytes.
const REASON_MAX: usize = 2048;

/// The supervisor's end of the hello socket.
pub struct HelloListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl HelloListener {
    /// Listens on `path`, which must not exist yet.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the socket cannot be made there.
    pub fn bind(path: &Path) -> Result<Self> {
        let socket = seqpacket(path)?;
        let address = SocketAddrUnix::new(path).map_err(TransportError::io("cannot name", path))?;
        bind(&socket, &address).map_err(TransportError::io("cannot bind", path))?;
        listen(&socket, 64).map_err(TransportError::io("cannot listen on", path))?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Waits for the next process.
    ///
    /// # Errors
    /// [`TransportError::Io`]; the listener goes on.
    pub fn accept(&self) -> Result<Caller> {
        let path = &self.path;
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)
            .map_err(TransportError::io("cannot accept on", path))?;
        Ok(Caller { socket, path: path.clone() })
    }
}

/// A process that has not said what it wants.
pub struct Caller {
    socket: OwnedFd,
    path: PathBuf,
}

impl Caller {
    /// Takes its greeting, for which it has `timeout`. What is not a greeting of this version is refused here, with a reason,
    /// and answered as an error.
    ///
    /// # Errors
    /// [`TransportError`].
    pub fn hear(self, timeout: Duration) -> Result<Wish> {
        let Self { socket, path } = self;
        set_timeouts(&socket, &path, timeout)?;
        let peer =
            socket_peercred(&socket).map_err(TransportError::io("cannot identify the peer of", &path))?;
        let pending = Pending { socket, path, pid: peer.pid.as_raw_nonzero().get() };
        match hear(&pending.socket, &pending.path, &mut vec![0u8; GREETING_MAX])? {
            (Greeting::Hello { protocol: PROTOCOL_VERSION, visible }, _) => {
                Ok(Wish::Session(pending, visible))
            }
            (Greeting::Devices { protocol: PROTOCOL_VERSION }, _) => Ok(Wish::Devices(pending)),
            (Greeting::Still { protocol: PROTOCOL_VERSION, thread }, _) => Ok(Wish::Still(pending, thread)),
            (Greeting::Userfault { protocol: PROTOCOL_VERSION }, userfault) => {
                Ok(Wish::Userfault(pending, userfault))
            }
            (Greeting::Ask { version: ASK_VERSION, question }, _) => Ok(Wish::Ask(pending, question)),
            (Greeting::Ask { version, .. }, _) => {
                let reason = format!(
                    "the program's libdormouse speaks version {version}, this supervisor {ASK_VERSION}"
                );
                pending.refuse(&reason)?;
                Err(TransportError::Refused(reason))
            }
            (
                Greeting::Hello { protocol, .. }
                | Greeting::Devices { protocol }
                | Greeting::Userfault { protocol }
                | Greeting::Still { protocol, .. },
                _,
            ) => {
                let reason = format!(
                    "the application's libcuda speaks protocol {protocol}, this supervisor {PROTOCOL_VERSION}"
                );
                pending.refuse(&reason)?;
                Err(TransportError::Refused(reason))
            }
            _ => Err(wire::DecodeError::Invalid { what: "hello", value: 0 }.into()),
        }
    }
}

impl AsFd for HelloListener {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a process wants.
pub enum Wish {
    /// A session that sees these GPUs, or those of the job: answered by [`Pending::welcome`].
    Session(Pending, Option<String>),
    /// To know which GPUs there are: answered by [`Pending::tell`].
    Devices(Pending),
    /// That all of its threads but the one with this number stand still: answered by [`Pending::stilled`].
    Still(Pending, u32),
    /// That its session has its userfaultfd, if it could make one: answered by [`Pending::welcome`].
    Userfault(Pending, Option<OwnedFd>),
    /// Something of the job itself: answered by [`Pending::asked`].
    Ask(Pending, Question),
}

/// An application process that waits for its answer.
pub struct Pending {
    socket: OwnedFd,
    path: PathBuf,
    pid: i32,
}

impl Pending {
    /// The process, as the kernel tells it in the caller's PID namespace.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The server is ready. Returns when the application has closed its end, so that a checkpoint after that finds no
    /// connection out of the job.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn welcome(self, session: u32) -> Result<()> {
        self.answer(&Greeting::Welcome { session })
    }

    /// These are the GPUs. Returns as [`Self::welcome`] does.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn tell(self, machine: Machine) -> Result<()> {
        self.answer(&Greeting::Machine(machine))
    }

    /// They stand still. Returns when they need no longer, at the latest after `longest`.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn stilled(self, longest: Duration) -> Result<()> {
        set_timeouts(&self.socket, &self.path, longest)?;
        self.answer(&Greeting::Stilled)
    }

    /// It is noted under this number. Returns as [`Self::welcome`] does.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn asked(self, ticket: u64) -> Result<()> {
        self.answer(&Greeting::Asked { ticket })
    }

    fn answer(&self, greeting: &Greeting) -> Result<()> {
        say(&self.socket, &self.path, greeting)?;
        // It says nothing more: what comes is the end, or nothing within the greeting's time-out.
        let _ = rustix::io::retry_on_intr(|| recv(&self.socket, &mut [0u8; 1], RecvFlags::empty()));
        Ok(())
    }

    /// There will be no session; the application's log says why.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn refuse(self, reason: &str) -> Result<()> {
        say(&self.socket, &self.path, &Greeting::Refused { reason: shortened(reason) }).map(drop)
    }

    /// What it asked of the job is not noted.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn not_asked(self, code: u32, reason: &str) -> Result<()> {
        say(&self.socket, &self.path, &Greeting::NotAsked { code, reason: shortened(reason) }).map(drop)
    }
}

fn shortened(reason: &str) -> String {
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

fn seqpacket(path: &Path) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(TransportError::io("cannot make a socket for", path))
}

fn set_timeouts(socket: &OwnedFd, path: &Path, timeout: Duration) -> Result<()> {
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, which, Some(timeout))
            .map_err(TransportError::io("cannot set a timeout on", path))?;
    }
    Ok(())
}

/// Says something; gives back what it was said from.
fn say(socket: &OwnedFd, path: &Path, greeting: &Greeting) -> Result<Vec<u8>> {
    say_with(socket, path, greeting, None)
}

fn say_with(
    socket: &OwnedFd,
    path: &Path,
    greeting: &Greeting,
    file: Option<BorrowedFd<'_>>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    greeting.encode(&mut Encoder::new(&mut bytes));
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))
        .map_err(TransportError::io("cannot send to", path))?;
    Ok(bytes)
}

/// What the other end says, and the descriptor that came with it.
fn hear(socket: &OwnedFd, path: &Path, buffer: &mut [u8]) -> Result<(Greeting, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    let len = match got {
        Ok(message) => message.bytes,
        Err(rustix::io::Errno::AGAIN) => {
            return Err(TransportError::Timeout { path: path.to_owned() });
        }
        Err(error) => return Err(TransportError::io("cannot receive from", path)(error)),
    };
    let mut from = Decoder::new(buffer.get(..len).unwrap_or_default());
    let greeting = Greeting::decode(&mut from)?;
    from.finish()?;
    Ok((greeting, file))
}
