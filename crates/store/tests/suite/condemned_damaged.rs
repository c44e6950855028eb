//! The list of condemned packs, damaged in every way: that costs room and work at most, never an image.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::condemned::{FILE, finish};
use crate::corruption::reseal;
use crate::removing::{assert_sound, assert_tidy, three_in, writer};
use crate::support::keys;
use crate::support::sim::Sim;
use image::ImageId;
use store::media::Media;
use store::{ChunkWriter, Draft, Store};

/// How a store is made.
type Made = fn(Arc<dyn Media>) -> Store;

/// Encrypted or not.
const EACH: [Made; 2] = [|medium| Store::open_or_create_media(medium).unwrap(), keys::create];

/// Whether the draft is written still for which packs are condemned.
const WHETHER: [bool; 2] = [true, false];

/// A store with such a list.
struct Sentenced {
    medium: Sim,
    /// An image that stays.
    image: ImageId,
    /// It has found all of an image that is gone, whose packs are condemned for it.
    draft: Option<(Draft, ChunkWriter)>,
    /// How many bytes an image brings where nothing is used again.
    all: u64,
}

impl Sentenced {
    fn new(made: Made, is_written: bool) -> Self {
        let medium = Sim::default();
        let store = made(Arc::new(medium.clone()));
        let images = three_in(&store);
        let all = store.manifest(&images[0]).unwrap().stored.new;
        let draft = store.begin().unwrap();
        let writing = writer(&draft);
        assert!(store.remove(&images[..1]).unwrap().waiting > 0);
        let draft = is_written.then_some((draft, writing));
        Self { medium, image: images[1], draft, all }
    }

    /// The same without the draft, which is on the original.
    fn copy(&self) -> Self {
        Self { medium: self.medium.copy(), draft: None, ..*self }
    }

    fn list(&self) -> Vec<u8> {
        self.medium.tamper(FILE, |bytes| bytes.clone())
    }

    fn store(&self) -> Store {
        keys::open(Arc::new(self.medium.clone()))
    }

    /// Checks that nothing is lost with the list as it is now, and that a draft which begins now uses what there is, or nothing.
    fn assert_nothing_is_lost(self, uses: bool, how: &str) {
        let store = self.store();
        let later = store.begin().unwrap();
        let writing = writer(&later);
        let removal = store.remove(&[]).unwrap();
        assert!((removal.freed, &removal.kept) == (0, &None) && removal.waiting > 0, "{how}: {removal:?}");
        assert_eq!(finish(later, writing, 0), if uses { 0 } else { self.all }, "{how}");
        if let Some((draft, writing)) = self.draft {
            assert_eq!(finish(draft, writing, 0), 0, "{how}");
        }
        assert_eq!(assert_sound(&store), [0, 1, 2].into(), "{how}");
        let removal = store.remove(&[]).unwrap();
        assert!(
            removal.kept.is_none() && !self.medium.files().contains(&FILE.to_owned()),
            "{how}: {removal:?}"
        );
    }
}

/// Checks that a list that is damaged so is not believed.
fn assert_not_believed(sentenced: Sentenced, damage: impl FnOnce(&mut Vec<u8>), how: &str) {
    sentenced.medium.tamper(FILE, damage);
    sentenced.assert_nothing_is_lost(false, how);
}

#[test]
fn flipped_bytes_lose_nothing() {
    for sentenced in EACH.map(|made| Sentenced::new(made, false)) {
        for at in 0..sentenced.list().len() {
            let flip = if at % 2 == 0 { 0x01 } else { 0x80 };
            let how = format!("byte {at} ^ {flip:#x}");
            assert_not_believed(sentenced.copy(), |bytes| bytes[at] ^= flip, &how);
        }
    }
}

#[test]
fn cut_off_or_longer_it_loses_nothing() {
    for sentenced in EACH.map(|made| Sentenced::new(made, false)) {
        for len in 0..sentenced.list().len() {
            assert_not_believed(sentenced.copy(), |bytes| bytes.truncate(len), &format!("cut to {len}"));
        }
        assert_not_believed(sentenced, |bytes| bytes.push(0), "a byte more");
    }
}

#[test]
fn who_is_waited_for_loses_nothing() {
    for made in EACH {
        assert_not_believed(Sentenced::new(made, true), |bytes| bytes[70] ^= 1, "a flipped byte");
        assert_not_believed(Sentenced::new(made, true), Vec::clear, "cut to nothing");
    }
}

#[test]
fn files_in_its_place_and_it_in_theirs_lose_nothing() {
    for (made, is_written) in EACH.iter().flat_map(|made| WHETHER.map(|is_written| (*made, is_written))) {
        for number in 0..3 {
            let sentenced = Sentenced::new(made, is_written);
            let image = sentenced.image;
            let other = ["config".to_owned(), format!("index/{image}.idx"), format!("images/{image}.img")]
                [number]
                .clone();
            let bytes = sentenced.medium.tamper(&other, |bytes| bytes.clone());
            assert_not_believed(sentenced, |list| list.clone_from(&bytes), &other);
        }
        let sentenced = Sentenced::new(made, is_written);
        let (index, list) = (format!("index/{}.idx", sentenced.image), sentenced.list());
        sentenced.medium.tamper(&index, |bytes| bytes.clone_from(&list));
        let store = sentenced.store();
        let report = store.verify(&sentenced.image, &mut |_| {}).unwrap();
        assert!(report.damage[0].file.to_str().unwrap().ends_with(&index), "{report:#?}");
        assert_eq!(store.remove(&[]).unwrap().kept.is_some(), is_written);
        drop(sentenced.draft);
        // Its packs still say what they hold.
        assert_eq!(store.remove(&[]).unwrap().kept, None);
        assert_eq!(assert_sound(&store), [1, 2].into());
        assert_tidy(&sentenced.medium, &store);
    }
}

/// What another store condemns is not here; but with another secret it is no list.
#[test]
fn without_it_or_with_that_of_another_store_nothing_is_lost() {
    for (made, is_believed) in EACH.into_iter().zip([true, false]) {
        for is_written in WHETHER {
            let sentenced = Sentenced::new(made, is_written);
            sentenced.medium.remove(FILE).unwrap();
            sentenced.assert_nothing_is_lost(true, "gone");

            let (sentenced, other) = (Sentenced::new(made, is_written), Sentenced::new(made, false).list());
            sentenced.medium.tamper(FILE, |bytes| bytes.clone_from(&other));
            sentenced.assert_nothing_is_lost(is_believed, "of another store");
        }
    }
}

#[test]
fn that_of_a_newer_version_is_not_believed() {
    for is_written in WHETHER {
        let sentenced = Sentenced::new(EACH[0], is_written);
        assert_not_believed(sentenced, |bytes| reseal(bytes, 8, 2), "a newer version");
    }
}
