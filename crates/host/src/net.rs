//! TCP connections of a job, and what is left of them in the kernel after the job was killed.
//!
//! A connection whose two ends were killed lingers in TIME_WAIT for a minute and keeps its ports: the job could not come back
//! before. It is destroyed through the kernel's socket diagnostics (`SOCK_DESTROY`, `linux/inet_diag.h`).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use procfs::net::TcpState;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::tasks::OuterPid;

/// A connection's two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Connection {
    /// The job's end.
    pub local: SocketAddr,
    /// The other end, which may be the job's too.
    pub remote: SocketAddr,
}

/// The connections of which `tasks` hold an end. Listening sockets are none.
pub(crate) fn of(tasks: &[OuterPid]) -> Vec<Connection> {
    let mut inodes = HashSet::new();
    for task in tasks {
        for link in fs::read_dir(format!("/proc/{task}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(link.path()).unwrap_or_default();
            let inode = target
                .to_str()
                .and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
            inodes.extend(inode);
        }
    }
    if inodes.is_empty() {
        return Vec::new();
    }
    let held = sockets()
        .into_iter()
        .filter(|s| s.inode != 0 && inodes.contains(&s.inode) && s.state != TcpState::Listen);
    held.map(|s| s.connection).collect()
}

/// Whether one of them leads out of the job, where somebody may send while the job is stopped.
pub(crate) fn any_leads_out(connections: &[Connection]) -> bool {
    connections.iter().any(|c| !connections.contains(&Connection { local: c.remote, remote: c.local }))
}

/// Destroys what lingers of `connections` since their processes were killed. What a living process holds is left alone.
pub(crate) fn forget(connections: &[Connection]) {
    if connections.is_empty() {
        return;
    }
    let lingering =
        [TcpState::TimeWait, TcpState::FinWait1, TcpState::FinWait2, TcpState::Closing, TcpState::LastAck];
    for socket in sockets() {
        let is_ours = connections.contains(&socket.connection);
        if is_ours && socket.inode == 0 && lingering.contains(&socket.state) {
            // The other end may have gone with the first; and if it cannot be destroyed, CRIU will say what it means.
            if let Err(error) = destroy(socket.connection) {
                tracing::debug!(connection = ?socket.connection, %error, "a connection lingers");
            }
        }
    }
}

/// Takes every TCP socket of `tasks`, all stopped, out of the mode in which CRIU reads its queues. CRIU does that itself when it is done;
/// a task that ran on before would get errors from its connections.
pub(crate) fn end_repair(tasks: &[OuterPid]) {
    for task in tasks {
        let Some(pid) = Pid::from_raw(task.0) else { continue };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        for link in fs::read_dir(format!("/proc/{task}/fd")).into_iter().flatten().flatten() {
            let number = link.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
            let is_socket = fs::read_link(link.path())
                .is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with("socket:")));
            let Some(number) = number.filter(|_| is_socket) else { continue };
            if let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
                && let Err(error) = repair_off(&socket)
            {
                tracing::warn!(%task, number, %error, "a connection may not go on");
            }
        }
    }
}

fn repair_off(socket: &OwnedFd) -> io::Result<()> {
    let (fd, mut on, mut length) = (socket.as_raw_fd(), 0, INT);
    // SAFETY: both values are ours, as long as said, and outlive the calls.
    unsafe {
        // Other sockets than TCP's have no such mode.
        let asked =
            libc::getsockopt(fd, libc::SOL_TCP, libc::TCP_REPAIR, (&raw mut on).cast(), &raw mut length);
        let off: libc::c_int = 0;
        if asked == 0
            && on == 1
            && libc::setsockopt(fd, libc::SOL_TCP, libc::TCP_REPAIR, (&raw const off).cast(), INT) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

const INT: libc::socklen_t = size_of::<libc::c_int>() as libc::socklen_t;

struct Socket {
    connection: Connection,
    state: TcpState,
    inode: u64,
}

fn sockets() -> Vec<Socket> {
    let all = procfs::net::tcp().into_iter().flatten().chain(procfs::net::tcp6().into_iter().flatten());
    all.map(|s| Socket {
        connection: Connection { local: s.local_address, remote: s.remote_address },
        state: s.state,
        inode: s.inode,
    })
    .collect()
}

fn destroy(connection: Connection) -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&socket, &request(connection), SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (_, length) = recv(socket.as_fd(), &mut answer, RecvFlags::empty())?;
    // struct nlmsghdr, then the negated error number of struct nlmsgerr.
    match answer.get(16..20).filter(|_| length >= 20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(Connection { local, remote }: Connection) -> Vec<u8> {
    const SOCK_DESTROY: u16 = 21;
    const REQUEST_AND_ACK: u16 = 0x1 | 0x4;
    const LENGTH: u32 = 72;
    const NO_COOKIE: [u8; 8] = [0xff; 8];
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(SOCK_DESTROY.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // Every state.
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(local.port().to_be_bytes());
    message.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        match address {
            IpAddr::V4(v4) => {
                message.extend(v4.octets());
                message.extend([0; 12]);
            }
            IpAddr::V6(v6) => message.extend(v6.octets()),
        }
    }
    // Any interface.
    message.extend([0; 4]);
    message.extend(NO_COOKIE);
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_lingering_connection_is_destroyed_and_its_port_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let ends =
            |s: &TcpStream| Connection { local: s.local_addr().unwrap(), remote: s.peer_addr().unwrap() };
        let connections = [ends(&one), ends(&other)];
        let here = OuterPid(i32::try_from(std::process::id()).unwrap());
        let found = of(&[here]);
        assert!(connections.iter().all(|c| found.contains(c)), "{found:?}");

        // Within one process, none leads out; half of the pair does.
        assert!(!any_leads_out(&connections));
        assert!(any_leads_out(&connections[..1]));

        // A living connection is left alone.
        forget(&connections);
        assert!(of(&[here]).contains(&connections[0]));
        drop(one);
        drop(other);
        let lingering = || sockets().iter().any(|s| connections.contains(&s.connection));
        let started = std::time::Instant::now();
        while !lingering() && started.elapsed().as_secs() < 2 {}
        assert!(lingering());
        forget(&connections);
        assert!(!lingering());
    }

    #[test]
    fn the_request_has_the_kernels_layout() {
        let local: SocketAddr = "127.0.0.1:258".parse().unwrap();
        let message = request(Connection { local, remote: "10.0.0.1:3".parse().unwrap() });
        assert_eq!(message.len(), 72);
        assert_eq!(message[24..32], [1, 2, 0, 3, 127, 0, 0, 1]);
        assert_eq!(message[44..48], [10, 0, 0, 1]);
    }
}
