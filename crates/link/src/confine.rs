//! What a session's process gives up before it reads a byte of its client's.

use landlock::{
    ABI, Access, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    UnshareFlags, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

/// Who has it where there is no user of the name `nobody`.
const NOBODY: u32 = 65_534;
/// From here on users' numbers are nobody's, by what is agreed for Linux (systemd's `UIDS-GIDS.md`): one for each process that there can be.
const OWN: u32 = 0x7000_0000;

/// A user to become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Who has no rights: `nobody`.
    #[must_use]
    pub fn nobody() -> Self {
        "nobody".parse().unwrap_or(Self { uid: NOBODY, gid: NOBODY })
    }

    /// One that no other process has: of its pid, as long as it lives.
    #[must_use]
    pub fn of_this_process() -> Self {
        let number = OWN + std::process::id();
        Self { uid: number, gid: number }
    }

    /// Its number.
    #[must_use]
    pub fn uid(self) -> u32 {
        self.uid
    }

    /// From lines as those of `/etc/passwd`.
    fn named(name: &str, passwd: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is_it = fields.next() == Some(name);
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            is_it.then_some(Self { uid, gid })
        })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for User {
    type Err = String;

    /// A name in `/etc/passwd`, a number, or two: user and group.
    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        if let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) {
            return Ok(Self { uid, gid });
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self::named(text, &passwd).ok_or_else(|| {
            format!("/etc/passwd has no user {text}; its number and its group's do as well: UID:GID")
        })
    }
}

/// A right that could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Another user.
    #[error("cannot become user {uid}: {error}; --user root keeps this one")]
    User {
        /// The user's number.
        uid: u32,
        /// What the system said.
        error: io::Error,
    },
    /// Something else.
    #[error("cannot {what}: {error}")]
    Other {
        /// What.
        what: &'static str,
        /// What the system said.
        error: String,
    },
}

impl ConfineError {
    fn other(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |error| Self::Other { what, error: error.to_string() }
    }
}

/// What a session's process gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confinement {
    /// Whom to become, if root; [one of its own](User::of_this_process), if nobody is named, or `nobody` where the user namespace has no such numbers.
    pub user: Option<User>,
    /// Whether it may make connections; else it has those that it is given, and a network of its own with nothing in it where that may be had.
    pub network: bool,
    /// Whether to allow only the system calls that the software device makes.
    pub system_calls: bool,
}

/// Gives up what no session needs, for this thread and those that it will start: call it while there is no other.
pub(crate) fn confine(confinement: Option<Confinement>) -> Result<(), ConfineError> {
    let Some(Confinement { user, network, system_calls }) = confinement else {
        // What it starts lives on.
        return set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(ConfineError::other("end with whoever started this process"));
    };
    if rustix::process::geteuid().is_root() {
        if !network {
            leave_network()?;
        }
        match user {
            Some(user) => become_user(user)?,
            None => become_nobody()?,
        }
    }
    // Its sessions end with the process that accepts; changing the user has cleared this.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(ConfineError::other("end with whoever started this process"))?;
    set_no_new_privs(true).map_err(ConfineError::other("give up getting privileges"))?;
    // Keys do not end up in a file, and no other process of the same user reads them.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(ConfineError::other("be kept from dumping core"))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(ConfineError::other("be kept from dumping core"))?;
    if !network {
        let kept = restrict_sockets()?;
        tracing::debug!(?kept, "no connections are made");
    }
    if system_calls { restrict_system_calls() } else { Ok(()) }
}

/// Goes on in a network with nothing in it. Root in a container may not; that is in a network of its own mostly.
fn leave_network() -> Result<(), ConfineError> {
    // SAFETY: the network's namespace is no memory, and no descriptor of this process changes.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => Ok(()),
        Err(error @ (Errno::PERM | Errno::INVAL | Errno::NOSYS)) => {
            tracing::debug!("a session's process keeps the machine's network: {error}");
            Ok(())
        }
        Err(error) => Err(ConfineError::other("leave the machine's network")(error)),
    }
}

/// Has no socket connected to anything, or bound: those that are given to a process stay in the network that they were made in. Signals go to nobody else.
/// Kernels before Linux 6.7 (6.12 for signals) do not keep it from that.
fn restrict_sockets() -> Result<RulesetStatus, ConfineError> {
    let restrict = || {
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        rules.handle_access(AccessNet::from_all(ABI::V4))?.scope(Scope::Signal)?.create()?.restrict_self()
    };
    let failed = |error: RulesetError| ConfineError::Other {
        what: "be kept from making connections",
        error: error.to_string(),
    };
    Ok(restrict().map_err(failed)?.ruleset)
}

fn become_nobody() -> Result<(), ConfineError> {
    match become_user(User::of_this_process()) {
        Err(ConfineError::User { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
            become_user(User::nobody())
        }
        done => done,
    }
}

fn become_user(user: User) -> Result<(), ConfineError> {
    let about = |error: rustix::io::Errno| ConfineError::User { uid: user.uid, error: error.into() };
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&[]).map_err(about)?;
    set_thread_res_gid(gid, gid, gid).map_err(about)?;
    set_thread_res_uid(uid, uid, uid).map_err(about)
}

/// System calls that TLS, threads and the software device make, whatever their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Data, on descriptors that are open already.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_eventfd2,
    // Memory.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    // Threads, which share this filter.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals to oneself.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // Who and where one is.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
];

/// No file is opened, no program started, no connection made, no memory made executable, and no other process reached from here on.
fn restrict_system_calls() -> Result<(), ConfineError> {
    let about = |error: &dyn std::fmt::Display| ConfineError::Other {
        what: "restrict system calls",
        error: error.to_string(),
    };
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| about(&error))?;
    let pid = u64::from(std::process::id());
    let is = |argument, op, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, op, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let without = |argument, bit: libc::c_int| {
        let bit = u64::from(bit.cast_unsigned());
        is(argument, SeccompCmpOp::MaskedEq(bit), 0)
    };
    let with = |argument, bit: libc::c_int| {
        let bit = u64::from(bit.cast_unsigned());
        is(argument, SeccompCmpOp::MaskedEq(bit), bit)
    };
    let conditions = || {
        Ok([
            (libc::SYS_mmap, without(2, libc::PROT_EXEC)?),
            (libc::SYS_mprotect, without(2, libc::PROT_EXEC)?),
            (libc::SYS_clone, with(0, libc::CLONE_THREAD)?),
            // Meant for descriptors; it can still be asked what lies where, though never what is in it.
            (libc::SYS_statx, with(2, libc::AT_EMPTY_PATH)?),
            (libc::SYS_newfstatat, with(3, libc::AT_EMPTY_PATH)?),
            (libc::SYS_kill, is(0, SeccompCmpOp::Eq, pid)?),
            (libc::SYS_tgkill, is(0, SeccompCmpOp::Eq, pid)?),
            (libc::SYS_prctl, is(0, SeccompCmpOp::Eq, libc::PR_SET_NAME.cast_unsigned().into())?),
        ])
    };
    let conditions = conditions().map_err(|error: seccompiler::BackendError| about(&error))?;
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    allowed.extend(conditions.map(|(call, rule)| (call, vec![rule])));
    // Not those by which others are sent signals.
    let plain = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    let plain = plain.map(|command| is(1, SeccompCmpOp::Eq, u64::from(command.cast_unsigned())));
    let plain: Result<Vec<SeccompRule>, _> = plain.into_iter().collect();
    allowed.insert(libc::SYS_fcntl, plain.map_err(|error| about(&error))?);
    // Its arguments lie in memory, where a filter cannot look: the C library then uses `clone`.
    let unknown: BTreeMap<i64, Vec<SeccompRule>> = [(libc::SYS_clone3, Vec::new())].into();
    allowed.insert(libc::SYS_clone3, Vec::new());
    let errno = |error: libc::c_int| SeccompAction::Errno(error.cast_unsigned());
    let filters = [
        SeccompFilter::new(unknown, SeccompAction::Allow, errno(libc::ENOSYS), arch),
        SeccompFilter::new(allowed, errno(libc::EPERM), SeccompAction::Allow, arch),
    ];
    let programs: Result<Vec<BpfProgram>, _> =
        filters.into_iter().map(|filter| filter.and_then(BpfProgram::try_from)).collect();
    // The narrower one last: it does not let another be installed.
    for program in programs.map_err(|error| about(&error))? {
        apply_filter(&program).map_err(|error| about(&error))?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::net::connect_unspec;
    use rustix::process::{Pid, kill_process};
    use std::io::ErrorKind;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Of this thread alone.
    #[test]
    fn sockets_that_were_handed_over_lead_nowhere_else() {
        let [listens, elsewhere] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let place = |listener: &TcpListener| listener.local_addr().unwrap();
        let mut socket = TcpStream::connect(place(&listens)).unwrap();
        let mut theirs = listens.accept().unwrap().0;
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&other);
        let status = std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                let status = restrict_sockets().unwrap();
                socket.write_all(b"x").unwrap();
                if status == RulesetStatus::FullyEnforced {
                    let denied = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                    denied(TcpStream::connect(place(&elsewhere)).unwrap_err());
                    denied(TcpListener::bind("127.0.0.1:0").unwrap_err());
                    connect_unspec(&socket).unwrap();
                    denied(rustix::net::connect(&socket, &place(&elsewhere)).unwrap_err().into());
                    assert_eq!(kill_process(pid, Signal::TERM), Err(Errno::PERM));
                }
                status
            });
            restricted.join().unwrap()
        });
        other.kill().unwrap();
        other.wait().unwrap();
        let mut came = [0];
        theirs.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"x");
        if status != RulesetStatus::FullyEnforced {
            eprintln!("not tried: this kernel does not keep a process from all of that ({status:?})");
        }
    }

    #[test]
    fn users() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533:n:/:/bin/false\nbad\n";
        assert_eq!(User::named("nobody", passwd), Some(User { uid: 65_534, gid: 65_533 }));
        assert_eq!(User::named("bad", passwd), None);
        assert_eq!("7".parse(), Ok(User { uid: 7, gid: 7 }));
        assert_eq!("7:8".parse(), Ok(User { uid: 7, gid: 8 }));
        assert!("no such user".parse::<User>().is_err());
    }

    #[test]
    fn a_confined_thread_computes_and_does_nothing_else() {
        // A filter is a thread's own, and those that it starts.
        let confined = std::thread::spawn(|| {
            restrict_system_calls().unwrap();
            let sum = std::thread::spawn(|| (0..1000_u64).sum::<u64>()).join().unwrap();
            assert_eq!(sum, 499_500);
            let big = vec![1_u8; 64 << 20];
            assert_eq!(big.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
            let denied = |error: io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            denied(fs::read("/etc/passwd").unwrap_err());
            denied(fs::File::create("/tmp/x").unwrap_err());
            denied(std::net::TcpStream::connect("127.0.0.1:9").unwrap_err());
            denied(std::os::unix::net::UnixStream::pair().unwrap_err());
            assert!(std::process::Command::new("/bin/true").spawn().is_err());
            let init = rustix::process::Pid::from_raw(1).unwrap();
            denied(rustix::process::test_kill_process(init).unwrap_err().into());
        });
        confined.join().unwrap();
    }
}
