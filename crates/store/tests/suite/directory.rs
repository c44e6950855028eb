//! The store on a real file system: what goes in comes out, names find images, several processes write and some are killed.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::sample::{
    assert_sample, checkpoint, manifest, noise, objects, options, prose, write_objects,
};
use image::{CHUNK_SIZE, Compress, Extent, ImageId, Manifest, ObjectKind, RawPath, SessionId};
use store::{ChunkWriter, OpenError, Piece, ReadError, Receipt, Store, WriteError, WriteOptions};

fn new_store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    (folder, store)
}

fn criu_file(name: &str) -> ObjectKind {
    ObjectKind::CriuFile { name: RawPath::from(name) }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_way_in_and_out_gives_the_same_bytes() {
    let (folder, store) = new_store();
    every_way_gives_the_same_bytes(folder.path(), &store);
}

/// The same for any store; `folder` is for files.
pub fn every_way_gives_the_same_bytes(folder: &Path, store: &Store) {
    let big =
        [noise(1, 3 * CHUNK_SIZE + 17), vec![0; 2 * CHUNK_SIZE], prose(2, CHUNK_SIZE), vec![0; 99]].concat();
    let draft = store.begin().unwrap();
    let writer = draft.writer(&WriteOptions { threads: 3, ..WriteOptions::default() }).unwrap();

    writer.put(criu_file("put"), &big).unwrap();
    let mut object = writer.object(criu_file("written"));
    big.chunks(77_777).for_each(|piece| object.write_all(piece).unwrap());
    object.finish().unwrap();
    let mut object = writer.object(criu_file("filled"));
    let fill = |offset: u64, room: &mut [u8]| {
        room.copy_from_slice(&big[offset as usize..][..room.len()]);
        Ok(())
    };
    object.fill(big.len() as u64, fill).unwrap();
    object.finish().unwrap();
    let path = folder.join("source");
    fs::write(&path, &big).unwrap();
    let mut object = writer.object(criu_file("copied"));
    assert_eq!(object.copy_file(&File::open(&path).unwrap()).unwrap(), big.len() as u64);
    object.finish().unwrap();
    let mut object = writer.object(criu_file("streamed"));
    assert_eq!(object.copy_from(File::open(&path).unwrap()).unwrap(), big.len() as u64);
    object.finish().unwrap();

    let summary = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
    let image = store.open_image(&summary.id).unwrap();
    let extents = &image.object(&criu_file("put")).unwrap().extents;
    // All ways make the same chunks, so four of five cost nothing.
    for object in &image.manifest().objects {
        assert_eq!(&object.extents, extents, "{:?}", object.kind);
        assert_eq!(image.read_to_vec(&object.kind, big.len()).unwrap(), big);
        let mut streamed = Vec::new();
        assert_eq!(image.copy_to(&object.kind, &mut streamed).unwrap(), big.len() as u64);
        assert!(streamed == big);
    }
    assert_eq!(summary.stored.total, 5 * big.len() as u64);
    assert!(summary.stored.new < big.len() as u64);
    assert_eq!(summary.stored.zero + summary.stored.reused + summary.stored.new, summary.stored.total);

    let file = File::create(folder.join("out")).unwrap();
    file.write_all_at(b"something longer that was there before", big.len() as u64).unwrap();
    assert_eq!(image.copy_to_file(&criu_file("put"), &file, |_| {}).unwrap(), big.len() as u64);
    assert!(fs::read(folder.join("out")).unwrap() == big);

    let pieces = std::sync::Mutex::new(vec![0xee; big.len()]);
    let collect = |offset: u64, piece: Piece<'_>| {
        let place = &mut pieces.lock().unwrap()[offset as usize..];
        match piece {
            Piece::Bytes(bytes) => place[..bytes.len()].copy_from_slice(bytes),
            Piece::Zeros(len) => place[..len as usize].fill(0),
        }
        Ok(())
    };
    image.for_each_piece(&criu_file("put"), collect).unwrap();
    assert!(pieces.into_inner().unwrap() == big);
}

/// A file of 1 TiB with two bytes in it is read and written in no time, and takes no room.
#[test]
fn holes_cost_nothing() {
    let (folder, store) = new_store();
    let source = File::create_new(folder.path().join("source")).unwrap();
    source.set_len(1 << 40).unwrap();
    source.write_all_at(b"a", 5 << 30).unwrap();
    source.write_all_at(b"z", (1 << 40) - 1).unwrap();
    let draft = store.begin().unwrap();
    let writer = draft.writer(&options(Compress::Lz4)).unwrap();
    let mut object = writer.object(criu_file("sparse"));
    object.copy_file(&File::open(folder.path().join("source")).unwrap()).unwrap();
    object.finish().unwrap();
    let mut zeros = writer.object(criu_file("zeros"));
    zeros.write_all(b"x").unwrap();
    zeros.zeros(1 << 50).unwrap();
    zeros.finish().unwrap();
    let summary = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
    assert!(summary.stored.written < 100_000, "{:?}", summary.stored);

    let image = store.open_image(&summary.id).unwrap();
    let zeros = image.object(&criu_file("zeros")).unwrap();
    assert_eq!(zeros.len(), (1 << 50) + 1);
    assert!(matches!(zeros.extents[..], [Extent::Chunk { .. }, Extent::Zero { .. }]));
    let copy = File::create_new(folder.path().join("copy")).unwrap();
    let copied = AtomicU64::new(0);
    let advance = |bytes| {
        copied.fetch_add(bytes, Ordering::Relaxed);
    };
    image.copy_to_file(&criu_file("sparse"), &copy, advance).unwrap();
    let chunks = image.object(&criu_file("sparse")).unwrap().extents.iter();
    let written =
        chunks.filter(|extent| matches!(extent, Extent::Chunk { .. })).map(Extent::len).sum::<u64>();
    assert_eq!(copied.into_inner(), written);
    let copy = File::open(folder.path().join("copy")).unwrap();
    assert_eq!(copy.metadata().unwrap().len(), 1 << 40);
    assert!(copy.metadata().unwrap().blocks() * 512 < 10 << 20);
    let mut byte = [0];
    copy.read_exact_at(&mut byte, 5 << 30).unwrap();
    assert_eq!(&byte, b"a");
    copy.read_exact_at(&mut byte, (1 << 40) - 1).unwrap();
    assert_eq!(&byte, b"z");
    let error = image.read_to_vec(&criu_file("sparse"), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("CRIU file sparse of image"), "{error}");
}

#[test]
fn a_second_image_stores_only_what_is_new() {
    let (_folder, store) = new_store();
    only_what_is_new_is_stored(&store);
}

/// The same for any store.
pub fn only_what_is_new_is_stored(store: &Store) {
    let first = checkpoint(store, "job", 1).unwrap();
    assert!(first.stored.new > 5000);
    let again = checkpoint(store, "job", 1).unwrap();
    assert_eq!((again.stored.new, again.stored.written), (0, 0));
    assert_eq!(again.stored.total, first.stored.total);
    let other = checkpoint(store, "job", 2).unwrap();
    assert!(other.stored.new < first.stored.new);
    for (summary, number) in [(&first, 1), (&again, 1), (&other, 2)] {
        assert!(store.verify(&summary.id, &mut |_| {}).unwrap().ok);
        assert_sample(&store.open_image(&summary.id).unwrap(), number);
    }
}

/// A damaged pack must not spread into images taken later.
#[test]
fn chunks_of_a_pack_that_is_not_whole_are_stored_again() {
    let (_folder, store) = new_store();
    checkpoint(&store, "job", 1).unwrap();
    let packs = store.dir().join("packs");
    for (n, name) in names(&packs).iter().enumerate() {
        let path = packs.join(name);
        if n == 0 {
            fs::remove_file(path).unwrap();
        } else {
            let len = fs::metadata(&path).unwrap().len();
            File::options().write(true).open(path).unwrap().set_len(len - 1).unwrap();
        }
    }
    let again = checkpoint(&store, "job", 1).unwrap();
    assert!(again.stored.new > 5000);
    assert_sample(&store.open_image(&again.id).unwrap(), 1);
}

#[test]
fn reports_say_what_an_image_is() {
    let (_folder, store) = new_store();
    let image = checkpoint(&store, "job", 2).unwrap().id;
    let listing = serde_json::to_value(store.list().unwrap()).unwrap();
    let summary = &listing["images"][0];
    assert_eq!(summary["id"], image.to_string());
    assert_eq!(summary["created"], "2023-11-14T22:13:20.000Z");
    assert_eq!(summary["devices"][0], "Dormouse software device");
    assert_eq!(summary["rehearsed"], true);
    assert_eq!(summary["stall_ms"], 7.0);
    let details = serde_json::to_value(store.inspect(&image).unwrap()).unwrap();
    assert_eq!(details["job"], "job");
    assert_eq!(details["mapped_files"][0]["build_id"], "ab".repeat(20));
    assert_eq!(details["job_files"][1]["action"], "put_back");
    let shown: Vec<_> = details["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["name"].as_str().unwrap())
        .collect();
    assert_eq!(shown.len(), objects(2).len());
    assert_eq!(shown[0], "device 0's memory at 0x200000000000 of session 1");
    assert_eq!(shown[7], "content of job file /tmp/caf\\xe9");

    let mut last = None;
    let report = store.verify(&image, &mut |progress| last = Some(progress)).unwrap();
    let last = last.unwrap();
    assert_eq!((last.done, last.total), (report.bytes, report.bytes));
    let report = serde_json::to_value(report).unwrap();
    assert_eq!((&report["ok"], &report["damage"]), (&true.into(), &serde_json::json!([])));
}

#[test]
fn what_is_not_a_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("a/b/store");
    assert!(matches!(Store::open(&missing), Err(OpenError::NotAStore { .. })));
    let created = Store::open_or_create(&missing).unwrap();
    assert_eq!(Store::open(&missing).unwrap().id(), created.id());
    assert_eq!(Store::open_or_create(&missing).unwrap().id(), created.id());
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let error = Store::open_or_create(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is not empty and not a Dormouse store"), "{error}");
    assert!(matches!(Store::open(&folder.path().join("notes.txt")), Err(OpenError::NotAStore { .. })));
    assert_eq!(names(folder.path()), ["a", "notes.txt"]);
}

#[test]
fn a_writer_that_fails_publishes_nothing() {
    let (_folder, store) = new_store();
    let draft = store.begin().unwrap();
    let writer = draft.writer(&options(Compress::None)).unwrap();
    let mut object = writer.object(criu_file("half"));
    object.write_all(b"half").unwrap();
    drop(object);
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, WriteError::Unfinished { .. }));
    assert!(error.to_string().contains("CRIU file half"), "{error}");

    let writer = draft.writer(&options(Compress::None)).unwrap();
    let mut object = writer.object(criu_file("bad"));
    let broken = |_, _: &mut [u8]| Err(std::io::Error::other("the device is gone"));
    let error = object.fill(10, broken).unwrap_err();
    assert!(
        error.to_string().contains("CRIU file bad") && error.to_string().contains("the device is gone"),
        "{error}"
    );
    drop(object);
    assert!(writer.finish().is_err());

    drop(draft);
    assert_eq!(names(&store.dir().join("tmp")), [""; 0]);
    assert!(store.list().unwrap().images.is_empty());
}

/// Receipts come from other processes: what they say is checked before anything is published.
#[test]
fn false_receipts_are_refused() {
    let (_folder, store) = new_store();
    let receipt = |draft: &store::Draft| {
        let writer = draft.writer(&options(Compress::Lz4)).unwrap();
        write_objects(&writer, &objects(1)).unwrap();
        writer.finish().unwrap()
    };
    let refused = |change: fn(&mut Receipt)| {
        let draft = store.begin().unwrap();
        let mut receipt = receipt(&draft);
        change(&mut receipt);
        let error = draft.publish(manifest("job", 1), vec![receipt]).unwrap_err().to_string();
        assert!(store.list().unwrap().images.is_empty());
        error
    };
    let other = refused(|receipt| receipt.image = ImageId([1; 16]));
    assert!(other.contains("it is of image 0101"), "{other}");
    let missing = refused(|receipt| drop(receipt.packs.pop()));
    assert!(missing.contains("was not written"), "{missing}");
    let length = refused(|receipt| receipt.packs[0].file_len += 1);
    assert!(length.contains("bytes, not"), "{length}");
    let entry = refused(|receipt| receipt.packs[0].entries[0].frame_len = u32::MAX);
    assert!(entry.contains("does not fit"), "{entry}");
    let twice = refused(|receipt| receipt.objects.push(receipt.objects[0].clone()));
    assert!(twice.contains("the same thing"), "{twice}");
    assert!(Receipt::from_bytes(&[0xff; 40]).is_err());
    assert_eq!(names(&store.dir().join("packs")), [""; 0]);
}

#[test]
fn a_living_draft_is_left_alone_and_a_dead_one_removed() {
    let (_folder, store) = new_store();
    let tmp = store.dir().join("tmp");
    let living = store.begin().unwrap();
    let writer = living.writer(&options(Compress::None)).unwrap();
    write_objects(&writer, &objects(1)).unwrap();
    let receipt = writer.finish().unwrap();
    // What a killed supervisor leaves: files, and a lock that nobody holds; or, after a power failure, not even that.
    for (dead, lock) in
        [("11111111111111111111111111111111", true), ("22222222222222222222222222222222", false)]
    {
        fs::create_dir(tmp.join(dead)).unwrap();
        fs::write(tmp.join(dead).join("manifest"), "half").unwrap();
        if lock {
            fs::write(tmp.join(dead).join("lock"), "").unwrap();
        }
    }
    fs::write(tmp.join("notes.txt"), "not ours").unwrap();
    let second = store.begin().unwrap();
    let mut expected = [living.id().to_string(), second.id().to_string(), "notes.txt".to_owned()];
    expected.sort();
    assert_eq!(names(&tmp), expected);

    let gone = ImageId([3; 16]);
    let error = ChunkWriter::join(&store, gone, &options(Compress::None)).unwrap_err();
    assert!(matches!(error, WriteError::Abandoned { .. }), "{error}");
    let message = error.to_string();
    for word in [&gone.to_string(), &format!("tmp/{gone} is gone"), "took it for dead", "again"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    let image = living.publish(manifest("job", 1), vec![receipt]).unwrap().id;
    assert_sample(&store.open_image(&image).unwrap(), 1);
    drop(second);
    assert_eq!(names(&tmp), ["notes.txt"]);
}

#[test]
fn an_image_that_is_not_there_is_named() {
    let (_folder, store) = new_store();
    what_is_not_there_is_named(&store);
}

/// The same for any store.
pub fn what_is_not_there_is_named(store: &Store) {
    let image = checkpoint(store, "job", 1).unwrap().id;
    let open = store.open_image(&image).unwrap();
    let kind = ObjectKind::SessionState { session: SessionId(9) };
    let error = open.read_to_vec(&kind, 10).unwrap_err();
    assert!(matches!(error, ReadError::NoObject { .. }));
    assert_eq!(error.to_string(), format!("image {image} has no state of session 9"));
    assert!(matches!(
        open.read_into(&ObjectKind::HostRecord, &mut [0; 3]),
        Err(ReadError::ObjectLength { .. })
    ));
}

/// Runs this test program again as another process that does `what` only.
fn spawn(what: &str, store: &Store, draft: Option<ImageId>, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("directory::{what}"), "--exact", "--nocapture"])
        .env("STORE_TEST_DIR", store.dir())
        .env("STORE_TEST_DRAFT", draft.map(|id| id.to_string()).unwrap_or_default())
        .env("STORE_TEST_NUMBER", number.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// What [`spawn`] said, in the process that it started; nothing in the one that runs all tests.
fn spawned() -> Option<(Store, String, u64)> {
    let dir = std::env::var_os("STORE_TEST_DIR")?;
    let number = std::env::var("STORE_TEST_NUMBER").ok()?.parse().ok()?;
    Some((Store::open(Path::new(&dir)).unwrap(), std::env::var("STORE_TEST_DRAFT").ok()?, number))
}

/// The body of a process of `several_processes_write_one_image`.
#[test]
fn process_that_writes_a_part() {
    let Some((store, draft, number)) = spawned() else { return };
    let draft: ImageId = draft.parse().unwrap();
    let writer = ChunkWriter::join(&store, draft, &options(Compress::Zstd)).unwrap();
    let name = format!("of-{number}");
    writer.put(criu_file(&name), &noise(number, 10_000)).unwrap();
    writer.put(criu_file(&format!("common-{number}")), &noise(99, 50_000)).unwrap();
    let receipt = writer.finish().unwrap().to_bytes().unwrap();
    fs::write(store.dir().join(format!("tmp/{draft}/receipt-{number}")), receipt).unwrap();
}

#[test]
fn several_processes_write_one_image() {
    let (_folder, store) = new_store();
    let draft = store.begin().unwrap();
    let children: Vec<_> =
        (0..4).map(|n| spawn("process_that_writes_a_part", &store, Some(draft.id()), n)).collect();
    let receipts = children.into_iter().enumerate().map(|(number, mut child)| {
        assert!(child.wait().unwrap().success());
        let path = store.dir().join(format!("tmp/{}/receipt-{number}", draft.id()));
        Receipt::from_bytes(&fs::read(path).unwrap()).unwrap()
    });
    let receipts = receipts.collect();
    let image = draft.publish(Manifest::new("job"), receipts).unwrap().id;
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
    let image = store.open_image(&image).unwrap();
    for number in 0..4 {
        assert!(
            image.read_to_vec(&criu_file(&format!("of-{number}")), 10_000).unwrap() == noise(number, 10_000)
        );
        assert!(
            image.read_to_vec(&criu_file(&format!("common-{number}")), 50_000).unwrap() == noise(99, 50_000)
        );
    }
    assert_eq!(names(&store.dir().join("tmp")), [""; 0]);
}

/// The body of a process of `killed_processes_leave_only_whole_images`.
#[test]
fn process_that_checkpoints_until_it_is_killed() {
    let Some((store, _, first)) = spawned() else { return };
    for number in first.. {
        checkpoint(&store, "job", number).unwrap();
    }
}

/// Two supervisors at a time checkpoint the same job into the same store, and are killed.
#[test]
fn killed_processes_leave_only_whole_images() {
    let (_folder, store) = new_store();
    let mut listed = 0;
    for round in 0..8 {
        let first = round * 1_000_000;
        let what = "process_that_checkpoints_until_it_is_killed";
        let mut children = [0, 500_000].map(|offset| spawn(what, &store, None, first + offset));
        std::thread::sleep(Duration::from_millis(60 + 37 * round));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let listing = store.list().unwrap();
        assert_eq!(listing.damaged, []);
        assert!(listing.images.len() >= listed, "an image is lost");
        listed = listing.images.len();
    }
    let listing = store.list().unwrap();
    assert!(listed > 3, "only {listed} images were published before the kills");
    for summary in &listing.images {
        assert!(store.verify(&summary.id, &mut |_| {}).unwrap().ok);
        let image = store.open_image(&summary.id).unwrap();
        assert_sample(&image, image.manifest().job_files[0].len);
    }
    drop(store.begin().unwrap());
    assert_eq!(names(&store.dir().join("tmp")), [""; 0]);
}
