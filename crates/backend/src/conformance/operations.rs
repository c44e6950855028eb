use super::rig::{BASIC, PATIENCE, Rig, Shared, params};
use crate::{Backend, MemoryOperation, StreamArg, Until, Word};
use std::time::Duration;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Long enough for a stream to do what it should not.
const A_WHILE: Duration = Duration::from_millis(50);

fn narrow(address: u64, value: u32) -> Word {
    Word { address, value: value.into(), wide: false }
}

fn write(word: Word) -> MemoryOperation {
    MemoryOperation::Write { word }
}

fn wait(word: Word, until: Until) -> MemoryOperation {
    MemoryOperation::Wait { word, until }
}

pub(super) fn words_are_written_in_turn(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let add = rig.kernel(BASIC, "add_one");
    rig.put(rig.at(0), &[0, 0, 0, 0]);
    rig.wait(StreamArg::Legacy);
    let operations = [
        write(narrow(rig.at(0), 41)),
        MemoryOperation::Barrier { gpu: false },
        MemoryOperation::Barrier { gpu: true },
        write(Word { address: rig.at(8), value: 0x1_0000_0002, wide: true }),
        write(narrow(shared.address(3), 8)),
        write(Word { address: shared.address(4), value: u64::MAX, wide: true }),
    ];
    backend.memory_operations(rig.ctx, stream, &operations).unwrap();
    rig.launch(add, 1, stream, &params(&[rig.at(0)], &[1]));
    rig.wait(stream);
    assert_eq!(rig.get(rig.at(0), 4), [42, 0, 2, 1]);
    assert_eq!([3, 4, 5, 6].map(|index| shared.get(index)), [8, u32::MAX, u32::MAX, 0]);
}

pub(super) fn a_stream_waits_for_a_word(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let [held, free] = [rig.stream(NON_BLOCKING), rig.stream(NON_BLOCKING)].map(StreamArg::Created);
    rig.put(rig.at(0), &[0; 4]);
    rig.wait(StreamArg::Legacy);
    // What the host writes, and what another stream writes to the device's own memory.
    let cases: [(Word, Until, u64); 6] = [
        (narrow(shared.address(0), 5), Until::Reached, 6),
        (narrow(shared.address(1), 5), Until::Equal, 5),
        (narrow(shared.address(2), 0b100), Until::And, 0b110),
        (narrow(shared.address(3), 0xffff_fff0), Until::Nor, 0b1),
        (narrow(rig.at(0), 3), Until::Reached, 3),
        (Word { address: rig.at(8), value: 1 << 40, wide: true }, Until::Reached, 1 << 41),
    ];
    shared.set(3, 0b1111);
    for (number, (word, until, value)) in cases.into_iter().enumerate() {
        let done = narrow(shared.address(100 + number), 1);
        backend.memory_operations(rig.ctx, held, &[wait(word, until), write(done)]).unwrap();
        std::thread::sleep(A_WHILE);
        assert!(!backend.stream_query(rig.ctx, held).unwrap(), "{until:?} did not wait");
        assert_eq!(shared.get(100 + number), 0);
        match number {
            0..4 => shared.set(number, value as u32),
            _ => backend.memory_operations(rig.ctx, free, &[write(Word { value, ..word })]).unwrap(),
        }
        rig.wait(held);
        assert_eq!(shared.get(100 + number), 1, "{until:?}");
    }
    // A condition that holds already holds nobody up.
    let begun = std::time::Instant::now();
    backend.memory_operations(rig.ctx, held, &cases.map(|(word, until, _)| wait(word, until))).unwrap();
    rig.wait(held);
    assert!(begun.elapsed() < PATIENCE / 2);
}

pub(super) fn words_that_are_not_there_are_refused(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    for address in [rig.at(2), rig.memory.end() + (1 << 30), 0] {
        let written = backend.memory_operations(rig.ctx, StreamArg::Legacy, &[write(narrow(address, 1))]);
        assert!(written.is_err(), "{address:#x}");
    }
    backend.context_synchronize(rig.ctx).unwrap();
}
