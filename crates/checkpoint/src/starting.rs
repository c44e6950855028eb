//! A job's start: what a user chose for it, its name, its folders.

use crate::error::{Chain, Failure, Kind};
use crate::facts;
use crate::gpus::Gpus;
use crate::libraries::Libraries;
use crate::lineage;
use crate::regular::Regularly;
use crate::runtime::{self, JobFacts, JobFolder};
use crate::sessions::{Destination, Sessions};
use crate::steer::Watching;
use crate::stores::check_store_for_job;
use crate::supervisor::{Ended, Supervisor};
use crate::trace::Trace;
use crate::way_back::WayBack;
use image::{Command, ImageId, Lineage, RawPath};
use server::memory::Managed;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::Access;
use transport::hello::HelloListener;

/// Where a process asks for a GPU session.
const HELLO: &str = "hello.sock";

/// The most jobs of one name that are numbered.
const NUMBERS: u32 = 9999;

/// What a job is to be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// So and not otherwise.
    Exactly(String),
    /// This and the first number that is free, from 1 on.
    Numbered(String),
}

/// What a user chose for a job.
pub struct Settings {
    /// Its name.
    pub name: Name,
    /// Where calls go: `gpu` or `soft`.
    pub device: String,
    /// How managed memory is had.
    pub managed: Managed,
    /// How long a marked kernel may have a device that other streams of its process wait for.
    pub preempt_after: Option<Duration>,
    /// Its store.
    pub store: Access,
    /// Whether it is the one that every command looks in anyway.
    pub store_is_default: bool,
    /// Most memory that rings and pinned memory may take, bytes.
    pub shared_memory: u64,
    /// Most memory of each device that a process may take, bytes.
    pub device_memory: Option<u64>,
    /// Its GPUs.
    pub gpus: Gpus,
    /// Where to write what its calls and checkpoints take.
    pub trace: Option<PathBuf>,
    /// Checkpoints that nobody asks for.
    pub regularly: Option<Regularly>,
    /// Whether whoever begins the job continues it from its newest image when a GPU server of it is lost: it is ended for that.
    pub continued: bool,
    /// Where to write a profile of the program.
    pub profile: Option<PathBuf>,
    /// How long a checkpoint waits for a point that suits the program, if it comes to such.
    pub point_wait: Duration,
}

impl Settings {
    /// What its servers are asked to watch.
    pub(crate) fn watching(&self) -> Watching {
        let course = self.regularly.as_ref().and_then(|regularly| regularly.when.course());
        Watching { profile: self.profile.clone(), course }
    }

    pub(crate) fn target(&self) -> Destination {
        Destination {
            device: self.device.clone(),
            managed: self.managed,
            preempt_after: self.preempt_after,
            memory: self.device_memory,
            gpus: self.gpus.clone(),
        }
    }
}

/// Runs a program as a job, to its end.
///
/// # Errors
/// When it cannot be started; what the program itself does is in the [`Ended`].
pub fn run(
    settings: Settings,
    mut spec: host::JobSpec,
    libraries: &Libraries,
    signals: host::signals::Forwarder,
) -> Result<Ended, Failure> {
    let trace = settings.trace.as_deref().map(Trace::begin).transpose()?;
    // Before the folder of all jobs is touched, which only root can.
    host::check_privilege().map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    if let Err(failure) = check_store_for_job(&settings.store) {
        let asked = [
            (settings.regularly.is_some(), "checkpointed there regularly"),
            (!settings.store.recipients.is_empty(), "checkpointed there encrypted"),
        ];
        if let Some((_, how)) = asked.iter().find(|(is_asked, _)| *is_asked) {
            let message = format!("{failure}; the program was not started, since it is to be {how}");
            return Err(Failure { message, ..failure });
        }
        tracing::warn!(
            "checkpoints of this job will fail: {failure}; the program runs all the same, and `dormouse checkpoint \
             --store DIR` writes elsewhere"
        );
    }
    let command = Command {
        args: spec.argv.iter().map(|arg| RawPath::from(arg.as_os_str())).collect(),
        cwd: RawPath::from(spec.cwd.as_os_str()),
    };
    let (facts, folder) = claim(&runtime::root(), &settings, &command, lineage::fresh()?, None)?;
    let tmpfs = tmpfs(settings.shared_memory)?;
    libraries.install(&tmpfs.path()).map_err(|(file, error)| {
        let what = format!("cannot put {} into the job", file.display());
        too_small(Failure::of(what, &error), &error, settings.shared_memory)
    })?;
    libraries.introduce(&mut spec);
    spec.hide = [host::driver::device_nodes(), host::driver::libraries_past_cuda()].concat();
    spec.blank = host::driver::blank_nodes();
    let way_back = Arc::new(WayBack::new(facts.job.clone(), None));
    let sessions = Sessions::new(tmpfs.path(), settings.target(), Arc::clone(&way_back), trace.clone());
    sessions.watch_programs(settings.watching());
    put_up_board(&sessions, &tmpfs, None, &settings)?;
    let hello = hello(&tmpfs.path())?;
    let callers = admin_socket(&folder)?;
    let serving = sessions.serve(hello);
    let spawned =
        host::Job::spawn(spec, tmpfs).map_err(|error| spawn_failure(&error, settings.shared_memory));
    let ending = spawned.and_then(|job| {
        let told = (way_back, settings.store.clone(), settings.store_is_default);
        let supervisor = Supervisor::new(facts, command, job, Arc::clone(&sessions), told);
        if settings.continued {
            supervisor.ends_when_lost();
        }
        supervisor.supervise(&folder, callers, signals, settings.regularly)
    });
    serving.end();
    trace.inspect(|trace| trace.end());
    ending
}

/// Where the supervisor is asked. It is there before the job runs: whoever has seen something of the job can ask at once.
pub(crate) fn admin_socket(folder: &JobFolder) -> Result<UnixListener, Failure> {
    let socket = folder.admin_socket();
    UnixListener::bind(&socket)
        .map_err(|error| Failure::of(format_args!("cannot listen on {}", socket.display()), &error))
}

/// Claims the job's folder under a name that it may have.
pub(crate) fn claim(
    root: &Path,
    settings: &Settings,
    command: &Command,
    lineage: Lineage,
    restarted_from: Option<String>,
) -> Result<(JobFacts, JobFolder), Failure> {
    let facts = |job: String| JobFacts {
        job,
        lineage,
        supervisor: std::process::id(),
        started_ns: facts::now_ns(),
        command: command.args.iter().map(ToString::to_string).collect(),
        device: settings.device.clone(),
        managed: settings.managed,
        store: settings.store.at.clone(),
        recipients: settings.store.recipients.iter().map(ToString::to_string).collect(),
        restarted_from: restarted_from.clone(),
        filling: None,
        sleep: None,
    };
    let mut number = 0;
    loop {
        number += 1;
        let facts = match &settings.name {
            Name::Exactly(name) => facts(name.clone()),
            Name::Numbered(base) => facts(format!("{base}-{number}")),
        };
        match JobFolder::claim(root, &facts) {
            Ok(folder) => return Ok((facts, folder)),
            // Of two that start at once, one takes the next.
            Err(taken) if taken.kind == Kind::Busy && settings.name.is_numbered() && number < NUMBERS => {}
            Err(failure) => return Err(failure),
        }
    }
}

impl Name {
    fn is_numbered(&self) -> bool {
        matches!(self, Self::Numbered(_))
    }
}

pub(crate) fn tmpfs(size: u64) -> Result<host::Tmpfs, Failure> {
    host::Tmpfs::create(size).map_err(|error| {
        let kind = if rustix::process::geteuid().is_root() { Kind::Failed } else { Kind::Unavailable };
        Failure::new(kind, Chain(&error).to_string())
    })
}

/// Names the flag, where the job's tmpfs of `size` bytes is full.
fn too_small(failure: Failure, error: &(dyn std::error::Error + 'static), size: u64) -> Failure {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let is_full = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::StorageFull)
    };
    if !causes.into_iter().any(is_full) {
        return failure;
    }
    let message = format!(
        "{}; the job's shared memory is {size} bytes: give --shared-memory a larger size",
        failure.message
    );
    Failure { message, ..failure }
}

/// Makes the job's board, or brings up to date that of an image.
pub(crate) fn put_up_board(
    sessions: &Sessions,
    tmpfs: &host::Tmpfs,
    image: Option<ImageId>,
    settings: &Settings,
) -> Result<(), Failure> {
    sessions.asks().begin(&tmpfs.path(), image, settings.point_wait).map_err(|error| {
        too_small(Failure::of("cannot make the job's board", &error), &error, settings.shared_memory)
    })
}

pub(crate) fn hello(shared: &Path) -> Result<HelloListener, Failure> {
    HelloListener::bind(&shared.join(HELLO))
        .map_err(|error| Failure::of("cannot listen for GPU sessions", &error))
}

fn spawn_failure(error: &host::SpawnError, shared_memory: u64) -> Failure {
    let kind = match (error, error.shell_code()) {
        (host::SpawnError::Privilege(_), _) => Kind::Unavailable,
        (_, 127) => Kind::NotFound,
        (_, 126) => Kind::CannotExecute,
        _ => Kind::Failed,
    };
    too_small(Failure::new(kind, Chain(error).to_string()), error, shared_memory)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn claimed(root: &Path, name: Name) -> Result<(JobFacts, JobFolder), Failure> {
        let settings = Settings {
            name,
            device: "soft".into(),
            managed: Managed::default(),
            preempt_after: None,
            store: store::Location::Folder("/store".into()).into(),
            store_is_default: false,
            shared_memory: 0,
            device_memory: None,
            gpus: Gpus::default(),
            trace: None,
            regularly: None,
            continued: false,
            profile: None,
            point_wait: Duration::ZERO,
        };
        claim(root, &settings, &Command::default(), lineage::fresh()?, None)
    }

    #[test]
    fn jobs_that_start_at_once_get_different_numbers() {
        let root = tempfile::tempdir().unwrap();
        let all: Vec<_> = std::thread::scope(|scope| {
            let claiming: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| claimed(root.path(), Name::Numbered("job".into())).unwrap()))
                .collect();
            claiming.into_iter().map(|each| each.join().unwrap()).collect()
        });
        let mut names: Vec<&str> = all.iter().map(|(facts, _)| facts.job.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, (1..=8).map(|number| format!("job-{number}")).collect::<Vec<_>>());
        let taken = claimed(root.path(), Name::Exactly("job-3".into())).unwrap_err();
        assert_eq!(taken.kind, Kind::Busy);
    }
}
