//! What the two sides say before a connection carries data.
//!
//! Each TCP connection begins with a *preface* in the clear: a magic, a version, whether TLS follows, and the number of the session that it belongs to,
//! 0 for a new one. It is all that the process reads that accepts connections. Then, inside TLS, the client sends a *hello* and gets an *answer*, and
//! from then on the connection carries data in one direction. What a server says in the clear instead (a *notice*, of a preface's form) is a hint for
//! people: whoever can forge it can as well cut the line.
//!
//! Against that direction nothing flows but counts ([`crate::line`]), `u64` each, of the bytes that have arrived.

use ring::rand::{SecureRandom, SystemRandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use zeroize::Zeroize;

/// The version of all this. Others are not spoken.
pub(crate) const VERSION: u16 = 3;
/// What each preface begins with; no TLS record does.
const MAGIC: [u8; 4] = *b"DRMS";
/// The longest hello or answer.
const MESSAGE_MAX: usize = 1024;

/// What follows a preface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// TLS.
    Tls,
    /// The hello, in the clear.
    Plain,
    /// Nothing: a server closes the connection for this reason.
    Notice(Notice),
}

/// Why a server closes a connection before it has talked with anybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// It speaks the version of this preface.
    Version,
    /// It has as many sessions as it takes.
    Busy,
    /// There is no such session, or not any more.
    NoSession,
    /// It takes TLS only.
    NotPlain,
}

/// The first 16 bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Preface {
    pub version: u16,
    pub kind: Kind,
    pub session: u64,
}

impl Preface {
    pub const LEN: usize = 16;

    pub fn notice(notice: Notice) -> Self {
        Self { version: VERSION, kind: Kind::Notice(notice), session: 0 }
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let kind: u16 = match self.kind {
            Kind::Tls => 0,
            Kind::Plain => 1,
            Kind::Notice(Notice::Version) => 0x100,
            Kind::Notice(Notice::Busy) => 0x101,
            Kind::Notice(Notice::NoSession) => 0x102,
            Kind::Notice(Notice::NotPlain) => 0x103,
        };
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }

    /// `None` when it is not one. Of another version only that is known.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [a, b, c, d, version @ .., _, _, _, _, _, _, _, _, _, _] = bytes;
        if [a, b, c, d] != MAGIC {
            return None;
        }
        let version = u16::from_le_bytes(version);
        let kind = match u16::from_le_bytes([bytes[6], bytes[7]]) {
            _ if version != VERSION => Kind::Notice(Notice::Version),
            0 => Kind::Tls,
            1 => Kind::Plain,
            0x100 => Kind::Notice(Notice::Version),
            0x101 => Kind::Notice(Notice::Busy),
            0x102 => Kind::Notice(Notice::NoSession),
            0x103 => Kind::Notice(Notice::NotPlain),
            _ => return None,
        };
        let mut session = [0; 8];
        session.copy_from_slice(&bytes[8..]);
        Some(Self { version, kind, session: u64::from_le_bytes(session) })
    }

    /// Whether a preface may begin so.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic)
    }
}

/// What the connections of a session have in common, and nobody else knows.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Token([u8; 32]);

impl Token {
    pub fn random() -> io::Result<Self> {
        let mut token = Self::default();
        let filled = SystemRandom::new().fill(&mut token.0);
        filled.map_err(|_| io::Error::other("the system has no random numbers")).map(|()| token)
    }

    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&self.0)
    }

    pub fn read(from: &mut dyn Read) -> io::Result<Self> {
        let mut token = Self::default();
        from.read_exact(&mut token.0).map(|()| token)
    }

    /// Whether it is the same, in the same time wherever it differs.
    pub fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// What a connection carries, and which way, seen from the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    ControlUp,
    ControlDown,
    BulkUp(u8),
    BulkDown(u8),
}

impl Role {
    /// Those of a session with so many bulk connections each way.
    pub fn all(bulk: u8) -> impl Iterator<Item = Self> {
        let of_bulk = (0..bulk).flat_map(|number| [Self::BulkUp(number), Self::BulkDown(number)]);
        [Self::ControlUp, Self::ControlDown].into_iter().chain(of_bulk)
    }

    pub fn is_control(self) -> bool {
        matches!(self, Self::ControlUp | Self::ControlDown)
    }

    /// Whether the client writes to it.
    pub fn is_up(self) -> bool {
        matches!(self, Self::ControlUp | Self::BulkUp(_))
    }
}

/// What a client wants of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Service {
    /// Its devices.
    Devices,
    /// That it takes over jobs.
    Jobs,
}

impl Service {
    /// The command that serves it.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Devices => "dormouse serve",
            Self::Jobs => "dormouse receive",
        }
    }
}

/// What the client says first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Hello {
    /// On the first connection, which is [`Role::ControlUp`].
    New {
        /// What it wants.
        service: Service,
        /// Which device.
        device: u32,
        /// How many bulk connections follow in each direction.
        bulk: u8,
        /// Whether what these carry goes by RDMA.
        rdma: bool,
    },
    /// On the others, and on those that follow one that broke.
    Join {
        token: Token,
        role: Role,
        /// Bytes of the stream that have arrived at the client.
        arrived: u64,
    },
}

/// What the server says to that.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    New {
        session: u64,
        token: Token,
        welcome: super::Welcome,
    },
    Joined {
        /// Bytes of the stream that have arrived at the server.
        arrived: u64,
    },
    /// The reason is a sentence's end.
    Refused {
        code: Refusal,
        reason: String,
    },
    /// To a [`Hello::Join`], before its answer: what the connection carries in its role's direction goes from now on by RDMA. The client connects to this port of the same machine,
    /// and begins with the ticket.
    Beside {
        port: u16,
        ticket: Token,
    },
}

/// Why a server takes no session of a client that it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The client has as many sessions as its key may.
    Sessions,
    /// Something is asked for that cannot be had, such as a device that is not there.
    Request,
    /// The server failed.
    Failed,
}

/// Sends a hello or an answer.
pub(crate) fn send(to: &mut dyn Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 2];
    bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
    let len = u16::try_from(bytes.len() - 2).ok().filter(|len| usize::from(*len) <= MESSAGE_MAX);
    let len = len.ok_or_else(|| io::Error::other("a message that is too long"))?;
    bytes[..2].copy_from_slice(&len.to_le_bytes());
    let sent = to.write_all(&bytes).and_then(|()| to.flush());
    // It may hold a token.
    bytes.zeroize();
    sent
}

/// Receives one, of bounded length.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut dyn Read) -> io::Result<T> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut len = [0; 2];
    from.read_exact(&mut len)?;
    let len = usize::from(u16::from_le_bytes(len));
    if len > MESSAGE_MAX {
        return Err(invalid("a message that is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    let message = match postcard::take_from_bytes(&bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(invalid("a message that makes no sense")),
    };
    bytes.zeroize();
    message
}

/// Bytes are refused or understood as a preface, and as each hello and answer, as they are and behind a length that fits; what is understood is written,
/// and read back the same.
///
/// # Panics
/// When that is not so.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn come_back(bytes: &[u8]) {
    if let Some((preface, first)) =
        bytes.first_chunk().and_then(|&first| Some((Preface::from_bytes(first)?, first)))
    {
        assert!(Preface::may_begin(&first), "{preface:?}");
        // Of another version only that is known.
        assert!(preface.version != VERSION || preface.to_bytes() == first, "{preface:?}");
    }
    let framed = [&u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes()[..], bytes].concat();
    for bytes in [bytes, &framed] {
        comes_back::<Hello>(bytes);
        comes_back::<Answer>(bytes);
    }
}

#[cfg(any(test, feature = "fuzzing"))]
fn comes_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(message) = receive::<T>(&mut &*bytes) else { return };
    let written = |message: &T| {
        let mut bytes = Vec::new();
        send(&mut bytes, message).map(|()| bytes).expect("what was read can be written")
    };
    let again = written(&message);
    let same = receive::<T>(&mut &again[..]).expect("what was written can be read");
    assert_eq!(written(&same), again);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefaces_are_read_back() {
        for kind in [Kind::Tls, Kind::Plain, Kind::Notice(Notice::Busy), Kind::Notice(Notice::NotPlain)] {
            let preface = Preface { version: VERSION, kind, session: 0x0123_4567_89ab_cdef };
            assert_eq!(Preface::from_bytes(preface.to_bytes()), Some(preface));
            assert!(Preface::may_begin(&preface.to_bytes()[..7]) && Preface::may_begin(b""));
        }
        let newer = Preface { version: VERSION + 1, kind: Kind::Tls, session: 1 }.to_bytes();
        assert_eq!(Preface::from_bytes(newer).unwrap().kind, Kind::Notice(Notice::Version));
        assert!(!Preface::may_begin(b"GET / HTTP/1.1") && !Preface::may_begin(b"D\0"));
    }

    #[test]
    fn tokens_are_compared_and_not_shown() {
        let token = Token::random().unwrap();
        assert!(token.is(&token.clone()) && !token.is(&Token::random().unwrap()));
        assert_eq!(
            format!("{:?}", Hello::Join { token, role: Role::BulkUp(3), arrived: 0 })
                .matches("Token(…)")
                .count(),
            1
        );
    }

    #[test]
    fn messages_are_bounded() {
        let mut bytes = Vec::new();
        let long = Answer::Refused { code: Refusal::Failed, reason: "x".repeat(MESSAGE_MAX) };
        assert!(send(&mut bytes, &long).is_err() && bytes.is_empty());
        bytes.extend(u16::MAX.to_le_bytes());
        assert_eq!(receive::<Hello>(&mut &bytes[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn anything_may_arrive(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            short in prop::collection::vec(0..4_u8, 0..6),
            kind in 0..4_u8,
            is_notice: bool,
        ) {
            come_back(&bytes);
            come_back(&short);
            come_back(&[&MAGIC[..], &VERSION.to_le_bytes(), &[kind, is_notice.into()], &bytes].concat());
        }

        #[test]
        fn hellos_are_read_back(device: u32, bulk: u8, role: u8, arrived: u64) {
            let mut bytes = Vec::new();
            send(&mut bytes, &Hello::New { service: Service::Jobs, device, bulk, rdma: true }).unwrap();
            let token = Token::random().unwrap();
            send(&mut bytes, &Hello::Join { token: token.clone(), role: Role::BulkDown(role), arrived }).unwrap();
            let mut from = &bytes[..];
            let Hello::New { service, device: got, bulk: count, rdma } = receive(&mut from).unwrap() else {
                panic!()
            };
            prop_assert_eq!((service, got, count, rdma), (Service::Jobs, device, bulk, true));
            let Hello::Join { token: same, role: got, arrived: count } = receive(&mut from).unwrap() else {
                panic!()
            };
            prop_assert!(same.is(&token) && got == Role::BulkDown(role) && count == arrived && from.is_empty());
        }
    }
}
