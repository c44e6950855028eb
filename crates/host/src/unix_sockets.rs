//! Which UNIX sockets of a job lead out of it, and to whom (`linux/unix_diag.h`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::tasks::Task;

/// A sentence for each process of `tasks` that is connected to somebody else.
pub(crate) fn leading_out(tasks: &[Task]) -> Vec<String> {
    let held: Vec<(&Task, HashSet<u32>)> = tasks.iter().map(|task| (task, inodes_of(task.outer.0))).collect();
    let inside: HashSet<u32> = held.iter().flat_map(|(_, inodes)| inodes).copied().collect();
    let peers = match peers() {
        Ok(peers) => peers,
        Err(error) => {
            tracing::debug!(%error, "the kernel does not tell who is connected to whom");
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for (task, inodes) in held {
        let outside = inodes.iter().filter_map(|inode| peers.get(inode));
        found.extend(outside.filter(|peer| !inside.contains(peer)).map(|peer| {
            let whom = owner(*peer).map_or_else(
                || "a process outside the job".to_owned(),
                |whom| format!("process {} ({}), which is outside the job", whom.0, whom.1),
            );
            format!(
                "process {} of the job ({}) is connected by a UNIX socket to {whom}",
                task.inner, task.comm
            )
        }));
    }
    found
}

/// The sockets that a process has open.
fn inodes_of(pid: i32) -> HashSet<u32> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter_map(|to| to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect()
}

/// A process that has this socket open, and its name.
fn owner(inode: u32) -> Option<(i32, String)> {
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let pid = pids.find(|pid| inodes_of(*pid).contains(&inode))?;
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, comm.trim_end().to_owned()))
}

/// The other end of every connected UNIX socket of this network namespace, by inode.
fn peers() -> io::Result<HashMap<u32, u32>> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut peers = HashMap::new();
    let mut answer = vec![0; 64 << 10];
    loop {
        let (_, length) = recv(socket.as_fd(), &mut answer[..], RecvFlags::empty())?;
        let mut rest = answer.get(..length).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some((kind, message, after)) = split(rest) {
            match kind {
                NLMSG_DONE => return Ok(peers),
                NLMSG_ERROR => return Err(io::Error::other("the kernel has no diagnostics of UNIX sockets")),
                _ => peers.extend(connection(message)),
            }
            rest = after;
        }
    }
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// `struct nlmsghdr` and `struct unix_diag_req`: all sockets of every state, with their peers.
fn request() -> Vec<u8> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST_AND_DUMP: u16 = 0x1 | 0x300;
    const SHOW_PEER: u32 = 4;
    const LENGTH: u32 = 40;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST_AND_DUMP.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(SHOW_PEER.to_ne_bytes());
    message.extend([0; 8]);
    message
}

/// The first message: its type, its body, and what comes behind it.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    const HEADER: usize = 16;
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// `struct unix_diag_msg` and its attributes: a socket's inode and its peer's, if it has one that was accepted.
fn connection(message: &[u8]) -> Option<(u32, u32)> {
    const UNIX_DIAG_PEER: u16 = 2;
    let inode = u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?);
    let mut attributes = message.get(16..)?;
    loop {
        let (length, kind) = (attributes.get(..2)?.try_into().ok()?, attributes.get(2..4)?.try_into().ok()?);
        let length = usize::from(u16::from_ne_bytes(length));
        let payload = attributes.get(4..length)?;
        if u16::from_ne_bytes(kind) == UNIX_DIAG_PEER {
            let peer = u32::from_ne_bytes(payload.try_into().ok()?);
            return (peer != 0).then_some((inode, peer));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tasks::{InnerPid, OuterPid};
    use std::os::unix::net::UnixStream;

    #[test]
    fn two_ends_of_one_process_lead_nowhere_and_a_childs_leads_out() {
        let (one, other) = UnixStream::pair().unwrap();
        let inodes = inodes_of(std::process::id() as i32);
        let peers = peers().unwrap();
        let within = inodes.iter().filter(|inode| peers.get(inode).is_some_and(|peer| inodes.contains(peer)));
        assert!(within.count() >= 2);

        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(std::os::fd::OwnedFd::from(other))
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let task = Task {
            outer: OuterPid(pid),
            inner: InnerPid(7),
            parent: InnerPid(1),
            comm: "sleep".into(),
            threads: vec![pid],
            state: 'S',
        };
        let told = leading_out(&[task]);
        let expected = format!(
            "process 7 of the job (sleep) is connected by a UNIX socket to process {}",
            std::process::id()
        );
        assert!(told.iter().any(|told| told.starts_with(&expected)), "{told:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(one);
    }

    #[test]
    fn what_is_cut_short_is_no_message() {
        assert_eq!(request().len(), 40);
        assert!(split(&[]).is_none() && split(&[255; 15]).is_none() && split(&[255; 40]).is_none());
        assert_eq!(connection(&[0; 16]), None);
        assert_eq!(connection(&[255; 40]), None);
    }
}
