use super::rig::{BASIC, Rig, Shared, params, wait_until};
use crate::{
    Backend, Copy3D, Fill, GraphFunction, GraphKernel, GraphNode, GraphPlan, GraphWork, Pitched, RawFunction,
    RawGraph, StreamArg,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wire::{CuError, GraphEdge};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;
/// Long enough for a graph to do what it should not.
const A_WHILE: Duration = Duration::from_millis(50);

/// One block of one thread.
pub(super) fn kernel(rig: &Rig<'_>, function: RawFunction, params: Vec<u8>) -> GraphWork {
    let kernel =
        GraphKernel { function, grid: [1; 3], block: [1; 3], shared: 0, attributes: Vec::new(), params };
    GraphWork::Kernel(rig.ctx, kernel)
}

fn copy(rig: &Rig<'_>, dst: u64, src: u64, bytes: u64) -> GraphWork {
    let side = |address| Pitched { address, pitch: bytes, rows: 1 };
    let copy = Copy3D { dst: side(dst), src: side(src), width: bytes, height: 1, depth: 1 };
    GraphWork::Copy(rig.ctx, copy.into())
}

pub(super) fn edge(from: u32) -> GraphEdge {
    GraphEdge { from, from_port: 0, to_port: 0, kind: 0 }
}

pub(super) fn node(work: GraphWork, after: &[u32]) -> GraphNode {
    GraphNode { work, after: after.iter().map(|from| edge(*from)).collect() }
}

/// Nodes that each wait for the one before.
pub(super) fn chain(works: Vec<GraphWork>) -> GraphPlan {
    let after = |at: usize| at.checked_sub(1).map(|before| before as u32);
    let nodes = works.into_iter().enumerate();
    GraphPlan { nodes: nodes.map(|(at, work)| node(work, after(at).as_slice())).collect(), template: None }
}

pub(super) fn instantiate(rig: &Rig<'_>, plan: &GraphPlan) -> RawGraph {
    rig.backend.graph_instantiate(rig.ctx, plan, 0).unwrap()
}

pub(super) fn graphs_run_in_order(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(NON_BLOCKING));
    let (add, store) = (rig.kernel(BASIC, "add_one"), rig.kernel(BASIC, "store"));
    // Two branches of kernels, copies and sets that join: 4 + 1 in one, 7 + 1 in the other.
    let fill = Fill { dst: rig.at(64), pitch: 4, element: 4, value: 7, width: 1, height: 1 };
    let plan = GraphPlan {
        nodes: vec![
            node(GraphWork::Empty, &[]),
            node(kernel(&rig, store, params(&[rig.at(0)], &[4])), &[0]),
            node(GraphWork::Fill(rig.ctx, fill), &[0]),
            node(kernel(&rig, add, params(&[rig.at(0)], &[1])), &[1]),
            node(kernel(&rig, add, params(&[rig.at(64)], &[1])), &[2]),
            node(GraphWork::Empty, &[3, 4]),
            node(copy(&rig, rig.at(128), rig.at(0), 4), &[5]),
            node(copy(&rig, rig.at(132), rig.at(64), 4), &[5]),
            node(kernel(&rig, add, params(&[rig.at(256)], &[1])), &[6, 7]),
        ],
        template: None,
    };
    rig.put(rig.at(256), &[0]);
    rig.wait(StreamArg::Legacy);
    let graph = instantiate(&rig, &plan);
    backend.graph_upload(rig.ctx, stream, graph).unwrap();
    for _ in 0..100 {
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
    }
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    assert_eq!(rig.get(rig.at(128), 2), [5, 8]);
    assert_eq!(rig.get(rig.at(256), 1), [100]);
    backend.graph_destroy(rig.ctx, graph).unwrap();
    let nothing = instantiate(&rig, &GraphPlan::default());
    backend.graph_launch(rig.ctx, stream, nothing).unwrap();
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    backend.graph_destroy(rig.ctx, nothing).unwrap();
}

pub(super) fn graphs_copy_rows_and_registered_memory(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    (0..6).for_each(|at| shared.set(at, at as u32 + 1));
    // Two rows of two words, from three words apart to four words apart.
    let rows = Copy3D {
        dst: Pitched { address: rig.at(0), pitch: 16, rows: 2 },
        src: Pitched { address: shared.address(0), pitch: 12, rows: 2 },
        width: 8,
        height: 2,
        depth: 1,
    };
    rig.put(rig.at(0), &[0; 8]);
    rig.wait(StreamArg::Legacy);
    let back = copy(&rig, shared.address(100), rig.at(0), 32);
    let graph = instantiate(&rig, &chain(vec![GraphWork::Copy(rig.ctx, rows.into()), back]));
    let stream = StreamArg::Created(rig.stream(0));
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    let words: Vec<u32> = (100..108).map(|at| shared.get(at)).collect();
    assert_eq!(words, [1, 2, 0, 0, 4, 5, 0, 0]);
    backend.graph_destroy(rig.ctx, graph).unwrap();
}

pub(super) fn graphs_call_the_host_each_time(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let add = rig.kernel(BASIC, "add_one");
    let (address, calls) = (shared.address(0) as usize, Arc::new(AtomicU32::new(0)));
    let (told, other) = (Arc::clone(&calls), Arc::new(AtomicU32::new(0)));
    let function = GraphFunction(Arc::new(move |status| {
        assert_eq!(status, Ok(()));
        // SAFETY: the page outlives the graph's launches, and every access to it is atomic.
        let seen = unsafe { &*(address as *const AtomicU32) }.load(Ordering::Acquire);
        assert_eq!(seen, told.fetch_add(1, Ordering::AcqRel) + 1, "the kernel before is complete");
    }));
    let works = vec![kernel(&rig, add, params(&[shared.address(0)], &[1])), GraphWork::Host(function)];
    let graph = instantiate(&rig, &chain(works));
    for _ in 0..20 {
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
    }
    rig.wait(stream);
    assert_eq!(calls.load(Ordering::Acquire), 20);
    let told = Arc::clone(&other);
    let function = GraphFunction(Arc::new(move |_| {
        told.fetch_add(1, Ordering::AcqRel);
    }));
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    backend.graph_update(rig.ctx, graph, &[(1, GraphWork::Host(function))]).unwrap();
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    // A launch that is under way completes, with all that it needs.
    backend.graph_destroy(rig.ctx, graph).unwrap();
    rig.wait(stream);
    wait_until(|| (calls.load(Ordering::Acquire), other.load(Ordering::Acquire)) == (21, 1));
}

pub(super) fn graphs_record_and_await_events(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let (one, two) =
        (StreamArg::Created(rig.stream(NON_BLOCKING)), StreamArg::Created(rig.stream(NON_BLOCKING)));
    let (wait_for, store) = (rig.kernel(BASIC, "wait_for"), rig.kernel(BASIC, "store"));
    let (begun, ended) =
        (backend.event_create(rig.ctx, UNTIMED).unwrap(), backend.event_create(rig.ctx, UNTIMED).unwrap());
    let hold = params(&[shared.address(0), shared.address(1)], &[]);
    let awaits = chain(vec![
        GraphWork::EventWait(begun),
        kernel(&rig, store, params(&[shared.address(2)], &[1])),
        GraphWork::EventRecord(ended),
    ]);
    let graph = instantiate(&rig, &awaits);
    rig.launch(wait_for, 1, one, &hold);
    backend.event_record(rig.ctx, begun, one, 0).unwrap();
    backend.graph_launch(rig.ctx, two, graph).unwrap();
    std::thread::sleep(A_WHILE);
    assert_eq!(shared.get(2), 0, "the graph did not wait for the event");
    assert!(!backend.event_query(rig.ctx, ended).unwrap());
    shared.set(0, 1);
    backend.event_synchronize(rig.ctx, ended).unwrap();
    assert_eq!(shared.get(2), 1);
    rig.wait(two);
    backend.graph_destroy(rig.ctx, graph).unwrap();
    for event in [begun, ended] {
        backend.event_destroy(rig.ctx, event).unwrap();
    }
}

pub(super) fn graphs_are_updated(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let (add, store) = (rig.kernel(BASIC, "add_one"), rig.kernel(BASIC, "store"));
    let set = |value| {
        let fill = Fill { dst: rig.at(64), pitch: 4, element: 4, value, width: 1, height: 1 };
        GraphWork::Fill(rig.ctx, fill)
    };
    let plan = chain(vec![
        kernel(&rig, store, params(&[rig.at(0)], &[1])),
        set(10),
        copy(&rig, rig.at(128), rig.at(0), 4),
        kernel(&rig, add, params(&[rig.at(64)], &[1])),
    ]);
    let graph = instantiate(&rig, &plan);
    let run = || {
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
        backend.stream_synchronize(rig.ctx, stream).unwrap();
        [rig.get(rig.at(0), 1)[0], rig.get(rig.at(64), 1)[0], rig.get(rig.at(128), 1)[0]]
    };
    assert_eq!(run(), [1, 11, 1]);
    backend.graph_update(rig.ctx, graph, &[(0, kernel(&rig, store, params(&[rig.at(0)], &[2])))]).unwrap();
    assert_eq!(run(), [2, 11, 2]);
    // Several at once, and another kernel.
    let changes = [
        (1, set(20)),
        (2, copy(&rig, rig.at(128), rig.at(64), 4)),
        (3, kernel(&rig, store, params(&[rig.at(0)], &[9]))),
    ];
    backend.graph_update(rig.ctx, graph, &changes).unwrap();
    assert_eq!(run(), [9, 20, 20]);
    // All or none: the second of these is no such node.
    let wrong = [(0, kernel(&rig, store, params(&[rig.at(0)], &[5]))), (3, set(1))];
    assert_eq!(backend.graph_update(rig.ctx, graph, &wrong), Err(CuError::GRAPH_EXEC_UPDATE_FAILURE));
    assert_eq!(run(), [9, 20, 20]);
    backend.graph_destroy(rig.ctx, graph).unwrap();
}

pub(super) fn nodes_are_disabled(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let add = rig.kernel(BASIC, "add_one");
    let one = || kernel(&rig, add, params(&[rig.at(0)], &[1]));
    rig.put(rig.at(0), &[0]);
    let graph = instantiate(&rig, &chain(vec![one(), one(), one()]));
    let run = || {
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
        backend.stream_synchronize(rig.ctx, stream).unwrap();
        rig.get(rig.at(0), 1)[0]
    };
    assert_eq!(run(), 3);
    backend.graph_enable(rig.ctx, graph, 1, false).unwrap();
    assert_eq!(run(), 5);
    backend.graph_enable(rig.ctx, graph, 1, true).unwrap();
    assert_eq!(run(), 8);
    backend.graph_destroy(rig.ctx, graph).unwrap();
}

pub(super) fn launches_of_a_graph_are_in_turn(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let (one, two) =
        (StreamArg::Created(rig.stream(NON_BLOCKING)), StreamArg::Created(rig.stream(NON_BLOCKING)));
    let (wait_for, add) = (rig.kernel(BASIC, "wait_for"), rig.kernel(BASIC, "add_one"));
    let hold = params(&[shared.address(0), shared.address(1)], &[]);
    let works = vec![kernel(&rig, wait_for, hold), kernel(&rig, add, params(&[shared.address(2)], &[1]))];
    let graph = instantiate(&rig, &chain(works));
    backend.graph_launch(rig.ctx, one, graph).unwrap();
    backend.graph_launch(rig.ctx, two, graph).unwrap();
    std::thread::sleep(A_WHILE);
    assert_eq!(shared.get(2), 0);
    shared.set(0, 1);
    rig.wait(one);
    rig.wait(two);
    assert_eq!(shared.get(2), 2);
    backend.graph_destroy(rig.ctx, graph).unwrap();
}

pub(super) fn wrong_graphs_are_told_at_once(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let store = rig.kernel(BASIC, "store");
    let GraphWork::Kernel(ctx, mut wrong) = kernel(&rig, store, params(&[rig.at(0)], &[1])) else { return };
    wrong.block = [2048, 1, 1];
    let plan = chain(vec![GraphWork::Kernel(ctx, wrong)]);
    assert!(backend.graph_instantiate(rig.ctx, &plan, 0).is_err());
    let graph = instantiate(&rig, &chain(vec![GraphWork::Empty]));
    assert!(backend.graph_enable(rig.ctx, graph, 0, false).is_err(), "an empty node cannot be disabled");
    assert!(backend.graph_enable(rig.ctx, graph, 1, false).is_err(), "there is no such node");
    backend.graph_destroy(rig.ctx, graph).unwrap();
}
