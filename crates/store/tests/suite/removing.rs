//! Images go, and take with them what no other needs; whatever fails and whenever the power goes, what is listed is complete.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::support::fault::Fault;
use crate::support::hook::Hook;
use crate::support::quota::Quota;
use crate::support::sample::{assert_sample, checkpoint, manifest, objects, options, write, write_objects};
use crate::support::sim::{Sim, Unsynced};
use image::{Compress, ImageId, Index};
use store::media::Media;
use store::{ChunkWriter, Draft, FindError, Keep, KeptWhy, Pruned, Store, WriteOptions};

fn open(medium: &Sim) -> Store {
    Store::open_media(Arc::new(medium.clone())).unwrap()
}

/// A store with samples 0, 1 and 2, each chunk in a pack of its own.
pub fn three() -> (Sim, Store, Vec<ImageId>) {
    let medium = Sim::default();
    let (store, images) = three_on(Arc::new(medium.clone()));
    (medium, store, images)
}

/// A writer that puts each chunk into a pack of its own.
pub fn writer(draft: &Draft) -> ChunkWriter {
    draft.writer(&WriteOptions { pack_len: 1, ..options(Compress::Lz4) }).unwrap()
}

pub fn three_on(medium: Arc<dyn Media>) -> (Store, Vec<ImageId>) {
    let store = Store::open_or_create_media(medium).unwrap();
    let images = three_in(&store);
    (store, images)
}

pub fn three_in(store: &Store) -> Vec<ImageId> {
    let take = |number| {
        let draft = store.begin().unwrap();
        let writer = writer(&draft);
        write_objects(&writer, &objects(number)).unwrap();
        draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap().id
    };
    (0..3).map(take).collect()
}

/// Checks all that a store lists, and says which samples that is.
pub fn assert_sound(store: &Store) -> BTreeSet<u64> {
    let listing = store.list().unwrap();
    assert_eq!(listing.damaged, []);
    let check = |summary: &store::report::ImageSummary| {
        let report = store.verify(&summary.id, &mut |_| {}).unwrap();
        assert!(report.ok, "{report:#?}");
        let image = store.open_image(&summary.id).unwrap();
        let number = image.manifest().job_files[0].len;
        assert_sample(&image, number);
        number
    };
    listing.images.iter().map(check).collect()
}

/// Bytes of the files in a folder. Others may remove some of them meanwhile.
fn bytes(medium: &dyn Media, folder: &str) -> u64 {
    let len = |name: &String| match medium.open(&format!("{folder}/{name}")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        opened => opened.unwrap().len().unwrap(),
    };
    medium.list(folder).unwrap().iter().map(len).sum()
}

pub fn pack_bytes(medium: &dyn Media) -> u64 {
    bytes(medium, "packs")
}

/// Nothing is left that no image needs, and all goes on.
pub fn assert_tidy(medium: &dyn Media, store: &Store) {
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.waiting, removal.kept), (0, None));
    assert_eq!(store.remove(&[]).unwrap().freed, 0);
    assert!(!medium.list("index").unwrap().contains(&"condemned".to_owned()));
    let images = assert_sound(store);
    if images.is_empty() {
        assert_eq!((medium.list("packs").unwrap().len(), medium.list("index").unwrap().len()), (0, 0));
    }
    checkpoint(store, "job", 9).unwrap();
    assert_eq!(assert_sound(store), &images | &[9].into());
    assert_eq!(medium.list("tmp").unwrap(), [""; 0]);
}

#[test]
fn to_say_what_would_go_changes_nothing() {
    let (medium, store, images) = three();
    let operations = medium.operations();
    store.would_remove(&images[..1]).unwrap();
    assert_eq!(medium.operations(), operations);
}

#[test]
fn what_no_other_image_needs_goes_with_an_image() {
    what_no_other_image_needs_goes(Arc::new(Sim::default()));
}

/// The same on any medium.
pub fn what_no_other_image_needs_goes(medium: Arc<dyn Media>) {
    let (store, images) = three_on(medium.clone());
    let medium = &*medium;
    let before = pack_bytes(medium);
    let planned = store.would_remove(&images[..1]).unwrap();
    let (indexes, named) = (medium.list("index").unwrap(), bytes(medium, "index"));
    let removal = store.remove(&images[..1]).unwrap();
    assert_eq!(removal, planned);
    assert!(removal.freed > 0 && removal.images == images[..1]);
    // What is left of its index names what others need.
    assert!(medium.list("index").unwrap() == indexes && bytes(medium, "index") < named);
    assert_eq!(pack_bytes(medium), before - removal.freed);
    assert_eq!(assert_sound(&store), [1, 2].into());
    // Its chunks are written again.
    assert!(checkpoint(&store, "job", 0).unwrap().stored.new > 0);
    assert_eq!(assert_sound(&store), [0, 1, 2].into());
    let all: Vec<ImageId> = store.list().unwrap().images.iter().map(|image| image.id).collect();
    store.remove(&all).unwrap();
    assert_eq!(pack_bytes(medium), 0);
    assert_tidy(medium, &store);
}

#[test]
fn an_image_is_named_by_its_id_alone() {
    let (_medium, store, images) = three();
    let id = images[0].to_string();
    assert_eq!(store.find_exactly(&id).unwrap(), images[0]);
    assert_eq!(store.find_exactly(&id[..8]).unwrap(), images[0]);
    assert!(matches!(store.find_exactly(&id[..3]), Err(FindError::TooShort { .. })));
    for wrong in ["", "job", "job@latest", "zzzz"] {
        assert!(matches!(store.find_exactly(wrong), Err(FindError::NotFound { .. })), "{wrong}");
    }
    // Of what is not there nothing is said to be gone.
    let absent = ImageId([0; 16]);
    assert_eq!(store.would_remove(&[images[0], absent]).unwrap().images, images[..1]);
    assert_eq!(store.remove(&[images[0], absent]).unwrap().images, images[..1]);
    assert_eq!(assert_sound(&store), [1, 2].into());
}

#[test]
fn who_uses_the_store_keeps_what_it_has() {
    who_uses_it_keeps_what_it_has(Arc::new(Sim::default()));
}

/// The same on any medium.
pub fn who_uses_it_keeps_what_it_has(medium: Arc<dyn Media>) {
    let (store, images) = three_on(medium.clone());
    let draft = store.begin().unwrap();
    let writer = draft.writer(&options(Compress::Lz4)).unwrap();
    let before = pack_bytes(&*medium);
    let removal = store.remove(&images[..1]).unwrap();
    assert!(removal.waiting > 0 && (removal.freed, removal.kept) == (0, None));
    assert_eq!(pack_bytes(&*medium), before);
    assert_eq!(assert_sound(&store), [1, 2].into());
    // All of this is found in packs that no image needs by now.
    write_objects(&writer, &objects(0)).unwrap();
    let again = draft.publish(manifest("job", 0), vec![writer.finish().unwrap()]);
    assert_eq!(again.unwrap().stored.new, 0);
    assert_eq!(assert_sound(&store), [0, 1, 2].into());

    let open = store.open_image(&images[1]).unwrap();
    let removal = store.remove(&images[1..2]).unwrap();
    assert!((removal.freed, removal.waiting) == (0, 0));
    assert!(removal.kept.unwrap().message.contains("the next `dormouse rm`"));
    assert_sample(&open, 1);
    drop(open);
    assert!(store.remove(&[]).unwrap().freed > 0);
    assert_tidy(&*medium, &store);
}

#[test]
fn nothing_is_freed_that_an_unreadable_image_may_need() {
    let (medium, store, images) = three();
    medium.tamper(&format!("images/{}.img", images[0]), |bytes| bytes.truncate(90));
    let before = pack_bytes(&medium);
    let removal = store.remove(&images[1..2]).unwrap();
    assert!(removal.freed == 0 && removal.kept.unwrap().message.contains(&images[0].to_string()));
    assert_eq!(pack_bytes(&medium), before);
    let removal = store.remove(&[store.find_exactly(&images[0].to_string()[..8]).unwrap()]).unwrap();
    assert!(removal.freed > 0 && removal.kept.is_none());
}

/// All packs of a store, and what is in them.
fn packs(medium: &Sim) -> Vec<String> {
    medium.list("packs").unwrap().into_iter().map(|name| format!("packs/{name}")).collect()
}

#[test]
fn a_damaged_index_is_written_anew_from_the_packs() {
    let (medium, _, images) = three();
    let indexes: Vec<_> =
        medium.list("index").unwrap().into_iter().map(|name| format!("index/{name}")).collect();
    assert_eq!(indexes.len(), 3);
    let flip: &dyn Fn(&mut Vec<u8>) = &|bytes| bytes[100] ^= 1;
    // One under another's name is no better.
    let other = medium.tamper(&indexes[0], |bytes| bytes.clone());
    let swap: &dyn Fn(&mut Vec<u8>) = &|bytes| bytes.clone_from(&other);
    for (damaged, change) in
        [(&indexes[..1], flip), (&indexes[1..2], swap), (&indexes[..2], flip), (&indexes[..], flip)]
    {
        let medium = medium.copy();
        damaged.iter().for_each(|index| medium.tamper(index, change));
        // With that as it was all the time.
        let medium = medium.copy();
        assert_removed_whole(&medium, &images[2..], &format!("{damaged:?}"));
    }
}

/// The last of three images is removed as planned, wherever that is cut off, and the others stay whole.
fn assert_removed_whole(medium: &Sim, image: &[ImageId], what: &str) {
    let store = open(medium);
    let planned = store.would_remove(image).unwrap();
    let removal = store.remove(image).unwrap();
    assert!(removal.freed > 0 && removal.kept.is_none(), "{what}: {removal:?}");
    assert_eq!(removal, planned);
    let end = medium.operations();
    assert_eq!(assert_sound(&store), [0, 1].into(), "{what}");
    assert_tidy(medium, &store);
    // Cut off, it goes on the next time.
    for cut in 0..=end {
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(cut as u64)] {
            let after = medium.after_crash(cut, unsynced);
            let store = open(&after);
            store.remove(&[]).unwrap();
            assert!(assert_sound(&store).is_superset(&[0, 1].into()), "cut {cut}, {unsynced:?}");
            assert_tidy(&after, &store);
        }
    }
}

/// What no index names may be what an image needs.
#[test]
fn a_missing_index_is_written_anew_from_the_packs() {
    let (medium, _, images) = three();
    let indexes = medium.list("index").unwrap();
    for missing in [&indexes[..1], &indexes[1..2], &indexes[..]] {
        let medium = medium.copy();
        missing.iter().for_each(|index| medium.remove(&format!("index/{index}")).unwrap());
        let medium = medium.copy();
        assert_removed_whole(&medium, &images[2..], &format!("{missing:?}"));
    }
}

#[test]
fn nothing_goes_that_a_missing_index_may_have_named() {
    nothing_goes_that_a_missing_index_may_have_named_on(Arc::new(Sim::default()));
}

/// The same on any medium: beside a checkpoint all stays, and behind it what is needed.
pub fn nothing_goes_that_a_missing_index_may_have_named_on(medium: Arc<dyn Media>) {
    let (store, images) = three_on(medium.clone());
    for index in medium.list("index").unwrap() {
        medium.remove(&format!("index/{index}")).unwrap();
    }
    let before = pack_bytes(&*medium);
    let draft = store.begin().unwrap();
    let packs = write(&draft, 7).unwrap();
    for _ in 0..2 {
        assert_eq!((store.remove(&[]).unwrap().freed, store.would_remove(&[]).unwrap().freed), (0, 0));
    }
    assert!(pack_bytes(&*medium) >= before);
    draft.publish(manifest("job", 7), packs).unwrap();
    let keep = Keep { last: 2, ..Keep::default() };
    let pruned = store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
    // The images of which no index was there are not counted, and whole again by that; at the oldest nobody looks.
    assert_eq!((pruned.removal.images.len(), pruned.lacking.len()), (0, 2));
    assert_eq!(assert_sound(&store), [0, 1, 2, 7].into());
    assert!(store.remove(&images[..1]).unwrap().freed > 0);
    assert_eq!(assert_sound(&store), [1, 2, 7].into());
    assert_tidy(&*medium, &store);
}

#[test]
fn what_may_be_in_a_pack_that_does_not_say_it_stays() {
    let (medium, store, images) = three();
    let own = packs_of(&medium, &images[1]);
    medium.remove(&format!("index/{}.idx", images[1])).unwrap();
    let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    medium.tamper(&own[0], flip);
    let before = pack_bytes(&medium);
    for removal in [store.remove(&images[2..]).unwrap(), store.would_remove(&[]).unwrap()] {
        let kept = removal.kept.unwrap();
        assert_eq!((removal.freed, pack_bytes(&medium), kept.why), (0, before, KeptWhy::Unreadable));
        for word in ["an index is missing from /sim/index,", &own[0], "`dormouse copy /sim/ NEWSTORE`"] {
            assert!(kept.message.contains(word), "{word}: {kept}");
        }
    }
    // What nobody needs stands in no one's way.
    assert!(store.remove(&images[1..2]).unwrap().freed > 0);
    assert_eq!(assert_sound(&store), [0].into());
    assert_tidy(&medium, &store);
}

#[test]
fn an_index_that_cannot_be_written_anew_is_named_with_a_way_out() {
    let (medium, store, images) = three();
    let index = format!("index/{}", medium.list("index").unwrap()[0]);
    medium.tamper(&index, |bytes| bytes[100] ^= 1);
    // The last byte is of the end that every pack has.
    for pack in packs(&medium) {
        medium.tamper(&pack, |bytes| *bytes.last_mut().unwrap() ^= 1);
    }
    let before = pack_bytes(&medium);
    let removal = store.remove(&images[2..]).unwrap();
    let kept = removal.kept.unwrap().message;
    assert_eq!((removal.freed, pack_bytes(&medium)), (0, before));
    for word in [&format!("/sim/{index} is damaged"), "/sim/packs/", "`dormouse copy /sim/ NEWSTORE`"] {
        assert!(kept.contains(word), "{word}: {kept}");
    }
}

#[test]
fn a_crash_at_any_point_of_a_removal_leaves_what_is_listed_whole() {
    let (medium, _, images) = three();
    let medium = medium.copy();
    let store = open(&medium);
    store.remove(&[images[0]]).unwrap();
    let first = medium.operations();
    store.remove(&[images[2]]).unwrap();
    let end = medium.operations();
    assert!(end > 15, "{first}, {end} operations are too few for a test");
    for cut in 0..=end {
        for unsynced in Unsynced::ways(cut, 8) {
            let after = medium.after_crash(cut, unsynced);
            let store = open(&after);
            let listed = assert_sound(&store);
            assert!(listed.contains(&1), "cut {cut}, {unsynced:?}: {listed:?}");
            assert!(cut < first || !listed.contains(&0), "cut {cut}, {unsynced:?}: it is back");
            assert_tidy(&after, &store);
        }
    }
}

#[test]
fn any_failing_operation_of_a_removal_leaves_what_is_listed_whole() {
    let (before, _, images) = three();
    for count in [1, u64::MAX] {
        for n in 1.. {
            let medium = before.copy();
            let fault = Fault::new(Arc::new(medium.clone()), n, count, ErrorKind::Other);
            let result = Store::open_media(Arc::new(fault.clone())).unwrap().remove(&images[1..]);
            if !fault.struck() {
                result.unwrap();
                assert!(n > 5, "{n} operations are too few for a test");
                break;
            }
            assert!(assert_sound(&open(&medium)).contains(&0), "operation {n}");
            // Removed and never synced: the next removal must not count on that.
            let store = open(&medium);
            store.remove(&[]).unwrap();
            for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(n), Unsynced::Mixed(n << 32)] {
                let after = medium.after_crash(medium.operations(), unsynced);
                let store = open(&after);
                assert!(assert_sound(&store).contains(&0), "operation {n}, {unsynced:?}");
                assert_tidy(&after, &store);
            }
        }
    }
}

/// Who makes room is told how much that takes, and not to make room as he does.
#[test]
fn without_room_for_an_index_it_is_said_how_much_that_takes() {
    let (medium, _, images) = three();
    medium.remove(&format!("images/{}.img", images[0])).unwrap();
    let full = Quota::new(Arc::new(medium.clone()), (0, u64::MAX));
    let error = Store::open_media(Arc::new(full)).unwrap().remove(&[]).unwrap_err().to_string();
    assert!(error.contains("takes 1 KiB for a moment") && !error.contains("prune"), "{error}");
    assert_eq!(assert_sound(&open(&medium)), [1, 2].into());
}

#[test]
fn pruning_keeps_the_newest_of_each_job() {
    pruning_keeps_the_newest(Arc::new(Sim::default()));
}

/// The same on any medium.
pub fn pruning_keeps_the_newest(medium: Arc<dyn Media>) {
    let (store, images) = three_on(medium.clone());
    let other = {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&options(Compress::Lz4)).unwrap();
        write_objects(&writer, &objects(3)).unwrap();
        draft.publish(manifest("other", 3), vec![writer.finish().unwrap()]).unwrap().id
    };
    let newest_first: Vec<_> = store.list().unwrap().images.iter().rev().map(|image| image.id).collect();
    let keep = Keep { last: 1, ..Keep::default() };
    let nothing = Keep { last: 9, ..Keep::default() };
    let remove = |gone: &[ImageId]| store.remove(gone);
    assert_eq!(store.prune(None, &nothing, remove).unwrap().removal.images, []);
    let would = store.prune(Some("job"), &keep, |gone| store.would_remove(gone)).unwrap();
    assert_eq!(would.kept_images, [newest_first.iter().copied().find(|id| images.contains(id)).unwrap()]);
    assert_eq!(assert_sound(&store).len(), 4, "nothing has gone");
    let Pruned { kept_images, lacking, removal } = store.prune(Some("job"), &keep, remove).unwrap();
    assert_eq!((&kept_images, &removal), (&would.kept_images, &would.removal));
    assert_eq!((removal.images.len(), removal.kept, lacking), (2, None, vec![]));
    let all = store.prune(None, &keep, remove).unwrap();
    assert_eq!((all.removal.images.len(), all.kept_images.len()), (0, 2));
    assert!(all.kept_images.contains(&other));
    assert_eq!(assert_sound(&store).len(), 2);
    assert_tidy(&*medium, &store);
}

/// The packs that came with an image.
fn packs_of(medium: &Sim, image: &ImageId) -> Vec<String> {
    let index = medium.tamper(&format!("index/{image}.idx"), |bytes| bytes.clone());
    let packs = Index::read(&index[..]).unwrap().packs;
    packs.iter().map(|pack| format!("packs/{}.pack", pack.id)).collect()
}

/// An image that cannot be restarted stays, and is not what others go for.
#[test]
fn an_image_that_lacks_something_is_not_counted() {
    type Damage = fn(&Sim, &ImageId);
    let damages: [Damage; 3] = [
        |medium, image| medium.remove(&packs_of(medium, image)[0]).unwrap(),
        |medium, image| medium.tamper(&packs_of(medium, image)[0], |bytes| bytes.truncate(80)),
        |medium, image| medium.tamper(&format!("index/{image}.idx"), Vec::clear),
    ];
    let keep = Keep { last: 1, ..Keep::default() };
    for damage in damages {
        let (medium, store, images) = three();
        damage(&medium, &images[2]);
        let pruned = store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
        assert_eq!(pruned.kept_images, [images[2], images[1]]);
        let [lacking] = &pruned.lacking[..] else { panic!("{pruned:?}") };
        assert_eq!(lacking.image, images[2]);
        assert!(lacking.problem.contains(&format!("verify --quick {}", images[2])), "{lacking:?}");
        assert_eq!(pruned.removal.images, images[..1]);
        assert_sample(&store.open_image(&images[1]).unwrap(), 1);
    }
    // Where none is whole all stay: at the oldest nobody looks, since nothing would go for it.
    let (medium, store, images) = three();
    images.iter().for_each(|image| medium.remove(&packs_of(&medium, image)[0]).unwrap());
    let pruned = store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
    assert_eq!((pruned.kept_images.len(), pruned.lacking.len(), pruned.removal.images.len()), (3, 2, 0));
}

/// What is missing may have been written anew between two looks.
#[test]
fn an_image_whose_packs_are_written_anew_meanwhile_is_whole() {
    let (medium, _, images) = three();
    let index = format!("index/{}.idx", images[2]);
    let pack = packs_of(&medium, &images[2])[0].clone();
    let bytes = medium.tamper(&pack, |bytes| bytes.clone());
    medium.remove(&pack).unwrap();
    let other = medium.clone();
    let back = move || {
        let mut file = other.create(&pack).unwrap();
        file.write_all(&bytes).unwrap();
    };
    // Behind the list of packs.
    let store = Store::open_media(Hook::new(Arc::new(medium), "open", &index, back)).unwrap();
    let keep = Keep { last: 1, ..Keep::default() };
    let pruned = store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
    assert_eq!((&pruned.kept_images[..], &pruned.lacking[..]), (&images[2..], &[][..]));
}

/// What somebody asked for is neither counted nor removed with what came about by itself; nor is what another job of the same name has left.
#[test]
fn regular_images_make_room_for_regular_ones_only() {
    let store = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let take = |lineage: Option<u8>, regular: bool| {
        let draft = store.begin().unwrap();
        let receipts = write(&draft, 1).unwrap();
        let lineage = lineage.map(|number| image::Lineage([number; 16]));
        draft.publish(image::Manifest { regular, lineage, ..manifest("job", 1) }, receipts).unwrap().id
    };
    let [older, asked, elsewhere, old, other, new, last] = [
        (None, true),
        (Some(1), false),
        (Some(1), true),
        (Some(1), true),
        (Some(2), true),
        (Some(1), true),
        (Some(1), false),
    ]
    .map(|(lineage, regular)| take(lineage, regular));
    let pruned = store
        .prune_regular(image::Lineage([1; 16]), 1, |image| image.id != elsewhere, |gone| store.remove(gone))
        .unwrap();
    assert_eq!((pruned.kept_images, pruned.removal.images), (vec![new], vec![old]));
    let mut left: Vec<_> = store.list().unwrap().images.iter().map(|image| image.id).collect();
    let mut expected = [older, asked, elsewhere, other, new, last];
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected);
}
