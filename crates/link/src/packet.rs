//! What the process that accepts connections and those of the sessions say to each other: packets of bounded length, each of which may carry a descriptor.

use crate::fingerprint::Fingerprint;
use crate::keys::{Denied, Quota};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest packet.
const PACKET_MAX: usize = 2048;

/// To a session's process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToFarEnd {
    /// The first: this machine's certificates, the newest first; none without TLS.
    Begin { certificates: Vec<Vec<u8>> },
    /// A connection, whose preface has been read; it comes with the packet.
    Connection { plain: bool, source: IpAddr },
    /// To [`ToFront::Sign`].
    Signed { signature: Vec<u8> },
    /// To [`ToFront::Known`].
    Known { is: Result<(), Denied> },
    /// To [`ToFront::Admitted`]: the client may have a session. Where its memory is counted, the word of the table that comes with the packet is this session's.
    Granted { session: u64, name: String, quota: Quota, word: Option<u32> },
    /// It may not; or what was asked for is not had.
    Denied { reason: String },
}

/// From it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToFront {
    /// Prove in a handshake that this machine has this key.
    Sign { key: Fingerprint, message: Vec<u8> },
    /// Is this key let in?
    Known { key: Fingerprint },
    /// Its client has proved to have this key, or there is no TLS.
    Admitted { key: Option<Fingerprint> },
    /// It has all its connections.
    Ready,
}

/// Sends a packet. Does not wait with `DONTWAIT`.
pub(crate) fn send<T: Serialize>(
    to: impl AsFd,
    message: &T,
    file: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if bytes.len() > PACKET_MAX {
        return Err(io::Error::other("a packet that is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet; `None` at the end.
pub(crate) fn receive<T: DeserializeOwned>(
    from: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(from, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            file = files.next();
        }
    }
    match bytes.get(..received.bytes) {
        None | Some([]) => Ok(None),
        Some(bytes) => understood(bytes).map(|message| Some((message, file))),
    }
}

fn understood<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Bytes are refused or understood as each packet; what is understood is written, and read back the same.
///
/// # Panics
/// When that is not so.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn come_back(bytes: &[u8]) {
    comes_back::<ToFarEnd>(bytes);
    comes_back::<ToFront>(bytes);
}

#[cfg(any(test, feature = "fuzzing"))]
fn comes_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(message) = understood::<T>(bytes) else { return };
    let written = |message: &T| postcard::to_stdvec(message).expect("what was read can be written");
    let again = written(&message);
    let same = understood::<T>(&again).expect("what was written can be read");
    assert_eq!(written(&same), again);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..200), short in prop::collection::vec(0..4_u8, 0..6)) {
            come_back(&bytes);
            come_back(&short);
        }
    }
}
