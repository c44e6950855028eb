use super::rig::{BASIC, HELLO, MANAGED, Rig, Shared, VARIABLES, load_managed, params};
use crate::{Backend, Launch, StreamArg};

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS: i32 = 0;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: i32 = 8;

pub(super) fn kernels_run(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let words: Vec<u32> = (0..10_000).collect();
    rig.put(rig.at(0), &words);
    let function = rig.kernel(BASIC, "add_one");
    let params = params(&[rig.at(0)], &[9_999]);
    let launch = Launch {
        function,
        grid: [40, 1, 1],
        block: [256, 1, 1],
        shared: 0,
        stream: StreamArg::Legacy,
        attributes: &[],
        params: &params,
    };
    for _ in 0..3 {
        backend.launch(rig.ctx, &launch).unwrap();
    }
    let expected: Vec<u32> = (0..10_000).map(|i| if i < 9_999 { i + 3 } else { i }).collect();
    assert_eq!(rig.get(rig.at(0), 10_000), expected);
}

pub(super) fn parameters_are_told(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let facts = backend.function_facts(rig.ctx, rig.kernel(BASIC, "sum")).unwrap();
    assert_eq!(facts.name, "sum");
    let params: Vec<_> = facts.params.iter().map(|param| (param.offset, param.size)).collect();
    assert_eq!(params, [(0, 8), (8, 8), (16, 4)]);
    assert!(facts.attribute(MAX_THREADS).is_some_and(|threads| threads >= 256));
}

pub(super) fn attributes_are_set(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let module = rig.load(BASIC);
    let function = backend.function(rig.ctx, module, "sum").unwrap();
    assert!(backend.function_attribute(rig.ctx, function, MAX_THREADS).unwrap() >= 256);
    backend.function_set_attribute(rig.ctx, function, MAX_DYNAMIC_SHARED, 20_000).unwrap();
    assert_eq!(backend.function_attribute(rig.ctx, function, MAX_DYNAMIC_SHARED).unwrap(), 20_000);
    let same = backend.function(rig.ctx, module, "sum").unwrap();
    assert_eq!(backend.function_attribute(rig.ctx, same, MAX_DYNAMIC_SHARED).unwrap(), 20_000);
    assert!(backend.function_set_attribute(rig.ctx, function, MAX_THREADS, 1).is_err(), "it cannot be set");
    assert!(backend.function_attribute(rig.ctx, function, 0xffff).is_err());
    backend.function_set_cache_config(rig.ctx, function, 1).unwrap();
}

pub(super) fn variables_are_found(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let module = rig.load(VARIABLES);
    let global = |name: &str| backend.global(rig.ctx, module, name);
    assert_eq!(global("counter").unwrap().bytes, 4);
    assert_eq!(global("scale").unwrap().bytes, 4);
    // One that only its own module sees is found as well.
    assert_eq!(global("table").unwrap().bytes, 4000);
    assert!(global("nothing").is_err());
}

pub(super) fn variables_start_initialised(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let module = rig.load(VARIABLES);
    let global = |name: &str| rig.variable(module, name, 4);
    let step = backend.function(rig.ctx, module, "step").unwrap();
    let run = || rig.launch(step, 1, StreamArg::Legacy, &params(&[rig.at(0)], &[]));
    run();
    assert_eq!(rig.get(rig.at(0), 1), [21]);
    assert_eq!(rig.get(global("counter"), 1), [8]);
    assert_eq!(rig.get(rig.variable(module, "table", 4000) + 3996, 1), [8]);
    // The host writes both kinds.
    rig.put(global("counter"), &[100]);
    rig.put(global("scale"), &[5]);
    run();
    assert_eq!(rig.get(rig.at(0), 1), [500]);
    // A variable that holds another's address.
    let held = rig.get(rig.variable(module, "where", 8), 2);
    assert_eq!(u64::from(held[0]) | u64::from(held[1]) << 32, global("counter"));
}

pub(super) fn managed_variables_lie_where_they_are_put(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (one, two) = (Shared::new(backend), Shared::new(backend));
    for shared in [&one, &two] {
        // What a variable begins with is the caller's affair.
        shared.set(0, 1000);
        let managed = [("counter", shared.address(0)), ("words", shared.address(64))];
        let module = load_managed(backend, rig.ctx, MANAGED, &managed);
        let count = backend.function(rig.ctx, module, "count").unwrap();
        for round in 0..2 {
            rig.launch(count, 4, StreamArg::Legacy, &params(&[], &[]));
            backend.context_synchronize(rig.ctx).unwrap();
            assert_eq!(shared.get(0), 1006 + 100 * round + 6 * round);
            let mut before: Vec<u32> = (1..5).map(|index| shared.get(64 + index)).collect();
            before.sort_unstable();
            assert!(before[0] >= 1000 + 106 * round && before[3] <= 1006 + 106 * round, "{before:?}");
            assert_eq!((8..12).map(|index| shared.get(64 + index)).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert_eq!(shared.get(64), 77);
            shared.set(0, shared.get(0) + 100);
        }
        backend.module_unload(rig.ctx, module).unwrap();
    }
    let nowhere = backend.module_load(
        rig.ctx,
        &[MANAGED.as_bytes(), b"\0"].concat(),
        &[],
        &[("counter", one.address(0))],
    );
    assert!(nowhere.is_err(), "one of them has no address");
}

pub(super) fn modules_are_apart(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (one, two) = (rig.load(VARIABLES), rig.load(VARIABLES));
    let counter = |module| rig.variable(module, "counter", 4);
    assert_ne!(counter(one), counter(two));
    rig.put(counter(one), &[1000]);
    assert_eq!(rig.get(counter(two), 1), [7]);
    backend.module_unload(rig.ctx, one).unwrap();
    assert_eq!(rig.get(counter(two), 1), [7]);
}

pub(super) fn shared_memory_is_dynamic(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let words: Vec<u32> = (1..=200).collect();
    rig.put(rig.at(0), &words);
    let function = rig.kernel(BASIC, "sum");
    let params = params(&[rig.at(0), rig.at(4096)], &[200]);
    let launch = Launch {
        function,
        grid: [1; 3],
        block: [256, 1, 1],
        shared: 1024,
        stream: StreamArg::Legacy,
        attributes: &[],
        params: &params,
    };
    backend.launch(rig.ctx, &launch).unwrap();
    assert_eq!(rig.get(rig.at(4096), 1), [20_100]);
}

pub(super) fn what_is_printed_comes_out(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let hello = rig.kernel(HELLO, "hello");
    let mut text = String::new();
    for n in 0..3u32 {
        rig.launch(hello, 1, StreamArg::Legacy, &params(&[], &[n]));
        backend.context_synchronize(rig.ctx).unwrap();
        text += std::str::from_utf8(&backend.take_output()).unwrap();
    }
    // Behaviours that run beside this one print nothing.
    assert_eq!(text, "hello 0 of conformance\nhello 1 of conformance\nhello 2 of conformance\n");
    rig.launch(hello, 32, StreamArg::Legacy, &params(&[], &[100]));
    backend.stream_synchronize(rig.ctx, StreamArg::Legacy).unwrap();
    let output = backend.take_output();
    let lines = std::str::from_utf8(&output).unwrap().lines().count();
    assert_eq!(lines, 32);
    assert!(backend.take_output().is_empty());
}

pub(super) fn occupancy_makes_sense(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let sum = rig.kernel(BASIC, "sum");
    let blocks = |block, shared| backend.occupancy_blocks(rig.ctx, sum, block, shared, 0).unwrap();
    assert!(blocks(128, 0) >= 1);
    assert!(blocks(1024, 0) <= blocks(128, 0));
    assert!(blocks(128, 40_000) <= blocks(128, 0));
    let shared = backend.occupancy_shared(rig.ctx, sum, 1, 128).unwrap();
    assert!(shared >= 16 << 10, "{shared}");
}

pub(super) fn modules_list_their_kernels(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let mut names = backend.module_functions(rig.ctx, rig.load(BASIC)).unwrap();
    names.sort();
    assert_eq!(names, ["add_one", "copy", "store", "sum", "wait_for", "wild"]);
}
