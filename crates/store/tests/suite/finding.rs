//! Which image a name means, and what is said when that is damaged.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::sample::checkpoint;
use crate::support::sim::Sim;
use image::{ImageId, Manifest};
use store::media::{Around, Media, MediaRead};
use store::{FindError, Found, ReadError, Store};

fn new_store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    (folder, store)
}

#[test]
fn names_find_images() {
    let (_folder, store) = new_store();
    names_find_images_in(&store);
}

/// The same for any store.
pub fn names_find_images_in(store: &Store) {
    let first = checkpoint(store, "train", 1).unwrap();
    let second = checkpoint(store, "train", 3).unwrap();
    // A clock that went back does not make an older image the newest.
    let newest = checkpoint(store, "train", 2).unwrap();
    let other = checkpoint(store, "other", 1).unwrap();
    let listed: Vec<_> = store.list().unwrap().images.iter().map(|image| image.id).collect();
    assert_eq!(listed.len(), 4);
    assert_eq!(listed.last(), Some(&newest.id));
    assert!(listed.iter().position(|id| *id == first.id) < listed.iter().position(|id| *id == second.id));
    assert_eq!(store.find("train").unwrap().id, newest.id);
    assert_eq!(store.find("train@latest").unwrap().id, newest.id);
    assert_eq!(store.find("other").unwrap().id, other.id);
    assert_eq!(store.find(&first.id.to_string()).unwrap().id, first.id);
    assert_eq!(store.find(&first.id.to_string()[..8]).unwrap().id, first.id);
    for unknown in ["", "tra", "xyz", "nobody@latest", "train@1", "../images"] {
        let error = store.find(unknown).unwrap_err();
        assert!(matches!(error, FindError::NotFound { .. }), "{unknown}: {error}");
        assert!(error.to_string().contains("dormouse ls"), "{error}");
    }
    let short = store.find(&first.id.to_string()[..3]).unwrap_err();
    assert!(short.to_string().contains("give at least 4 characters"), "{short}");
    let absent = store.find("00000000000000000000000000000000").unwrap_err();
    assert!(absent.to_string().contains("there is no image 0000"), "{absent}");

    // A job may be called like an image's prefix: the job it is.
    let digits = first.id.to_string()[..6].to_owned();
    let digits_job = checkpoint(store, &digits, 1).unwrap();
    assert_eq!(store.find(&digits).unwrap().id, digits_job.id);
}

/// Changes a manifest's file.
fn damage(store: &Store, image: &ImageId, change: impl FnOnce(&mut Vec<u8>)) {
    let path = store.dir().join(format!("images/{image}.img"));
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_newest_image_is_not_passed_over() {
    let (_folder, store) = new_store();
    let first = checkpoint(&store, "train", 1).unwrap().id;
    let newest = checkpoint(&store, "train", 2).unwrap().id;
    let other = checkpoint(&store, "other", 1).unwrap().id;
    damage(&store, &newest, |bytes| bytes.truncate(bytes.len() / 2));

    for reference in ["train", "train@latest"] {
        let error = store.find(reference).unwrap_err();
        let FindError::Damaged { damaged, older, .. } = &error else { panic!("{error}") };
        assert_eq!((damaged.image, *older), (newest, Some(first)));
        for word in ["newest image of job \"train\"", &newest.to_string(), &format!("by its id: {first}")] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
    let listed = store.list().unwrap().damaged;
    assert_eq!((listed[0].image, listed[0].job.as_deref(), listed[0].newer), (newest, Some("train"), false));
    // Whoever names an image, or another job, is not concerned.
    assert_eq!(store.find(&first.to_string()).unwrap().id, first);
    assert_eq!(store.find(&first.to_string()[..8]).unwrap(), Found { id: first, unsure: vec![] });
    assert_eq!(store.find("other").unwrap(), Found { id: other, unsure: vec![] });
    // Nor is anybody when there is a newer one.
    let third = checkpoint(&store, "train", 3).unwrap().id;
    assert_eq!(store.find("train").unwrap(), Found { id: third, unsure: vec![] });
    let error = store.find(&newest.to_string()[..8]).unwrap_err();
    assert!(matches!(&error, FindError::Read(ReadError::File { .. })), "{error}");
}

#[test]
fn an_image_that_may_be_newer_is_told_of() {
    let (_folder, store) = new_store();
    let first = checkpoint(&store, "train", 1).unwrap().id;
    let second = checkpoint(&store, "train", 2).unwrap().id;
    damage(&store, &second, |bytes| bytes.truncate(70));
    let found = store.find("train").unwrap();
    assert_eq!(found.id, first);
    assert_eq!(found.unsure.iter().map(|image| image.image).collect::<Vec<_>>(), [second]);
    damage(&store, &first, Vec::clear);
    let error = store.find("train").unwrap_err();
    assert!(error.to_string().contains("no readable image fits \"train\""), "{error}");
}

#[test]
fn a_newest_image_of_a_newer_program_is_not_passed_over() {
    let (_folder, store) = new_store();
    checkpoint(&store, "train", 1).unwrap();
    let newest = checkpoint(&store, "train", 2).unwrap().id;
    damage(&store, &newest, |bytes| {
        bytes[8] = 2;
        let hash = blake3::Hasher::new().update(&bytes[..32]).update(&bytes[64..]).finalize();
        bytes[32..64].copy_from_slice(hash.as_bytes());
    });
    let error = store.find("train").unwrap_err();
    assert!(matches!(&error, FindError::Read(error) if error.is_newer()), "{error}");
    assert!(store.list().unwrap().damaged[0].newer);
}

#[test]
fn an_ambiguous_prefix_lists_what_it_could_mean() {
    let (_folder, store) = new_store();
    let image = checkpoint(&store, "job", 1).unwrap().id;
    let manifest = store.manifest(&image).unwrap();
    let mut twin = image;
    twin.0[15] ^= 1;
    let bytes = Manifest { id: twin, ..manifest }.to_bytes().unwrap();
    fs::write(store.dir().join(format!("images/{twin}.img")), bytes).unwrap();
    let error = store.find(&image.to_string()[..10]).unwrap_err();
    assert!(matches!(&error, FindError::Ambiguous { candidates, .. } if candidates.len() == 2), "{error}");
    assert!(error.to_string().contains(&twin.to_string()), "{error}");
}

/// A medium that cannot read a file.
#[derive(Debug)]
struct Unreadable {
    inner: Sim,
    path: String,
    way: Way,
    opened: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// As for want of rights.
    Open,
    /// As with a bad sector.
    Read,
    /// Each second time it can.
    Often,
}

#[derive(Debug)]
struct BadSector(Box<dyn MediaRead>);

impl Around for Unreadable {
    fn inner(&self) -> &dyn Media {
        &self.inner
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        let file = self.inner.open(path)?;
        if path != self.path {
            return Ok(file);
        }
        match self.way {
            Way::Open => Err(io::ErrorKind::PermissionDenied.into()),
            Way::Read => Ok(Box::new(BadSector(file))),
            Way::Often if self.opened.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Way::Often => Ok(file),
        }
    }

    /// As a folder does.
    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        let mut lengths = self.inner.lengths(folder)?;
        if self.way != Way::Read {
            lengths.retain(|name, _| format!("{folder}/{name}") != self.path);
        }
        Ok(lengths)
    }
}

impl MediaRead for BadSector {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(5))
    }
}

/// Nothing is known of a pack then: what the damaged index beside it needs may be there.
#[test]
fn a_pack_whose_bytes_cannot_be_had_is_not_called_damaged() {
    let sim = Sim::default();
    let store = Store::open_or_create_media(Arc::new(sim.clone())).unwrap();
    checkpoint(&store, "train", 1).unwrap();
    let [index, pack] = ["index", "packs"].map(|folder| format!("{folder}/{}", sim.list(folder).unwrap()[0]));
    sim.tamper(&index, |bytes| bytes[100] ^= 1);
    for (way, said) in
        [(Way::Open, "permission denied"), (Way::Read, "os error 5"), (Way::Often, "timed out")]
    {
        let path = pack.clone();
        let medium = Unreadable { inner: sim.clone(), path, way, opened: AtomicUsize::new(0) };
        let store = Store::open_media(Arc::new(medium)).unwrap();
        let kept = store.remove(&[]).unwrap().kept.unwrap().message;
        for word in [&format!("/sim/{pack} cannot be read"), said, "see to its permissions", "NEWSTORE"] {
            assert!(kept.contains(word), "{word}: {kept}");
        }
        assert!(!kept.contains("damaged, too") && !kept.contains("from a copy"), "{kept}");
    }
}

#[test]
fn an_image_whose_bytes_cannot_be_had_is_not_passed_over() {
    let sim = Sim::default();
    let store = Store::open_or_create_media(Arc::new(sim.clone())).unwrap();
    let [first, second] = [1, 2].map(|number| checkpoint(&store, "train", number).unwrap().id);
    let other = checkpoint(&store, "other", 1).unwrap().id;
    for (way, said) in
        [(Way::Open, "permission denied"), (Way::Read, "os error 5"), (Way::Often, "timed out")]
    {
        let without = |image: ImageId| {
            let path = format!("images/{image}.img");
            Store::open_media(Arc::new(Unreadable {
                inner: sim.clone(),
                path,
                way,
                opened: AtomicUsize::new(0),
            }))
            .unwrap()
        };
        for reference in ["train", "train@latest"] {
            let error = without(second).find(reference).unwrap_err();
            let FindError::Unread { unread, older, .. } = &error else { panic!("{way:?}: {error}") };
            assert_eq!((unread.image, *older), (second, Some(first)));
            let text = error.to_string();
            let file = format!("/sim/images/{second}.img");
            for word in [file.as_str(), said, "try again", &format!("by its id: {first}")] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
        // It is listed as before, and ids are taken.
        assert_eq!(without(second).list().unwrap().damaged[0].image, second);
        assert_eq!(without(second).find(&first.to_string()).unwrap().id, first);
        assert_eq!(without(second).find(&first.to_string()[..8]).unwrap().id, first);
        let nobody = without(second).find("nobody").unwrap_err();
        assert!(matches!(nobody, FindError::Unread { older: None, .. }), "{nobody}");
        // Where its first fields can be read, they tell whom it concerns.
        let legible = way == Way::Often;
        assert_eq!(without(second).find("other").is_ok_and(|found| found.is(other)), legible, "{way:?}");
        assert_eq!(without(first).find("train").is_ok_and(|found| found.is(second)), legible, "{way:?}");
    }
}
