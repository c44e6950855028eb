//! What travels: questions on the control stream, and what is written to a file, until it is closed, on one bulk stream, which whoever writes chooses. A message is {`u32` length of its head, `u32` length of its load}, the head (postcard) and the load (bytes as they are); little-endian.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// What both sides begin with.
pub const MAGIC: &[u8; 8] = b"DMmoves3";
/// The longest head: a folder of a hundred thousand names has room.
const HEAD_MAX: usize = 16 << 20;
/// The longest load.
pub(crate) const LOAD_MAX: usize = 1 << 20;
/// As much memory is taken before anything has come.
const LITTLE: usize = 4 << 10;

/// What is asked of the other side.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// By which its answer is known; 0 where none is wanted.
    pub number: u64,
    /// What.
    pub what: What,
}

/// The operations of [`store::media::Media`], and a word. What is opened or held is named by whoever asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum What {
    /// Nothing: somebody is still there.
    Nothing,
    Create {
        file: u64,
        path: String,
    },
    /// Appends the load. What goes wrong with it is answered by [`What::Sync`]. As that, and [`What::Close`] of what was created, on a bulk stream.
    Write {
        file: u64,
    },
    Sync {
        file: u64,
    },
    Open {
        file: u64,
        path: String,
    },
    Read {
        file: u64,
        offset: u64,
        len: u32,
    },
    /// Of a file that was created or opened.
    Close {
        file: u64,
    },
    List {
        folder: String,
    },
    Lengths {
        folder: String,
    },
    Rename {
        from: String,
        to: String,
    },
    RenameNew {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    CreateFolder {
        folder: String,
    },
    RemoveFolder {
        folder: String,
    },
    SyncFolder {
        folder: String,
    },
    Lock {
        lock: u64,
        path: String,
        create: bool,
    },
    Share {
        lock: u64,
        path: String,
    },
    Unlock {
        lock: u64,
    },
    EndUploads,
    /// The load is a question to whoever has the folder; so is the answer's.
    Say,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Of the question; 0 for none, by which somebody is still there.
    pub number: u64,
    pub told: Result<Told, Trouble>,
}

/// A result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Done,
    Length(u64),
    /// In the load.
    Bytes,
    Names(Vec<String>),
    Lengths(HashMap<String, u64>),
    Locked(bool),
}

/// An error of the other side's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trouble {
    /// The system's number, where it is the system's.
    number: Option<i32>,
    /// Whether a file ended too soon.
    is_end: bool,
    message: String,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        let message = error.to_string().chars().take(1000).collect();
        let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
        Self { number: error.raw_os_error(), is_end, message }
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> Self {
        match trouble.number {
            // Both sides are Linux.
            Some(number) => Self::from_raw_os_error(number),
            None if trouble.is_end => Self::new(io::ErrorKind::UnexpectedEof, trouble.message),
            None => Self::other(trouble.message),
        }
    }
}

/// Sends one message, in one piece if it is short.
pub(crate) fn send(to: &mut dyn Write, head: &impl Serialize, load: &[u8]) -> io::Result<()> {
    let mut bytes = postcard::to_extend(head, vec![0; 8]).map_err(io::Error::other)?;
    let long = || io::Error::new(io::ErrorKind::InvalidInput, "a message that is too long");
    let head =
        u32::try_from(bytes.len() - 8).ok().filter(|len| *len as usize <= HEAD_MAX).ok_or_else(long)?;
    let len = u32::try_from(load.len()).ok().filter(|len| *len as usize <= LOAD_MAX).ok_or_else(long)?;
    bytes[..4].copy_from_slice(&head.to_le_bytes());
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    to.write_all(&bytes)?;
    to.write_all(load)?;
    to.flush()
}

/// Receives one, of bounded length; `None` where the stream ends before it.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut dyn Read) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut load = Vec::new();
    let received = receive_into(from, &mut load)?;
    Ok(received.map(|(message, len)| {
        load.truncate(len);
        (message, load)
    }))
}

/// The same into memory that was used before, which grows if it has to; how long the load is with which it begins then.
pub(crate) fn receive_into<T: DeserializeOwned>(
    from: &mut dyn Read,
    into: &mut Vec<u8>,
) -> io::Result<Option<(T, usize)>> {
    let mut lengths = [0; 8];
    match from.read(&mut lengths[..1])? {
        0 => return Ok(None),
        _ => from.read_exact(&mut lengths[1..])?,
    }
    let [a, b, c, d, e, f, g, h] = lengths;
    let (head, load) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    if head > HEAD_MAX || load > LOAD_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    take(from, head, into)?;
    let message = match postcard::take_from_bytes(into.get(..head).unwrap_or_default()) {
        Ok((message, [])) => message,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that makes no sense")),
    };
    take(from, load, into)?;
    Ok(Some((message, load)))
}

/// So many bytes: memory is taken as they come.
fn take(from: &mut dyn Read, len: usize, into: &mut Vec<u8>) -> io::Result<()> {
    let mut got = 0;
    while got < len {
        if into.len() == got {
            into.resize(len.min((2 * got).max(LITTLE)), 0);
        }
        let end = into.len().min(len);
        from.read_exact(&mut into[got..end])?;
        got = end;
    }
    Ok(())
}

/// Both sides say what they are.
pub(crate) fn greet(to: &mut dyn Write, from: &mut dyn Read) -> io::Result<()> {
    to.write_all(MAGIC)?;
    to.flush()?;
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    let other = "the other side is of another version: both need the same release of Dormouse";
    if magic == *MAGIC { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, other)) }
}

/// Bytes are refused or understood as each message, as they are and as a message's head; what is understood is written, and read back the same.
///
/// # Panics
/// When that is not so.
#[cfg(any(test, feature = "fuzzing"))]
pub fn come_back(bytes: &[u8]) {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let framed = [&length(bytes)[..], &[0; 4], bytes].concat();
    for bytes in [bytes, &framed] {
        comes_back::<Ask>(bytes);
        comes_back::<Answer>(bytes);
    }
}

#[cfg(any(test, feature = "fuzzing"))]
fn comes_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(Some((message, load))) = receive::<T>(&mut &*bytes) else { return };
    let written = |message: &T, load: &[u8]| {
        let mut bytes = Vec::new();
        send(&mut bytes, message, load).map(|()| bytes).expect("what was read can be written")
    };
    let again = written(&message, &load);
    let same = receive::<T>(&mut &again[..]).ok().flatten();
    let (message, same) = same.expect("what was written can be read");
    assert_eq!(same, load);
    // In memory that was used for something shorter or longer before, too.
    for used in [1, LITTLE - 1, 2 * LITTLE, again.len() + 1] {
        let mut into = vec![0xa5; used];
        let len = receive_into::<T>(&mut &again[..], &mut into).ok().flatten().map(|(_, len)| len);
        assert_eq!(len.and_then(|len| into.get(..len)), Some(&load[..]));
    }
    // Names of a folder are in no order.
    assert_eq!(written(&message, &same).len(), again.len());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_back_and_bounded() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Ask { number: 7, what: What::Write { file: 3 } }, b"load").unwrap();
        let mut from = &bytes[..];
        let (ask, load) = receive::<Ask>(&mut from).unwrap().unwrap();
        assert!(matches!(ask, Ask { number: 7, what: What::Write { file: 3 } }) && load == b"load");
        assert!(receive::<Ask>(&mut from).unwrap().is_none());
        assert_eq!(
            receive::<Ask>(&mut &bytes[..bytes.len() - 1]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(send(&mut Vec::new(), &0_u8, &vec![0; LOAD_MAX + 1]).is_err());
        // Nothing is allocated for what is only said to come.
        let endless = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        assert_eq!(receive::<Ask>(&mut &endless[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn errors_stay_what_they_were() {
        let over = |error: io::Error| io::Error::from(Trouble::from(error));
        assert_eq!(over(io::Error::from_raw_os_error(2)).kind(), io::ErrorKind::NotFound);
        assert_eq!(over(io::ErrorKind::UnexpectedEof.into()).kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(over(io::Error::other("why")).to_string(), "why");
    }

    proptest! {
        #[test]
        fn anything_may_arrive(bytes in prop::collection::vec(any::<u8>(), 0..200), short in prop::collection::vec(0..20_u8, 0..6)) {
            come_back(&bytes);
            come_back(&short);
        }
    }
}
