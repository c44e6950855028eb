//! A folder of the other machine, as a store's medium.

use crate::client::{FileStream, Session};
use crate::messages::{LOAD_MAX, Told, What};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use store::media::{Media, MediaFile, MediaLock, MediaRead};

/// A folder of the other machine.
#[derive(Clone)]
pub struct Folder {
    session: Arc<Session>,
    name: String,
}

impl Folder {
    pub(crate) fn new(session: Arc<Session>, name: &str) -> Self {
        Self { session, name: name.to_owned() }
    }

    fn done(&self, what: What) -> io::Result<()> {
        match self.session.ask(what)? {
            (Told::Done, _) => Ok(()),
            _ => Err(odd()),
        }
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Folder").field(&self.name).finish()
    }
}

/// An answer to another question.
fn odd() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other side answers what it was not asked")
}

impl Media for Folder {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let file = self.session.name();
        self.done(What::Create { file, path: path.to_owned() })?;
        Ok(Box::new(Created { stream: self.session.file_stream(), file }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        let file = self.session.name();
        match self.session.ask(What::Open { file, path: path.to_owned() })? {
            (Told::Length(len), _) => Ok(Box::new(Opened { folder: self.clone(), file, len })),
            _ => Err(odd()),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match self.session.ask(What::List { folder: folder.to_owned() })? {
            (Told::Names(names), _) => Ok(names),
            _ => Err(odd()),
        }
    }

    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        match self.session.ask(What::Lengths { folder: folder.to_owned() })? {
            (Told::Lengths(lengths), _) => Ok(lengths),
            _ => Err(odd()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.done(What::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        self.done(What::RenameNew { from: from.to_owned(), to: to.to_owned() })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.done(What::Remove { path: path.to_owned() })
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.done(What::CreateFolder { folder: folder.to_owned() })
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.done(What::RemoveFolder { folder: folder.to_owned() })
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.done(What::SyncFolder { folder: folder.to_owned() })
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        let lock = self.session.name();
        match self.session.ask(What::Lock { lock, path: path.to_owned(), create })? {
            (Told::Locked(true), _) => Ok(Some(Box::new(Held { session: Arc::clone(&self.session), lock }))),
            (Told::Locked(false), _) => Ok(None),
            _ => Err(odd()),
        }
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        let lock = self.session.name();
        match self.session.ask(What::Share { lock, path: path.to_owned() })? {
            (Told::Locked(true), _) => Ok(Box::new(Held { session: Arc::clone(&self.session), lock })),
            _ => Err(odd()),
        }
    }

    fn side_by_side(&self) -> usize {
        self.session.side_by_side()
    }

    fn end_uploads(&self) -> io::Result<()> {
        self.done(What::EndUploads)
    }

    fn full_path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.name.clone().into() } else { format!("{}/{path}", self.name).into() }
    }
}

/// A file that is being written there.
#[derive(Debug)]
struct Created {
    stream: FileStream,
    file: u64,
}

impl MediaFile for Created {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let write = |piece| self.stream.tell(What::Write { file: self.file }, piece);
        bytes.chunks(LOAD_MAX).try_for_each(write)
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.stream.ask(What::Sync { file: self.file })? {
            (Told::Done, _) => Ok(()),
            _ => Err(odd()),
        }
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        // Where the session is lost, nothing is open.
        let _ = self.stream.tell(What::Close { file: self.file }, &[]);
    }
}

/// A file that is open there.
#[derive(Debug)]
struct Opened {
    folder: Folder,
    file: u64,
    len: u64,
}

impl MediaRead for Opened {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for piece in buffer.chunks_mut(LOAD_MAX) {
            let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            match self.folder.session.ask(What::Read { file: self.file, offset: at, len })? {
                (Told::Bytes, load) if load.len() == piece.len() => piece.copy_from_slice(&load),
                _ => return Err(odd()),
            }
            at += u64::from(len);
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // As with those that are written.
        let _ = self.folder.session.tell(What::Close { file: self.file });
    }
}

/// A lock that is held there.
struct Held {
    session: Arc<Session>,
    lock: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        // As with files.
        let _ = self.session.tell(What::Unlock { lock: self.lock });
    }
}
