//! A job's life under its supervisor: started or restarted, watched, checkpointed, ended.

use crate::admin::{CheckpointOptions, Event, Request, receive, send};
use crate::cut::{self, Unwatched};
use crate::error::{Chain, Failure, Kind, no_thread};
use crate::facts;
use crate::filling::Filling;
use crate::gpus::Gpus;
use crate::hand_over::{HandOver, Moved};
use crate::libraries::Libraries;
use crate::lineage;
use crate::regular::Regularly;
use crate::runtime::{self, JobFacts, JobFolder};
use crate::sessions::{Destination, RECOVERY, Sessions, stop_listening, wait_for_caller};
use crate::steer::{Moment, Watching};
use crate::stores::check_store_for_job;
use crate::suspend::Wake;
use crate::trace::Trace;
use crate::way_back::{Newest, WayBack};
use image::{Command, ImageId, Lineage, RawPath};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use server::memory::Managed;
use std::collections::BTreeSet;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use store::{Access, Recipient, Store};
use transport::hello::HelloListener;

/// Where a process asks for a GPU session.
const HELLO: &str = "hello.sock";
/// How long whoever asks may take to say what, and to hear the answer.
const ASKING: Duration = Duration::from_secs(10);
/// Between two looks whether a checkpoint that is under way is done.
const TURN: Duration = Duration::from_millis(200);

/// How often it is looked whether whoever asked is still there.
const LOOK: Duration = Duration::from_millis(200);

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

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub job: String,
    /// As the program did.
    pub ending: host::Ending,
    /// The image after which it was stopped, when that is why it ended.
    pub stopped_after: Option<ImageId>,
    /// Where it goes on, when it was stopped for that.
    pub moved_to: Option<Moved>,
    /// Whether a GPU server of it has died.
    pub lost: bool,
    /// Its newest image, if it has one.
    pub newest: Option<Newest>,
}

/// A running job.
pub struct Supervisor {
    pub(crate) facts: JobFacts,
    pub(crate) command: Command,
    pub(crate) job: Arc<host::Job>,
    pub(crate) sessions: Arc<Sessions>,
    cutting: Mutex<()>,
    /// The images that have come about, in whatever stores.
    published: Mutex<BTreeSet<ImageId>>,
    /// By which a job that is suspended is resumed.
    pub(crate) wake: Mutex<Option<mpsc::Sender<Wake>>>,
    way_back: Arc<WayBack>,
    /// Its store, and what opens that.
    pub(crate) store: Access,
    /// For whom that was encrypted when a checkpoint first opened it.
    recipients: OnceLock<Vec<Recipient>>,
    store_is_default: bool,
    stopped_after: OnceLock<ImageId>,
    moved_to: OnceLock<Moved>,
    pub(crate) filling: Filling,
    rehearsed: AtomicBool,
    ended: Mutex<bool>,
    /// Told when `ended` is.
    ending: Condvar,
}

/// Who has called, and the thread that answers.
struct Answering {
    thread: JoinHandle<()>,
    stream: UnixStream,
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

impl Supervisor {
    pub(crate) fn new(
        facts: JobFacts,
        command: Command,
        job: host::Job,
        sessions: Arc<Sessions>,
        (way_back, store, store_is_default): (Arc<WayBack>, Access, bool),
    ) -> Arc<Self> {
        Arc::new(Self {
            facts,
            command,
            job: Arc::new(job),
            sessions,
            cutting: Mutex::default(),
            published: Mutex::default(),
            wake: Mutex::default(),
            way_back,
            store,
            recipients: OnceLock::new(),
            store_is_default,
            stopped_after: OnceLock::new(),
            moved_to: OnceLock::new(),
            filling: Filling::default(),
            rehearsed: AtomicBool::new(false),
            ended: Mutex::default(),
            ending: Condvar::new(),
        })
    }

    /// Whoever began the job continues it from its newest image when a GPU server of it is lost.
    pub(crate) fn ends_when_lost(&self) {
        let job = Arc::clone(&self.job);
        self.way_back.is_taken(move || {
            let job = Arc::clone(&job);
            let kill = move || {
                if let Err(error) = job.kill() {
                    tracing::error!("the job does not end: {error}");
                }
            };
            if let Err(error) = Builder::new().spawn(kill) {
                tracing::error!("the job is not ended: {}", no_thread(&error));
            }
        });
    }

    /// Answers questions until the job has ended.
    pub(crate) fn supervise(
        self: Arc<Self>,
        folder: &JobFolder,
        callers: UnixListener,
        signals: host::signals::Forwarder,
        regularly: Option<Regularly>,
    ) -> Result<Ended, Failure> {
        if let Some(init) = self.job.outer(host::InnerPid::INIT) {
            folder.note_init(&self.facts.job, init.0)?;
        }
        let listener = Arc::new(callers);
        signals.forward_to(&self.job).map_err(|error| Failure::of("cannot pass on signals", &error))?;
        let listening = {
            let (this, listener) = (Arc::clone(&self), Arc::clone(&listener));
            std::thread::spawn(move || this.listen(&listener))
        };
        let regular = regularly.map(|regularly| {
            let this = Arc::clone(&self);
            std::thread::spawn(move || this.checkpoint_regularly(&regularly))
        });
        let asked = {
            let this = Arc::clone(&self);
            std::thread::spawn(move || this.checkpoint_as_asked())
        };
        let ending = self.job.wait().map_err(|error| Failure::of("cannot wait for the job", &error));
        self.sessions.decide();
        *self.ended() = true;
        self.ending.notify_all();
        self.sessions.asks().end();
        stop_listening(&*listener);
        let answering = listening.join().unwrap_or_default();
        // A checkpoint that has its cut is still published when the job ends meanwhile, and whoever asked is told. Who has not
        // asked yet is not waited for.
        drop(self.cutting.lock());
        // One that panicked has said so.
        drop((regular.map(JoinHandle::join), asked.join()));
        for Answering { thread, stream } in answering {
            let _ = stream.shutdown(Shutdown::Read);
            // One that panicked has said so.
            let _ = thread.join();
        }
        if let Some(failure) = self.filling.failure() {
            return Err(failure);
        }
        Ok(Ended {
            job: self.facts.job.clone(),
            ending: ending?,
            stopped_after: self.stopped_after.get().copied(),
            moved_to: self.moved_to.get().cloned(),
            lost: self.way_back.is_lost(),
            newest: self.way_back.newest(),
        })
    }

    /// Answers until the job has ended, each question on a thread of its own; gives those that are still at it.
    fn listen(self: &Arc<Self>, listener: &UnixListener) -> Vec<Answering> {
        let mut answering: Vec<Answering> = Vec::new();
        loop {
            wait_for_caller(listener);
            if *self.ended() {
                return answering;
            }
            answering.retain(|each| !each.thread.is_finished());
            match listener.accept().and_then(|(stream, _)| Ok((stream.try_clone()?, stream))) {
                Ok((stream, ours)) => {
                    let this = Arc::clone(self);
                    let thread = Builder::new().spawn(move || {
                        if let Err(error) = this.answer(&ours) {
                            tracing::debug!("whoever asked is gone: {error}");
                        }
                    });
                    match thread {
                        Ok(thread) => answering.push(Answering { thread, stream }),
                        Err(error) => {
                            // Whoever asked would not read what is sent to him before he was heard.
                            let heard = stream.set_read_timeout(Some(RECOVERY)).and_then(|()| {
                                receive::<Request>(&mut BufReader::new(stream.try_clone()?)).map(drop)
                            });
                            let _ = heard.and_then(|()| send(&stream, &Event::Failed(no_thread(&error))));
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!("admin socket: {error}");
                    std::thread::sleep(RECOVERY);
                }
            }
        }
    }

    fn answer(self: Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(ASKING))?;
        stream.set_write_timeout(Some(ASKING))?;
        let mut from = BufReader::new(stream.try_clone()?);
        match receive(&mut from)? {
            Some(request) => {
                let is_handed_over = matches!(request, Request::HandOver(_));
                let hand_over = is_handed_over.then(|| HandOver::heard(from)).transpose()?;
                // Who is gone by now, as when this process was suspended, wants nothing any more.
                send(stream, &Event::Step { step: "preparing".to_owned() })?;
                let (events, queue) = mpsc::channel();
                let this = Arc::clone(&self);
                // What was asked for does not wait for whoever looks on.
                let carry_out = move || this.carry_out(&request, hand_over, events);
                if let Err(error) = Builder::new().spawn(carry_out) {
                    return send(stream, &Event::Failed(no_thread(&error)));
                }
                loop {
                    match queue.recv_timeout(LOOK) {
                        Ok(event) => send(stream, &event)?,
                        Err(RecvTimeoutError::Disconnected) => return Ok(()),
                        // What was not begun in earnest is given up, since nobody takes what it sends any more.
                        Err(RecvTimeoutError::Timeout) if has_hung_up(stream) => return Ok(()),
                        Err(RecvTimeoutError::Timeout) => {}
                    }
                }
            }
            None => Ok(()),
        }
    }

    fn carry_out(&self, request: &Request, hand_over: Option<HandOver>, events: mpsc::Sender<Event>) {
        match request {
            Request::Checkpoint(options) | Request::HandOver(options) => {
                let stop = options.stop || hand_over.is_some();
                let options = CheckpointOptions { stop, ..options.clone() };
                let taken = self.checkpoint_at(&options, (None, hand_over.as_ref()), &events);
                let kept = hand_over.and_then(HandOver::into_kept);
                let last = match kept.map_or(taken, Err) {
                    Ok(report) => Event::Published(report),
                    Err(failure) => Event::Failed(failure),
                };
                let _ = events.send(last);
            }
            Request::Suspend(options) => self.suspend(options, events),
            Request::Resume(options) => self.resume(options, events),
        }
    }

    pub(crate) fn checkpoint(
        &self,
        options: &CheckpointOptions,
        events: &mpsc::Sender<Event>,
    ) -> Result<crate::admin::Report, Failure> {
        self.checkpoint_at(options, (None, None), events)
    }

    /// The same, at a moment that the program comes to, or of a job that is to go on elsewhere.
    pub(crate) fn checkpoint_at(
        &self,
        options: &CheckpointOptions,
        how: (Option<&Moment>, Option<&HandOver>),
        events: &mpsc::Sender<Event>,
    ) -> Result<crate::admin::Report, Failure> {
        let waits = options.stop.then(|| Unwatched::checkpoint(options, how.1));
        let turn = self.sessions.asks().turn(self.turn(waits, events)?);
        self.way_back.writes(true);
        let taken = self.await_filled(events).and_then(|()| cut::take(self, options, how, events));
        self.way_back.writes(false);
        turn.ends(taken.as_ref().map(|report| &*report.image));
        taken
    }

    /// What whoever takes a checkpoint holds. Who wants to stop the job waits for one that is under way: it had better not be killed
    /// without its image because another one was being written. The others are told, as somebody who is no longer there.
    pub(crate) fn turn(
        &self,
        waits: Option<Unwatched>,
        events: &mpsc::Sender<Event>,
    ) -> Result<MutexGuard<'_, ()>, Failure> {
        loop {
            self.is_awake()?;
            match self.cutting.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            let step = "waiting for the checkpoint that is under way";
            if waits.is_some_and(|unwatched| unwatched.still_wanted(events, step).is_ok()) {
                if self.ends_within(TURN) {
                    return Err(ended_before());
                }
                continue;
            }
            // The supervisor itself takes the lock when the job has ended.
            if *self.ended() {
                return Err(ended_before());
            }
            let message = format!(
                "a checkpoint of job {:?} is under way already: try again when it is written (with --stop that is waited for)",
                self.facts.job
            );
            return Err(Failure::new(Kind::Busy, message));
        }
    }

    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`; whether the job has ended by then, in which case not that long.
    pub(crate) fn ends_within(&self, pause: Duration) -> bool {
        let waited = self.ending.wait_timeout_while(self.ended(), pause, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the object tables, as they were then, have been rehearsed.
    pub(crate) fn is_rehearsed(&self) -> bool {
        self.rehearsed.load(Ordering::Relaxed)
    }

    /// The object tables, as they are captured now, have been rehearsed.
    pub(crate) fn has_rehearsed(&self) {
        self.rehearsed.store(true, Ordering::Relaxed);
    }

    /// The object tables are not those that were rehearsed.
    pub(crate) fn forget_rehearsal(&self) {
        self.rehearsed.store(false, Ordering::Relaxed);
    }

    /// Whether it is an image of this life of the job.
    pub(crate) fn has_published(&self, image: ImageId) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).contains(&image)
    }

    /// The newest image of this job.
    pub(crate) fn newest_image(&self) -> Option<ImageId> {
        self.way_back.newest().map(|newest| newest.image)
    }

    /// The job is about to be ended, since its image is safe.
    pub(crate) fn stopping_after(&self, image: ImageId) {
        // Only one checkpoint gets here: nothing is left for a second.
        let _ = self.stopped_after.set(image);
    }

    /// The job is about to be ended, since it goes on there.
    pub(crate) fn going_to(&self, moved: Moved) {
        // As with its image.
        let _ = self.moved_to.set(moved);
    }

    /// The store that a checkpoint goes to, and what opens it.
    pub(crate) fn access(&self, options: &CheckpointOptions) -> Access {
        let mut access = options.store.clone().unwrap_or_else(|| self.store.clone());
        inherit(&mut access, &self.store, self.recipients.get());
        access
    }

    /// A checkpoint has opened `store`. If that is the job's own and is encrypted, it stays so: nothing else that is found in its place later is
    /// written.
    pub(crate) fn has_opened(&self, options: &CheckpointOptions, store: &Store) {
        if options.store.is_none() && store.is_encrypted() {
            // The first counts.
            let _ = self.recipients.set(store.recipients().to_vec());
        }
    }

    /// There is a newer image of this job, in `store`, which `access` has opened.
    pub(crate) fn published(&self, image: ImageId, (store, access): (&Store, &Access)) {
        let at = store.location();
        let elsewhere = at != self.facts.store;
        // Where it lies elsewhere, the name may mean an older image in the job's own store.
        let is_meant = || store.find(&self.facts.job).is_ok_and(|found| found.is(image));
        let reference = if !elsewhere && is_meant() { self.facts.job.clone() } else { image.short() };
        let told = (elsewhere || !self.store_is_default).then_some(at);
        self.published.lock().unwrap_or_else(PoisonError::into_inner).insert(image);
        self.way_back.published(Newest { image, reference, store: told, keys: keys(store, access) });
    }
}

/// What was not given for the store of one checkpoint is as for the job's `own`, which was found to be encrypted for `found`: memory that is encrypted
/// there is nowhere written plain.
fn inherit(access: &mut Access, own: &Access, found: Option<&Vec<Recipient>>) {
    if access.key.is_none() {
        access.key = own.key.clone();
    }
    if access.recipients.is_empty() {
        access.recipients.clone_from(&own.recipients);
    }
    if let (true, Some(found)) = (access.recipients.is_empty(), found) {
        access.recipients.clone_from(found);
    }
}

/// The key files that a store needs to be opened.
pub(crate) fn keys(store: &Store, access: &Access) -> Vec<PathBuf> {
    if store.is_encrypted() { access.key.files().to_vec() } else { Vec::new() }
}

/// Whether nobody is at the other end any more.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::empty())];
    let looks = poll(&mut looked, Some(&Timespec::default()));
    looks.is_ok() && looked.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}

/// The failure of a checkpoint that its job did not wait for.
pub(crate) fn ended_before() -> Failure {
    Failure::new(Kind::Ended, "the job ended before its checkpoint; nothing was published")
}

pub(crate) fn criu() -> Result<host::Criu, Failure> {
    host::Criu::find().map_err(|error| Failure::new(Kind::Unavailable, Chain(&error).to_string()))
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
    fn who_hangs_up_is_noticed_and_who_only_listens_is_not_taken_for_him() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&ours));
        ours.shutdown(Shutdown::Read).unwrap();
        assert!(!has_hung_up(&ours));
        drop(theirs);
        assert!(has_hung_up(&ours));
    }

    #[test]
    fn memory_that_is_encrypted_in_one_store_is_so_in_every_other() {
        let own: Recipient =
            "age12pkx975ck0a0lp59dsl4spy76m922raqy0uw54w9fg7v2hwax4uszmatph".parse().unwrap();
        let key = store::Key::Secret(store::Secret::random().unwrap());
        let plain: Access = store::Location::Folder("/store".into()).into();
        let made = Access { key: key.clone(), recipients: vec![own.clone()], ..plain.clone() };
        let found = Access { recipients: Vec::new(), ..made.clone() };
        for (job, seen, recipients) in [
            (&made, None, vec![own.clone()]),
            (&found, Some(vec![own.clone()]), vec![own.clone()]),
            (&found, None, Vec::new()),
        ] {
            let mut access = plain.clone();
            inherit(&mut access, job, seen.as_ref());
            assert_eq!((&access.key, &access.recipients), (&key, &recipients));
        }
        let mut access = plain.clone();
        inherit(&mut access, &plain, None);
        assert_eq!(access, plain);
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
