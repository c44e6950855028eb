use super::rig::{Rig, Shared};
use crate::{Backend, Copy3D, Fill, Pitched, Range, StreamArg};

pub(super) fn copies_go_every_way(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let copy = |dst: u64, src: u64, bytes: u64| backend.copy(rig.ctx, stream, dst, src, bytes).unwrap();
    let words = [10u32, 20, 30];
    let mut back = [0u32; 3];
    copy(rig.at(0), words.as_ptr() as u64, 12);
    copy(rig.at(4096), rig.at(0), 12);
    copy(shared.address(0), rig.at(4096), 12);
    copy(shared.address(100), shared.address(0), 12);
    copy(rig.at(8192), shared.address(100), 12);
    copy(back.as_mut_ptr() as u64, rig.at(8192), 12);
    assert_eq!(back, words, "what is copied to plain host memory is there when the call returns");
    assert_eq!([shared.get(0), shared.get(1), shared.get(2)], words);
    copy(rig.at(0), rig.at(4096), 0);
}

pub(super) fn host_memory_is_read_at_once(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let mut words = vec![1u32; 10_000];
    backend.copy(rig.ctx, StreamArg::Legacy, rig.at(0), words.as_ptr() as u64, 40_000).unwrap();
    words.fill(2);
    assert_eq!(rig.get(rig.at(0), 10_000), vec![1; 10_000]);
}

/// A page of host memory.
#[repr(C, align(4096))]
#[derive(Clone)]
struct HostPage([u32; 1024]);

/// Copies to the same registered memory, none of which is waited for; in one stream, and from one to the other by an event.
pub(super) fn the_last_copy_to_a_place_is_what_is_there(backend: &dyn Backend) {
    const WORDS: usize = 256 << 10;
    let rig = Rig::new(backend);
    let mut pages = vec![HostPage([0; 1024]); WORDS / 1024];
    let range = Range { base: pages.as_mut_ptr() as u64, bytes: 4 * WORDS as u64 };
    backend.register_host(range).unwrap();
    let streams = [rig.stream(0), rig.stream(0)];
    let event = backend.event_create(rig.ctx, 0).unwrap();
    let mut expected = vec![0; WORDS];
    // All of it, and parts: long ones that go apart, short ones that come with what is told.
    let parts = [(0, WORDS), (1000, 200_000), (0, WORDS), (150_000, 4000), (149_000, 90_000), (151_000, 16)];
    for (turn, (first, count)) in parts.into_iter().cycle().take(120).enumerate() {
        let [here, other] = if turn % 7 < 4 { streams } else { [streams[1], streams[0]] };
        backend.event_record(rig.ctx, event, StreamArg::Created(other), 0).unwrap();
        backend.stream_wait_event(rig.ctx, StreamArg::Created(here), event, 0).unwrap();
        let value = turn as u32 + 1;
        let fill = Fill { dst: rig.at(0), pitch: 0, element: 4, value, width: count as u64, height: 1 };
        backend.fill(rig.ctx, StreamArg::Created(here), &fill).unwrap();
        let to = range.base + 4 * first as u64;
        backend.copy(rig.ctx, StreamArg::Created(here), to, rig.at(0), 4 * count as u64).unwrap();
        expected[first..first + count].fill(value);
    }
    streams.iter().for_each(|stream| rig.wait(StreamArg::Created(*stream)));
    let found: Vec<u32> = pages.iter().flat_map(|page| page.0).collect();
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong.map(|at| (at, found[at], expected[at])), None, "word, found, expected");
    backend.unregister_host(range).unwrap();
}

pub(super) fn pitched_copies_move_boxes(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let words: Vec<u32> = (0..1000).collect();
    rig.put(rig.at(0), &words);
    rig.put(rig.at(65536), &[0; 1000]);
    // A box of 3 × 2 × 2 words out of rows of 10 words, 5 rows a slice, into rows of 8 words, 4 rows a slice.
    let copy = Copy3D {
        dst: Pitched { address: rig.at(65536), pitch: 32, rows: 4 },
        src: Pitched { address: rig.at(4 * 12), pitch: 40, rows: 5 },
        width: 12,
        height: 2,
        depth: 2,
    };
    backend.copy_3d(rig.ctx, StreamArg::Legacy, &copy).unwrap();
    let mut expected = vec![0u32; 1000];
    for (slice, row, column) in (0..2).flat_map(|s| (0..2).flat_map(move |r| (0..3).map(move |c| (s, r, c))))
    {
        expected[slice * 32 + row * 8 + column] = words[12 + slice * 50 + row * 10 + column];
    }
    assert_eq!(rig.get(rig.at(65536), 1000), expected);
    // To plain host memory, packed.
    let mut host = [0u32; 12];
    let copy = Copy3D { dst: Pitched { address: host.as_mut_ptr() as u64, pitch: 12, rows: 2 }, ..copy };
    backend.copy_3d(rig.ctx, StreamArg::Legacy, &copy).unwrap();
    backend.context_synchronize(rig.ctx).unwrap();
    assert_eq!(host, [12, 13, 14, 22, 23, 24, 62, 63, 64, 72, 73, 74]);
}

pub(super) fn fills_have_elements(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    rig.put(rig.at(0), &[0; 8]);
    let fill = |dst: u64, element: u8, value: u32, width: u64| {
        let fill = Fill { dst, pitch: 0, element, value, width, height: 1 };
        backend.fill(rig.ctx, StreamArg::Legacy, &fill).unwrap();
    };
    fill(rig.at(1), 1, 0x1234_56ab, 6);
    fill(rig.at(10), 2, 0x1234_56cd, 3);
    fill(rig.at(20), 4, 0xdead_beef, 2);
    let expected = [0xabab_ab00, 0x00ab_abab, 0x56cd_0000, 0x56cd_56cd, 0, 0xdead_beef, 0xdead_beef, 0];
    assert_eq!(rig.get(rig.at(0), 8), expected);
}

pub(super) fn fills_have_rows(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    rig.put(rig.at(0), &[0; 12]);
    let fill = Fill { dst: rig.at(4), pitch: 16, element: 4, value: 7, width: 2, height: 3 };
    backend.fill(rig.ctx, StreamArg::Legacy, &fill).unwrap();
    assert_eq!(rig.get(rig.at(0), 12), [0, 7, 7, 0, 0, 7, 7, 0, 0, 7, 7, 0]);
}
