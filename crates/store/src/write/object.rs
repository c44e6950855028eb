//! One object on its way into a draft.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use image::{CHUNK_SIZE, Extent, ObjectKind};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::ChunkWriter;
use super::pipeline::Buffer;
use crate::WriteError;
use crate::error::describe;

/// Takes the bytes of one object, or a part of one, in order. Must be [finished](ObjectWriter::finish): dropped before, it makes the whole writer fail, so
/// that half an object is never published.
///
/// Chunks are hashed and written behind the caller's back. What goes wrong there is returned by the next function that is called of any of the
/// writer's objects, whichever it concerns, and once only.
#[derive(Debug)]
pub struct ObjectWriter<'a> {
    writer: &'a ChunkWriter,
    number: usize,
    what: String,
    buffer: Option<Buffer>,
    /// Bytes taken so far.
    position: u64,
    finished: bool,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(writer: &'a ChunkWriter, kind: ObjectKind, at: u64) -> Self {
        let what = describe(&kind);
        let number = writer.begin_object(Some(kind), at);
        Self { writer, number, what, buffer: None, position: 0, finished: false }
    }

    /// Of nothing: only its chunks are kept.
    pub(super) fn ahead(writer: &'a ChunkWriter) -> Self {
        let (what, number) = ("a file that is written ahead".to_owned(), writer.begin_object(None, 0));
        Self { writer, number, what, buffer: None, position: 0, finished: false }
    }

    /// Adds `len` bytes that are all zero. Costs nothing for whole chunks.
    ///
    /// # Errors
    /// Whatever went wrong with the writer.
    pub fn zeros(&mut self, mut len: u64) -> Result<(), WriteError> {
        while len > 0 {
            if self.buffer.is_none() && len >= CHUNK_SIZE as u64 {
                let run = len - len % CHUNK_SIZE as u64;
                self.writer.add_extent(self.number, Extent::Zero { len: run })?;
                self.position += run;
                len -= run;
            } else {
                let part = usize::try_from(len).unwrap_or(usize::MAX).min(self.room());
                self.next_part(part, |_, room| {
                    room.fill(0);
                    Ok(())
                })?;
                len -= part as u64;
            }
        }
        Ok(())
    }

    /// Adds a part whose bytes are not at hand: a chunk that the store has ([`ChunkWriter::has`]), or zeros.
    ///
    /// # Errors
    /// [`WriteError::Source`] in the middle of a chunk, and whatever went wrong with the writer.
    pub fn known(&mut self, extent: Extent) -> Result<(), WriteError> {
        if let Extent::Zero { len } = extent {
            return self.zeros(len);
        }
        if self.buffer.is_some() {
            return Err(self.source(io::ErrorKind::InvalidInput.into()));
        }
        self.position += extent.len();
        self.writer.add_extent(self.number, extent)
    }

    /// Adds `len` bytes that `source` puts where it is told: it gets the offset from where this call began, and the room to fill. The
    /// shortest way from a device, one piece of at most a chunk after the other.
    ///
    /// # Errors
    /// [`WriteError::Source`] with what `source` said, and whatever went wrong with the writer.
    pub fn fill(
        &mut self,
        len: u64,
        mut source: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(usize::MAX).min(self.room());
            self.next_part(part, |_, room| source(done, room))?;
            done += part as u64;
        }
        Ok(())
    }

    /// Adds all that `source` gives, and says how many bytes that was.
    ///
    /// # Errors
    /// [`WriteError::Source`], and whatever went wrong with the writer.
    pub fn copy_from(&mut self, mut source: impl Read) -> Result<u64, WriteError> {
        let begin = self.position;
        loop {
            let mut got = 0;
            let room = self.room();
            self.with_room(room, |room| {
                got = loop {
                    match source.read(room) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        read => break read?,
                    }
                };
                Ok(got)
            })?;
            if got == 0 {
                return Ok(self.position - begin);
            }
        }
    }

    /// Adds what `source` gives, cut into chunks of these lengths, of which none is longer than a chunk can be. Says how many bytes that was.
    ///
    /// # Errors
    /// [`WriteError::Source`], also where there is less or more, and whatever went wrong with the writer.
    pub fn copy_in_chunks(&mut self, mut source: impl Read, lengths: &[u64]) -> Result<u64, WriteError> {
        let begin = self.position;
        for len in lengths {
            self.fill(*len, |_, room| source.read_exact(room))?;
            self.submit()?;
        }
        match source.read(&mut [0]).map_err(|error| self.source(error))? {
            0 => Ok(self.position - begin),
            _ => Err(self.source(io::Error::other("it is longer than was said"))),
        }
    }

    /// Adds a file's content, from its start to its end; its holes are not read. The file's offset is moved.
    ///
    /// # Errors
    /// [`WriteError::Source`], and whatever went wrong with the writer.
    pub fn copy_file(&mut self, file: &File) -> Result<u64, WriteError> {
        let end = file.metadata().map_err(|error| self.source(error))?.len();
        let mut at = 0;
        while at < end {
            let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(end),
                // A hole up to the end.
                Err(Errno::NXIO) => end,
                // A file system that does not tell holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(error) => return Err(self.source(error.into())),
            };
            self.zeros(data - at)?;
            if data == end {
                break;
            }
            let hole = match rustix::fs::seek(file, SeekFrom::Hole(data)) {
                Ok(hole) => hole.min(end),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => end,
                Err(error) => return Err(self.source(error.into())),
            };
            self.fill(hole - data, |offset, room| file.read_exact_at(room, data + offset))?;
            at = hole;
        }
        Ok(end)
    }

    /// Ends the object.
    ///
    /// # Errors
    /// Whatever went wrong with the writer.
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.submit()?;
        self.finished = true;
        Ok(())
    }

    /// Bytes to the end of the chunk that is being filled.
    fn room(&self) -> usize {
        CHUNK_SIZE - self.buffer.as_ref().map_or(0, Buffer::filled)
    }

    /// Lets `fill` fill exactly `len` bytes, at most [`ObjectWriter::room`].
    fn next_part(
        &mut self,
        len: usize,
        fill: impl FnOnce(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let position = self.position;
        self.with_room(len, |room| fill(position, room).map(|()| room.len()))
    }

    /// Lets `fill` fill up to `len` bytes and say how many, and hands the chunk on when it is full.
    fn with_room(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), WriteError> {
        let writer = self.writer;
        let buffer = self.buffer.get_or_insert_with(|| writer.buffer());
        let filled =
            fill(buffer.room(len)).map_err(|error| WriteError::Source { what: self.what.clone(), error })?;
        buffer.advance(filled);
        self.position += filled as u64;
        if self.room() == 0 { self.submit() } else { Ok(()) }
    }

    fn submit(&mut self) -> Result<(), WriteError> {
        match self.buffer.take() {
            Some(buffer) if buffer.filled() > 0 => self.writer.submit(self.number, buffer),
            _ => Ok(()),
        }
    }

    fn source(&self, error: io::Error) -> WriteError {
        WriteError::Source { what: self.what.clone(), error }
    }
}

/// The same as [`ObjectWriter::copy_from`], for those who push. Errors are [`WriteError`]s in disguise: `downcast` gets them back. Nothing is
/// lost by not calling `flush`.
impl Write for ObjectWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.room());
        let (bytes, _) = bytes.split_at(len);
        self.next_part(len, |_, room| {
            room.copy_from_slice(bytes);
            Ok(())
        })
        .map_err(io::Error::other)?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.writer.fail(WriteError::Unfinished { what: std::mem::take(&mut self.what) });
        }
    }
}
