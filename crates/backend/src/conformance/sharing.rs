use super::rig::{BASIC, Rig, params, wait_until};
use crate::{Access, BLOCK_GRANULARITY, Backend, Range, StreamArg};

/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 2 | 4;

/// Reserved addresses behind a rig's own block.
fn behind(rig: &Rig<'_>, block: u64) -> Range {
    Range { base: rig.memory.end() + block * BLOCK_GRANULARITY, bytes: BLOCK_GRANULARITY }
}

pub(super) fn a_block_is_exported_and_imported(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let range = behind(&rig, 1);
    let block = backend.map_block(0, range).unwrap();
    rig.put(range.base, &[1, 2, 3]);
    rig.get(range.base, 1);
    let piece = backend.block_physical(block).unwrap();
    let file = backend.physical_export(piece).unwrap();
    backend.physical_release(piece).unwrap();
    let imported = backend.physical_import(0, file, BLOCK_GRANULARITY).unwrap();
    let view = behind(&rig, 7);
    backend.map_physical(imported, view).unwrap();
    backend.physical_release(imported).unwrap();
    backend.set_access(0, view, Access::ReadWrite).unwrap();
    assert_eq!(rig.get(view.base, 3), [1, 2, 3]);
    let add = rig.kernel(BASIC, "add_one");
    rig.launch(add, 32, StreamArg::Legacy, &params(&[view.base], &[3]));
    assert_eq!(rig.get(range.base, 3), [2, 3, 4]);
    // Either outlives the other.
    backend.unmap_block(block).unwrap();
    assert_eq!(rig.get(view.base, 3), [2, 3, 4]);
    backend.unmap_physical(view).unwrap();
}

pub(super) fn a_piece_is_exported_and_imported(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let piece = backend.physical_create(0, 2 * BLOCK_GRANULARITY, false).unwrap().0;
    let file = backend.physical_export(piece).unwrap();
    // The descriptor holds the memory.
    backend.physical_release(piece).unwrap();
    let imported = backend.physical_import(0, file, 2 * BLOCK_GRANULARITY).unwrap();
    let view = Range { bytes: 2 * BLOCK_GRANULARITY, ..behind(&rig, 3) };
    backend.map_physical(imported, view).unwrap();
    backend.set_access(0, view, Access::ReadWrite).unwrap();
    rig.put(view.end() - 8, &[5, 6]);
    assert_eq!(rig.get(view.end() - 8, 2), [5, 6]);
    backend.unmap_physical(view).unwrap();
    backend.physical_release(imported).unwrap();
}

/// What another process does with it can only be shown by another process.
pub(super) fn an_event_for_others_is_an_event(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let event = backend.event_create(rig.ctx, INTERPROCESS).unwrap();
    assert!(backend.event_query(rig.ctx, event).unwrap(), "never recorded");
    let shared = backend.event_export(rig.ctx, event).unwrap();
    assert!(shared.file.is_some() || shared.bytes.len() == 64);
    let (one, other) = (rig.stream(1), rig.stream(1));
    let add = rig.kernel(BASIC, "add_one");
    rig.put(rig.at(0), &[7]);
    rig.get(rig.at(0), 1);
    rig.launch(add, 32, StreamArg::Created(one), &params(&[rig.at(0)], &[1]));
    backend.event_record(rig.ctx, event, StreamArg::Created(one), 0).unwrap();
    backend.stream_wait_event(rig.ctx, StreamArg::Created(other), event, 0).unwrap();
    rig.launch(add, 32, StreamArg::Created(other), &params(&[rig.at(0)], &[1]));
    backend.event_synchronize(rig.ctx, event).unwrap();
    wait_until(|| backend.event_query(rig.ctx, event).unwrap());
    rig.wait(StreamArg::Created(other));
    assert_eq!(rig.get(rig.at(0), 1), [9]);
    backend.event_destroy(rig.ctx, event).unwrap();
    let plain = backend.event_create(rig.ctx, 2).unwrap();
    assert!(backend.event_export(rig.ctx, plain).is_err(), "it was not made for others");
    backend.event_destroy(rig.ctx, plain).unwrap();
}
