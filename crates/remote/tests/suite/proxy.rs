//! A network between the two ends: it takes time, and breaks when it is told to.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What the network does.
#[derive(Clone, Copy)]
pub struct Network {
    /// How long a byte takes, each way.
    pub delay: Duration,
    /// After how many bytes, of all connections and both ways, everything is cut.
    pub cut_after: u64,
}

/// Puts a network before sockets that lead to the far end; gives the sockets of the near end, and the count of bytes.
pub fn between(far: Vec<TcpStream>, network: Network) -> (Vec<TcpStream>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let all = Arc::new(Mutex::new(Vec::new()));
    let near = far
        .into_iter()
        .map(|far| {
            far.set_nodelay(true).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (inside, _) = listener.accept().unwrap();
            inside.set_nodelay(true).unwrap();
            let clone = |socket: &TcpStream| socket.try_clone().unwrap();
            all.lock().unwrap().extend([clone(&far), clone(&inside)]);
            for (from, to) in [(clone(&inside), clone(&far)), (far, inside)] {
                carry(from, to, network, Arc::clone(&count), Arc::clone(&all));
            }
            near
        })
        .collect();
    (near, count)
}

type Line = Arc<(Mutex<(VecDeque<(Instant, Vec<u8>)>, bool)>, Condvar)>;

fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    network: Network,
    count: Arc<AtomicU64>,
    all: Arc<Mutex<Vec<TcpStream>>>,
) {
    let line = Line::default();
    let sending = Arc::clone(&line);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut bytes).unwrap_or(0);
            let before = count.fetch_add(read as u64, Ordering::AcqRel);
            let mut kept = &bytes[..read];
            let cut = before + read as u64 > network.cut_after;
            if cut {
                kept = &kept[..(network.cut_after.saturating_sub(before) as usize).min(read)];
            }
            let mut queue = line.0.lock().unwrap();
            if !kept.is_empty() {
                queue.0.push_back((Instant::now() + network.delay, kept.to_vec()));
            }
            queue.1 |= cut || read == 0;
            line.1.notify_one();
            if queue.1 {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        loop {
            let mut queue = sending.0.lock().unwrap();
            while queue.0.is_empty() && !queue.1 {
                queue = sending.1.wait(queue).unwrap();
            }
            let Some((due, bytes)) = queue.0.pop_front() else { break };
            drop(queue);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        for socket in &*all.lock().unwrap() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    });
}
