//! Messages, and what belongs to them.

use super::*;

unsafe extern "C" {
    fn __recv_chk(fd: c_int, at: *mut c_void, bytes: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int,
        at: *mut c_void,
        bytes: size_t,
        room: size_t,
        flags: c_int,
        name: *mut c_void,
        length: *mut u32,
    ) -> ssize_t;
}

#[test]
fn messages_come_with_what_belongs_to_them() {
    let memory = Managed::new(8);
    let mut ends = [0; 2];
    // SAFETY: room for two.
    done(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr()) });
    let part = |at: usize, bytes| iovec { iov_base: memory.at.wrapping_add(at).cast(), iov_len: bytes };
    let mut parts = [part(PAGE, 10), part(2 * PAGE, 20)];
    // SAFETY: zeros are one; the test's memory, as below.
    let (message, sent, received) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        let sent = libc::sendmsg(ends[0], &raw const message, 0);
        parts[0] = part(4 * PAGE, 25);
        message.msg_iovlen = 1;
        let received = libc::recvmsg(ends[1], &raw mut message, 0);
        (message, sent, received)
    };
    assert_eq!((sent, received), (30, 25));
    assert_eq!(message.msg_flags & libc::MSG_TRUNC, libc::MSG_TRUNC);
    assert_eq!((message.msg_iov, message.msg_iovlen), (parts.as_mut_ptr(), 1));
    let came = [vec![number(1); 10], vec![number(2); 15], vec![number(4)]].concat();
    assert_eq!(memory.all()[4 * PAGE..4 * PAGE + 26], came);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::send(ends[0], memory.at.wrapping_add(6 * PAGE).cast(), 40, 0), 40);
        let into = memory.at.wrapping_add(7 * PAGE).cast();
        assert_eq!(libc::recv(ends[1], into, 30, libc::MSG_TRUNC), 40, "how long it was");
        assert_eq!(libc::sendto(ends[0], memory.at.wrapping_add(5 * PAGE).cast(), 3, 0, null(), 0), 3);
        assert_eq!(libc::recvfrom(ends[1], into.wrapping_byte_add(30), 30, 0, null_mut(), null_mut()), 3);
        assert_eq!(ends.map(|end| libc::close(end)), [0; 2]);
    }
    let came = [vec![number(6); 30], vec![number(5); 3], vec![number(7); 4]].concat();
    assert_eq!(memory.all()[7 * PAGE..7 * PAGE + 37], came);
}

#[test]
fn all_of_a_message_may_be_managed() {
    let memory = Managed::new(12);
    let folder = tempfile::tempdir().unwrap();
    let (mut ends, file) = ([0; 2], tempfile::tempfile().unwrap());
    let page = |page: usize| memory.at.wrapping_add(page * PAGE).cast::<c_void>();
    let name = folder.path().join("a");
    let sender = std::os::unix::net::UnixDatagram::bind(&name).unwrap();
    let receiver = std::os::unix::net::UnixDatagram::bind(folder.path().join("b")).unwrap();
    sender.connect(folder.path().join("b")).unwrap();
    (ends[0], ends[1]) = (sender.as_raw_fd(), receiver.as_raw_fd());
    // SAFETY: the test's memory, in which each has a page.
    unsafe {
        let fill = |message: *mut libc::msghdr, list: *mut iovec, data: usize, control: usize| {
            list.write(iovec { iov_base: page(data), iov_len: 100 });
            let empty: libc::msghdr = std::mem::zeroed();
            let control = page(control);
            message.write(libc::msghdr {
                msg_iov: list,
                msg_iovlen: 1,
                msg_control: control,
                msg_controllen: 24,
                ..empty
            });
        };
        let (message, list) = (page(0).cast::<libc::msghdr>(), page(1).cast::<iovec>());
        fill(message, list, 2, 3);
        let header = libc::CMSG_FIRSTHDR(message);
        *header = libc::cmsghdr {
            cmsg_len: libc::CMSG_LEN(4) as usize,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(file.as_raw_fd());
        assert_eq!(libc::sendmsg(ends[0], message, 0), 100);
        let (message, list) = (page(4).cast::<libc::msghdr>(), page(5).cast::<iovec>());
        fill(message, list, 6, 7);
        ((*message).msg_name, (*message).msg_namelen) = (page(8), 110);
        assert_eq!(libc::recvmsg(ends[1], message, 0), 100);
        assert_eq!(((*message).msg_name, (*message).msg_iov, (*message).msg_iovlen), (page(8), list, 1));
        let header = libc::CMSG_FIRSTHDR(message);
        assert_eq!(((*header).cmsg_type, (*header).cmsg_len), (libc::SCM_RIGHTS, libc::CMSG_LEN(4) as usize));
        let came = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
        done(libc::close(came));
        // What it is called.
        let address = page(8).cast::<libc::sockaddr_un>();
        let called = std::ffi::CStr::from_ptr((*address).sun_path.as_ptr());
        assert_eq!(called.to_bytes(), name.as_os_str().as_encoded_bytes());
        assert_eq!(memory.all()[6 * PAGE..6 * PAGE + 101], [vec![number(2); 100], vec![number(6)]].concat());

        // And where they are arguments.
        let length = page(9).cast::<u32>();
        for variant in 0..2 {
            length.write(110);
            page(8).cast::<u8>().write_bytes(0, 110);
            assert_eq!(libc::send(ends[0], page(11), 60, 0), 60);
            let received = match variant {
                0 => libc::recvfrom(ends[1], page(6), 50, 0, page(8).cast(), length),
                _ => __recvfrom_chk(ends[1], page(6), 50, 50, 0, page(8), length),
            };
            assert_eq!((received, *length as usize), (50, 2 + name.as_os_str().len() + 1), "{variant}");
            let called = std::ffi::CStr::from_ptr((*page(8).cast::<libc::sockaddr_un>()).sun_path.as_ptr());
            assert_eq!(called.to_bytes(), name.as_os_str().as_encoded_bytes());
        }
        assert_eq!(libc::send(ends[0], page(11), 60, 0), 60);
        assert_eq!(__recv_chk(ends[1], page(6), 60, 60, 0), 60);
        assert_eq!(memory.all()[6 * PAGE..6 * PAGE + 60], [number(11); 60]);
        // To whom: the receiver's own name, in managed memory.
        let to = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, ..std::mem::zeroed() };
        page(10).cast::<libc::sockaddr_un>().write(to);
        let path = folder.path().join("b");
        let path = path.as_os_str().as_encoded_bytes();
        (&raw mut (*page(10).cast::<libc::sockaddr_un>()).sun_path)
            .cast::<u8>()
            .copy_from(path.as_ptr(), path.len());
        let unbound = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let size = size_of::<libc::sockaddr_un>() as u32;
        assert_eq!(libc::sendto(unbound.as_raw_fd(), page(11), 40, 0, page(10).cast(), size), 40);
        assert_eq!(libc::recv(ends[1], page(6), 100, 0), 40);
    }
}

#[test]
fn what_is_counted_and_put_nowhere_leaves_memory_alone() {
    let memory = Managed::new(2);
    let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.write_all(&[9; 100]).unwrap();
    here.write_all(&[9; 100]).unwrap();
    // SAFETY: the test's memory.
    unsafe {
        let flags = libc::MSG_TRUNC | libc::MSG_WAITALL;
        assert_eq!(libc::recv(receiver.as_raw_fd(), memory.at.cast(), 100, flags), 100, "TCP drops them");
        assert_eq!(memory.all()[..100], [number(0); 100]);
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        assert_eq!(libc::recv(there.as_raw_fd(), memory.at.cast(), 50, flags), 50);
        assert_eq!(
            libc::recv(there.as_raw_fd(), memory.at.wrapping_add(PAGE).cast(), 100, libc::MSG_WAITALL),
            100
        );
    }
    assert_eq!(memory.all()[PAGE..PAGE + 100], [9; 100], "looked at before, and still there");
}
