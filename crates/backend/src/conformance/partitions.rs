use super::rig::{BASIC, Rig, params};
use crate::{Backend, StreamArg};
use wire::{CuError, SM_REMAINDER, SmCount, SmSplit, SmStep};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: i32 = 16;

fn taken(split: SmSplit, taken: &[u32]) -> SmStep {
    SmStep { split, taken: taken.to_vec() }
}

pub(super) fn multiprocessors_are_split(backend: &dyn Backend) {
    let _rig = Rig::primary(backend);
    let all = backend.sm_count(0, &[]).unwrap();
    let facts = &backend.devices()[0].attributes;
    assert!(facts.contains(&(MULTIPROCESSORS, all.count as i32)), "{all:?}");
    let split = SmSplit { groups: 2, minimum: 1, flags: 0 };
    let (groups, rest) = backend.sm_split(0, &[], split).unwrap();
    assert_eq!(groups.len(), 2);
    assert!(groups[0] == groups[1] && groups[0].count >= 1);
    assert!(2 * groups[0].count + rest.count <= all.count);
    // One group, both, and what is left if anything is.
    assert_eq!(backend.sm_count(0, &[taken(split, &[1])]).unwrap(), groups[1]);
    let both = backend.sm_count(0, &[taken(split, &[0, 1])]).unwrap();
    assert_eq!(both.count, 2 * groups[0].count);
    if rest.count > 0 {
        assert_eq!(backend.sm_count(0, &[taken(split, &[SM_REMAINDER])]).unwrap().count, rest.count);
    }
    // A part of a part.
    let fine = SmSplit { groups: 1, minimum: 2, flags: 1 };
    let (inner, _) = backend.sm_split(0, &[taken(split, &[0])], fine).unwrap();
    assert_eq!(inner.len(), 1);
    assert!((2..groups[0].count).contains(&inner[0].count), "{inner:?}");
    let deep = [taken(split, &[0]), taken(fine, &[0])];
    assert_eq!(backend.sm_count(0, &deep).unwrap().count, inner[0].count);

    let too_many = SmSplit { minimum: all.count + 1, ..split };
    let impossible = CuError::INVALID_RESOURCE_CONFIGURATION;
    assert_eq!(backend.sm_split(0, &[], too_many), Err(impossible));
    let missing = backend.sm_count(0, &[taken(split, &[1000])]);
    assert_eq!(missing, Err::<SmCount, _>(impossible));
}

pub(super) fn green_streams_are_in_order_with_others(backend: &dyn Backend) {
    let rig = Rig::primary(backend);
    let split = SmSplit { groups: 2, minimum: 8, flags: 0 };
    let greens = [0, 1].map(|part| backend.green_create(0, &[taken(split, &[part])]).unwrap());
    let streams = greens.map(|green| backend.green_stream_create(rig.ctx, green, 0).unwrap());
    let (add, event) = (rig.kernel(BASIC, "add_one"), backend.event_create(rig.ctx, 0).unwrap());
    rig.put(rig.at(0), &[1, 2, 3]);
    // They do not wait for the legacy stream.
    rig.get(rig.at(0), 1);
    for _ in 0..20 {
        for stream in streams {
            rig.launch(add, 32, StreamArg::Created(stream), &params(&[rig.at(0)], &[3]));
            // Each of them waits for the one before.
            backend.event_record(rig.ctx, event, StreamArg::Created(stream), 0).unwrap();
            for other in streams {
                backend.stream_wait_event(rig.ctx, StreamArg::Created(other), event, 0).unwrap();
            }
        }
    }
    streams.iter().for_each(|stream| rig.wait(StreamArg::Created(*stream)));
    assert_eq!(rig.get(rig.at(0), 3), [41, 42, 43]);
    backend.event_destroy(rig.ctx, event).unwrap();
    streams.iter().for_each(|stream| backend.stream_destroy(rig.ctx, *stream).unwrap());
    greens.iter().for_each(|green| backend.green_destroy(*green).unwrap());
}
