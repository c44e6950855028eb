//! Images go from store to store: what the other lacks, as it is stored; whatever fails and whenever the power goes, what is listed is complete.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::support::fault::Fault;
use crate::support::hook::Hook;
use crate::support::sample::{assert_sample, checkpoint, manifest, options, write_objects};
use crate::support::sim::{Sim, Unsynced};
use image::{Compress, ImageId, Index};
use store::media::Media;
use store::{CopyError, CopyOptions, CopyReport, Store, WriteError};

/// One thread, so that what happens happens in the same order each time; a pack for each chunk.
const IN_ORDER: CopyOptions = CopyOptions { threads: 1, pack_len: 1 };

fn open(medium: &Sim) -> Store {
    Store::open_or_create_media(Arc::new(medium.clone())).unwrap()
}

fn store_of(numbers: &[u64]) -> (Sim, Store, Vec<ImageId>) {
    let medium = Sim::default();
    let store = open(&medium);
    let images = numbers.iter().map(|number| checkpoint(&store, "job", *number).unwrap().id).collect();
    (medium, store, images)
}

fn copy(from: &Store, to: &Store, images: &[ImageId]) -> Result<CopyReport, CopyError> {
    from.copy_to(to, images, &IN_ORDER, &mut |_| {})
}

/// How many chunks a copy has brought.
fn chunks(report: &CopyReport) -> u64 {
    report.images.iter().map(|image| image.chunks).sum()
}

/// Checks all that a store lists, and says which samples that is.
fn assert_sound(store: &Store) -> BTreeSet<u64> {
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

fn entries(medium: &Sim) -> BTreeSet<Vec<u8>> {
    let indexes = medium.list("index").unwrap().into_iter();
    let packs = indexes.flat_map(|name| {
        Index::read(&medium.tamper(&format!("index/{name}"), |bytes| bytes.clone())[..]).unwrap().packs
    });
    packs.flat_map(|pack| pack.entries).map(|entry| serde_json::to_vec(&entry).unwrap()).collect()
}

#[test]
fn what_is_copied_is_the_same_and_stored_the_same() {
    let (from_medium, from, images) = store_of(&[0, 1, 2]);
    let (to_medium, to, _) = store_of(&[]);
    let planned = from.would_copy_to(None, &images).unwrap();
    assert_eq!(planned, from.would_copy_to(Some(&to), &images).unwrap());
    assert_eq!(assert_sound(&to), [].into());
    let mut told = 0;
    let report = from.copy_to(&to, &images, &CopyOptions::default(), &mut |bytes| told += bytes).unwrap();
    assert_eq!(report, planned);
    assert_eq!(told, report.images.iter().map(|image| image.written).sum::<u64>());
    assert!(report.images.iter().all(|image| !image.there && image.chunks > 0), "{report:?}");
    assert_eq!(assert_sound(&to), [0, 1, 2].into());
    for image in &images {
        let path = format!("images/{image}.img");
        let [one, other] =
            [&from_medium, &to_medium].map(|medium| medium.tamper(&path, |bytes| bytes.clone()));
        assert!(one == other, "{path}");
    }
    assert_eq!(entries(&from_medium), entries(&to_medium));
    assert_eq!(to_medium.list("packs").unwrap().len(), 3, "small chunks share a pack");
    // The same again does nothing.
    let again = from.copy_to(&to, &images, &CopyOptions::default(), &mut |_| {}).unwrap();
    assert!(again.images.iter().all(|image| image.there) && chunks(&again) == 0, "{again:?}");
    assert_eq!(from.would_copy_to(Some(&to), &images).unwrap(), again);
}

#[test]
fn only_what_lacks_is_copied() {
    let (_, from, images) = store_of(&[1]);
    let (to_medium, to, _) = store_of(&[1]);
    let report = copy(&from, &to, &images).unwrap();
    assert_eq!((chunks(&report), report.images[0].there), (0, false));
    assert_eq!(to_medium.list("index").unwrap().len(), 1, "nothing new needs no index");
    assert_eq!(to.list().unwrap().images.len(), 2);
    assert_sound(&to);
    let (_, to, _) = store_of(&[2]);
    let some = chunks(&copy(&from, &to, &images).unwrap());
    let (_, to, _) = store_of(&[]);
    let all = chunks(&copy(&from, &to, &images).unwrap());
    assert!(0 < some && some < all, "{some} of {all}");
}

/// The operation log of the target, cut at each point.
#[test]
fn a_crash_at_any_point_of_a_copy_lists_nothing_that_is_not_whole() {
    let (_, from, images) = store_of(&[1, 2]);
    let (medium, to, _) = store_of(&[0]);
    let medium = {
        drop(to);
        medium.copy()
    };
    let to = open(&medium);
    let mut published = Vec::new();
    for (number, image) in (1..).zip(&images) {
        copy(&from, &to, &[*image]).unwrap();
        published.push((medium.operations(), number));
    }
    let end = medium.operations();
    assert!(end > 100, "{end} operations are too few for a test");
    for cut in 0..=end {
        for unsynced in Unsynced::ways(cut, 3) {
            let after = medium.after_crash(cut, unsynced);
            let store = open(&after);
            let listed = assert_sound(&store);
            assert!(listed.contains(&0), "cut {cut}, {unsynced:?}");
            for (_, number) in published.iter().filter(|(operations, _)| *operations <= cut) {
                assert!(listed.contains(number), "cut {cut}, {unsynced:?}: image {number} is lost");
            }
            if cut % 7 == 0 {
                copy(&from, &store, &images).unwrap();
                assert_eq!(assert_sound(&store), [0, 1, 2].into());
                assert_eq!(after.list("tmp").unwrap(), [""; 0]);
            }
        }
    }
}

#[test]
fn a_copy_that_fails_anywhere_is_taken_up_again() {
    let (_, from, images) = store_of(&[1]);
    let (before, to, _) = store_of(&[0]);
    let all = chunks(&from.would_copy_to(Some(&to), &images).unwrap());
    let mut resumed = 0;
    for count in [1, u64::MAX] {
        for n in 1.. {
            let medium = before.copy();
            let fault = Fault::new(Arc::new(medium.clone()), n, count, ErrorKind::StorageFull);
            let result = copy(&from, &Store::open_media(Arc::new(fault.clone())).unwrap(), &images);
            if !fault.struck() {
                result.unwrap();
                assert!(n > 25, "{n} operations are too few for a test");
                break;
            }
            let store = open(&medium);
            match result {
                Ok(_) => assert_eq!(assert_sound(&store), [0, 1].into(), "operation {n}"),
                Err(error) => {
                    let full = matches!(error, CopyError::Target(WriteError::Full { .. }));
                    assert!(full && error.to_string().contains("/sim/"), "operation {n}: {error}");
                    let listed = assert_sound(&store);
                    assert!(listed == [0].into() || listed == [0, 1].into(), "operation {n}");
                }
            }
            let rest = chunks(&copy(&from, &store, &images).unwrap());
            resumed += u64::from(0 < rest && rest < all);
            for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(n)] {
                let after = medium.after_crash(medium.operations(), unsynced);
                assert_eq!(assert_sound(&open(&after)), [0, 1].into(), "operation {n}, {unsynced:?}");
            }
        }
    }
    assert!(resumed > 10, "{resumed}");
}

/// What a copy that was given up has left, a removal frees.
#[test]
fn what_is_left_of_a_copy_can_be_freed() {
    let (_, from, images) = store_of(&[1]);
    let (medium, to, _) = store_of(&[]);
    let packs = |medium: &Sim| medium.list("packs").unwrap().len();
    let fault = Fault::new(Arc::new(medium.clone()), 30, u64::MAX, ErrorKind::Other);
    copy(&from, &Store::open_media(Arc::new(fault)).unwrap(), &images).unwrap_err();
    assert!(packs(&medium) > 0);
    assert!(to.remove(&[]).unwrap().freed > 0);
    assert_eq!((packs(&medium), medium.list("index").unwrap().len()), (0, 0));
}

#[test]
fn an_image_that_cannot_be_read_does_not_hold_up_the_others() {
    let (medium, from, images) = store_of(&[1, 2, 3]);
    let index = medium.tamper(&format!("index/{}.idx", images[1]), |bytes| bytes.clone());
    let pack = Index::read(&index[..]).unwrap().packs[0].id;
    medium.tamper(&format!("packs/{pack}.pack"), |bytes| bytes[70] ^= 1);
    let (_, to, _) = store_of(&[]);
    let report = copy(&from, &to, &images).unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{report:?}") };
    assert_eq!(damaged.image, images[1]);
    assert!(damaged.problem.contains(&format!("/sim/packs/{pack}.pack")), "{damaged:?}");
    assert_eq!(assert_sound(&to), [1, 3].into());
    medium.tamper(&format!("index/{}.idx", images[0]), |bytes| bytes.clear());
    let (_, to, _) = store_of(&[]);
    let report = copy(&from, &to, &images[..1]).unwrap();
    assert!(report.damaged[0].problem.contains("is in none of the indexes"), "{report:?}");
    assert_eq!(assert_sound(&to), [].into());
}

/// What was listed may be removed before it is its turn, or while it is read: that is no damage.
#[test]
fn an_image_that_is_removed_meanwhile_is_passed_over() {
    for times in 0..2 {
        let (medium, _, images) = store_of(&[1, 2]);
        let (_, to, _) = store_of(&[]);
        let path = format!("images/{}.img", images[0]);
        let (other, name) = (medium.clone(), path.clone());
        let hook = Hook::nth(Arc::new(medium), "open", &path, times, move || other.remove(&name).unwrap());
        let from = Store::open_media(hook).unwrap();
        let report = copy(&from, &to, &images).unwrap();
        assert_eq!((&report.gone[..], &report.damaged[..]), (&images[..1], &[][..]), "{times}");
        assert_eq!(assert_sound(&to), [2].into());
        let planned = from.would_copy_to(None, &images).unwrap();
        assert_eq!((&planned.gone[..], &planned.damaged[..]), (&images[..1], &[][..]));
    }
}

#[test]
fn what_is_damaged_in_the_target_is_brought_again() {
    let (_, from, images) = store_of(&[1]);
    let (medium, to, _) = store_of(&[]);
    copy(&from, &to, &images).unwrap();
    let pack = medium.list("packs").unwrap()[0].clone();
    medium.remove(&format!("packs/{pack}")).unwrap();
    let report = copy(&from, &to, &images).unwrap();
    assert!(chunks(&report) > 0 && !report.images[0].there);
    assert_sample(&to.open_image(&images[0]).unwrap(), 1);
    medium.tamper(&format!("images/{}.img", images[0]), |bytes| bytes.truncate(100));
    assert_eq!(chunks(&copy(&from, &to, &images).unwrap()), 0);
    assert_sample(&to.open_image(&images[0]).unwrap(), 1);
}

/// An image comes back to where others still use packs that it once brought.
#[test]
fn what_others_need_is_used_again() {
    let (_, from, _) = store_of(&[]);
    let take = |number| {
        let draft = from.begin().unwrap();
        let writer = draft.writer(&options(Compress::Zstd)).unwrap();
        write_objects(&writer, &crate::support::sample::objects(number)).unwrap();
        draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap().id
    };
    let images = [take(1), take(2)];
    let (medium, to, _) = store_of(&[]);
    copy(&from, &to, &images).unwrap();
    assert!(to.remove(&images[..1]).unwrap().freed > 0);
    let packs = |medium: &Sim| medium.list("packs").unwrap().len();
    let shared = packs(&medium);
    assert!(chunks(&copy(&from, &to, &images[..1]).unwrap()) > 0);
    assert_eq!(assert_sound(&to), [1, 2].into());
    assert!(packs(&medium) > shared, "image 2 needed some, and some were gone");
    assert_eq!(to.remove(&[]).unwrap().freed, 0);
    assert_eq!(assert_sound(&to), [1, 2].into());
}

#[test]
fn both_stores_may_be_in_use() {
    let (from_medium, from, images) = store_of(&[1, 2]);
    let (_, to, others) = store_of(&[7]);
    let mut asked = false;
    let report = from.copy_to(&to, &images[..1], &IN_ORDER, &mut |_| {
        if !std::mem::replace(&mut asked, true) {
            checkpoint(&to, "job", 8).unwrap();
            for (store, images) in [(&from, &images[..1]), (&to, &others[..])] {
                let removal = store.remove(images).unwrap();
                assert!(removal.kept.is_some() && removal.freed == 0, "{removal:?}");
            }
        }
    });
    assert_eq!(report.unwrap().images.len(), 1);
    assert_eq!((assert_sound(&from), assert_sound(&to)), ([2].into(), [1, 8].into()));
    assert_eq!([&from, &to].map(|store| store.remove(&[]).unwrap().kept), [None, None]);
    assert_eq!((assert_sound(&from), assert_sound(&to)), ([2].into(), [1, 8].into()));
    assert_eq!(from_medium.list("tmp").unwrap(), [""; 0], "nothing is written to the source");
}

/// What another copy of the same image does, or has left where it was cut off, holds up nobody, and harms nobody.
#[test]
fn two_may_copy_the_same_image() {
    let (_, from, images) = store_of(&[1]);
    let (medium, to, _) = store_of(&[]);
    let (all, mut inner) = (chunks(&from.would_copy_to(Some(&to), &images).unwrap()), None);
    let outer = from.copy_to(&to, &images, &IN_ORDER, &mut |_| {
        inner.get_or_insert_with(|| chunks(&copy(&from, &to, &images).unwrap()));
    });
    assert_eq!((chunks(&outer.unwrap()), inner), (all, Some(all)));
    assert_eq!(assert_sound(&to), [1].into());
    let tidy = |medium: &Sim| assert_eq!(medium.list("tmp").unwrap(), [""; 0]);
    tidy(&medium);
    // A supervisor of another machine is believed to be alive.
    let (medium, to, _) = store_of(&[]);
    let folder = format!("tmp/{}", images[0]);
    medium.create_folder(&folder).unwrap();
    let lock = medium.lock(&format!("{folder}/lock"), true).unwrap();
    copy(&from, &to, &images).unwrap();
    assert_eq!(assert_sound(&to), [1].into());
    drop(lock);
    to.remove(&[]).unwrap();
    tidy(&medium);
}

/// However many images are copied, what the target has is asked once.
#[test]
fn the_targets_indexes_are_read_once() {
    let (_, from, images) = store_of(&[1, 2, 3]);
    let (medium, to, _) = store_of(&[7]);
    let own = format!("index/{}", medium.list("index").unwrap()[0]);
    let whole = medium.tamper(&own, |bytes| bytes.clone());
    let report = from.copy_to(&to, &images, &IN_ORDER, &mut |_| {
        medium.tamper(&own, Vec::clear);
    });
    assert_eq!(report.unwrap().images.len(), 3);
    medium.tamper(&own, |bytes| bytes.clone_from(&whole));
    assert_eq!(assert_sound(&to), [1, 2, 3, 7].into());
}
