//! Lines of JSON, none longer than both sides have agreed on.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};

/// The longest line, bytes.
pub const LINE_MAX: usize = 1 << 20;

/// Sends one line.
///
/// # Errors
/// As the stream's; [`io::ErrorKind::InvalidInput`] when the message is too long or cannot be written down, and then nothing was sent.
pub fn say<T: Serialize>(mut to: impl Write, message: &T) -> io::Result<()> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut line = serde_json::to_vec(message).map_err(invalid)?;
    line.push(b'\n');
    if line.len() > LINE_MAX {
        let what = format!("a message of {} bytes; the longest has {LINE_MAX}", line.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    to.write_all(&line)
}

/// Receives lines. What has arrived of a line when a read times out is kept for the next.
#[derive(Debug)]
pub struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// The lines of a stream.
    pub fn of(from: R) -> Self {
        Self { from: BufReader::new(from), line: Vec::new() }
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// As the stream's; [`io::ErrorKind::InvalidData`] for a line that is too long, cut off, or not such a message: nothing that
    /// comes after it can be trusted.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let room = (LINE_MAX - self.line.len()) as u64;
        (&mut self.from).take(room).read_until(b'\n', &mut self.line)?;
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            let what = format!("a line has no end after {} bytes", line.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Gives its pieces one at a time, and times out between them.
    struct Slow(Vec<Option<&'static [u8]>>);

    impl Read for Slow {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            match self.0.pop() {
                None => Ok(0),
                Some(None) => Err(io::ErrorKind::WouldBlock.into()),
                Some(Some(piece)) => {
                    room[..piece.len()].copy_from_slice(piece);
                    Ok(piece.len())
                }
            }
        }
    }

    #[test]
    fn a_time_out_loses_nothing() {
        let mut lines = Lines::of(Slow(vec![Some(b"2]\n"), None, Some(b"[1]\n[")]));
        assert_eq!(lines.receive::<Vec<u8>>().unwrap(), Some(vec![1]));
        assert_eq!(lines.receive::<Vec<u8>>().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(lines.receive::<Vec<u8>>().unwrap(), Some(vec![2]));
        assert_eq!(lines.receive::<Vec<u8>>().unwrap(), None);
    }

    #[test]
    fn what_is_too_long_is_neither_sent_nor_taken() {
        let long = "x".repeat(LINE_MAX);
        let mut sent = Vec::new();
        assert_eq!(say(&mut sent, &long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(sent.is_empty());
        let line = serde_json::to_vec(&long).unwrap();
        assert_eq!(Lines::of(&line[..]).receive::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            Lines::of(&b"[1"[..]).receive::<Vec<u8>>().unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
