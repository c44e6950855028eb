//! Pipes, streams, chance, and threads that are cancelled.

use super::*;

unsafe extern "C" {
    fn __fread_chk(at: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn __fread_unlocked_chk(
        at: *mut c_void,
        room: size_t,
        size: size_t,
        count: size_t,
        stream: *mut FILE,
    ) -> size_t;
    fn arc4random_buf(at: *mut c_void, bytes: size_t);
}

#[test]
fn a_pipe_gives_what_it_has() {
    let memory = Managed::new(9000);
    let mut pipe = [0; 2];
    // SAFETY: room for two; the test's memory.
    unsafe {
        done(libc::pipe(pipe.as_mut_ptr()));
        assert_eq!(libc::write(pipe[1], memory.at.wrapping_add(PAGE).cast(), 300), 300);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(3 * PAGE).cast(), 20 << 20), 300);
        libc::close(pipe[1]);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(4 * PAGE).cast(), 20), 0);
        libc::close(pipe[0]);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(4 * PAGE).cast(), 20), -1);
    }
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    assert_eq!(memory.all()[3 * PAGE..3 * PAGE + 301], [vec![number(1); 300], vec![number(3)]].concat());
}

#[test]
fn streams_count_whole_items() {
    let memory = Managed::new(9000);
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("stream").to_str().unwrap()).unwrap();
    let items = (20 << 20) / 12;
    // SAFETY: paths and modes end with zeros; the test's memory.
    unsafe {
        let stream = libc::fopen(path.as_ptr(), c"w+".as_ptr());
        assert_eq!(libc::fwrite(memory.at.cast(), 12, items, stream), items);
        libc::rewind(stream);
        memory.drop_all();
        let into = memory.at.wrapping_add(PAGE);
        assert_eq!(libc::fread(into.cast(), 1000, 30_000, stream), items * 12 / 1000);
        assert_ne!(libc::feof(stream), 0);
        assert_eq!(libc::fread(into.cast(), 0, 5, stream), 0);
        libc::fclose(stream);
    }
    let bytes = items * 12;
    assert!(memory.all()[PAGE..PAGE + bytes] == expected(0..5121)[..bytes], "other bytes");
    assert_eq!(memory.all()[PAGE + bytes..][..2000], expected(0..5123)[PAGE + bytes..][..2000]);
}

#[test]
fn bytes_by_chance_come_to_managed_memory() {
    let memory = Managed::new(4);
    let page = |page: usize| memory.at.wrapping_add(page * PAGE);
    // SAFETY: the test's memory.
    unsafe {
        assert_eq!(libc::getrandom(page(0).cast(), 200, 0), 200);
        assert_eq!(libc::getentropy(page(1).cast(), 200), 0);
        assert_eq!(libc::getentropy(page(2).cast(), 300), -1, "more than it gives");
        arc4random_buf(page(2).cast(), 5000);
    }
    for (begin, bytes) in [(0, 200), (PAGE, 200), (2 * PAGE, 5000)] {
        let own = number(begin / PAGE);
        let same = memory.all()[begin..begin + bytes].iter().filter(|byte| **byte == own).count();
        assert!(same < bytes / 8, "{same} of {bytes}");
        assert_eq!(memory.all()[begin + bytes], number((begin + bytes) / PAGE));
    }
}

#[test]
fn streams_that_are_checked_or_locked_read_the_same() {
    let memory = Managed::new(20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stream");
    let contents: Vec<u8> = (0..60_000).map(|at| (at / 11 % 256) as u8).collect();
    std::fs::write(&path, &contents).unwrap();
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: paths and modes end with zeros; the test's memory.
    unsafe {
        let stream = libc::fopen(path.as_ptr(), c"r".as_ptr());
        let at = memory.at.cast::<c_void>();
        assert_eq!(__fread_chk(at, 70_000, 100, 150, stream), 150);
        assert_eq!(__fread_unlocked_chk(at.wrapping_byte_add(15_000), 70_000, 100, 150, stream), 150);
        for small in 0..100 {
            assert_eq!(
                libc::fread(at.wrapping_byte_add(30_000 + small * 3), 3, 1, stream),
                1,
                "from the stream's own buffer"
            );
        }
        assert_eq!(libc::fread(at.wrapping_byte_add(30_300), 1, 70_000 - 30_300, stream), 29_700);
        libc::fclose(stream);
    }
    assert_eq!(memory.all()[..60_000], contents);
}

/// A small buffer that has something in it is filled up, and the rest given to the kernel where it is.
#[test]
fn a_stream_may_have_any_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let buffers =
        [(libc::_IOFBF, 64), (libc::_IOFBF, 128), (libc::_IOFBF, 200), (libc::_IOLBF, 64), (libc::_IONBF, 0)];
    for (kind, size) in buffers {
        let memory = Managed::new(100);
        let path = folder.path().join("stream");
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut buffer = vec![0; size];
        // SAFETY: paths and modes end with zeros; the test's memory, and a buffer that outlives the stream.
        unsafe {
            let stream = libc::fopen(name.as_ptr(), c"w".as_ptr());
            done(libc::setvbuf(stream, buffer.as_mut_ptr(), kind, size));
            for item in 0..100 {
                let at = memory.at.wrapping_add(item * PAGE);
                assert_eq!(libc::fwrite(at.cast(), 1, 60, stream), 60, "{kind}, {size}: {item}");
                memory.drop_all();
                assert_eq!(libc::fwrite(at.cast(), 1, 10, stream), 10, "{kind}, {size}: {item}");
            }
            assert_eq!(libc::fclose(stream), 0);
        }
        let expected: Vec<u8> = (0..100).flat_map(|item| [number(item); 70]).collect();
        assert_eq!(std::fs::read(path).unwrap(), expected, "{kind}, {size}");
    }
}

/// Nothing of this library is on the stack of who waits in a call that has no managed memory.
#[test]
fn who_waits_may_be_cancelled() {
    unsafe extern "C-unwind" {
        #[link_name = "read"]
        fn read_until_cancelled(fd: c_int, at: *mut c_void, bytes: size_t) -> ssize_t;
    }
    extern "C-unwind" fn wait(pipe: *mut c_void) -> *mut c_void {
        let mut byte = 0u8;
        // SAFETY: room for one.
        unsafe { read_until_cancelled(pipe.addr() as c_int, (&raw mut byte).cast(), 1) };
        null_mut()
    }
    let mut pipe = [0; 2];
    // SAFETY: room for two; a thread that is waited for, and takes a number.
    unsafe {
        done(libc::pipe(pipe.as_mut_ptr()));
        let begin = std::mem::transmute::<
            extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(wait);
        let (mut thread, mut end) = (0, null_mut());
        assert_eq!(libc::pthread_create(&raw mut thread, null(), begin, pipe[0] as usize as *mut c_void), 0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(libc::pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, &raw mut end), 0);
        assert_eq!(end.addr(), usize::MAX, "PTHREAD_CANCELED");
    }
}
