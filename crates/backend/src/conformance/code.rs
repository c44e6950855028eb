//! Modules, functions, launches.

use super::rig::{KERNELS, Rig, launch, params};
use crate::{RawModule, StreamArg};
use wire::{CuError, Param};

pub fn modules_tell_their_functions(rig: &Rig<'_>) {
    let mut names = rig.backend.module_functions(rig.ctx, rig.module).expect("functions");
    names.sort();
    assert_eq!(names, ["await", "axpb", "poke", "say", "step", "where"]);
    let function = rig.function("axpb");
    let facts = rig.backend.function_facts(rig.ctx, function).expect("facts");
    assert_eq!(facts.name, "axpb");
    let layout = [(0, 8), (8, 8), (16, 4), (20, 4)].map(|(offset, size)| Param { offset, size });
    assert_eq!(facts.params, layout);
    // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, in the facts and asked for.
    let threads = rig.backend.function_attribute(rig.ctx, function, 0).expect("an attribute");
    assert!((32..=1024).contains(&threads));
    assert!(facts.attributes.contains(&(0, threads)));
    assert_eq!(rig.backend.function(rig.ctx, rig.module, "nobody"), Err(CuError::NOT_FOUND));
    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES can be set.
    rig.backend.function_set_attribute(rig.ctx, function, 8, 16 << 10).expect("set");
    assert_eq!(rig.backend.function_attribute(rig.ctx, function, 8), Ok(16 << 10));
}

pub fn launches_compute(rig: &Rig<'_>) {
    let n = 10_000u32;
    let (a, out) = (rig.memory(40_000), rig.memory(40_000));
    let input: Vec<u8> = (0..n).flat_map(|i| (i * i).to_le_bytes()).collect();
    rig.write(a, &input);
    let params = params(&[&out.to_le_bytes(), &a.to_le_bytes(), &17u32.to_le_bytes(), &n.to_le_bytes()]);
    rig.launch(StreamArg::Legacy, "axpb", [n.div_ceil(256), 256], &params).expect("a launch");
    let expected: Vec<u8> = (0..n).flat_map(|i| (i.wrapping_mul(i).wrapping_mul(3) + 17).to_le_bytes()).collect();
    assert!(rig.read(out, 40_000) == expected);
}

pub fn globals_and_constants_can_be_copied(rig: &Rig<'_>) {
    let module = load(rig);
    let global = |name| rig.backend.global(rig.ctx, module, name);
    let counter = global("counter").expect("counter");
    assert_eq!(counter.bytes, 8);
    assert_eq!(rig.read_u64(counter.base), 7, "initialised as written");
    let table = global("table").expect("table");
    assert_eq!((table.bytes, rig.read(table.base, 64)), (64, vec![0; 64]));
    let scale = global("scale").expect("scale");
    rig.write(scale.base, &10u32.to_le_bytes());
    let (a, out) = (rig.memory(4), rig.memory(4));
    rig.write(a, &6u32.to_le_bytes());
    let params = params(&[&out.to_le_bytes(), &a.to_le_bytes(), &2u32.to_le_bytes(), &1u32.to_le_bytes()]);
    let function = rig.backend.function(rig.ctx, module, "axpb").expect("axpb");
    rig.backend.launch(rig.ctx, &launch(function, StreamArg::Legacy, [1, 1], &params)).expect("a launch");
    assert_eq!(rig.read(out, 4), 62u32.to_le_bytes(), "the kernel reads the new constant");
    assert_eq!(global("nothing"), Err(CuError::NOT_FOUND));
    rig.backend.module_unload(rig.ctx, module).expect("unloaded");
}

pub fn device_code_sees_the_address_that_is_told(rig: &Rig<'_>) {
    let out = rig.memory(8);
    rig.launch(StreamArg::Legacy, "where", [1, 1], &out.to_le_bytes()).expect("a launch");
    assert_eq!(rig.read_u64(out), rig.counter());
}

pub fn replayed_modules_land_where_they_were(rig: &Rig<'_>) {
    let mut first = None;
    let ranges =
        rig.backend.place(None, &mut || { first = Some(load(rig)); Ok(()) }).expect("placed");
    let first = first.expect("place has run make");
    let counter = rig.backend.global(rig.ctx, first, "counter").expect("counter");
    rig.backend.module_unload(rig.ctx, first).expect("unloaded");
    if ranges.iter().any(|range| rig.backend.holds(*range)) {
        // The library keeps what others share; the next module then finds its place in it by itself.
        return;
    }
    let mut second = None;
    let again =
        rig.backend.place(Some(&ranges), &mut || { second = Some(load(rig)); Ok(()) }).expect("placed");
    let second = second.expect("place has run make");
    assert_eq!(again, ranges);
    assert_eq!(rig.backend.global(rig.ctx, second, "counter"), Ok(counter));
    rig.backend.module_unload(rig.ctx, second).expect("unloaded");
}

pub fn what_cannot_be_loaded_is_said(rig: &Rig<'_>) {
    let broken = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { frobnicate.u32 %r1, 2; }\0";
    let error = rig.backend.module_load(rig.ctx, broken.as_bytes(), &[]).expect_err("not PTX");
    assert_eq!(error.code, CuError::INVALID_PTX);
    assert!(error.detail.contains("frobnicate"), "{}", error.detail);
    assert!(rig.backend.module_load(rig.ctx, b"\x7fELF nonsense", &[]).is_err());
}

pub fn occupancy_is_plausible(rig: &Rig<'_>) {
    let function = rig.function("axpb");
    let blocks = |threads| rig.backend.occupancy_blocks(rig.ctx, function, threads, 0, 0).expect("occupancy");
    assert!(blocks(64) >= blocks(1024));
    assert!((1..=2).contains(&blocks(1024)));
    assert!(rig.backend.occupancy_shared(rig.ctx, function, 1, 128).expect("shared") >= 16 << 10);
}

pub fn printf_arrives_in_order(rig: &Rig<'_>) {
    rig.wait();
    rig.backend.take_output();
    for number in [3u32, 1, 2] {
        rig.launch(StreamArg::Legacy, "say", [1, 1], &number.to_le_bytes()).expect("a launch");
    }
    rig.wait();
    assert_eq!(String::from_utf8_lossy(&rig.backend.take_output()), "step 3\nstep 1\nstep 2\n");
    assert_eq!(rig.backend.take_output(), b"");
}

fn load(rig: &Rig<'_>) -> RawModule {
    rig.backend.module_load(rig.ctx, KERNELS.as_bytes(), &[]).expect("the suite's kernels load")
}
