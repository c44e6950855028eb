//! The plugin that CRIU is given (`crates/criu-plugin`): it keeps private memory from it, and makes copies of a job's processes while all of them stand
//! still.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::withheld::{FILE, FILES, Ranges, Unheard, Withheld};
use crate::pagescan;
use crate::tasks::{OuterPid, private_range};

/// The environment variable by which it knows who has started CRIU.
const STARTED_BY: &str = "DORMOUSE_STARTED_BY";
/// The environment variable by which the plugin knows its socket.
const SOCKET: &str = "DORMOUSE_COPIES";
/// The one by which CRIU knows where its plugins are.
const PLUGINS: &str = "CRIU_LIBS_DIR";
/// The one by which it is loaded before anything else.
const PRELOADED: &str = "LD_PRELOAD";
/// The plugin's file among CRIU's plugins.
const LIBRARY: &str = "dormouse.so";
/// Asks the plugin for copies, and later lets the job go on.
const GO: &[u8] = b"c";
/// What is said here behind all that the plugin says before CRIU has dumped everything.
const DUMPED: &str = "dumped";
/// How long the plugin may say nothing: a copy takes as long as its process's page tables.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a copy may take to be gone.
const GRACE: Duration = Duration::from_secs(2);
/// No line of the plugin's is longer, bytes.
const LINE: u64 = 4096;

/// The processes that are copies.
pub(crate) type Known = Arc<Mutex<BTreeSet<OuterPid>>>;

/// The folder with the plugin: in a kit and a bundle, beside this program's.
pub(super) fn plugins() -> Option<PathBuf> {
    let program = env::current_exe().and_then(fs::canonicalize).ok()?;
    Some(program.parent()?.parent()?.join("lib/criu")).filter(|folder| folder.is_dir())
}

/// The plugin's file, where it can keep memory from CRIU.
pub(super) fn withholds() -> Option<PathBuf> {
    let library = plugins()?.join(LIBRARY);
    // The loader takes these for the end of a name.
    let is_one_name = library.to_str().is_some_and(|path| !path.contains([' ', ':']));
    (is_one_name && library.is_file() && pagescan::is_there()).then_some(library)
}

/// What the plugin is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Duties {
    /// Make copies of the processes.
    pub(super) copies: bool,
    /// Keep private memory from CRIU.
    pub(super) withholds: bool,
    /// And files in memory that have no names.
    pub(super) files: bool,
}

/// What was seen of the processes' private memory while CRIU dumped them, in order.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// What their copies will not have as they have it.
    pub(super) unlike: Ranges,
    /// What their program has excluded.
    pub(super) excluded: Ranges,
}

type Listening = JoinHandle<io::Result<(Seen, BufReader<UnixStream>)>>;

/// The plugin, as long as CRIU has not let the job go.
#[derive(Debug)]
pub(super) struct Plugin {
    ours: UnixStream,
    /// None once CRIU has it alone.
    theirs: Option<UnixStream>,
    withheld: Option<Withheld>,
    withholds_files: bool,
    listening: Option<Listening>,
    heard: Option<BufReader<UnixStream>>,
    /// Copies that are of no use. The job's init collects them when it goes on.
    lost: Vec<Copy>,
}

impl Plugin {
    pub(super) fn new(duties: Duties) -> io::Result<Self> {
        let withheld = duties.withholds.then(Withheld::new).transpose()?;
        let (ours, theirs) = UnixStream::pair()?;
        let reader = BufReader::new(ours.try_clone()?);
        let listen = move || before_the_dump(reader);
        let listening = Some(thread::Builder::new().name("copies".into()).spawn(listen)?);
        let (theirs, withholds_files) = (Some(theirs), duties.files);
        Ok(Self { ours, theirs, withheld, withholds_files, listening, heard: None, lost: Vec::new() })
    }

    /// What CRIU has to know of it.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let socket = self.theirs.as_ref().map(|theirs| (SOCKET, theirs.as_raw_fd().to_string().into()));
        let file = self.withheld.as_ref().map(|withheld| (FILE, withheld.number().into()));
        let files = self.withholds_files.then(|| (FILES, "1".into()));
        let preloaded = file.as_ref().and_then(|_| Some((PRELOADED, withholds()?.into())));
        let folder = plugins().map(|folder| (PLUGINS, folder.into()));
        let us = Some((STARTED_BY, std::process::id().to_string().into()));
        [socket, file, files, preloaded, folder, us].into_iter().flatten().collect()
    }

    /// What CRIU gets.
    pub(super) fn passed(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.theirs.as_ref().map(AsFd::as_fd).into_iter().chain(self.withheld.as_ref().map(Withheld::fd))
    }

    /// What CRIU, which has dumped all processes, has not heard of.
    pub(super) fn withheld(&mut self) -> io::Result<Unheard> {
        self.withheld.take().map_or_else(|| Ok(Unheard::default()), Withheld::read)
    }

    /// What was seen of the processes while CRIU dumped them, which it has now.
    pub(super) fn dumped(&mut self) -> io::Result<Seen> {
        if let Some(mut theirs) = self.theirs.take() {
            writeln!(theirs, "{DUMPED}")?;
        }
        let listening = self.listening.take().ok_or(io::ErrorKind::NotConnected)?;
        let (seen, heard) = listening.join().unwrap_or(Err(io::ErrorKind::Other.into()))?;
        if seen.unlike.is_empty() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "CRIU has not loaded the plugin"));
        }
        heard.get_ref().set_read_timeout(Some(PATIENCE))?;
        self.heard = Some(heard);
        Ok(seen)
    }

    /// Has copies made when CRIU goes on.
    pub(super) fn ask(&mut self) -> io::Result<()> {
        self.ours.write_all(GO)
    }

    /// The copies, with the processes that they are of. The job stands still until [`Self::go_on`].
    ///
    /// # Errors
    /// `Unsupported` when a process can have none; it stands still all the same.
    pub(super) fn copies(&mut self, known: &Known) -> io::Result<BTreeMap<OuterPid, Copy>> {
        let heard = self.heard.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut copies = BTreeMap::new();
        let told = told(heard, known, &mut copies);
        if told.is_err() {
            copies.values().for_each(Copy::kill);
            self.lost = copies.into_values().collect();
            return told.map(|()| BTreeMap::new());
        }
        Ok(copies)
    }

    /// Lets CRIU let the job go; if nobody says so, it does when this is dropped, and there are no copies.
    pub(super) fn go_on(mut self) -> io::Result<()> {
        self.ours.write_all(GO)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // The listener, too, and the plugin: nobody waits for anybody.
        let _ = self.ours.shutdown(Shutdown::Both);
    }
}

/// The copies that the plugin tells of.
fn told(
    heard: &mut BufReader<UnixStream>,
    known: &Known,
    copies: &mut BTreeMap<OuterPid, Copy>,
) -> io::Result<()> {
    let mut failed = None;
    loop {
        let line = line(heard)?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["copy", process, copy] => {
                let process = pid(process)?;
                copies.insert(process, Copy::of(process, pid(copy)?, known)?);
            }
            ["failed", process, ..] => {
                let why = line.splitn(3, ' ').last().unwrap_or_default();
                let why = format!("process {process} cannot be copied: {why}");
                failed = Some(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            ["done"] => return failed.map_or(Ok(()), Err),
            [""] => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The plugin's next line; an empty one at the end.
fn line(heard: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    heard.take(LINE).read_line(&mut line)?;
    line.truncate(line.trim_end().len());
    Ok(line)
}

/// Looks at the processes as they are told of, until they have all been dumped: it costs no time of its own.
fn before_the_dump(mut heard: BufReader<UnixStream>) -> io::Result<(Seen, BufReader<UnixStream>)> {
    let mut seen = Seen::default();
    loop {
        let line = line(&mut heard)?;
        match line.split_once(' ') {
            Some(("frozen", process)) => {
                let process = pid(process)?;
                let smaps = fs::read_to_string(format!("/proc/{process}/smaps"))?;
                seen.unlike.insert(process, private_with(&smaps, is_unlike));
                seen.excluded.insert(process, private_with(&smaps, is_excluded));
            }
            None if line == DUMPED => return Ok((seen, heard)),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn pid(text: &str) -> io::Result<OuterPid> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.map(OuterPid).ok_or(io::ErrorKind::InvalidData.into())
}

/// The private mappings of a process, in order, that `is_one` says so of, by the first line and the flags of each.
fn private_with(smaps: &str, is_one: fn(&str, &[&str]) -> bool) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut here: Option<(&str, Range<u64>)> = None;
    for line in smaps.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) => {
                let flags: Vec<&str> = flags.split_ascii_whitespace().collect();
                found.extend(here.take().filter(|(line, _)| is_one(line, &flags)).map(|(_, range)| range));
            }
            None => here = private_range(line).map(|range| (line, range)).or(here),
        }
    }
    found
}

/// Whether a process has kept it from its children, or has them find it empty (`MADV_DONTFORK`, `MADV_WIPEONFORK`).
fn is_unlike(_: &str, flags: &[&str]) -> bool {
    flags.contains(&"dc") || flags.contains(&"wf")
}

/// Whether its program has excluded it: no file's, and marked by `libdormouse` (`crates/ask/src/exclude.rs`) with two advices
/// (`MADV_DONTDUMP`, `MADV_RANDOM`), which mean that in jobs that say so ([`crate::EXCLUDES`]). What grows by itself is no one's to exclude.
fn is_excluded(line: &str, flags: &[&str]) -> bool {
    let is_anonymous = line.split_ascii_whitespace().nth(4) == Some("0");
    is_anonymous && flags.contains(&"dd") && flags.contains(&"rr") && !flags.contains(&"gd")
}

impl Seen {
    /// The same where no program has excluded anything.
    pub(super) fn with_nothing_excluded(self) -> Self {
        Self { excluded: Ranges::new(), ..self }
    }
}

/// A copy of a process, which does nothing, and ends when this is dropped.
#[derive(Debug)]
pub(super) struct Copy {
    pid: OuterPid,
    process: OwnedFd,
    memory: File,
    known: Known,
}

impl Copy {
    /// Process `pid` as the copy of `original`.
    fn of(original: OuterPid, pid: OuterPid, known: &Known) -> io::Result<Self> {
        let raw = Pid::from_raw(pid.0).ok_or(io::ErrorKind::InvalidData)?;
        let process = pidfd_open(raw, PidfdFlags::empty())?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid"));
        if namespace(pid)? != namespace(original)? {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "that is no process of the job's"));
        }
        // Where memory runs short it goes before the job does.
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
        known.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        Ok(Self { pid, process, memory, known: Arc::clone(known) })
    }

    /// Ends it. Something is left of it until it has been collected.
    pub(super) fn kill(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Its memory.
    pub(super) fn memory(&self) -> &File {
        &self.memory
    }
}

impl Drop for Copy {
    /// Ends it, and waits until the job's init has collected it: CRIU would dump what is left of it.
    fn drop(&mut self) {
        let until = Instant::now() + GRACE;
        while pidfd_send_signal(&self.process, Signal::KILL).is_ok() {
            if Instant::now() > until {
                tracing::warn!(pid = %self.pid, "a copy of one of the job's processes does not end");
                break;
            }
            thread::sleep(Duration::from_micros(200));
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COPIES: Duties = Duties { copies: true, withholds: false, files: false };

    #[test]
    fn what_children_do_not_have_is_found() {
        let smaps = "\
7f0000000000-7f0000003000 rw-p 00000000 00:00 0 \nSize: 12 kB\nVmFlags: rd wr mr mw me ac \n\
7f0000003000-7f0000004000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me wf ac \n\
7f0000005000-7f0000006000 rw-s 00000000 00:2f 3 /a-b c\nVmFlags: rd wr sh mr mw me ms dc \n\
7f0000007000-7f0000009000 rw-p 00000000 00:2f 3 /a-b c\nVmFlags: rd wr mr mw me dc \n";
        assert_eq!(
            private_with(smaps, is_unlike),
            [0x7f00_0000_3000..0x7f00_0000_4000, 0x7f00_0000_7000..0x7f00_0000_9000]
        );
    }

    #[test]
    fn what_a_program_has_excluded_is_found() {
        let smaps = "\
7f0000000000-7f0000003000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me ac dd \n\
7f0000003000-7f0000004000 rw-p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd wr mr mw me rr ac dd \n\
7f0000005000-7f0000006000 rw-s 00000000 00:2f 3 /a-b c\nVmFlags: rd wr sh mr mw me ms rr dd \n\
7f0000006000-7f0000007000 rw-p 00000000 00:2f 3 /a-b c\nVmFlags: rd wr mr mw me rr dd \n\
7f0000007000-7f0000008000 rw-p 00000000 00:00 0                          [heap]\nVmFlags: rd wr mr mw me rr dd \n\
7f0000009000-7f000000a000 rw-p 00000000 00:00 0                          [stack]\nVmFlags: rd wr mr mw me gd rr dd \n";
        assert_eq!(
            private_with(smaps, is_excluded),
            [0x7f00_0000_3000..0x7f00_0000_4000, 0x7f00_0000_7000..0x7f00_0000_8000]
        );
    }

    #[test]
    fn the_plugin_is_heard() {
        let mut plugin = Plugin::new(COPIES).unwrap();
        let mut theirs = plugin.theirs.as_ref().unwrap().try_clone().unwrap();
        let here = std::process::id();
        writeln!(theirs, "frozen {here}").unwrap();
        let seen = plugin.dumped().unwrap();
        assert_eq!(seen.unlike.keys().collect::<Vec<_>>(), [&OuterPid(here as i32)]);
        plugin.ask().unwrap();
        writeln!(theirs, "failed {here} it may not\ndone").unwrap();
        let known = Known::default();
        let error = plugin.copies(&known).unwrap_err();
        assert_eq!(error.to_string(), format!("process {here} cannot be copied: it may not"));
        drop(plugin);
        // Nobody waits for the other.
        let mut all = Vec::new();
        io::Read::read_to_end(&mut theirs, &mut all).unwrap();
        assert_eq!(all, GO);
    }

    #[test]
    fn a_plugin_that_was_not_loaded_is_missed() {
        let mut plugin = Plugin::new(COPIES).unwrap();
        assert_eq!(plugin.dumped().unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
