//! A network that breaks when it is told to: lines between whoever connects to it and a server.

use crate::seed::Seed;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What it does with lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weather {
    Fair,
    /// Each new line is closed after some bytes, so many at most.
    Rough(u64),
    /// New lines are closed at once.
    Down,
}

struct Line {
    ends: [TcpStream; 2],
    /// How many bytes it carries yet.
    left: u64,
    /// Whether it carries nothing any more, and says nothing of that.
    frozen: bool,
}

impl Line {
    fn close(&self) {
        self.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }
}

struct State {
    weather: Weather,
    seed: Seed,
    lines: Vec<Arc<Mutex<Line>>>,
}

/// The network; its lines are closed when it is dropped.
pub struct Network {
    at: SocketAddr,
    state: Arc<Mutex<State>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    /// Leads to a server.
    ///
    /// # Errors
    /// As the system's.
    pub fn before(server: SocketAddr, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let seed = Seed::of_round(seed, "network", "lines", 0);
        let state = Arc::new(Mutex::new(State { weather: Weather::Fair, seed, lines: Vec::new() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for near in listener.incoming() {
                // Whoever comes while it is down, or finds nobody there, is left.
                let _ = near.and_then(|near| connect(near, server, &shared));
            }
        });
        Ok(Self { at, state })
    }

    /// Where it is entered.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// How many lines there have been.
    pub fn count(&self) -> usize {
        lock(&self.state).lines.len()
    }

    /// From now on each line is closed after some bytes, wherever that is; those that are there, too.
    pub fn be_rough(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.weather = Weather::Rough(bytes);
        for line in state.lines.clone() {
            lock(&line).left = state.seed.draw() % bytes;
        }
    }

    /// New lines are as they should be.
    pub fn be_fair(&self) {
        lock(&self.state).weather = Weather::Fair;
    }

    /// There are no new lines.
    pub fn go_down(&self) {
        lock(&self.state).weather = Weather::Down;
    }

    /// Closes the lines of these numbers.
    pub fn close(&self, numbers: std::ops::Range<usize>) {
        lock(&self.state).lines[numbers].iter().for_each(|line| lock(line).close());
    }

    /// The lines that are there carry nothing any more, and nobody is told.
    pub fn freeze(&self) {
        lock(&self.state).lines.iter().for_each(|line| lock(line).frozen = true);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.go_down();
        self.close(0..self.count());
    }
}

fn connect(near: TcpStream, server: SocketAddr, state: &Mutex<State>) -> Result<()> {
    let mut state = lock(state);
    if state.weather == Weather::Down {
        return Ok(());
    }
    let far = TcpStream::connect(server)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let left = match state.weather {
        Weather::Rough(most) => state.seed.draw() % most,
        _ => u64::MAX,
    };
    let ends = [near.try_clone()?, far.try_clone()?];
    let line = Arc::new(Mutex::new(Line { ends, left, frozen: false }));
    state.lines.push(Arc::clone(&line));
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        let line = Arc::clone(&line);
        thread::spawn(move || carry(from, to, &line));
    }
    Ok(())
}

fn carry(mut from: TcpStream, mut to: TcpStream, line: &Mutex<Line>) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        let kept = {
            let mut line = lock(line);
            if line.frozen {
                return;
            }
            let kept = line.left.min(read as u64);
            line.left -= kept;
            kept as usize
        };
        let written = to.write_all(&bytes[..kept]);
        if read == 0 {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if kept < read || written.is_err() {
            return lock(line).close();
        }
    }
}
