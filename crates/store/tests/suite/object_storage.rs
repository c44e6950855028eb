//! The store in a bucket of a real server: what is so of a folder is so of this; requests fail, connections are lost, holders of locks die.
#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::hook::Hook;
use crate::support::keys;
use crate::support::sample::{
    assert_sample, checkpoint, manifest, noise, objects, options, write, write_objects,
};
use crate::{condemned, directory, finding, removing, repacking, sharing};
use image::{Compress, ImageId, Manifest, ObjectKind, RawPath};
use store::media::{Covered, Media, S3, S3Options};
use store::{CopyOptions, OpenError, Secret, Store, WriteError, WriteOptions};
use testkit::s3::{Proxy, Request, Server, Trouble};

/// As patient as a test is.
fn hasty() -> S3Options {
    let pause = Duration::from_millis(1);
    S3Options { part: 5 << 20, retries: 3, pause, wait: Duration::ZERO, ..S3Options::default() }
}

fn medium_at(env: &[(&'static str, String)], prefix: &str, options: S3Options) -> Arc<S3> {
    let settings: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Arc::new(S3::with_options(Server::BUCKET, prefix, &settings, options).unwrap())
}

fn medium(server: &Server, prefix: &str) -> Arc<S3> {
    medium_at(&server.env(), prefix, hasty())
}

fn store(server: &Server, prefix: &str) -> Store {
    Store::open_or_create_media(medium(server, prefix)).unwrap()
}

/// A store behind a proxy, in the same place as one without.
fn troubled(server: &Server, plan: impl Fn(&Request) -> Trouble + Send + Sync + 'static) -> Store {
    let proxy = Proxy::start(server.address(), plan).unwrap();
    Store::open_media(medium_at(&proxy.env(), "", hasty())).unwrap()
}

fn big(name: &str) -> ObjectKind {
    ObjectKind::CriuFile { name: RawPath::from(name) }
}

/// Writes an image whose one pack takes several parts.
fn checkpoint_big(store: &Store, seed: u64) -> Result<ImageId, WriteError> {
    let draft = store.begin()?;
    let writer = draft.writer(&WriteOptions { compress: Compress::None, ..WriteOptions::default() })?;
    writer.put(big("big"), &noise(seed, BIG))?;
    Ok(draft.publish(Manifest::new("job"), vec![writer.finish()?])?.id)
}

const BIG: usize = 11 << 20;

fn assert_big(store: &Store, image: ImageId, seed: u64) {
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
    assert!(store.open_image(&image).unwrap().read_to_vec(&big("big"), BIG).unwrap() == noise(seed, BIG));
}

#[test]
fn what_is_so_of_a_folder_is_so_of_a_bucket() {
    let server = Server::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    directory::every_way_gives_the_same_bytes(folder.path(), &store(&server, ""));
    directory::only_what_is_new_is_stored(&store(&server, "a"));
    directory::what_is_not_there_is_named(&store(&server, "a/b"));
    finding::names_find_images_in(&store(&server, "b"));
    removing::what_no_other_image_needs_goes(medium(&server, "c"));
    removing::who_uses_it_keeps_what_it_has(medium(&server, "d"));
    removing::pruning_keeps_the_newest(medium(&server, "e"));
    condemned::room_comes_back_beside_checkpoints(medium(&server, "f"));
    repacking::a_pack_of_which_little_is_needed_goes_on(medium(&server, "g"));
    removing::nothing_goes_that_a_missing_index_may_have_named_on(medium(&server, "h"));
    // Nothing is left of what they did but what a store has, and none knows of another.
    let objects = server.objects().unwrap();
    let left: Vec<_> =
        objects.iter().filter(|name| name.contains("tmp/") || name.contains(".locks/")).collect();
    assert_eq!(left, [""; 0]);
    assert_eq!(store(&server, "a/b").list().unwrap().images.len(), 1);
}

#[test]
fn a_bucket_that_is_no_store_is_refused() {
    let server = Server::start().unwrap();
    let error = Store::open_media(medium(&server, "none")).unwrap_err();
    assert!(matches!(error, OpenError::NotAStore { .. }));
    assert!(error.to_string().starts_with("s3://tests/none is not a Dormouse store"), "{error}");
    let other = medium(&server, "other");
    other.create("notes.txt").unwrap().sync().unwrap();
    let error = Store::open_or_create_media(other).unwrap_err().to_string();
    assert!(error.contains("s3://tests/other is not empty") && error.contains("notes.txt"), "{error}");
    let settings = server.env();
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let absent = Arc::new(S3::with_options("absent", "", &settings, hasty()).unwrap());
    for opened in [Store::open_media(absent.clone()), Store::open_or_create_media(absent)] {
        let error = opened.unwrap_err();
        assert!(matches!(error, OpenError::Media(_)), "{error}");
        let error = error.to_string();
        assert!(error.contains("s3://absent") && error.contains("has no bucket \"absent\""), "{error}");
        assert!(!error.contains("a-secret"), "{error}");
    }
    // No keys, and no role: the machine's own is asked for where nobody is.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    let settings: Vec<_> = settings.into_iter().filter(|(name, _)| !name.contains("_KEY")).collect();
    let settings = [&settings[..], &[("AWS_METADATA_ENDPOINT", &nobody)]].concat();
    let unknown = S3::with_options(Server::BUCKET, "", &settings, hasty()).unwrap();
    let error = unknown.reach().unwrap_err().to_string();
    assert!(error.contains("no credentials") && error.contains("DORMOUSE_AWS_ACCESS_KEY_ID"), "{error}");
}

#[test]
fn a_store_in_a_bucket_is_made_once() {
    let server = Server::start().unwrap();
    sharing::who_comes_second_takes_what_is_there(medium(&server, "a"), medium(&server, "a"));
    // A lost answer is no other's store.
    let lost = Arc::new(AtomicBool::new(false));
    let once = lost.clone();
    let proxy = Proxy::start(server.address(), move |request: &Request| {
        let is_config = request.method == "PUT" && request.target.ends_with("/b/config");
        if is_config && !once.swap(true, Ordering::SeqCst) { Trouble::LostAnswer } else { Trouble::None }
    });
    let medium = medium_at(&proxy.unwrap().env(), "b", hasty());
    let many: Vec<_> = (0..15).map(|_| keys::recipient()).collect();
    assert!(Store::open_or_create_with(medium, &store::Key::None, &many).unwrap().is_encrypted());
    assert!(lost.load(Ordering::SeqCst));
}

/// What somebody who was killed had begun to upload, and nothing in the store tells of.
#[test]
fn uploads_that_nobody_finishes_are_ended_by_a_removal() {
    let server = Server::start().unwrap();
    let store = store(&server, "team/a");
    let image = checkpoint(&store, "job", 1).unwrap().id;
    let mut uploads = 0;
    let mut begin = |prefix: &str, path: &str| {
        let mut file = medium(&server, prefix).create(path).unwrap();
        file.write_all(&noise(1, BIG)).unwrap();
        std::mem::forget(file);
        uploads += 1;
        // Two whole parts, which are sent by themselves.
        while server.parts_of_uploads().unwrap() < 2 * uploads {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let (pack, draft) =
        (format!("packs/{}.pack", "1".repeat(32)), format!("tmp/{}/manifest", "2".repeat(32)));
    begin("team/a", &pack);
    begin("team/a", &draft);
    // What is another store's, or nobody's of ours, is left alone.
    begin("team", &pack);
    begin("team/a", "notes");
    assert_eq!(store.remove(&[]).unwrap().kept, None);
    assert_eq!(server.parts_of_uploads().unwrap(), 4);
    assert_sample(&store.open_image(&image).unwrap(), 1);
}

/// A server that takes what it is sent, and says nothing.
#[test]
fn a_server_that_does_not_answer_is_told_of_soon_and_by_its_address() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(server.address(), |_| Trouble::Stall).unwrap();
    let (begun, answer) = (Instant::now(), Duration::from_millis(300));
    let silent = medium_at(&proxy.env(), "", S3Options { answer, ..S3Options::default() });
    let error = silent.reach().unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for word in ["s3://tests", proxy.address(), "does not answer", "AWS_ENDPOINT_URL"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // Nobody at all.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = medium_at(&testkit::s3::env(&free), "", hasty()).reach().unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains(&free), "{error}");
    // What may pass is no reason to give up.
    let shaky = Proxy::start(server.address(), |_| Trouble::Answer(503)).unwrap();
    medium_at(&shaky.env(), "", hasty()).reach().unwrap();
    medium(&server, "").reach().unwrap();
}

#[test]
fn who_is_kept_waiting_is_told_by_whom_and_what_to_do() {
    let server = Server::start().unwrap();
    let (store, remover) = (store(&server, ""), medium(&server, ""));
    let held = remover.lock("config", false).unwrap().unwrap();
    let error = store.begin().unwrap_err().to_string();
    let process = format!("process {}", std::process::id());
    for word in [process.as_str(), "config.locks/exclusive-", " s ago", "ends by itself in "] {
        assert!(error.contains(word), "{word}: {error}");
    }
    drop(held);
    store.begin().unwrap();
}

#[test]
fn large_packs_go_in_parts_and_come_back() {
    let server = Server::start().unwrap();
    let store = store(&server, "");
    let image = checkpoint_big(&store, 1).unwrap();
    assert_big(&store, image, 1);
    assert_eq!(server.parts_of_uploads().unwrap(), 0);
}

/// Each request of a checkpoint fails once, in each way, before it succeeds.
#[test]
fn what_can_pass_is_tried_again() {
    let server = Server::start().unwrap();
    store(&server, "");
    let ways = [Trouble::Answer(500), Trouble::Answer(503), Trouble::LostRequest, Trouble::LostAnswer];
    for (seed, way) in (1..).zip(ways) {
        let (requests, troubles) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let made = troubles.clone();
        let shaky = troubled(&server, move |_| {
            if requests.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                return Trouble::None;
            }
            made.fetch_add(1, Ordering::SeqCst);
            way
        });
        let image = checkpoint_big(&shaky, seed).unwrap();
        assert!(troubles.load(Ordering::SeqCst) > 10, "{way:?}");
        assert_big(&store(&server, ""), image, seed);
        drop(shaky);
        assert_eq!(server.parts_of_uploads().unwrap(), 0, "{way:?}");
    }
}

#[test]
fn a_part_that_stalls_is_sent_again() {
    let server = Server::start().unwrap();
    store(&server, "");
    let stalled = Arc::new(AtomicBool::new(false));
    let stalls = stalled.clone();
    let proxy = Proxy::start(server.address(), move |request| {
        let is_second = request.target.contains("partNumber=2");
        if is_second && !stalls.swap(true, Ordering::SeqCst) { Trouble::Stall } else { Trouble::None }
    })
    .unwrap();
    let options = S3Options { request: Duration::from_secs(5), ..hasty() };
    let slow = Store::open_media(medium_at(&proxy.env(), "", options)).unwrap();
    let image = checkpoint_big(&slow, 1).unwrap();
    assert!(stalled.load(Ordering::SeqCst));
    assert_big(&store(&server, ""), image, 1);
}

/// From the n-th request on, all is lost, for every n; what was there is still there, and nothing else is.
#[test]
fn a_connection_that_does_not_come_back_fails_the_checkpoint_and_nothing_else() {
    let server = Server::start().unwrap();
    let steady = store(&server, "");
    let first = checkpoint_big(&steady, 1).unwrap();
    let mut failed = 0;
    for n in 1.. {
        let requests = AtomicUsize::new(0);
        let struck = Arc::new(AtomicUsize::new(0));
        let told = struck.clone();
        let proxy = Proxy::start(server.address(), move |_| {
            if requests.fetch_add(1, Ordering::SeqCst) < n {
                return Trouble::None;
            }
            told.fetch_add(1, Ordering::SeqCst);
            Trouble::LostRequest
        })
        .unwrap();
        // What it leaves is taken for dead at once, by the next.
        let options = S3Options { retries: 0, expiry: Duration::ZERO, ..hasty() };
        let taken = Store::open_media(medium_at(&proxy.env(), "", options.clone()))
            .map_err(|error| error.to_string())
            .and_then(|lost| checkpoint_big(&lost, 2).map_err(|error| error.to_string()));
        let listing = steady.list().unwrap();
        assert_eq!(listing.damaged, []);
        if struck.load(Ordering::SeqCst) == 0 {
            assert_big(&steady, taken.unwrap(), 2);
            assert!(n > 25, "{n} requests are too few for a test");
            break;
        }
        let new: Vec<_> = listing.images.iter().map(|image| image.id).filter(|id| *id != first).collect();
        match taken {
            // What fails after that is no matter of the image.
            Ok(image) => {
                assert_eq!(new, [image], "request {n}");
                assert_big(&steady, image, 2);
            }
            Err(error) => {
                assert!(error.contains("s3://tests") || error.contains("given up"), "request {n}: {error}");
                // An answer that was lost is no proof that nothing was done: what there is then is complete.
                new.iter().for_each(|image| assert_big(&steady, *image, 2));
                failed += 1;
            }
        }
        let cleaner = Store::open_media(medium_at(&server.env(), "", options)).unwrap();
        let removal = cleaner.remove(&new).unwrap();
        assert_eq!(removal.kept, None, "request {n}");
        assert_eq!(server.parts_of_uploads().unwrap(), 0, "request {n}");
        let left = server.objects().unwrap();
        assert_eq!(left.len(), 4, "config, a pack, an index, a manifest; request {n}: {left:?}");
    }
    assert!(failed > 20, "{failed} failures are too few for a test");
    assert_big(&steady, first, 1);
}

/// Leases of holders that were killed: nobody gives them back.
#[test]
fn locks_end_by_themselves_and_not_before() {
    let server = Server::start().unwrap();
    let patient = store(&server, "");
    let image = checkpoint(&patient, "job", 1).unwrap().id;
    // A medium in whose eyes a lock that is not renewed in this moment has ended.
    let options = S3Options { expiry: Duration::ZERO, ..hasty() };
    let impatient = Store::open_media(medium_at(&server.env(), "", options)).unwrap();

    let dead = patient.begin().unwrap();
    let receipts = write(&dead, 2).unwrap();
    std::mem::forget((dead, receipts));
    assert_eq!(patient.remove(&[]).unwrap().freed, 0);
    let open = patient.open_image(&image).unwrap();
    assert!(patient.remove(&[]).unwrap().kept.unwrap().message.contains("reads an image"));
    drop(open);
    let removal = impatient.remove(&[]).unwrap();
    assert_eq!(removal.kept, None);
    assert!(!server.objects().unwrap().iter().any(|name| name.contains("tmp/")));
    // Its packs were the draft's, and went with it.
    assert_eq!(removal.freed, 0);
    let report = patient.verify(&image, &mut |_| {}).unwrap();
    assert!(report.ok, "{report:#?}");

    // One who removes, and is killed.
    let medium = medium(&server, "");
    std::mem::forget(medium.lock("config", false).unwrap().unwrap());
    let error = patient.begin().unwrap_err().to_string();
    assert!(error.contains("images are being removed") && error.contains("ends by itself"), "{error}");
    drop(impatient.begin().unwrap());
    patient.begin().unwrap();
}

/// Whoever could not renew a lock for too long may have been taken for dead, and changes nothing any more.
#[test]
fn a_writer_that_lost_its_lock_does_not_publish() {
    let server = Server::start().unwrap();
    let steady = store(&server, "");
    let first = checkpoint(&steady, "job", 1).unwrap().id;
    let valid = Duration::from_secs(3);
    let never = Duration::from_secs(3600);
    let options = S3Options { valid, beat: never, expiry: never, ..hasty() };
    let stopped = Store::open_media(medium_at(&server.env(), "", options)).unwrap();
    let draft = stopped.begin().unwrap();
    std::thread::sleep(valid);
    let published = write(&draft, 2).and_then(|receipts| draft.publish(manifest("job", 2), receipts));
    let error = published.unwrap_err().to_string();
    assert!(error.contains("could not be renewed"), "{error}");
    let listed: Vec<_> = steady.list().unwrap().images.iter().map(|image| image.id).collect();
    assert_eq!(listed, [first]);
}

/// Whoever had the store alone meanwhile has not seen the draft, and waits for nothing that it finds.
#[test]
fn a_writer_that_lost_the_store_while_it_began_has_not_begun() {
    let server = Server::start().unwrap();
    checkpoint(&store(&server, ""), "job", 1).unwrap();
    let options = S3Options { valid: Duration::from_secs(1), beat: Duration::from_secs(3600), ..hasty() };
    let medium = medium_at(&server.env(), "", options);
    let slow = Hook::new(medium, "list", "tmp", || std::thread::sleep(Duration::from_secs(2)));
    let error = Store::open_media(slow).unwrap().begin().unwrap_err().to_string();
    assert!(error.contains("config.locks/shared-") && error.contains("could not be renewed"), "{error}");
    assert!(!server.objects().unwrap().iter().any(|name| name.contains("tmp/")));
}

/// What a checkpoint is writing is nothing that nobody needs, although no index names it yet.
#[test]
fn what_is_being_written_to_a_bucket_does_not_wait_to_go() {
    let server = Server::start().unwrap();
    let store = store(&server, "");
    checkpoint(&store, "job", 0).unwrap();
    let draft = store.begin().unwrap();
    let receipts = write(&draft, 5).unwrap();
    let removal = store.remove(&[]).unwrap();
    assert_eq!((removal.freed, removal.waiting, removal.kept), (0, 0, None));
    let image = draft.publish(manifest("job", 5), receipts).unwrap().id;
    assert_sample(&store.open_image(&image).unwrap(), 5);
}

/// A draft that was taken for dead while its writer was between two steps: what others took away, he cannot publish.
#[test]
fn what_was_taken_for_dead_cannot_be_published() {
    let server = Server::start().unwrap();
    let steady = store(&server, "");
    checkpoint(&steady, "job", 1).unwrap();
    let slow = medium(&server, "");
    let draft = Store::open_media(slow.clone()).unwrap().begin().unwrap();
    let folder = format!("tmp/{}", draft.id());
    let mut file = slow.create(&format!("{folder}/manifest")).unwrap();
    file.write_all(b"a manifest").unwrap();
    file.sync().unwrap();
    let options = S3Options { expiry: Duration::ZERO, ..hasty() };
    let impatient = Store::open_media(medium_at(&server.env(), "", options)).unwrap();
    assert_eq!(impatient.remove(&[]).unwrap().kept, None);
    let error = slow.rename(&format!("{folder}/manifest"), "images/late.img").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!server.objects().unwrap().iter().any(|name| name.contains("late")));
}

/// A stand-in that comes to light again when its pack has been published does not take the pack with it.
#[test]
fn a_late_stand_in_does_no_harm() {
    let server = Server::start().unwrap();
    let store = store(&server, "");
    let image = checkpoint(&store, "job", 1).unwrap().id;
    let medium = medium(&server, "");
    for pack in medium.list("packs").unwrap() {
        let late = medium_at(&server.env(), &format!("tmp/{image}"), hasty());
        late.create(&pack).unwrap().sync().unwrap();
    }
    checkpoint(&store, "job", 2).unwrap();
    assert_eq!(medium.list("tmp").unwrap(), [""; 0]);
    assert_sample(&store.open_image(&image).unwrap(), 1);
}

#[test]
fn a_lock_is_for_one() {
    let server = Server::start().unwrap();
    store(&server, "");
    let (one, other) = (medium(&server, ""), medium(&server, ""));
    let held = one.lock("tmp/0/lock", true).unwrap().unwrap();
    assert!(other.lock("tmp/0/lock", true).unwrap().is_none());
    drop(held);
    assert!(other.lock("tmp/0/lock", true).unwrap().is_some());
}

/// Two checkpoint, one removes, at once, without knowing of each other.
#[test]
fn writers_and_a_remover_share_a_bucket() {
    let server = Server::start().unwrap();
    store(&server, "");
    let options = S3Options { wait: Duration::from_secs(60), ..hasty() };
    let open = || Store::open_media(medium_at(&server.env(), "", options.clone())).unwrap();
    let taken = std::thread::scope(|scope| {
        let writers: Vec<_> = [0u64, 100]
            .map(|first| {
                let store = open();
                scope.spawn(move || {
                    let take = |n: u64| checkpoint(&store, "job", first + n % 2).unwrap().id;
                    (0..4).map(take).collect::<Vec<_>>()
                })
            })
            .into_iter()
            .collect();
        let remover = open();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let images: Vec<_> = remover.list().unwrap().images.iter().map(|image| image.id).collect();
            let older = images.len().saturating_sub(2);
            remover.remove(&images[..older]).unwrap();
        }
        writers.into_iter().map(|writer| writer.join().unwrap()[3]).collect::<Vec<_>>()
    });
    let store = open();
    let listed: Vec<_> = store.list().unwrap().images.iter().map(|image| image.id).collect();
    assert!(taken.iter().any(|id| listed.contains(id)));
    removing::assert_sound(&store);
    removing::assert_tidy(&*medium(&server, ""), &store);
}

#[test]
fn a_reader_without_the_right_to_write_reads() {
    let server = Server::start().unwrap();
    let image = checkpoint(&store(&server, ""), "job", 1).unwrap().id;
    let reader = troubled(&server, |request| {
        if matches!(request.method.as_str(), "GET" | "HEAD") { Trouble::None } else { Trouble::Answer(403) }
    });
    assert_sample(&reader.open_image(&image).unwrap(), 1);
    let error = reader.begin().unwrap_err();
    assert!(matches!(error, WriteError::NotWritable { .. }), "{error}");
    let writer_options = options(Compress::Lz4);
    let draft = store(&server, "").begin().unwrap();
    let writer = draft.writer(&writer_options).unwrap();
    write_objects(&writer, &objects(1)).unwrap();
    assert_eq!(writer.finish().unwrap().stored.new, 0);
}

#[test]
fn images_are_copied_to_a_bucket_and_back() {
    let (server, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
    let own = Store::open_or_create(&folder.path().join("own")).unwrap();
    let image = checkpoint_big(&own, 3).unwrap();
    let (bucket, back) =
        (store(&server, "copies"), Store::open_or_create(&folder.path().join("back")).unwrap());
    for (from, to) in [(&own, &bucket), (&own, &bucket), (&bucket, &back)] {
        let report = from.copy_to(to, &[image], &CopyOptions::default(), &mut |_| {}).unwrap();
        assert!(report.damaged.is_empty());
        assert_big(to, image, 3);
    }
}

/// What is so of an encrypted folder is so of a bucket, packs of several parts included.
#[test]
fn an_encrypted_store_in_a_bucket() {
    let server = Server::start().unwrap();
    let store = keys::create(medium(&server, "e"));
    let image = checkpoint_big(&store, 3).unwrap();
    assert_big(&keys::open(medium(&server, "e")), image, 3);
    let error = Store::open_media(medium(&server, "e")).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }) && error.to_string().contains("s3://"), "{error}");
    removing::what_no_other_image_needs_goes(Arc::new(Covered::new(
        medium(&server, "f"),
        Secret::random().unwrap(),
    )));
}

/// An index under its cover does not say which packs it names: the upload of a copy that was cut off is ended all the same, and what may be published stays.
#[test]
fn what_a_cut_off_copy_left_in_an_encrypted_bucket_goes() {
    let server = Server::start().unwrap();
    let store = keys::create(medium(&server, ""));
    let image = checkpoint(&store, "job", 1).unwrap().id;
    for pack in medium(&server, "").list("packs").unwrap() {
        let late = medium_at(&server.env(), &format!("tmp/{image}"), hasty());
        late.create(&pack).unwrap().sync().unwrap();
    }
    let mut cut_off = medium(&server, "").create(&format!("tmp/{image}/{}.pack", "1".repeat(32))).unwrap();
    cut_off.write_all(&noise(1, BIG)).unwrap();
    std::mem::forget(cut_off);
    while server.parts_of_uploads().unwrap() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    checkpoint(&store, "job", 2).unwrap();
    assert_eq!(server.parts_of_uploads().unwrap(), 0);
    assert_eq!(medium(&server, "").list("tmp").unwrap(), [""; 0]);
    assert_sample(&store.open_image(&image).unwrap(), 1);
}
