//! Files, and lists of buffers.

use super::*;

unsafe extern "C" {
    fn __read_chk(fd: c_int, at: *mut c_void, bytes: size_t, room: size_t) -> ssize_t;
    fn __pread_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t;
    fn __pread64_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t;
}

#[test]
fn the_kernel_itself_fails_there() {
    let memory = Managed::new(4);
    let (file, _) = file(100);
    let (fd, at) = (file.as_raw_fd(), memory.at);
    // SAFETY: the test's memory.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, at, 100) };
    assert_eq!((read, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
}

#[test]
fn a_file_is_read_whole_in_chunks_and_no_further() {
    let memory = Managed::new(10_000);
    let (file, contents) = file(35 << 20);
    // SAFETY: the test's memory.
    let read = unsafe { libc::read(file.as_raw_fd(), memory.at.wrapping_add(100).cast(), 36 << 20) };
    assert_eq!(read, 35 << 20);
    assert!(memory.all()[100..100 + contents.len()] == contents, "other bytes");
    let behind = 100 + contents.len();
    assert_eq!(memory.all()[99], number(0));
    assert!(
        memory.all()[behind..36 << 20]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == number((behind + at) / PAGE))
    );
}

#[test]
fn a_file_is_written_whole_in_chunks() {
    let memory = Managed::new(5000);
    let mut to = tempfile::tempfile().unwrap();
    // SAFETY: the test's memory.
    assert_eq!(unsafe { libc::write(to.as_raw_fd(), memory.at.cast(), memory.bytes) }, memory.bytes as isize);
    to.seek(SeekFrom::Start(0)).unwrap();
    let mut written = Vec::new();
    to.read_to_end(&mut written).unwrap();
    assert!(written == expected(0..5000), "other bytes");
}

#[test]
fn offsets_are_those_of_each_chunk() {
    let memory = Managed::new(9000);
    let (file, contents) = file(30 << 20);
    // SAFETY: the test's memory, as below.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory.at.cast(), 20 << 20, 1 << 20) };
    assert_eq!(read, 20 << 20);
    assert!(memory.all()[..20 << 20] == contents[1 << 20..21 << 20], "other bytes");
    memory.drop_all();
    // SAFETY: as above.
    let written = unsafe { libc::pwrite(file.as_raw_fd(), memory.at.cast(), 20 << 20, 5 << 20) };
    assert_eq!(written, 20 << 20);
    let mut now = vec![0; 30 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 0).unwrap();
    assert!(now[..5 << 20] == contents[..5 << 20] && now[25 << 20..] == contents[25 << 20..], "beside it");
    assert!(now[5 << 20..25 << 20] == expected(0..5120), "other bytes");
}

#[test]
fn lists_have_managed_memory_among_other() {
    let memory = Managed::new(6);
    let (file, contents) = file(3 * PAGE);
    let mut own = vec![0u8; 50];
    let parts = [
        (memory.at.wrapping_add(10), 100),
        (own.as_mut_ptr(), 50),
        (memory.at.wrapping_add(2 * PAGE), 2 * PAGE),
    ]
    .map(|(at, bytes)| iovec { iov_base: at.cast(), iov_len: bytes });
    // SAFETY: the test's memory, as below.
    let read = unsafe { libc::readv(file.as_raw_fd(), parts.as_ptr(), 3) };
    assert_eq!(read, 150 + 2 * PAGE as isize);
    assert_eq!(memory.all()[10..110], contents[..100]);
    assert_eq!(own, contents[100..150]);
    assert_eq!(memory.all()[2 * PAGE..4 * PAGE], contents[150..150 + 2 * PAGE]);
    memory.drop_all();
    // The list lies there, too.
    let list = memory.at.wrapping_add(5 * PAGE).cast::<iovec>();
    for (index, part) in parts.into_iter().enumerate() {
        // SAFETY: a page of the test's.
        unsafe { list.add(index).write(part) };
    }
    // SAFETY: as above.
    let written = unsafe { libc::pwritev(file.as_raw_fd(), list, 3, 0) };
    assert_eq!(written, 150 + 2 * PAGE as isize);
    let mut now = vec![0; 150 + 2 * PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 0).unwrap();
    assert_eq!(now[..100], [number(0); 100]);
    assert_eq!(now[100..150], own);
    assert_eq!(now[150..], expected(2..4));
}

#[test]
fn pages_that_may_not_be_written_yet_are_written() {
    let memory = Managed::new(4);
    memory.protect(0, 4);
    let (file, contents) = file(3 * PAGE);
    // SAFETY: the test's memory, as below.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_read, file.as_raw_fd(), memory.at, 100),
            -1,
            "the kernel itself fails"
        );
        assert_eq!(
            libc::read(file.as_raw_fd(), memory.at.wrapping_add(50).cast(), 3 * PAGE),
            3 * PAGE as isize
        );
    }
    assert_eq!(memory.all()[50..50 + 3 * PAGE], contents);
    assert_eq!(memory.all()[..50], [number(0); 50]);
}

/// One of several functions that have the same body, given an offset.
type Call<'a> = Box<dyn Fn(off_t) -> ssize_t + 'a>;

/// One that begins where the descriptor is.
fn from_there<'a>(fd: c_int, call: impl Fn() -> ssize_t + 'a) -> Call<'a> {
    Box::new(move |offset| {
        // SAFETY: no pointers.
        done(unsafe { libc::lseek(fd, offset, libc::SEEK_SET) } as c_int);
        call()
    })
}

#[test]
fn every_variant_reads_what_it_is_asked_for() {
    let memory = Managed::new(40);
    let (file, contents) = file(20 * PAGE);
    let fd = file.as_raw_fd();
    let part = iovec { iov_base: memory.at.cast(), iov_len: 5000 };
    let (at, list) = (memory.at.cast::<c_void>(), &raw const part);
    // SAFETY: the test's memory; each of these takes what it is given.
    let variants: [Call<'_>; 11] = unsafe {
        [
            from_there(fd, move || libc::read(fd, at, 5000)),
            from_there(fd, move || __read_chk(fd, at, 5000, 5000)),
            Box::new(move |offset| libc::pread(fd, at, 5000, offset)),
            Box::new(move |offset| libc::pread64(fd, at, 5000, offset)),
            Box::new(move |offset| __pread_chk(fd, at, 5000, offset, 5000)),
            Box::new(move |offset| __pread64_chk(fd, at, 5000, offset, 5000)),
            from_there(fd, move || libc::readv(fd, list, 1)),
            Box::new(move |offset| libc::preadv(fd, list, 1, offset)),
            Box::new(move |offset| libc::preadv64(fd, list, 1, offset)),
            Box::new(move |offset| libc::preadv2(fd, list, 1, offset, 0)),
            from_there(fd, move || libc::preadv64v2(fd, list, 1, -1, 0)),
        ]
    };
    for (index, read) in variants.iter().enumerate() {
        memory.drop_all();
        let offset = index * 3001;
        assert_eq!(read(offset as off_t), 5000, "{index}");
        assert_eq!(memory.all()[..5000], contents[offset..offset + 5000], "{index}");
        assert_eq!(memory.all()[5000], number(1), "{index}");
    }
}

#[test]
fn every_variant_writes_what_it_is_asked_for() {
    let memory = Managed::new(40);
    let file = tempfile::tempfile().unwrap();
    file.set_len(40 * PAGE as u64).unwrap();
    let fd = file.as_raw_fd();
    let part = iovec { iov_base: memory.at.cast(), iov_len: 5000 };
    let (at, list) = (memory.at.cast::<c_void>(), &raw const part);
    // SAFETY: the test's memory; each of these takes what it is given.
    let variants: [Call<'_>; 8] = unsafe {
        [
            from_there(fd, move || libc::write(fd, at, 5000)),
            Box::new(move |offset| libc::pwrite(fd, at, 5000, offset)),
            Box::new(move |offset| libc::pwrite64(fd, at, 5000, offset)),
            from_there(fd, move || libc::writev(fd, list, 1)),
            Box::new(move |offset| libc::pwritev(fd, list, 1, offset)),
            Box::new(move |offset| libc::pwritev64(fd, list, 1, offset)),
            Box::new(move |offset| libc::pwritev2(fd, list, 1, offset, 0)),
            from_there(fd, move || libc::pwritev64v2(fd, list, 1, -1, 0)),
        ]
    };
    for (index, write) in variants.iter().enumerate() {
        memory.drop_all();
        let offset = index as u64 * 6000;
        assert_eq!(write(offset as off_t), 5000, "{index}");
        let mut now = [0; 5001];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, offset).unwrap();
        assert_eq!(now[..5000], expected(0..2)[..5000], "{index}");
        assert_eq!(now[5000], 0, "{index}");
    }
}

#[test]
fn what_runs_off_its_end_ends_there() {
    let memory = Managed::new(2);
    let mut to = tempfile::tempfile().unwrap();
    let (from, contents) = file(20_000);
    // SAFETY: the test's memory, and what is behind it, which nobody has.
    unsafe {
        assert_eq!(
            libc::write(to.as_raw_fd(), memory.at.wrapping_add(10).cast(), 20_000),
            2 * PAGE as isize - 10
        );
        assert_eq!(libc::read(from.as_raw_fd(), memory.at.cast(), 20_000), 2 * PAGE as isize);
        assert_eq!(libc::read(from.as_raw_fd(), memory.at.cast(), usize::MAX), -1);
        assert_eq!(libc::lseek(from.as_raw_fd(), 0, libc::SEEK_CUR), 2 * PAGE as i64);
    }
    assert_eq!(memory.all(), &contents[..2 * PAGE]);
    to.seek(SeekFrom::Start(0)).unwrap();
    let mut written = Vec::new();
    to.read_to_end(&mut written).unwrap();
    assert_eq!(written, expected(0..2)[10..]);
}

#[test]
fn what_may_not_be_touched_in_the_middle_ends_it_there() {
    let (from, contents) = file(5 * PAGE);
    let to = tempfile::tempfile().unwrap();
    let (none, read_only) = (libc::PROT_NONE, libc::PROT_READ);
    for (rights, writes, reads) in [(Some(none), 2, 2), (Some(read_only), 5, 2), (None, 2, 2)] {
        let memory = Managed::new(5);
        let third = memory.at.wrapping_add(2 * PAGE).cast();
        // SAFETY: the test's memory.
        unsafe {
            done(
                rights
                    .map_or_else(|| libc::munmap(third, PAGE), |rights| libc::mprotect(third, PAGE, rights)),
            );
            assert_eq!(
                libc::pwrite(to.as_raw_fd(), memory.at.cast(), 5 * PAGE, 0),
                (writes * PAGE) as isize,
                "{rights:?}"
            );
            assert_eq!(
                libc::pread(from.as_raw_fd(), memory.at.cast(), 5 * PAGE, 0),
                (reads * PAGE) as isize,
                "{rights:?}"
            );
            assert_eq!(libc::pread(from.as_raw_fd(), third, 10, 0), -1, "{rights:?}");
        }
        assert_eq!(memory.all()[..2 * PAGE], contents[..2 * PAGE], "{rights:?}");
    }
}

#[test]
fn what_nobody_may_touch_is_refused_by_the_kernel_as_ever() {
    let at = NEXT.fetch_add(1 << 30, Ordering::Relaxed) as *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (file, _) = file(100);
    // SAFETY: addresses that nobody else has.
    unsafe {
        assert_eq!(libc::mmap(at, PAGE, libc::PROT_NONE, flags, -1, 0), at);
        assert_eq!(libc::read(file.as_raw_fd(), at, 10), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(libc::write(file.as_raw_fd(), at, 10), -1);
        assert_eq!(libc::read(file.as_raw_fd(), at.wrapping_byte_add(1 << 20), 10), -1, "not mapped");
        assert_eq!(libc::read(file.as_raw_fd(), at.wrapping_byte_add(1 << 20), 0), 0);
    }
}
