//! What CRIU is not told of while it dumps: which private pages a process has. It would map each of them into pipes and write it, while all stand
//! still; the supervisor finds them itself, and reads them from a copy.
//!
//! CRIU asks the kernel with `PAGEMAP_SCAN`. This library is preloaded into it, so that its `ioctl` is the one below, which answers for private memory
//! that there is none, and writes down what it has said so of: a line each, to the file whose number is in the environment (`DORMOUSE_WITHHELD`),
//! `PID START END`, in hexadecimal but for the pid. What CRIU does not ask for, or asks for otherwise (a kernel before 6.7), it gets as ever.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::fs::{self, File};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::pid_t;

/// The environment variable with the file's number.
const FILE: &str = "DORMOUSE_WITHHELD";

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: c_ulong = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;

/// `struct pm_scan_arg` (`linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`, of which `vec` is made.
const REGION: u64 = 24;

impl Scan {
    /// Whether it asks which pages have contents of their own, as CRIU does before it dumps them.
    fn is_for_contents(&self) -> bool {
        self.size == size_of::<Self>() as u64
            && self.flags == 0
            && self.max_pages == 0
            && self.category_inverted == IS_FILE | IS_ZERO
            && self.category_mask == IS_FILE | IS_ZERO
            && self.category_anyof_mask == IS_PRESENT | IS_SWAPPED
    }
}

/// The private memory of processes that stand still.
static PRIVATE: Mutex<BTreeMap<pid_t, Vec<Range<u64>>>> = Mutex::new(BTreeMap::new());

fn private() -> MutexGuard<'static, BTreeMap<pid_t, Vec<Range<u64>>>> {
    PRIVATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has CRIU told nothing of the private memory of a process from now on, if that is asked for.
pub fn withhold(pid: pid_t) -> io::Result<()> {
    if file().is_some() {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        private().insert(pid, private_in(&maps));
    }
    Ok(())
}

/// Whom CRIU starts is not this library's business.
pub fn forget_preload() {
    // SAFETY: CRIU has one thread, which is here.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
}

/// What is private of these mappings, in order, and no page of the kernel's.
fn private_in(maps: &str) -> Vec<Range<u64>> {
    let of = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (range, flags) = (fields.next()?, fields.next()?);
        let name = fields.nth(3).unwrap_or_default();
        let is_kernels =
            name.starts_with('[') && !["[heap]", "[stack]"].contains(&name) && !name.starts_with("[anon:");
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?).filter(|_| flags.ends_with('p') && !is_kernels)
    };
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in maps.lines().filter_map(of) {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

/// The C library's `ioctl`, for CRIU.
///
/// # Safety
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == PAGEMAP_SCAN && !argument.is_null() {
        let argument = argument.cast::<Scan>();
        // SAFETY: it begins with its size, as for the kernel.
        let size = unsafe { (&raw const (*argument).size).read() };
        if size == size_of::<Scan>() as u64 {
            // SAFETY: whoever makes this request has such a thing there, which is nobody else's meanwhile.
            return unsafe { scan(fd, &mut *argument) };
        }
    }
    // SAFETY: as the caller says.
    unsafe { kernels(fd, request, argument) }
}

/// # Safety
/// As `ioctl(2)`.
unsafe fn kernels(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
}

/// # Safety
/// `vec` of what is asked for is as long as it says.
unsafe fn scan(fd: c_int, asked: &mut Scan) -> c_int {
    // SAFETY: as the caller says.
    let kernel = |scan: &mut Scan| unsafe { kernels(fd, PAGEMAP_SCAN, std::ptr::from_mut(scan).cast()) };
    let withheld = match asked.is_for_contents().then(|| process_of(fd)).flatten() {
        Some(pid) => private().get(&pid).map(|private| (pid, parts(asked.start..asked.end, private))),
        None => None,
    };
    let Some((pid, parts)) = withheld else { return kernel(asked) };
    let mut found = 0;
    for (range, is_private) in parts {
        if is_private && write_down(&format!("{pid} {:x} {:x}\n", range.start, range.end)).is_ok() {
            continue;
        }
        let room = asked.vec_len.saturating_sub(found);
        let mut part = Scan {
            start: range.start,
            end: range.end,
            walk_end: range.start,
            vec: asked.vec + found * REGION,
            vec_len: room,
            ..*asked
        };
        // The kernel takes no request without room.
        let more = if room == 0 { 0 } else { kernel(&mut part) };
        match u64::try_from(more) {
            Ok(more) => found += more,
            Err(_) => return more,
        }
        if part.walk_end < range.end {
            asked.walk_end = part.walk_end;
            return found as c_int;
        }
    }
    asked.walk_end = asked.end;
    found as c_int
}

/// The parts of `range`, in order, and whether each is private. `host` has the same for its own end; the two have nothing in common but the lines of
/// the file: what CRIU loads depends on no other crate of ours.
fn parts(range: Range<u64>, private: &[Range<u64>]) -> Vec<(Range<u64>, bool)> {
    let mut parts = Vec::new();
    let mut at = range.start;
    let first = private.partition_point(|other| other.end <= range.start);
    for other in private[first..].iter().take_while(|other| other.start < range.end) {
        if at < other.start {
            parts.push((at..other.start, false));
        }
        let end = other.end.min(range.end);
        parts.push((at.max(other.start)..end, true));
        at = end;
    }
    if at < range.end {
        parts.push((at..range.end, false));
    }
    parts
}

/// The process whose `pagemap` this is.
fn process_of(fd: c_int) -> Option<pid_t> {
    let path = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    path.to_str()?.strip_suffix("/pagemap")?.rsplit('/').next()?.parse().ok()
}

/// Adds a line to the file.
pub fn write_down(line: &str) -> io::Result<()> {
    let mut file = file().ok_or(io::ErrorKind::NotFound)?;
    file.write_all(line.as_bytes())
}

/// The file, which is not this plugin's to close.
fn file() -> Option<ManuallyDrop<File>> {
    let number = std::env::var(FILE).ok()?.parse().ok().filter(|number| *number >= 0)?;
    // SAFETY: whoever starts CRIU with the variable gives it that descriptor, which stays open as long as CRIU runs.
    Some(ManuallyDrop::new(unsafe { File::from_raw_fd(number) }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn private_memory_is_told_from_shared_and_the_kernels() {
        let maps = "\
1000-3000 rw-p 00000000 00:00 0 \n\
3000-4000 ---p 00000000 00:00 0                          [heap]\n\
4000-5000 rw-s 00000000 00:2f 3                          /a b\n\
5000-6000 r--p 00001000 00:2f 3                          /a b\n\
6000-7000 rw-p 00000000 00:00 0                          [anon:a name]\n\
7000-8000 r--p 00000000 00:00 0                          [vvar]\n\
8000-9000 r-xp 00000000 00:00 0                          [vdso]\n\
9000-a000 rw-p 00000000 00:00 0                          [stack]\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n";
        assert_eq!(private_in(maps), [0x1000..0x4000, 0x5000..0x7000, 0x9000..0xa000]);
    }

    #[test]
    fn a_range_is_divided_where_private_memory_begins_and_ends() {
        let private = [10..20, 30..40];
        assert_eq!(parts(0..10, &private), [(0..10, false)]);
        assert_eq!(parts(12..18, &private), [(12..18, true)]);
        let divided = [(5..10, false), (10..20, true), (20..30, false), (30..35, true)];
        assert_eq!(parts(5..35, &private), divided);
        assert_eq!(parts(35..50, &private), [(35..40, true), (40..50, false)]);
    }

    /// Pages of a private mapping, of which the first and the last have been written, between pages that are not said to be private.
    #[test]
    fn the_kernel_is_asked_for_the_rest_only() {
        const PAGE: u64 = 4096;
        let length = 8 * PAGE as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        // SAFETY: the mapping is ours, and as long as is said.
        unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), length) }.fill(1);
        let start = memory as u64;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let pid = std::process::id() as pid_t;
        let mut regions = [[0u64; 3]; 4];
        let mut ask = |room: usize| {
            let mut asked = Scan {
                size: size_of::<Scan>() as u64,
                flags: 0,
                start,
                end: start + length as u64,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: room as u64,
                max_pages: 0,
                category_inverted: IS_FILE | IS_ZERO,
                category_mask: IS_FILE | IS_ZERO,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT,
            };
            // SAFETY: there is room for so many regions.
            let found = unsafe {
                ioctl(std::os::fd::AsRawFd::as_raw_fd(&pagemap), PAGEMAP_SCAN, (&raw mut asked).cast())
            };
            let found = usize::try_from(found).unwrap();
            let pages = |address: u64| (address - start) / PAGE;
            let told = regions[..found].iter().map(|region| (pages(region[0]), pages(region[1])));
            (told.collect::<Vec<_>>(), pages(asked.walk_end))
        };
        assert_eq!(ask(4), (vec![(0, 8)], 8), "nothing is withheld");
        let log = tempfile();
        // SAFETY: no other test here reads or writes the environment.
        unsafe { std::env::set_var(FILE, std::os::fd::AsRawFd::as_raw_fd(&log).to_string()) };
        let range = |pages: Range<u64>| start + pages.start * PAGE..start + pages.end * PAGE;
        private().insert(pid, vec![range(1..2), range(3..6)]);
        assert_eq!(ask(4), (vec![(0, 1), (2, 3), (6, 8)], 8));
        assert_eq!(ask(2), (vec![(0, 1), (2, 3)], 6), "as far as there was room");
        private().remove(&pid);
        let mut written = vec![0; 4096];
        let length = std::os::unix::fs::FileExt::read_at(&log, &mut written, 0).unwrap();
        let line = |pages| {
            let range = range(pages);
            format!("{pid} {:x} {:x}\n", range.start, range.end)
        };
        let lines = [line(1..2), line(3..6)].concat().repeat(2);
        assert_eq!(std::str::from_utf8(&written[..length]).unwrap(), lines);
    }

    fn tempfile() -> File {
        // SAFETY: a new descriptor, which is nobody else's.
        unsafe { File::from_raw_fd(libc::memfd_create(c"withheld".as_ptr(), 0)) }
    }
}
