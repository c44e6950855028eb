//! Where the driver puts what it places by itself.
//!
//! Module globals, local memory and the like land in reservations that libcuda asks of the kernel with `mmap(NULL, …)`, through the
//! dynamic linker. This executable's own `mmap` comes first in its search order, so it can answer those calls, and only those,
//! at addresses that repeat: outside [`Steering::begin`] and [`Steering::end`] from a bump pointer, between them from another whose ranges are
//! recorded, or from the recorded ranges themselves when an object is made again.

use backend::Range;
use libc::{MAP_FAILED, MAP_FIXED, MAP_FIXED_NOREPLACE, c_int, c_void, off_t, size_t};
use std::ops::Range as Span;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranges the driver takes while an object is made.
const PLACED_BASE: u64 = 0x3000_0000_0000;
/// Ranges it takes at other times.
const OTHER_BASE: u64 = 0x3800_0000_0000;
/// End of the steered addresses.
const STEERED_END: u64 = 0x4000_0000_0000;
/// Smaller requests are libcuda's own host memory and stay where the kernel puts them.
const SMALLEST: u64 = 64 << 10;

/// libcuda's code: calls that return into it are its own.
static CODE_START: AtomicU64 = AtomicU64::new(0);
static CODE_END: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is making an object: what the driver takes on others meanwhile is not the object's.
    static PLACING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

static STEERING: Mutex<Steering> =
    Mutex::new(Steering { mode: Mode::Other, placed: PLACED_BASE, other: OTHER_BASE });

enum Mode {
    /// No object is being made.
    Other,
    /// An object is made for the first time: its ranges so far.
    Record(Vec<Range>),
    /// An object is made again: what it took the first time, still to come, and what it took now.
    Replay { expected: Vec<Range>, taken: Vec<Range> },
}

/// State of the steering; one for the process, as `mmap` is.
pub struct Steering {
    mode: Mode,
    placed: u64,
    other: u64,
}

impl Steering {
    /// Begins to steer the library whose code contains `function`.
    pub fn start(function: *const c_void) {
        let code = code_of(function as u64);
        CODE_START.store(code.base, Ordering::Relaxed);
        CODE_END.store(code.end(), Ordering::Release);
    }

    /// Begins an object: its ranges are recorded, or given again.
    pub fn begin(replay: Option<&[Range]>) {
        lock().mode = match replay {
            None => Mode::Record(Vec::new()),
            Some(ranges) => Mode::Replay { expected: ranges.to_vec(), taken: Vec::new() },
        };
        PLACING.set(true);
    }

    /// Ends it; tells the ranges it took.
    pub fn end() -> Vec<Range> {
        PLACING.set(false);
        let mut steering = lock();
        match std::mem::replace(&mut steering.mode, Mode::Other) {
            Mode::Other => Vec::new(),
            Mode::Record(ranges) => ranges,
            Mode::Replay { taken, .. } => {
                // Later objects go behind what was replayed.
                for range in &taken {
                    if range.base < OTHER_BASE {
                        steering.placed = steering.placed.max(range.end());
                    }
                }
                taken
            }
        }
    }

    /// An address to ask the kernel for, for a request of `bytes`; `placing`: on the thread that is making an object.
    fn choose(&mut self, bytes: u64, placing: bool) -> Option<u64> {
        let bump = |next: &mut u64, part: Span<u64>| {
            let alignment: u64 = if bytes >= 512 << 20 { 512 << 20 } else { 2 << 20 };
            let base = next.checked_next_multiple_of(alignment)?;
            let after = base.checked_add(bytes)?;
            if after > part.end {
                // A program that makes and lets go of objects for days has been everywhere: what is free again serves it.
                return gap(&mapped(), part, bytes, alignment);
            }
            *next = after;
            Some(base)
        };
        match &mut self.mode {
            _ if !placing => bump(&mut self.other, OTHER_BASE..STEERED_END),
            Mode::Other => None,
            Mode::Record(_) => bump(&mut self.placed, PLACED_BASE..OTHER_BASE),
            // By size: what the driver has made before decides when it takes some of them, so their order may differ (driver 580, a second
            // context: 2 MiB and 64 MiB change places, about once in a hundred times). A request
            // that is not in the record gets a place behind all that are recorded, where objects still to be made have theirs;
            // the caller sees that the ranges differ.
            Mode::Replay { expected, .. } => {
                match expected.iter().position(|range| range.bytes == bytes).map(|at| expected.remove(at)) {
                    Some(range) => Some(range.base),
                    None => bump(&mut self.other, OTHER_BASE..STEERED_END),
                }
            }
        }
    }

    /// Notes where the object that is being made got memory, be it where it was to lie or not.
    fn note(&mut self, range: Range) {
        match &mut self.mode {
            Mode::Other => {}
            Mode::Record(ranges) | Mode::Replay { taken: ranges, .. } => ranges.push(range),
        }
    }

    /// Makes the mapping of `bytes` with `map`, which is told where to put it (`None`: where the kernel likes) and tells where it
    /// is; one that cannot be had where it was chosen is made elsewhere.
    fn steer(
        steering: &Mutex<Self>,
        bytes: u64,
        placing: bool,
        map: impl Fn(Option<u64>) -> Option<u64>,
    ) -> Option<u64> {
        let chosen = locked(steering).choose(bytes, placing);
        let base = chosen.and_then(|base| map(Some(base))).or_else(|| map(None))?;
        if placing {
            locked(steering).note(Range { base, bytes });
        }
        Some(base)
    }
}

/// Whether any mapping of this process lies in `range`.
pub fn is_mapped(range: Range) -> bool {
    mapped().iter().any(|each| each.start < range.end() && each.end > range.base)
}

/// Every mapping of this process, from the lowest.
fn mapped() -> Vec<Span<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let parse = |text| u64::from_str_radix(text, 16).unwrap_or_default();
    let ends = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    ends.map(|(start, end)| parse(start)..parse(end)).collect()
}

/// The first place in `part` for `bytes` bytes that none of `mapped` lies in.
fn gap(mapped: &[Span<u64>], part: Span<u64>, bytes: u64, alignment: u64) -> Option<u64> {
    let mut base = part.start;
    for each in mapped {
        if each.end <= base {
            continue;
        }
        if base.checked_add(bytes)? <= each.start {
            break;
        }
        base = each.end.checked_next_multiple_of(alignment)?;
    }
    (base.checked_add(bytes)? <= part.end).then_some(base)
}

fn lock() -> MutexGuard<'static, Steering> {
    locked(&STEERING)
}

fn locked(steering: &Mutex<Steering>) -> MutexGuard<'_, Steering> {
    steering.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The executable segments of the library that contains `address`.
fn code_of(address: u64) -> Range {
    struct Search {
        address: u64,
        found: Range,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid record with `dlpi_phnum` program headers, and the pointer given to it,
        // which is the `Search` below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: as above.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let segments = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
            .map(|header| Range { base: info.dlpi_addr + header.p_vaddr, bytes: header.p_memsz });
        for segment in segments {
            if segment.contains(search.address, 1) {
                search.found = segment;
                return 1;
            }
        }
        0
    }
    let mut search = Search { address, found: Range { base: 0, bytes: 0 } };
    // SAFETY: `visit` matches the callback's type and `search` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// The process's `mmap`: adds the caller's return address as a seventh argument.
///
/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // At entry the return address is on top of the stack, which is 8 short of 16-byte alignment; pushing a copy of it passes it
    // as the seventh argument and aligns the stack for the call.
    std::arch::naked_asm!(
        "push qword ptr [rsp]",
        "call {answer}",
        "add rsp, 8",
        "ret",
        answer = sym answer,
    )
}

/// The same for the other name that glibc exports; on x86-64 they are one function.
///
/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    std::arch::naked_asm!("jmp {mmap}", mmap = sym mmap)
}

/// # Safety
/// As `mmap(2)`; `caller` is the address it returns to.
unsafe extern "C" fn answer(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
    caller: u64,
) -> *mut c_void {
    let ours = (CODE_START.load(Ordering::Relaxed)..CODE_END.load(Ordering::Acquire)).contains(&caller);
    if ours && address.is_null() && bytes as u64 >= SMALLEST && flags & MAP_FIXED == 0 {
        let whole = (bytes as u64).next_multiple_of(4096);
        let map = |chosen: Option<u64>| {
            let fixed = if chosen.is_some() { MAP_FIXED_NOREPLACE } else { 0 };
            let at = chosen.unwrap_or(0) as *mut c_void;
            // SAFETY: the caller's arguments, at most with an address at which nothing is replaced.
            let got = unsafe { kernel_mmap(at, bytes, protection, flags | fixed, file, offset) };
            (got != MAP_FAILED).then_some(got as u64)
        };
        // On failure `errno` is that of the caller's own request.
        return Steering::steer(&STEERING, whole, PLACING.get(), map)
            .map_or(MAP_FAILED, |base| base as *mut c_void);
    }
    // SAFETY: exactly what the caller asked for.
    unsafe { kernel_mmap(address, bytes, protection, flags, file, offset) }
}

/// # Safety
/// As `mmap(2)`.
unsafe fn kernel_mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the system call with the caller's arguments.
    unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, file, offset) as *mut c_void }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steering(mode: Mode) -> Mutex<Steering> {
        Mutex::new(Steering { mode, placed: PLACED_BASE, other: OTHER_BASE })
    }

    fn replay(expected: &[Range]) -> Mutex<Steering> {
        steering(Mode::Replay { expected: expected.to_vec(), taken: Vec::new() })
    }

    fn noted(steering: Mutex<Steering>) -> Vec<Range> {
        match steering.into_inner().unwrap_or_else(PoisonError::into_inner).mode {
            Mode::Record(ranges) | Mode::Replay { taken: ranges, .. } => ranges,
            Mode::Other => panic!("mode changed"),
        }
    }

    /// Where a kernel puts what it may put anywhere.
    const ANYWHERE: u64 = 0x7f00_0000_0000;

    /// A kernel that has room wherever it is asked for it.
    fn roomy(chosen: Option<u64>) -> Option<u64> {
        Some(chosen.unwrap_or(ANYWHERE))
    }

    #[test]
    fn recorded_ranges_are_given_again() {
        let first = steering(Mode::Record(Vec::new()));
        let sizes = [2 << 20, 600 << 20, 1 << 20, 64 << 10];
        let take = |steering: &_| sizes.map(|bytes| Steering::steer(steering, bytes, true, roomy));
        let chosen = take(&first);
        let ranges = noted(first);
        assert!(ranges.iter().skip(1).zip(&ranges).all(|(next, this)| next.base >= this.end()));
        assert_eq!(ranges[1].base % (512 << 20), 0);

        let second = replay(&ranges);
        assert_eq!(take(&second), chosen);
        assert_eq!(noted(second), ranges);
    }

    #[test]
    fn requests_in_another_order_get_the_same_ranges() {
        let sizes = [2 << 20, 64 << 20, 2 << 20, 4 << 20];
        let first = steering(Mode::Record(Vec::new()));
        let chosen = sizes.map(|bytes| Steering::steer(&first, bytes, true, roomy));
        let second = replay(&noted(first));
        let take = |bytes| Steering::steer(&second, bytes, true, roomy);
        assert_eq!([take(64 << 20), take(2 << 20), take(4 << 20)], [chosen[1], chosen[0], chosen[3]]);
        assert_eq!(take(2 << 20), chosen[2]);
    }

    #[test]
    fn a_request_that_differs_is_seen() {
        let expected = [Range { base: PLACED_BASE, bytes: 2 << 20 }];
        let replay = replay(&expected);
        assert!(Steering::steer(&replay, 4 << 20, true, roomy).is_some());
        assert_ne!(noted(replay), expected);
    }

    #[test]
    fn what_is_not_in_a_record_takes_no_other_objects_place() {
        // Two objects; made again, the first asks for more than it did.
        let first = steering(Mode::Record(Vec::new()));
        Steering::steer(&first, 2 << 20, true, roomy);
        let second = Steering::steer(&first, 4 << 20, true, roomy);
        let ranges = noted(first);
        let again = replay(&ranges[..1]);
        assert_eq!(Steering::steer(&again, 2 << 20, true, roomy), Some(ranges[0].base));
        let more = [4, 2].map(|mib| Steering::steer(&again, mib << 20, true, roomy));
        assert!(!more.contains(&second), "{more:x?}");
        assert!(more.iter().flatten().all(|base| *base >= OTHER_BASE), "{more:x?}");
    }

    #[test]
    fn a_place_that_is_taken_is_not_said_to_have_been_had() {
        let occupied = |chosen: Option<u64>| chosen.is_none().then_some(ANYWHERE);
        let found = Range { base: ANYWHERE, bytes: 2 << 20 };
        let first = steering(Mode::Record(Vec::new()));
        assert_eq!(Steering::steer(&first, found.bytes, true, occupied), Some(found.base));
        assert_eq!(noted(first), [found]);
        let again = replay(&[Range { base: PLACED_BASE, bytes: 2 << 20 }]);
        assert_eq!(Steering::steer(&again, found.bytes, true, occupied), Some(found.base));
        assert_eq!(noted(again), [found]);
        // What cannot be had at all is no range.
        let full = steering(Mode::Record(Vec::new()));
        assert_eq!(Steering::steer(&full, 2 << 20, true, |_| None), None);
        assert_eq!(noted(full), []);
    }

    #[test]
    fn addresses_that_are_used_up_are_used_again() {
        let used_up = Mutex::new(Steering {
            mode: Mode::Record(Vec::new()),
            placed: OTHER_BASE - (1 << 20),
            other: OTHER_BASE,
        });
        assert_eq!(Steering::steer(&used_up, 2 << 20, true, roomy), Some(PLACED_BASE));

        let part = 0x1000..0x8000;
        let mapped = [0x10..0x20, 0x800..0x1800, 0x3000..0x4000, 0x5000..0x9000];
        let find = |bytes| gap(&mapped, part.clone(), bytes, 0x1000);
        assert_eq!([find(0x1000), find(0x1001), find(0x3000)], [Some(0x2000), None, None]);
        assert_eq!(gap(&mapped[..3], part.clone(), 0x4000, 0x1000), Some(0x4000));
        assert_eq!(gap(&mapped[..3], part.clone(), 0x4001, 0x1000), None);
        assert_eq!(gap(&[], part, 0x7000, 0x1000), Some(0x1000));
    }

    #[test]
    fn what_other_threads_take_is_not_recorded() {
        let steering = steering(Mode::Record(Vec::new()));
        assert_eq!(Steering::steer(&steering, 2 << 20, false, roomy), Some(OTHER_BASE));
        assert_eq!(noted(steering), []);
    }

    #[test]
    fn mapped_ranges_are_told_from_free_ones() {
        let here = Range { base: &raw const CODE_START as u64, bytes: 1 };
        assert!(is_mapped(here));
        assert!(!is_mapped(Range { base: PLACED_BASE, bytes: 2 << 20 }));
    }

    #[test]
    fn this_executable_answers_mmap() {
        // SAFETY: looks up a symbol by name.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mmap".as_ptr()) };
        // Test executables do not export it, so only the code path is shown to be sound: a plain mapping works through it.
        assert!(!found.is_null());
        // SAFETY: a fresh anonymous page.
        let page = unsafe {
            mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, MAP_FAILED);
        // SAFETY: the page was just mapped writable.
        unsafe { *page.cast::<u8>() = 1 };
        // SAFETY: nothing else knows of the page.
        assert_eq!(unsafe { libc::munmap(page, 4096) }, 0);
    }

    #[test]
    fn code_of_a_library_is_found() {
        let code = code_of(libc::getpid as *const () as u64);
        assert!(code.contains(libc::getpid as *const () as u64, 1));
        assert_eq!(code_of(0x10).bytes, 0);
    }
}
