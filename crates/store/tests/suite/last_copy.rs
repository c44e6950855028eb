//! What has rotted in the packs that stay is not lost with those that go.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use crate::condemned::finish;
use crate::removing::{assert_sound, assert_tidy, three, writer};
use crate::repacking::{mixed, repack};
use crate::support::hook::Hook;
use crate::support::sample::assert_sample;
use crate::support::sim::Sim;
use store::media::Media;
use store::{Removal, Store};

fn run(store: &Store) -> Removal {
    store.remove_and_repack(&[], &repack(), &mut |_, _| Continue(())).unwrap()
}

fn packs(medium: &Sim) -> Vec<String> {
    medium.list("packs").unwrap().iter().map(|name| format!("packs/{name}")).collect()
}

/// Damages a chunk of each of these packs.
fn rot(medium: &Sim, packs: impl IntoIterator<Item = String>) {
    packs.into_iter().for_each(|pack| medium.tamper(&pack, |bytes| bytes[100] ^= 1));
}

/// Whether each image can be read, whatever has rotted; which samples they are.
fn readable(store: &Store) -> BTreeSet<u64> {
    let images = store.list().unwrap().images;
    let read = images.iter().map(|image| {
        let image = store.open_image(&image.id).unwrap();
        let number = image.manifest().job_files[0].len;
        assert_sample(&image, number);
        number
    });
    read.collect()
}

/// One that was written anew beside a draft, and goes when that has ended.
#[test]
fn a_pack_that_waits_stays_where_what_was_written_for_it_has_rotted() {
    let (medium, store, images) = mixed();
    let before = packs(&medium);
    let draft = store.begin().unwrap();
    let waiting = store.remove_and_repack(&images[..1], &repack(), &mut |_, _| Continue(())).unwrap().waiting;
    assert!(waiting > 0);
    rot(&medium, packs(&medium).into_iter().filter(|pack| !before.contains(pack)));
    // It is condemned still.
    assert_eq!(store.remove(&[]).unwrap().waiting, waiting);
    assert_eq!(readable(&store), [1, 2].into());
    drop(draft);
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting), (0, 0), "it is condemned no more");
    assert_eq!(readable(&store), [1, 2].into());
    // Then it is written anew once more, and what has rotted goes.
    assert!(run(&store).freed > 0);
    run(&store);
    assert_eq!(assert_sound(&store), [1, 2].into());
    assert_tidy(&medium, &store);
}

/// One that nobody needed when it was condemned; then another wrote the same.
#[test]
fn a_pack_that_waits_stays_where_what_another_has_written_has_rotted() {
    for rots in [false, true] {
        let (medium, store, images) = three();
        let draft = store.begin().unwrap();
        let waiting = store.remove(&images[..1]).unwrap().waiting;
        let before = packs(&medium);
        let later = store.begin().unwrap();
        let writing = writer(&later);
        assert!(finish(later, writing, 0) > 0);
        if rots {
            rot(&medium, packs(&medium).into_iter().filter(|pack| !before.contains(pack)));
        }
        drop(draft);
        let removal = store.remove(&[]).unwrap();
        assert_eq!((removal.freed, removal.waiting), if rots { (0, 0) } else { (waiting, 0) });
        assert_eq!(readable(&store), [0, 1, 2].into());
        if !rots {
            assert_tidy(&medium, &store);
        }
    }
}

/// What happens when it has been read what images need of such packs, and before any of these goes.
fn between(medium: &Sim, run: impl FnOnce() + Send + 'static) -> Store {
    Store::open_media(Hook::new(Arc::new(medium.clone()), "lock", "config", run)).unwrap()
}

#[test]
fn what_an_image_needs_since_it_was_looked_for_is_looked_for_again() {
    let (medium, store, images) = three();
    let draft = store.begin().unwrap();
    let waiting = store.remove(&images[..1]).unwrap().waiting;
    drop(draft);
    let (other, rotten) = (store.clone(), medium.clone());
    let late = between(&medium, move || {
        let before = packs(&rotten);
        let draft = other.begin().unwrap();
        let writing = writer(&draft);
        assert!(finish(draft, writing, 0) > 0);
        rot(&rotten, packs(&rotten).into_iter().filter(|pack| !before.contains(pack)));
    });
    let removal = late.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting), (0, waiting), "it is condemned still");
    assert_eq!(readable(&store), [0, 1, 2].into());
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting), (0, 0), "it is condemned no more");
    assert_eq!(readable(&store), [0, 1, 2].into());
}

#[test]
fn what_waits_for_nobody_since_it_was_looked_for_goes_with_the_next_removal() {
    let (medium, store, images) = three();
    let draft = store.begin().unwrap();
    let waiting = store.remove(&images[..1]).unwrap().waiting;
    let later = store.begin().unwrap();
    let writing = writer(&later);
    assert!(finish(later, writing, 0) > 0);
    let removal = between(&medium, move || drop(draft)).remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting), (0, waiting));
    assert_eq!(store.remove(&[]).unwrap().freed, waiting);
    assert_eq!(assert_sound(&store), [0, 1, 2].into());
    assert_tidy(&medium, &store);
}
