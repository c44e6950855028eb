//! What goes wrong, and what must go on nevertheless.

use super::rig::{HostPages, KERNELS, Rig, launch};
use crate::{Launch, StreamArg};
use wire::CuError;

const STACK_SIZE: u32 = 0;

pub fn limits_can_be_read_and_set(rig: &Rig<'_>) {
    let before = rig.backend.context_limit(rig.ctx, STACK_SIZE).expect("a limit");
    rig.backend.context_set_limit(rig.ctx, STACK_SIZE, 4096).expect("set");
    assert!(rig.backend.context_limit(rig.ctx, STACK_SIZE).expect("a limit") >= 4096);
    rig.backend.context_set_limit(rig.ctx, STACK_SIZE, before).expect("set back");
    assert!(rig.backend.context_limit(rig.ctx, 0x7777).is_err());
}

pub fn wrong_launches_are_told_at_once(rig: &Rig<'_>) {
    let params = 1u64.to_le_bytes();
    let good = launch(rig.function("step"), StreamArg::Legacy, [1, 1], &params);
    let refused = |bad: Launch<'_>| rig.backend.launch(rig.ctx, &bad).expect_err("a wrong launch");
    assert_eq!(refused(Launch { grid: [0, 1, 1], ..good }), CuError::INVALID_VALUE);
    assert_eq!(refused(Launch { block: [4096, 1, 1], ..good }), CuError::INVALID_VALUE);
    assert_eq!(refused(Launch { shared: 10 << 20, ..good }), CuError::INVALID_VALUE);
    rig.wait();
}

pub fn registered_memory_outlives_contexts(rig: &Rig<'_>) {
    let mut host = HostPages::new(1 << 16);
    let other = rig.backend.context_create(0, 0, false).expect("another context");
    rig.backend.register_host(host.range()).expect("registered");
    rig.backend.context_destroy(other).expect("destroyed");
    let device = rig.memory(1 << 16);
    rig.write(device, &[0x5a; 1 << 16]);
    rig.backend.copy(rig.ctx, StreamArg::Legacy, host.range().base, device, 1 << 16).expect("a copy");
    rig.wait();
    assert!(host.slice().iter().all(|byte| *byte == 0x5a));
    rig.backend.unregister_host(host.range()).expect("unregistered");
}

pub fn a_bad_address_breaks_its_context_for_good(rig: &Rig<'_>) {
    let backend = rig.backend;
    let ctx = backend.context_create(0, 0, false).expect("a context to break");
    let module = backend.module_load(ctx, KERNELS.as_bytes(), &[]).expect("the suite's kernels load");
    let poke = backend.function(ctx, module, "poke").expect("poke");
    let stream = backend.stream_create(ctx, 0, 0).expect("a stream");
    let nowhere = rig.free_range(2 << 20).base.to_le_bytes();
    backend.launch(ctx, &launch(poke, StreamArg::Created(stream), [1, 1], &nowhere)).expect("submitted");
    assert_eq!(backend.stream_synchronize(ctx, StreamArg::Created(stream)), Err(CuError::ILLEGAL_ADDRESS));
    assert_eq!(backend.context_synchronize(ctx), Err(CuError::ILLEGAL_ADDRESS), "sticky");
    assert_eq!(
        backend.launch(ctx, &launch(poke, StreamArg::Legacy, [1, 1], &nowhere)),
        Err(CuError::ILLEGAL_ADDRESS),
        "every later call answers it"
    );
    // Destroying it is the way out; what the call answers is the driver's business.
    let _ = backend.context_destroy(ctx);
}
