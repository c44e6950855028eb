//! A small image, damaged in every way: it is noticed, the file and the objects are named, and no wrong byte is ever handed out.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::support::keys;
use crate::support::sample::{assert_sample, checkpoint, manifest, objects, options, write_objects};
use crate::support::sim::Sim;
use image::{ChunkId, Compress, Extent, ImageId, Index, Machine};
use store::media::Media;
use store::{CopyOptions, Cure, FindError, OpenError, Proof, ReadError, Store, VerifyReport, WriteOptions};

/// A store with one image.
fn store_with_one() -> (Sim, ImageId) {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let image = checkpoint(&store, "job", 5).unwrap().id;
    (medium, image)
}

/// The same, encrypted.
fn encrypted_with_one() -> (Sim, ImageId) {
    let medium = Sim::default();
    let image = checkpoint(&keys::create(Arc::new(medium.clone())), "job", 5).unwrap().id;
    (medium, image)
}

/// Checks that a store in which `path` was damaged says so. `how` is for messages.
fn assert_noticed(medium: &Sim, image: &ImageId, path: &str, how: &str) {
    let is_missing = !medium.files().iter().any(|file| file == path);
    // Of a missing index nobody knows which it was.
    let named = if is_missing && path.starts_with("index/") { "index" } else { path };
    let full_path = format!("/sim/{named}");
    let store = match Store::open_with(Arc::new(medium.clone()), &keys::key(), &[]) {
        Err(error) => {
            assert_eq!(path, "config", "{how}: {error}");
            assert!(matches!(error, OpenError::Config { .. }), "{how}: {error}");
            assert!(error.to_string().contains(&full_path), "{how}: {error}");
            return;
        }
        Ok(store) => store,
    };
    let report = store.verify(image, &mut |_| {}).unwrap();
    assert!(!report.ok, "{how} is not noticed");
    assert!(
        report.damage.iter().any(|damage| damage.file.to_str() == Some(&full_path)),
        "{how}: {report:#?}"
    );
    for damage in &report.damage {
        let whole_image = damage.objects.is_empty();
        assert_eq!(whole_image, path.starts_with("images/"), "{how}: {damage:?}");
        assert!(damage.to_string().contains("(concerns "), "{damage}");
    }
    if path.starts_with("images/") {
        let listing = store.list().unwrap();
        assert_eq!((listing.images.len(), listing.damaged.len()), (0, 1), "{how}");
        assert_eq!(listing.damaged[0].path.to_str(), Some(full_path.as_str()));
        assert!(matches!(store.find("job"), Err(FindError::Damaged { .. })), "{how}");
    }
    // A restart either does not get a byte of an object or gets the right ones.
    let Ok(open) = store.open_image(image) else { return };
    let mut refused = 0;
    for (kind, bytes) in objects(5) {
        match open.read_to_vec(&kind, bytes.len()) {
            Ok(read) => assert!(read == bytes, "{how}: {kind:?} is read wrong"),
            Err(error) => {
                refused += 1;
                assert!(matches!(error, ReadError::Chunk { .. }), "{how}: {error}");
                // A missing index is known only by what nobody finds.
                let named = if path.starts_with("index/") { "/sim/index" } else { &full_path };
                assert!(error.to_string().contains(named), "{how}: {error} names no file");
                assert!(
                    error.to_string().contains("use another image"),
                    "{how}: {error} does not say what to do"
                );
            }
        }
    }
    let damaged_objects = report.damage.iter().map(|damage| damage.objects.len()).sum::<usize>();
    assert!(
        refused <= damaged_objects,
        "{how}: {refused} objects are refused, {damaged_objects} are reported"
    );
}

/// No flip is immaterial, neither to a reader nor to `verify`.
#[test]
fn every_flipped_byte_of_every_file_is_noticed_and_named() {
    flip_every_byte(store_with_one());
}

#[test]
fn every_flipped_byte_of_every_encrypted_file_is_noticed_and_named() {
    flip_every_byte(encrypted_with_one());
}

fn flip_every_byte((medium, image): (Sim, ImageId)) {
    let files = medium.files();
    let kinds = ["config", "packs/", "index/", "images/"];
    assert!(kinds.iter().all(|kind| files.iter().any(|file| file.starts_with(kind))), "{files:?}");
    let mut flips = 0;
    for path in &files {
        let len = medium.tamper(path, |bytes| bytes.len());
        for at in 0..len {
            let flip = if at % 2 == 0 { 0x01 } else { 0x80 };
            medium.tamper(path, |bytes| bytes[at] ^= flip);
            assert_noticed(&medium, &image, path, &format!("byte {at} of {path} ^ {flip:#x}"));
            medium.tamper(path, |bytes| bytes[at] ^= flip);
            flips += 1;
        }
    }
    assert!(flips > 5000, "{flips} bytes are too few for a test");
    assert!(keys::open(Arc::new(medium)).verify(&image, &mut |_| {}).unwrap().ok);
}

#[test]
fn every_truncated_or_longer_file_is_noticed_and_named() {
    cut_everywhere(store_with_one());
}

#[test]
fn every_truncated_or_longer_encrypted_file_is_noticed_and_named() {
    cut_everywhere(encrypted_with_one());
}

fn cut_everywhere((medium, image): (Sim, ImageId)) {
    for path in &medium.files() {
        let whole = medium.tamper(path, |bytes| bytes.clone());
        for len in 0..whole.len() {
            medium.tamper(path, |bytes| bytes.truncate(len));
            assert_noticed(&medium, &image, path, &format!("{path} cut to {len}"));
            medium.tamper(path, |bytes| bytes.clone_from(&whole));
        }
        medium.tamper(path, |bytes| bytes.push(0));
        assert_noticed(&medium, &image, path, &format!("{path} with a byte more"));
        medium.tamper(path, |bytes| bytes.clone_from(&whole));
    }
}

#[test]
fn a_missing_file_is_named() {
    let (medium, image) = store_with_one();
    for path in medium.files() {
        let medium = medium.copy();
        medium.remove(&path).unwrap();
        if path == "config" {
            let error = Store::open_media(Arc::new(medium)).unwrap_err();
            assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
            continue;
        }
        let store = Store::open_media(Arc::new(medium.clone())).unwrap();
        if path.starts_with("images/") {
            assert!(matches!(store.verify(&image, &mut |_| {}), Err(ReadError::NoImage { .. })));
            assert!(matches!(store.find("job"), Err(FindError::NotFound { .. })));
        } else {
            assert_noticed(&medium, &image, &path, &format!("{path} removed"));
        }
    }
}

/// What is in no index is named by the packs that have it, and by what brings it back.
#[test]
fn a_missing_index_is_told_by_what_it_named() {
    let (medium, image) = store_with_one();
    let other = checkpoint(&Store::open_media(Arc::new(medium.clone())).unwrap(), "other", 6).unwrap().id;
    let whole = medium.copy();
    medium.remove(&format!("index/{image}.idx")).unwrap();
    let store = Store::open_media(Arc::new(medium.clone())).unwrap();
    let mut packs: Vec<_> = medium.files().into_iter().filter(|path| path.starts_with("packs/")).collect();
    let index = medium.tamper(&format!("index/{other}.idx"), |bytes| bytes.clone());
    let others = Index::read(&index[..]).unwrap().packs;
    packs.retain(|path| !others.iter().any(|pack| path.contains(&pack.id.to_string())));
    for (id, quick) in [(image, false), (image, true), (other, true)] {
        let report = match quick {
            true => store.verify_structure(&id).unwrap(),
            false => store.verify(&id, &mut |_| {}).unwrap(),
        };
        let [damage] = &report.damage[..] else { panic!("{report:#?}") };
        assert_eq!((damage.file.to_str(), damage.cure), (Some("/sim/index"), Cure::Index));
        assert!(damage.problem.contains(&format!("image {id} needs")), "{damage}");
        assert!(packs.iter().any(|pack| damage.problem.contains(pack)), "{damage}");
        let [advice] = &VerifyReport::advice(&[report])[..] else { panic!() };
        assert!(advice.contains("`dormouse rm`, without an image"), "{advice}");
    }
    let open = store.open_image(&image).unwrap();
    let unread = objects(5).into_iter().find_map(|(kind, bytes)| open.read_to_vec(&kind, bytes.len()).err());
    let unread = unread.unwrap().to_string();
    assert!(unread.contains("`dormouse verify --quick` says"), "{unread}");
    drop(open);
    // Which helps.
    store.remove(&[]).unwrap();
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok && store.verify(&other, &mut |_| {}).unwrap().ok);
    // Without the packs it would not.
    let medium = whole;
    packs.iter().chain([&format!("index/{image}.idx")]).for_each(|path| medium.remove(path).unwrap());
    let report = Store::open_media(Arc::new(medium)).unwrap().verify(&image, &mut |_| {}).unwrap();
    assert_eq!((report.damage.len(), report.damage[0].cure), (1, Cure::Copy), "{report:#?}");
    assert!(report.damage[0].problem.contains("in no other pack"), "{report:#?}");
}

/// What is around the chunks of a pack is not what a restart needs.
#[test]
fn a_pack_without_its_end_loses_no_chunk() {
    let (medium, image) = store_with_one();
    let pack = medium.files().into_iter().find(|path| path.starts_with("packs/")).unwrap();
    medium.tamper(&pack, |bytes| bytes.truncate(bytes.len() - 4));
    let store = Store::open_media(Arc::new(medium.clone())).unwrap();
    let report = store.verify(&image, &mut |_| {}).unwrap();
    assert!(!report.ok && report.can_be_read(), "{report:#?}");
    assert!(report.damage[0].problem.contains("no chunk of the image is lost by it"), "{report:#?}");
    let advice = VerifyReport::advice(&[report]).concat();
    assert!(advice.contains("`dormouse copy STORE NEWSTORE IMAGE`"), "{advice}");
    assert!(!advice.contains("use another image"), "{advice}");
    assert_sample(&store.open_image(&image).unwrap(), 5);
    // Which helps.
    let other = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    store.copy_to(&other, &[image], &CopyOptions::default(), &mut |_| {}).unwrap();
    assert!(other.verify(&image, &mut |_| {}).unwrap().ok);
    // Nobody has read it.
    let quick = store.verify_structure(&image).unwrap();
    assert!(!quick.ok && !quick.can_be_read(), "{quick:#?}");
    // What is cut off of chunks is lost.
    medium.tamper(&pack, |bytes| bytes.truncate(80));
    let report = store.verify(&image, &mut |_| {}).unwrap();
    assert!(!report.can_be_read() && !report.damage[0].problem.contains("no chunk"), "{report:#?}");
    assert!(report.damage[0].problem.contains("it has 80 bytes"), "{report:#?}");
}

/// Files that are whole, and in another's place.
#[test]
fn swapped_files_are_noticed() {
    swap_files(store_with_one);
}

/// What a cover does not bind, the id inside does.
#[test]
fn swapped_encrypted_files_are_noticed() {
    swap_files(encrypted_with_one);
}

fn swap_files(made: impl Fn() -> (Sim, ImageId)) {
    let (medium, image) = made();
    let files = medium.files();
    let mut packs = files.iter().filter(|path| path.starts_with("packs/"));
    let (first, second) = (packs.next().unwrap(), packs.next().unwrap());
    let bytes = medium.tamper(first, |bytes| bytes.clone());
    medium.tamper(second, |other| other.clone_from(&bytes));
    assert_noticed(&medium, &image, second, "a pack under another's name");

    let (medium, image) = made();
    let store = keys::open(Arc::new(medium.clone()));
    let other = checkpoint(&store, "other", 6).unwrap().id;
    for (folder, suffix) in [("images", "img"), ("index", "idx")] {
        let medium = medium.copy();
        let bytes = medium.tamper(&format!("{folder}/{other}.{suffix}"), |bytes| bytes.clone());
        let path = format!("{folder}/{image}.{suffix}");
        medium.tamper(&path, |mine| mine.clone_from(&bytes));
        let report = keys::open(Arc::new(medium)).verify(&image, &mut |_| {}).unwrap();
        assert!(report.damage[0].to_string().contains("it is not what its name says"), "{report:#?}");
        assert_eq!(report.damage[0].file.to_str().unwrap(), format!("/sim/{path}"));
    }
}

/// Gives a sealed file's header other values, and a checksum that fits.
pub fn reseal(bytes: &mut [u8], at: usize, value: u8) {
    bytes[at] = value;
    let hash = blake3::Hasher::new().update(&bytes[..32]).update(&bytes[64..]).finalize();
    bytes[32..64].copy_from_slice(hash.as_bytes());
}

#[test]
fn a_newer_version_is_told_apart_from_damage() {
    let (medium, image) = store_with_one();
    let path = format!("images/{image}.img");
    medium.tamper(&path, |bytes| reseal(bytes, 8, 2));
    let store = Store::open_media(Arc::new(medium.clone())).unwrap();
    let message = store.open_image(&image).unwrap_err().to_string();
    assert_eq!(
        message,
        format!(
            "/sim/{path} is not usable: it has format version 2, this dormouse reads versions 1 to 1: use a newer dormouse"
        )
    );
    assert!(store.find("job").unwrap_err().to_string().contains("use a newer dormouse"));
    assert_eq!(store.list().unwrap().damaged.len(), 1);

    medium.tamper("config", |bytes| reseal(bytes, 8, 2));
    let message = Store::open_media(Arc::new(medium)).unwrap_err().to_string();
    assert!(message.contains("/sim/config") && message.contains("use a newer dormouse"), "{message}");
}

#[test]
fn an_image_of_another_machine_is_shown_and_verified_but_not_restarted() {
    let (medium, image) = store_with_one();
    let foreign = if Machine::HOST == Machine::AARCH64 { Machine::X86_64 } else { Machine::AARCH64 };
    medium.tamper(&format!("images/{image}.img"), |bytes| reseal(bytes, 10, foreign.0 as u8));
    let store = Store::open_media(Arc::new(medium)).unwrap();
    assert_eq!(store.list().unwrap().images[0].machine, foreign.to_string());
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
    let error = store.open_image(&image).unwrap_err();
    assert!(matches!(error, ReadError::WrongMachine { .. }));
    let message = error.to_string();
    assert!(message.contains("aarch64") && message.contains("x86-64"), "{message}");
}

/// Two writers at once may store a chunk twice: then one good copy is enough to restart, and verify still names the bad one.
#[test]
fn a_second_copy_of_a_chunk_serves_where_the_first_is_damaged() {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let drafts = [store.begin().unwrap(), store.begin().unwrap()];
    let receipts = drafts.each_ref().map(|draft| crate::support::sample::write(draft, 5).unwrap());
    let images: Vec<_> = drafts
        .into_iter()
        .zip(receipts)
        .map(|(draft, receipts)| {
            draft.publish(crate::support::sample::manifest("job", 5), receipts).unwrap().id
        })
        .collect();
    let path = medium.files().into_iter().find(|path| path.starts_with("packs/")).unwrap();
    medium.tamper(&path, |bytes| bytes[100] ^= 1);
    for image in &images {
        assert_sample(&store.open_image(image).unwrap(), 5);
        let report = store.verify(image, &mut |_| {}).unwrap();
        assert_eq!(report.damage.len(), 1, "{report:#?}");
        assert_eq!(report.damage[0].file.to_str().unwrap(), format!("/sim/{path}"));
    }
}

#[test]
fn what_images_have_in_common_is_read_once_and_named_for_each() {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let [first, second] = [0, 1].map(|_| checkpoint(&store, "job", 5).unwrap().id);
    let pack = medium.files().into_iter().find(|path| path.starts_with("packs/")).unwrap();
    let flip = || medium.tamper(&pack, |bytes| bytes[100] ^= 1);
    let mut verifier = store.verifier().unwrap();
    let mut verify = |image| verifier.verify(image, &mut |_| {}).unwrap();
    assert!(verify(&first).ok);
    flip();
    // What it has read by then was sound.
    let report = verify(&second);
    assert!(report.ok && report.bytes > 0, "{report:#?}");
    let mut verifier = store.verifier().unwrap();
    let mut verify = |image| verifier.verify(image, &mut |_| {}).unwrap();
    let found = verify(&first).damage;
    assert_eq!(found.len(), 1);
    flip();
    assert_eq!(verify(&second).damage, found);
}

/// Whoever asks for it has chunks that are stored as they are without a check, and is told.
#[test]
fn a_proof_is_owed_for_what_is_taken_as_it_is_stored() {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let image = checkpoint(&store, "job", 5).unwrap().id;
    let read = |image: store::Image| {
        let (mut reader, mut proofs) = (image.chunks(), Vec::new());
        for object in &image.manifest().objects {
            for (offset, extent) in object.placed_extents() {
                let Extent::Chunk { id, len } = extent else { continue };
                let mut plain = vec![0; *len as usize];
                let is_it = |plain: &[u8]| ChunkId::of(plain) == *id;
                let proof = reader.read_unproven(object, offset, id, &mut plain).ok();
                proofs.push((proof, is_it(&plain)));
                // The next one is checked as ever.
                assert!(
                    image.is_trusted()
                        || reader.read(object, offset, id, &mut plain).is_err()
                        || is_it(&plain)
                );
            }
        }
        proofs
    };
    let open = || store.open_image(&image).unwrap();
    let proofs = read(open());
    assert!(proofs.iter().all(|(_, right)| *right));
    for proof in [Proof::Given, Proof::Owed] {
        assert!(proofs.contains(&(Some(proof), true)), "{proof:?}");
    }
    assert!(read(open().trusted()).iter().all(|proof| *proof == (Some(Proof::Given), true)));
    for pack in medium.files().iter().filter(|path| path.starts_with("packs/")) {
        // All but the header.
        medium.tamper(pack, |bytes| bytes.iter_mut().skip(64).for_each(|byte| *byte ^= 1));
    }
    for (before, after) in proofs.into_iter().zip(read(open())) {
        let expected = if before.0 == Some(Proof::Owed) { Some(Proof::Owed) } else { None };
        assert_eq!(after, (expected, false));
    }
}

/// The image that is left of a stopped job must not rest on what has rotted.
#[test]
fn what_has_rotted_is_written_again_if_it_is_read_first() {
    let (medium, _) = store_with_one();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    for pack in medium.files().iter().filter(|path| path.starts_with("packs/")) {
        medium.tamper(pack, |bytes| bytes[100] ^= 1);
    }
    let again = |reread| {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions { reread, ..options(Compress::Lz4) }).unwrap();
        write_objects(&writer, &objects(5)).unwrap();
        let receipt = writer.finish().unwrap();
        draft.publish(manifest("job", 5), vec![receipt]).unwrap()
    };
    let resting = again(false);
    assert_eq!(resting.stored.new, 0);
    let reread = again(true);
    assert!(reread.stored.new > 0 && reread.stored.reused > 0, "{:?}", reread.stored);
    assert_sample(&store.open_image(&reread.id).unwrap(), 5);
    // The others have the good copy now, too.
    assert_sample(&store.open_image(&resting.id).unwrap(), 5);
    assert_eq!(again(true).stored.new, 0, "one copy that is good is enough");
}
