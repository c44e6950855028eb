//! Encrypted stores: what is so of others is so of these; only a key opens them, what was changed is noticed, and nothing plain is left.
#![allow(clippy::unwrap_used)]

use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use crate::support::keys::{create, key, other_key, recipient};
use crate::support::sample::{assert_sample, checkpoint, noise};
use crate::support::sim::Sim;
use crate::{directory, finding, removing, repacking};
use image::StoreConfig;
use image::cover::{BLOCK, HEADER_LEN, SEALED_BLOCK};
use proptest::prelude::*;
use store::media::{Covered, Dir, Media, MediaRead};
use store::{Access, CopyOptions, Identities, Key, Location, OpenError, Secret, Store};

/// An encrypted medium on one that can be looked into.
fn covered() -> (Sim, Covered) {
    let sim = Sim::default();
    (sim.clone(), Covered::new(Arc::new(sim), Secret::random().unwrap()))
}

fn write(media: &dyn Media, path: &str, pieces: &[&[u8]]) {
    let mut file = media.create(path).unwrap();
    pieces.iter().for_each(|piece| file.write_all(piece).unwrap());
    file.sync().unwrap();
}

fn read(media: &dyn Media, path: &str) -> io::Result<Vec<u8>> {
    let file = media.open(path)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0).map(|()| bytes)
}

#[test]
fn what_is_so_of_a_store_is_so_of_an_encrypted_one() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| Arc::new(Dir::new(&new_folder(folder.path(), name))) as Arc<dyn Media>;
    directory::every_way_gives_the_same_bytes(folder.path(), &create(place("a")));
    directory::only_what_is_new_is_stored(&create(place("b")));
    directory::what_is_not_there_is_named(&create(place("c")));
    finding::names_find_images_in(&create(place("d")));
    let media = || Arc::new(Covered::new(Arc::new(Sim::default()), Secret::random().unwrap()));
    removing::what_no_other_image_needs_goes(media());
    removing::who_uses_it_keeps_what_it_has(media());
    removing::pruning_keeps_the_newest(media());
    repacking::a_pack_of_which_little_is_needed_goes_on(media());
}

fn new_folder(under: &Path, name: &str) -> std::path::PathBuf {
    let folder = under.join(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn only_a_key_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = Location::Folder(folder.path().join("store"));
    let access = |key, recipients: &[_]| Access { at: at.clone(), key, recipients: recipients.to_vec() };
    let (other, for_other) = other_key(folder.path());

    // Made for somebody else than who makes it: not made.
    let error = access(other.clone(), &[recipient()]).open_or_create().unwrap_err();
    assert!(matches!(error, OpenError::KeptOut { .. }), "{error}");
    assert!(matches!(access(Key::None, &[]).open(), Err(OpenError::NotAStore { .. })));
    assert!(!at.as_folder().unwrap().exists(), "nothing is left of it");

    // Who makes it needs no key; who comes later does.
    let store = access(Key::None, &[recipient()]).open_or_create().unwrap();
    let image = checkpoint(&store, "job", 1).unwrap().id;
    for recipients in [&[][..], &[recipient()]] {
        let store = access(key(), recipients).open_or_create().unwrap();
        assert!(store.is_encrypted());
        assert_sample(&store.open_image(&image).unwrap(), 1);
        assert_eq!(store.find("job").unwrap().id, image);
    }
    assert!(checkpoint(&access(key(), &[]).open().unwrap(), "job", 1).unwrap().stored.reused > 0);

    let locked = access(Key::None, &[]).open().unwrap_err();
    let wrong = access(other.clone(), &[]).open().unwrap_err();
    let secret = access(Key::Secret(Secret::random().unwrap()), &[]).open().unwrap_err();
    assert!(matches!(locked, OpenError::Locked { .. }), "{locked}");
    for error in [&wrong, &secret] {
        assert!(matches!(error, OpenError::WrongKey { .. }), "{error}");
    }
    for error in [locked, wrong, secret] {
        let text = error.to_string();
        assert!(text.contains("--key") && text.contains(&recipient().to_string()), "{text}");
    }
    let error = access(key(), &[recipient(), for_other.clone()]).open().unwrap_err();
    assert!(
        matches!(&error, OpenError::NotFor { missing, .. } if *missing == for_other.to_string()),
        "{error}"
    );

    // Another process is told the secret alone, in a message that shows it and a text that does not.
    let told = store.access();
    assert!(!format!("{told:?}").contains("AGE-SECRET-KEY") && format!("{told:?}").contains('…'), "{told:?}");
    let message = serde_json::to_string(&told).unwrap();
    assert!(!message.contains("AGE-SECRET-KEY"));
    assert_sample(
        &serde_json::from_str::<Access>(&message).unwrap().open().unwrap().open_image(&image).unwrap(),
        1,
    );
}

/// The disk is not mounted, say: what a job with a key writes does not go into a plain store in its place.
#[test]
fn with_a_key_no_plain_store_is_made_for_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    let access = |key, recipients| Access { at: Location::Folder(place.clone()), key, recipients };
    let gone = || {
        let error = access(key(), Vec::new()).open_for_job().unwrap_err();
        assert!(matches!(error, OpenError::Gone { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("--encrypt RECIPIENT") && text.contains("DORMOUSE_KEY"), "{text}");
    };
    gone();
    assert!(!place.exists());
    std::fs::create_dir(&place).unwrap();
    gone();
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);

    let store = access(key(), vec![recipient()]).open_for_job().unwrap();
    assert_eq!(store.recipients(), [recipient()]);
    assert_eq!(access(key(), Vec::new()).open_for_job().unwrap().recipients(), [recipient()]);
    // What has opened it once insists.
    std::fs::remove_dir_all(&place).unwrap();
    Store::open_or_create(&place).unwrap();
    let error = access(key(), store.recipients().to_vec()).open_for_job().unwrap_err();
    assert!(matches!(error, OpenError::NotEncrypted { .. }), "{error}");
    assert!(matches!(store.access().open(), Err(OpenError::NotEncrypted { .. })));
    // A key does not keep anybody out of a plain store that is there.
    assert!(!access(key(), Vec::new()).open_for_job().unwrap().is_encrypted());
}

#[test]
fn each_of_several_recipients_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let (other, for_other) = other_key(folder.path());
    let medium = Sim::default();
    let both = [recipient(), for_other];
    let store = Store::open_or_create_with(Arc::new(medium.clone()), &key(), &both).unwrap();
    let image = checkpoint(&store, "job", 2).unwrap().id;
    for key in [key(), other] {
        let store = Store::open_with(Arc::new(medium.clone()), &key, &both).unwrap();
        assert_sample(&store.open_image(&image).unwrap(), 2);
    }
    // More than the file takes.
    let many: Vec<_> = (0..100).map(|_| other_key(folder.path()).1).collect();
    let error = Store::open_or_create_with(Arc::new(Sim::default()), &Key::None, &many).unwrap_err();
    assert!(matches!(error, OpenError::Recipients { .. }), "{error}");
}

/// Whoever can write a config can give it a checksum that fits, but not a proof.
#[test]
fn a_changed_config_is_not_believed() {
    let (plain, medium) = (Sim::default(), Sim::default());
    create(Arc::new(medium.clone()));
    Store::open_or_create_media(Arc::new(plain.clone())).unwrap();
    let config = StoreConfig::read(&medium.tamper("config", |bytes| bytes.clone())[..]).unwrap();
    let changes: [fn(&mut StoreConfig); 5] = [
        |config| config.id.0[0] ^= 1,
        |config| config.created_ns ^= 1,
        |config| config.encryption.as_mut().unwrap().recipients.push("age1…".into()),
        |config| config.encryption.as_mut().unwrap().proof[31] ^= 1,
        |config| *config.encryption.as_mut().unwrap().wrapped.last_mut().unwrap() ^= 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (medium, mut changed) = (medium.copy(), config.clone());
        change(&mut changed);
        medium.tamper("config", |bytes| *bytes = changed.to_bytes().unwrap());
        let error = Store::open_with(Arc::new(medium), &key(), &[]).unwrap_err();
        assert!(matches!(error, OpenError::Changed { .. }), "{number}: {error}");
        assert!(error.to_string().contains("/sim/config"), "{error}");
    }
    for at in 0..config.encryption.as_ref().unwrap().wrapped.len() {
        let (medium, mut changed) = (medium.copy(), config.clone());
        changed.encryption.as_mut().unwrap().wrapped[at] ^= 1;
        medium.tamper("config", |bytes| *bytes = changed.to_bytes().unwrap());
        let error = Store::open_with(Arc::new(medium), &key(), &[]).unwrap_err();
        assert!(matches!(error, OpenError::Changed { .. } | OpenError::WrongKey { .. }), "{at}: {error}");
    }
    // One that says that nothing is encrypted is not taken by who insists.
    medium.tamper("config", |bytes| *bytes = plain.tamper("config", |bytes| bytes.clone()));
    let error = Store::open_with(Arc::new(medium), &key(), &[recipient()]).unwrap_err();
    assert!(matches!(error, OpenError::NotEncrypted { .. }), "{error}");
}

#[test]
fn nothing_plain_is_left_and_nothing_plain_is_taken() {
    let medium = Sim::default();
    let store = create(Arc::new(medium.clone()));
    let image = checkpoint(&store, "a-telling-name", 3).unwrap().id;
    let everything = || medium.files().into_iter().filter(|path| path != "config");
    for path in everything() {
        let bytes = medium.tamper(&path, |bytes| bytes.clone());
        assert!(bytes.starts_with(b"\x89DMSENC\n"), "{path}");
        for telling in [&b"a-telling-name"[..], b"PCK", b"IMG", b"/srv/guest", &noise(1000, 900)[..8]] {
            assert!(!bytes.windows(telling.len()).any(|part| part == telling), "{path}");
        }
    }
    // A file that is not encrypted is none of this store's, even if its content is right.
    let media = Covered::new(Arc::new(medium.clone()), secret_of(&store));
    let path = format!("images/{image}.img");
    let plain = read(&media, &path).unwrap();
    medium.tamper(&path, |bytes| *bytes = plain);
    let error = store.manifest(&image).unwrap_err().to_string();
    assert!(error.contains(&path) && error.contains("does not begin as an encrypted file does"), "{error}");
    // And the other way round: an encrypted file in a plain store.
    let other = Sim::default();
    let plain = Store::open_or_create_media(Arc::new(other.clone())).unwrap();
    let there = checkpoint(&plain, "job", 3).unwrap().id;
    let error = |path: &str| {
        other.tamper(path, |bytes| bytes[..8].copy_from_slice(b"\x89DMSENC\n"));
        plain.manifest(&there).unwrap_err().to_string()
    };
    assert!(error(&format!("images/{there}.img")).contains("does not begin"));
}

fn secret_of(store: &Store) -> Secret {
    match store.access().key {
        Key::Secret(secret) => secret,
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_that_are_cut_off_moved_or_of_another_file_are_noticed() {
    let (sim, media) = covered();
    let bytes = noise(1, 5 * BLOCK);
    write(&media, "a", &[&bytes]);
    write(&media, "b", &[&bytes]);
    let whole = sim.tamper("a", |bytes| bytes.clone());
    let other = sim.tamper("b", |bytes| bytes.clone());
    let block = |number: usize| HEADER_LEN + number * SEALED_BLOCK..HEADER_LEN + (number + 1) * SEALED_BLOCK;
    assert_eq!(whole.len(), block(4).end);
    assert_ne!(whole[block(0)], other[block(0)], "two files of the same bytes are not the same");
    let refused = |changed: Vec<u8>, at: usize| {
        sim.tamper("a", |bytes| *bytes = changed);
        let error = read(&media, "a").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(&format!("at offset {at} ")), "{error}");
    };
    for blocks in 1..5 {
        refused(whole[..block(blocks).start].to_vec(), block(blocks - 1).start);
    }
    for (one, two) in [(0, 1), (1, 3), (3, 4)] {
        let mut changed = whole.clone();
        changed[block(one)].copy_from_slice(&whole[block(two)]);
        changed[block(two)].copy_from_slice(&whole[block(one)]);
        refused(changed, block(one).start);
    }
    for number in 0..5 {
        let mut changed = whole.clone();
        changed[block(number)].copy_from_slice(&other[block(number)]);
        refused(changed, block(number).start);
    }
    // A block more: the last one is not the last any more.
    refused([&whole[..], &whole[block(4)]].concat(), block(4).start);
    // Another's header.
    refused([&other[..HEADER_LEN], &whole[HEADER_LEN..]].concat(), block(0).start);
    // What is not touched can be read all the same.
    sim.tamper("a", |bytes| *bytes = whole[..block(3).start].to_vec());
    let mut part = vec![0; BLOCK];
    media.open("a").unwrap().read_exact_at(&mut part, BLOCK as u64).unwrap();
    assert!(part == bytes[BLOCK..2 * BLOCK]);
}

#[test]
fn lengths_that_no_file_has_are_refused_and_huge_ones_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::new(folder.path());
    let media = Covered::new(Arc::new(dir.clone()), Secret::random().unwrap());
    media.create_folder("in").unwrap();
    write(&media, "in/empty", &[]);
    write(&media, "in/file", &[&noise(1, 100)]);
    assert_eq!(read(&media, "in/empty").unwrap(), b"");
    assert_eq!(media.lengths("in").unwrap(), [("empty".into(), 0), ("file".into(), 100)].into());
    let path = folder.path().join("in/file");
    let whole = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for len in [0, 1, 63, 64, 79, HEADER_LEN as u64 + SEALED_BLOCK as u64 + 16] {
        file.set_len(len).unwrap();
        let error = media.open("in/file").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}: {error}");
        assert_eq!(media.lengths("in").unwrap().len(), 1, "{len}");
        std::fs::write(&path, &whole).unwrap();
    }
    // Nothing of that length is ever made room for.
    file.set_len(1 << 42).unwrap();
    let huge = media.open("in/file").unwrap();
    let len = huge.len().unwrap();
    assert!(len > 1 << 41);
    for offset in [0, 77, len - 8] {
        assert_eq!(huge.read_exact_at(&mut [0; 8], offset).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    for offset in [len - 7, len, u64::MAX - 3, u64::MAX] {
        assert_eq!(huge.read_exact_at(&mut [0; 8], offset).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
    huge.will_read(u64::MAX - 1, u64::MAX);
}

#[test]
fn images_are_copied_into_and_out_of_encrypted_stores() {
    let plain = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let image = checkpoint(&plain, "job", 4).unwrap().id;
    let [encrypted, again] = [(), ()].map(|()| create(Arc::new(Sim::default())));
    let back = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    for (from, to) in [(&plain, &encrypted), (&encrypted, &again), (&again, &back)] {
        let report = from.copy_to(to, &[image], &CopyOptions::default(), &mut |_| {}).unwrap();
        assert_eq!((report.images.len(), report.damaged.len()), (1, 0));
        assert!(to.verify(&image, &mut |_| {}).unwrap().ok);
        assert_sample(&to.open_image(&image).unwrap(), 4);
    }
}

/// A file of several times what is encrypted at once, and of an odd length.
static LONG: LazyLock<Vec<u8>> = LazyLock::new(|| noise(9, 37 * BLOCK + 4321));

fn long_file() -> &'static dyn MediaRead {
    static FILE: LazyLock<Box<dyn MediaRead>> = LazyLock::new(|| {
        let (_, media) = covered();
        let pieces: Vec<_> = LONG.chunks(777_777).collect();
        write(&media, "long", &pieces);
        media.open("long").unwrap()
    });
    &**FILE
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_part_reads_as_it_was_written(offset in 0..LONG.len(), len in prop_oneof![0..200_usize, 0..3 * BLOCK, 0..LONG.len()]) {
        let len = len.min(LONG.len() - offset);
        let mut part = vec![0; len];
        long_file().read_exact_at(&mut part, offset as u64).unwrap();
        prop_assert!(part == LONG[offset..offset + len]);
    }

    #[test]
    fn what_is_written_in_any_pieces_reads_back(lens in proptest::collection::vec(prop_oneof![0..100_usize, 0..3 * BLOCK], 0..6), exact in 0..3_usize) {
        let pieces: Vec<&[u8]> = lens.iter().map(|len| &LONG[..*len]).chain([&LONG[..exact * BLOCK]]).collect();
        let (sim, media) = covered();
        write(&media, "file", &pieces);
        let bytes = pieces.concat();
        prop_assert_eq!(sim.tamper("file", |file| file.len()) as u64, image::cover::sealed_len(bytes.len() as u64));
        prop_assert!(read(&media, "file").unwrap() == bytes);
    }
}

#[test]
fn a_key_file_that_is_none_is_refused() {
    let error = Identities::read(&["/nowhere/key.txt".into()]).unwrap_err().to_string();
    assert!(error.contains("/nowhere/key.txt"), "{error}");
}
