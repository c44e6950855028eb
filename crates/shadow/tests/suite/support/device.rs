//! A device that is plain memory, with streams that are threads.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use shadow::{Device, DeviceError, Error, Step};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What is done at a step.
type Hook = Box<dyn Fn(Step) + Send + Sync>;

/// The device.
#[derive(Default)]
pub struct Model {
    regions: Mutex<Vec<(shadow::Range, Arc<[AtomicU8]>)>>,
    /// Files that are reached in place of regions' memory.
    coherent: Mutex<Vec<(shadow::Range, Arc<Mapped>)>>,
    /// How often a region became coherent.
    pub cohered: AtomicUsize,
    /// Whether work takes longer as long as one is.
    pub slow_when_coherent: AtomicBool,
    /// Work given to it and not done.
    busy: AtomicUsize,
    /// How often it was read and written.
    pub transfers: AtomicUsize,
    /// How often pages have come back that nobody had touched.
    pub returned: AtomicUsize,
    /// From so many transfers on each third one to the device fails, if not 0.
    pub failing: AtomicUsize,
    /// With so many transfers and pieces of work it fails for good, if not 0: from then on it does nothing, and says so.
    pub fails_at: AtomicUsize,
    /// How many there were.
    steps: AtomicUsize,
    /// A thread that a stream waits for.
    pub awaited_thread: AtomicU32,
    /// Where a thread waited in vain.
    pub awaited: Mutex<Vec<u64>>,
    hook: OnceLock<Hook>,
}

/// What it answers then.
const FAILED: &str = "the device fails";

/// What of these an address lies in, and where in it.
fn around<T: Clone>(all: &Mutex<Vec<(shadow::Range, T)>>, address: u64) -> Option<(usize, T)> {
    all.lock().unwrap().iter().find_map(|(range, memory)| {
        let at = address.checked_sub(range.base).filter(|at| *at < range.bytes)? as usize;
        Some((at, memory.clone()))
    })
}

impl Model {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// One that makes whoever comes by wait, now and then, up to so many microseconds.
    pub fn delayed(seed: u64, most: u64) -> Arc<Self> {
        let drawn = AtomicU64::new(seed);
        Self::hooked(move |_| pause(drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed), most))
    }

    /// One that does something at each step of the keeper.
    pub fn hooked(hook: impl Fn(Step) + Send + Sync + 'static) -> Arc<Self> {
        let model = Self::new();
        assert!(model.hook.set(Box::new(hook)).is_ok());
        model
    }

    pub fn add(&self, range: shadow::Range) {
        let bytes = (0..range.bytes).map(|_| AtomicU8::new(0)).collect();
        self.regions.lock().unwrap().push((range, bytes));
    }

    /// Gives up what is at `base`.
    pub fn remove(&self, base: u64) {
        self.regions.lock().unwrap().retain(|(range, _)| range.base != base);
    }

    /// Some of its memory, which nobody else may look at in between.
    fn at(&self, address: u64, bytes: usize, each: impl FnMut((usize, &AtomicU8))) {
        if let Some((at, file)) = around(&self.coherent, address) {
            return file.bytes()[at..at + bytes].iter().enumerate().for_each(each);
        }
        let (at, memory) = around(&self.regions, address).expect("nobody touches what is no region");
        memory[at..at + bytes].iter().enumerate().for_each(each);
    }

    /// Counts a transfer or a piece of work. Answers whether the device does it.
    fn step(&self) -> bool {
        self.steps.fetch_add(1, Ordering::SeqCst);
        !self.has_failed()
    }

    /// Whether it has failed for good.
    pub fn has_failed(&self) -> bool {
        let at = self.fails_at.load(Ordering::SeqCst);
        at > 0 && self.steps.load(Ordering::SeqCst) >= at
    }

    fn works(&self) -> Result<(), DeviceError> {
        if self.has_failed() { Err(FAILED.into()) } else { Ok(()) }
    }

    /// How many regions are coherent.
    pub fn coherent(&self) -> usize {
        self.coherent.lock().unwrap().len()
    }

    pub fn load(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut loaded = vec![0; bytes];
        self.at(address, bytes, |(index, byte)| loaded[index] = byte.load(Ordering::Relaxed));
        loaded
    }

    pub fn store(&self, address: u64, bytes: &[u8]) {
        self.at(address, bytes.len(), |(index, byte)| byte.store(bytes[index], Ordering::Relaxed));
    }
}

impl Device for Model {
    fn begun(&self) -> bool {
        true
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        if !self.step() {
            return Err(FAILED.into());
        }
        self.at(address, bytes.len(), |(index, byte)| bytes[index] = byte.load(Ordering::Relaxed));
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8], parts: &[Range<usize>]) -> Result<(), DeviceError> {
        let number = self.transfers.fetch_add(parts.len(), Ordering::Relaxed);
        let failing = self.failing.load(Ordering::Relaxed);
        let fails_now = failing > 0 && number >= failing && number.is_multiple_of(3);
        if !self.step() || fails_now {
            return Err(FAILED.into());
        }
        parts.iter().for_each(|part| self.store(address + part.start as u64, &bytes[part.clone()]));
        Ok(())
    }

    fn cohere(&self, region: shadow::Range, file: BorrowedFd<'_>) -> Result<(), DeviceError> {
        self.works()?;
        // Nobody may count on it.
        self.store(region.base, &vec![0xee; region.bytes as usize]);
        self.coherent.lock().unwrap().push((region, Arc::new(Mapped::new(file, region.bytes as usize))));
        self.cohered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn separate(&self, region: shadow::Range) -> Result<(), DeviceError> {
        self.works()?;
        self.coherent.lock().unwrap().retain(|(range, _)| *range != region);
        Ok(())
    }

    fn is_busy(&self) -> bool {
        // As with the driver: what has failed is at nothing any more.
        self.busy.load(Ordering::SeqCst) > 0 && !self.has_failed()
    }

    fn is_awaited(&self, thread: u32) -> bool {
        self.awaited_thread.load(Ordering::SeqCst) == thread
    }

    fn failed(&self, error: Error) {
        if self.has_failed() {
            // What others read until the program is ended is to be right, too.
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whoever waits for the page would wait for ever.
        eprintln!("{error}: {:?}", std::error::Error::source(&error));
        std::process::abort();
    }

    fn awaited(&self, address: u64) {
        self.awaited.lock().unwrap().push(address);
    }

    fn between(&self, step: Step) {
        if step == Step::Fetched && std::thread::current().name() == Some("shadow-returns") {
            self.returned.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(hook) = self.hook.get() {
            hook(step);
        }
    }
}

/// A file as the device reaches it.
struct Mapped {
    base: *mut AtomicU8,
    bytes: usize,
}

// SAFETY: memory that both sides reach at any time, by atomic accesses.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: BorrowedFd<'_>, bytes: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
        Self { base: base.unwrap().cast(), bytes }
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the mapping, which lives as long; the file has all of its pages.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this one's mapping, which nobody uses any more.
        unsafe { munmap(self.base.cast(), self.bytes) }.unwrap();
    }
}

/// Waits, as long as `drawn` says.
pub fn pause(drawn: u64, most: u64) {
    let drawn = drawn.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    match drawn % 4 {
        0 if most > 0 => std::thread::sleep(Duration::from_micros(drawn / 4 % most)),
        1 => std::thread::yield_now(),
        _ => {}
    }
}

/// What is to be done, and who is told when it does not count any more, and whether all until then has been done.
type Job = (Box<dyn FnOnce(&Model) + Send>, Option<Sender<bool>>);

/// Does what it is given, in order, also when nobody has it any more.
pub struct Stream {
    model: Arc<Model>,
    jobs: Sender<Job>,
}

impl Stream {
    pub fn new(model: &Arc<Model>) -> Self {
        let (jobs, given): (_, Receiver<Job>) = channel();
        let device = model.clone();
        std::thread::spawn(move || {
            for (job, told) in given {
                if device.slow_when_coherent.load(Ordering::Relaxed) && device.coherent() > 0 {
                    std::thread::sleep(Duration::from_millis(50));
                }
                if device.step() {
                    job(&device);
                }
                device.busy.fetch_sub(1, Ordering::SeqCst);
                told.into_iter().for_each(|told| told.send(!device.has_failed()).unwrap());
            }
        });
        Self { model: model.clone(), jobs }
    }

    pub fn submit(&self, job: impl FnOnce(&Model) + Send + 'static) {
        self.give(Box::new(job), None);
    }

    fn give(&self, job: Box<dyn FnOnce(&Model) + Send>, told: Option<Sender<bool>>) {
        self.model.busy.fetch_add(1, Ordering::SeqCst);
        self.jobs.send((job, told)).unwrap();
    }

    /// Waits until all that was given before is done. Answers whether it is, or has failed.
    pub fn wait(&self) -> bool {
        let (told, wait) = channel();
        self.tell(told);
        wait.recv().unwrap()
    }

    /// Has somebody told that, when it is so.
    pub fn tell(&self, told: Sender<bool>) {
        self.give(Box::new(|_| {}), Some(told));
    }
}
