//! A restart: the cut in reverse. The order of the steps is in `ARCHITECTURE.md`.

use crate::cut::JobRecord;
use crate::error::{Chain, Failure, Kind};
use crate::folder::{self, in_memory, read_failure};
use crate::runtime::{self, JobFolder};
use crate::sessions::{Session, Sessions};
use crate::stores::open_store;
use crate::supervisor::{Settings, Supervisor, criu, facts_of, hello, serve, tmpfs};
use image::ObjectKind;
use std::path::Path;
use std::sync::Arc;

/// CRIU's log holds its warnings.
const CRIU_LOG_LEVEL: i32 = 2;
/// The most a job's record may take.
const RECORD_MAX: usize = 256 << 20;

/// What a restart needs to know before anything is made.
pub struct Restart {
    image: store::Image,
    record: JobRecord,
}

impl Restart {
    /// Reads the image's manifest and record, and checks that this machine has what it needs.
    ///
    /// # Errors
    /// [`Kind::Damaged`], [`Kind::Mismatch`] (another architecture, a changed or missing program).
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
        record
            .host
            .check_programs()
            .map_err(|error| Failure::new(Kind::Mismatch, Chain(&error).to_string()))?;
        Ok(Self { image, record })
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

    /// Continues the job, to its end.
    ///
    /// # Errors
    /// When it cannot be restored; then nothing of it is left running.
    pub fn run(
        self,
        settings: Settings,
        stdio: host::Stdio,
        signals: host::signals::Forwarder,
    ) -> Result<host::Ending, Failure> {
        let criu = criu()?;
        let manifest = self.image.manifest();
        let id = manifest.id;
        let command = manifest.command.clone();
        let facts = facts_of(&settings, &command, Some(id.to_string()));
        let folder = JobFolder::claim(&runtime::root(), &facts)?;
        let tmpfs = tmpfs(settings.shared_memory)?;
        let shared = tmpfs.path();
        folder::load(&shared, &self.image, &self.record.shared, |path| ObjectKind::SharedFile { path })?;
        let images = in_memory()?;
        let sessions = Sessions::new(shared.clone(), settings.device);
        // Servers rebuild their sessions while CRIU's files are unpacked.
        let (restored, unpacked) = std::thread::scope(|scope| {
            let unpacking = scope.spawn(|| {
                folder::load(images.path(), &self.image, &self.record.criu, |name| ObjectKind::CriuFile {
                    name,
                })
            });
            let restored = sessions.restore(&self.record.sessions, &settings.store, &id.to_string());
            (restored, unpacking.join().unwrap_or_else(|_| Err(crate::sessions::panicked())))
        });
        let (restored, ()) = (restored?, unpacked?);
        let hello = hello(&shared)?;
        let serving = serve(&sessions, hello);
        let spec = host::RestoreSpec {
            images: images.path(),
            record: &self.record.host,
            tmpfs,
            stdio,
            hide: host::driver::device_nodes(),
            log_level: CRIU_LOG_LEVEL,
        };
        let job = host::Restored::restore(&criu, spec)
            .map_err(|error| Failure::new(Kind::Failed, Chain(&error).to_string()))
            .and_then(|stopped| wake(stopped, &sessions, restored));
        drop(images);
        let ending = job.and_then(|job| {
            Supervisor::new(facts, command, job, Arc::clone(&sessions), Some(id)).supervise(&folder, signals)
        });
        sessions.end();
        let _ = serving.join();
        ending
    }
}

/// Gives every restored process its session back and lets the job go on.
fn wake(
    stopped: host::Restored,
    sessions: &Arc<Sessions>,
    restored: Vec<Session>,
) -> Result<host::Job, Failure> {
    for session in restored {
        let inner = host::InnerPid(session.record.inner_pid as i32);
        let outer = stopped.job().outer(inner).ok_or_else(|| {
            Failure::new(
                Kind::Damaged,
                format!("the image has a GPU session for process {}, but no such process", inner.0),
            )
        })?;
        session.server().tell(&server::control::Ask::Ungate)?;
        sessions.watch(outer.0 as u32, session)?;
    }
    stopped.resume().map_err(|error| Failure::of("the restored job does not go on", &error))
}
