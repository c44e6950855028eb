//! A restart: the cut in reverse. The order of the steps is in `ARCHITECTURE.md`.

use crate::cut::{JobRecord, explained};
use crate::error::{Chain, Failure, Kind};
use crate::folder::{self, read_failure};
use crate::lineage;
use crate::runtime;
use crate::sessions::{Session, Sessions, panicked};
use crate::stores::open_store;
use crate::supervisor::{Settings, Supervisor, claim, criu, hello, tmpfs};
use crate::work::WorkFolder;
use image::{ImageId, ObjectKind};
use std::path::Path;
use std::sync::Arc;
use store::Store;

/// CRIU's log holds its warnings.
const CRIU_LOG_LEVEL: i32 = 2;
/// The most a job's record may take.
const RECORD_MAX: usize = 256 << 20;

/// An image that is to be restarted.
pub struct Restart {
    store: Store,
    image: store::Image,
    record: JobRecord,
}

impl Restart {
    /// Reads the image's manifest and record.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Damaged`], [`Kind::Mismatch`] when it is of another architecture.
    pub fn open(store: &Path, reference: &str) -> Result<Self, Failure> {
        let store = open_store(store)?;
        let id = crate::find_image(&store, reference)?;
        let image = store.open_image(&id).map_err(|error| match error {
            store::ReadError::WrongMachine { .. } => Failure::new(Kind::Mismatch, Chain(&error).to_string()),
            other => read_failure(other),
        })?;
        let json = image.read_to_vec(&ObjectKind::HostRecord, RECORD_MAX).map_err(read_failure)?;
        let record: JobRecord = serde_json::from_slice(&json).map_err(|error| {
            Failure::new(Kind::Damaged, format!("the job's record in image {id} cannot be read: {error}"))
        })?;
        Ok(Self { store, image, record })
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> ImageId {
        self.image.manifest().id
    }

    /// The job's name when the image was taken.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.image.manifest().job
    }

    /// Where its calls went.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.record.device
    }

    /// Finds out whether [`Self::run`] would succeed, changing nothing: the job does not run, this machine has what it needs,
    /// CRIU works, and the device can hold the job's objects and memory at their addresses, which is tried.
    ///
    /// # Errors
    /// [`Kind::Busy`], [`Kind::Unavailable`], [`Kind::Mismatch`], [`Kind::DeviceFull`], [`Kind::Damaged`].
    pub fn check(&self, device: &str, shared_memory: u64) -> Result<(), Failure> {
        self.check_machine()?;
        lineage::check(&runtime::root(), self.record.lineage)?;
        criu()?
            .probe(None)
            .require_all()
            .map_err(|error| Failure::new(Kind::Unavailable, Chain(&error).to_string()))?;
        let tmpfs = tmpfs(shared_memory)?;
        self.load_shared(&tmpfs.path())?;
        let sessions = Sessions::new(tmpfs.path(), device.to_owned());
        match self.restore_sessions(&sessions) {
            // The servers end here.
            Ok(_) => Ok(()),
            Err(failure) if failure.kind == Kind::Failed => Err(self.blamed(failure)),
            Err(failure) => Err(failure),
        }
    }

    /// Continues the job, to its end.
    ///
    /// # Errors
    /// When it cannot be restored; then nothing of it is left running, and files it has written are as they were unless CRIU
    /// failed half-way.
    pub fn run(
        self,
        settings: Settings,
        stdio: host::Stdio,
        signals: host::signals::Forwarder,
    ) -> Result<host::Ending, Failure> {
        self.check_machine()?;
        let criu = criu()?;
        let command = self.image.manifest().command.clone();
        let id = self.image();
        let lineage = self.record.lineage;
        let (facts, folder) = claim(&runtime::root(), &settings, &command, lineage, Some(id.to_string()))?;
        let tmpfs = tmpfs(settings.shared_memory)?;
        let shared = tmpfs.path();
        self.load_shared(&shared)?;
        let work = WorkFolder::new(self.criu_bytes())?;
        let images = work.images();
        let sessions = Sessions::new(shared.clone(), settings.device);
        // Servers rebuild their sessions while CRIU's files are unpacked.
        let (restored, unpacked) = std::thread::scope(|scope| {
            let unpacking = scope.spawn(|| {
                folder::load(&images, &self.image, &self.record.criu, |name| ObjectKind::CriuFile { name })
            });
            let restored = self.restore_sessions(&sessions);
            (restored, unpacking.join().unwrap_or_else(|_| Err(panicked())))
        });
        let (restored, ()) = (restored?, unpacked?);
        let hello = hello(&shared)?;
        let serving = sessions.serve(hello);
        let spec = host::RestoreSpec {
            images: &images,
            record: &self.record.host,
            tmpfs,
            stdio,
            hide: host::driver::device_nodes(),
            log_level: CRIU_LOG_LEVEL,
        };
        let job = host::Restored::restore(&criu, spec)
            .map_err(|error| explained(&criu, failure_of(&error)))
            .and_then(|stopped| wake(stopped, &sessions, restored));
        drop(work);
        let ending = job.and_then(|job| {
            Supervisor::new(facts, command, job, Arc::clone(&sessions), Some(id)).supervise(&folder, signals)
        });
        serving.end();
        ending
    }

    fn check_machine(&self) -> Result<(), Failure> {
        self.record.host.check().map_err(|error| failure_of(&error))
    }

    fn load_shared(&self, shared: &Path) -> Result<(), Failure> {
        folder::load(shared, &self.image, &self.record.shared, |path| ObjectKind::SharedFile { path })
    }

    fn restore_sessions(&self, sessions: &Sessions) -> Result<Vec<Session>, Failure> {
        sessions.restore(&self.record.sessions, &self.store.dir(), &self.image().to_string())
    }

    /// How much CRIU's files take.
    fn criu_bytes(&self) -> u64 {
        let objects = self.image.manifest().objects.iter();
        let criu = objects.filter(|object| matches!(object.kind, ObjectKind::CriuFile { .. }));
        criu.map(|object| object.len()).fold(0, u64::saturating_add)
    }

    /// A session that cannot be rebuilt here: either its bytes are damaged, or the device is not one for it.
    fn blamed(&self, failure: Failure) -> Failure {
        let kind = match self.store.verify(&self.image(), &mut |_| {}) {
            Ok(report) if report.ok => Kind::Mismatch,
            _ => Kind::Damaged,
        };
        Failure { kind, ..failure }
    }
}

fn failure_of(error: &host::RestoreError) -> Failure {
    let kind = match error {
        host::RestoreError::Privilege(_) => Kind::Unavailable,
        host::RestoreError::Changed { .. }
        | host::RestoreError::NoMountPoint { .. }
        | host::RestoreError::File(_) => Kind::Mismatch,
        _ => Kind::Failed,
    };
    Failure::new(kind, Chain(error).to_string())
}

/// Gives every restored process its session back and lets the job go on.
fn wake(
    stopped: host::Restored,
    sessions: &Arc<Sessions>,
    restored: Vec<Session>,
) -> Result<host::Job, Failure> {
    for session in restored {
        let inner = session.record.inner_pid;
        let outer = stopped.job().outer(inner).ok_or_else(|| {
            Failure::new(
                Kind::Damaged,
                format!("the image has a GPU session for process {}, but no such process", inner.0),
            )
        })?;
        session.server().tell(&server::control::Ask::Ungate)?;
        sessions.watch(outer.0, session)?;
    }
    stopped.resume().map_err(|error| Failure::of("the restored job does not go on", &error))
}
