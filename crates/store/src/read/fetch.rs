//! Fetching chunks from packs.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use image::chunk::{Decoder, check_plain};
use image::{ChunkId, Codec, Entry, FormatError, PackId, PackIndex, pack};

use super::arrival::Arrival;
use crate::chunk_map::{ChunkMap, Place};
use crate::media::{Cursor, MediaRead};
use crate::{Store, layout};

/// How many packs are kept open: images may have thousands, and a process may have no more than 1024 files.
const OPEN_MAX: usize = 256;

/// Packs that are open.
type Open = HashMap<PackId, Arc<dyn MediaRead>>;

/// Fetches chunks; one for any number of threads.
#[derive(Debug)]
pub(crate) struct Fetcher {
    store: Store,
    map: ChunkMap,
    /// Where more is still to come.
    arrival: Option<Arrival>,
    open: Mutex<Open>,
    /// Where chunks lie whose packs are gone.
    since: Mutex<Since>,
}

/// What was found when packs had gone: where nothing could be held, they were written anew, or nobody needs them.
#[derive(Debug, Default)]
struct Since {
    map: ChunkMap,
    /// For each of these it has been looked.
    gone: HashSet<PackId>,
}

/// A thread's working memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    decoder: Decoder,
    frame: Vec<u8>,
    /// Whether plain chunks are taken as they are read.
    pub(super) trusting: bool,
}

impl Scratch {
    pub(crate) fn trusting(trusting: bool) -> Self {
        Self { trusting, ..Self::default() }
    }

    /// Takes the frame that was decoded last, for other memory; where that is the chunk itself, it is not here.
    pub(crate) fn exchange_frame(&mut self, other: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.frame, other)
    }
}

/// Why one copy of a chunk cannot be had.
#[derive(Debug)]
pub(crate) struct BadCopy {
    /// The file, relative to the store.
    pub(crate) path: String,
    /// Where in the file; none where the file as a whole is not usable.
    pub(crate) offset: Option<u64>,
    pub(crate) problem: String,
    /// Whether there is no such file.
    pub(crate) is_gone: bool,
}

impl Fetcher {
    pub(crate) fn new(store: Store, map: ChunkMap) -> Self {
        Self { store, map, arrival: None, open: Mutex::default(), since: Mutex::default() }
    }

    /// What the map does not know is waited for.
    pub(crate) fn awaiting(self, arrival: Arrival) -> Self {
        Self { arrival: Some(arrival), ..self }
    }

    pub(crate) fn arrival(&self) -> Option<&Arrival> {
        self.arrival.as_ref()
    }

    /// The map is this from now on. Packs that are open stay open.
    pub(crate) fn knows(&mut self, map: ChunkMap) {
        self.map = map;
    }

    /// A pack that has no name yet is read here.
    pub(crate) fn opened(&mut self, file: Box<dyn MediaRead>, pack: PackIndex) {
        keep(self.open.get_mut().unwrap_or_else(PoisonError::into_inner), pack.id, Arc::from(file));
        self.map.add(pack);
    }

    pub(crate) fn map(&self) -> &ChunkMap {
        &self.map
    }

    /// Fills `plain` with a chunk, from whichever copy is good, and says which entry that has. What was wrong with all of them otherwise.
    pub(crate) fn fetch(
        &self,
        chunk: &ChunkId,
        plain: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Entry, String> {
        let mut bad: Vec<(Place, BadCopy)> = Vec::new();
        for place in self.map.places(chunk) {
            match self.fetch_copy(place, plain, scratch) {
                Ok(()) => return Ok(place.entry),
                Err(problem) => bad.push((*place, problem)),
            }
        }
        while let Some(place) = self.place_since(chunk, &bad) {
            match self.fetch_copy(&place, plain, scratch) {
                Ok(()) => return Ok(place.entry),
                Err(problem) => bad.push((place, problem)),
            }
        }
        if bad.is_empty() {
            let Some(arrival) = &self.arrival else { return Err(self.not_indexed(chunk)) };
            let place = arrival.place(chunk)?;
            match self.fetch_copy(&place, plain, scratch) {
                Ok(()) => return Ok(place.entry),
                Err(problem) => bad.push((place, problem)),
            }
        }
        Err(bad.iter().map(|(_, problem)| self.describe(problem)).collect::<Vec<_>>().join("; "))
    }

    /// Another place where a chunk lies by now of which these are `bad`, if some of their packs are gone.
    fn place_since(&self, chunk: &ChunkId, bad: &[(Place, BadCopy)]) -> Option<Place> {
        let mut gone =
            bad.iter().filter(|(_, problem)| problem.is_gone).map(|(place, _)| place.pack).peekable();
        gone.peek()?;
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        // Once for each pack, however many chunks it had.
        if !gone.clone().all(|pack| since.gone.contains(&pack)) {
            match ChunkMap::load(&self.store) {
                Ok(map) => {
                    since.map = map;
                    since.gone.extend(gone);
                }
                Err(error) => tracing::debug!(%error, "what has been written anew cannot be looked for"),
            }
        }
        since.map.places(chunk).find(|place| bad.iter().all(|(tried, _)| tried != *place)).copied()
    }

    /// Fills `plain` with one copy of a chunk, and checks it.
    pub(crate) fn fetch_copy(
        &self,
        place: &Place,
        plain: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), BadCopy> {
        let path = layout::pack(place.pack);
        let bad = |offset, problem| BadCopy { path: path.clone(), offset, problem, is_gone: false };
        // What is open may go, too, where that is no more than a name.
        let is_gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle)
        };
        let file = self
            .pack(place.pack)
            .map_err(|error| BadCopy { is_gone: is_gone(&error), ..bad(None, error.to_string()) })?;
        let read = |buffer: &mut [u8]| {
            file.read_exact_at(buffer, place.offset).map_err(|error| {
                let problem = format!("the {} bytes there cannot be read: {error}", buffer.len());
                BadCopy { is_gone: is_gone(&error), ..bad(Some(place.offset), problem) }
            })
        };
        let entry: &Entry = &place.entry;
        let checked = if entry.codec == Codec::Plain && plain.len() as u64 == u64::from(entry.plain_len) {
            read(plain)?;
            if scratch.trusting { Ok(()) } else { check_plain(entry, plain) }
        } else {
            scratch.frame.resize(entry.frame_len as usize, 0);
            read(&mut scratch.frame)?;
            scratch.decoder.decode(entry, &scratch.frame, plain)
        };
        checked.map_err(|error| bad(Some(place.offset), error.to_string()))
    }

    /// Says that a chunk will be fetched soon; how long it is there.
    pub(crate) fn will_fetch(&self, chunk: &ChunkId) -> u64 {
        let Some(place) = self.map.places(chunk).next() else { return 0 };
        let len = u64::from(place.entry.frame_len);
        // Whoever fetches it says what is wrong.
        if let Ok(file) = self.pack(place.pack) {
            file.will_read(place.offset, len);
        }
        len
    }

    /// A copy's fault in words.
    pub(crate) fn describe(&self, bad: &BadCopy) -> String {
        let path = self.store.media().full_path(&bad.path);
        match bad.offset {
            Some(offset) => format!("{} at offset {offset:#x}: {}", path.display(), bad.problem),
            None => format!("{}: {}", path.display(), bad.problem),
        }
    }

    /// Why no index knows a chunk.
    pub(crate) fn not_indexed(&self, chunk: &ChunkId) -> String {
        let damaged = self
            .map
            .damaged()
            .iter()
            .map(|(_, file)| format!("; {} is not usable: {}", file.path.display(), file.problem));
        let indexes = self.store.media().full_path(layout::INDEX);
        format!(
            "chunk {chunk} is in none of the indexes in {}, and `dormouse verify --quick` says what mends that{}",
            indexes.display(),
            damaged.collect::<String>()
        )
    }

    /// An open pack whose header is that of the pack it should be.
    fn pack(&self, id: PackId) -> io::Result<Arc<dyn MediaRead>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&id) {
            return Ok(file.clone());
        }
        let file = open_pack(&self.store, &layout::pack(id), id)?;
        let file: Arc<dyn MediaRead> = Arc::from(file);
        keep(&mut open, id, file.clone());
        Ok(file)
    }
}

/// Keeps a pack open, and no others when they are many: what is read of them is read soon, or never again.
fn keep(open: &mut Open, id: PackId, file: Arc<dyn MediaRead>) {
    if open.len() >= OPEN_MAX {
        open.clear();
    }
    open.insert(id, file);
}

/// A pack's file, whose header is that of the pack it should be. The error's kind tells damage from bytes that cannot be had.
fn open_pack(store: &Store, path: &str, id: PackId) -> io::Result<Box<dyn MediaRead>> {
    let cannot = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let file = store.media().open(path).map_err(|error| cannot("it cannot be opened", error))?;
    let mut header = [0; pack::HEADER_LEN];
    file.read_exact_at(&mut header, 0).map_err(|error| cannot("its header cannot be read", error))?;
    let found = pack::parse_header(&header).map_err(of_format)?;
    if found == id {
        Ok(file)
    } else {
        Err(damaged(format!("it is not what its name says: it is pack {found}")))
    }
}

fn damaged(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn of_format(error: FormatError) -> io::Error {
    match &error {
        FormatError::Read(read) => io::Error::new(read.kind(), error),
        _ => damaged(error),
    }
}

/// A pack, wherever it lies, if it was written to its end; and what it says that it holds. The error's kind is as of [`open_pack`].
pub(crate) fn whole_pack(
    store: &Store,
    path: &str,
    id: PackId,
) -> io::Result<(Box<dyn MediaRead>, PackIndex)> {
    let file = open_pack(store, path, id)?;
    let file_len = file.len()?;
    let (end_at, mut end) = (file_len.saturating_sub(pack::END_LEN as u64), [0; pack::END_LEN]);
    file.read_exact_at(&mut end, end_at)?;
    let trailer_at = pack::trailer_offset(&end, file_len).map_err(of_format)?;
    let trailer = pack::parse_trailer(Cursor::new(&*file, trailer_at, end_at));
    let (found, entries) = trailer.map_err(of_format)?;
    let index = PackIndex { id, file_len, entries };
    if found != id || index.trailer_at() != trailer_at {
        return Err(damaged("its trailer is not that of what is before it"));
    }
    index.validate().map_err(damaged)?;
    Ok((file, index))
}
