//! Looking into images: what differs between two, a part of an object, whether all is there.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::support::sample::{checkpoint, manifest, noise, objects};
use crate::support::sim::Sim;
use image::{CHUNK_SIZE, ImageId, ObjectKind, PackIndex};
use store::{Change, Store, WriteOptions, find_object, object_name};

fn store_of(numbers: &[u64]) -> (Sim, Store, Vec<ImageId>) {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let images = numbers.iter().map(|number| checkpoint(&store, "job", *number).unwrap().id).collect();
    (medium, store, images)
}

#[test]
fn images_differ_by_what_was_written_differently() {
    let (_, store, images) = store_of(&[1, 2, 1]);
    let diff = store.diff(&images[0], &images[1]).unwrap();
    let (before, after) = (objects(1), objects(2));
    let mut changed: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|((_, a), (_, b))| a != b)
        .map(|((kind, _), _)| kind.clone())
        .collect();
    changed.sort();
    assert!(changed.len() > 2);
    let told: Vec<_> = diff.objects.iter().map(|object| (object.object.clone(), object.change)).collect();
    assert_eq!(told, changed.iter().map(|kind| (object_name(kind), Change::Changed)).collect::<Vec<_>>());
    assert_eq!(diff.kinds.iter().map(|kind| kind.same + kind.changed).sum::<u64>(), before.len() as u64);
    let same = store.diff(&images[0], &images[2]).unwrap();
    assert!(same.is_empty() && same.only_a == same.only_b, "{same:?}");
    assert_eq!((same.only_a.chunks, same.shared.chunks), (0, diff.shared.chunks + diff.only_a.chunks));
    let back = store.diff(&images[1], &images[0]).unwrap();
    assert_eq!((back.only_a, back.only_b, back.shared), (diff.only_b, diff.only_a, diff.shared));
}

#[test]
fn any_part_of_an_object_is_had_by_its_name() {
    let (_, store, images) = store_of(&[3]);
    let image = store.open_foreign_image(&images[0]).unwrap();
    for (kind, bytes) in objects(3) {
        let object = find_object(image.manifest(), &object_name(&kind)).unwrap();
        let len = bytes.len() as u64;
        let chunk = CHUNK_SIZE as u64;
        let ranges = [
            0..u64::MAX,
            0..len,
            0..0,
            len..len,
            1..len,
            0..len.saturating_sub(1),
            100..107,
            480..7700,
            chunk - 2..chunk + 3,
        ];
        for range in ranges {
            let mut read = Vec::new();
            let written = image.copy_range_to(&object.kind, range.clone(), &mut read).unwrap();
            let end = range.end.min(len) as usize;
            let expected = bytes.get(range.start as usize..end).unwrap_or_default();
            assert!(read == expected, "{range:?} of {kind:?}");
            assert_eq!(written, expected.len() as u64);
        }
    }
}

/// A quick look finds every flip but those in frames, which only who reads them can find.
#[test]
fn a_quick_look_finds_all_but_rot_in_frames() {
    let (medium, store, images) = store_of(&[5]);
    let image = &images[0];
    let sound = store.verify_structure(image).unwrap();
    assert!(sound.ok && !sound.read_data && sound.objects == 9 && sound.chunks == 0, "{sound:?}");
    let index = format!("index/{image}.idx");
    let index = image::Index::read(&medium.tamper(&index, |bytes| bytes.clone())[..]).unwrap();
    let frames = |path: &str| {
        let pack = index.packs.iter().find(|pack: &&PackIndex| path == format!("packs/{}.pack", pack.id));
        pack.map_or(0..0, |pack| 64..pack.trailer_at() as usize)
    };
    let mut missed = 0;
    for path in medium.files().iter().filter(|path| *path != "config") {
        let len = medium.tamper(path, |bytes| bytes.len());
        for at in 0..len {
            medium.tamper(path, |bytes| bytes[at] ^= 1);
            let ok = store.verify_structure(image).unwrap().ok;
            assert_eq!(ok, frames(path).contains(&at), "byte {at} of {path}");
            missed += u64::from(ok);
            medium.tamper(path, |bytes| bytes[at] ^= 1);
        }
        let last = medium.tamper(path, |bytes| bytes.pop().unwrap());
        assert!(!store.verify_structure(image).unwrap().ok, "{path} is cut short");
        medium.tamper(path, |bytes| bytes.push(last));
    }
    assert!(missed > 1000, "{missed}");
    let pack = medium.files().into_iter().find(|path| path.starts_with("packs/")).unwrap();
    store::media::Media::remove(&medium, &pack).unwrap();
    let report = store.verify_structure(image).unwrap();
    assert!(report.damage[0].to_string().contains("cannot be opened"), "{report:?}");
}

#[test]
fn all_that_comes_before_damage_is_written() {
    let (medium, store, _) = store_of(&[]);
    let draft = store.begin().unwrap();
    let writer =
        draft.writer(&WriteOptions { compress: image::Compress::None, ..WriteOptions::default() }).unwrap();
    let (kind, bytes) = (ObjectKind::HostRecord, noise(1, 7 * CHUNK_SIZE));
    writer.put(kind.clone(), &bytes).unwrap();
    let receipts = vec![writer.finish().unwrap()];
    let image = draft.publish(manifest("job", 1), receipts).unwrap().id;
    let image = store.open_foreign_image(&image).unwrap();
    for damaged in (0..7).rev() {
        let begin = damaged * CHUNK_SIZE;
        let found = medium.files().into_iter().filter(|path| path.starts_with("packs/")).find_map(|path| {
            let is_it = |part: &[u8]| part == &bytes[begin..begin + 64];
            medium.tamper(&path, |pack| pack.windows(64).position(is_it)).map(|at| (path, at))
        });
        let (path, at) = found.unwrap();
        medium.tamper(&path, |pack| pack[at] ^= 1);
        let mut read = Vec::new();
        let error = image.copy_to(&kind, &mut read).unwrap_err();
        assert!(error.to_string().contains(&format!("{begin:#x}")), "{error}");
        assert!(read == bytes[..begin], "{} bytes of {begin}", read.len());
    }
}
