//! Room is freed beside checkpoints that are being written, and none of them loses what it counts on.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::io::ErrorKind;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::removing::{assert_sound, assert_tidy, pack_bytes, three, three_on, writer};
use crate::repacking::repack;
use crate::support::fault::Fault;
use crate::support::hook::Hook;
use crate::support::sample::{assert_sample, checkpoint, manifest, objects, write_objects};
use crate::support::sim::{Sim, Unsynced};
use image::ImageId;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use store::media::{Dir, Media};
use store::{ChunkWriter, Draft, Image, Store};

pub const FILE: &str = "index/condemned";

/// Finishes an image; says how many bytes of it the store did not have.
pub fn finish(draft: Draft, writer: ChunkWriter, number: u64) -> u64 {
    write_objects(&writer, &objects(number)).unwrap();
    draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap().stored.new
}

/// A store of three, and a draft for which what the first of them alone needs is condemned, if it is to be.
fn three_with(is_condemned: bool) -> (Arc<Sim>, Store, Vec<ImageId>, Option<Draft>) {
    let (medium, store, images) = three();
    let earlier = is_condemned.then(|| store.begin().unwrap());
    if is_condemned {
        assert!(store.remove(&images[..1]).unwrap().waiting > 0);
    }
    (Arc::new(medium), store, images, earlier)
}

#[test]
fn room_comes_back_beside_drafts() {
    room_comes_back_beside_checkpoints(Arc::new(Sim::default()));
}

/// The same on any medium.
pub fn room_comes_back_beside_checkpoints(medium: Arc<dyn Media>) {
    let (store, images) = three_on(medium.clone());
    let first = store.begin().unwrap();
    let waiting = store.remove(&images[..1]).unwrap().waiting;
    assert!(waiting > 0);
    // It does not count on what is condemned, and so is not waited for.
    let second = store.begin().unwrap();
    let writing = writer(&second);
    assert_eq!(store.remove(&[]).unwrap().waiting, waiting);
    drop(first);
    let before = pack_bytes(&*medium);
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting, removal.kept), (waiting, 0, None));
    assert_eq!(pack_bytes(&*medium), before - waiting);
    assert!(finish(second, writing, 0) > 0);
    assert_eq!(assert_sound(&store), [0, 1, 2].into());
    assert_tidy(&*medium, &store);
}

#[test]
fn what_a_draft_has_counted_on_is_condemned_no_more() {
    let (medium, store, images) = three();
    let draft = store.begin().unwrap();
    assert!(store.remove(&images[..1]).unwrap().waiting > 0);
    // Joined behind the sentence, which does not hold for it.
    let writing = writer(&draft);
    assert_eq!(finish(draft, writing, 0), 0);
    let other = store.begin().unwrap();
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting), (0, 0));
    assert_eq!(assert_sound(&store), [0, 1, 2].into());
    let writing = writer(&other);
    assert_eq!(finish(other, writing, 0), 0, "all of it can be used again");
    assert_tidy(&medium, &store);
}

/// Of a checkpoint that brings what nobody had, or what is condemned already.
#[test]
fn a_removal_may_come_between_any_two_steps_of_a_checkpoint() {
    for (is_condemned, number) in [(false, 5), (true, 0)] {
        for n in 0.. {
            let (medium, steady, images, earlier) = three_with(is_condemned);
            let (other, first) = (steady.clone(), images[0]);
            let hook = Hook::any(medium.clone(), n, move || {
                drop(earlier);
                other.remove(&[first]).unwrap();
            });
            let store = Store::open_media(hook.clone()).unwrap();
            let image = checkpoint(&store, "job", number).unwrap().id;
            if !hook.has_run() {
                assert!(n > 20, "{n} operations are too few for a test");
                break;
            }
            let expected = [number, 1, 2].into();
            assert_eq!(assert_sound(&steady), expected, "step {n}");
            // Whoever finds it can use it, and is waited for.
            let draft = steady.begin().unwrap();
            let writing = writer(&draft);
            assert_eq!(steady.remove(&[image]).unwrap().kept, None);
            assert_eq!(finish(draft, writing, number), 0, "step {n}");
            assert_eq!(assert_sound(&steady), expected);
            assert_tidy(&*medium, &steady);
        }
    }
}

#[test]
fn a_draft_may_do_anything_between_any_two_steps_of_a_removal() {
    for is_condemned in [false, true] {
        for n in 0.. {
            let (medium, steady, images, earlier) = three_with(is_condemned);
            let draft = steady.begin().unwrap();
            drop(earlier);
            let hook = Hook::any(medium.clone(), n, move || {
                let writing = writer(&draft);
                finish(draft, writing, 0);
            });
            let store = Store::open_media(hook.clone()).unwrap();
            store.remove(&images[..1]).unwrap();
            if !hook.has_run() {
                assert!(n > 15, "{n} operations are too few for a test");
                break;
            }
            assert_eq!(assert_sound(&steady), [0, 1, 2].into(), "step {n}");
            assert_tidy(&*medium, &steady);
        }
    }
}

#[test]
fn where_the_list_is_damaged_nothing_is_used_again_until_it_is_written_anew() {
    let (medium, store, images) = three();
    let first = store.begin().unwrap();
    let waiting = store.remove(&images[..1]).unwrap().waiting;
    medium.tamper(FILE, |bytes| bytes[70] ^= 1);
    // Of nobody it is known whether he may use anything.
    let second = store.begin().unwrap();
    let writing = writer(&second);
    drop(first);
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting, removal.kept), (0, waiting, None));
    assert!(finish(second, writing, 1) > 0);
    assert!(store.remove(&[]).unwrap().freed >= waiting);
    assert_eq!(assert_sound(&store), [1, 2].into());
    assert_tidy(&medium, &store);
}

#[test]
fn a_damaged_index_waits_until_nobody_writes() {
    let (medium, store, images) = three();
    let draft = store.begin().unwrap();
    let index = format!("index/{}", medium.list("index").unwrap()[0]);
    medium.tamper(&index, |bytes| bytes[100] ^= 1);
    let removal = store.remove(&images[2..]).unwrap();
    assert!((removal.freed, removal.waiting) == (0, 0) && removal.kept.unwrap().message.contains(&index));
    drop(draft);
    assert_eq!(store.remove(&[]).unwrap().kept, None);
    assert_tidy(&medium, &store);
}

#[test]
fn any_failing_operation_beside_drafts_leaves_what_is_listed_whole() {
    for n in 1.. {
        let (medium, steady, images) = three();
        let fault = Fault::new(Arc::new(medium.clone()), n, 1, ErrorKind::Other);
        let store = Store::open_media(Arc::new(fault.clone())).unwrap();
        let first = steady.begin().unwrap();
        let writing = writer(&first);
        let condemned = store.remove(&images[..1]);
        let second = steady.begin().unwrap();
        let other = writer(&second);
        finish(first, writing, 0);
        let freed = store.remove(&images[1..2]);
        finish(second, other, 1);
        assert_sound(&steady);
        assert_tidy(&medium, &steady);
        if !fault.struck() {
            assert!(condemned.unwrap().waiting > 0 && freed.unwrap().waiting > 0);
            assert!(n > 20, "{n} operations are too few for a test");
            break;
        }
    }
}

/// Jobs that write all the time, each of which removes its older images: what is there stays within what they need.
#[test]
fn a_store_that_is_always_written_to_does_not_grow() {
    const JOBS: u64 = 6;
    const IMAGES: u64 = 30;
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(Dir::new(folder.path()));
    let store = Store::open_or_create_media(dir.clone()).unwrap();
    checkpoint(&store, "first", 0).unwrap();
    let (one, most) = (pack_bytes(&*dir), AtomicU64::new(0));
    let job = |job: u64| {
        let mut before = Vec::new();
        for image in 1..=IMAGES {
            // Samples share something with the next; these are far apart.
            before.push(checkpoint(&store, &format!("job-{job}"), job * 10_000 + image * 100).unwrap().id);
            let gone = before.split_off(before.len().saturating_sub(2));
            let gone = std::mem::replace(&mut before, gone);
            // Others begin in this moment.
            while store.remove(&gone).unwrap().kept.is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
            most.fetch_max(pack_bytes(&*dir), SeqCst);
        }
    };
    std::thread::scope(|scope| {
        (1..=JOBS).for_each(|number| drop(scope.spawn(move || job(number))));
    });
    let most = most.load(SeqCst) / one;
    // Of each job two, one that is being written, and what has waited for one of the others.
    assert!(most < JOBS * 6, "{most} images' bytes of {}", JOBS * IMAGES);
    assert_eq!(assert_sound(&store).len() as u64, 1 + 2 * JOBS);
    assert_tidy(&*dir, &store);
}

/// Several jobs, readers and removals in one store.
struct Several {
    medium: Sim,
    store: Store,
    drafts: Vec<(Draft, Option<ChunkWriter>, u64)>,
    readers: Vec<(Image, u64)>,
    /// Bytes that were freed while a draft was being written.
    freed: u64,
}

/// What happens next, to which of those that there are, and which sample it is about.
type Step = (u8, prop::sample::Index, u64);

impl Several {
    fn new() -> Self {
        let medium = Sim::default();
        let store = Store::open_or_create_media(Arc::new(medium.clone())).unwrap();
        Self { medium, store, drafts: Vec::new(), readers: Vec::new(), freed: 0 }
    }

    fn step(&mut self, (what, which, number): Step) {
        let listed: Vec<ImageId> = self.store.list().unwrap().images.iter().map(|image| image.id).collect();
        match what {
            0 | 1 if self.drafts.len() < 4 => {
                let draft = self.store.begin().unwrap();
                self.drafts.push((draft, None, number));
            }
            2 | 3 if !self.drafts.is_empty() => {
                let (draft, writing, number) = which.get_mut(&mut self.drafts);
                if writing.is_none() {
                    let writer = writer(draft);
                    write_objects(&writer, &objects(*number)).unwrap();
                    *writing = Some(writer);
                }
            }
            4 if !self.drafts.is_empty() => {
                let (draft, writing, number) = self.drafts.swap_remove(which.index(self.drafts.len()));
                if let Some(writer) = writing {
                    draft.publish(manifest("job", number), vec![writer.finish().unwrap()]).unwrap();
                }
            }
            5 if number == 0 && !listed.is_empty() => {
                let image = self.store.open_image(which.get(&listed)).unwrap();
                let number = image.manifest().job_files[0].len;
                self.readers.push((image, number));
            }
            5 => self.readers.clear(),
            _ => {
                let from = which.index(listed.len() + 1);
                let gone = &listed[from..listed.len().min(from + 2)];
                let removal = match number % 2 {
                    0 => self.store.remove(gone),
                    _ => self.store.remove_and_repack(gone, &repack(), &mut |_, _| Continue(())),
                };
                let freed = removal.unwrap().freed;
                self.freed += if self.drafts.is_empty() { 0 } else { freed };
            }
        }
        assert_sound(&self.store);
        self.readers.iter().for_each(|(image, number)| assert_sample(image, *number));
    }
}

#[test]
fn several_jobs_use_one_store_in_any_order() {
    let steps = vec((0..8u8, any::<prop::sample::Index>(), 0..6u64), 60);
    let cuts = vec((any::<prop::sample::Index>(), any::<u64>()), 6);
    let freed = Cell::new(0);
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner =
        TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::with_cases(24) }, rng);
    let run = runner.run(&(steps, cuts), |(steps, cuts)| {
        let mut several = Several::new();
        let made = several.medium.operations();
        steps.into_iter().for_each(|step| several.step(step));
        freed.set(freed.get() + several.freed);
        // The power goes.
        let operations = several.medium.operations();
        for (cut, seed) in cuts {
            let cut = operations - cut.index((operations - made).clamp(1, 300));
            let after = several.medium.after_crash(cut, Unsynced::Mixed(seed));
            let store = Store::open_media(Arc::new(after.clone())).unwrap();
            assert_sound(&store);
            assert_tidy(&after, &store);
        }
        several.readers.clear();
        several.drafts.clear();
        assert_tidy(&several.medium, &several.store);
        Ok(())
    });
    run.unwrap();
    assert!(freed.get() > 5000, "{} bytes beside drafts are too few for a test", freed.get());
}
