//! A file that is written past the page cache (`O_DIRECT`), in blocks of which several are under way at a time: what an image writes would push out of memory what
//! the job and others read, and one block after the other leaves a disk idle in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{OFlags, StatFs, fstatfs};
use rustix::io::Errno;

use super::MediaFile;

/// What is written at a time.
const BLOCK: usize = 1 << 20;
/// Where blocks and their buffers begin, and what they are a multiple of: what disks and file systems ask for, at most.
const ALIGNMENT: usize = 4096;
/// How many blocks of a file are under way at a time: of several files there are as many more.
const UNDER_WAY: usize = 2;

/// A file that may become long: its first block is gathered, and what is longer is written directly where the file system takes that.
#[derive(Debug)]
pub(super) struct LongFile {
    path: PathBuf,
    file: File,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Not a block yet.
    Short(Vec<u8>),
    Direct(Box<Direct>),
    /// Through the page cache.
    Cached,
}

impl LongFile {
    /// `file` is new, and lies at `path`.
    pub(super) fn new(path: PathBuf, file: File) -> Self {
        Self { path, file, way: Way::Short(Vec::new()) }
    }

    /// The same, through the page cache.
    pub(super) fn cached(path: PathBuf, file: File) -> Self {
        Self { path, file, way: Way::Cached }
    }
}

impl MediaFile for LongFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.way {
            Way::Short(gathered) if gathered.len() + bytes.len() < BLOCK => {
                gathered.extend_from_slice(bytes);
                Ok(())
            }
            Way::Short(gathered) => {
                let gathered = std::mem::take(gathered);
                match Direct::open(&self.path, &self.file)? {
                    Some(direct) => {
                        self.way = Way::Direct(Box::new(direct));
                        self.write_all(&gathered)?;
                        self.write_all(bytes)
                    }
                    None => {
                        self.way = Way::Cached;
                        Write::write_all(&mut self.file, &gathered)?;
                        Write::write_all(&mut self.file, bytes)
                    }
                }
            }
            Way::Direct(direct) => direct.write_all(bytes),
            Way::Cached => Write::write_all(&mut self.file, bytes),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.way {
            Way::Short(gathered) => {
                let gathered = std::mem::take(gathered);
                Write::write_all(&mut self.file, &gathered)?;
                self.way = Way::Cached;
            }
            Way::Direct(direct) => {
                // The end is no whole block: it goes through the page cache, when nothing else is under way.
                let (end, rest) = direct.finish()?;
                self.file.write_all_at(&rest, end)?;
            }
            Way::Cached => {}
        }
        self.file.sync_all()
    }
}

/// A buffer whose part from `start` on lies as the file system wants it.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    start: usize,
    filled: usize,
}

impl Block {
    fn new() -> Self {
        let bytes = vec![0; BLOCK + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, filled: 0 }
    }

    /// Takes what there is room for, and says how much that was.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let at = self.start + self.filled;
        let room = self.start + BLOCK - at;
        let len = bytes.len().min(room);
        self.bytes[at..at + len].copy_from_slice(&bytes[..len]);
        self.filled += len;
        len
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }
}

/// The threads that write blocks.
#[derive(Debug)]
struct Direct {
    blocks: Option<SyncSender<(u64, Block)>>,
    /// Blocks to use again, or what went wrong with one.
    written: Receiver<io::Result<Block>>,
    threads: Vec<JoinHandle<()>>,
    /// How many blocks there are.
    made: usize,
    filling: Option<Block>,
    /// Where the block that is being filled belongs.
    at: u64,
}

impl Direct {
    /// Opens a file for writing past the page cache that is open as `cached`; `None` where the file system does not take that, or has nothing behind it.
    fn open(path: &Path, cached: &File) -> io::Result<Option<Self>> {
        if fstatfs(cached).is_ok_and(|file_system| is_memory(&file_system)) {
            return Ok(None);
        }
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
        let file = match OpenOptions::new().write(true).custom_flags(direct).open(path) {
            Err(error) if is_not_taken(&error) => return Ok(None),
            opened => Arc::new((opened?, cached.try_clone()?)),
        };
        let (blocks, queue) = sync_channel::<(u64, Block)>(0);
        let (tell, written) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::with_capacity(UNDER_WAY);
        for _ in 0..UNDER_WAY {
            let (file, queue, tell) = (Arc::clone(&file), Arc::clone(&queue), tell.clone());
            let work = move || write((&file.0, &file.1), &queue, &tell);
            threads.push(std::thread::Builder::new().name("writing".into()).spawn(work)?);
        }
        let blocks = Some(blocks);
        Ok(Some(Self { blocks, written, threads, made: 0, filling: None, at: 0 }))
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut block = match self.filling.take() {
                Some(block) => block,
                None => self.block()?,
            };
            let taken = block.take(bytes);
            bytes = &bytes[taken..];
            if block.filled < BLOCK {
                self.filling = Some(block);
            } else {
                let place = self.at;
                self.at += BLOCK as u64;
                let sent = self.blocks.as_ref().map(|blocks| blocks.send((place, block)));
                sent.and_then(Result::ok).ok_or_else(ended)?;
            }
        }
        Ok(())
    }

    /// An empty block: a new one, or one that has been written.
    fn block(&mut self) -> io::Result<Block> {
        // One is filled while the others are under way.
        if self.made <= UNDER_WAY {
            self.made += 1;
            return Ok(Block::new());
        }
        let mut block = self.written.recv().map_err(|_| ended())??;
        block.filled = 0;
        Ok(block)
    }

    /// Waits for all that is under way; what is left to write, and where.
    fn finish(&mut self) -> io::Result<(u64, Vec<u8>)> {
        self.join()?;
        self.written.try_iter().try_for_each(|written| written.map(drop))?;
        let rest = self.filling.take().map(|block| block.content().to_vec());
        Ok((self.at, rest.unwrap_or_default()))
    }

    /// Lets every thread write what it has.
    fn join(&mut self) -> io::Result<()> {
        self.blocks = None;
        // All are waited for.
        let panicked = self.threads.drain(..).filter_map(|thread| thread.join().err()).count();
        if panicked == 0 { Ok(()) } else { Err(ended()) }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // Who has not asked for the end does not want the file.
        let _ = self.join();
    }
}

/// Whether a file system is memory: Linux takes direct writes there since 6.6, and copies as ever.
pub(super) fn is_memory(file_system: &StatFs) -> bool {
    file_system.f_type == libc::TMPFS_MAGIC
}

fn ended() -> io::Error {
    io::Error::other("the threads that write have ended")
}

/// Whether an error says that a file cannot be written this way.
fn is_not_taken(error: &io::Error) -> bool {
    let codes = [Errno::INVAL, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// A thread that writes blocks until there are no more.
fn write(
    (direct, cached): (&File, &File),
    queue: &Mutex<Receiver<(u64, Block)>>,
    tell: &Sender<io::Result<Block>>,
) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((at, block)) = next else { return };
        let written = match direct.write_all_at(block.content(), at) {
            // It was opened so, and yet is not written so.
            Err(error) if is_not_taken(&error) => cached.write_all_at(block.content(), at),
            written => written,
        };
        // Whoever has given the file up does not listen.
        let _ = tell.send(written.map(|()| block));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn create(path: &Path) -> LongFile {
        let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
        LongFile::new(path.to_owned(), file)
    }

    #[test]
    fn a_file_holds_what_was_written_however_long_and_in_whatever_pieces() {
        // A disk's file system takes it; a tmpfs may not.
        for folder in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let lengths = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 9 * BLOCK, 12 * BLOCK + 4097];
            for (number, length) in lengths.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|at| (at / 251 + at * 7 + number) as u8).collect();
                for piece in [700_001, 3 * BLOCK] {
                    let path = folder.path().join(format!("{length}-{piece}"));
                    let mut file = create(&path);
                    bytes.chunks(piece).for_each(|piece| file.write_all(piece).unwrap());
                    file.sync().unwrap();
                    assert!(std::fs::read(&path).unwrap() == bytes, "{length} bytes in pieces of {piece}");
                }
            }
        }
    }

    #[test]
    fn a_full_disk_is_told_of_before_the_file_is_durable() {
        let path = Path::new("/dev/full");
        for blocks in [1, 2, 40] {
            let full = OpenOptions::new().write(true).open(path).unwrap();
            let mut file = LongFile::new(path.to_owned(), full);
            let bytes = vec![1; BLOCK];
            let written = (0..blocks).try_for_each(|_| file.write_all(&bytes)).and_then(|()| file.sync());
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull, "{blocks} blocks");
        }
    }

    #[test]
    fn who_gives_a_file_up_waits_for_nothing_but_what_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = create(&folder.path().join("given-up"));
        file.write_all(&vec![1; 3 * BLOCK]).unwrap();
        drop(file);
    }
}
