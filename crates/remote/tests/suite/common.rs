//! Both ends of a session.

use backend::{Backend, Launch, Range, RawContext, RawFunction, Result, StreamArg};
use backend_soft::SoftBackend;
use remote::{Choice, Quota, RemoteBackend, Wires, serve};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where the far end connects to: a port, or a path.
pub const PLACE: &str = "DORMOUSE_REMOTE_TEST_PLACE";
/// How much device memory it lets its client have, and how many objects.
const MEMORY: &str = "DORMOUSE_REMOTE_TEST_MEMORY";
const OBJECTS: &str = "DORMOUSE_REMOTE_TEST_OBJECTS";
/// Connections of a session.
pub const CONNECTIONS: usize = 4;

/// What the binary does as the far end.
pub fn far_end(place: &OsStr) {
    // A thread of a far end that panics is a fault, whatever its client has said.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        std::process::abort();
    }));
    let place = place.to_str().unwrap();
    let wires = match place.parse::<u16>() {
        Ok(port) => Wires::of_tcp(connections(|| greeting(port))),
        Err(_) => Wires::of_unix(connections(|| UnixStream::connect(place).unwrap())),
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let mut quota = Quota { memory: number(MEMORY), ..Quota::default() };
    quota.objects = number(OBJECTS).unwrap_or(quota.objects);
    match serve(wires.unwrap(), Arc::new(SoftBackend::default()), quota) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("far end: {error}");
            std::process::exit(1);
        }
    }
}

/// A connection to a port, and who makes it: others may think that the port is still somebody else's.
fn greeting(port: u16) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.write_all(&std::process::id().to_le_bytes()).unwrap();
    socket
}

/// The next connection that the far end makes.
fn greeted(listener: &TcpListener, far: &Far) -> TcpStream {
    loop {
        let mut socket = listener.accept().unwrap().0;
        let mut who = [0; 4];
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        if socket.read_exact(&mut who).is_ok() && u32::from_le_bytes(who) == far.0.id() {
            socket.set_read_timeout(None).unwrap();
            return socket;
        }
    }
}

fn connections<S>(connect: impl Fn() -> S) -> Vec<S> {
    (0..CONNECTIONS).map(|_| connect()).collect()
}

/// The far end, killed at the end of a test.
pub struct Far(pub Child);

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &str, limits: &[(&str, u64)]) -> Far {
    let mut far = Command::new(std::env::current_exe().unwrap());
    far.env(PLACE, place);
    for (name, value) in limits {
        far.env(name, value.to_string());
    }
    Far(far.spawn().unwrap())
}

/// A session over TCP: its connections at this end.
pub fn tcp(limits: &[(&str, u64)]) -> (Far, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = start(&listener.local_addr().unwrap().port().to_string(), limits);
    let sockets = connections(|| greeted(&listener, &far));
    (far, sockets)
}

pub fn over_tcp() -> (Far, RemoteBackend) {
    let (far, sockets) = tcp(&[]);
    (far, connect(Wires::of_tcp(sockets).unwrap()))
}

pub fn over_unix() -> (Far, RemoteBackend) {
    let path = std::env::temp_dir().join(format!(
        "dormouse-remote-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let listener = UnixListener::bind(&path).unwrap();
    let far = start(path.to_str().unwrap(), &[]);
    let sockets = connections(|| listener.accept().unwrap().0);
    std::fs::remove_file(&path).unwrap();
    (far, connect(Wires::of_unix(sockets).unwrap()))
}

pub fn connect(wires: Wires) -> RemoteBackend {
    RemoteBackend::connect(wires, &Choice::default(), |why| eprintln!("the session is lost: {why}")).unwrap()
}

/// Kernels that store a word, spin for ever, and follow a pointer.
const PTX: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry store(.param .u64 to, .param .u32 value) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [to]; ld.param.u32 %v, [value];
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry spin(.param .u64 at) {
    .reg .u64 %a; .reg .u32 %v; .reg .pred %p;
    ld.param.u64 %a, [at];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, 0;
    @%p bra again;
    ret;
}
.visible .entry follow(.param .u64 at) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [at];
    ld.global.u64 %a, [%a];
    ld.global.u32 %v, [%a];
    add.u32 %v, %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
\0";

/// From one program's memory to the next: a process may have several, and the conformance suite's from `0x4000_0000_0000` on.
const RESERVED: u64 = 1 << 36;
static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);

/// A context, memory and kernels.
pub struct Program<'a> {
    backend: &'a dyn Backend,
    pub ctx: RawContext,
    memory: Range,
    store: RawFunction,
    spin: RawFunction,
    follow: RawFunction,
}

impl<'a> Program<'a> {
    pub fn new(backend: &'a dyn Backend) -> Result<Self> {
        let ctx = backend.context_create(0, 0, true)?;
        let base = NEXT.fetch_add(RESERVED, Ordering::Relaxed);
        let memory = Range { base, bytes: 256 << 20 };
        backend.reserve(Range { bytes: RESERVED, ..memory })?;
        backend.map_block(0, memory)?;
        let module = backend.module_load(ctx, PTX.as_bytes(), &[], &[]).map_err(|error| error.code)?.code;
        let function = |name| backend.function(ctx, module, name);
        let (store, spin, follow) = (function("store")?, function("spin")?, function("follow")?);
        Ok(Self { backend, ctx, memory, store, spin, follow })
    }

    pub fn at(&self, offset: u64) -> u64 {
        self.memory.base + offset
    }

    fn launch(&self, function: RawFunction, params: &[u8]) -> Result<()> {
        let (grid, block, stream) = ([1; 3], [1; 3], StreamArg::Legacy);
        let launch = Launch { function, grid, block, shared: 0, stream, attributes: &[], params };
        self.backend.launch(self.ctx, &launch)
    }

    /// Stores a word at the beginning of the memory.
    pub fn store(&self, value: u32) -> Result<()> {
        self.launch(self.store, &[self.at(0).to_le_bytes().as_slice(), &value.to_le_bytes()].concat())
    }

    /// Runs for ever.
    pub fn spin(&self) -> Result<()> {
        self.launch(self.spin, &self.at(1 << 20).to_le_bytes())
    }

    /// Adds one to the word that the pointer at an address points to.
    pub fn follow(&self, at: u64) -> Result<()> {
        self.launch(self.follow, &at.to_le_bytes())
    }

    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.backend.copy(self.ctx, StreamArg::Legacy, dst, src, bytes)
    }

    pub fn wait(&self) -> Result<()> {
        self.backend.stream_synchronize(self.ctx, StreamArg::Legacy)
    }

    /// What has been stored.
    pub fn read(&self) -> Result<u32> {
        let mut word = 0u32;
        self.copy(&raw mut word as u64, self.at(0), 4)?;
        Ok(word)
    }
}
