//! The job's *board*: a file on its tmpfs on which the supervisor writes what the programs of the job may know of it, above all what has
//! become of the checkpoints that they have asked for ([`crate::hello::ask_job`]). No connection can stay open across a checkpoint, so
//! whoever asks is given a ticket, and looks.
//!
//! Only the supervisor writes, with calls rather than through memory: a program of the job may do to the file what it likes, and harms
//! nobody else. Programs map it to be read. It is part of every image like the other files there; a restart brings it up to date
//! before the job's processes run. Bytes are in `docs/wire-protocol.md`.

use crate::map::Mapping;
use crate::{Result, TransportError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Its name on the job's tmpfs.
pub const BOARD: &str = "board";
/// The most processes of a job whose convenient points are known.
pub const POINTS_MAX: usize = 32;
/// The most tickets whose outcomes are on the board: the next one takes the place of the oldest that nobody waits for.
pub const TICKETS: usize = 64;
/// The longest text of an outcome, bytes.
pub const TEXT_MAX: usize = SLOT_BYTES - slot::TEXT;

const MAGIC: u64 = u64::from_le_bytes(*b"DORMASKS");
/// An image's id, in hexadecimal digits.
const ID_BYTES: usize = 32;

/// Offsets in the file.
mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const WANTED: usize = 12;
    pub const RESTARTS: usize = 16;
    pub const NEXT: usize = 24;
    pub const IMAGE: usize = 32;
    pub const POINTS: usize = 128;
    pub const SLOTS: usize = 4096;
}

/// Offsets in the place of a ticket.
mod slot {
    pub const TICKET: usize = 0;
    pub const STATE: usize = 8;
    pub const CODE: usize = 12;
    pub const IMAGE: usize = 16;
    pub const TEXT_LEN: usize = 48;
    pub const TEXT: usize = 52;
}

const SLOT_BYTES: usize = 1024;
const BYTES: usize = at::SLOTS + TICKETS * SLOT_BYTES;

/// What has become of what was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// The checkpoint is taken and the job goes on; its image is being written.
    Taken,
    /// The image is there and safe.
    Published {
        /// Its id.
        image: String,
    },
    /// There is no image.
    Failed {
        /// The exit code that `dormouse checkpoint` would have had.
        code: u32,
        /// Why, for people.
        text: String,
    },
    /// The job has been restarted from that checkpoint.
    Restarted {
        /// From this image.
        image: String,
    },
    /// No checkpoint is wanted, or not any more.
    Unwanted,
    /// Others have been given tickets since, too many to keep this one.
    Forgotten,
}

impl Outcome {
    fn state(&self) -> u32 {
        match self {
            Self::Forgotten => 0,
            Self::Pending => 1,
            Self::Taken => 2,
            Self::Published { .. } => 3,
            Self::Failed { .. } => 4,
            Self::Restarted { .. } => 5,
            Self::Unwanted => 6,
        }
    }

    /// Whether nothing more becomes of it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Pending | Self::Taken)
    }
}

/// The board as a program sees it.
pub struct Board(Mapping);

impl Board {
    /// Maps the board at `path`; `None` where there is none, or one of another version.
    #[must_use]
    pub fn open(path: &Path) -> Option<Self> {
        let board = Self(Mapping::open_to_read(path, BYTES).ok()?);
        let is_ours = board.long(at::MAGIC).load(Ordering::Acquire) == MAGIC
            && board.word(at::VERSION).load(Ordering::Relaxed) == wire::ASK_VERSION;
        is_ours.then_some(board)
    }

    /// Not 0 while a checkpoint is to be taken at a point that suits the program.
    #[must_use]
    pub fn wanted(&self) -> &AtomicU32 {
        self.word(at::WANTED)
    }

    /// How often this run has been restarted.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.word(at::RESTARTS).load(Ordering::Acquire)
    }

    /// The image that it was restarted from, if it was.
    #[must_use]
    pub fn image(&self) -> Option<String> {
        self.id(at::IMAGE)
    }

    /// What has become of a ticket.
    #[must_use]
    pub fn outcome(&self, ticket: u64) -> Outcome {
        let base = place(ticket);
        let is_there = || self.long(base + slot::TICKET).load(Ordering::Acquire) == ticket;
        if !is_there() {
            return Outcome::Forgotten;
        }
        let image = || self.id(base + slot::IMAGE).unwrap_or_default();
        let outcome = match self.word(base + slot::STATE).load(Ordering::Acquire) {
            1 => Outcome::Pending,
            2 => Outcome::Taken,
            3 => Outcome::Published { image: image() },
            4 => Outcome::Failed {
                code: self.word(base + slot::CODE).load(Ordering::Relaxed),
                text: self.text(base),
            },
            5 => Outcome::Restarted { image: image() },
            6 => Outcome::Unwanted,
            _ => Outcome::Forgotten,
        };
        // What was read while its place was given away is nobody's.
        if is_there() { outcome } else { Outcome::Forgotten }
    }

    fn id(&self, offset: usize) -> Option<String> {
        let bytes = self.bytes(offset, ID_BYTES);
        let is_id = bytes.iter().all(u8::is_ascii_hexdigit);
        is_id.then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn text(&self, base: usize) -> String {
        let len = self.word(base + slot::TEXT_LEN).load(Ordering::Relaxed) as usize;
        String::from_utf8_lossy(&self.bytes(base + slot::TEXT, len.min(TEXT_MAX))).into_owned()
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len).map(|each| self.at::<AtomicU8>(each).load(Ordering::Relaxed)).collect()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.at(offset)
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        self.at(offset)
    }

    /// An atomic of the board, which it holds as a whole and aligned.
    fn at<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= BYTES && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: it lies within the mapping, which begins at a page and lives as long as `self`; it is only read, and any bytes are an atomic
        // number.
        unsafe { self.0.base().add(offset).cast().as_ref() }
    }
}

fn place(ticket: u64) -> usize {
    at::SLOTS + number(ticket) * SLOT_BYTES
}

/// Which place that is.
fn number(ticket: u64) -> usize {
    (ticket % TICKETS as u64) as usize
}

/// The next ticket; 0 is none.
fn after(ticket: u64) -> u64 {
    ticket.wrapping_add(1).max(1)
}

/// The board as the supervisor has it.
#[derive(Debug)]
pub struct BoardFile {
    file: File,
    path: PathBuf,
    next: u64,
    points: Vec<u32>,
    /// The ticket that has each place, 0 for none. What stands in the file about that is not looked at: the job may have written it.
    owners: [u64; TICKETS],
}

impl BoardFile {
    /// Makes the board of a new job.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn create(path: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let file = rustix::fs::open(path, flags, mode).map_err(TransportError::io("cannot create", path))?;
        // All of it, so that who reads it never needs room that there is not.
        let mut bytes = vec![0; BYTES];
        put(&mut bytes, at::MAGIC, &MAGIC.to_le_bytes());
        put(&mut bytes, at::VERSION, &wire::ASK_VERSION.to_le_bytes());
        let (file, path) = (file.into(), path.to_owned());
        let board = Self { file, path, next: 1, points: Vec::new(), owners: [0; TICKETS] };
        board.write(0, &bytes)?;
        Ok(board)
    }

    /// Takes over the board of a job that is being restarted from `image`: who waited for a checkpoint when that was taken has got it. One that
    /// was taken by a Dormouse without boards gets one.
    ///
    /// # Errors
    /// [`TransportError::Io`], [`TransportError::NotASession`] when the job has put something else in its place.
    pub fn take_over(path: &Path, image: &str) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => {
                let board = Self::create(path)?;
                board.restarted(1, image)?;
                return Ok(board);
            }
            Err(error) => return Err(TransportError::io("cannot open", path)(error)),
        };
        let strange = |what, value| TransportError::NotASession { path: path.to_owned(), what, value };
        let meta = file.metadata().map_err(|error| failed("cannot stat", path, &error))?;
        // The job's processes have mapped so much of it.
        if !meta.is_file() || meta.len() != BYTES as u64 {
            return Err(strange("size", meta.len()));
        }
        let mut bytes = vec![0; BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(|error| failed("cannot read", path, &error))?;
        if long(&bytes, at::MAGIC) != MAGIC {
            return Err(strange("magic", long(&bytes, at::MAGIC)));
        }
        if word(&bytes, at::VERSION) != wire::ASK_VERSION {
            return Err(strange("version", word(&bytes, at::VERSION).into()));
        }
        for base in (0..TICKETS as u64).map(place) {
            let (pending, taken) = (Outcome::Pending.state(), Outcome::Taken.state());
            if [pending, taken].contains(&word(&bytes, base + slot::STATE)) {
                put_id(&mut bytes, base + slot::IMAGE, image);
                let restarted = Outcome::Restarted { image: String::new() };
                put(&mut bytes, base + slot::STATE, &restarted.state().to_le_bytes());
            }
        }
        put(&mut bytes, at::WANTED, &[0; 4]);
        let points = (0..POINTS_MAX).map(|each| word(&bytes, at::POINTS + 4 * each));
        let points = points.filter(|pid| *pid != 0).collect();
        let (next, restarts) = (long(&bytes, at::NEXT).max(1), word(&bytes, at::RESTARTS));
        let board = Self { file, path: path.to_owned(), next, points, owners: [0; TICKETS] };
        board.write(0, &bytes)?;
        board.restarted(restarts.saturating_add(1), image)?;
        Ok(board)
    }

    /// Gives a ticket, which has `outcome` so far; `None` when there is no place but those of `held` tickets, which somebody waits for.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn give(&mut self, outcome: &Outcome, held: impl Fn(u64) -> bool) -> Result<Option<u64>> {
        let numbers = std::iter::successors(Some(self.next), |ticket| Some(after(*ticket)));
        let free = numbers.take(TICKETS).find(|ticket| {
            let owner = self.owners[number(*ticket)];
            owner == 0 || !held(owner)
        });
        let Some(ticket) = free else { return Ok(None) };
        let next = after(ticket);
        let base = place(ticket);
        // From here on nothing is told to the former one, whatever fails.
        self.owners[number(ticket)] = ticket;
        // Whoever reads the former one's has nothing, until this one's is whole.
        self.write(base + slot::STATE, &[0; 4])?;
        self.write(base + slot::TICKET, &ticket.to_le_bytes())?;
        self.write(at::NEXT, &next.to_le_bytes())?;
        self.tell(ticket, outcome)?;
        self.next = next;
        Ok(Some(ticket))
    }

    /// That has become of a ticket, which is told if its place has not been given to another.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn tell(&self, ticket: u64, outcome: &Outcome) -> Result<()> {
        if self.owners[number(ticket)] != ticket {
            return Ok(());
        }
        let base = place(ticket);
        let mut bytes = vec![0; SLOT_BYTES];
        match outcome {
            Outcome::Published { image } | Outcome::Restarted { image } => {
                put_id(&mut bytes, slot::IMAGE, image);
            }
            Outcome::Failed { code, text } => {
                put(&mut bytes, slot::CODE, &code.to_le_bytes());
                let mut end = text.len().min(TEXT_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                put(&mut bytes, slot::TEXT_LEN, &(end as u32).to_le_bytes());
                put(&mut bytes, slot::TEXT, &text.as_bytes()[..end]);
            }
            Outcome::Pending | Outcome::Taken | Outcome::Unwanted | Outcome::Forgotten => {}
        }
        self.write(base + slot::CODE, &bytes[slot::CODE..])?;
        // Last: all else can be read then.
        self.write(base + slot::STATE, &outcome.state().to_le_bytes())
    }

    /// Whether a checkpoint is to be taken at a point that suits the program.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn want(&self, wanted: bool) -> Result<()> {
        self.write(at::WANTED, &u32::from(wanted).to_le_bytes())
    }

    /// The processes that have such points, by their numbers in the job.
    #[must_use]
    pub fn points(&self) -> &[u32] {
        &self.points
    }

    /// Process `pid` has such points. Of too many the first is forgotten: it may have ended long ago.
    ///
    /// # Errors
    /// [`TransportError::Io`].
    pub fn has_points(&mut self, pid: u32) -> Result<()> {
        self.points.retain(|each| *each != pid);
        if self.points.len() >= POINTS_MAX {
            self.points.remove(0);
        }
        self.points.push(pid);
        let mut bytes = vec![0; POINTS_MAX * 4];
        for (place, pid) in bytes.chunks_exact_mut(4).zip(&self.points) {
            place.copy_from_slice(&pid.to_le_bytes());
        }
        self.write(at::POINTS, &bytes)
    }

    fn restarted(&self, restarts: u32, image: &str) -> Result<()> {
        let mut id = vec![0; ID_BYTES];
        put_id(&mut id, 0, image);
        self.write(at::IMAGE, &id)?;
        self.write(at::RESTARTS, &restarts.to_le_bytes())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, offset as u64);
        written.map_err(|error| failed("cannot write", &self.path, &error))
    }
}

fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> TransportError {
    TransportError::io(operation, path)(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// An image's id; what is none is left out.
fn put_id(bytes: &mut [u8], offset: usize, id: &str) {
    if id.len() == ID_BYTES {
        put(bytes, offset, id.as_bytes());
    }
}

fn word(bytes: &[u8], offset: usize) -> u32 {
    bytes[offset..].first_chunk().copied().map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..].first_chunk().copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const IMAGE: &str = "00112233445566778899aabbccddeeff";

    fn published() -> Outcome {
        Outcome::Published { image: IMAGE.into() }
    }

    /// A ticket, where nobody waits for another.
    fn given(file: &mut BoardFile, outcome: &Outcome) -> u64 {
        file.give(outcome, |_| false).unwrap().unwrap()
    }

    /// Or else somebody would take another's image for his own.
    #[test]
    fn nothing_is_told_in_a_place_that_was_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(BOARD);
        let mut file = BoardFile::create(&path).unwrap();
        let board = Board::open(&path).unwrap();
        let (first, kept) = (given(&mut file, &Outcome::Pending), given(&mut file, &Outcome::Pending));
        let others: Vec<u64> = (0..2 * TICKETS)
            .map(|_| file.give(&Outcome::Unwanted, |ticket| ticket == kept).unwrap().unwrap())
            .collect();
        let later = others.iter().copied().find(|each| number(*each) == number(first)).unwrap();
        file.tell(first, &published()).unwrap();
        assert_eq!(board.outcome(first), Outcome::Forgotten);
        assert!(others.iter().all(|each| number(*each) != number(kept)), "its place is kept");
        file.tell(later, &published()).unwrap();
        file.tell(kept, &published()).unwrap();
        assert_eq!(board.outcome(kept), published());
        assert_eq!(board.outcome(others[others.len() - 1]), Outcome::Unwanted);
        // Nobody gets the place of one that is waited for.
        assert_eq!(file.give(&Outcome::Pending, |_| true).unwrap(), None);
        assert!(given(&mut file, &Outcome::Pending) > others[others.len() - 1]);
    }

    #[test]
    fn what_is_written_is_read_and_what_nobody_waits_for_any_more_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(BOARD);
        assert!(Board::open(&path).is_none());
        let mut file = BoardFile::create(&path).unwrap();
        let board = Board::open(&path).unwrap();
        assert_eq!((board.restarts(), board.image()), (0, None));
        let first = given(&mut file, &Outcome::Pending);
        assert_eq!(board.outcome(first), Outcome::Pending);
        let failed = Outcome::Failed { code: 10, text: "ü".repeat(TEXT_MAX) };
        for outcome in [Outcome::Taken, published(), Outcome::Unwanted] {
            file.tell(first, &outcome).unwrap();
            assert_eq!(board.outcome(first), outcome);
        }
        file.tell(first, &failed).unwrap();
        let Outcome::Failed { code: 10, text } = board.outcome(first) else { panic!("it has failed") };
        assert!(text.len() <= TEXT_MAX && text.chars().all(|each| each == 'ü') && text.len() > 900);
        let others: Vec<u64> = (0..TICKETS).map(|_| given(&mut file, &Outcome::Pending)).collect();
        assert_eq!(board.outcome(first), Outcome::Forgotten);
        assert!(others.iter().all(|each| board.outcome(*each) == Outcome::Pending));
        assert_eq!(board.outcome(u64::MAX), Outcome::Forgotten);
        file.want(true).unwrap();
        assert_eq!(board.wanted().load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_waited_for_a_checkpoint_was_restarted_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(BOARD);
        let mut file = BoardFile::create(&path).unwrap();
        let (done, waits) = (given(&mut file, &Outcome::Unwanted), given(&mut file, &Outcome::Pending));
        file.want(true).unwrap();
        file.has_points(7).unwrap();
        file.has_points(9).unwrap();
        let board = Board::open(&path).unwrap();
        for restarts in 1..3 {
            let mut file = BoardFile::take_over(&path, IMAGE).unwrap();
            assert_eq!(file.points(), [7, 9]);
            assert_eq!((board.restarts(), board.image().as_deref()), (restarts, Some(IMAGE)));
            assert_eq!(board.outcome(waits), Outcome::Restarted { image: IMAGE.into() });
            assert_eq!(board.outcome(done), Outcome::Unwanted);
            assert_eq!(board.wanted().load(Ordering::Relaxed), 0);
            assert_eq!(given(&mut file, &Outcome::Unwanted), waits + u64::from(restarts));
        }
        std::fs::remove_file(&path).unwrap();
        BoardFile::take_over(&path, IMAGE).unwrap();
        assert_eq!(Board::open(&path).unwrap().restarts(), 1);
    }

    /// A program of the job may do to the file what it likes.
    #[test]
    fn what_a_program_has_made_of_it_harms_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(BOARD);
        let mut file = BoardFile::create(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
        given(&mut file, &Outcome::Pending);
        for odd in [vec![], vec![0xff; BYTES], vec![0; BYTES], vec![0; BYTES + 1]] {
            std::fs::write(&path, odd).unwrap();
            assert!(BoardFile::take_over(&path, IMAGE).is_err());
            assert!(Board::open(&path).is_none());
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(BoardFile::take_over(&path, IMAGE).is_err() && BoardFile::create(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(BoardFile::take_over(&path, IMAGE).is_err() && Board::open(&path).is_none());

        // All but the magic is any bytes.
        std::fs::remove_file(&path).unwrap();
        drop(BoardFile::create(&path).unwrap());
        let mut bytes = vec![0xff; BYTES];
        bytes[..12].copy_from_slice(&std::fs::read(&path).unwrap()[..12]);
        std::fs::write(&path, &bytes).unwrap();
        let mut file = BoardFile::take_over(&path, IMAGE).unwrap();
        assert_eq!(file.points().len(), POINTS_MAX);
        file.has_points(3).unwrap();
        assert_eq!(file.points().len(), POINTS_MAX);
        let ticket = given(&mut file, &published());
        assert_eq!(Board::open(&path).unwrap().outcome(ticket), published());
        assert_eq!(Board::open(&path).unwrap().restarts(), u32::MAX);
    }
}
