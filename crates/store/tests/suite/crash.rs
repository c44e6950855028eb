//! Whatever fails and whenever the power goes: every listed image is complete, and no published one is lost.
#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::sync::Arc;

use crate::support::fault::Fault;
use crate::support::sample::{assert_sample, checkpoint};
use crate::support::sim::{Sim, Unsynced};
use store::media::Media;
use store::{OpenError, Store, WriteError};

fn open(medium: &Sim) -> Store {
    Store::open_media(Arc::new(medium.clone())).unwrap()
}

/// Checks all that a store lists: each image is a sample, whole. Says which samples.
fn assert_sound(store: &Store) -> Vec<u64> {
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

/// After whatever happened, a checkpoint works, and nothing of former ones is left behind.
fn assert_goes_on(store: &Store, medium: &Sim, number: u64) {
    checkpoint(store, "job", number).unwrap();
    assert!(assert_sound(store).contains(&number));
    assert_eq!(medium.list("tmp").unwrap(), [""; 0]);
}

/// The operation log, cut at each point; what was not synced lost, kept, or mixed at random.
#[test]
fn a_crash_at_any_point_loses_no_published_image() {
    let medium = Sim::default();
    let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
    let created = medium.operations();
    let mut published = Vec::new();
    for number in 0..3 {
        checkpoint(&store, "job", number).unwrap();
        published.push((medium.operations(), number));
    }
    let end = medium.operations();
    assert!(end > 100, "{end} operations are too few for a test");
    for cut in 0..=end {
        for unsynced in Unsynced::ways(cut, 6) {
            let after = medium.after_crash(cut, unsynced);
            let store = match Store::open_media(Arc::new(after.clone())) {
                Err(OpenError::NotAStore { .. }) if cut < created => {
                    Store::open_or_create_media(Arc::new(after.clone())).unwrap()
                }
                opened => opened.unwrap_or_else(|error| panic!("cut {cut}, {unsynced:?}: {error}")),
            };
            let listed = assert_sound(&store);
            // The operations after an image's last are its clean-up: a cut in them finds it published.
            for number in
                published.iter().filter(|(operations, _)| *operations <= cut).map(|(_, number)| number)
            {
                assert!(listed.contains(number), "cut {cut}, {unsynced:?}: image {number} is lost");
            }
            if cut % 7 == 0 {
                assert_goes_on(&store, &after, 9);
            }
        }
    }
}

/// Runs `attempt` with the n-th operation failing, for every n until it does not come to it any more.
fn fail_every_operation(count: u64, error: ErrorKind, mut after: impl FnMut(&Sim, u64, Option<WriteError>)) {
    let before = Sim::default();
    checkpoint(&Store::open_or_create_media(Arc::new(before.clone())).unwrap(), "job", 0).unwrap();
    for n in 1.. {
        let medium = before.copy();
        let fault = Fault::new(Arc::new(medium.clone()), n, count, error);
        let result = checkpoint(&Store::open_media(Arc::new(fault.clone())).unwrap(), "job", 1);
        if !fault.struck() {
            result.unwrap();
            assert!(n > 25, "{n} operations are too few for a test");
            return;
        }
        after(&medium, n, result.err());
    }
}

#[test]
fn any_one_failing_operation_leaves_no_half_image() {
    fail_every_operation(1, ErrorKind::Other, |medium, n, error| {
        let store = open(medium);
        let listed = assert_sound(&store);
        match error {
            None => assert_eq!(listed, [0, 1], "operation {n}: published and not listed"),
            // One failing operation never keeps the others from undoing.
            Some(error) => assert_eq!(listed, [0], "operation {n}: {error}"),
        }
        // The same again finds some or all of its chunks there already, put by the attempt that failed. It must not count on what that has
        // not made durable.
        checkpoint(&store, "job", 1).unwrap();
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(n), Unsynced::Mixed(n << 32)] {
            let after = medium.after_crash(medium.operations(), unsynced);
            let store = open(&after);
            assert_eq!(assert_sound(&store), [&listed[..], &[1]].concat(), "operation {n}, {unsynced:?}");
            assert_goes_on(&store, &after, 2);
        }
    });
}

/// From some moment on nothing works any more, not even cleaning up; then the machine is switched off.
#[test]
fn a_medium_that_stays_broken_and_then_crashes_leaves_no_half_image() {
    fail_every_operation(u64::MAX, ErrorKind::Other, |medium, n, error| {
        assert!(assert_sound(&open(medium)).starts_with(&[0]), "operation {n}: {error:?}");
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(n), Unsynced::Mixed(n << 32)] {
            let after = medium.after_crash(medium.operations(), unsynced);
            let store = open(&after);
            assert!(assert_sound(&store).starts_with(&[0]), "operation {n}, {unsynced:?}");
            assert_goes_on(&store, &after, 2);
        }
    });
}

#[test]
fn a_full_or_read_only_store_is_said_to_be_so() {
    type Is = fn(&WriteError) -> bool;
    let cases: [(ErrorKind, &str, Is); 3] = [
        (ErrorKind::StorageFull, "the store is full", |error| matches!(error, WriteError::Full { .. })),
        (ErrorKind::QuotaExceeded, "the store is full", |error| matches!(error, WriteError::Full { .. })),
        (ErrorKind::ReadOnlyFilesystem, "not writable", |error| {
            matches!(error, WriteError::NotWritable { .. })
        }),
    ];
    for (kind, words, is) in cases {
        let mut failures = 0;
        fail_every_operation(u64::MAX, kind, |medium, n, error| {
            if let Some(error) = error {
                assert!(is(&error), "operation {n}: {error:?}");
                let message = error.to_string();
                assert!(message.contains(words) && message.contains("another store"), "{message}");
                assert!(message.contains("/sim/"), "{message} names no file");
                failures += 1;
            }
            assert!(assert_sound(&open(medium)).starts_with(&[0]));
        });
        assert!(failures > 20);
    }
}

#[test]
fn creating_a_store_can_fail_anywhere_and_be_tried_again() {
    for n in 1.. {
        let medium = Sim::default();
        let fault = Fault::new(Arc::new(medium.clone()), n, 1, ErrorKind::StorageFull);
        let created = Store::open_or_create_media(Arc::new(fault.clone()));
        if !fault.struck() {
            break;
        }
        if let Err(error) = created {
            assert!(matches!(error, OpenError::Media(_)), "{error:?}");
        }
        let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
        assert_goes_on(&store, &medium, 0);
    }
}
