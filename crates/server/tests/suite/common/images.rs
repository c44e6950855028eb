//! Images of sessions, in a store of their own.

use super::{App, Thread, backend};
use image::{ImageId, Manifest};
use server::capture::{CaptureError, CopyBudget, CopyRoom, DeviceSet, Kept, Reads, Taken, Written};
use server::restore::RestoreError;
use server::session::Session;
use server::state::SessionState;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkWriter, Draft, Store, WriteOptions};
use tempfile::TempDir;
use transport::ServerSession;

/// The session's number in every image.
pub const SESSION: u32 = 7;
/// How long a gate may take to close.
pub const LONG: Duration = Duration::from_secs(20);

/// Copies wherever there is room.
pub const ANYWHERE: CopyBudget = CopyBudget { on_devices: DeviceSet::ALL, on_host: 1 << 30 };

/// A store in a folder of its own.
pub struct Images {
    _dir: TempDir,
    pub store: Store,
}

impl Images {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(&dir.path().join("store")).unwrap();
        Self { _dir: dir, store }
    }

    fn draft(&self) -> (Draft, ChunkWriter) {
        let draft = self.store.begin().unwrap();
        let writer = ChunkWriter::join(&self.store, draft.id(), &WriteOptions::default()).unwrap();
        (draft, writer)
    }

    /// Captures a gated session and publishes it; tells the state's bytes too.
    pub fn capture(&self, session: &Session) -> (ImageId, Vec<u8>) {
        self.capture_again(session).0
    }

    /// The same, and where its memory was. A second one has less to read.
    pub fn capture_again(&self, session: &Session) -> ((ImageId, Vec<u8>), Kept) {
        session.prepare_comparison();
        let begun = self.begin(session, session.room_for_copies(ANYWHERE, &mut |_| Ok(())));
        assert_eq!(begun.taken.devices.len(), 1);
        let kept = begun.taken.kept;
        (begun.publish_of(Some(session), &mut |_| Ok(())), kept)
    }

    /// Captures a gated session, whose state `change` changes before it is written.
    pub fn capture_changed(&self, session: &Session, change: impl FnOnce(&mut SessionState)) -> ImageId {
        let (draft, writer) = self.draft();
        let mut cut = session.cut().unwrap();
        change(&mut cut.state);
        let room = session.room_for_copies(ANYWHERE, &mut |_| Ok(()));
        let taken = session.capture(&cut, SESSION, &writer, room, Reads::Changed, &mut |_| {}).unwrap();
        Begun { taken, writer, draft }.publish(&mut |_| Ok(())).0
    }

    /// Captures a gated session, which may go on then.
    pub fn begin(&self, session: &Session, room: CopyRoom) -> Begun {
        self.begin_reading(session, room, Reads::Changed)
    }

    /// The same, when that is read.
    pub fn begin_reading(&self, session: &Session, room: CopyRoom, reads: Reads) -> Begun {
        let (draft, writer) = self.draft();
        let cut = session.cut().unwrap();
        let taken = session.capture(&cut, SESSION, &writer, room, reads, &mut |_| {}).unwrap();
        Begun { taken, writer, draft }
    }

    /// The same, when `change` changes something while it is under way, and tells what; so many bytes are late then. If they are too many it is begun again.
    pub fn begin_beside(
        &self,
        session: &Session,
        room: CopyRoom,
        change: impl FnOnce() -> Vec<backend::Range>,
        (late, too_many): (u64, bool),
    ) -> Begun {
        let (draft, writer) = self.draft();
        session.prepare_comparison();
        let cut = session.cut().unwrap();
        let begin = |room| session.begin_capture(&cut, SESSION, &writer, room, Reads::Changed).unwrap();
        let mut begun = begin(room);
        let mut written = Written::of(change());
        assert_eq!(begun.late_bytes(&written), late);
        if too_many {
            begun = begin(begun.give_up());
            written = Written::default();
        }
        let taken = session.finish_capture(begun, &written, &writer, &mut |_| {}).unwrap();
        Begun { taken, writer, draft }
    }
}

/// A session that is killed and restored from an image.
pub fn restored(app: App, thread: Thread, images: &Images, id: &ImageId) -> (App, Thread) {
    let (dir, held) = app.kill();
    drop(thread);
    let app = App::restore(dir, held, SESSION, &images.store.open_image(id).unwrap());
    let thread = app.thread();
    (app, thread)
}

/// An image of which something is not written yet.
pub struct Begun {
    pub taken: Taken,
    writer: ChunkWriter,
    draft: Draft,
}

impl Begun {
    /// Writes the rest, and no more.
    pub fn write(self, progress: &mut dyn FnMut(u64) -> std::io::Result<()>) -> Result<(), CaptureError> {
        self.taken.write(&self.writer, progress).map(drop)
    }

    /// Writes the rest and publishes it.
    pub fn publish(self, progress: &mut dyn FnMut(u64) -> std::io::Result<()>) -> (ImageId, Vec<u8>) {
        self.publish_of(None, progress)
    }

    pub fn publish_of(
        self,
        session: Option<&Session>,
        progress: &mut dyn FnMut(u64) -> std::io::Result<()>,
    ) -> (ImageId, Vec<u8>) {
        let Self { taken, writer, draft } = self;
        let state = taken.state().unwrap();
        let seen = taken.write(&writer, progress).unwrap();
        let receipt = writer.finish().unwrap();
        if let Some(session) = session {
            session.remember(seen, &receipt);
        }
        let described = manifest(draft.id());
        (draft.publish(described, vec![receipt]).unwrap().id, state)
    }
}

/// What a supervisor would say of the job.
pub fn manifest(id: ImageId) -> Manifest {
    Manifest {
        id,
        machine: image::Machine::HOST,
        lineage: None,
        job: "job".into(),
        created_ns: 1,
        dormouse: "0".into(),
        parent: None,
        regular: false,
        excluded: 0,
        half_way: 0,
        rehearsed: false,
        host: Default::default(),
        devices: vec![],
        command: Default::default(),
        cut: Default::default(),
        stored: Default::default(),
        job_files: vec![],
        mapped_files: vec![],
        objects: vec![],
    }
}

/// Rehearses a state in a session of its own.
pub fn rehearse(state: &[u8]) -> Result<(), RestoreError> {
    rehearse_on(backend(), state)
}

pub fn rehearse_on(backend: Arc<dyn backend::Backend>, state: &[u8]) -> Result<(), RestoreError> {
    let dir = tempfile::tempdir().unwrap();
    let link = ServerSession::create(dir.path()).unwrap();
    Session::rehearse(backend, link, dir.path().to_owned(), state)
}
