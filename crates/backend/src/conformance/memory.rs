//! Blocks, copies, fills.

use super::rig::{HostPages, Rig};
use crate::{Copy3D, Fill, Pitched, StreamArg};

/// Bytes that differ from their neighbours.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub fn devices_have_facts(rig: &Rig<'_>) {
    let device = &rig.backend.devices()[0];
    assert!(!device.name.is_empty());
    assert_ne!(device.uuid, [0; 16]);
    assert!(device.total_memory > 64 << 20);
    let attribute = |id| device.attributes.iter().find(|(each, _)| *each == id).map(|(_, value)| *value);
    // Warp size, threads of a block, multiprocessors, compute capability.
    assert_eq!(attribute(10), Some(32));
    assert_eq!(attribute(1), Some(1024));
    assert!(attribute(16) > Some(0));
    assert!(attribute(75) >= Some(7));
    assert!(rig.backend.driver_version() >= 12040);
    assert!(rig.backend.can_access_peer(usize::MAX, 0).is_err());
}

pub fn blocks_come_and_go(rig: &Rig<'_>) {
    let range = rig.free_range(64 << 20);
    let (before, total) = rig.backend.memory_info(rig.ctx).expect("memory info");
    assert!(before <= total);
    for round in 0..3u8 {
        let block = rig.backend.map_block(0, range).expect("a block");
        let (during, _) = rig.backend.memory_info(rig.ctx).expect("memory info");
        assert!(during < before, "64 MiB more in use: {before} free before, {during} now");
        rig.write(range.base, &[round; 16]);
        rig.write(range.end() - 16, &[round; 16]);
        assert_eq!(rig.read(range.base, 16), [round; 16]);
        rig.backend.unmap_block(block).expect("unmapped");
        assert!(rig.backend.unmap_block(block).is_err(), "a block is unmapped once");
    }
    assert!(rig.backend.map_block(usize::MAX, range).is_err(), "no such device");
}

pub fn copies_reach_every_kind_of_memory(rig: &Rig<'_>) {
    let bytes = 3 << 20;
    let data = pattern(bytes);
    let (a, b) = (rig.memory(bytes as u64), rig.memory(bytes as u64));
    rig.write(a, &data);
    let copy = |dst, src, bytes: usize| {
        rig.backend.copy(rig.ctx, StreamArg::Legacy, dst, src, bytes as u64).expect("a copy");
        rig.wait();
    };
    copy(b + 1, a + 3, bytes - 3);
    assert_eq!(rig.read(b + 1, bytes - 3), data[3..]);

    let mut host = HostPages::new(bytes);
    rig.backend.register_host(host.range()).expect("registered");
    copy(host.range().base, a, bytes);
    assert_eq!(host.slice(), data);
    host.slice().reverse();
    copy(a, host.range().base, bytes);
    rig.backend.unregister_host(host.range()).expect("unregistered");
    assert!(rig.backend.unregister_host(host.range()).is_err(), "registered memory is unregistered once");
    let reversed: Vec<u8> = data.iter().rev().copied().collect();
    assert_eq!(rig.read(a, bytes), reversed);
}

pub fn pitched_copies_move_only_the_box(rig: &Rig<'_>) {
    let (width, height, depth) = (100, 7, 3);
    let (src, dst) = (rig.memory(1 << 16), rig.memory(1 << 16));
    let data = pattern(1 << 16);
    rig.write(src, &data);
    rig.write(dst, &vec![0xee; 1 << 16]);
    let from = Pitched { address: src + 5, pitch: 128, rows: 9 };
    let to = Pitched { address: dst + 17, pitch: 160, rows: 8 };
    let copy = Copy3D { dst: to, src: from, width, height, depth };
    rig.backend.copy_3d(rig.ctx, StreamArg::Legacy, &copy).expect("a copy");
    rig.wait();
    let mut expected = vec![0xee; 1 << 16];
    for (z, y) in (0..depth).flat_map(|z| (0..height).map(move |y| (z, y))) {
        let at = |side: Pitched, base| ((side.address - base) + (z * side.rows + y) * side.pitch) as usize;
        let (d, s) = (at(to, dst), at(from, src));
        expected[d..d + width as usize].copy_from_slice(&data[s..s + width as usize]);
    }
    assert!(rig.read(dst, 1 << 16) == expected, "bytes outside the box changed, or inside it are wrong");
}

pub fn fills_of_every_width(rig: &Rig<'_>) {
    let base = rig.memory(1 << 16);
    for (element, value) in [(1u8, 0xabu32), (2, 0x1234), (4, 0xdead_beef)] {
        for (pitch, width, height) in [(0, 1000, 1), (512, 33, 5)] {
            rig.write(base, &[0; 1 << 14]);
            let fill = Fill { dst: base + 64, pitch, element, value, width, height };
            rig.backend.fill(rig.ctx, StreamArg::Legacy, &fill).expect("a fill");
            rig.wait();
            let mut expected = vec![0; 1 << 14];
            for row in 0..height {
                for column in 0..width {
                    let at = (64 + row * pitch + column * u64::from(element)) as usize;
                    let bytes = value.to_le_bytes();
                    expected[at..at + element as usize].copy_from_slice(&bytes[..element as usize]);
                }
            }
            assert!(rig.read(base, 1 << 14) == expected, "{element}-byte fill of {width} x {height}");
        }
    }
}
