//! What it costs that the device is on another machine, over loopback TCP, beside the same on the device itself and beside a plain
//! stream. Run with `cargo bench -p remote`; it takes no arguments.

// A bench says what went wrong by panicking.
#![allow(clippy::unwrap_used)]

use backend::{Backend, Launch, Range, RawContext, RawFunction, StreamArg};
use backend_soft::SoftBackend;
use remote::{Quota, RemoteBackend, Wires, serve};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PORT: &str = "DORMOUSE_REMOTE_BENCH_PORT";
const CONNECTIONS: usize = 5;
const MEMORY: Range = Range { base: 0x4000_0000_0000, bytes: 512 << 20 };
const BULK: usize = 256 << 20;

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
\0";

fn main() {
    if let Ok(port) = std::env::var(PORT) {
        let port: u16 = port.parse().unwrap();
        let sockets = (0..CONNECTIONS).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let _ = serve(Wires::of_tcp(sockets).unwrap(), Arc::new(SoftBackend::default()), Quota::default());
        std::process::exit(0);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut far = Command::new(std::env::current_exe().unwrap()).env(PORT, port).spawn().unwrap();
    let sockets = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    let remote = RemoteBackend::connect(Wires::of_tcp(sockets).unwrap(), |_| {}).unwrap();
    println!("ping-pong of a byte over TCP: {:.1} µs", micros(ping_pong()));
    println!("one plain TCP stream: {:.2} GB/s", plain_stream());
    let remote = Rig::new(Box::new(remote));
    let round = remote.round_trip(|rig| assert!(rig.backend.memory_info(rig.ctx).is_ok()));
    println!("a question to the far end: {:.1} µs", micros(round));
    let blocking = remote.round_trip(Rig::launch_and_wait);
    let (submit, whole) = remote.launches();
    println!("remote: launch and synchronise {:.1} µs", micros(blocking));
    println!(
        "remote: a launch costs the caller {:.2} µs; {:.0} launches a second",
        micros(submit),
        1.0 / whole.as_secs_f64()
    );
    for (what, registered) in [("plain", false), ("registered", true)] {
        let (to, from) = remote.bulk(registered);
        println!("remote: {what} memory to the device {to:.2} GB/s, back {from:.2} GB/s");
    }
    drop(remote);
    far.wait().unwrap();
    let direct = Rig::new(Box::new(SoftBackend::default()));
    let blocking = direct.round_trip(Rig::launch_and_wait);
    let (submit, whole) = direct.launches();
    println!("direct: launch and synchronise {:.1} µs", micros(blocking));
    println!(
        "direct: a launch costs the caller {:.2} µs; {:.0} launches a second",
        micros(submit),
        1.0 / whole.as_secs_f64()
    );
    let (to, from) = direct.bulk(false);
    println!("direct: plain memory to the device {to:.2} GB/s, back {from:.2} GB/s");
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    one.set_nodelay(true).unwrap();
    other.set_nodelay(true).unwrap();
    (one, other)
}

fn ping_pong() -> Duration {
    const ROUNDS: u32 = 5000;
    let (mut one, mut other) = pair();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() {
            other.write_all(&byte).unwrap();
        }
    });
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let mut byte = [0];
        one.write_all(&byte).unwrap();
        one.read_exact(&mut byte).unwrap();
    }
    let took = begun.elapsed() / ROUNDS;
    drop(one);
    echo.join().unwrap();
    took
}

fn plain_stream() -> f64 {
    let (mut one, mut other) = pair();
    let bytes = vec![1u8; BULK];
    let begun = Instant::now();
    let sink = std::thread::spawn(move || {
        let mut into = vec![0u8; 512 << 10];
        let mut left = BULK;
        while left > 0 {
            left -= other.read(&mut into).unwrap();
        }
    });
    one.write_all(&bytes).unwrap();
    sink.join().unwrap();
    rate(begun.elapsed())
}

fn rate(took: Duration) -> f64 {
    BULK as f64 / took.as_secs_f64() / 1e9
}

struct Rig {
    backend: Box<dyn Backend>,
    ctx: RawContext,
    store: RawFunction,
}

impl Rig {
    fn new(backend: Box<dyn Backend>) -> Self {
        let ctx = backend.context_create(0, 0, true).unwrap();
        backend.reserve(Range { bytes: 1 << 36, ..MEMORY }).unwrap();
        backend.map_block(0, MEMORY).unwrap();
        let module = backend.module_load(ctx, PTX.as_bytes(), &[], &[]).unwrap().code;
        let store = backend.function(ctx, module, "store").unwrap();
        Self { backend, ctx, store }
    }

    fn launch(&self) {
        let params = [MEMORY.base.to_le_bytes().as_slice(), &7u32.to_le_bytes()].concat();
        let (grid, block, stream) = ([1; 3], [1; 3], StreamArg::Legacy);
        let launch =
            Launch { function: self.store, grid, block, shared: 0, stream, attributes: &[], params: &params };
        self.backend.launch(self.ctx, &launch).unwrap();
    }

    fn wait(&self) {
        self.backend.stream_synchronize(self.ctx, StreamArg::Legacy).unwrap();
    }

    fn launch_and_wait(&self) {
        self.launch();
        self.wait();
    }

    fn round_trip(&self, round: impl Fn(&Self)) -> Duration {
        const ROUNDS: usize = 3000;
        (0..200).for_each(|_| round(self));
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let begun = Instant::now();
                round(self);
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[ROUNDS / 2]
    }

    /// What a launch costs its caller, and what it takes altogether.
    fn launches(&self) -> (Duration, Duration) {
        const LAUNCHES: u32 = 100_000;
        let begun = Instant::now();
        (0..LAUNCHES).for_each(|_| self.launch());
        let submitted = begun.elapsed();
        self.wait();
        (submitted / LAUNCHES, begun.elapsed() / LAUNCHES)
    }

    fn bulk(&self, registered: bool) -> (f64, f64) {
        let mut memory = vec![1u8; BULK + 4096];
        let base = (memory.as_mut_ptr() as u64).next_multiple_of(4096);
        let range = Range { base, bytes: BULK as u64 };
        if registered {
            self.backend.register_host(range).unwrap();
        }
        let timed = |dst, src| {
            let begun = Instant::now();
            self.backend.copy(self.ctx, StreamArg::Legacy, dst, src, BULK as u64).unwrap();
            self.wait();
            rate(begun.elapsed())
        };
        timed(MEMORY.base, base);
        timed(base, MEMORY.base);
        let rates = (timed(MEMORY.base, base), timed(base, MEMORY.base));
        if registered {
            self.backend.unregister_host(range).unwrap();
        }
        rates
    }
}
