//! A GPU server that is a thread of the test: real shared files, a plain array for device memory, and a record of what
//! arrived in which order.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cuda_abi::CuError;
use transport::hello::{HelloListener, Wish};
use transport::{Callback, Next, RingIndex, RingReader, RingState, ServerSession, State};
use wire::{
    ArrayDesc, ArrayId, ArrayShape, Bytes, CallbackId, CopyBox, CopySide, DeviceFacts, Encoder,
    FunctionFacts, LaunchValue, ManagedVariable, ManagedVariables, MipmapId, Names, Output, Param, PinnedId,
    PinnedPlace, Pitched, Reply, Request, SessionFacts, TensorMap, TensorMapRequest, Wire,
};

/// Where device memory begins, and how much there is.
pub const DEVICE: u64 = 0x2000_0000_0000;
pub const DEVICE_BYTES: usize = 64 << 20;
pub const PINNED: u64 = 0x5000_0000_0000;
/// Where managed memory with shadow pages begins: what is too large for a slab has them, of which nobody is told here.
pub const SHADOWS: u64 = DEVICE + (1 << 30);
const SHADOWED: u64 = 1 << 20;

/// What every kernel of the fake takes: a pointer and an `int`.
pub const PARAMS: [Param; 2] = [Param { offset: 0, size: 8 }, Param { offset: 8, size: 4 }];

pub struct Fake {
    pub session: Arc<ServerSession>,
    pub folder: PathBuf,
    /// Ring and message, in the order in which they were executed.
    pub seen: Mutex<Vec<(usize, Request)>>,
    /// Messages that fail, by name.
    pub failing: Mutex<HashMap<&'static str, CuError>>,
    /// What is looked at before messages are executed.
    pub looking: OnceLock<fn(&Request)>,
    /// What the device prints with the next synchronisation.
    pub printing: Mutex<(u64, Vec<u8>)>,
    memory: Mutex<Vec<u8>>,
    arrays: Mutex<HashMap<ArrayId, (ArrayShape, Vec<u8>)>>,
    mipmaps: Mutex<HashMap<MipmapId, ArrayDesc>>,
    attributes: Mutex<HashMap<(wire::Stream, u32), LaunchValue>>,
    /// Where the next allocation lies.
    pub next: AtomicU64,
    next_pinned: AtomicU64,
    next_shadow: AtomicU64,
    slabs: Mutex<Vec<Slab>>,
    next_object: AtomicU64,
    /// Libraries with variables in managed memory.
    with_managed: Mutex<Vec<wire::LibraryId>>,
}

/// What code with variables in managed memory begins with here.
pub const MANAGED: &[u8] = b".version 8.1";

/// The variables in managed memory of an image.
fn managed_of(image: &[u8]) -> ManagedVariables {
    let variable = |name: &str, offset, bytes| ManagedVariable { name: name.into(), offset, bytes };
    match image.starts_with(MANAGED) {
        true => {
            ManagedVariables { bytes: 264, variables: vec![variable("one", 0, 4), variable("two", 256, 8)] }
        }
        false => ManagedVariables { bytes: 0, variables: vec![] },
    }
}

/// Bytes of a slab, which has two pieces.
const SLAB_BYTES: u64 = 128 << 10;

/// A file that small allocations share.
struct Slab {
    base: u64,
    /// How many have been in it.
    used: u64,
    /// Those that are.
    pieces: Vec<PinnedId>,
}

/// A slab that the client is to unmap: both pieces were in it, and neither is.
fn spare(slabs: &[Slab]) -> u64 {
    slabs.iter().find(|slab| slab.used == 2 && slab.pieces.is_empty()).map_or(0, |slab| slab.base)
}

static FAKE: OnceLock<(PathBuf, Arc<Fake>)> = OnceLock::new();

/// How the folder of a process's fake begins; its number follows.
const FOLDER: &str = "dormouse-fake-";

/// A folder for this process. The fake serves until the process ends, so that the next one removes what those before have left.
fn folder() -> PathBuf {
    let all = std::env::temp_dir();
    for entry in std::fs::read_dir(&all).unwrap().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
        let own = std::process::id().to_string();
        if number.is_some_and(|number| number == own || !Path::new("/proc").join(number).exists()) {
            // Another one may be faster.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let own = all.join(format!("{FOLDER}{}", std::process::id()));
    std::fs::create_dir(&own).unwrap();
    own
}

/// The fake of this process, with the session started and a primary context current to the calling thread.
pub fn start() -> &'static Arc<Fake> {
    let fake = start_only();
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointers are this test's.
    unsafe {
        cuda_shim::api::primary_context::cuDevicePrimaryCtxRetain(&raw mut context, 0).unwrap();
        cuda_shim::api::context::cuCtxSetCurrent(context).unwrap();
    }
    fake
}

/// The fake of this process, with the session started.
pub fn start_only() -> &'static Arc<Fake> {
    let (job, fake) = FAKE.get_or_init(|| {
        let job = folder();
        let fake = Fake::serve(&job);
        (job, fake)
    });
    cuda_shim::client::start(job).unwrap();
    fake
}

impl Fake {
    fn serve(job: &Path) -> Arc<Self> {
        let listener = HelloListener::bind(&job.join("hello.sock")).unwrap();
        let folder = job.join("s1");
        std::fs::create_dir(&folder).unwrap();
        let session = ServerSession::create(&folder).unwrap();
        session.control().set_state(State::Running);
        let fake = Arc::new(Self {
            session,
            folder,
            seen: Mutex::default(),
            failing: Mutex::default(),
            looking: OnceLock::new(),
            printing: Mutex::default(),
            memory: Mutex::new(vec![0; DEVICE_BYTES]),
            arrays: Mutex::default(),
            mipmaps: Mutex::default(),
            attributes: Mutex::default(),
            next: AtomicU64::new(DEVICE),
            next_pinned: AtomicU64::new(PINNED),
            next_shadow: AtomicU64::new(SHADOWS),
            slabs: Mutex::default(),
            next_object: AtomicU64::new(1),
            with_managed: Mutex::default(),
        });
        std::thread::spawn(move || {
            while let Ok(caller) = listener.accept() {
                match caller.hear(Duration::from_secs(5)).unwrap() {
                    Wish::Session(pending, _) => pending.welcome(1).unwrap(),
                    Wish::Devices(pending) => pending.refuse("this supervisor knows no GPU").unwrap(),
                    Wish::Userfault(pending, Some(_)) => pending.welcome(1).unwrap(),
                    Wish::Userfault(pending, None) => pending.refuse("it has none").unwrap(),
                    Wish::Still(pending, _) => pending.refuse("this supervisor holds nobody").unwrap(),
                    Wish::Ask(pending, _) => pending.refuse("this supervisor has no job").unwrap(),
                }
            }
        });
        let bell = Arc::clone(&fake);
        std::thread::spawn(move || bell.watch());
        fake
    }

    fn watch(self: Arc<Self>) {
        let mut threads: HashMap<RingIndex, std::thread::JoinHandle<()>> = HashMap::new();
        let mut seen = u32::MAX;
        while self.session.control().state() == State::Running {
            for (index, state) in self.session.control().rings() {
                if state != RingState::Free && threads.get(&index).is_none_or(|thread| thread.is_finished()) {
                    let fake = Arc::clone(&self);
                    threads.insert(index, std::thread::spawn(move || fake.ring(index)));
                }
            }
            seen = self.session.wait_doorbell(seen, Duration::from_millis(20));
        }
    }

    fn ring(&self, index: RingIndex) {
        let mut reader = self.session.reader(index);
        while self.session.control().state() == State::Running {
            match reader.next(Duration::from_millis(20)).unwrap() {
                Next::Message(message) => {
                    for dependency in message.dependencies {
                        while !self.session.is_done(*dependency).unwrap() {
                            std::thread::yield_now();
                        }
                    }
                    let request = Request::decode(message.opcode, message.body).unwrap();
                    self.execute(&mut reader, request);
                }
                Next::Idle => {}
                Next::Closed => return reader.release(),
            }
        }
    }

    fn execute(&self, reader: &mut RingReader, request: Request) {
        if let Some(look) = self.looking.get() {
            look(&request);
        }
        self.seen.lock().unwrap().push((reader.index().get(), request.clone()));
        let failure = self.failing.lock().unwrap().get(request.name()).copied();
        if request.is_pipelined() {
            match failure {
                Some(error) => self.session.control().set_error(error),
                None => self.run(reader.index(), request),
            }
            return reader.advance();
        }
        let synchronises = matches!(request, Request::ContextSynchronize(_) | Request::StreamSynchronize(_));
        let takes = synchronises || matches!(request, Request::TakeOutput(_));
        let mut printing = self.printing.lock().unwrap();
        let count = if takes { printing.1.len().min(wire::OUTPUT_MAX) } else { 0 };
        let bytes = Bytes(printing.1.drain(..count).collect());
        let output = Output { from: printing.0, bytes, more: takes && !printing.1.is_empty() };
        printing.0 += count as u64;
        drop(printing);
        let body = match failure {
            Some(error) => Err((error, "because the test says so".to_owned())),
            None => Ok(Raw(self.answer(reader.index(), request))),
        };
        let mut bytes = Vec::new();
        Reply { output, result: body }.encode(&mut Encoder::new(&mut bytes));
        reader.reply(&bytes).unwrap();
    }

    #[allow(clippy::mut_from_ref)]
    fn slot(&self, ring: RingIndex, slot: u32, bytes: u64) -> &mut [u8] {
        let slot = self.session.slot(ring, slot as usize).unwrap();
        // SAFETY: the client does not touch a slot while a message that uses it is under way.
        unsafe { std::slice::from_raw_parts_mut(slot.address().as_ptr(), bytes as usize) }
    }

    /// Pipelined messages.
    fn run(&self, ring: RingIndex, request: Request) {
        let at = |address: u64| (address - DEVICE) as usize;
        match request {
            Request::CopyFromInline(m) => self.write(m.dst, &m.data.0),
            Request::CopyFromSlot(m) => self.write(m.dst, self.slot(ring, m.slot, m.bytes.into())),
            Request::CopyToSlot(m) => {
                let bytes = self.read(m.src, m.bytes.into());
                self.slot(ring, m.slot, m.bytes.into()).copy_from_slice(&bytes);
            }
            Request::Copy(m) => self.write(m.dst, &self.read(m.src, m.bytes)),
            Request::Copy3D(m) => {
                for (dst, src) in rows(m.dst, m.height, m.depth).zip(rows(m.src, m.height, m.depth)) {
                    self.write(dst, &self.read(src, m.width));
                }
            }
            Request::CopyRowsFromSlot(m) => {
                let slot = self.slot(ring, m.slot, m.width * m.height * m.depth);
                for (dst, row) in rows(m.dst, m.height, m.depth).zip(slot.chunks(m.width as usize)) {
                    self.write(dst, row);
                }
            }
            Request::CopyRowsToSlot(m) => {
                let slot = self.slot(ring, m.slot, m.width * m.height * m.depth);
                for (src, row) in rows(m.src, m.height, m.depth).zip(slot.chunks_mut(m.width as usize)) {
                    row.copy_from_slice(&self.read(src, m.width));
                }
            }
            Request::CopyBox(m) => self.copy_box(ring, &m),
            Request::ArrayDestroy(m) => assert!(self.arrays.lock().unwrap().remove(&m.array).is_some()),
            Request::Fill(m) => {
                let element = &m.value.to_le_bytes()[..m.element.into()];
                for row in 0..m.height {
                    self.write(m.dst + row * m.pitch, &element.repeat(m.width as usize));
                }
            }
            Request::HostFunction(m) => self.call_back(m.callback),
            Request::GraphRelease(m) => self.call_back(m.callback),
            Request::MemFree(m) => assert!(at(m.address) < DEVICE_BYTES || m.address >= SHADOWS),
            _ => {}
        }
    }

    fn call_back(&self, id: CallbackId) {
        // Two threads of the fake must not publish at once.
        static ONE: Mutex<()> = Mutex::new(());
        let mut callbacks = self.session.callbacks();
        let number = {
            let _one = ONE.lock().unwrap();
            callbacks.publish(Callback { id: id.0, status: 0 }).unwrap().unwrap()
        };
        while callbacks.acknowledged() <= number {
            let _ = callbacks.wait_acknowledged(number, Duration::from_millis(100));
        }
    }

    fn make_array(&self, array: ArrayId, desc: &ArrayDesc) -> Vec<u8> {
        let shape = desc.shape().unwrap();
        self.arrays.lock().unwrap().insert(array, (shape, vec![0; shape.bytes() as usize]));
        Vec::new()
    }

    fn copy_box(&self, ring: RingIndex, m: &CopyBox) {
        let count = m.height * m.depth;
        let of_array = |id: ArrayId, [x, y, z]: [u64; 3], row: u64| {
            let shape = self.arrays.lock().unwrap()[&id].0;
            assert!(shape.contains([x, y, z], [m.width, m.height, m.depth]), "{m:?}");
            (((z + row / m.height) * shape.rows + y + row % m.height) * shape.row + x) as usize
        };
        let width = m.width as usize;
        for row in 0..count {
            let packed = (row * m.width) as usize..(row * m.width) as usize + width;
            let bytes = match m.src {
                CopySide::Memory(side) => {
                    self.read(rows(side, m.height, m.depth).nth(row as usize).unwrap(), m.width)
                }
                CopySide::Slot(slot) => self.slot(ring, slot, count * m.width)[packed.clone()].to_vec(),
                CopySide::Array(id, at) => {
                    let at = of_array(id, at, row);
                    self.arrays.lock().unwrap()[&id].1[at..at + width].to_vec()
                }
            };
            match m.dst {
                CopySide::Memory(side) => {
                    self.write(rows(side, m.height, m.depth).nth(row as usize).unwrap(), &bytes)
                }
                CopySide::Slot(slot) => {
                    self.slot(ring, slot, count * m.width)[packed].copy_from_slice(&bytes)
                }
                CopySide::Array(id, at) => {
                    let at = of_array(id, at, row);
                    self.arrays.lock().unwrap().get_mut(&id).unwrap().1[at..at + width]
                        .copy_from_slice(&bytes);
                }
            }
        }
    }

    /// The encoded answers of round trips.
    fn answer(&self, ring: RingIndex, request: Request) -> Vec<u8> {
        match request {
            Request::GetFacts(_) => encoded(&SessionFacts { driver_version: 13000, devices: vec![device()] }),
            Request::MemAlloc(m) => {
                let bytes = m.bytes.next_multiple_of(512);
                encoded(&self.next.fetch_add(bytes, Ordering::Relaxed))
            }
            Request::MemInfo(_) => encoded(&(1u64 << 30, 2u64 << 30)),
            Request::ManagedAlloc(m) if m.bytes <= SHADOWED => encoded(&0u64),
            Request::ManagedAlloc(m) => {
                let file =
                    std::fs::File::create(self.folder.join(format!("shadow-{}", m.managed.0))).unwrap();
                file.set_len(m.bytes).unwrap();
                encoded(&self.next_shadow.fetch_add(m.bytes.next_multiple_of(2 << 20), Ordering::Relaxed))
            }
            Request::PinnedAlloc(m) => {
                let bytes = m.bytes.next_multiple_of(4096);
                if bytes <= SLAB_BYTES / 2 {
                    return encoded(&self.piece(m.pinned));
                }
                let file = std::fs::File::create(self.folder.join(format!("pinned-{}", m.pinned.0))).unwrap();
                file.set_len(m.bytes).unwrap();
                let address = self.next_pinned.fetch_add(bytes, Ordering::Relaxed);
                encoded(&PinnedPlace { address, slab: None })
            }
            Request::PinnedFree(m) => {
                let mut slabs = self.slabs.lock().unwrap();
                slabs.iter_mut().for_each(|slab| slab.pieces.retain(|piece| *piece != m.pinned));
                encoded(&spare(&slabs))
            }
            Request::SlabFree(m) => {
                let mut slabs = self.slabs.lock().unwrap();
                slabs.retain(|slab| slab.base != m.slab);
                encoded(&spare(&slabs))
            }
            Request::CopyToInline(m) => encoded(&Bytes(self.read(m.src, m.bytes.into()))),
            Request::CopyWait(m) => {
                self.run(
                    ring,
                    Request::Copy(wire::Copy {
                        ctx: m.ctx,
                        stream: m.stream,
                        dst: m.dst,
                        src: m.src,
                        bytes: m.bytes,
                    }),
                );
                Vec::new()
            }
            Request::ModuleLoad(m) => {
                let upload = self.folder.join(format!("upload-{}", m.upload.0));
                let needed = managed_of(&std::fs::read(&upload).unwrap());
                if m.managed == 0 && !needed.variables.is_empty() {
                    return encoded(&(String::new(), needed));
                }
                std::fs::remove_file(upload).unwrap();
                encoded(&(format!("{} options", m.options.len()), managed_of(b"")))
            }
            Request::LibraryManaged(m) => {
                let with = self.with_managed.lock().unwrap().contains(&m.library);
                encoded(&managed_of(if with { MANAGED } else { b"" }))
            }
            Request::ModuleGetFunction(m) => encoded(&function(m.name)),
            Request::LibraryGetKernel(m) => encoded(&function(m.name)),
            Request::ModuleListFunctions(m) => encoded(&names(m.first, m.most)),
            Request::LibraryListKernels(m) => encoded(&names(m.first, m.most)),
            Request::LibraryLoad(m) => {
                let upload = self.folder.join(format!("upload-{}", m.upload.0));
                if !managed_of(&std::fs::read(&upload).unwrap()).variables.is_empty() {
                    self.with_managed.lock().unwrap().push(m.library);
                }
                std::fs::remove_file(upload).unwrap();
                Vec::new()
            }
            Request::ArrayCreate(m) => self.make_array(m.array, &m.desc),
            Request::MipmapCreate(m) => {
                self.mipmaps.lock().unwrap().insert(m.mipmap, m.desc);
                Vec::new()
            }
            Request::MipmapLevel(m) => {
                let desc = self.mipmaps.lock().unwrap()[&m.mipmap].level(m.level);
                self.make_array(m.array, &desc)
            }
            Request::StreamSetAttribute(m) => {
                self.attributes.lock().unwrap().insert((m.stream, m.attribute), m.value);
                Vec::new()
            }
            Request::StreamGetAttribute(m) => {
                let set = self.attributes.lock().unwrap().get(&(m.stream, m.attribute)).copied();
                encoded(&set.unwrap_or(LaunchValue([0; 64])))
            }
            Request::LinearTextureWidth(m) => encoded(&(1000 + u64::from(m.format + m.channels))),
            Request::TextureCreate(_) | Request::SurfaceCreate(_) => {
                encoded(&self.next_object.fetch_add(1, Ordering::Relaxed))
            }
            // What a device library makes of it: its address, for all to see.
            Request::TensorMapEncode(m) => encoded(&TensorMap(match m.request {
                TensorMapRequest::Tiled(tensor, _)
                | TensorMapRequest::Im2col(tensor, ..)
                | TensorMapRequest::Im2colWide(tensor, ..) => [tensor.address; 16],
                TensorMapRequest::Replace(map, address) => [map.0[0] + address; 16],
            })),
            Request::ModuleGetGlobal(_) => encoded(&(DEVICE + 4096, 64u64)),
            Request::OccupancyBlocks(m) => encoded(&(2048 / m.block as i32)),
            Request::StreamQuery(_) | Request::EventQuery(_) => encoded(&false),
            Request::EventElapsed(_) => encoded(&1.5f32),
            Request::ContextGetLimit(m) => encoded(&u64::from(m.limit)),
            _ => Vec::new(),
        }
    }

    /// A half of a slab.
    fn piece(&self, pinned: PinnedId) -> PinnedPlace {
        let mut slabs = self.slabs.lock().unwrap();
        if slabs.last().is_none_or(|slab| slab.used == 2) {
            let base = self.next_pinned.fetch_add(SLAB_BYTES, Ordering::Relaxed);
            let file = std::fs::File::create(self.folder.join(format!("slab-{base:x}"))).unwrap();
            file.set_len(SLAB_BYTES).unwrap();
            slabs.push(Slab { base, used: 0, pieces: Vec::new() });
        }
        let Slab { base, used, pieces } = slabs.last_mut().unwrap();
        pieces.push(pinned);
        *used += 1;
        PinnedPlace { address: *base + (*used - 1) * SLAB_BYTES / 2, slab: Some((*base, SLAB_BYTES)) }
    }

    /// Device memory, or pinned memory, which is mapped in this process.
    fn read(&self, address: u64, bytes: u64) -> Vec<u8> {
        if address >= PINNED {
            // SAFETY: pinned memory that the client has mapped.
            return unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) }.to_vec();
        }
        let at = (address - DEVICE) as usize;
        self.memory.lock().unwrap()[at..at + bytes as usize].to_vec()
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        if address >= PINNED {
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
            return;
        }
        let at = (address - DEVICE) as usize;
        self.memory.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What of device memory is there now.
    pub fn device(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.read(address, bytes as u64)
    }

    /// The messages so far of which `pick` makes something.
    pub fn picked<T>(&self, pick: impl FnMut(&(usize, Request)) -> Option<T>) -> Vec<T> {
        self.seen.lock().unwrap().iter().filter_map(pick).collect()
    }

    /// Only one test of a process at a time may make messages fail.
    pub fn fail(&self, message: &'static str, error: CuError) -> Failing<'_> {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.failing.lock().unwrap().insert(message, error);
        Failing { fake: self, message, _one: one }
    }
}

pub struct Failing<'a> {
    fake: &'a Fake,
    message: &'static str,
    _one: MutexGuard<'a, ()>,
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.fake.failing.lock().unwrap().remove(self.message);
    }
}

/// An answer that is encoded already.
struct Raw(Vec<u8>);

impl Wire for Raw {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(&self.0);
    }
    fn decode(_: &mut wire::Decoder<'_>) -> Result<Self, wire::DecodeError> {
        Ok(Self(Vec::new()))
    }
}

fn encoded(value: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

fn rows(side: Pitched, height: u64, depth: u64) -> impl Iterator<Item = u64> {
    (0..depth).flat_map(move |slice| {
        (0..height).map(move |row| side.address + (slice * side.rows + row) * side.pitch)
    })
}

fn device() -> DeviceFacts {
    let attributes =
        [(1, 1024), (2, 1024), (3, 1024), (4, 64), (5, i32::MAX), (6, 65535), (7, 65535), (10, 32)]
            .into_iter()
            .chain([(16, 4), (39, 2048), (75, 9), (76, 0)])
            .collect();
    DeviceFacts {
        name: "Fake".to_owned(),
        uuid: *b"0123456789abcdef",
        total_memory: 2 << 30,
        pci_bus_id: "0000:01:00.0".to_owned(),
        attributes,
        stream_priorities: (0, -5),
    }
}

/// One name at a time, as if each filled an answer.
fn names(first: u32, most: u32) -> Names {
    Names::page(&["first", "second", "third"].map(str::to_owned), first, most.min(1))
}

fn function(name: String) -> FunctionFacts {
    FunctionFacts { name, params: PARAMS.to_vec(), attributes: vec![(0, 512), (1, 16), (8, 4096)] }
}
