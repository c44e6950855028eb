//! A store on a folder of the other side.
#![allow(clippy::unwrap_used)]

use arrival::{Arrival, SayError, serve};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::media::{Dir, Media};
use store::{CopyOptions, Store, WriteOptions};
use wires::Wires;

/// Both ends of a session, in which several files are written at a time; who ends the last stream cuts it.
fn session(folder: &Path) -> (Arrival, JoinHandle<io::Result<()>>, Vec<UnixStream>) {
    let pairs: [_; 4] = std::array::from_fn(|_| UnixStream::pair().unwrap());
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let cut = ours.iter().map(|stream| stream.try_clone().unwrap()).collect();
    let folder = folder.to_owned();
    let answered = |question: &[u8]| [question, b"!"].concat();
    let served =
        std::thread::spawn(move || serve(Wires::of_unix(theirs).unwrap(), &Dir::new(&folder), answered));
    (Arrival::connect(Wires::of_unix(ours).unwrap(), LONG).unwrap(), served, cut)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn images_are_copied_to_the_other_side_and_read_there() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    std::fs::create_dir(&there).unwrap();
    let from = Store::open_or_create(&here).unwrap();
    let draft = from.begin().unwrap();
    let writer = draft.writer(&WriteOptions::default()).unwrap();
    let content: Vec<u8> = (0..9_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    writer.put(image::ObjectKind::HostRecord, &content).unwrap();
    let published = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();

    let (arrival, served, _) = session(&there);
    let media: Arc<dyn Media> = Arc::new(arrival.folder("there:7071"));
    let to = Store::open_or_create_media(media).unwrap();
    assert_eq!(to.dir(), Path::new("there:7071"));
    let copy = || from.copy_to(&to, &[published.id], &CopyOptions::default(), &mut |_| {}).unwrap();
    assert!(!copy().images[0].there);
    assert!(copy().images[0].there);
    let read = to.open_image(&published.id).unwrap();
    assert_eq!(read.read_to_vec(&image::ObjectKind::HostRecord, 1 << 30).unwrap(), content);
    assert_eq!(arrival.say(b"well", LONG).unwrap(), b"well!");
    // On its own it is a store like any other.
    let local = Store::open(&there).unwrap();
    assert!(local.verify(&published.id, &mut |_| {}).unwrap().ok);
    let removed = to.remove(&[published.id]).unwrap();
    assert_eq!(removed.images.len(), 1);
    assert_eq!(local.list().unwrap().images.len(), 0);
    drop((read, to, arrival));
    served.join().unwrap().unwrap();
}

#[test]
fn what_fails_there_fails_here_as_it_would() {
    let folder = tempfile::tempdir().unwrap();
    let (arrival, served, _) = session(folder.path());
    let media = arrival.folder("there");
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(media.open("none").map(drop)), io::ErrorKind::NotFound);
    let mut file = media.create("file").unwrap();
    assert_eq!(kind(media.create("file").map(drop)), io::ErrorKind::AlreadyExists);
    file.write_all(b"content").unwrap();
    file.sync().unwrap();
    let read = media.open("file").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(kind(read.read_exact_at(&mut buffer, 0)), io::ErrorKind::UnexpectedEof);
    read.read_exact_at(&mut buffer[..7], 0).unwrap();
    assert_eq!(&buffer[..7], b"content");
    media.create("other").unwrap();
    assert_eq!(kind(media.rename_new("other", "file")), io::ErrorKind::AlreadyExists);
    media.rename_new("other", "new").unwrap();
    let outside = media.open("../file").unwrap_err();
    assert!(outside.to_string().contains("no path"), "{outside}");
    // Held by whoever asked, until he lets go.
    let held = media.lock("file", false).unwrap().unwrap();
    let local = Dir::new(folder.path());
    assert!(local.lock("file", false).unwrap().is_none() && media.lock("file", false).unwrap().is_none());
    drop(held);
    // It lets go in its turn.
    media.list("").unwrap();
    assert!(local.lock("file", false).unwrap().is_some());
    drop((file, read, media, arrival));
    served.join().unwrap().unwrap();
}

#[test]
fn several_files_are_written_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (arrival, served, _) = session(folder.path());
    let media = arrival.folder("there");
    assert_eq!(media.side_by_side(), 3);
    let bytes = |number: u8| (0..3_000_000_u32).map(|at| at as u8 ^ number).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for number in 0..7_u8 {
            let media = &media;
            scope.spawn(move || {
                let mut file = media.create(&format!("file-{number}")).unwrap();
                for piece in bytes(number).chunks(12_345) {
                    file.write_all(piece).unwrap();
                }
                file.sync().unwrap();
            });
        }
    });
    for number in 0..7 {
        assert!(std::fs::read(folder.path().join(format!("file-{number}"))).unwrap() == bytes(number));
    }
    drop((media, arrival));
    served.join().unwrap().unwrap();
}

#[test]
fn whoever_waits_hears_that_the_session_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (arrival, served, cut) = session(folder.path());
    let media = arrival.folder("there");
    let held = media.lock("lock", true).unwrap().unwrap();
    cut.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    assert_eq!(media.list("").unwrap_err().kind(), io::ErrorKind::NotConnected);
    let unsaid = arrival.say(b"well", LONG).unwrap_err();
    assert!(
        matches!(&unsaid, SayError::Unsaid(error) if error.kind() == io::ErrorKind::NotConnected),
        "{unsaid}"
    );
    let _ = served.join().unwrap();
    assert!(Dir::new(folder.path()).lock("lock", false).unwrap().is_some(), "the dead hold nothing");
    drop(held);
}

/// It says that it is there, and does nothing: neither who waits for an answer nor who writes waits for ever.
#[test]
fn whoever_does_nothing_is_given_up() {
    let within = Duration::from_millis(300);
    let alive = |control: UnixStream, answers: &'static [u8]| {
        std::thread::spawn(move || {
            let (mut from, mut to) = (control.try_clone().unwrap(), control);
            to.write_all(b"DMmoves3").unwrap();
            if !answers.is_empty() {
                // What is asked behind the other's magic.
                from.read_exact(&mut [0; 9]).unwrap();
                to.write_all(answers).unwrap();
            }
            std::thread::spawn(move || io::copy(&mut from, &mut io::sink()));
            // An answer to nothing: a head of three bytes, and no load.
            while to.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let connected = |answers: &'static [u8]| {
        let pairs: [_; 2] = std::array::from_fn(|_| UnixStream::pair().unwrap());
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let [control, bulk]: [UnixStream; 2] = theirs.try_into().unwrap();
        let is_alive = alive(control, answers);
        (Arrival::connect(Wires::of_unix(ours).unwrap(), within).unwrap(), is_alive, bulk)
    };
    let begun = Instant::now();
    let given_up = |error: io::Error| {
        assert!(error.to_string().contains("not done within 0.3 s"), "{error}");
        assert!(begun.elapsed() < LONG);
    };
    let (arrival, is_alive, _bulk) = connected(&[]);
    given_up(arrival.folder("there").list("").unwrap_err());
    drop(arrival);
    is_alive.join().unwrap();

    let (arrival, is_alive, _bulk) = connected(&[]);
    let SayError::Unanswered(unanswered) = arrival.say(b"well", within).unwrap_err() else {
        panic!("it was asked")
    };
    given_up(unanswered);
    drop(arrival);
    is_alive.join().unwrap();

    // The file, which is number 1, is made (question 2), and nobody reads what is written to it.
    let (arrival, is_alive, _bulk) = connected(&[3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
    let mut file = arrival.folder("there").create("file").unwrap();
    let written = (0..1000).try_for_each(|_| file.write_all(&[7; 100_000]));
    given_up(written.unwrap_err());
    drop((file, arrival));
    is_alive.join().unwrap();
}

#[test]
fn nonsense_ends_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let serve_one = |bytes: &[u8], stream: usize| {
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        let (mut ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let dir = Dir::new(folder.path());
        let served = std::thread::spawn(move || serve(Wires::of_unix(theirs).unwrap(), &dir, <[u8]>::to_vec));
        if stream > 0 {
            ours[0].write_all(b"DMmoves3").unwrap();
        }
        ours[stream].write_all(bytes).unwrap();
        ours[stream].shutdown(Shutdown::Write).unwrap();
        drop(ours[0].read_to_end(&mut Vec::new()));
        served.join().unwrap()
    };
    let whole = |bytes: &[u8]| serve_one(&[b"DMmoves3", bytes].concat(), 0);
    assert!(serve_one(b"GET / HT", 0).is_err());
    assert_eq!(whole(&[0xff; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(whole(&[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).is_err());
    whole(b"").unwrap();
    // The same where files are written, of which alone is spoken there.
    for bytes in [&[0xff; 8][..], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(serve_one(bytes, 1).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
    }
}
