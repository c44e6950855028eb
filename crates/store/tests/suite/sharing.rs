//! Several who use one store: they make it at once, remove images at once, wait for each other; and who may read what they make.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::removing::{assert_sound, assert_tidy, three, three_on};
use crate::support::fault::Fault;
use crate::support::hook::Hook;
use crate::support::keys::{key, recipient};
use crate::support::sample::{assert_sample, checkpoint};
use crate::support::sim::{Sim, Unsynced};
use store::media::{Dir, Media};
use store::{Keep, Key, OpenError, Store};

/// What comes of it when `first` makes the store after `second` has seen that there is none.
pub fn who_comes_second_takes_what_is_there(first: Arc<dyn Media>, second: Arc<dyn Media>) {
    let made = first.clone();
    let second = Hook::new(second, "rename_new", "config", move || {
        let store = Store::open_or_create_with(made, &Key::None, &[recipient()]).unwrap();
        checkpoint(&store, "first", 1).unwrap();
    });
    let store = Store::open_or_create_with(second, &key(), &[recipient()]).unwrap();
    checkpoint(&store, "second", 2).unwrap();
    let store = Store::open_with(first.clone(), &key(), &[recipient()]).unwrap();
    for (job, number) in [("first", 1), ("second", 2)] {
        assert_sample(&store.open_image(&store.find(job).unwrap().id).unwrap(), number);
    }
    let names = first.list("").unwrap();
    assert!(!names.iter().any(|name| name.starts_with("config-")), "{names:?}");
}

#[test]
fn a_store_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(Dir::new(folder.path()));
    who_comes_second_takes_what_is_there(dir.clone(), dir);
    let sim = Arc::new(Sim::default());
    who_comes_second_takes_what_is_there(sim.clone(), sim);
}

/// Its own secret opens nothing of another's store.
#[test]
fn who_comes_second_without_a_key_is_told_so() {
    let sim = Arc::new(Sim::default());
    let first = sim.clone();
    let second = Hook::new(sim, "rename_new", "config", move || {
        Store::open_or_create_with(first, &Key::None, &[recipient()]).unwrap();
    });
    let error = Store::open_or_create_with(second, &Key::None, &[recipient()]).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
}

#[test]
fn many_jobs_make_one_encrypted_store_at_once() {
    const JOBS: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    fs::create_dir(&place).unwrap();
    // All have seen that there is none before anybody makes it.
    let seen = Arc::new(Barrier::new(JOBS as usize));
    std::thread::scope(|scope| {
        for number in 0..JOBS {
            let (seen, place) = (seen.clone(), &place);
            scope.spawn(move || {
                let wait = move || {
                    seen.wait();
                };
                let medium = Hook::new(Arc::new(Dir::new(place)), "list", "", wait);
                let store = Store::open_or_create_with(medium, &key(), &[recipient()]).unwrap();
                checkpoint(&store, &format!("job-{number}"), number).unwrap();
            });
        }
    });
    let store = Store::open_with(Arc::new(Dir::new(&place)), &key(), &[recipient()]).unwrap();
    assert_eq!(assert_sound(&store), (0..JOBS).collect());
}

#[test]
fn an_image_that_somebody_else_has_removed_is_no_error() {
    // It goes when it is known to be there, when it is removed, and another one when it is looked what that needs.
    for (operation, times, which) in [("list", 0, 0), ("remove", 0, 0), ("list", 1, 1)] {
        let (medium, _, images) = three();
        let (other, path) = (medium.clone(), format!("images/{}.img", images[which]));
        let at = if operation == "list" { "images" } else { &path }.to_owned();
        let medium = Arc::new(medium);
        let hook = Hook::nth(medium.clone(), operation, &at, times, move || other.remove(&path).unwrap());
        let store = Store::open_media(hook).unwrap();
        let removal = store.remove(&images[..1]).unwrap();
        assert!(removal.freed > 0 && removal.kept.is_none(), "{operation}: {removal:?}");
        assert_eq!(removal.images.len(), which, "{operation}");
        assert_eq!(assert_sound(&store).len(), 2 - which, "{operation}");
        assert_tidy(&*medium, &store);
    }
}

#[test]
fn two_who_prune_at_once_are_not_in_each_others_way() {
    let (medium, _, images) = three();
    let medium = Arc::new(medium);
    let other = Store::open_media(medium.clone()).unwrap();
    let keep = Keep { last: 1, ..Keep::default() };
    // Behind the list of what there is.
    let prune = move || {
        assert_eq!(other.prune(None, &keep, |gone| other.remove(gone)).unwrap().removal.images.len(), 2)
    };
    let store = Store::open_media(Hook::new(medium.clone(), "list", "images", prune)).unwrap();
    let pruned = store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
    assert_eq!((pruned.kept_images, pruned.removal.images), (vec![images[2]], vec![]));
    assert_eq!(pruned.removal.kept, None);
    assert_tidy(&*medium, &store);
}

/// Somebody removes an image, and the power goes before that is durable: what the image needs is still there, or the image is not.
#[test]
fn what_others_remove_meanwhile_does_not_come_back_in_pieces() {
    let (medium, _, images) = three();
    let medium = medium.copy();
    let (other, second) = (medium.clone(), images[1]);
    let remove = move || other.remove(&format!("images/{second}.img")).unwrap();
    let store = Store::open_media(Hook::new(Arc::new(medium.clone()), "lock", "config", remove)).unwrap();
    assert!(store.remove(&images[..1]).unwrap().freed > 0);
    for cut in 0..=medium.operations() {
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Mixed(cut as u64)] {
            let after = Arc::new(medium.after_crash(cut, unsynced));
            assert_sound(&Store::open_media(after).unwrap());
        }
    }
}

/// A medium with sample 1, all of which is durable.
fn with_one() -> Sim {
    let medium = Sim::default();
    checkpoint(&Store::open_or_create_media(Arc::new(medium.clone())).unwrap(), "job", 1).unwrap();
    medium.copy()
}

fn prune_to_one(medium: Sim) {
    let store = Store::open_media(Arc::new(medium)).unwrap();
    let keep = Keep { last: 1, ..Keep::default() };
    store.prune(None, &keep, |gone| store.remove(gone)).unwrap();
}

/// Wherever the power goes, there is an image that is whole.
fn assert_one_is_left(medium: &Sim, what: &str) {
    for cut in 0..=medium.operations() {
        for unsynced in Unsynced::ways(cut, 16) {
            let after = Arc::new(medium.after_crash(cut, unsynced));
            let listed = assert_sound(&Store::open_media(after).unwrap());
            assert!(!listed.is_empty(), "{what}, cut {cut}, {unsynced:?}");
        }
    }
}

/// The older image goes since there is a newer one, of which nobody has made durable that it is.
#[test]
fn no_image_goes_for_one_that_may_go_with_the_power() {
    let remove_oldest = |medium: Sim| {
        let store = Store::open_media(Arc::new(medium)).unwrap();
        store.remove(&[store.list().unwrap().images[0].id]).unwrap();
    };
    for run in [prune_to_one, remove_oldest] {
        let medium = with_one();
        let other = medium.clone();
        let hook = Hook::new(Arc::new(medium.clone()), "sync_folder", "images", move || run(other));
        checkpoint(&Store::open_media(hook).unwrap(), "job", 2).unwrap();
        assert_one_is_left(&medium, "while it is written");
    }
    // Whoever wrote it is killed, at whatever point.
    for n in 1.. {
        let medium = with_one();
        let fault = Fault::new(Arc::new(medium.clone()), n, u64::MAX, ErrorKind::Other);
        let _killed = checkpoint(&Store::open_media(Arc::new(fault.clone())).unwrap(), "job", 2);
        if !fault.struck() {
            break;
        }
        if assert_sound(&Store::open_media(Arc::new(medium.clone())).unwrap()).len() == 2 {
            prune_to_one(medium.clone());
            assert_one_is_left(&medium, &format!("operation {n}"));
        }
    }
}

/// Where making a name durable fails it is taken back: until that cannot be any more, nothing goes for it.
#[test]
fn no_image_goes_for_one_that_is_taken_back() {
    for n in 1.. {
        let medium = with_one();
        let other = medium.clone();
        let fault = Fault::new(Arc::new(medium.clone()), n, 1, ErrorKind::Other);
        let prune = move || prune_to_one(other);
        let hook = Hook::new(Arc::new(fault.clone()), "sync_folder", "images", prune);
        let taken = checkpoint(&Store::open_media(hook.clone()).unwrap(), "job", 2);
        let listed = assert_sound(&Store::open_media(Arc::new(medium.clone())).unwrap());
        assert_eq!(listed, if taken.is_ok() { [1, 2].into() } else { [1].into() }, "operation {n}");
        if !fault.struck() {
            assert!(hook.has_run());
            break;
        }
    }
}

/// Who begins an image makes its folder, and then the lock in it. Others who look for what was given up may be at any point by then.
#[test]
fn who_begins_keeps_the_lock_that_he_has_got() {
    let folder = tempfile::tempdir().unwrap();
    let media: [Arc<dyn Media>; 2] = [Arc::new(Sim::default()), Arc::new(Dir::new(folder.path()))];
    let draft = format!("tmp/{}", "1".repeat(32));
    let lock = format!("{draft}/lock");
    for medium in media {
        Store::open_or_create_media(medium.clone()).unwrap();
        for n in 0.. {
            medium.create_folder(&draft).unwrap();
            let got = Arc::new(Mutex::new(None));
            let (beginner, at, gets) = (medium.clone(), lock.clone(), got.clone());
            let hook = Hook::any(medium.clone(), n, move || {
                *gets.lock().unwrap() = Some(beginner.lock(&at, true));
            });
            Store::open_media(hook).unwrap().begin().unwrap();
            let Some(got) = got.lock().unwrap().take() else { break };
            match got {
                Ok(held) => {
                    assert!(held.is_some() && medium.open(&lock).is_ok(), "operation {n}");
                    drop(held);
                    medium.remove(&lock).unwrap();
                }
                // He begins another one.
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "operation {n}"),
            }
        }
        // What is there and nobody's goes.
        medium.create_folder(&draft).unwrap();
        Store::open_media(medium.clone()).unwrap().begin().unwrap();
        assert_eq!(medium.list("tmp").unwrap(), [""; 0]);
    }
}

#[test]
fn who_waits_for_a_folder_is_told_for_what_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::new(folder.path()).waiting(Duration::from_millis(300));
    let (store, _) = three_on(Arc::new(dir.clone()));
    let held = dir.lock("config", false).unwrap().unwrap();
    let begun = Instant::now();
    let error = store.begin().unwrap_err().to_string();
    assert!(begun.elapsed() >= Duration::from_millis(300), "it did not wait");
    let fuser = format!("`fuser {}`", folder.path().join("config").display());
    for word in ["cannot lock", "dormouse rm", "dormouse prune", &fuser] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(dir.share("config").unwrap_err().kind(), ErrorKind::WouldBlock);
    // Who lets go in time is waited for.
    let patient = dir.waiting(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.share("config").map(drop));
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    store.begin().unwrap();
}

/// All that is below a folder, with its mode.
fn modes(dir: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut found = vec![(dir.to_owned(), mode(dir))];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(modes(&path)),
            false => found.push((path.clone(), mode(&path))),
        }
    }
    found
}

fn assert_modes(found: &[(PathBuf, u32)], folder: u32, file: u32) {
    for (path, mode) in found {
        let expected = if path.is_dir() { folder } else { file };
        assert_eq!(*mode, expected, "{}: {mode:o}", path.display());
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_new_store_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("a/store");
    let store = Store::open_or_create(&place).unwrap();
    let image = checkpoint(&store, "job", 1).unwrap().id;
    let draft = store.begin().unwrap();
    let found = modes(&place);
    assert!(found.len() > 9, "{found:?}");
    assert_modes(&found, 0o700, 0o600);
    drop(draft);
    // In a folder that is there, too, whose own mode stays.
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    chmod(&open, 0o755);
    let store = Store::open_or_create(&open).unwrap();
    checkpoint(&store, "job", 1).unwrap();
    let found = modes(&open);
    assert_eq!(found[0].1, 0o755);
    assert_modes(&found[1..], 0o700, 0o600);
    // What a removal writes anew as well.
    let store = Store::open(&place).unwrap();
    checkpoint(&store, "job", 2).unwrap();
    store.remove(&[image]).unwrap();
    assert_modes(&modes(&place), 0o700, 0o600);
}

/// Who changes the modes of what there is shares what comes, whatever the umask is.
#[test]
fn what_is_shared_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    let store = Store::open_or_create(&place).unwrap();
    for (folder, file) in [(0o750, 0o640), (0o2770, 0o660), (0o755, 0o644), (0o700, 0o600)] {
        for (path, _) in modes(&place) {
            chmod(&path, if path.is_dir() { folder } else { file });
        }
        let before = modes(&place).len();
        checkpoint(&store, "job", u64::from(file)).unwrap();
        let _draft = store.begin().unwrap();
        let found = modes(&place);
        assert!(found.len() > before + 3, "{found:?}");
        assert_modes(&found, folder, file);
    }
    // What was there keeps its modes.
    let image = fs::read_dir(place.join("images")).unwrap().next().unwrap().unwrap().path();
    chmod(&image, 0o604);
    checkpoint(&store, "job", 1).unwrap();
    assert_eq!(fs::metadata(image).unwrap().permissions().mode() & 0o777, 0o604);
}
