//! Managed memory and what is said of it, over a session whose server is a thread of the test.
#![allow(clippy::unwrap_used)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::fake::{Fake, MANAGED, PINNED, SHADOWS, start};
use cuda_abi::{CuError, sys};
use cuda_shim::api::{
    capture::*, context::*, library::*, managed::*, memory::*, module::*, stream::*, unified::*,
};
use sys::{CUmemLocation as Location, CUmemLocationType as Kind};

const INVALID: Result<(), CuError> = Err(CuError::INVALID_VALUE);
const BYTES: usize = 5 * 4096;
const DEVICE: Location = Location { type_: Kind::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
const NODE: Location = Location { type_: Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 1 };
const NONE: Location = Location { type_: Kind::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };

fn managed(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the pointer is this function's.
    unsafe { cuMemAllocManaged(&raw mut address, bytes, 1).unwrap() };
    address
}

/// Attributes of a range, one number each.
fn told<const N: usize>(attributes: [c_uint; N], address: u64, bytes: usize) -> [c_int; N] {
    let (mut values, mut numbers, mut sizes) = ([-9; N], attributes, [4; N]);
    let mut to: [*mut c_void; N] = std::array::from_fn(|index| (&raw mut values[index]).cast());
    // SAFETY: arrays of `N` elements, each with room for a number.
    unsafe {
        let (to, sizes, numbers) = (to.as_mut_ptr(), sizes.as_mut_ptr(), numbers.as_mut_ptr());
        cuMemRangeGetAttributes(to, sizes, numbers, N, address, bytes).unwrap();
    }
    values
}

#[test]
fn managed_memory_is_memory_of_both() {
    start();
    let address = managed(BYTES);
    let (mut is_managed, mut kind, mut host) = (0u32, 0u32, 0u64);
    // SAFETY: memory that the program has just allocated; the pointers are this test's.
    unsafe {
        let words = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        words.write_bytes(7, BYTES);
        assert_eq!(words.add(BYTES - 1).read(), 7);
        cuPointerGetAttribute((&raw mut is_managed).cast(), 8, address + 5).unwrap();
        cuPointerGetAttribute((&raw mut kind).cast(), 2, address + 5).unwrap();
        cuPointerGetAttribute((&raw mut host).cast(), 4, address + 5).unwrap();
        assert_eq!((is_managed, kind, host), (1, 2, address + 5));
        assert_eq!(cuMemFree_v2(address + 1), INVALID, "by its beginning");
        cuMemFree_v2(address).unwrap();
        assert_eq!(cuMemFree_v2(address), INVALID, "once");
        for (bytes, flags) in [(0, 1), (8, 0), (8, 4), (8, 3)] {
            assert_eq!(
                cuMemAllocManaged(&raw mut host, bytes, flags),
                INVALID,
                "{bytes} bytes, flags {flags}"
            );
        }
        assert_eq!(cuMemAllocManaged(null_mut(), 8, 1), INVALID);
    }
}

type Found = Result<(u64, usize), CuError>;

/// Checks the variables of a module or library, found by `get`, and gives where the first is.
fn check_variables(get: &dyn Fn(&CStr) -> Found) -> u64 {
    let ((one, bytes), (two, wide)) = (get(c"one").unwrap(), get(c"two").unwrap());
    assert_eq!((bytes, wide, two), (4, 8, one + 256));
    let mut is_managed = 0u32;
    // SAFETY: variables of these sizes; the pointer is this function's.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<u64>(two as usize).write(7);
        cuPointerGetAttribute((&raw mut is_managed).cast(), 8, two).unwrap();
        cuStreamAttachMemAsync(null_mut(), two, 8, 2).unwrap();
        cuStreamAttachMemAsync(null_mut(), two, 0, 1).unwrap();
        assert_eq!(cuMemFree_v2(one), INVALID, "it goes with its code");
    }
    assert_eq!(is_managed, 1);
    one
}

/// What the program may do with the memory there, if there is any.
fn rights(address: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address).then(|| words.next().unwrap().to_owned())
    })
}

/// Whether the program still has the memory there.
fn is_mapped(address: u64) -> bool {
    rights(address).is_some()
}

/// Maps a page of the program's own, full of sevens.
fn map_page(address: u64) -> *const u8 {
    let wanted = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let page = unsafe {
        libc::mmap(wanted.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>()
    };
    assert_eq!(page, wanted);
    // SAFETY: the page just mapped.
    unsafe { page.write_bytes(7, 4096) };
    page
}

/// What the job's log was told.
fn notices(fake: &Fake) -> Vec<String> {
    fake.picked(|(_, request)| match request {
        wire::Request::Notice(m) => Some(m.text.clone()),
        _ => None,
    })
}

/// A region that has shadow pages by its size, and is no whole pages.
const LARGE: usize = (2 << 20) - 5000;

#[test]
fn nobody_reads_beyond_a_region_with_shadows_or_what_was_one() {
    let fake = start();
    let (first, second) = (managed(LARGE), managed(LARGE));
    assert_eq!((first, second), (SHADOWS, SHADOWS + (2 << 20)));
    let last = first + LARGE as u64 - 1;
    for inside in [first, last, second] {
        assert_eq!(rights(inside).unwrap(), "rw-s");
        // SAFETY: bytes of regions.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(inside as usize).write(7) };
    }
    let nobody = Some("---p".to_owned());
    assert_eq!((rights(last.next_multiple_of(4096)), rights(second - 1)), (nobody.clone(), nobody.clone()));
    // SAFETY: it is not used any more.
    unsafe { cuMemFree_v2(first).unwrap() };
    assert_eq!((rights(first), rights(last)), (nobody.clone(), nobody));
    // SAFETY: a byte of the other region.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(second as usize).read() }, 7);
    assert_eq!(notices(fake), [""; 0]);
}

#[test]
fn nobody_reads_a_region_that_is_about_to_go() {
    static FOUND: Mutex<Vec<Option<String>>> = Mutex::new(Vec::new());
    let fake = start();
    let look = |request: &wire::Request| {
        let address = match request {
            wire::Request::ManagedLeave(m) => m.address,
            wire::Request::ContextDestroy(_) => SHADOWS + (2 << 20),
            _ => return,
        };
        FOUND.lock().unwrap().push(rights(address));
    };
    fake.looking.set(look).unwrap();
    let (first, mut context) = (managed(LARGE), null_mut());
    // SAFETY: the pointer is this test's; a byte of a region, which nobody uses afterwards.
    unsafe {
        cuCtxCreate_v4(&raw mut context, null_mut(), 0, 0).unwrap();
        assert_eq!((first, managed(LARGE)), (SHADOWS, SHADOWS + (2 << 20)));
        fake.failing.lock().unwrap().insert("ManagedLeave", CuError::UNKNOWN);
        assert_eq!(cuMemFree_v2(first), Err(CuError::UNKNOWN));
        fake.failing.lock().unwrap().clear();
        std::ptr::with_exposed_provenance_mut::<u8>(first as usize).write(7);
        cuCtxDestroy_v2(context).unwrap();
        assert_eq!(rights(first).unwrap(), "rw-s", "it is another context's");
        cuMemFree_v2(first).unwrap();
    }
    assert_eq!(*FOUND.lock().unwrap(), ["---s"; 3].map(|rights| Some(rights.to_owned())));
}

#[test]
fn what_the_program_has_mapped_is_never_replaced_by_shadows() {
    let taken = SHADOWS + (2 << 20) + 4096;
    let page = map_page(taken);
    let fake = start();
    // These addresses are not reserved.
    let first = managed(LARGE);
    assert_eq!((first, rights(first).as_deref()), (SHADOWS, Some("rw-s")));
    // SAFETY: it is not used any more.
    unsafe { cuMemFree_v2(first).unwrap() };
    assert!(!is_mapped(first), "nor are they then");

    let second = managed(LARGE);
    assert!(second >= PINNED, "{second:#x} is not coherent");
    // SAFETY: memory of the program's own, and a region.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<u8>(second as usize).write_bytes(9, LARGE);
        assert!((0..4096).all(|at| page.add(at).read() == 7));
        cuMemFree_v2(second).unwrap();
    }
    assert_eq!(rights(taken).unwrap(), "rw-p");
    let [text] = &notices(fake)[..] else { panic!("it is told once") };
    for word in ["coherent", &format!("{:#x}+", SHADOWS + (2 << 20)), &format!("{taken:x}-")] {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn nor_by_what_is_coherent() {
    let page = map_page(PINNED + 4096);
    let fake = start();
    let mut address = 0;
    // SAFETY: the pointer is this test's; memory of the program's own.
    unsafe {
        assert_eq!(cuMemAllocManaged(&raw mut address, 64, 1), Err(CuError::MAP_FAILED));
        assert!((0..4096).all(|at| page.add(at).read() == 7));
    }
    let [text] = &notices(fake)[..] else { panic!("it is not told") };
    for word in [format!("{PINNED:#x}+"), format!("{:x}-", PINNED + 4096)] {
        assert!(text.contains(&word), "{word:?} is not in: {text}");
    }
}

#[test]
fn variables_are_memory_of_both_as_long_as_their_code_is_there() {
    start();
    let (mut module, mut library) = (null_mut(), null_mut());
    let image = [MANAGED, b"\0"].concat();
    // SAFETY: PTX, ended by a NUL; the pointers are this test's.
    unsafe {
        cuModuleLoadData(&raw mut module, image.as_ptr().cast()).unwrap();
        let code = image.as_ptr().cast();
        cuLibraryLoadData(&raw mut library, code, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
            .unwrap();
    }
    let range = |get: &dyn Fn(*mut u64, *mut usize) -> Result<(), CuError>| {
        let (mut address, mut bytes) = (0, 0);
        get(&raw mut address, &raw mut bytes).map(|()| (address, bytes))
    };
    // SAFETY: the pointers are `range`'s.
    let of_module =
        |name: &CStr| range(&|at, bytes| unsafe { cuModuleGetGlobal_v2(at, bytes, module, name.as_ptr()) });
    // SAFETY: the same.
    let managed =
        |name: &CStr| range(&|at, bytes| unsafe { cuLibraryGetManaged(at, bytes, library, name.as_ptr()) });
    // SAFETY: the same.
    let global =
        |name: &CStr| range(&|at, bytes| unsafe { cuLibraryGetGlobal(at, bytes, library, name.as_ptr()) });
    let (first, second) = (check_variables(&of_module), check_variables(&managed));
    assert_eq!(check_variables(&global), second, "at one place");
    assert_eq!(managed(c"three"), Err(CuError::NOT_FOUND));
    assert!(first != second && is_mapped(first) && is_mapped(second));
    // SAFETY: nobody uses them any more.
    unsafe {
        cuModuleUnload(module).unwrap();
        cuLibraryUnload(library).unwrap();
    }
    assert!(!is_mapped(first) && !is_mapped(second));
}

/// Where the allocation begins that an address lies in, and its bytes.
fn around(address: u64) -> Result<(u64, usize), CuError> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the pointers are this function's.
    unsafe { cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) }.map(|()| (base, bytes))
}

#[test]
fn small_regions_share_a_mapping_as_long_as_one_is_there() {
    let fake = start();
    let [first, second, third] = [5000, 64, 4096].map(managed);
    // Two to a slab, by the fake.
    assert_eq!(around(first + 4999), Ok((first, 5000)), "the region, and not what it lies in");
    assert_eq!(around(second), Ok((second, 64)));
    assert!(around(first + 5000).is_err() && around(second + 64).is_err());
    // SAFETY: regions of the program's; those that are freed are not used any more.
    unsafe {
        assert_eq!(cuMemFree_v2(second + 4), INVALID, "by its beginning");
        cuMemFree_v2(first).unwrap();
        assert_eq!(cuMemFree_v2(first), INVALID, "once");
        assert!(around(first).is_err() && is_mapped(second), "the other is there still");
        std::ptr::with_exposed_provenance_mut::<u64>(second as usize).write(7);
        cuMemFree_v2(second).unwrap();
    }
    assert!(!is_mapped(first) && !is_mapped(second) && is_mapped(third));
    let left = fake.picked(|(_, request)| match request {
        wire::Request::SlabFree(m) => Some(m.slab),
        _ => None,
    });
    assert_eq!(left, [first], "the server hears of it");
    // SAFETY: as above.
    unsafe { cuMemFree_v2(third).unwrap() };
}

#[test]
fn a_child_has_no_slab() {
    start();
    let address = managed(64);
    // SAFETY: the child does nothing but read, and end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: natively undefined; here it ends the child.
        unsafe {
            let word = std::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile();
            libc::_exit(i32::from(word != 0))
        }
    }
    let mut status = 0;
    // SAFETY: waits for that child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn a_slab_outlives_a_context_that_had_a_piece_of_it() {
    let fake = start();
    let (kept, mut context) = (managed(64), null_mut());
    // SAFETY: the pointers are this test's.
    let gone = unsafe {
        cuCtxCreate_v4(&raw mut context, null_mut(), 0, 0).unwrap();
        managed(64)
    };
    // SAFETY: nobody uses it any more.
    unsafe { cuCtxDestroy_v2(context).unwrap() };
    assert!(around(gone).is_err() && is_mapped(kept));
    assert_eq!(around(kept), Ok((kept, 64)));
    let asked = fake.picked(|(_, request)| match request {
        wire::Request::ContextDestroy(_) => Some(u64::MAX),
        wire::Request::SlabFree(m) => Some(m.slab),
        _ => None,
    });
    assert_eq!(asked, [u64::MAX, 0], "what is empty now is asked for");
}

#[test]
fn what_was_said_of_memory_is_told() {
    start();
    let address = managed(BYTES);
    assert_eq!(told([1, 2, 4, 5, 7], address, BYTES), [0, -2, -2, 0, 0], "nothing was said");
    // SAFETY: managed memory; streams are the default ones.
    unsafe {
        cuMemAdvise(address, 4096, 1, 0).unwrap();
        cuMemAdvise(address, BYTES, 3, -1).unwrap();
        cuMemPrefetchAsync(address, BYTES, 0, null_mut()).unwrap();
        assert_eq!(told([1, 2, 4, 5, 7, 8], address, 4096), [1, -1, 0, 2, 1, 0]);
        assert_eq!(told([1], address, 4097), [0], "not of the second page");
        cuMemAdvise_v2(address + 4096, 1, 3, MaybeUninit::new(NODE)).unwrap();
        assert_eq!(told([2, 5, 6], address + 4096, 4096), [-1, 3, 1]);
        assert_eq!(told([2, 5], address, BYTES), [-2, 0], "they differ");
        cuMemAdvise(address, BYTES, 4, 0).unwrap();
        assert_eq!(told([2, 5], address, BYTES), [-2, 0]);
        cuMemAdvise_v2(address, BYTES, 5, MaybeUninit::new(DEVICE)).unwrap();
        cuMemAdvise(address, 8, 5, -1).unwrap();
        let mut by = [7; 3];
        let mut accessed =
            |bytes| cuMemRangeGetAttribute(by.as_mut_ptr().cast(), 12, 3, address, bytes).map(|()| by);
        assert_eq!(accessed(8), Ok([0, -1, -2]));
        assert_eq!(accessed(BYTES), Ok([0, -2, -2]));
        cuMemAdvise(address, BYTES, 6, 0).unwrap();
        assert_eq!(accessed(8), Ok([-1, -2, -2]));
        cuMemPrefetchAsync_v2(address, 8, MaybeUninit::new(NODE), 0, null_mut()).unwrap();
        assert_eq!(told([4, 7, 8], address, 8), [-1, 3, 1]);
    }
}

#[test]
fn batches_name_a_place_for_each_range() {
    start();
    let (mut at, mut sizes) = ([managed(BYTES), managed(BYTES), managed(BYTES)], [8usize, BYTES, 8]);
    let (mut places, mut firsts, mut stream) = ([DEVICE, NODE], [0usize, 2], null_mut());
    // SAFETY: the pointer is this test's.
    unsafe { cuStreamCreate(&raw mut stream, 1).unwrap() };
    let mut batch = |firsts: &mut [usize; 2], count, flags| {
        let (at, sizes, places, firsts) =
            (at.as_mut_ptr(), sizes.as_mut_ptr(), places.as_mut_ptr(), firsts.as_mut_ptr());
        // SAFETY: arrays of these lengths.
        unsafe { cuMemDiscardAndPrefetchBatchAsync(at, sizes, count, places, firsts, 2, flags, stream) }
    };
    batch(&mut firsts, 3, 0).unwrap();
    assert_eq!(batch(&mut firsts, 2, 0), INVALID, "a place for a range that is not there");
    assert_eq!(batch(&mut [1, 2], 3, 0), INVALID, "none for the first");
    assert_eq!(batch(&mut [0, 0], 3, 0), INVALID, "two for one");
    assert_eq!(batch(&mut firsts, 3, 1), INVALID, "flags");
    let homes = at.map(|address| told([4, 7], address, 8));
    assert_eq!(homes, [[0, 1], [0, 1], [-1, 3]]);
    // SAFETY: arrays of these lengths.
    unsafe {
        cuMemDiscardBatchAsync(at.as_mut_ptr(), sizes.as_mut_ptr(), 3, 0, stream).unwrap();
        let legacy = cuMemDiscardBatchAsync(at.as_mut_ptr(), sizes.as_mut_ptr(), 3, 0, null_mut());
        assert_eq!(legacy, INVALID, "the legacy stream");
        at[2] += BYTES as u64 - 4;
        assert_eq!(cuMemDiscardBatchAsync(at.as_mut_ptr(), sizes.as_mut_ptr(), 3, 0, stream), INVALID);
    }
}

#[test]
fn hints_are_about_managed_memory_and_places_that_there_are() {
    start();
    let (address, mut plain, mut stream) = (managed(BYTES), 0, null_mut());
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemAlloc_v2(&raw mut plain, 4096).unwrap();
        for (at, bytes) in
            [(address, 0), (address + 1, BYTES), (plain, 8), (0x1234, 8), (address, usize::MAX)]
        {
            assert_eq!(cuMemAdvise(at, bytes, 1, 0), INVALID, "{at:#x}+{bytes}");
            assert_eq!(cuMemPrefetchAsync(at, bytes, 0, null_mut()), INVALID, "{at:#x}+{bytes}");
        }
        assert_eq!(cuMemAdvise(address, 8, 7, 0), INVALID);
        assert_eq!(cuMemAdvise(address, 8, 3, 99), Err(CuError::INVALID_DEVICE));
        assert_eq!(cuMemAdvise_v2(address, 8, 3, MaybeUninit::new(NONE)), INVALID);
        assert_eq!(cuMemAdvise_v2(address, 8, 5, MaybeUninit::new(NODE)), INVALID, "a node accesses nothing");
        assert_eq!(cuMemPrefetchAsync_v2(address, 8, MaybeUninit::new(DEVICE), 1, null_mut()), INVALID);
        let mut value = 0u64;
        for (attribute, bytes) in [(1, 8), (1, 0), (99, 4), (3, 6)] {
            let got = cuMemRangeGetAttribute((&raw mut value).cast(), bytes, attribute, address, 8);
            assert_eq!(got, INVALID, "attribute {attribute}, {bytes} bytes");
        }
        cuStreamCreate(&raw mut stream, 1).unwrap();
        cuStreamAttachMemAsync(stream, address, 0, 4).unwrap();
        cuStreamAttachMemAsync(null_mut(), address, BYTES, 1).unwrap();
        assert_eq!(cuStreamAttachMemAsync(null_mut(), address, 0, 4), INVALID, "no stream of its own");
        assert_eq!(cuStreamAttachMemAsync(stream, address, 8, 1), INVALID, "not all of it");
        assert_eq!(cuStreamAttachMemAsync(stream, plain, 0, 1), INVALID);
        cuStreamBeginCapture_v2(stream, 2).unwrap();
        let refused = Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(cuMemPrefetchAsync(address, 8, 0, stream), refused);
    }
}
