//! `dormouse cat`

use super::store_access;
use crate::flags::Cat;
use checkpoint::{Failure, Kind, find_image, open_store, read_failure};
use std::io::{self, ErrorKind, IsTerminal, Write};
use store::{ReadError, find_object};

/// Writes an object to standard output. Who reads it may stop when it has had enough.
pub fn run(flags: &Cat) -> Result<(), Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let id = find_image(&store, &flags.image)?;
    let image = store.open_foreign_image(&id).map_err(read_failure)?;
    let object = find_object(image.manifest(), &flags.object);
    let object = object.map_err(|error| Failure::new(Kind::NotFound, error.to_string()))?;
    let (offset, len) = (flags.offset.unwrap_or(0), object.len());
    if offset > len {
        let message = format!("{} has {len} bytes, --offset {offset} is behind its end", flags.object);
        return Err(Failure::new(Kind::Usage, message));
    }
    let end = flags.length.map_or(len, |length| offset.saturating_add(length).min(len));
    let out = io::stdout();
    let guarded = out.is_terminal() && !flags.force;
    let mut out = Output { out: out.lock(), guarded };
    let written = image.copy_range_to(&object.kind, offset..end, &mut out);
    match written.and_then(|_| {
        let object = flags.object.clone();
        out.flush().map_err(|error| ReadError::Sink { object, offset: end, error })
    }) {
        Err(ReadError::Sink { error, .. }) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(ReadError::Sink { error, .. }) if error.kind() == ErrorKind::InvalidData => {
            Err(Failure::new(Kind::Failed, error.to_string()))
        }
        done => done.map_err(read_failure),
    }
}

/// Standard output, into which nothing goes that a terminal would take for a command.
struct Output<W> {
    out: W,
    guarded: bool,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.guarded && bytes.iter().any(|byte| byte.is_ascii_control() && !b"\n\t".contains(byte)) {
            let message = "it is not text, which a terminal may take amiss: send it to a file or a program, or give --force";
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_text_only() {
        let mut out = Output { out: Vec::new(), guarded: true };
        out.write_all("a line\tof text, für alle\n".as_bytes()).unwrap();
        for bad in [&b"\0"[..], b"\x1b[2J", b"text\x07", b"\x7f"] {
            let error = out.write_all(bad).unwrap_err();
            assert!(error.to_string().contains("--force"), "{error}");
        }
        out.guarded = false;
        out.write_all(b"\0\x1b").unwrap();
        assert!(out.out.ends_with(b"alle\n\0\x1b"));
    }
}
