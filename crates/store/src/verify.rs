//! Reading all of an image to see whether it is what was written.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use image::{ChunkError, ChunkId, Extent, ImageId, Manifest, PackId, PackIndex, pack};
use serde::Serialize;

use crate::chunk_map::{ChunkMap, Place};
use crate::error::{RESCUE, WRITTEN_ANEW, describe};
use crate::list::problem_of;
use crate::media::{Cursor, MediaLock, MediaRead};
use crate::read::{BadCopy, Fetcher, Scratch, whole_pack};
use crate::{ReadError, Store, layout};

/// How many faults a report lists; the rest are counted.
const MOST_LISTED: usize = 1000;
/// How many packs a sentence names.
const MOST_NAMED: usize = 3;

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes of chunks checked.
    pub done: u64,
    /// Bytes of chunks to check.
    pub total: u64,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The image.
    pub image: ImageId,
    /// Whether nothing is wrong with it, as far as it was looked at.
    pub ok: bool,
    /// Whether its chunks were read.
    pub read_data: bool,
    /// Objects looked at.
    pub objects: u64,
    /// Different chunks that were read, for this image or one before.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong.
    pub damage: Vec<Damage>,
    /// How much more is wrong, beyond what is listed.
    pub more_damage: u64,
}

/// One fault of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file that is damaged.
    pub file: PathBuf,
    /// Where in the file, if that can be said.
    pub file_offset: Option<u64>,
    /// The objects that lose bytes by it; empty where it is the whole image.
    pub objects: Vec<DamagedObject>,
    /// What is wrong.
    pub problem: String,
    /// What helps.
    #[serde(skip)]
    pub cure: Cure,
}

/// What can be done about a fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cure {
    /// The file is needed from elsewhere.
    #[default]
    Copy,
    /// The packs say what is lacking.
    Index,
    /// All that the image needs of the file can be read.
    Anew,
}

impl Cure {
    fn advice(self) -> String {
        match self {
            Self::Copy => format!("{RESCUE}; where a damaged pack is moved out of the store, {WRITTEN_ANEW}"),
            Self::Index => "where an index is damaged or missing, bring it back from a copy, or let `dormouse rm`, without an image and while no checkpoint is being \
                            written, write it anew from the packs"
                .to_owned(),
            Self::Anew => "where no chunk is lost, `dormouse copy STORE NEWSTORE IMAGE` writes whole packs of them elsewhere, and restarts work meanwhile"
                .to_owned(),
        }
    }
}

/// An object that cannot be read whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedObject {
    /// What it is, in words.
    pub name: String,
    /// The first place in it that is lost by this fault.
    pub offset: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        self.file_offset.iter().try_for_each(|offset| write!(f, " at offset {offset:#x}"))?;
        write!(f, ": {}", self.problem)?;
        match self.objects.as_slice() {
            [] => f.write_str(" (concerns the whole image)"),
            [DamagedObject { name, offset }] => write!(f, " (concerns {name} at offset {offset:#x})"),
            [DamagedObject { name, offset }, more @ ..] => {
                write!(f, " (concerns {name} at offset {offset:#x} and {} more objects)", more.len())
            }
        }
    }
}

impl VerifyReport {
    /// What can be done, for each sort of damage that there is.
    #[must_use]
    pub fn advice(reports: &[Self]) -> Vec<String> {
        let cures: BTreeSet<Cure> =
            reports.iter().flat_map(|report| &report.damage).map(|damage| damage.cure).collect();
        let is_pack = |damage: &Damage| damage.file.extension().is_some_and(|name| name == "pack");
        let unread = reports.iter().any(|report| !report.read_data && report.damage.iter().any(is_pack));
        let first = unread.then(|| {
            "which chunks of a damaged pack are lost, if any, `dormouse verify` tells without --quick: ask it before anything is moved"
                .to_owned()
        });
        first.into_iter().chain(cures.into_iter().map(Cure::advice)).collect()
    }

    /// Whether a restart finds all that it needs, whatever is wrong around that.
    #[must_use]
    pub fn can_be_read(&self) -> bool {
        self.more_damage == 0 && self.damage.iter().all(|damage| damage.cure == Cure::Anew)
    }

    fn add(&mut self, damage: Damage) {
        self.ok = false;
        if self.damage.len() < MOST_LISTED {
            self.damage.push(damage);
        } else {
            self.more_damage += 1;
        }
    }
}

impl Store {
    /// [`Verifier::verify`] of one image.
    ///
    /// # Errors
    /// As there.
    pub fn verify(
        &self,
        image: &ImageId,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, ReadError> {
        self.verifier()?.verify(image, progress)
    }

    /// [`Verifier::verify_structure`] of one image.
    ///
    /// # Errors
    /// As there.
    pub fn verify_structure(&self, image: &ImageId) -> Result<VerifyReport, ReadError> {
        self.verifier()?.verify_structure(image)
    }

    /// Verifies images that are listed by now.
    ///
    /// # Errors
    /// [`ReadError::Media`] where the store's folders cannot be read.
    pub fn verifier(&self) -> Result<Verifier, ReadError> {
        let share = self.share_to_read()?;
        let fetcher = Fetcher::new(self.clone(), ChunkMap::load(self)?);
        let (packs, chunks) = (HashMap::new(), HashMap::new());
        Ok(Verifier { store: self.clone(), share, fetcher, unnamed: OnceCell::new(), packs, chunks })
    }
}

/// Verifies images one after the other; what one has in common with those before it is read once.
pub struct Verifier {
    store: Store,
    /// Held as long: what is there stays there. None where that cannot be had.
    share: Option<MediaLock>,
    fetcher: Fetcher,
    /// What no index names, where that was asked for.
    unnamed: OnceCell<Vec<PackIndex>>,
    /// What is around the frames of each pack.
    packs: HashMap<PackId, Result<(), PackFault>>,
    /// Every copy of a chunk, by its pack and where it begins there.
    chunks: HashMap<(PackId, u64), Result<(), BadCopy>>,
}

/// Where something is wrong with a pack, if that can be said, and what.
type PackFault = (Option<u64>, String);

impl Verifier {
    /// Reads everything that `image` needs: its manifest, the indexes, headers and trailers of its packs, every copy of every one of its
    /// chunks. `progress` is told after each chunk.
    ///
    /// # Errors
    /// [`ReadError::NoImage`], and [`ReadError::Media`] where the store's folders cannot be read. Damage is no error: it is reported.
    pub fn verify(
        &mut self,
        image: &ImageId,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, ReadError> {
        self.look_well_at(image, Some(progress))
    }

    /// [`Verifier::verify`] without the chunks: whether everything is there, as long as it should be, and fits together. Finds what is missing
    /// or cut short, not what has rotted.
    ///
    /// # Errors
    /// As [`Verifier::verify`].
    pub fn verify_structure(&mut self, image: &ImageId) -> Result<VerifyReport, ReadError> {
        self.look_well_at(image, None)
    }

    /// Reads the chunks too, if there is somebody to tell how far that is. What is missing where nothing could be held may only have been written anew.
    fn look_well_at(
        &mut self,
        image: &ImageId,
        mut read_data: Option<&mut dyn FnMut(VerifyProgress)>,
    ) -> Result<VerifyReport, ReadError> {
        let told = read_data.as_mut().map(|told| &mut **told as &mut dyn FnMut(VerifyProgress));
        let report = self.look_at(image, told)?;
        if report.ok || self.share.is_some() {
            return Ok(report);
        }
        self.fetcher.knows(ChunkMap::load(&self.store)?);
        self.unnamed = OnceCell::new();
        self.packs.retain(|_, checked| checked.is_ok());
        self.chunks.retain(|_, checked| checked.is_ok());
        self.look_at(image, read_data)
    }

    fn look_at(
        &mut self,
        image: &ImageId,
        read_data: Option<&mut dyn FnMut(VerifyProgress)>,
    ) -> Result<VerifyReport, ReadError> {
        let mut report = VerifyReport {
            image: *image,
            ok: true,
            read_data: read_data.is_some(),
            objects: 0,
            chunks: 0,
            bytes: 0,
            damage: Vec::new(),
            more_damage: 0,
        };
        let manifest = match self.store.manifest(image) {
            Ok(manifest) => manifest,
            Err(error @ (ReadError::File { .. } | ReadError::WrongName { .. })) => {
                let file = self.store.media().full_path(&layout::image(*image));
                report.add(Damage {
                    file,
                    file_offset: None,
                    objects: Vec::new(),
                    problem: problem_of(&error),
                    cure: Cure::Copy,
                });
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        let uses = Uses::of(&manifest);
        report.objects = manifest.objects.len() as u64;
        let places = self.resolve(&manifest, &uses, &mut report);
        let packs: HashSet<PackId> = places.iter().map(|place| place.pack).collect();
        let mut faults = Vec::new();
        for pack in packs.iter().filter_map(|id| self.fetcher.map().pack(id)) {
            let checked = self.packs.entry(pack.id).or_insert_with(|| verify_pack(&self.store, pack));
            if let Err((file_offset, problem)) = checked.clone() {
                let file = self.store.media().full_path(&layout::pack(pack.id));
                let objects = uses.of_pack(pack);
                faults.push((pack.id, Damage { file, file_offset, objects, problem, cure: Cure::Copy }));
            }
        }
        let before = report.damage.len();
        match read_data {
            Some(progress) => {
                report.chunks = uses.chunks.len() as u64;
                self.verify_chunks(&places, &uses, &mut report, progress);
                for (pack, fault) in &mut faults {
                    if self.has_all(*pack, &places) {
                        fault.cure = Cure::Anew;
                        fault.problem +=
                            "; no chunk of the image is lost by it, all that are there were read";
                    }
                }
            }
            None => self.verify_lengths(&places, &uses, &mut report),
        }
        // What is wrong with a file as a whole goes before what is in it.
        let inside = report.damage.split_off(before);
        let faults = faults.into_iter().map(|(_, fault)| fault);
        faults.chain(inside).for_each(|damage| report.add(damage));
        Ok(report)
    }

    /// Whether all was good that was read of a pack.
    fn has_all(&self, pack: PackId, places: &[Place]) -> bool {
        let of_it = places.iter().filter(|place| place.pack == pack);
        of_it.map(|place| self.chunks.get(&(pack, place.offset))).all(|read| matches!(read, Some(Ok(()))))
    }

    /// Finds every copy of the image's chunks, in the order in which they lie in packs; reports those that no index knows.
    fn resolve(&self, manifest: &Manifest, uses: &Uses, report: &mut VerifyReport) -> Vec<Place> {
        let map = self.fetcher.map();
        let mut lost: BTreeMap<String, u64> = BTreeMap::new();
        let mut lost_chunks = HashSet::new();
        let mut places: Vec<Place> = Vec::new();
        for chunk in uses.chunks.keys() {
            let before = places.len();
            places.extend(map.places(chunk));
            if places.len() == before {
                lost_chunks.insert(*chunk);
                for DamagedObject { name, offset } in uses.objects(chunk) {
                    lost.entry(name).and_modify(|least| *least = offset.min(*least)).or_insert(offset);
                }
            }
        }
        let objects: Vec<_> = lost.into_iter().map(|(name, offset)| DamagedObject { name, offset }).collect();
        // A damaged index counts if it may have held what is lost, or was written for this image.
        let damaged = map.damaged().iter();
        let damaged: Vec<_> =
            damaged.filter(|(of, _)| *of == manifest.id || !lost_chunks.is_empty()).collect();
        for (_, index) in &damaged {
            let (file, problem) = (index.path.clone(), index.problem.clone());
            report.add(Damage {
                file,
                file_offset: None,
                objects: objects.clone(),
                problem,
                cure: Cure::Index,
            });
        }
        if damaged.is_empty() && !lost_chunks.is_empty() {
            // Which file it is that is missing nobody can tell.
            let file = self.store.media().full_path(layout::INDEX);
            let (problem, cure) = self.in_no_index(&manifest.id, lost_chunks);
            report.add(Damage { file, file_offset: None, objects, problem, cure });
        }
        places.sort_by_key(|place| (place.pack, place.offset));
        places
    }

    /// What chunks of an image are in that no index names, and what helps.
    fn in_no_index(&self, image: &ImageId, mut chunks: HashSet<ChunkId>) -> (String, Cure) {
        let lost =
            format!("{} chunks that image {image} needs are in none of the indexes there", chunks.len());
        let mut packs = Vec::new();
        for pack in self.unnamed.get_or_init(|| self.unnamed_packs()) {
            let before = chunks.len();
            for entry in &pack.entries {
                chunks.remove(&entry.id);
            }
            if chunks.len() < before {
                packs.push(layout::pack(pack.id));
            }
        }
        let (first, more) = packs.split_at(packs.len().min(MOST_NAMED));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let there = format!("{lost}: an index is missing, and they are in {}{more}", first.join(", "));
        match (packs.len(), chunks.len()) {
            (0, _) => {
                (format!("{lost}, and in no other pack: an index and what it named are missing"), Cure::Copy)
            }
            (_, 0) => (there, Cure::Index),
            (_, left) => (format!("{there}, but for {left}, which are in no pack"), Cure::Copy),
        }
    }

    /// The packs that no index names, as far as they say what they hold.
    fn unnamed_packs(&self) -> Vec<PackIndex> {
        let names = self.store.media().list(layout::PACKS).unwrap_or_default();
        let packs = names.iter().filter_map(|name| layout::pack_of(name));
        let unnamed = packs.filter(|id| self.fetcher.map().pack(id).is_none());
        unnamed.filter_map(|id| Some(whole_pack(&self.store, &layout::pack(id), id).ok()?.1)).collect()
    }

    /// Checks that the indexes and the manifest say the same of each chunk, which is noticed by itself where it is read.
    fn verify_lengths(&self, places: &[Place], uses: &Uses, report: &mut VerifyReport) {
        for Place { pack, offset, entry } in places {
            let found = uses.len(&entry.id) as u64;
            if found != u64::from(entry.plain_len) {
                let problem = ChunkError::Length { id: entry.id, expected: entry.plain_len.into(), found };
                report.add(Damage {
                    file: self.store.media().full_path(&layout::pack(*pack)),
                    file_offset: Some(*offset),
                    objects: uses.objects(&entry.id),
                    problem: problem.to_string(),
                    cure: Cure::Copy,
                });
            }
        }
    }

    fn verify_chunks(
        &mut self,
        places: &[Place],
        uses: &Uses,
        report: &mut VerifyReport,
        progress: &mut dyn FnMut(VerifyProgress),
    ) {
        let Self { store, fetcher, chunks, .. } = self;
        let total = places.iter().map(|place| u64::from(place.entry.plain_len)).sum();
        let mut done = 0;
        let mut note = |place: &Place, checked: &Result<(), BadCopy>| {
            done += u64::from(place.entry.plain_len);
            match checked {
                Ok(()) => report.bytes += u64::from(place.entry.plain_len),
                Err(BadCopy { path, offset, problem, .. }) => report.add(Damage {
                    file: store.media().full_path(path),
                    file_offset: *offset,
                    objects: uses.objects(&place.entry.id),
                    problem: problem.clone(),
                    cure: Cure::Copy,
                }),
            }
            progress(VerifyProgress { done, total });
        };
        // What is read for an image that expects another length says nothing of it for others.
        let is_as_long = |place: &Place| uses.len(&place.entry.id) as u64 == u64::from(place.entry.plain_len);
        let mut unread = Vec::new();
        for place in places {
            match chunks.get(&(place.pack, place.offset)).filter(|_| is_as_long(place)) {
                Some(checked) => note(place, checked),
                None => unread.push(place),
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let queue = Mutex::new(unread.into_iter());
        let (send, receive) = sync_channel(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (send, queue, fetcher) = (send.clone(), &queue, &*fetcher);
                scope.spawn(move || {
                    let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(place) = next() {
                        let checked = check(place, uses, fetcher, &mut plain, &mut scratch);
                        if send.send((place, checked)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for (place, checked) in receive {
                note(place, &checked);
                if is_as_long(place) {
                    chunks.insert((place.pack, place.offset), checked);
                }
            }
        });
    }
}

/// Checks what is around a pack's frames: header, trailer, end, length.
fn verify_pack(store: &Store, index: &PackIndex) -> Result<(), PackFault> {
    let whole = |problem: String| (None, problem);
    let file = store.media().open(&layout::pack(index.id));
    let file = file.map_err(|error| whole(format!("it cannot be opened: {error}")))?;
    let len = file.len().map_err(|error| whole(format!("its length cannot be had: {error}")))?;
    if len != index.file_len {
        return Err(whole(format!("it has {len} bytes, it was written with {}", index.file_len)));
    }
    let found = pack::parse_header(&read_at(&*file, 0)?).map_err(|error| (Some(0), error.to_string()))?;
    if found != index.id {
        return Err(whole(format!("it is not what its name says: it is pack {found}")));
    }
    let end_at = len - pack::END_LEN as u64;
    let bad_end = |error: image::FormatError| (Some(end_at), error.to_string());
    let trailer_at = pack::trailer_offset(&read_at(&*file, end_at)?, len).map_err(bad_end)?;
    if trailer_at != index.trailer_at() {
        return Err((Some(end_at), "its trailer does not begin where its frames end".to_owned()));
    }
    let bad_trailer = |problem: String| (Some(trailer_at), problem);
    let trailer = pack::parse_trailer(Cursor::new(&*file, trailer_at, end_at));
    let (id, entries) = trailer.map_err(|error| bad_trailer(error.to_string()))?;
    if (id, &entries) != (index.id, &index.entries) {
        return Err(bad_trailer("its trailer and its index do not say the same".to_owned()));
    }
    Ok(())
}

/// Reads one copy of a chunk, as long as the manifest says that it is.
fn check(
    place: &Place,
    uses: &Uses,
    fetcher: &Fetcher,
    plain: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), BadCopy> {
    plain.resize(uses.len(&place.entry.id), 0);
    fetcher.fetch_copy(place, plain, scratch)
}

fn read_at<const N: usize>(file: &dyn MediaRead, offset: u64) -> Result<[u8; N], (Option<u64>, String)> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|error| (Some(offset), format!("it cannot be read: {error}")))?;
    Ok(bytes)
}

/// Where an image uses each of its chunks.
struct Uses {
    /// Names of the objects.
    names: Vec<String>,
    chunks: HashMap<ChunkId, Use>,
}

struct Use {
    len: u32,
    /// Number of the object, and the first place in it.
    objects: Vec<(usize, u64)>,
}

impl Uses {
    fn of(manifest: &Manifest) -> Self {
        let names = manifest.objects.iter().map(|object| describe(&object.kind)).collect();
        let mut chunks: HashMap<ChunkId, Use> = HashMap::new();
        for (number, object) in manifest.objects.iter().enumerate() {
            for (offset, extent) in object.placed_extents() {
                if let Extent::Chunk { id, len } = extent {
                    let uses = chunks.entry(*id).or_insert(Use { len: *len, objects: Vec::new() });
                    if uses.objects.last().is_none_or(|(last, _)| *last != number) {
                        uses.objects.push((number, offset));
                    }
                }
            }
        }
        Self { names, chunks }
    }

    fn len(&self, chunk: &ChunkId) -> usize {
        self.chunks.get(chunk).map_or(0, |uses| uses.len as usize)
    }

    fn objects(&self, chunk: &ChunkId) -> Vec<DamagedObject> {
        let uses = self.chunks.get(chunk).into_iter().flat_map(|uses| &uses.objects);
        let named = uses.filter_map(|(number, offset)| Some((self.names.get(*number)?, offset)));
        named.map(|(name, offset)| DamagedObject { name: name.clone(), offset: *offset }).collect()
    }

    /// The objects that have chunks in a pack, each with the first place that lies there.
    fn of_pack(&self, pack: &PackIndex) -> Vec<DamagedObject> {
        let mut first: BTreeMap<String, u64> = BTreeMap::new();
        for DamagedObject { name, offset } in pack.entries.iter().flat_map(|entry| self.objects(&entry.id)) {
            first.entry(name).and_modify(|least| *least = offset.min(*least)).or_insert(offset);
        }
        first.into_iter().map(|(name, offset)| DamagedObject { name, offset }).collect()
    }
}
