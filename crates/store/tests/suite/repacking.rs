//! What images need of packs that hold much else is written anew, so that these go; whatever fails and whenever the power goes, what is listed is complete.
#![allow(clippy::unwrap_used)]

use std::io::{self, ErrorKind};
use std::ops::ControlFlow::Continue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::removing::{assert_sound, assert_tidy, pack_bytes};
use crate::support::fault::Fault;
use crate::support::hook::Hook;
use crate::support::quota::Quota;
use crate::support::sample::{assert_sample, checkpoint, manifest, noise, objects, options, write_objects};
use crate::support::sim::{Sim, Unsynced};
use image::{Compress, ImageId, Index, ObjectKind, RawPath};
use store::media::{Around, Media, MediaLock, MediaRead};
use store::{ChunkWriter, CopyOptions, Draft, KeptWhy, Removal, Repack, Store, WriteOptions};

/// Nothing may be left that is not needed. One thread, so that what happens happens in the same order each time.
pub fn repack() -> Repack {
    Repack { max_unused: 0.0, most: u64::MAX, how: CopyOptions { threads: 1, pack_len: 1500 } }
}

fn open(medium: &Sim) -> Store {
    Store::open_media(Arc::new(medium.clone())).unwrap()
}

fn run(store: &Store, images: &[ImageId]) -> Removal {
    store.remove_and_repack(images, &repack(), &mut |_, _| Continue(())).unwrap()
}

/// Samples 0, 1 and 2, each in one pack, of which the first has what the others need, too.
pub fn mixed() -> (Sim, Store, Vec<ImageId>) {
    let medium = Sim::default();
    let (store, images) = mixed_on(Arc::new(medium.clone()));
    (medium, store, images)
}

fn mixed_on(medium: Arc<dyn Media>) -> (Store, Vec<ImageId>) {
    let store = Store::open_or_create_media(medium).unwrap();
    let take = |number| {
        let draft = store.begin().unwrap();
        let writer = writer(&draft);
        finish(draft, writer, number)
    };
    let images = (0..3).map(take).collect();
    (store, images)
}

/// A writer that puts all into one pack.
fn writer(draft: &Draft) -> ChunkWriter {
    draft.writer(&WriteOptions { pack_len: 1 << 20, ..options(Compress::None) }).unwrap()
}

fn finish(draft: Draft, writer: ChunkWriter, number: u64) -> ImageId {
    write_objects(&writer, &objects(number)).unwrap();
    draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap().id
}

/// The only pack that was written for an image.
fn pack_of(medium: &Sim, image: &ImageId) -> String {
    let index = medium.tamper(&format!("index/{image}.idx"), |bytes| bytes.clone());
    let index = Index::read(&index[..]).unwrap();
    assert_eq!(index.packs.len(), 1);
    format!("packs/{}.pack", index.packs[0].id)
}

#[test]
fn a_pack_of_which_little_is_needed_goes() {
    a_pack_of_which_little_is_needed_goes_on(Arc::new(Sim::default()));
}

/// The same on any medium.
pub fn a_pack_of_which_little_is_needed_goes_on(medium: Arc<dyn Media>) {
    let (store, images) = mixed_on(medium.clone());
    let before = pack_bytes(&*medium);
    assert_eq!(store.would_remove(&images[..1]).unwrap().freed, 0, "others need something of its pack");
    let would = store.would_remove_and_repack(&images[..1], &repack()).unwrap();
    assert_eq!((pack_bytes(&*medium), assert_sound(&store)), (before, [0, 1, 2].into()));
    let mut told = Vec::new();
    let removal = store
        .remove_and_repack(&images[..1], &repack(), &mut |done, all| {
            told.push((done, all));
            Continue(())
        })
        .unwrap();
    assert_eq!((removal.freed, &removal.images, &removal.kept), (would.freed, &would.images, &None));
    // Beside the chunks a pack has a header and a trailer.
    assert!(would.rewritten > 0 && (would.rewritten..would.rewritten + 1000).contains(&removal.rewritten));
    assert!(told.is_sorted() && told.last() == Some(&(would.rewritten, would.rewritten)), "{told:?}");
    assert_eq!(pack_bytes(&*medium), before - removal.freed + removal.rewritten);
    assert_eq!(assert_sound(&store), [1, 2].into());
    // There is nothing more to do, and what was written anew is used again.
    let again = run(&store, &[]);
    assert_eq!((again.freed, again.rewritten), (0, 0));
    let next = checkpoint(&store, "job", 0).unwrap();
    assert!(next.stored.reused > 0, "{next:?}");
    assert_eq!(assert_sound(&store), [0, 1, 2].into());
    assert_tidy(&*medium, &store);
}

#[test]
fn what_may_be_unused_and_what_may_be_written_bound_it() {
    let (medium, store, images) = mixed();
    store.remove(&images[..1]).unwrap();
    let before = pack_bytes(&medium);
    for bounded in [Repack { max_unused: 10.0, ..repack() }, Repack { most: 0, ..repack() }] {
        let removal = store.remove_and_repack(&[], &bounded, &mut |_, _| Continue(())).unwrap();
        assert_eq!((removal.freed, removal.rewritten, pack_bytes(&medium)), (0, 0, before), "{bounded:?}");
    }
    assert!(run(&store, &[]).freed > 0);
}

/// In object storage each is a question, while others may not begin.
#[test]
fn manifests_are_read_once() {
    let (medium, _, images) = mixed();
    let reads = Arc::new(Reads { inner: Arc::new(medium), manifests: AtomicUsize::new(0) });
    let store = Store::open_media(reads.clone()).unwrap();
    assert!(run(&store, &images[..1]).rewritten > 0);
    assert_eq!(reads.manifests.load(Relaxed), 2, "two images are left");
}

/// Counts how often manifests are opened.
#[derive(Debug)]
struct Reads {
    inner: Arc<dyn Media>,
    manifests: AtomicUsize,
}

impl Around for Reads {
    fn inner(&self) -> &dyn Media {
        &*self.inner
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        self.manifests.fetch_add(usize::from(path.starts_with("images/")), Relaxed);
        self.inner.open(path)
    }
}

#[test]
fn what_an_image_needed_that_goes_meanwhile_goes_too() {
    // When its manifest has been read, and before anything is written anew.
    let (medium, steady, images) = mixed();
    let (other, second) = (steady.clone(), images[1]);
    let hook = Hook::nth(Arc::new(medium.clone()), "list", "images", 2, move || {
        assert_eq!(other.remove(&[second]).unwrap().images, [second]);
    });
    let store = Store::open_media(hook.clone()).unwrap();
    run(&store, &images[..1]);
    assert!(hook.has_run());
    let settled = run(&steady, &[]);
    assert_eq!((settled.freed, settled.rewritten, settled.kept), (0, 0, None));
    assert_eq!(assert_sound(&steady), [2].into());
    assert_tidy(&medium, &steady);
}

#[test]
fn beside_a_draft_the_old_pack_waits() {
    let (medium, store, images) = mixed();
    let draft = store.begin().unwrap();
    let removal = run(&store, &images[..1]);
    assert!(removal.freed == 0 && removal.waiting > 0 && removal.rewritten > 0, "{removal:?}");
    // Nothing is written twice.
    let again = run(&store, &[]);
    assert_eq!((again.freed, again.waiting, again.rewritten), (0, removal.waiting, 0));
    drop(draft);
    // Whoever removes next frees it, though images need what was in it.
    assert_eq!(store.remove(&[]).unwrap().freed, removal.waiting);
    assert_eq!(assert_sound(&store), [1, 2].into());
    assert_tidy(&medium, &store);
}

#[test]
fn two_do_not_write_the_same_anew() {
    let expected = {
        let (medium, store, images) = mixed();
        run(&store, &images[..1]);
        pack_bytes(&medium)
    };
    let mut times = 0;
    for n in 0.. {
        let (medium, steady, images) = mixed();
        let other = steady.clone();
        let hook = Hook::any(Arc::new(medium.clone()), n, move || {
            run(&other, &[]);
        });
        let store = Store::open_media(hook.clone()).unwrap();
        let removal = run(&store, &images[..1]);
        if !hook.has_run() {
            break;
        }
        times += u32::from(removal.rewritten > 0);
        assert_eq!(assert_sound(&steady), [1, 2].into(), "step {n}");
        // At most each of the two has had a look at it; then all is as if there had been one.
        run(&steady, &[]);
        let settled = run(&steady, &[]);
        assert_eq!((settled.freed, settled.rewritten), (0, 0), "step {n}");
        assert!(pack_bytes(&medium) <= expected + 400, "step {n}: {} of {expected}", pack_bytes(&medium));
        assert_tidy(&medium, &steady);
    }
    assert!(times > 20, "{times} are too few for a test");
}

#[test]
fn a_checkpoint_may_come_between_any_two_steps() {
    for is_first in [true, false] {
        for n in 0.. {
            let (medium, steady, images) = mixed();
            let (other, first) = (steady.clone(), images[0]);
            let taken = Arc::new(AtomicBool::new(!is_first));
            let took = taken.clone();
            let hook = Hook::any(Arc::new(medium.clone()), n, move || {
                if is_first {
                    // It has to wait while something goes.
                    took.store(checkpoint(&other, "job", 0).is_ok(), Relaxed);
                } else {
                    run(&other, &[first]);
                }
            });
            let store = Store::open_media(hook.clone()).unwrap();
            if is_first {
                run(&store, &images[..1]);
            } else {
                checkpoint(&store, "job", 0).unwrap();
            }
            if !hook.has_run() {
                assert!(n > 20, "{n} operations are too few for a test");
                break;
            }
            let expected = if taken.load(Relaxed) { [0, 1, 2].into() } else { [1, 2].into() };
            assert_eq!(assert_sound(&steady), expected, "step {n}");
            run(&steady, &[]);
            assert_eq!(assert_sound(&steady), expected, "step {n}");
            assert_tidy(&medium, &steady);
        }
    }
}

#[test]
fn a_crash_at_any_point_leaves_what_is_listed_whole() {
    let (medium, _, images) = mixed();
    let medium = medium.copy();
    let removal = run(&open(&medium), &images[..1]);
    assert!(removal.rewritten > 0);
    let (end, done) = (medium.operations(), pack_bytes(&medium));
    assert!(end > 25, "{end} operations are too few for a test");
    for cut in 0..=end {
        for unsynced in Unsynced::ways(cut, 2) {
            let after = medium.after_crash(cut, unsynced);
            let store = open(&after);
            let listed = assert_sound(&store);
            assert!(listed.is_superset(&[1, 2].into()), "cut {cut}, {unsynced:?}: {listed:?}");
            run(&store, &images[..1]);
            assert_eq!(assert_sound(&store), [1, 2].into(), "cut {cut}, {unsynced:?}");
            assert!(pack_bytes(&after) <= done + 400, "cut {cut}, {unsynced:?}: something is there twice");
            assert_tidy(&after, &store);
        }
    }
}

#[test]
fn any_failing_operation_leaves_what_is_listed_whole() {
    for (count, error) in [(1, ErrorKind::Other), (1, ErrorKind::StorageFull)] {
        for n in 1.. {
            let (medium, steady, images) = mixed();
            let fault = Fault::new(Arc::new(medium.clone()), n, count, error);
            let store = Store::open_media(Arc::new(fault.clone())).unwrap();
            let result = store.remove_and_repack(&images[..1], &repack(), &mut |_, _| Continue(()));
            if !fault.struck() {
                assert!(n > 25 && result.unwrap().kept.is_none(), "{n} operations are too few for a test");
                break;
            }
            assert!(assert_sound(&steady).is_superset(&[1, 2].into()), "operation {n}");
            run(&steady, &images[..1]);
            for unsynced in [Unsynced::Lost, Unsynced::Mixed(n)] {
                let after = medium.after_crash(medium.operations(), unsynced);
                assert!(
                    assert_sound(&open(&after)).is_superset(&[1, 2].into()),
                    "operation {n}, {unsynced:?}"
                );
            }
            let settled = run(&steady, &[]);
            assert_eq!((settled.freed, settled.rewritten), (0, 0), "operation {n}");
            assert_tidy(&medium, &steady);
        }
    }
}

/// What cannot be read stays where it is: it may come back.
#[test]
fn a_rotten_chunk_keeps_its_pack() {
    let (medium, store, images) = mixed();
    store.remove(&images[..1]).unwrap();
    // The one that all others need something of.
    let first = pack_of(&medium, &images[0]);
    let whole = medium.tamper(&first, |bytes| bytes.clone());
    medium.tamper(&first, |bytes| bytes[100] ^= 1);
    let before = store.verify(&images[1], &mut |_| {}).unwrap();
    assert!(!before.ok, "the sample does not need what was damaged");
    let before = pack_bytes(&medium);
    let removal = run(&store, &[]);
    assert_eq!((removal.freed, removal.rewritten, pack_bytes(&medium)), (0, 0, before));
    assert!(!store.verify(&images[1], &mut |_| {}).unwrap().ok);
    medium.tamper(&first, |bytes| bytes.clone_from(&whole));
    assert_eq!(assert_sound(&store), [1, 2].into());
    assert!(run(&store, &[]).freed > 0);
    assert_eq!(assert_sound(&store), [1, 2].into());
    assert_tidy(&medium, &store);
}

/// Nothing of its pack is there twice, and the others go.
#[test]
fn what_lies_beside_a_rotten_chunk_is_not_kept_twice() {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let take = |number, seeds: &[u64]| {
        let draft = store.begin().unwrap();
        let writer = writer(&draft);
        for seed in seeds {
            let kind = ObjectKind::CriuFile { name: RawPath::from(format!("{seed}.img").as_str()) };
            writer.put(kind, &noise(*seed, 1000)).unwrap();
        }
        draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap().id
    };
    // The last one needs two chunks of the first pack, of which one rots, and one of the second.
    let images = [take(0, &[1, 2, 3]), take(1, &[4, 5]), take(2, &[1, 3, 4])];
    let [first, second] = [images[0], images[1]].map(|image| pack_of(&medium, &image));
    let lengths = [&first, &second].map(|pack| medium.open(pack).unwrap().len().unwrap());
    medium.tamper(&first, |bytes| bytes[100] ^= 1);
    let removal = run(&store, &images[..2]);
    assert_eq!(removal.freed, lengths[1]);
    assert!((1000..1300).contains(&removal.rewritten), "{removal:?}");
    assert_eq!(pack_bytes(&medium), lengths[0] + removal.rewritten);
    let why = removal.not_rewritten.unwrap();
    assert_eq!(why.why, KeptWhy::Unreadable);
    for word in [&first, &images[2].to_string(), "its pack stays", "`dormouse verify`"] {
        assert!(why.message.contains(word), "{word}: {why}");
    }
    let again = run(&store, &[]);
    assert_eq!((again.freed, again.rewritten, again.not_rewritten.unwrap().why), (0, 0, KeptWhy::Unreadable));
    assert_eq!(pack_bytes(&medium), lengths[0] + removal.rewritten);
}

/// A chunk that lies in a second pack, too, is looked at there before the first goes.
#[test]
fn a_rotten_copy_elsewhere_is_not_counted_on() {
    for rots in [false, true] {
        let medium = Sim::default();
        let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
        // Neither finds what the other writes.
        let drafts = [0, 1].map(|number| {
            let draft = store.begin().unwrap();
            let writer = writer(&draft);
            (number, draft, writer)
        });
        let images = drafts.map(|(number, draft, writer)| finish(draft, writer, number));
        if rots {
            // Its first chunk is one that both have.
            let pack = pack_of(&medium, &images[1]);
            medium.tamper(&pack, |bytes| bytes[100] ^= 1);
        }
        let removal = run(&store, &images[..1]);
        assert!(removal.freed > 0 && (removal.rewritten > 0) == rots, "{removal:?}");
        assert_sample(&store.open_image(&images[1]).unwrap(), 1);
    }
}

/// A job whose checkpoints change a part of its memory, here and there.
#[test]
fn a_store_does_not_grow_with_what_changes_here_and_there() {
    const OBJECTS: u64 = 200;
    const LEN: u64 = 500;
    for changed in [2, 20, 100] {
        let medium = Sim::default();
        let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
        let (mut memory, mut next) = ((0..OBJECTS).collect::<Vec<_>>(), OBJECTS);
        let (mut written, mut rewritten, mut images) = (0, 0, Vec::new());
        for round in 0..60 {
            let draft = store.begin().unwrap();
            let writer = writer(&draft);
            for (place, seed) in memory.iter().enumerate() {
                let kind = ObjectKind::CriuFile { name: RawPath::from(format!("{place}.img").as_str()) };
                writer.put(kind, &noise(*seed, LEN as usize)).unwrap();
            }
            let image = draft.publish(manifest("job", round), vec![writer.finish().unwrap()]).unwrap();
            written += image.stored.new;
            images.push(image.id);
            let repack = Repack { max_unused: 1.0, most: image.stored.new, ..repack() };
            let gone: Vec<_> = images.drain(..images.len().saturating_sub(2)).collect();
            rewritten += store.remove_and_repack(&gone, &repack, &mut |_, _| Continue(())).unwrap().rewritten;
            let (there, needed) = (pack_bytes(&medium), (OBJECTS + changed) * LEN);
            assert!(there < needed * 5 / 2, "{changed} changed, round {round}: {there} bytes for {needed}");
            for _ in 0..changed {
                let place = noise(next, 8).into_iter().fold(0, |sum, byte| sum * 7 + usize::from(byte));
                memory[place % OBJECTS as usize] = next;
                next += 1;
            }
        }
        assert!(rewritten < written, "{changed} changed: {rewritten} written anew, {written} at first");
        for image in store.list().unwrap().images {
            assert!(store.verify(&image.id, &mut |_| {}).unwrap().ok);
        }
    }
}

/// However much room there is: it ends, what is listed stays whole, and what did not help is taken back.
#[test]
fn it_ends_with_any_amount_of_room() {
    let mut freed = 0;
    for (bytes, files) in
        (0..5000).step_by(37).map(|bytes| (bytes, u64::MAX)).chain((0..8).map(|files| (u64::MAX, files)))
    {
        for pack_len in [1500, 1 << 20] {
            let (medium, steady, images) = mixed();
            let quota = Quota::new(Arc::new(medium.clone()), (bytes, files));
            let store = Store::open_media(Arc::new(quota.clone())).unwrap();
            let repack = Repack { how: CopyOptions { threads: 1, pack_len }, ..repack() };
            let before = quota.used();
            let removal = store.remove_and_repack(&images[..1], &repack, &mut |_, _| Continue(())).unwrap();
            let case = format!("{bytes} bytes, {files} files, packs of {pack_len}: {removal:?}");
            assert_eq!(removal.images, images[..1], "{case}");
            if let Some(why) = &removal.not_rewritten {
                assert_eq!(why.why, KeptWhy::Medium, "{case}");
                assert!(why.message.contains("takes ") && !why.message.contains("prune"), "{case}");
            }
            assert!(removal.freed > 0 || removal.not_rewritten.is_some() || removal.kept.is_some(), "{case}");
            assert!(
                quota.used() <= before && quota.created() < 60,
                "{} files were begun: {case}",
                quota.created()
            );
            assert_eq!(assert_sound(&steady), [1, 2].into(), "{case}");
            freed += removal.freed;
        }
    }
    assert!(freed > 100_000, "{freed} bytes are too few for a test");
}

#[test]
fn who_verifies_finds_all_whole_whoever_writes_it_anew() {
    let (medium, store, images) = mixed();
    let mut verifier = store.verifier().unwrap();
    let removal = run(&store, &images[..1]);
    assert!((removal.freed, removal.rewritten) == (0, 0) && removal.kept.is_some(), "{removal:?}");
    assert!(verifier.verify(&images[1], &mut |_| {}).unwrap().ok);
    drop(verifier);
    // He who may not lock cannot keep it.
    let reader = Store::open_media(Arc::new(Unlocked(Arc::new(medium.clone())))).unwrap();
    let (mut verifier, image) = (reader.verifier().unwrap(), reader.open_image(&images[1]).unwrap());
    let (kind, bytes) = objects(1).swap_remove(0);
    assert!(image.read_to_vec(&kind, bytes.len()).unwrap() == bytes, "its pack is open");
    assert!(run(&store, &[]).freed > 0);
    // What was written anew is written anew.
    store.remove(&images[2..]).unwrap();
    let again = Repack { how: CopyOptions { threads: 1, pack_len: 700 }, ..repack() };
    store.remove_and_repack(&[], &again, &mut |_, _| Continue(())).unwrap();
    assert!(verifier.verify(&images[1], &mut |_| {}).unwrap().ok);
    assert_sample(&image, 1);
}

/// Whoever may only read.
#[derive(Debug)]
struct Unlocked(Arc<dyn Media>);

impl Around for Unlocked {
    fn inner(&self) -> &dyn Media {
        &*self.0
    }

    fn share(&self, _: &str) -> io::Result<MediaLock> {
        Err(ErrorKind::PermissionDenied.into())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Ok(Box::new(Named { medium: self.0.clone(), path: path.to_owned(), file: self.0.open(path)? }))
    }
}

/// An open file that is there as long as its name is, as an object is.
#[derive(Debug)]
struct Named {
    medium: Arc<dyn Media>,
    path: String,
    file: Box<dyn MediaRead>,
}

impl MediaRead for Named {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.medium.open(&self.path)?;
        self.file.read_exact_at(buffer, offset)
    }
}

/// For an image that is all that is left of a job a copy that is to go proves nothing.
#[test]
fn what_is_read_again_is_read_where_it_stays() {
    let (medium, store, images) = mixed();
    let before = medium.list("packs").unwrap();
    let earlier = store.begin().unwrap();
    assert!(run(&store, &images[..1]).waiting > 0);
    for new in medium.list("packs").unwrap().iter().filter(|name| !before.contains(name)) {
        medium.tamper(&format!("packs/{new}"), |bytes| bytes[100] ^= 1);
    }
    let draft = store.begin().unwrap();
    let options = WriteOptions { reread: true, pack_len: 1 << 20, ..options(Compress::None) };
    let writer = draft.writer(&options).unwrap();
    let last = finish(draft, writer, 1);
    drop(earlier);
    assert!(store.remove(&[]).unwrap().freed > 0);
    assert_sample(&store.open_image(&last).unwrap(), 1);
}
