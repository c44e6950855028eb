//! What shadow pages cost the processor: `cargo bench -p shadow`. The device is plain memory, and what it does takes no time; the faults, pages
//! and wake-ups are real. A word behind it names what is measured alone, all else is left out.
//!
//! Like this crate's tests it needs the right to a userfaultfd, and mounts a tmpfs of its own, as a job has one.

use rustix::mm::{MapFlags, ProtFlags};
use shadow::{Access, Device, DeviceError, Error, Keeper, Range, Scope, Userfault};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Threads that serve faults, as many as a server has.
const THREADS: usize = 2;
/// Where regions begin.
const BASE: u64 = 0x5000_0000_0000;

/// The device's memory: at an address of the region lies what is so far behind `memory`.
struct Memory {
    region: u64,
    memory: u64,
}

impl Memory {
    fn at(&self, address: u64) -> *mut u8 {
        (address - self.region + self.memory) as *mut u8
    }
}

impl Device for Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: inside the region, which nobody writes meanwhile.
        unsafe { self.at(address).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8], parts: &[std::ops::Range<usize>]) -> Result<(), DeviceError> {
        for part in parts {
            let from = &bytes[part.clone()];
            // SAFETY: inside the region, which nobody else touches meanwhile.
            unsafe {
                self.at(address + part.start as u64).copy_from_nonoverlapping(from.as_ptr(), from.len())
            };
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn begun(&self) -> bool {
        // As a server's threads for a GPU.
        rustix::process::setpriority_process(None, -20).is_ok()
    }

    fn failed(&self, error: Error) {
        eprintln!("{error}: {:?}", std::error::Error::source(&error));
        std::process::abort();
    }
}

/// Regions side by side, as large as one another, their shadows and their device.
struct Region {
    base: *mut u64,
    words: usize,
    count: usize,
    keeper: Keeper,
}

impl Region {
    fn new(bytes: usize, count: usize) -> Self {
        let userfault = Userfault::create().expect("root's rights, or vm.unprivileged_userfaultfd = 1");
        let map = |base, flags, bytes, file: Option<&OwnedFd>| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: where nothing is.
            let mapped = unsafe {
                match file {
                    Some(file) => rustix::mm::mmap(base, bytes, protection, flags, file, 0),
                    None => rustix::mm::mmap_anonymous(base, bytes, protection, flags),
                }
            };
            mapped.expect("room for a mapping").cast::<u8>()
        };
        // The device's memory costs nothing that is measured.
        let memory = map(std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::POPULATE, bytes * count, None);
        let device = Arc::new(Memory { region: BASE, memory: memory as u64 });
        let keeper =
            Keeper::new(Userfault::open(userfault).expect("a new one"), device, (THREADS, Access::default()));
        let keeper = keeper.expect("threads");
        for base in (BASE..).step_by(bytes).take(count) {
            let file = file(bytes);
            map(
                base as *mut std::ffi::c_void,
                MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
                bytes,
                Some(&file),
            );
            keeper.add(Range { base, bytes: bytes as u64 }, file).expect("a mapping");
        }
        Self { base: BASE as *mut u64, words: bytes * count / 8, count, keeper }
    }

    /// A kernel that writes all of it, and a wait for it.
    fn kernel(&self) {
        drop(self.keeper.reach(Scope::All).expect("a device that does not fail"));
        self.keeper.settle().expect("a device that does not fail");
    }

    fn words(&self, part: (usize, usize)) -> *mut [u64] {
        let (index, of) = part;
        let each = self.words / of;
        // SAFETY: inside the mapping.
        std::ptr::slice_from_raw_parts_mut(unsafe { self.base.add(index * each) }, each)
    }

    fn read(&self, part: (usize, usize)) -> u64 {
        // SAFETY: nobody writes them meanwhile.
        unsafe { (*self.words(part)).iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)) }
    }

    fn write(&self, part: (usize, usize), value: u64) {
        // SAFETY: nobody else touches them meanwhile.
        unsafe { (*self.words(part)).fill(value) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        for base in (BASE..).step_by(self.words * 8 / self.count).take(self.count) {
            self.keeper.remove(base).expect("a region");
        }
        // SAFETY: the mapping is this one's, and nobody uses it any more.
        unsafe { rustix::mm::munmap(self.base.cast(), self.words * 8) }.expect("a mapping");
    }
}

// SAFETY: plain memory, of which each thread has a part.
unsafe impl Sync for Region {}

/// A file on a tmpfs that is mounted nowhere.
fn file(bytes: usize) -> OwnedFd {
    use rustix::mount::*;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("root's rights");
    fsconfig_set_string(&context, "size", (16_usize << 30).to_string()).expect("a size");
    // As a job's is; a kernel may have no huge pages.
    let _ = fsconfig_set_string(&context, "huge", "advise");
    fsconfig_create(&context).expect("a tmpfs");
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).expect("a mount");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE;
    let file = rustix::fs::openat(&root, "shadow", flags, rustix::fs::Mode::RUSR).expect("a file");
    rustix::fs::ftruncate(&file, bytes as u64).expect("room");
    file
}

/// The shortest of some times of `measured`, each behind a kernel.
fn best(region: &Region, rounds: usize, mut measured: impl FnMut()) -> Duration {
    let times = (0..rounds).map(|_| {
        region.kernel();
        let begun = Instant::now();
        measured();
        begun.elapsed()
    });
    times.min().unwrap_or_default()
}

/// A row over a large region, by one thread or several.
fn stream(name: &str, bytes: usize, threads: usize, touch: impl Fn(&Region, (usize, usize)) + Sync) {
    let region = Region::new(bytes, 1);
    let took = best(&region, 4, || {
        std::thread::scope(|scope| {
            for part in 0..threads {
                scope.spawn({
                    let (region, touch) = (&region, &touch);
                    move || touch(region, (part, threads))
                });
            }
        });
    });
    println!("{name:<40}{:>10.2} GB/s", bytes as f64 / took.as_secs_f64() / 1e9);
}

/// Cycles of a kernel, a read and a write of all of it.
fn cycle(name: &str, bytes: usize, rounds: usize) {
    let region = Region::new(bytes, 1);
    let mut times: Vec<Duration> = (0..rounds as u64)
        .map(|round| {
            let begun = Instant::now();
            region.kernel();
            assert_eq!(
                region.read((0, 1)),
                (bytes as u64 / 8).wrapping_mul(round),
                "what was written before"
            );
            region.write((0, 1), round + 1);
            begun.elapsed()
        })
        .collect();
    times.sort();
    let mean = times.iter().sum::<Duration>() / rounds as u32;
    let (mean, median) = (mean.as_secs_f64() * 1e6, times[rounds / 2].as_secs_f64() * 1e6);
    println!("{name:<40}{mean:>10.1} µs, median {median:.1}");
}

/// Rounds of a kernel, a look at what it has made of two regions in a third one, and new contents for those two.
fn products(name: &str, bytes: usize, rounds: usize) {
    let regions = Region::new(bytes, 3);
    let mut times: Vec<[Duration; 3]> = (0..rounds as u64)
        .map(|round| {
            let begun = Instant::now();
            regions.kernel();
            let waited = begun.elapsed();
            assert_eq!(regions.read((2, 3)), 0, "nobody writes it");
            let read = begun.elapsed();
            regions.write((0, 3), round);
            regions.write((1, 3), round);
            [begun.elapsed(), waited, read - waited]
        })
        .collect();
    times.sort();
    let [all, waited, read] = times[rounds / 2].map(|time| time.as_secs_f64() * 1e6);
    println!("{name:<40}{all:>10.1} µs in the median, of it {waited:.1} in calls and {read:.1} to read");
}

fn main() {
    // Cargo gives an option of its own.
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let is_wanted = |name: &str| chosen.as_ref().is_none_or(|chosen| name.contains(chosen.as_str()));
    let large = 512 * MIB;
    for threads in [1, 2] {
        let name = format!("read 512 MiB, {threads} threads");
        if is_wanted(&name) {
            stream(&name, large, threads, |region, part| {
                std::hint::black_box(region.read(part));
            });
        }
    }
    if is_wanted("write 512 MiB") {
        stream("write 512 MiB", large, 1, |region, part| region.write(part, 7));
    }
    for bytes in [512 << 10, MIB, 8 * MIB] {
        let name = format!("first read of {} KiB", bytes >> 10);
        if is_wanted(&name) {
            stream(&name, bytes, 1, |region, part| {
                // No habit: the pages come too late to be expected.
                region.kernel();
                std::hint::black_box(region.read(part));
            });
        }
    }
    for (bytes, rounds) in [(4096, 2000), (64 << 10, 2000), (MIB, 300), (8 * MIB, 60)] {
        let name = format!("cycle {} KiB", bytes >> 10);
        if is_wanted(&name) {
            cycle(&name, bytes, rounds);
        }
    }
    for bytes in [4 * MIB, 16 * MIB] {
        let name = format!("products of {} KiB", bytes >> 10);
        if is_wanted(&name) {
            products(&name, bytes, 40);
        }
    }
}
