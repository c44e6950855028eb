//! An image that is brought into another store while it is written, and read there before all of it has come.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::sample::{assert_sample, checkpoint, manifest, write};
use crate::support::sim::{Sim, Unsynced};
use image::ImageId;
use store::{Delivery, ReadError, Store};

/// A store with one image, in memory.
fn store(number: u64) -> (Sim, Store) {
    let medium = Sim::default();
    let store = open(&medium);
    checkpoint(&store, "job", number).unwrap();
    (medium, store)
}

fn open(medium: &Sim) -> Store {
    Store::open_or_create_media(std::sync::Arc::new(medium.clone())).unwrap()
}

/// Takes sample `number`, all of which goes ahead unless it is to stop; its id, and its way to the other store.
fn followed(from: &Store, to: &Store, number: u64, stop: bool) -> (ImageId, Delivery) {
    let mut delivery = from.deliver_to(to).unwrap();
    let draft = from.begin().unwrap();
    let image = draft.id();
    delivery.follow(image, &AtomicBool::new(false)).unwrap();
    assert_eq!(delivery.sent(), 0, "there is nothing yet");
    let receipts = write(&draft, number).unwrap();
    delivery.follow(image, &AtomicBool::new(stop)).unwrap();
    assert_eq!(delivery.sent() > 0, !stop);
    draft.publish(manifest("job", number), receipts).unwrap();
    (image, delivery)
}

#[test]
fn an_image_is_read_before_it_has_come() {
    let ((_, from), (medium, to)) = (store(0), store(7));
    let mut delivery = from.deliver_to(&to).unwrap();
    let image = checkpoint(&from, "job", 1).unwrap().id;
    assert!(matches!(to.open_arriving(&image), Err(ReadError::NoImage { .. })), "nobody has told of it");
    delivery.announce(&image).unwrap();
    let arriving = to.open_arriving(&image).unwrap();
    assert!(matches!(to.open_image(&image), Err(ReadError::NoImage { .. })), "it has no name");
    let (is_read, has_come) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            assert_sample(&arriving, 1);
            is_read.store(true, Ordering::Release);
            arriving.await_arrival().unwrap();
            assert!(has_come.load(Ordering::Acquire), "it has no name yet");
        });
        assert!(!is_read.load(Ordering::Acquire), "it has not come");
        let mut told = 0;
        delivery.complete(&mut |bytes| told += bytes).unwrap();
        assert_eq!(told, delivery.sent());
        while !is_read.load(Ordering::Acquire) {
            assert!(!reading.is_finished());
            std::thread::yield_now();
        }
        has_come.store(true, Ordering::Release);
        delivery.publish().unwrap();
        reading.join().unwrap();
    });
    // Who comes late finds it as any other.
    for image in [to.open_arriving(&image), to.open_image(&image)] {
        assert_sample(&image.unwrap(), 1);
    }
    assert!(to.verify(&image, &mut |_| {}).unwrap().ok);
    assert_eq!(medium_names(&medium, "tmp"), [""; 0]);
}

fn medium_names(medium: &Sim, folder: &str) -> Vec<String> {
    store::media::Media::list(medium, folder).unwrap()
}

#[test]
fn what_went_ahead_is_not_sent_again() {
    for stop in [false, true] {
        let ((_, from), (_, to)) = (store(0), store(7));
        let (image, mut delivery) = followed(&from, &to, 1, stop);
        let ahead = delivery.sent();
        delivery.announce(&image).unwrap();
        delivery.complete(&mut |_| {}).unwrap();
        assert_eq!(delivery.sent() == ahead, !stop);
        delivery.publish().unwrap();
        assert_sample(&to.open_image(&image).unwrap(), 1);
        assert!(to.verify(&image, &mut |_| {}).unwrap().ok);
    }
}

#[test]
fn who_waits_for_what_is_given_up_hears_it() {
    let ((_, from), (medium, to)) = (store(0), store(7));
    let mut delivery = from.deliver_to(&to).unwrap();
    let image = checkpoint(&from, "job", 1).unwrap().id;
    delivery.announce(&image).unwrap();
    let arriving = to.open_arriving(&image).unwrap();
    let kind = arriving.manifest().objects[1].kind.clone();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| arriving.read_to_vec(&kind, 1 << 30).unwrap_err());
        drop(delivery);
        let error = reading.join().unwrap().to_string();
        assert!(error.contains(&format!("image {image} has not come whole")), "{error}");
    });
    assert!(matches!(arriving.await_arrival(), Err(ReadError::NotCome { .. })));
    drop(arriving);
    assert_eq!(to.list().unwrap().images.len(), 1);
    to.remove(&[]).unwrap();
    assert_eq!(medium_names(&medium, "packs").len(), medium_packs_of_one());
}

/// How many packs a store has with one sample.
fn medium_packs_of_one() -> usize {
    medium_names(&store(7).0, "packs").len()
}

/// The operation log of the target, cut at each point.
#[test]
fn a_crash_at_any_point_of_a_delivery_lists_nothing_that_is_not_whole() {
    let ((_, from), (medium, to)) = (store(0), store(7));
    let medium = {
        drop(to);
        medium.copy()
    };
    let to = open(&medium);
    let (image, mut delivery) = followed(&from, &to, 1, false);
    delivery.announce(&image).unwrap();
    delivery.complete(&mut |_| {}).unwrap();
    delivery.publish().unwrap();
    let end = medium.operations();
    assert!(end > 15, "{end} operations are too few for a test");
    for cut in 0..=end {
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(cut as u64)] {
            let store = open(&medium.after_crash(cut, unsynced));
            let listing = store.list().unwrap();
            assert_eq!(listing.damaged, []);
            let mut images: Vec<_> = listing.images.iter().map(|summary| summary.id).collect();
            for image in &images {
                assert!(store.verify(image, &mut |_| {}).unwrap().ok, "cut {cut}, {unsynced:?}");
            }
            images.retain(|listed| *listed == image);
            assert!(cut < end || images == [image], "{unsynced:?}");
        }
    }
}
