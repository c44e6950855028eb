//! Every pipe that crosses the job's border, and the relays at our end of them.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use super::kind::{Stdio, Stream, StreamKind};
use super::relay::{Relay, peek_pipe};
use super::shared::{FileKey, Replacement, Shared, SharedFile};
use super::{RawMode, TerminalModes, Window};
use crate::init::instructions::{InnerSource, InnerStream, InnerTerminal, READY};
use crate::tasks::OuterPid;

/// What a pipe across the border is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Tells init that the supervisor lives.
    Alive,
    /// The application's standard input.
    Input,
    /// One of its descriptors above 2, read from.
    InputAt(i32),
    /// The application's descriptor 1 or 2, or one above, written to.
    Output(i32),
    /// One above 2 of a pipe of which it was given both ends.
    Both(i32),
    /// What is typed into the job's terminal.
    Keys,
    /// What the job's terminal shows.
    Screen,
    /// Tells us that the application was stopped from the keyboard.
    Stops,
}

/// A pipe across the border at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRecord {
    /// What it is for.
    pub role: Role,
    /// The pipe's inode then: CRIU's name for it.
    pub inode: u64,
    /// Bytes that had reached the other side: the user for outputs, the job for inputs.
    pub delivered: u64,
    /// Bytes on their way.
    pub undelivered: Vec<u8>,
}

/// All of the job's pipes to the outside.
#[derive(Debug)]
pub(crate) struct Border {
    channels: Vec<Channel>,
    files: Vec<Shared>,
    stdio: Stdio,
    raw_mode: Option<RawMode>,
}

#[derive(Debug)]
struct Channel {
    role: Role,
    inode: u64,
    end: OurEnd,
}

#[derive(Debug)]
enum OurEnd {
    /// Moves bytes; for inputs, what it writes to is kept reachable to look at what the job has not read.
    Relay(Relay),
    /// Held and nothing else.
    Held(OwnedFd),
    /// Read by whoever asks for it.
    Read(OwnedFd),
    /// Handed over: the user's own pipe.
    None,
}

/// The job's ends of the pipes, and how the job is to use them.
pub(crate) struct InnerEnds {
    pub(crate) streams: Vec<InnerStream>,
    pub(crate) terminal: Option<InnerTerminal>,
    pub(crate) alive: i32,
    /// To be inherited under their own numbers, and closed here afterwards.
    pub(crate) fds: Vec<OwnedFd>,
}

impl Border {
    /// Makes the pipes for a new job. Nothing moves in them before [`Self::start`].
    pub(crate) fn open(mut stdio: Stdio) -> io::Result<(Self, InnerEnds)> {
        let mut opening = Opening::default();
        let alive = opening.held(Role::Alive)?;
        let mut streams = Vec::new();
        for stream in mem::take(&mut stdio.streams) {
            let fd = stream.fd;
            let source = match (stream.shares, &stream.kind) {
                (Some(earlier), _) => InnerSource::Same(earlier),
                (None, StreamKind::Terminal) => InnerSource::Terminal,
                (None, StreamKind::Shared) => {
                    InnerSource::Inherited(opening.share(fd, stream.outer.try_clone()?, None)?)
                }
                (None, StreamKind::File { path, flags, offset }) => {
                    let stat = rustix::fs::fstat(&stream.outer)?;
                    let (path, flags, offset) = (path.clone(), flags.bits(), *offset);
                    InnerSource::Path { path, flags, offset, device: stat.st_dev, inode: stat.st_ino }
                }
                (None, StreamKind::Device { path, flags }) => InnerSource::Path {
                    path: path.clone(),
                    flags: flags.bits(),
                    offset: 0,
                    device: 0,
                    inode: 0,
                },
                // Only the job may hold the pipe that is handed to it.
                (None, StreamKind::Handed) => {
                    let source = InnerSource::Inherited(opening.hand(stream)?);
                    streams.push(InnerStream { fd, source });
                    continue;
                }
                (None, StreamKind::Relayed) => {
                    let outer = stream.outer.as_fd();
                    InnerSource::Inherited(match fd {
                        0 => opening.input(Role::Input, outer, Vec::new(), 0),
                        3.. if stream.directions().0 => {
                            opening.input(Role::InputAt(fd), outer, Vec::new(), 0)
                        }
                        _ => opening.output(Role::Output(fd), outer, Vec::new(), 0),
                    }?)
                }
                (None, StreamKind::Foreign { what }) => {
                    return Err(io::Error::other(format!(
                        "descriptor {fd} is {what}, which a job cannot have; close it for dormouse: {fd}<&-"
                    )));
                }
            };
            streams.push(InnerStream { fd, source });
            if stream.kind != StreamKind::Handed {
                stdio.streams.push(stream);
            }
        }
        let terminal = match stdio.terminal_ends() {
            (Some(screen), keyboard) => Some(InnerTerminal {
                output: opening.output(Role::Screen, screen, Vec::new(), 0)?,
                input: match keyboard {
                    Some(keyboard) => opening.input(Role::Keys, keyboard, Vec::new(), 0)?,
                    None => opening.held(Role::Keys)?,
                },
                stops: opening.read(Role::Stops)?,
                modes: TerminalModes::of(screen).ok_or_else(io::Error::last_os_error)?,
                window: Window::of(screen),
            }),
            _ => None,
        };
        let Opening { channels, files, fds } = opening;
        let border = Self { channels, files, stdio, raw_mode: None };
        Ok((border, InnerEnds { streams, terminal, alive, fds }))
    }

    /// Makes the pipes of a job that comes back, and finds what takes the place of its `files`. Answers CRIU's key and the job's end
    /// of each. Nothing moves in the pipes before [`Self::go_on`]: should the job not come back, nothing has been delivered or taken.
    pub(crate) fn reopen(
        records: &[ChannelRecord],
        files: &[SharedFile],
        stdio: Stdio,
    ) -> io::Result<(Self, Vec<(String, OwnedFd)>)> {
        let mut opening = Opening::default();
        let mut keys: Vec<String> = records.iter().map(|record| format!("pipe:[{}]", record.inode)).collect();
        let (screen, keyboard) = stdio.terminal_ends();
        for record in records {
            let pending = record.undelivered.clone();
            let (delivered, role) = (record.delivered, record.role);
            // The number is for init's instructions; CRIU goes by the pipe's inode.
            let _number = match role {
                Role::Alive => opening.held(role),
                Role::Input => opening.input(role, source(&stdio, 0)?.as_fd(), pending, delivered),
                Role::InputAt(fd) => opening.input(role, source(&stdio, fd)?.as_fd(), pending, delivered),
                Role::Output(fd) => opening.output_at(fd, &stdio, pending, delivered),
                Role::Both(_) => opening.own(role, &pending),
                Role::Stops => opening.read(role),
                Role::Screen => {
                    let shown_on = match screen {
                        Some(screen) => screen.try_clone_to_owned()?,
                        None => sink(&stdio, 1)?.map_or_else(unheard, Ok)?,
                    };
                    opening.output(role, shown_on.as_fd(), pending, delivered)
                }
                Role::Keys => match keyboard {
                    Some(keyboard) => opening.input(role, keyboard, pending, delivered),
                    None => opening.held(role),
                },
            }?;
        }
        for file in files {
            let (key, fd) = (file.key.inherited(), file.fd);
            // Two on the same file are one to CRIU.
            if keys.contains(&key) {
                continue;
            }
            keys.push(key);
            let _number = match file.replacement(&stdio)? {
                Replacement::File(file, start) => opening.share(fd, file, start),
                Replacement::Relayed => opening.output_at(fd, &stdio, Vec::new(), 0),
            }?;
        }
        let Opening { channels, files, fds } = opening;
        Ok((Self { channels, files, stdio, raw_mode: None }, keys.into_iter().zip(fds).collect()))
    }

    /// Tells init to start the application.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.go_on();
        for channel in &self.channels {
            if let (Role::Alive, OurEnd::Held(end)) = (channel.role, &channel.end) {
                rustix::io::write(end, &[READY])?;
            }
        }
        Ok(())
    }

    /// Puts the user's terminal into raw mode, if the job reads from it.
    pub(crate) fn grab_terminal(&mut self) -> io::Result<()> {
        if self.channels.iter().any(|c| c.role == Role::Keys)
            && let (_, Some(keyboard)) = self.stdio.terminal_ends()
        {
            self.raw_mode = RawMode::enter(keyboard)?;
        }
        Ok(())
    }

    /// A pipe that becomes readable when the application was stopped from the user's keyboard.
    pub(crate) fn stops(&self) -> Option<OwnedFd> {
        self.raw_mode.as_ref()?;
        self.channels.iter().find_map(|channel| match &channel.end {
            OurEnd::Read(end) if channel.role == Role::Stops => end.try_clone().ok(),
            _ => None,
        })
    }

    pub(crate) fn raw_mode(&self) -> Option<&RawMode> {
        self.raw_mode.as_ref()
    }

    /// The size of the user's terminal.
    pub(crate) fn window(&self) -> Option<Window> {
        self.stdio.terminal_ends().0.and_then(Window::of)
    }

    /// Lets outputs arrive as far as they do within `patience`. The job must be stopped.
    pub(crate) fn drain(&self, patience: Duration) {
        for channel in &self.channels {
            if let (Role::Output(_) | Role::Screen, OurEnd::Relay(relay)) = (channel.role, &channel.end) {
                relay.drain(patience);
            }
        }
    }

    /// Lets bytes move in both directions: before this nothing is taken from the user or given to them.
    pub(crate) fn go_on(&self) {
        self.relays().for_each(Relay::go_on);
    }

    fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.channels.iter().filter_map(|channel| match &channel.end {
            OurEnd::Relay(relay) => Some(relay),
            _ => None,
        })
    }

    /// Brings files that a restart was given to where the job was in them. To be done last: they are not the job's alone.
    pub(crate) fn move_files(&self) -> io::Result<()> {
        self.files.iter().try_for_each(Shared::move_to_start)
    }

    /// What the regular files that the job was given are on.
    pub(crate) fn file_keys(&self) -> io::Result<BTreeSet<FileKey>> {
        self.files.iter().map(Shared::key).collect()
    }

    /// The state of these files.
    pub(crate) fn record_files(&self) -> io::Result<Vec<SharedFile>> {
        self.files.iter().map(Shared::record).collect()
    }

    /// The state of every pipe, which stays so until [`Self::go_on`]. The job must be stopped; `tasks` are its processes.
    pub(crate) fn record(&self, tasks: &[OuterPid]) -> Vec<ChannelRecord> {
        self.relays().for_each(Relay::park);
        let record = |channel: &Channel| {
            let (delivered, undelivered) = match (channel.role, &channel.end) {
                (Role::Output(_) | Role::Screen, OurEnd::Relay(relay)) => relay.position_with_source(),
                (_, OurEnd::Relay(relay)) => {
                    let (delivered, pending) = relay.position();
                    let mut unread = unread(channel.inode, tasks);
                    let consumed = delivered.saturating_sub(unread.len() as u64);
                    unread.extend(pending);
                    (consumed, unread)
                }
                (Role::Input | Role::InputAt(_) | Role::Both(_), OurEnd::None) => {
                    (0, unread(channel.inode, tasks))
                }
                _ => (0, Vec::new()),
            };
            ChannelRecord { role: channel.role, inode: channel.inode, delivered, undelivered }
        };
        self.channels.iter().map(record).collect()
    }

    /// Ends every relay, after the job has ended. With `discard`, what is on its way is dropped: an image has it.
    pub(crate) fn close(self, discard: bool) {
        for channel in self.channels {
            if let OurEnd::Relay(relay) = channel.end {
                relay.finish(discard || matches!(channel.role, Role::Input | Role::InputAt(_) | Role::Keys));
            }
        }
        // The job had an open file of its own for these; whoever shares ours goes on after what the job wrote.
        for stream in &self.stdio.streams {
            if let StreamKind::File { flags, .. } = &stream.kind
                && stream.directions().1
                && !flags.contains(OFlags::APPEND)
            {
                let _ = rustix::fs::seek(&stream.outer, rustix::fs::SeekFrom::End(0));
            }
        }
    }
}

#[derive(Default)]
struct Opening {
    channels: Vec<Channel>,
    files: Vec<Shared>,
    fds: Vec<OwnedFd>,
}

impl Opening {
    /// A pipe that the job reads from and nobody writes to.
    fn held(&mut self, role: Role) -> io::Result<i32> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        self.add(role, reader, OurEnd::Held(writer))
    }

    /// A pipe that the job writes to and we read.
    fn read(&mut self, role: Role) -> io::Result<i32> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        self.add(role, writer, OurEnd::Read(reader))
    }

    /// A regular file of which the job gets the very open file.
    fn share(&mut self, fd: i32, file: OwnedFd, start: Option<u64>) -> io::Result<i32> {
        self.fds.push(file.try_clone()?);
        self.files.push(Shared { fd, file, start });
        Ok(self.fds.last().map_or(-1, AsRawFd::as_raw_fd))
    }

    fn hand(&mut self, stream: Stream) -> io::Result<i32> {
        let (role, fd) = (role_of(&stream), stream.outer);
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        if let Some(other) = self.channels.iter_mut().find(|channel| channel.inode == inode) {
            // Another end of the same pipe: one channel, as CRIU sees it.
            other.role = match (other.role, role) {
                (Role::InputAt(fd), Role::Output(_) | Role::Both(_))
                | (Role::Output(fd), Role::InputAt(_) | Role::Both(_)) => Role::Both(fd),
                (role, _) => role,
            };
            let number = fd.as_raw_fd();
            self.fds.push(fd);
            return Ok(number);
        }
        self.add(role, fd, OurEnd::None)
    }

    /// A pipe of which the job has both ends and nobody else any.
    fn own(&mut self, role: Role, pending: &[u8]) -> io::Result<i32> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if !pending.is_empty() {
            rustix::pipe::fcntl_setpipe_size(
                &writer,
                pending.len().max(rustix::pipe::fcntl_getpipe_size(&writer)?),
            )?;
            rustix::io::write(&writer, pending)?;
        }
        self.add(role, reader, OurEnd::None)
    }

    fn input(
        &mut self,
        role: Role,
        from: BorrowedFd<'_>,
        pending: Vec<u8>,
        delivered: u64,
    ) -> io::Result<i32> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        let relay = Relay::parked("in", from.try_clone_to_owned()?, writer, pending, delivered)?;
        self.add(role, reader, OurEnd::Relay(relay))
    }

    fn output(
        &mut self,
        role: Role,
        to: BorrowedFd<'_>,
        pending: Vec<u8>,
        delivered: u64,
    ) -> io::Result<i32> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let relay = Relay::parked("out", reader, to.try_clone_to_owned()?, pending, delivered)?;
        self.add(role, writer, OurEnd::Relay(relay))
    }

    /// What the job writes to its descriptor `fd`: at once an error, if there is no such descriptor.
    fn output_at(&mut self, fd: i32, stdio: &Stdio, pending: Vec<u8>, delivered: u64) -> io::Result<i32> {
        let role = Role::Output(fd);
        match sink(stdio, fd)? {
            Some(sink) => self.output(role, sink.as_fd(), pending, delivered),
            None => self.add(role, unheard()?, OurEnd::None),
        }
    }

    fn add(&mut self, role: Role, theirs: OwnedFd, end: OurEnd) -> io::Result<i32> {
        let number = theirs.as_raw_fd();
        self.channels.push(Channel { role, inode: rustix::fs::fstat(&theirs)?.st_ino, end });
        self.fds.push(theirs);
        Ok(number)
    }
}

/// What a pipe at descriptor `stream.fd`, handed over, is for.
fn role_of(stream: &Stream) -> Role {
    match (stream.fd, stream.directions()) {
        (0, _) => Role::Input,
        (fd, (true, true)) => Role::Both(fd),
        (fd, (true, false)) => Role::InputAt(fd),
        (fd, (false, _)) => Role::Output(fd),
    }
}

/// Where the job's descriptor `fd` is to read from: at its end, if there is no such descriptor.
fn source(stdio: &Stdio, fd: i32) -> io::Result<OwnedFd> {
    match stdio.stream(fd).filter(|stream| stream.directions().0) {
        Some(stream) => stream.outer.try_clone(),
        None => Ok(File::open("/dev/null")?.into()),
    }
}

/// Where the job's descriptor `fd` is to write to, if there is such a descriptor.
fn sink(stdio: &Stdio, fd: i32) -> io::Result<Option<OwnedFd>> {
    let stream = stdio.stream(fd).filter(|stream| stream.directions().1);
    stream.map(|stream| stream.outer.try_clone()).transpose()
}

/// A pipe that nobody reads.
fn unheard() -> io::Result<OwnedFd> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?.1)
}

/// What is in the pipe with this inode, looked at through whichever task holds it.
fn unread(inode: u64, tasks: &[OuterPid]) -> Vec<u8> {
    let name = format!("pipe:[{inode}]");
    for task in tasks {
        let Ok(links) = std::fs::read_dir(format!("/proc/{task}/fd")) else { continue };
        for link in links.flatten().map(|entry| entry.path()) {
            if std::fs::read_link(&link).is_ok_and(|to| to.as_os_str() == name.as_str()) {
                let opened = OpenOptions::new()
                    .read(true)
                    .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                    .open(link);
                return opened.and_then(|pipe| peek_pipe(pipe.as_fd())).unwrap_or_default();
            }
        }
    }
    Vec::new()
}
