//! A store whose chunks come when the test says so.

use image::{CHUNK_SIZE, ImageId};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use store::Store;
use store::media::{Around, Dir, Media, MediaRead};

/// How many whole chunks may still be read, or that none can be any more.
#[derive(Debug, Default)]
pub struct Valve {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// All can be read.
    open: bool,
    allowed: u64,
    waiting: usize,
    broken: bool,
}

impl Valve {
    /// Opens the store of a folder behind a valve that is open, and an image in it.
    pub fn before(dir: &Path, image: ImageId) -> (Arc<Self>, store::Image) {
        let valve = Arc::new(Self::default());
        valve.open();
        let slow = Slow { inner: Dir::new(dir), valve: Arc::clone(&valve) };
        let store = Store::open_media(Arc::new(slow)).unwrap();
        (valve, store.open_image(&image).unwrap())
    }

    /// Lets so many more be read.
    pub fn allow(&self, chunks: u64) {
        self.state.lock().unwrap().allowed += chunks;
        self.changed.notify_all();
    }

    /// Lets all be read.
    pub fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    /// Lets none be read for now.
    pub fn close(&self) {
        self.state.lock().unwrap().open = false;
    }

    /// Lets none be read any more.
    pub fn break_off(&self) {
        self.state.lock().unwrap().broken = true;
        self.changed.notify_all();
    }

    /// Whether somebody waits for a chunk.
    pub fn is_waited_for(&self) -> bool {
        self.state.lock().unwrap().waiting > 0
    }

    fn pass(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        let shut = |state: &mut State| !state.open && state.allowed == 0 && !state.broken;
        state = self.changed.wait_while(state, shut).unwrap();
        state.waiting -= 1;
        if state.broken {
            return Err(io::Error::other("the cable was pulled"));
        }
        state.allowed = state.allowed.saturating_sub(1);
        Ok(())
    }
}

#[derive(Debug)]
struct Slow {
    inner: Dir,
    valve: Arc<Valve>,
}

#[derive(Debug)]
struct SlowRead(Box<dyn MediaRead>, Arc<Valve>);

impl MediaRead for SlowRead {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.len() >= CHUNK_SIZE {
            self.1.pass()?;
        }
        self.0.read_exact_at(buffer, offset)
    }
}

impl Around for Slow {
    fn inner(&self) -> &dyn Media {
        &self.inner
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Ok(Box::new(SlowRead(self.inner.open(path)?, Arc::clone(&self.valve))))
    }
}
