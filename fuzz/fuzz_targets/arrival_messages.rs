//! Whoever takes over jobs refuses or carries out what is asked on any stream, in a folder of his own, and leaves nothing beside it; messages that are understood are written, and read
//! back the same.
#![no_main]

use arrival::{MAGIC, come_back, serve};
use libfuzzer_sys::fuzz_target;
use std::io::{Cursor, Read, Write, sink};
use std::sync::Arc;
use store::media::Dir;
use wires::{Patience, Wires};

fuzz_target!(|bytes: &[u8]| {
    come_back(bytes);
    // Where each stream begins that is not the first.
    let Some(([one, other], rest)) = bytes.split_first_chunk() else { return };
    let (control, bulk) = rest.split_at(usize::from(*one).min(rest.len()));
    let (first, second) = bulk.split_at(usize::from(*other).min(bulk.len()));
    let around = tempfile::tempdir_in("/dev/shm").expect("there is room for a folder");
    let folder = around.path().join("store");
    std::fs::create_dir(&folder).expect("there is room for a folder");
    let streams = [[MAGIC, &messages(control)[..]].concat(), messages(first), messages(second)];
    let [control_in, bulk_in @ ..] =
        streams.map(|stream| Box::new(Cursor::new(stream)) as Box<dyn Read + Send>);
    let nowhere = || Box::new(sink()) as Box<dyn Write + Send>;
    let wires = Wires {
        control_out: nowhere(),
        control_in,
        bulk_out: vec![nowhere(), nowhere()],
        bulk_in: bulk_in.into(),
        hang_up: Arc::new(|| ()),
        patience: Patience::default(),
    };
    let _ = serve(wires, &Dir::new(&folder), |question| question.to_vec());
    let beside = std::fs::read_dir(around.path()).expect("it is still there").count();
    assert_eq!(beside, 1, "something is outside the folder");
});

/// What bytes stand for: messages, each behind the lengths of its head and of its load in a byte; and how the last one's lie.
fn messages(mut bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some(([head, load], rest)) = bytes.split_first_chunk() {
        let (head, load) = (usize::from(*head), usize::from(*load));
        for length in [head, load] {
            stream.extend((length as u32).to_le_bytes());
        }
        let message = rest.get(..head + load).unwrap_or(rest);
        stream.extend(message);
        bytes = &rest[message.len()..];
    }
    stream
}
