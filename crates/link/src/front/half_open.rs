//! Connections that have not said yet what they want.

use crate::protocol::{Notice, Preface};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// A connection of which little is known.
#[derive(Debug)]
pub struct Waiting {
    pub socket: OwnedFd,
    pub source: IpAddr,
    pub since: Instant,
    pub got: [u8; Preface::LEN],
    pub len: usize,
}

impl Waiting {
    /// What has arrived of the preface, and no byte more; an error when it is none.
    pub fn read(&mut self) -> Result<Option<Preface>, ()> {
        match recv(&self.socket, &mut self.got[self.len..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(()),
            Ok((_, len)) => self.len += len,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(_) => return Err(()),
        }
        if !Preface::may_begin(&self.got[..self.len]) {
            return Err(());
        }
        if self.len < Preface::LEN { Ok(None) } else { Preface::from_bytes(self.got).map(Some).ok_or(()) }
    }

    pub fn close(self, notice: Notice) {
        let bytes = Preface::notice(notice).to_bytes();
        let _ = send(&self.socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Drops the oldest connection of whoever has most of them.
pub fn drop_oldest(connections: &mut VecDeque<Waiting>) {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    connections.iter().for_each(|each| *counts.entry(network(each.source)).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source);
    if let Some(index) = connections.iter().position(|each| Some(network(each.source)) == most) {
        connections.remove(index);
    }
}

/// Whoever has one IPv6 address has 2^64 of them.
pub fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            [a, b, c, d, 0, 0, 0, 0].into()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn from(source: &str) -> Waiting {
        let (socket, _) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let source = source.parse().unwrap();
        Waiting { socket, source, since: Instant::now(), got: [0; Preface::LEN], len: 0 }
    }

    #[test]
    fn whoever_has_most_connections_makes_room() {
        let mut connections: VecDeque<Waiting> = [
            "10.0.0.1",
            "2001:db8::1",
            "10.0.0.2",
            // One network's, whatever their number.
            "2001:db8::2",
            "2001:db8::ffff:3",
            "10.0.0.2",
        ]
        .map(from)
        .into();
        drop_oldest(&mut connections);
        let left: Vec<String> = connections.iter().map(|each| each.source.to_string()).collect();
        assert_eq!(left, ["10.0.0.1", "10.0.0.2", "2001:db8::2", "2001:db8::ffff:3", "10.0.0.2"]);
        (0..9).for_each(|_| drop_oldest(&mut connections));
        assert!(connections.is_empty());
    }
}
