//! The side that a job moves to: carries out what is asked, in order; what is written to files beside that, file by file.

use crate::messages::{Answer, Ask, LOAD_MAX, Told, What, greet, receive_into, send};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use store::media::{Media, MediaFile, MediaLock, MediaRead};
use wires::Wires;

/// The most files and locks that are open at a time.
const OPEN_MAX: usize = 1024;
/// The longest path, and the most parts of one.
const PATH_MAX: usize = 255;
const PARTS_MAX: usize = 4;

/// Lets a client use the folder that `media` is, and answers its questions, until it is gone. What it had open or held is closed and free then.
///
/// # Errors
/// When it speaks another version, or nonsense, or is lost.
pub fn serve(wires: Wires, media: &dyn Media, say: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let Wires { mut control_out, mut control_in, bulk_in, hang_up, patience, .. } = wires;
    greet(&mut *control_out, &mut *control_in)?;
    let (to, files) = (Mutex::new(control_out), Files::default());
    let (end, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (says_to, every) = (&to, patience.says_every());
        let says = scope.spawn(move || keep_saying(says_to, &is_over, every));
        let writing = bulk_in.into_iter().map(|mut from| {
            let (files, to, hang_up) = (&files, &to, &hang_up);
            scope.spawn(move || {
                let written = each(&mut *from, |ask, load| write(files, ask, load, to));
                // Who is not understood is not served.
                if written.is_err() {
                    hang_up();
                }
                written
            })
        });
        let writing: Vec<_> = writing.collect();
        let mut desk = Desk { media, say: &say, files: &files, reads: HashMap::new(), locks: HashMap::new() };
        let served = each(&mut *control_in, |ask, load| desk.carry_out(ask, load, &to));
        drop(end);
        hang_up();
        // One that panicked has said so.
        let _ = says.join();
        let written = writing.into_iter().map(|each| each.join().unwrap_or(Ok(())));
        // A stream that is cut when all is over fails.
        let nonsense =
            written.filter_map(Result::err).find(|error| error.kind() == io::ErrorKind::InvalidData);
        nonsense.map_or(served, Err)
    })
}

/// Has each message of a stream carried out, until it ends.
fn each(from: &mut dyn Read, mut carry_out: impl FnMut(Ask, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut load = Vec::new();
    while let Some((ask, len)) = receive_into(from, &mut load)? {
        carry_out(ask, load.get(..len).unwrap_or_default())?;
    }
    Ok(())
}

/// Carries out what comes in a bulk stream. Fails where the session cannot go on.
fn write(
    files: &Files,
    Ask { number, what }: Ask,
    load: &[u8],
    to: &Mutex<Box<dyn Write + Send>>,
) -> io::Result<()> {
    match what {
        What::Write { file } => {
            // Whoever writes hears at the end that something went wrong, and what came first.
            if let Some(file) = files.get(file) {
                let (file, went) = &mut *lock(&file);
                if went.is_ok() {
                    *went = file.write_all(load);
                }
            }
            Ok(())
        }
        What::Sync { file } => {
            let synced = files.get(file).ok_or_else(not_open).and_then(|file| {
                let (file, went) = &mut *lock(&file);
                std::mem::replace(went, Err(not_open()))?;
                file.sync()?;
                *went = Ok(());
                Ok(Told::Done)
            });
            answer(to, number, synced, &[])
        }
        What::Close { file } => {
            files.close(file);
            Ok(())
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a question where files are written")),
    }
}

/// A file that is being written, and what has gone wrong with it.
type Written = (Box<dyn MediaFile>, io::Result<()>);

/// Those that one client writes, by whichever stream.
#[derive(Default)]
struct Files(Mutex<HashMap<u64, Arc<Mutex<Written>>>>);

impl Files {
    fn get(&self, file: u64) -> Option<Arc<Mutex<Written>>> {
        lock(&self.0).get(&file).cloned()
    }

    fn close(&self, file: u64) {
        // What ends with it takes a while, and others are written meanwhile.
        let closed = lock(&self.0).remove(&file);
        drop(closed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other side takes a silent session for a lost one.
fn keep_saying(to: &Mutex<Box<dyn Write + Send>>, is_over: &mpsc::Receiver<()>, every: Duration) {
    while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        if answer(to, 0, Ok(Told::Done), &[]).is_err() {
            return;
        }
    }
}

fn answer(
    to: &Mutex<Box<dyn Write + Send>>,
    number: u64,
    told: io::Result<Told>,
    load: &[u8],
) -> io::Result<()> {
    let mut to = lock(to);
    match send(&mut **to, &Answer { number, told: told.map_err(Into::into) }, load) {
        // Of it nothing has been sent.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            send(&mut **to, &Answer { number, told: Err(error.into()) }, &[])
        }
        sent => sent,
    }
}

/// What one client has.
struct Desk<'a> {
    media: &'a dyn Media,
    say: &'a dyn Fn(&[u8]) -> Vec<u8>,
    files: &'a Files,
    reads: HashMap<u64, Box<dyn MediaRead>>,
    locks: HashMap<u64, MediaLock>,
}

impl Desk<'_> {
    /// Fails where the session cannot go on.
    fn carry_out(&mut self, ask: Ask, load: &[u8], to: &Mutex<Box<dyn Write + Send>>) -> io::Result<()> {
        let Ask { number, what } = ask;
        let mut out = Vec::new();
        let told = match what {
            What::Nothing => return Ok(()),
            What::Close { file } => {
                self.reads.remove(&file);
                return Ok(());
            }
            What::Unlock { lock } => {
                self.locks.remove(&lock);
                return Ok(());
            }
            What::Say => {
                out = (self.say)(load);
                match out.len() <= LOAD_MAX {
                    true => Ok(Told::Bytes),
                    false => Err(io::Error::other("the answer is too long")),
                }
            }
            what => self.ask(what, &mut out),
        };
        if told.is_err() {
            out.clear();
        }
        answer(to, number, told, &out)
    }

    fn ask(&mut self, what: What, out: &mut Vec<u8>) -> io::Result<Told> {
        let done = |()| Told::Done;
        match what {
            What::Create { file, path } => {
                self.has_room()?;
                let made = self.media.create(good(&path)?)?;
                lock(&self.files.0).insert(file, Arc::new(Mutex::new((made, Ok(())))));
                Ok(Told::Done)
            }
            What::Open { file, path } => {
                self.has_room()?;
                let opened = self.media.open(good(&path)?)?;
                let len = opened.len()?;
                self.reads.insert(file, opened);
                Ok(Told::Length(len))
            }
            What::Read { file, offset, len } => {
                let file = self.reads.get(&file).ok_or_else(not_open)?;
                if len as usize > LOAD_MAX {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                out.resize(len as usize, 0);
                file.read_exact_at(out, offset).map(|()| Told::Bytes)
            }
            What::List { folder } => self.media.list(good_or_root(&folder)?).map(Told::Names),
            What::Lengths { folder } => self.media.lengths(good(&folder)?).map(Told::Lengths),
            What::Rename { from, to } => self.media.rename(good(&from)?, good(&to)?).map(done),
            What::RenameNew { from, to } => self.media.rename_new(good(&from)?, good(&to)?).map(done),
            What::Remove { path } => self.media.remove(good(&path)?).map(done),
            What::CreateFolder { folder } => self.media.create_folder(good(&folder)?).map(done),
            What::RemoveFolder { folder } => self.media.remove_folder(good(&folder)?).map(done),
            What::SyncFolder { folder } => self.media.sync_folder(good_or_root(&folder)?).map(done),
            What::Lock { lock, path, create } => {
                self.has_room()?;
                let held = self.media.lock(good(&path)?, create)?;
                let is_held = held.is_some();
                held.into_iter().for_each(|held| drop(self.locks.insert(lock, held)));
                Ok(Told::Locked(is_held))
            }
            What::Share { lock, path } => {
                self.has_room()?;
                let held = self.media.share(good(&path)?)?;
                self.locks.insert(lock, held);
                Ok(Told::Locked(true))
            }
            What::EndUploads => self.media.end_uploads().map(done),
            // Carried out before, or on another stream.
            What::Nothing
            | What::Write { .. }
            | What::Sync { .. }
            | What::Close { .. }
            | What::Unlock { .. }
            | What::Say => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn has_room(&self) -> io::Result<()> {
        let open = lock(&self.files.0).len() + self.reads.len() + self.locks.len();
        if open < OPEN_MAX { Ok(()) } else { Err(io::Error::other("too much is open at a time")) }
    }
}

fn not_open() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "that file is not open")
}

/// A path in the folder.
fn good(path: &str) -> io::Result<&str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |part: &str| !part.is_empty() && part.chars().all(good) && !part.chars().all(|c| c == '.');
    let is_good = path.len() <= PATH_MAX && path.split('/').count() <= PARTS_MAX && path.split('/').all(part);
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, "no path of a store's");
    if is_good { Ok(path) } else { Err(bad()) }
}

/// The same, or the folder itself.
fn good_or_root(path: &str) -> io::Result<&str> {
    if path.is_empty() { Ok(path) } else { good(path) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_folder_is_named() {
        for fine in ["config", "packs/00ff.pack", "a/b/c/d", "config-1.2_3"] {
            assert_eq!(good(fine).unwrap(), fine);
        }
        for bad in ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", ".", "a/b/c/d/e", "a\0b", "ä", "a b"] {
            assert!(good(bad).is_err(), "{bad:?}");
        }
        assert!(good_or_root("").is_ok() && good_or_root("..").is_err());
    }
}
