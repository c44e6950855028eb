//! An application in miniature: what the shim would send, against a session on the software device.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

mod images;
pub mod neighbour;
pub mod slow;

pub use images::{ANYWHERE, Begun, Images, LONG, SESSION, manifest, rehearse, rehearse_on, restored};

use backend::Backend;
use backend_soft::{Options, SoftBackend};
use server::memory::Layout;
use server::memory::Managed;
use server::restore::{Patience, Prepared};
use server::session::{Config, Rings, Session};
use server::sharing::Sharing;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use transport::{ClientRing, ClientSession, ServerSession};
use wire::*;

pub const BASIC: &str = include_str!("../../../../backend/src/conformance/ptx/basic.ptx");
pub const VARIABLES: &str = include_str!("../../../../backend/src/conformance/ptx/variables.ptx");
pub const HELLO: &str = include_str!("../../../../backend/src/conformance/ptx/hello.ptx");

/// Addresses are the process's, so one session at a time has them.
static ADDRESSES: Mutex<()> = Mutex::new(());
static NEXT: AtomicU64 = AtomicU64::new(0);

pub fn backend() -> Arc<dyn Backend> {
    Arc::new(SoftBackend::default())
}

fn backend_of(memory: u64) -> Arc<dyn Backend> {
    Arc::new(SoftBackend::new(Options { memory, ..Options::default() }))
}

/// What a server has to do with its supervisor, and with nobody else.
pub fn ends(control: UnixStream) -> server::Ends {
    server::Ends {
        control: control.into(),
        broker: None,
        settings: server::Settings { managed: Managed::Coherent, preempt_after: None },
        start: None,
        again: |_| {},
        over: || {},
    }
}

/// A layout that no other test of the process uses.
pub fn layout() -> Layout {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 24, "too many sessions for one process's address space");
    Layout {
        arena: 0x6000_0000_0000 + number * (1 << 40),
        pinned: 0x5000_0000_0000 + number * (64 << 30),
        reserved: 0x4000_0000_0000,
    }
}

/// A session and its application.
pub struct App {
    pub session: Arc<Session>,
    pub dir: TempDir,
    pub client: Arc<ClientSession>,
    threads: Option<JoinHandle<()>>,
    next_upload: u32,
    _addresses: MutexGuard<'static, ()>,
}

pub const CTX: ContextId = ContextId(1);

impl App {
    /// A fresh session.
    pub fn start() -> Self {
        Self::start_on(backend(), Sharing::alone(), Managed::Coherent)
    }

    /// With a primary context, and a thread that has used it, where marked kernels take turns.
    pub fn with_turns(length: Duration) -> (Self, Thread) {
        Self::start_in(backend(), (Sharing::alone(), Managed::Coherent), Some(length)).with_primary()
    }

    fn start_on(backend: Arc<dyn Backend>, sharing: Arc<Sharing>, managed: Managed) -> Self {
        Self::start_in(backend, (sharing, managed), None)
    }

    fn start_in(
        backend: Arc<dyn Backend>,
        (sharing, managed): (Arc<Sharing>, Managed),
        preempt_after: Option<Duration>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        let link = ServerSession::create(dir.path()).unwrap();
        let config = Config { dir: dir.path().to_owned(), layout: layout(), sharing, managed };
        let session = Session::new(backend, link, config, 0);
        Self::run(session, dir, addresses, preempt_after)
    }

    /// With a primary context, and a thread that has used it.
    pub fn with_context() -> (Self, Thread) {
        Self::with_context_on(backend(), Sharing::alone(), Managed::Coherent)
    }

    /// The same on a device of so many bytes.
    pub fn with_memory(memory: u64) -> (Self, Thread) {
        Self::with_context_on(backend_of(memory), Sharing::alone(), Managed::Coherent)
    }

    /// The same whose managed memory has shadow pages, which nobody keeps.
    pub fn with_shadows(memory: u64) -> (Self, Thread) {
        Self::with_context_on(backend_of(memory), Sharing::alone(), Managed::Shadow)
    }

    /// The same with a way to other sessions.
    pub fn with_others(sharing: Arc<Sharing>) -> (Self, Thread) {
        Self::with_context_on(backend(), sharing, Managed::Coherent)
    }

    /// The same on a device with so much memory.
    pub fn with_others_and_memory(sharing: Arc<Sharing>, memory: u64) -> (Self, Thread) {
        Self::with_context_on(backend_of(memory), sharing, Managed::Coherent)
    }

    /// A fresh session with a way to others.
    pub fn start_with(sharing: Arc<Sharing>) -> Self {
        Self::start_on(backend(), sharing, Managed::Coherent)
    }

    fn with_context_on(backend: Arc<dyn Backend>, sharing: Arc<Sharing>, managed: Managed) -> (Self, Thread) {
        Self::start_on(backend, sharing, managed).with_primary()
    }

    fn with_primary(self) -> (Self, Thread) {
        let mut thread = self.thread();
        thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
        (self, thread)
    }

    fn run(
        session: Arc<Session>,
        dir: TempDir,
        addresses: MutexGuard<'static, ()>,
        preempt_after: Option<Duration>,
    ) -> Self {
        session.announce();
        let threads = Rings::start(&session, preempt_after).unwrap();
        let client = ClientSession::open(dir.path()).unwrap();
        Self { session, dir, client, threads: Some(threads), next_upload: 1, _addresses: addresses }
    }

    pub fn thread(&self) -> Thread {
        Thread { ring: self.client.take_ring().unwrap(), output: Vec::new(), more: false }
    }

    /// Leaves an image for the server.
    pub fn upload(&mut self, image: &str) -> UploadId {
        let id = UploadId(self.next_upload);
        self.next_upload += 1;
        let image = [image.as_bytes(), b"\0"].concat();
        std::fs::write(self.dir.path().join(format!("upload-{}", id.0)), image).unwrap();
        id
    }

    pub fn load(&mut self, thread: &mut Thread, module: u32, image: &str) -> ModuleId {
        let (module, upload) = (ModuleId(module), self.upload(image));
        thread.call(ModuleLoad { ctx: CTX, module, upload, options: vec![], managed: 0 }).unwrap();
        module
    }

    /// Pinned memory: the words that both sides see, and their address.
    pub fn pinned(&self, thread: &mut Thread, pinned: PinnedId, bytes: u64) -> (Pinned, u64) {
        let place = thread.call(PinnedAlloc { ctx: CTX, pinned, bytes, flags: 0 }).unwrap();
        (Pinned::at(self.dir.path(), pinned, place), place.address)
    }

    /// Ends the session as a killed server would, and hands over its files.
    pub fn kill(mut self) -> (TempDir, MutexGuard<'static, ()>) {
        self.session.end();
        self.threads.take().unwrap().join().unwrap();
        let Self { session, dir, _addresses, client, .. } = self;
        assert_eq!(Arc::strong_count(&session), 1, "somebody keeps the session");
        drop((session, client));
        // Threads of the device may need a moment to let go of its memory.
        wait_until(|| !anything_mapped());
        (dir, _addresses)
    }

    /// Closes its gate, captures it, and ends it and its last thread as a killed server would: the image, the state's bytes, and its files.
    pub fn captured(
        self,
        thread: Thread,
        images: &Images,
    ) -> (store::Image, Vec<u8>, (TempDir, MutexGuard<'static, ()>)) {
        self.session.close_gate(LONG).unwrap();
        let (id, state) = images.capture(&self.session);
        let files = self.kill();
        drop(thread);
        (images.store.open_image(&id).unwrap(), state, files)
    }

    /// Goes on from an image, on files of the session before.
    pub fn restore(
        dir: TempDir,
        addresses: MutexGuard<'static, ()>,
        session: u32,
        image: &store::Image,
    ) -> Self {
        Self::restore_with(dir, addresses, session, image, Sharing::alone())
    }

    /// Goes on from an image of a job, with the session's files that are in it.
    pub fn of_job(image: &store::Image, session: u32) -> Self {
        let addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        for object in &image.manifest().objects {
            let image::ObjectKind::SharedFile { path } = &object.kind else { continue };
            if let Ok(name) = path.as_path().strip_prefix(format!("s{session}")) {
                let file = std::fs::File::create(dir.path().join(name)).unwrap();
                image.copy_to_file(&object.kind, &file, |_| {}).unwrap();
            }
        }
        Self::restore(dir, addresses, session, image)
    }

    /// The same on a device of so many bytes.
    pub fn restore_on(
        dir: TempDir,
        addresses: MutexGuard<'static, ()>,
        session: u32,
        image: &store::Image,
        memory: u64,
    ) -> Self {
        Self::restore_into((dir, addresses), session, image, Sharing::alone(), backend_of(memory))
    }

    /// The same with a way to others.
    pub fn restore_with(
        dir: TempDir,
        addresses: MutexGuard<'static, ()>,
        session: u32,
        image: &store::Image,
        sharing: Arc<Sharing>,
    ) -> Self {
        Self::restore_into((dir, addresses), session, image, sharing, backend())
    }

    fn restore_into(
        (dir, addresses): (TempDir, MutexGuard<'static, ()>),
        session: u32,
        image: &store::Image,
        sharing: Arc<Sharing>,
        backend: Arc<dyn Backend>,
    ) -> Self {
        let link = ServerSession::attach(dir.path()).unwrap();
        let path = dir.path().to_owned();
        let prepared = Prepared::of(image, session).unwrap();
        let all = Patience::All(&|_| {});
        let session =
            Session::restore(backend, link, (path, sharing, Managed::Coherent), prepared, image, all)
                .unwrap();
        Self::run(session, dir, addresses, None)
    }

    /// Goes on before all memory is filled, of which nothing is read before `ready`.
    pub fn restore_lazily(
        (dir, addresses): (TempDir, MutexGuard<'static, ()>),
        session: u32,
        image: &store::Image,
        ready: impl FnOnce(),
    ) -> Self {
        let link = ServerSession::attach(dir.path()).unwrap();
        let config = (dir.path().to_owned(), Sharing::alone(), Managed::Coherent);
        let prepared = Prepared::of(image, session).unwrap();
        ready();
        let session = Session::restore(backend(), link, config, prepared, image, Patience::Little).unwrap();
        Self::run(session, dir, addresses, None)
    }
}

/// Whether there is memory where only device memory can be.
pub fn anything_mapped() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts = maps.lines().filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
    starts
        .into_iter()
        .any(|start| (0x2000_0000_0000..0x4000_0000_0000).contains(&start) || in_test_arenas(start))
}

fn in_test_arenas(start: u64) -> bool {
    (0x6000_0000_0000..0x6000_0000_0000 + (NEXT.load(Ordering::Relaxed) << 40)).contains(&start)
}

/// An application thread.
pub struct Thread {
    pub ring: ClientRing,
    pub output: Vec<u8>,
    /// Whether there is more of it.
    pub more: bool,
}

impl Thread {
    pub fn send<M: Message<Reply = ()>>(&mut self, message: M) {
        assert!(M::PIPELINED, "{} is a round trip", M::NAME);
        self.ring.submit(M::OPCODE, &[&encoded(&message)]).unwrap();
    }

    pub fn call<M: Message>(&mut self, message: M) -> Result<M::Reply, CuError> {
        self.explain(message).map_err(|(code, _)| code)
    }

    pub fn explain<M: Message>(&mut self, message: M) -> Result<M::Reply, (CuError, String)> {
        assert!(!M::PIPELINED, "{} is pipelined", M::NAME);
        let mut bytes = Vec::new();
        self.ring.call(M::OPCODE, &[&encoded(&message)], &mut bytes).unwrap();
        let mut from = Decoder::new(&bytes);
        let reply = Reply::<M::Reply>::decode(&mut from).unwrap();
        from.finish().unwrap();
        self.output.extend(reply.output.bytes.0);
        self.more = reply.output.more;
        reply.result
    }

    /// Where pinned memory of the context's lies.
    pub fn pin(&mut self, pinned: u32, bytes: u64) -> Result<PinnedPlace, CuError> {
        self.call(PinnedAlloc { ctx: CTX, pinned: PinnedId(pinned), bytes, flags: 0 })
    }

    pub fn alloc(&mut self, bytes: u64) -> u64 {
        self.call(MemAlloc { ctx: CTX, bytes }).unwrap()
    }

    pub fn put(&mut self, dst: u64, words: &[u32]) {
        let data = Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect());
        self.send(CopyFromInline { ctx: CTX, stream: Stream::Legacy, dst, data });
    }

    pub fn get(&mut self, src: u64, count: u32) -> Vec<u32> {
        let Bytes(data) =
            self.call(CopyToInline { ctx: CTX, stream: Stream::Legacy, src, bytes: count * 4 }).unwrap();
        data.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    pub fn function(&mut self, module: ModuleId, function: u32, name: &str) -> Callee {
        let function = FunctionId(function);
        self.call(ModuleGetFunction { module, function, name: name.into() }).unwrap();
        Callee::Function(function)
    }

    /// Streams that do not wait for the legacy one.
    pub fn streams<const N: usize>(&mut self, ids: [u32; N]) -> [StreamId; N] {
        let streams = ids.map(StreamId);
        for stream in streams {
            self.send(StreamCreate { ctx: CTX, stream, flags: 1, priority: 0 });
        }
        streams
    }

    pub fn events<const N: usize>(&mut self, ids: [u32; N]) -> [EventId; N] {
        let events = ids.map(EventId);
        for event in events {
            self.send(EventCreate { ctx: CTX, event, flags: 0 });
        }
        events
    }

    pub fn launch(&mut self, callee: Callee, stream: Stream, threads: u32, wide: &[u64], narrow: &[u32]) {
        let wide = wide.iter().flat_map(|value| value.to_le_bytes());
        let params = wide.chain(narrow.iter().flat_map(|value| value.to_le_bytes())).collect();
        self.send(Launch {
            ctx: CTX,
            stream,
            callee,
            grid: [1; 3],
            block: [threads, 1, 1],
            shared: 0,
            attributes: vec![],
            params: Bytes(params),
        });
    }

    pub fn synchronize(&mut self) -> Result<(), CuError> {
        self.call(ContextSynchronize { ctx: CTX })
    }
}

pub fn encoded(message: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes));
    bytes
}

pub fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "still not so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The file of the slab that begins there.
pub fn slab_file(dir: &Path, base: u64) -> std::path::PathBuf {
    dir.join(format!("slab-{base:x}"))
}

/// Words of pinned memory, through the file as the application has it.
pub struct Pinned(memmap2::MmapMut);

impl Pinned {
    /// The file of an allocation or registration that has its own.
    pub fn open(dir: &Path, id: PinnedId) -> Self {
        Self::open_at(&dir.join(format!("pinned-{}", id.0)), 0)
    }

    /// An allocation, from its first word on.
    pub fn at(dir: &Path, id: PinnedId, PinnedPlace { address, slab }: PinnedPlace) -> Self {
        match slab {
            Some((base, _)) => Self::open_at(&slab_file(dir, base), address - base),
            None => Self::open(dir, id),
        }
    }

    fn open_at(path: &Path, offset: u64) -> Self {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: tests access the mapping by atomics only, and the file keeps its length.
        Self(unsafe { memmap2::MmapOptions::new().offset(offset).map_mut(&file).unwrap() })
    }

    pub fn word(&self, index: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(index * 4 < self.0.len());
        // SAFETY: the mapping is page-aligned and has the word, as just seen; atomics may be shared.
        unsafe { &*self.0.as_ptr().cast::<std::sync::atomic::AtomicU32>().add(index) }
    }
}
