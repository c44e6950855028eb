//! What a server and its supervisor's broker say to each other about what sessions share: packets of bounded length, each with a
//! descriptor at most.

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::{Claim, ShareId};

/// The longest packet, bytes.
const PACKET_MAX: usize = 64 << 10;
/// The most names that a packet asks about.
pub const NAMES_MAX: usize = 2000;
/// The longest reason, bytes.
const REASON_MAX: usize = 2 << 10;

/// From a server. Numbers of requests are the asker's own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToBroker {
    /// The session has it from now on, and can give it to others.
    Hold(ShareId),
    /// It no longer has.
    Release(ShareId),
    /// What the session has of its own from an image it holds: nobody need wait for that any more.
    Ready,
    /// It wants it; with a claim, to an allocation that has to be there.
    Open {
        /// Which request.
        request: u64,
        /// What.
        share: ShareId,
        /// The allocation.
        claim: Option<Claim>,
    },
    /// The answer to [`ToServer::Give`]; with a descriptor where the gift has one.
    Given {
        /// Which request.
        request: u64,
        /// What, or why not.
        gift: Result<Gift, Refusal>,
    },
    /// Which of these it is to write into an image: of those who hold something one does. At most [`NAMES_MAX`].
    Owned {
        /// Which request.
        request: u64,
        /// Of which.
        shares: Vec<ShareId>,
    },
    /// Its device has no room for what the program allocates: a rehearsal that may have some is to end.
    NoRoom {
        /// Which request.
        request: u64,
    },
}

/// To a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToServer {
    /// Another session wants it.
    Give {
        /// Which request.
        request: u64,
        /// What.
        share: ShareId,
        /// The allocation that has to be there.
        claim: Option<Claim>,
    },
    /// The answer to [`ToBroker::Open`].
    Opened {
        /// Which request.
        request: u64,
        /// What, or why not.
        gift: Result<Gift, Refusal>,
    },
    /// The application, whose pidfd comes with it.
    Application {
        /// Its pid outside the job.
        pid: i32,
    },
    /// The application's userfaultfd, which comes with it.
    Userfault,
    /// The answer to [`ToBroker::Owned`].
    Owned {
        /// Which request.
        request: u64,
        /// Whether it is, for each.
        owned: Vec<bool>,
    },
    /// The answer to [`ToBroker::NoRoom`].
    Room {
        /// Which request.
        request: u64,
        /// How many rehearsals of the job have ended.
        ended: u64,
    },
}

/// What one session gives another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Gift {
    /// Device memory, by a descriptor.
    Memory {
        /// Index of its device.
        device: u32,
        /// Bytes.
        bytes: u64,
        /// The types of handles that it was made for.
        handle_types: u32,
        /// Whether the device may compress it.
        compressible: bool,
    },
    /// An event.
    Event {
        /// As the device library describes it.
        bytes: Vec<u8>,
    },
}

/// Why something is not given.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The application's error.
    pub code: u32,
    /// In words.
    pub reason: String,
}

impl Refusal {
    /// A refusal, whose reason is cut off where it is too long.
    #[must_use]
    pub fn new(code: wire::CuError, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        crate::failure::truncate(&mut reason, REASON_MAX);
        Self { code: code.code(), reason }
    }
}

/// Sends a packet.
///
/// # Errors
/// As the socket's; [`io::ErrorKind::InvalidInput`] for a message that is too long.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let bytes = postcard::to_stdvec(message).map_err(|error| invalid(error.to_string()))?;
    if bytes.len() > PACKET_MAX {
        return Err(invalid(format!("a packet of {} bytes; the longest has {PACKET_MAX}", bytes.len())));
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet; `None` at the end.
///
/// # Errors
/// As the socket's; [`io::ErrorKind::InvalidData`] for what is no such packet.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_MAX];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            file = files.next();
        }
    }
    match bytes.get(..received.bytes) {
        None | Some([]) => Ok(None),
        Some(bytes) => postcard::from_bytes(bytes)
            .map(|message| Some((message, file)))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Seek};

    #[test]
    fn packets_arrive_whole_with_their_descriptors() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"memory").unwrap();
        file.rewind().unwrap();
        let gift = Ok(Gift::Memory { device: 1, bytes: 2 << 20, handle_types: 1, compressible: false });
        let given = ToBroker::Given { request: 7, gift };
        send(&ours, &given, Some(file.as_fd())).unwrap();
        let owned = ToBroker::Owned { request: u64::MAX, shares: vec![ShareId([0xff; 16]); NAMES_MAX] };
        send(&ours, &owned, None).unwrap();
        let (first, descriptor) = receive::<ToBroker>(&theirs).unwrap().unwrap();
        let mut text = String::new();
        std::fs::File::from(descriptor.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!((first, text.as_str()), (given, "memory"));
        let (second, descriptor) = receive::<ToBroker>(&theirs).unwrap().unwrap();
        assert!(second == owned && descriptor.is_none());
        rustix::io::write(&ours, b"\xff\xff\xff").unwrap();
        assert_eq!(receive::<ToBroker>(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(ours);
        assert!(receive::<ToBroker>(&theirs).unwrap().is_none());
        assert_eq!(Refusal::new(wire::CuError::UNKNOWN, "x".repeat(9999)).reason.len(), REASON_MAX);
    }
}
