//! A network between the two ends: it takes time, carries so much at a time, and breaks or garbles what it carries when it is told to.

use std::collections::VecDeque;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes that one stream has on their way in one direction: more than a second of 10 Gbit/s has in 20 ms.
const ON_THE_WAY: usize = 32 << 20;

/// What is streamed through a network to see what it carries.
const STREAMED: usize = 64 << 20;

/// What the network does.
#[derive(Clone, Copy)]
pub struct Network {
    /// How long a byte takes, each way.
    pub delay: Duration,
    /// Bytes a second, each way, of all connections together.
    pub rate: Option<NonZeroU64>,
    /// After how many bytes, of all connections and both ways, everything is cut.
    pub cut_after: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self { delay: Duration::ZERO, rate: None, cut_after: u64::MAX }
    }
}

/// One direction of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Which connection, from 0.
    pub connection: usize,
    /// To the far end, or from it.
    pub to_far: bool,
}

/// Makes of what has come what goes on.
pub type Change = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send>;

/// All that the network carries.
#[derive(Default)]
pub struct Traffic {
    bytes: AtomicU64,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Traffic {
    /// Bytes so far, of all connections and both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for socket in &*lock(&self.sockets) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For each direction, when the last byte has left: to the far end, from it.
#[derive(Clone)]
struct Wires([Arc<Mutex<Instant>>; 2]);

impl Default for Wires {
    fn default() -> Self {
        Self([(); 2].map(|()| Arc::new(Mutex::new(Instant::now()))))
    }
}

/// Puts a network before a server, for as long as this process lives; where it is entered.
///
/// # Errors
/// As the system's.
pub fn before(server: SocketAddr, network: Network) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        let wires = Wires::default();
        for near in listener.incoming() {
            let carried = || {
                let traffic = Arc::new(Traffic::default());
                carry_both(near?, TcpStream::connect(server)?, network, &wires, [None, None], &traffic)
            };
            // Whoever comes while nobody is there is left.
            let _ = carried();
        }
    });
    Ok(at)
}

/// A byte there and back through a network, or over loopback alone, the median of what a second holds, and what one stream carries so, bytes a second.
///
/// # Errors
/// As the system's.
pub fn measured(network: Option<Network>) -> Result<(Duration, f64)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let mut near = TcpStream::connect(network.map_or(Ok(at), |network| before(at, network))?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = std::thread::spawn(move || -> Result<()> {
        let mut byte = [0];
        loop {
            far.read_exact(&mut byte)?;
            far.write_all(&byte)?;
            if byte == [0] {
                break;
            }
        }
        let (mut left, mut into) = (STREAMED, vec![0; 512 << 10]);
        while left > 0 {
            left -= far.read(&mut into)?.max(1).min(left);
        }
        far.write_all(&[0])
    });
    let mut to_and_fro = |byte: u8| -> Result<Duration> {
        let begun = Instant::now();
        near.write_all(&[byte])?;
        near.read_exact(&mut [0])?;
        Ok(begun.elapsed())
    };
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(1) {
        times.push(to_and_fro(1)?);
    }
    to_and_fro(0)?;
    times.sort_unstable();
    let begun = Instant::now();
    near.write_all(&vec![1; STREAMED])?;
    near.read_exact(&mut [0])?;
    let rate = STREAMED as f64 / begun.elapsed().as_secs_f64();
    echo.join().map_err(|_| std::io::Error::other("the echo panicked"))??;
    Ok((times[times.len() / 2], rate))
}

/// Puts a network before sockets that lead to the far end; gives the sockets of the near end.
///
/// # Errors
/// As the system's.
pub fn between(far: Vec<TcpStream>, network: Network) -> Result<(Vec<TcpStream>, Arc<Traffic>)> {
    between_changing(far, network, |_| None)
}

/// The same, changing what streams carry.
///
/// # Errors
/// As the system's.
pub fn between_changing(
    far: Vec<TcpStream>,
    network: Network,
    mut change: impl FnMut(Stream) -> Option<Change>,
) -> Result<(Vec<TcpStream>, Arc<Traffic>)> {
    let traffic = Arc::new(Traffic::default());
    let wires = Wires::default();
    let near = far.into_iter().enumerate().map(|(connection, far)| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (inside, _) = listener.accept()?;
        let changes = [true, false].map(|to_far| change(Stream { connection, to_far }));
        carry_both(inside, far, network, &wires, changes, &traffic)?;
        Ok(near)
    });
    Ok((near.collect::<Result<_>>()?, traffic))
}

/// Carries what one connection says in both directions.
fn carry_both(
    near: TcpStream,
    far: TcpStream,
    network: Network,
    wires: &Wires,
    changes: [Option<Change>; 2],
    traffic: &Arc<Traffic>,
) -> Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    lock(&traffic.sockets).extend([far.try_clone()?, near.try_clone()?]);
    let ends = [(near.try_clone()?, far.try_clone()?), (far, near)];
    for (((from, to), wire), change) in ends.into_iter().zip(&wires.0).zip(changes) {
        carry(from, to, network, Arc::clone(wire), change, Arc::clone(traffic));
    }
    Ok(())
}

/// Bytes on their way, each with the time at which they arrive.
#[derive(Default)]
struct Queue {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    over: bool,
}

/// `wire` is when the last byte of its direction has left.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    network: Network,
    wire: Arc<Mutex<Instant>>,
    mut change: Option<Change>,
    traffic: Arc<Traffic>,
) {
    let line = Arc::new((Mutex::new(Queue::default()), Condvar::new()));
    let (sending, carried) = (Arc::clone(&line), Arc::clone(&traffic));
    std::thread::spawn(move || {
        sleeps_exactly();
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut bytes).unwrap_or(0);
            let before = carried.bytes.fetch_add(read as u64, Ordering::AcqRel);
            let mut kept = &bytes[..read];
            let cut = before + read as u64 > network.cut_after;
            if cut {
                kept = &kept[..(network.cut_after.saturating_sub(before) as usize).min(read)];
            }
            let kept = change.as_mut().map_or_else(|| kept.to_vec(), |change| change(kept));
            let sent = network.rate.map_or_else(Instant::now, |rate| leaves(&wire, kept.len(), rate));
            let mut queue = lock(&line.0);
            while queue.bytes > ON_THE_WAY && !queue.over {
                queue = line.1.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.bytes += kept.len();
            if !kept.is_empty() {
                queue.chunks.push_back((sent + network.delay, kept));
            }
            queue.over |= cut || read == 0;
            line.1.notify_all();
            if queue.over {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        sleeps_exactly();
        loop {
            let mut queue = lock(&sending.0);
            while queue.chunks.is_empty() && !queue.over {
                queue = sending.1.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some((due, bytes)) = queue.chunks.pop_front() else { break };
            queue.bytes -= bytes.len();
            sending.1.notify_all();
            drop(queue);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        lock(&sending.0).over = true;
        sending.1.notify_all();
        traffic.cut();
    });
}

/// Waits until the wire is free, and tells when these bytes will have left it.
fn leaves(wire: &Mutex<Instant>, bytes: usize, rate: NonZeroU64) -> Instant {
    let takes = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
    let (begin, end) = {
        let mut free = lock(wire);
        let begin = (*free).max(Instant::now());
        *free = begin + takes;
        (begin, *free)
    };
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    end
}

/// The kernel may wake a thread 50 µs late otherwise.
fn sleeps_exactly() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
