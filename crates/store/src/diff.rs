//! What differs between two images, told from their manifests: equal bytes have equal chunks, so nothing else is read.

use std::collections::{BTreeMap, HashMap};

use image::{ChunkId, Extent, ImageId, Manifest, Object, ObjectKind};
use serde::Serialize;

use crate::names::object_name;
use crate::report::kind_name;
use crate::{ReadError, Store};

/// What differs between image A and image B.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// A.
    pub a: ImageId,
    /// B.
    pub b: ImageId,
    /// The objects that differ, those of one kind together, in the order of their names.
    pub objects: Vec<ObjectDiff>,
    /// The sums for each kind that either has.
    pub kinds: Vec<KindDiff>,
    /// Different chunks that both have.
    pub shared: Chunks,
    /// Different chunks that only A has.
    pub only_a: Chunks,
    /// Different chunks that only B has.
    pub only_b: Chunks,
}

/// An object that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectDiff {
    /// Its name, as [`object_name`] gives it.
    pub object: String,
    /// Its sort.
    pub kind: &'static str,
    /// What became of it.
    pub change: Change,
    /// Its length in A; none where it is new.
    pub len_a: Option<u64>,
    /// Its length in B; none where it is gone.
    pub len_b: Option<u64>,
    /// What differs.
    #[serde(flatten)]
    pub differ: Pieces,
}

/// What became of an object on the way from A to B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Only B has it.
    Added,
    /// Only A has it.
    Removed,
    /// Both have it, with other bytes.
    Changed,
}

/// How much of an object differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pieces {
    /// Bytes of the pieces that differ, zeros included.
    pub bytes: u64,
    /// How many pieces differ that are not zero on both sides.
    pub chunks: u64,
}

/// All objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KindDiff {
    /// The sort.
    pub kind: &'static str,
    /// How many are the same.
    pub same: u64,
    /// How many are changed.
    pub changed: u64,
    /// How many only B has.
    pub added: u64,
    /// How many only A has.
    pub removed: u64,
    /// What differs in all of them.
    #[serde(flatten)]
    pub differ: Pieces,
}

/// A set of chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// How many.
    pub chunks: u64,
    /// Their bytes, uncompressed.
    pub bytes: u64,
}

impl Store {
    /// What differs between two images of this store.
    ///
    /// # Errors
    /// As [`Store::manifest`].
    pub fn diff(&self, a: &ImageId, b: &ImageId) -> Result<Diff, ReadError> {
        Ok(Diff::of(&self.manifest(a)?, &self.manifest(b)?))
    }
}

impl Diff {
    /// What differs between two images, of whatever stores.
    #[must_use]
    pub fn of(a: &Manifest, b: &Manifest) -> Self {
        let mut pairs: BTreeMap<&ObjectKind, (Option<&Object>, Option<&Object>)> = BTreeMap::new();
        a.objects.iter().for_each(|object| pairs.entry(&object.kind).or_default().0 = Some(object));
        b.objects.iter().for_each(|object| pairs.entry(&object.kind).or_default().1 = Some(object));
        let (mut objects, mut kinds) = (Vec::new(), Vec::<KindDiff>::new());
        for (kind, (in_a, in_b)) in pairs {
            let name = kind_name(kind);
            // Kinds sort by their sorts first, so one that is another than the last is a new one.
            if kinds.last().is_none_or(|last| last.kind != name) {
                kinds.push(KindDiff::none_of(name));
            }
            let object = ObjectDiff::of(kind, in_a, in_b);
            if let Some(sum) = kinds.last_mut() {
                sum.count(object.as_ref());
            }
            objects.extend(object);
        }
        let (shared, only_a, only_b) = compare_chunks(a, b);
        Self { a: a.id, b: b.id, objects, kinds, shared, only_a, only_b }
    }

    /// Whether both have the same bytes in the same objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

impl ObjectDiff {
    fn of(kind: &ObjectKind, in_a: Option<&Object>, in_b: Option<&Object>) -> Option<Self> {
        let change = match (in_a, in_b) {
            (Some(_), Some(_)) => Change::Changed,
            (Some(_), None) => Change::Removed,
            (None, _) => Change::Added,
        };
        let differ = compare(in_a, in_b);
        let is_same = change == Change::Changed && differ == Pieces::default();
        (!is_same).then(|| Self {
            object: object_name(kind),
            kind: kind_name(kind),
            change,
            len_a: in_a.map(Object::len),
            len_b: in_b.map(Object::len),
            differ,
        })
    }
}

impl KindDiff {
    fn none_of(kind: &'static str) -> Self {
        Self { kind, same: 0, changed: 0, added: 0, removed: 0, differ: Pieces::default() }
    }

    fn count(&mut self, object: Option<&ObjectDiff>) {
        *match object.map(|object| object.change) {
            None => &mut self.same,
            Some(Change::Changed) => &mut self.changed,
            Some(Change::Added) => &mut self.added,
            Some(Change::Removed) => &mut self.removed,
        } += 1;
        if let Some(ObjectDiff { differ, .. }) = object {
            self.differ.bytes = self.differ.bytes.saturating_add(differ.bytes);
            self.differ.chunks += differ.chunks;
        }
    }
}

/// A walk along an object's extents.
struct Walk<'a, I: Iterator<Item = (u64, &'a Extent)>> {
    rest: std::iter::Peekable<I>,
}

impl<'a, I: Iterator<Item = (u64, &'a Extent)>> Walk<'a, I> {
    /// The extent at `at`, with its begin and its end; none behind the object's end.
    fn at(&mut self, at: u64) -> Option<(u64, u64, &'a Extent)> {
        let end = |(from, extent): (u64, &Extent)| from.saturating_add(extent.len());
        while self.rest.next_if(|next| end(*next) <= at).is_some() {}
        self.rest.peek().map(|next| (next.0, end(*next), next.1))
    }
}

fn walk(object: Option<&Object>) -> Walk<'_, impl Iterator<Item = (u64, &Extent)>> {
    Walk { rest: object.into_iter().flat_map(Object::placed_extents).peekable() }
}

/// How much differs between two objects, place by place.
fn compare(in_a: Option<&Object>, in_b: Option<&Object>) -> Pieces {
    let (mut in_a, mut in_b, mut at, mut differ) = (walk(in_a), walk(in_b), 0, Pieces::default());
    loop {
        let (a, b) = (in_a.at(at), in_b.at(at));
        let Some(end) = [a, b].into_iter().flatten().map(|(_, end, _)| end).min() else { return differ };
        let is_same = match (a, b) {
            (Some((_, _, Extent::Zero { .. })), Some((_, _, Extent::Zero { .. }))) => true,
            (Some((from_a, _, a)), Some((from_b, _, b))) => from_a == from_b && a == b,
            _ => false,
        };
        if !is_same {
            differ.bytes += end - at;
            let chunk = |(_, _, extent): &(u64, u64, &Extent)| matches!(extent, Extent::Chunk { .. });
            // A chunk differs as a whole or not at all: it counts where it ends.
            let counts =
                b.filter(chunk).or(a.filter(chunk)).is_some_and(|(_, chunk_end, _)| chunk_end == end);
            differ.chunks += u64::from(counts);
        }
        at = end;
    }
}

/// The different chunks of two images: those that both have, those of A alone, those of B alone.
fn compare_chunks(a: &Manifest, b: &Manifest) -> (Chunks, Chunks, Chunks) {
    let chunks_of = |manifest: &Manifest| -> HashMap<ChunkId, u64> {
        manifest.chunks().map(|(id, len)| (id, len.into())).collect()
    };
    let (in_a, in_b) = (chunks_of(a), chunks_of(b));
    let sum = |chunks: &mut dyn Iterator<Item = &u64>| {
        chunks.fold(Chunks::default(), |sum, len| Chunks {
            chunks: sum.chunks + 1,
            bytes: sum.bytes.saturating_add(*len),
        })
    };
    let of = |chunks: &HashMap<ChunkId, u64>, others: &HashMap<ChunkId, u64>, shared: bool| {
        sum(&mut chunks.iter().filter(|(id, _)| others.contains_key(*id) == shared).map(|(_, len)| len))
    };
    (of(&in_a, &in_b, true), of(&in_a, &in_b, false), of(&in_b, &in_a, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RawPath;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// An object of these pieces: 0 is 2 MiB of zeros, another number the chunk of that number, of `tail` bytes where it is the last.
    fn object(name: &str, pieces: &[u8], tail: u32) -> Object {
        let mut extents: Vec<Extent> = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let len = if number + 1 == pieces.len() { tail } else { 2 << 20 };
            match (piece, extents.last_mut()) {
                (0, Some(Extent::Zero { len: run })) => *run += u64::from(len),
                (0, _) => extents.push(Extent::Zero { len: len.into() }),
                (piece, _) => {
                    let mut id = [*piece; 32];
                    id[..4].copy_from_slice(&len.to_le_bytes());
                    extents.push(Extent::Chunk { id: ChunkId(id), len });
                }
            }
        }
        Object { kind: ObjectKind::CriuFile { name: RawPath::from(name) }, extents }
    }

    fn image(objects: Vec<Object>) -> Manifest {
        Manifest { objects, ..Manifest::new("job") }
    }

    #[test]
    fn objects_come_go_and_change() {
        let full = 2 << 20;
        let a = image(vec![
            object("changed", &[1, 2, 0, 0, 5], full),
            object("gone", &[1, 7], 10),
            object("same", &[0, 4], 10),
        ]);
        let mut b = image(vec![
            object("changed", &[1, 3, 0, 6, 5], full),
            object("new", &[0, 1], 100),
            object("same", &[0, 4], 10),
        ]);
        b.objects.push(Object { kind: ObjectKind::HostRecord, extents: Vec::new() });
        let diff = Diff::of(&a, &b);
        let told: Vec<_> = diff
            .objects
            .iter()
            .map(|each| (each.object.as_str(), each.change, each.differ.bytes, each.differ.chunks))
            .collect();
        assert_eq!(
            told,
            [
                ("criu:changed", Change::Changed, 4 * MIB, 2),
                ("criu:gone", Change::Removed, 2 * MIB + 10, 2),
                ("criu:new", Change::Added, 2 * MIB + 100, 1),
                ("record", Change::Added, 0, 0),
            ]
        );
        let lengths = |at: usize| (diff.objects[at].len_a, diff.objects[at].len_b);
        assert_eq!(lengths(0), (Some(10 * MIB), Some(10 * MIB)));
        assert_eq!((lengths(1), lengths(3)), ((Some(2 * MIB + 10), None), (None, Some(0))));
        let [criu, record] = &diff.kinds[..] else { panic!("{:?}", diff.kinds) };
        assert_eq!((criu.same, criu.changed, criu.added, criu.removed), (1, 1, 1, 1));
        assert_eq!((criu.differ.chunks, record.kind, record.added), (5, "host_record", 1));
        // In both: 1 and 5 of 2 MiB, 4 of 10 bytes. A alone: 2, and 7 of 10 bytes. B alone: 3, 6, and 1 of 100 bytes.
        assert_eq!(diff.shared, Chunks { chunks: 3, bytes: 4 * MIB + 10 });
        assert_eq!(diff.only_a, Chunks { chunks: 2, bytes: 2 * MIB + 10 });
        assert_eq!(diff.only_b, Chunks { chunks: 3, bytes: 4 * MIB + 100 });
    }

    #[test]
    fn a_longer_object_differs_by_its_tail() {
        let of = |pieces: &[u8], tail| Some(object("o", pieces, tail));
        let differ = |a: Option<Object>, b: Option<Object>| {
            let Pieces { bytes, chunks } = compare(a.as_ref(), b.as_ref());
            (bytes, chunks)
        };
        assert_eq!(differ(of(&[1], 2 << 20), of(&[1, 2], 5)), (5, 1));
        assert_eq!(differ(of(&[1, 0], 5), of(&[1, 0], 9)), (4, 0));
        assert_eq!(differ(of(&[1, 0, 0], 2 << 20), of(&[1], 2 << 20)), (4 * MIB, 0));
        // The last chunk is another one when it grows.
        assert_eq!(differ(of(&[1, 2], 5), of(&[1, 2], 9)), (9, 1));
        assert_eq!(differ(None, None), (0, 0));
    }

    proptest! {
        /// Against the same question asked of every piece in turn.
        #[test]
        fn differences_are_those_of_the_pieces(pairs in proptest::collection::vec((0u8..4, 0u8..4), 0..40)) {
            let (a, b): (Vec<u8>, Vec<u8>) = pairs.iter().copied().unzip();
            let found = compare(Some(&object("o", &a, 2 << 20)), Some(&object("o", &b, 2 << 20)));
            let different = pairs.iter().filter(|(a, b)| a != b).count() as u64;
            prop_assert_eq!(found, Pieces { bytes: different * 2 * MIB, chunks: different });
        }
    }
}
