//! Arbitrary images, and sealed files with arbitrary bodies.
#![allow(dead_code, reason = "each test file uses its part")]

mod seal;

use std::time::Duration;

use image::sealed::{HEADER_LEN, Kind};
use image::*;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

pub use seal::seal;

/// `file` with `change` made to its body, and header and checksum right again.
pub fn reseal(kind: Kind, file: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let machine = Machine(u16::from_le_bytes([file[10], file[11]]));
    let mut body = file[HEADER_LEN..].to_vec();
    change(&mut body);
    seal(kind, machine, &body)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

pub fn chunk_id() -> impl Strategy<Value = ChunkId> {
    any::<[u8; 32]>().prop_map(ChunkId)
}

fn image_id() -> impl Strategy<Value = ImageId> {
    any::<[u8; 16]>().prop_map(ImageId)
}

fn path() -> impl Strategy<Value = RawPath> {
    vec(1..=255u8, 1..30).prop_map(RawPath)
}

fn any_path() -> impl Strategy<Value = RawPath> {
    vec(any::<u8>(), 0..30).prop_map(RawPath)
}

fn duration() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

pub fn entry() -> impl Strategy<Value = Entry> {
    (chunk_id(), 1..=CHUNK_SIZE as u32, any::<u32>(), any::<u64>(), 0..3u8).prop_map(
        |(id, plain_len, frame_len, check, codec)| {
            let start = u64::from_le_bytes(id.0[..8].try_into().unwrap());
            let smaller = 1 + frame_len % (plain_len - 1).max(1);
            match codec {
                1 if plain_len > 1 => Entry { id, plain_len, frame_len: smaller, check, codec: Codec::Lz4 },
                2 if plain_len > 1 => Entry { id, plain_len, frame_len: smaller, check, codec: Codec::Zstd },
                _ => Entry { id, plain_len, frame_len: plain_len, check: start, codec: Codec::Plain },
            }
        },
    )
}

pub fn pack_index() -> impl Strategy<Value = PackIndex> {
    (any::<[u8; 16]>(), vec(entry(), 0..8)).prop_map(|(id, entries)| {
        let mut pack = PackIndex { id: PackId(id), file_len: 0, entries };
        pack.file_len = pack.trailer_at() + pack::trailer(pack.id, &pack.entries).unwrap().len() as u64;
        pack
    })
}

pub fn index() -> impl Strategy<Value = Index> {
    (image_id(), vec(pack_index(), 0..4)).prop_map(|(image, packs)| Index { image, packs })
}

pub fn condemned() -> impl Strategy<Value = Condemned> {
    let packs = || vec(any::<[u8; 16]>().prop_map(PackId), 0..4);
    let group = (vec(image_id(), 0..4), packs(), packs())
        .prop_map(|(drafts, named, unnamed)| CondemnedPacks { drafts, named, unnamed });
    vec(group, 0..4).prop_map(|groups| Condemned { groups })
}

fn object_kind() -> impl Strategy<Value = ObjectKind> {
    let memory = prop_oneof![
        Just(MemoryKind::Allocation),
        Just(MemoryKind::Global),
        Just(MemoryKind::Driver),
        Just(MemoryKind::Array),
        Just(MemoryKind::Physical)
    ];
    let session = || any::<u64>().prop_map(SessionId);
    prop_oneof![
        (session(), any::<u32>(), memory, any::<u64>()).prop_map(|(session, device, memory, base)| {
            ObjectKind::DeviceMemory { session, device: DeviceOrdinal(device), memory, base }
        }),
        session().prop_map(|session| ObjectKind::SessionState { session }),
        path().prop_map(|path| ObjectKind::SharedFile { path }),
        path().prop_map(|name| ObjectKind::CriuFile { name }),
        path().prop_map(|path| ObjectKind::JobFileContent { path }),
        Just(ObjectKind::HostRecord),
    ]
}

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let chunk = (chunk_id(), 1..=CHUNK_SIZE as u32).prop_map(|(id, len)| Extent::Chunk { id, len });
    let zero = (1..1u64 << 50).prop_map(|len| Extent::Zero { len });
    vec(prop_oneof![chunk, zero], 0..6).prop_map(|mut extents| {
        extents.dedup_by(|a, b| matches!((a, b), (Extent::Zero { .. }, Extent::Zero { .. })));
        extents
    })
}

fn device() -> impl Strategy<Value = DeviceFacts> {
    (any::<u32>(), text(), text(), any::<[u8; 16]>(), any::<u32>(), any::<u64>(), any::<u32>()).prop_map(
        |(ordinal, backend, name, uuid, compute_capability, total_memory, driver_version)| DeviceFacts {
            ordinal: DeviceOrdinal(ordinal),
            backend,
            name,
            uuid,
            compute_capability,
            total_memory,
            driver_version,
        },
    )
}

fn job_file() -> impl Strategy<Value = JobFile> {
    let action = prop_oneof![Just(FileAction::Truncate), Just(FileAction::PutBack), Just(FileAction::Warn)];
    (any_path(), any::<u64>(), action).prop_map(|(path, len, action)| JobFile { path, len, action })
}

fn mapped_file() -> impl Strategy<Value = MappedFile> {
    (any_path(), any::<u64>(), option::of(vec(any::<u8>(), 0..=64)), option::of(any::<[u8; 32]>()))
        .prop_map(|(path, size, build_id, hash)| MappedFile { path, size, build_id, hash })
}

pub fn manifest() -> impl Strategy<Value = Manifest> {
    let names = (text(), text(), text(), text(), text(), vec(text(), 0..5));
    let facts = (image_id(), any::<u16>(), any::<u64>(), option::of(image_id()), any::<bool>());
    let command = (vec(any_path(), 0..4), any_path());
    let times = (duration(), duration(), duration(), duration(), duration());
    let lists = (vec(device(), 0..3), vec(job_file(), 0..4), vec(mapped_file(), 0..4));
    let objects = btree_set(object_kind(), 0..6).prop_flat_map(|kinds| {
        kinds
            .into_iter()
            .map(|kind| extents().prop_map(move |extents| Object { kind: kind.clone(), extents }))
            .collect::<Vec<_>>()
    });
    (names, facts, command, times, any::<[u64; 5]>(), lists, objects).prop_map(
        |(names, facts, (args, cwd), times, sizes, (devices, job_files, mapped_files), objects)| {
            let (job, dormouse, kernel, hostname, cpu_model, cpu_features) = names;
            let (id, machine, created_ns, parent, rehearsed) = facts;
            let (drain_wait, device_capture, pinned_capture, host_freeze, stall) = times;
            let [total, zero, reused, new, written] = sizes;
            Manifest {
                id,
                machine: Machine(machine),
                job,
                created_ns,
                dormouse,
                parent,
                regular: created_ns % 2 == 1,
                excluded: created_ns % 3,
                half_way: created_ns % 2,
                lineage: (created_ns % 5 > 0).then_some(Lineage(id.0)),
                rehearsed,
                host: HostFacts { kernel, hostname, cpu_model, cpu_features },
                devices,
                command: Command { args, cwd },
                cut: CutTimes { drain_wait, device_capture, pinned_capture, host_freeze, stall },
                stored: StoredBytes { total, zero, reused, new, written },
                job_files,
                mapped_files,
                objects,
            }
        },
    )
}
