//! Memory whose contents need not be saved. Of device memory the shim is told, where the program has loaded it: its session knows when memory is
//! freed. Of the process's own the kernel is told: two advices mark it that end with the mapping, that a forked child
//! and a restarted process have too, and that whoever takes a checkpoint sees in `smaps` (`crates/host/src/cut/copies.rs`) and takes for a mark in jobs
//! in which somebody has excluded something ([`job::Job::excludes`]).

use crate::{Refusal, job};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;

const PAGE: usize = 4096;

/// `RTLD_LAZY | RTLD_NOLOAD`
const IF_LOADED: c_int = 1 | 4;
const SHIM: &CStr = c"libcuda.so.1";
const SHIM_EXCLUDE: &CStr = c"dormouse_shim_exclude";

/// `MADV_NORMAL`, `MADV_RANDOM`, `MADV_DONTDUMP`, `MADV_DODUMP`
const NORMAL: c_int = 0;
const RANDOM: c_int = 1;
const DONT_DUMP: c_int = 16;
const DUMP: c_int = 17;

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_NOT_INITIALIZED`, `CUDA_ERROR_NOT_SUPPORTED`
const NOT_THERE: c_uint = 1;
const TOO_MANY: c_uint = 2;
const NO_SESSION: c_uint = 3;
const ALWAYS_SAVED: c_uint = 801;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

type ShimExclude = unsafe extern "C" fn(u64, u64, c_int) -> c_uint;

/// Says that the contents of memory need not be saved: what a restarted run finds there may be anything. The run that goes on keeps it. It ends with
/// [`include()`], with device memory when it is freed or unmapped, with other memory when it is unmapped.
///
/// # Errors
/// [`Refusal`]: a usage error where there is no memory of this process, refused where memory of the kind is always saved, busy where there are too many
/// ranges.
pub fn exclude(address: usize, size: usize) -> Result<(), Refusal> {
    tell(address, size, true)
}

/// Says that the contents of memory are to be saved again.
///
/// # Errors
/// As [`exclude`].
pub fn include(address: usize, size: usize) -> Result<(), Refusal> {
    tell(address, size, false)
}

fn tell(address: usize, size: usize, exclude: bool) -> Result<(), Refusal> {
    let job = job::here().ok_or(Refusal::NotHere)?;
    let end = address.checked_add(size).filter(|_| size > 0);
    let end = end.ok_or_else(|| Refusal::usage(format!("{size} bytes at {address:#x} are no memory")))?;
    match of_device(address, size, exclude) {
        Some(0) => Ok(()),
        Some(ALWAYS_SAVED) => Err(Refusal::refused("managed memory is always saved")),
        Some(TOO_MANY) => Err(Refusal::busy(
            "so many parts of device memory are excluded that there is no room for another",
        )),
        None | Some(NOT_THERE | NO_SESSION) => {
            if exclude {
                job.excludes()
                    .map_err(|error| Refusal::failed(format!("nobody can be told of it: {error}")))?;
            }
            of_process(address..end, exclude)
        }
        Some(code) => Err(Refusal::failed(format!("the device's server answers with error {code}"))),
    }
}

/// The shim's answer, where there is one.
fn of_device(address: usize, size: usize, exclude: bool) -> Option<c_uint> {
    // SAFETY: both names have an end, and what is loaded already stays as it is: what it is told apart by is that it has the function, whose type is of
    // `crates/shim/src/exclude.rs`. The reference to the library is kept: it is not unloaded under its function.
    let function: ShimExclude = unsafe {
        let library = dlopen(SHIM.as_ptr(), IF_LOADED);
        let function = if library.is_null() { library } else { dlsym(library, SHIM_EXCLUDE.as_ptr()) };
        if function.is_null() {
            return None;
        }
        std::mem::transmute::<*mut c_void, ShimExclude>(function)
    };
    // SAFETY: it may be called with any numbers.
    Some(unsafe { function(address as u64, size as u64, exclude.into()) })
}

/// The same of the process's own memory: of the whole pages in it.
fn of_process(range: Range<usize>, exclude: bool) -> Result<(), Refusal> {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let maps = maps.map_err(|error| Refusal::failed(format!("/proc/self/maps cannot be read: {error}")))?;
    let here = 0_u8;
    check(&maps, &range, (&raw const here).addr())?;
    let pages = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
    if pages.is_empty() {
        return Ok(());
    }
    let advise = |pages: Range<usize>, advices: [c_int; 2]| {
        // SAFETY: these advices change nothing in memory, nor who may use it, whosever it is.
        let is_given = |advice| unsafe { madvise(pages.start as *mut c_void, pages.len(), advice) == 0 };
        advices.into_iter().all(is_given)
    };
    if advise(pages.clone(), if exclude { [RANDOM, DONT_DUMP] } else { [NORMAL, DUMP] }) {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // What the kernel no longer divides is saved whole.
    advise(within(&maps, &pages), [NORMAL, DUMP]);
    if !exclude {
        return Ok(());
    }
    Err(Refusal::busy(format!(
        "the kernel does not take note of it ({error}): has the process too many mappings?"
    )))
}

/// The range of the whole mappings in which a range lies.
fn within(maps: &str, range: &Range<usize>) -> Range<usize> {
    let meets = |(mapped, _): &(Range<usize>, bool)| mapped.start < range.end && range.start < mapped.end;
    let met = maps.lines().filter_map(mapping).filter(meets);
    met.fold(range.clone(), |all, (mapped, _)| all.start.min(mapped.start)..all.end.max(mapped.end))
}

/// Whether all of a range is memory that can be excluded, by `/proc/self/maps`; the calling thread has its stack at `stack`.
fn check(maps: &str, range: &Range<usize>, stack: usize) -> Result<(), Refusal> {
    let mut at = range.start;
    for line in maps.lines() {
        let Some((mapped, is_own)) = mapping(line) else { continue };
        if mapped.end <= at {
            continue;
        }
        if mapped.start > at {
            break;
        }
        if !is_own || mapped.contains(&stack) {
            let text = "memory that is shared, of a file, or the stack is always saved, as pinned and managed memory is";
            return Err(Refusal::refused(text));
        }
        at = mapped.end;
        if at >= range.end {
            return Ok(());
        }
    }
    Err(Refusal::usage(format!("there is no memory of this process at {at:#x}")))
}

/// The addresses of a mapping, and whether it is the process's alone: private, of no file, and neither stack nor the kernel's.
fn mapping(line: &str) -> Option<(Range<usize>, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    // Addresses that are only held free for the device's memory, for one, hold nothing.
    let rights = fields.next().filter(|rights| !rights.starts_with("---"))?;
    let inode = fields.nth(2)?;
    let is_plain = |name: &str| name == "[heap]" || name.starts_with("[anon") && !line.contains("stack");
    let is_special = fields.next().is_some_and(|name| name.starts_with('[') && !is_plain(name));
    Some((range, rights.ends_with('p') && inode == "0" && !is_special))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 \n\
3000-4000 r--p 00000000 00:00 0                          [heap]\n\
4000-5000 rw-s 00000000 00:2f 3                          /run/dormouse-job/s1/pinned-1\n\
6000-7000 rw-p 00000000 00:2f 3                          /lib/a b\n\
8000-9000 rw-p 00000000 00:00 0                          [stack]\n\
9000-a000 ---s 00000000 00:2f 3                          /run/dormouse-job/s1/session\n\
b000-c000 rw-p 00000000 00:00 0 \n\
c000-d000 rw-p 00000000 00:00 0                          [anon: glibc: pthread stack: 7]\n\
d000-e000 rw-p 00000000 00:00 0                          [anon:heap]\n";

    #[test]
    fn what_can_be_excluded_is_known() {
        let answer = |range: Range<usize>| match check(MAPS, &range, 0xb800) {
            Ok(()) => 0,
            Err(Refusal::Failed { code, .. }) => code,
            Err(Refusal::NotHere) => 100,
        };
        assert_eq!(answer(0x1000..0x4000), 0);
        assert_eq!(answer(0x1800..0x3001), 0);
        assert_eq!(answer(0xd000..0xe000), 0);
        assert_eq!(within(MAPS, &(0x1800..0x3001)), 0x1000..0x4000);
        for refused in
            [0x3000..0x5000, 0x4000..0x4001, 0x6000..0x7000, 0x8000..0x8008, 0xb000..0xb008, 0xc000..0xc001]
        {
            assert_eq!(answer(refused.clone()), 6, "{refused:x?}");
        }
        for absent in [0..8, 0x800..0x1800, 0x5000..0x5001, 0x9000..0xa000] {
            assert_eq!(answer(absent.clone()), 2, "{absent:x?}");
        }
    }

    /// The flags of the mapping that begins there.
    fn flags(address: usize) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{address:x}-");
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap_or_default();
        flags.split_ascii_whitespace().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn whole_pages_are_marked_and_keep_what_they_hold() {
        let memory = vec![7u8; 64 * PAGE];
        let start = memory.as_ptr() as usize;
        let first = start.next_multiple_of(PAGE) + PAGE;
        let range = first - 1..first + 2 * PAGE + 1;
        let is_marked =
            |address| ["rr", "dd"].iter().all(|flag| flags(address).iter().any(|each| each == flag));
        of_process(range.clone(), true).unwrap();
        assert!(is_marked(first));
        assert!(!is_marked(first + 2 * PAGE), "it shares its page with something else");
        assert!(memory.iter().all(|byte| *byte == 7));
        of_process(range, false).unwrap();
        assert!(!is_marked(first));
        of_process(first + 1..first + PAGE, true).unwrap();
        assert!(!is_marked(first), "no whole page");
        assert!(of_process(0..PAGE, true).is_err());
    }
}
