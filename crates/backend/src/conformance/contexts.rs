use super::rig::Rig;
use crate::Backend;
use wire::CuError;

/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
const PRINTF: u32 = 1;
/// `CU_LIMIT_STACK_SIZE`.
const STACK: u32 = 0;

pub(super) fn says_what_it_is(backend: &dyn Backend) {
    assert!(["driver", "soft"].contains(&backend.kind()));
    assert!(!backend.describe().is_empty());
    assert!(backend.driver_version() >= 12040, "{}", backend.driver_version());
    let devices = backend.devices();
    assert!(!devices.is_empty());
    for device in devices {
        let attribute = |wanted: i32| device.attribute(wanted);
        assert!(!device.name.is_empty());
        assert!(device.total_memory > 0);
        assert_eq!(attribute(10), Some(32), "warp size");
        assert!(attribute(1).is_some_and(|threads| threads >= 1024), "threads of a block");
        assert!(attribute(75).is_some_and(|major| major >= 7), "compute capability");
        let (least, greatest) = device.stream_priorities;
        assert!(greatest <= least);
    }
}

pub(super) fn contexts_come_and_go(backend: &dyn Backend) {
    let primary = backend.context_create(0, 0, true).unwrap();
    let other = backend.context_create(0, 0, false).unwrap();
    assert_ne!(primary, other);
    for ctx in [primary, other] {
        backend.context_synchronize(ctx).unwrap();
        let stream = backend.stream_create(ctx, 0, 0).unwrap();
        assert!(backend.stream_query(ctx, crate::StreamArg::Created(stream)).unwrap());
    }
    // What belongs to a context goes with it.
    backend.context_destroy(other).unwrap();
    backend.context_synchronize(primary).unwrap();
    backend.context_destroy(primary).unwrap();
    let again = backend.context_create(0, 0, true).unwrap();
    backend.context_destroy(again).unwrap();
    let count = backend.devices().len();
    assert_eq!(backend.context_create(count, 0, false), Err(CuError::INVALID_DEVICE));
}

pub(super) fn limits_are_kept(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    for limit in [STACK, PRINTF] {
        let before = backend.context_limit(rig.ctx, limit).unwrap();
        assert!(before > 0);
        let wanted = before * 2;
        backend.context_set_limit(rig.ctx, limit, wanted).unwrap();
        assert!(backend.context_limit(rig.ctx, limit).unwrap() >= wanted);
    }
    assert!(backend.context_limit(rig.ctx, 0xffff).is_err());
    assert!(backend.context_set_limit(rig.ctx, 0xffff, 1).is_err());
}
