use super::rig::{Rig, Shared};
use crate::{Backend, Copy3D, Fill, Pitched, StreamArg};

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
