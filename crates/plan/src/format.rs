//! A profile as a file: `docs/profile-format.md`.

use crate::Error;
use crate::profile::{Boundary, CpuInterval, MAX_KERNELS, MAX_NAME, Profile};
use crate::runs::{MAX_DEPTH, Node, Runs, Step};
use crate::units::Nanos;

/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// How a profile begins.
pub const MAGIC: [u8; 8] = *b"\x89DMSPRF\n";
/// Magic, version, flags, length, hash.
pub const HEADER_LEN: usize = 56;
const HASHED: usize = 24;

/// The file's bytes.
#[must_use]
pub fn encode(profile: &Profile) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, profile.end().0);
    put(&mut body, profile.kernels().len() as u64);
    for name in profile.kernels() {
        put(&mut body, name.len() as u64);
        body.extend_from_slice(name.as_bytes());
    }
    put_nodes(&mut body, profile.device().nodes());
    put_nodes(&mut body, profile.cpu().nodes());
    seal(&body)
}

/// A body with the header before it.
#[must_use]
pub fn seal(body: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_LEN + body.len());
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&[0; 6]);
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let hash = blake3::Hasher::new().update(&file).update(body).finalize();
    file.extend_from_slice(hash.as_bytes());
    file.extend_from_slice(body);
    file
}

/// Reads a file's bytes. What it allocates is proportional to them, however many boundaries their loops stand for.
///
/// # Errors
/// [`Error::Damaged`] with what is wrong, [`Error::Version`] for another version.
pub fn decode(file: &[u8]) -> Result<Profile, Error> {
    if !file.starts_with(&MAGIC) {
        return Err(Error::damaged("this is no profile: it does not begin as one"));
    }
    let Some((header, body)) = file.split_at_checked(HEADER_LEN) else {
        return Err(Error::damaged(format!(
            "the profile is truncated: {} bytes are less than its header",
            file.len()
        )));
    };
    let mut fields = Reader { bytes: &header[MAGIC.len()..HASHED] };
    let version = fields.fixed::<2>().map(u16::from_le_bytes)?;
    let flags = fields.fixed::<6>()?;
    let length = fields.fixed::<8>().map(u64::from_le_bytes)?;
    // The version first: what follows may be different in another.
    if version != VERSION {
        let advice = "record it again with this Dormouse (`dormouse run --profile`), or use that one";
        return Err(Error::Version { what: "profile", found: version.into(), known: VERSION.into(), advice });
    }
    if length != body.len() as u64 {
        let how = if length > body.len() as u64 { "truncated" } else { "followed by something else" };
        return Err(Error::damaged(format!(
            "the profile is {how}: its body has {} bytes of {length}",
            body.len()
        )));
    }
    let hash = blake3::Hasher::new().update(&header[..HASHED]).update(body).finalize();
    if hash.as_bytes()[..] != header[HASHED..] || flags != [0; 6] {
        return Err(Error::damaged("the profile is damaged: its checksum is another"));
    }
    let mut reader = Reader { bytes: body };
    let end = Nanos(reader.number()?);
    let count = reader.count(MAX_KERNELS)?;
    let mut kernels = Vec::with_capacity(count);
    for _ in 0..count {
        let len = reader.count(MAX_NAME)?;
        let name = reader.take(len)?;
        let name = std::str::from_utf8(name).map_err(|_| Error::damaged("a kernel's name is not UTF-8"))?;
        kernels.push(name.to_owned());
    }
    let device = runs(reader.nodes(0)?)?;
    let cpu = runs(reader.nodes(0)?)?;
    if !reader.bytes.is_empty() {
        return Err(Error::damaged("the profile has bytes behind its end"));
    }
    Profile::new(kernels, device, cpu, end)
}

fn runs<S: Step>(nodes: Vec<Node<S>>) -> Result<Runs<S>, Error> {
    Runs::new(nodes).ok_or(Error::Overflow { what: "times" })
}

/// A step's fields, in both directions.
trait Fields: Step {
    fn put(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader) -> Result<Self, Error>;
}

impl Fields for Boundary {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { after, kernel, allocated, live, changed, idle } = *self;
        let sampled = u64::from(changed.is_some());
        put(out, u64::from(kernel) << 1 | sampled);
        for field in [after.0, allocated, live, idle.0] {
            put(out, field);
        }
        changed.into_iter().for_each(|changed| put(out, changed));
    }

    fn read(reader: &mut Reader) -> Result<Self, Error> {
        let first = reader.number()?;
        let kernel =
            u32::try_from(first >> 1).map_err(|_| Error::damaged("a kernel's number is too large"))?;
        let after = Nanos(reader.number()?);
        let (allocated, live) = (reader.number()?, reader.number()?);
        let idle = Nanos(reader.number()?);
        let changed = if first & 1 == 1 { Some(reader.number()?) } else { None };
        Ok(Self { after, kernel, allocated, live, changed, idle })
    }
}

impl Fields for CpuInterval {
    fn put(&self, out: &mut Vec<u8>) {
        for field in [self.after.0, self.bytes, self.idle.0] {
            put(out, field);
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Error> {
        let (after, bytes, idle) = (reader.number()?, reader.number()?, reader.number()?);
        Ok(Self { after: Nanos(after), bytes, idle: Nanos(idle) })
    }
}

fn put_nodes<S: Fields>(out: &mut Vec<u8>, nodes: &[Node<S>]) {
    put(out, nodes.len() as u64);
    for node in nodes {
        match node {
            Node::Step(step) => {
                put(out, 0);
                step.put(out);
            }
            Node::Loop { body, times } => {
                put(out, u64::from(*times));
                put_nodes(out, body);
            }
        }
    }
}

/// LEB128: seven bits a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let short = || Error::damaged("the profile ends in the middle of something");
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or_else(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.take(N)?);
        Ok(fixed)
    }

    fn number(&mut self) -> Result<u64, Error> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::damaged("a number of the profile has more than 64 bits"))
    }

    /// Of things of a byte at least each.
    fn count(&mut self, most: usize) -> Result<usize, Error> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > most.min(self.bytes.len()) {
            return Err(Error::damaged(format!(
                "the profile tells of {count} things that it has no room for"
            )));
        }
        Ok(count)
    }

    fn nodes<S: Fields>(&mut self, depth: usize) -> Result<Vec<Node<S>>, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::damaged("the profile has loops within loops without end"));
        }
        // A node takes four bytes at least, or is a loop of nothing, which is none.
        let count = self.count(usize::MAX)?;
        let mut nodes = Vec::new();
        for _ in 0..count {
            let times = self.number()?;
            nodes.push(if times == 0 {
                Node::Step(S::read(self)?)
            } else {
                let times = u32::try_from(times).map_err(|_| Error::damaged("a loop is too long"))?;
                let body = self.nodes(depth + 1)?;
                if body.is_empty() {
                    return Err(Error::damaged("the profile has a loop of nothing"));
                }
                Node::Loop { body, times }
            });
        }
        Ok(nodes)
    }
}
