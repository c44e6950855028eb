//! A medium in memory that remembers every operation, and can be cut off after any of them, as by a power failure: what was synced is
//! there; of everything else, each name and each write may or may not be, independently and in any order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::media::{Media, MediaFile, MediaLock, MediaRead};

#[derive(Debug, Clone, Default)]
pub struct Sim(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, Node>,
    files: Vec<File>,
    log: Vec<Op>,
    /// What was there, durably, before the log begins.
    base: Option<Box<State>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Node {
    Folder,
    File(usize),
}

#[derive(Debug, Clone, Default)]
struct File {
    bytes: Vec<u8>,
    /// Dropped when the lock is.
    lock: std::sync::Weak<()>,
    /// Likewise.
    shares: Vec<std::sync::Weak<()>>,
}

/// What happened, for the replay.
#[derive(Debug, Clone)]
enum Op {
    Name { path: String, node: Option<Node> },
    Write { file: usize, bytes: Vec<u8> },
    SyncFile { file: usize },
    SyncFolder { folder: String },
}

/// What becomes of everything that was not synced.
#[derive(Debug, Clone, Copy)]
pub enum Unsynced {
    Lost,
    Kept,
    /// Each as a generator with this seed has it.
    Mixed(u64),
}

impl Unsynced {
    /// All of it lost, all of it kept, and so many mixtures for a cut.
    pub fn ways(cut: usize, mixtures: u64) -> impl Iterator<Item = Self> {
        let mixed = (0..mixtures).map(move |seed| Self::Mixed(seed << 32 | cut as u64));
        [Self::Lost, Self::Kept].into_iter().chain(mixed)
    }

    /// A number below `n`: 0 is the oldest choice.
    fn choose(&mut self, n: usize) -> usize {
        match self {
            Self::Lost => 0,
            Self::Kept => n - 1,
            // splitmix64
            Self::Mixed(seed) => {
                *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *seed;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) % n as u64) as usize
            }
        }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Sim {
    /// How many operations there were.
    pub fn operations(&self) -> usize {
        self.state().log.len()
    }

    /// The medium as it may be found after it was cut off behind the first `cut` operations.
    pub fn after_crash(&self, cut: usize, mut unsynced: Unsynced) -> Self {
        let state = self.state();
        let log = &state.log[..cut];
        let mut names: BTreeMap<&str, Vec<Option<Node>>> = BTreeMap::new();
        let mut files: HashMap<usize, (Vec<u8>, Vec<&[u8]>)> = HashMap::new();
        if let Some(base) = &state.base {
            names.extend(base.names.iter().map(|(path, node)| (path.as_str(), vec![Some(*node)])));
            files.extend(base.files.iter().map(|file| (file.bytes.clone(), Vec::new())).enumerate());
        }
        for op in log {
            match op {
                Op::Name { path, node } => names.entry(path).or_insert_with(|| vec![None]).push(*node),
                Op::Write { file, bytes } => files.entry(*file).or_default().1.push(bytes),
                Op::SyncFile { file } => {
                    let (synced, writes) = files.entry(*file).or_default();
                    writes.drain(..).for_each(|bytes| synced.extend_from_slice(bytes));
                }
                Op::SyncFolder { folder } => names.iter_mut().for_each(|(path, values)| {
                    if parent(path) == folder {
                        values.drain(..values.len() - 1);
                    }
                }),
            }
        }
        let mut after = State::default();
        let mut numbers = HashMap::new();
        for (path, values) in names {
            let lives = parent(path).is_empty() || after.names.get(parent(path)) == Some(&Node::Folder);
            let node = match values[unsynced.choose(values.len())] {
                Some(_) | None if !lives => continue,
                None => continue,
                Some(Node::Folder) => Node::Folder,
                Some(Node::File(old)) => Node::File(*numbers.entry(old).or_insert_with(|| {
                    let (mut bytes, writes) = files.remove(&old).unwrap_or_default();
                    let from = bytes.len();
                    for write in writes {
                        match unsynced.choose(3) {
                            0 => bytes.extend(std::iter::repeat_n(0, write.len())),
                            1 => bytes.extend(
                                write.iter().enumerate().map(|(n, byte)| if n < 40 { *byte } else { 0 }),
                            ),
                            _ => bytes.extend_from_slice(write),
                        }
                    }
                    let end = from + unsynced.choose(bytes.len() - from + 1);
                    bytes.truncate(end);
                    after.files.push(File { bytes, ..File::default() });
                    after.files.len() - 1
                })),
            };
            after.names.insert(path.to_owned(), node);
        }
        Self(Arc::new(Mutex::new(after)))
    }

    /// The paths of all files.
    pub fn files(&self) -> Vec<String> {
        let state = self.state();
        state.names.iter().filter(|(_, node)| **node != Node::Folder).map(|(path, _)| path.clone()).collect()
    }

    /// A copy that has nothing to do with the original any more. All that is in it counts as synced.
    pub fn copy(&self) -> Self {
        let state = self.state();
        let snapshot =
            || State { names: state.names.clone(), files: state.files.clone(), ..State::default() };
        Self(Arc::new(Mutex::new(State { base: Some(Box::new(snapshot())), ..snapshot() })))
    }

    /// Changes a file's bytes behind everybody's back.
    pub fn tamper<T>(&self, path: &str, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut state = self.state();
        let Some(Node::File(file)) = state.names.get(path).copied() else { panic!("no file {path}") };
        change(&mut state.files[file].bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn set(&mut self, path: &str, node: Option<Node>) -> io::Result<()> {
        if !parent(path).is_empty() && self.names.get(parent(path)) != Some(&Node::Folder) {
            return Err(ErrorKind::NotFound.into());
        }
        match node {
            Some(node) => self.names.insert(path.to_owned(), node),
            None => self.names.remove(path),
        };
        self.log.push(Op::Name { path: path.to_owned(), node });
        Ok(())
    }

    fn file(&self, path: &str) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Node::File(file)) => Ok(*file),
            Some(Node::Folder) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn create(&mut self, path: &str) -> io::Result<usize> {
        if self.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.set(path, Some(Node::File(file)))?;
        Ok(file)
    }
}

impl Media for Sim {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let file = self.state().create(path)?;
        Ok(Box::new(SimFile { sim: self.clone(), file }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        let file = self.state().file(path)?;
        Ok(Box::new(SimFile { sim: self.clone(), file }))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        if !folder.is_empty() && state.names.get(folder) != Some(&Node::Folder) {
            return Err(ErrorKind::NotFound.into());
        }
        let inside = state.names.keys().filter(|path| parent(path) == folder);
        Ok(inside.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(from)?;
        state.set(to, Some(Node::File(file)))?;
        state.set(from, None)
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(from)?;
        if state.names.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.set(to, Some(Node::File(file)))?;
        state.set(from, None)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.file(path)?;
        state.set(path, None)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.names.get(folder) == Some(&Node::Folder) {
            Ok(())
        } else {
            state.set(folder, Some(Node::Folder))
        }
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.names.keys().any(|path| parent(path) == folder) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        state.set(folder, None)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.state().log.push(Op::SyncFolder { folder: folder.to_owned() });
        Ok(())
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        let mut state = self.state();
        let file = match state.file(path) {
            Err(error) if create && error.kind() == ErrorKind::NotFound => state.create(path)?,
            file => file?,
        };
        let held = |lock: &std::sync::Weak<()>| lock.strong_count() > 0;
        if held(&state.files[file].lock) || state.files[file].shares.iter().any(held) {
            return Ok(None);
        }
        let lock = Arc::new(());
        state.files[file].lock = Arc::downgrade(&lock);
        Ok(Some(Box::new(lock)))
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        let mut state = self.state();
        let file = state.file(path)?;
        // Nobody waits in a test.
        if state.files[file].lock.strong_count() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let share = Arc::new(());
        state.files[file].shares.push(Arc::downgrade(&share));
        Ok(Box::new(share))
    }

    fn full_path(&self, path: &str) -> PathBuf {
        PathBuf::from("/sim").join(path)
    }
}

#[derive(Debug)]
struct SimFile {
    sim: Sim,
    file: usize,
}

impl MediaFile for SimFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.sim.state();
        state.files[self.file].bytes.extend_from_slice(bytes);
        state.log.push(Op::Write { file: self.file, bytes: bytes.to_owned() });
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sim.state().log.push(Op::SyncFile { file: self.file });
        Ok(())
    }
}

impl MediaRead for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.sim.state().files[self.file].bytes.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.sim.state();
        let bytes = state.files[self.file].bytes.get(offset as usize..).unwrap_or_default();
        buffer.copy_from_slice(bytes.get(..buffer.len()).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
