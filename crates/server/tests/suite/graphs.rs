//! Executable graphs: made, launched, changed, and made again.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread, encoded, rehearse};
use std::time::Duration;
use wire::*;

fn inline(value: &impl Wire) -> GraphData {
    GraphData::Inline(Bytes(encoded(value)))
}

fn kernel(callee: Callee, address: u64, value: u32) -> GraphWork {
    let params = [&address.to_le_bytes()[..], &value.to_le_bytes()].concat();
    GraphWork::Kernel(GraphKernel {
        ctx: CTX,
        callee,
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        attributes: vec![],
        params: Bytes(params),
    })
}

fn copy(dst: u64, src: u64, bytes: u64) -> GraphWork {
    let side = |address| CopySide::Memory(Pitched { address, pitch: bytes, rows: 1 });
    GraphWork::Copy(GraphCopy { ctx: CTX, dst: side(dst), src: side(src), width: bytes, height: 1, depth: 1 })
}

/// Nodes that each wait for the one before.
fn chain(works: Vec<GraphWork>) -> GraphPlan {
    let edge = |from| GraphEdge { from, from_port: 0, to_port: 0, kind: 0 };
    let nodes = works.into_iter().enumerate().map(|(at, work)| GraphNode {
        work,
        after: at.checked_sub(1).map(|before| edge(before as u32)).into_iter().collect(),
    });
    GraphPlan { nodes: nodes.collect() }
}

const GRAPH: GraphExecId = GraphExecId(700);

fn instantiate(thread: &mut Thread, plan: &GraphPlan) -> Result<(), CuError> {
    thread.call(GraphInstantiate { ctx: CTX, exec: GRAPH, template: None, flags: 0, plan: inline(plan) })
}

fn launch(thread: &mut Thread) {
    thread.send(GraphLaunch { ctx: CTX, stream: Stream::Legacy, exec: GRAPH, wide: false });
}

/// A program with the suite's kernels `store` and `add_one` and some memory.
fn started() -> (App, Thread, Callee, Callee, u64) {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let (store, add) = (thread.function(module, 3, "store"), thread.function(module, 4, "add_one"));
    let memory = thread.alloc(4096);
    thread.put(memory, &[0; 16]);
    (app, thread, store, add, memory)
}

#[test]
fn a_graph_comes_back_with_its_changes() {
    let (app, mut thread, store, add, memory) = started();
    let images = Images::new();
    let [event] = thread.events([20]);
    let set = |value| {
        GraphWork::Fill(GraphFill {
            ctx: CTX,
            dst: memory + 8,
            pitch: 4,
            element: 4,
            value,
            width: 1,
            height: 1,
        })
    };
    let plan = chain(vec![
        kernel(store, memory, 5),
        kernel(add, memory, 1),
        set(7),
        copy(memory + 16, memory, 12),
        kernel(add, memory + 32, 1),
        GraphWork::EventRecord(event),
    ]);
    instantiate(&mut thread, &plan).unwrap();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 9), [6, 0, 7, 0, 6, 0, 7, 0, 1]);
    let changes = vec![
        GraphChange { node: 0, work: kernel(store, memory, 50) },
        GraphChange { node: 2, work: set(70) },
    ];
    thread.call(GraphUpdate { exec: GRAPH, changes: inline(&changes) }).unwrap();
    thread.call(GraphNodeEnable { exec: GRAPH, node: 4, enabled: false }).unwrap();
    // The graph keeps an event that the program has destroyed.
    thread.send(EventDestroy { event });
    thread.synchronize().unwrap();

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, state) = images.capture(&app.session);
    let (dir, addresses) = app.kill();
    drop(thread);
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 9), [51, 0, 70, 0, 51, 0, 70, 0, 1]);
    thread.call(GraphNodeEnable { exec: GRAPH, node: 4, enabled: true }).unwrap();
    launch(&mut thread);
    assert_eq!(thread.get(memory + 32, 1), [2]);
    thread.send(GraphExecDestroy { exec: GRAPH });
    launch(&mut thread);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_HANDLE));
    drop(thread);
    let _ = app.kill();
}

#[test]
fn a_graph_outlives_what_it_names_and_works_again_with_something_else() {
    let (app, mut thread, store, _, memory) = started();
    let images = Images::new();
    let gone = thread.alloc(4 << 20);
    instantiate(&mut thread, &chain(vec![kernel(store, memory, 5), copy(gone, memory, 4)])).unwrap();
    launch(&mut thread);
    thread.synchronize().unwrap();
    thread.send(MemFree { address: gone });
    thread.synchronize().unwrap();

    let (image, state, (dir, addresses)) = app.captured(thread, &images);
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    launch(&mut thread);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_VALUE), "its memory is gone");
    let change = vec![GraphChange { node: 1, work: copy(memory + 4, memory, 4) }];
    thread.call(GraphUpdate { exec: GRAPH, changes: inline(&change) }).unwrap();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 2), [5, 5]);
    // Its code goes, and it with it; nothing of that harms the module's end.
    thread.call(ModuleUnload { module: ModuleId(2) }).unwrap();
    launch(&mut thread);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_HANDLE));
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    drop(thread);
    let _ = app.kill();
}

#[test]
fn a_graph_keeps_its_events_while_it_cannot_be_built() {
    let (app, mut thread, ..) = started();
    let images = Images::new();
    let memory = thread.alloc(4096);
    thread.put(memory, &[7, 0, 0]);
    let gone = thread.alloc(4 << 20);
    let [event] = thread.events([20]);
    let array = ArrayId(30);
    let desc = ArrayDesc { width: 4, height: 1, depth: 0, format: 3, channels: 1, flags: 0 };
    thread.call(ArrayCreate { ctx: CTX, array, desc }).unwrap();
    let GraphWork::Copy(mut to_array) = copy(memory, memory, 4) else { unreachable!() };
    to_array.dst = CopySide::Array(array, [0; 3]);
    let works = vec![GraphWork::Copy(to_array), copy(gone, memory, 4), GraphWork::EventRecord(event)];
    instantiate(&mut thread, &chain(works)).unwrap();
    thread.send(EventDestroy { event });
    thread.send(ArrayDestroy { array });
    let change = |thread: &mut Thread, node, work| {
        let changes = inline(&vec![GraphChange { node, work }]);
        thread.call(GraphUpdate { exec: GRAPH, changes }).unwrap();
    };
    change(&mut thread, 0, copy(memory + 4, memory, 4));
    launch(&mut thread);
    assert_eq!((thread.get(memory, 3), app.client.control().take_error()), (vec![7, 7, 0], None));

    thread.send(MemFree { address: gone });
    thread.synchronize().unwrap();
    // The second time it has not been built since.
    let mut app = app;
    for _ in 0..2 {
        app.session.close_gate(LONG).unwrap();
        let (id, state) = images.capture(&app.session);
        let (dir, addresses) = app.kill();
        drop(thread);
        rehearse(&state).unwrap();
        app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
        thread = app.thread();
    }
    change(&mut thread, 1, copy(memory + 8, memory, 4));
    launch(&mut thread);
    assert_eq!((thread.get(memory, 3), app.client.control().take_error()), (vec![7, 7, 7], None));
    drop(thread);
    let _ = app.kill();
}

#[test]
fn what_is_disabled_may_be_gone_at_a_restart() {
    let (app, mut thread, store, _, memory) = started();
    let images = Images::new();
    let gone = thread.alloc(4 << 20);
    let [event] = thread.events([20]);
    let works = vec![
        kernel(store, memory, 5),
        copy(gone, memory, 4),
        kernel(store, memory + 4, 6),
        GraphWork::EventRecord(event),
    ];
    instantiate(&mut thread, &chain(works)).unwrap();
    thread.call(GraphNodeEnable { exec: GRAPH, node: 1, enabled: false }).unwrap();
    thread.call(GraphNodeEnable { exec: GRAPH, node: 2, enabled: false }).unwrap();
    thread.send(EventDestroy { event });
    thread.send(MemFree { address: gone });
    thread.synchronize().unwrap();

    let (image, state, (dir, addresses)) = app.captured(thread, &images);
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 2), [5, 0]);
    assert_eq!(app.client.control().take_error(), None);
    // It does what it names when it is enabled, and what it names is gone.
    let mut enable = |enabled| {
        thread.call(GraphNodeEnable { exec: GRAPH, node: 1, enabled }).unwrap();
        launch(&mut thread);
        thread.synchronize().unwrap();
        app.client.control().take_error()
    };
    assert_eq!(enable(true), Some(CuError::INVALID_VALUE));
    assert_eq!(enable(false), None);
    let change = vec![GraphChange { node: 1, work: copy(memory + 8, memory, 4) }];
    thread.call(GraphUpdate { exec: GRAPH, changes: inline(&change) }).unwrap();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 3), [5, 0, 0]);
    thread.call(GraphNodeEnable { exec: GRAPH, node: 1, enabled: true }).unwrap();
    launch(&mut thread);
    assert_eq!(thread.get(memory, 3), [5, 0, 5]);
    assert_eq!(app.client.control().take_error(), None);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn graphs_share_an_event_that_only_they_have() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let module = app.load(&mut thread, 2, BASIC);
    let (store, wait_for) = (thread.function(module, 3, "store"), thread.function(module, 4, "wait_for"));
    let memory = thread.alloc(4096);
    thread.put(memory, &[0; 16]);
    let [event] = thread.events([20]);
    let second = GraphExecId(701);
    instantiate(&mut thread, &chain(vec![GraphWork::EventRecord(event)])).unwrap();
    let plan = inline(&chain(vec![GraphWork::EventWait(event), kernel(store, memory, 7)]));
    thread.call(GraphInstantiate { ctx: CTX, exec: second, template: None, flags: 0, plan }).unwrap();
    thread.send(EventDestroy { event });
    thread.synchronize().unwrap();
    let (image, _, (dir, addresses)) = app.captured(thread, &images);
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [one, two] = thread.streams([5, 6]).map(Stream::Created);
    thread.launch(wait_for, one, 1, &[flags, flags + 4], &[]);
    thread.send(GraphLaunch { ctx: CTX, stream: one, exec: GRAPH, wide: true });
    thread.send(GraphLaunch { ctx: CTX, stream: two, exec: second, wide: true });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        thread.call(StreamQuery { ctx: CTX, stream: two }),
        Ok(false),
        "it waits for the other's record"
    );
    ours.word(0).store(1, std::sync::atomic::Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream: two }).unwrap();
    assert_eq!(thread.get(memory, 1), [7]);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn functions_of_a_launch_that_fails_are_told_of_it() {
    let (app, mut thread, store, _, memory) = started();
    let receiver = app.client.callbacks();
    let gone = thread.alloc(4 << 20);
    let plan = chain(vec![copy(gone, memory, 4), GraphWork::Host(CallbackId(31))]);
    instantiate(&mut thread, &plan).unwrap();
    // Its code is gone, and so it is to be built anew, which cannot be.
    let plan = inline(&chain(vec![kernel(store, memory, 1), GraphWork::Host(CallbackId(32))]));
    thread
        .call(GraphInstantiate { ctx: CTX, exec: GraphExecId(701), template: None, flags: 0, plan })
        .unwrap();
    thread.call(ModuleUnload { module: ModuleId(2) }).unwrap();
    thread.send(GraphLaunch { ctx: CTX, stream: Stream::Legacy, exec: GraphExecId(701), wide: false });
    let no_stream = Stream::Created(StreamId(99));
    thread.send(GraphLaunch { ctx: CTX, stream: no_stream, exec: GRAPH, wide: false });
    thread.send(HostFunction { ctx: CTX, stream: no_stream, callback: CallbackId(33) });
    for id in [32, 31, 33] {
        let due = receiver.next(LONG).unwrap().unwrap();
        assert_eq!((due.id, due.status), (id, CuError::INVALID_HANDLE.code()));
        receiver.acknowledge();
    }
    app.session.close_gate(LONG).unwrap();
    app.session.open_gate();
    drop(thread);
    let _ = app.kill();
}

#[test]
fn what_a_graph_holds_is_released_behind_its_launches() {
    let (mut app, mut thread) = App::with_context();
    let receiver = app.client.callbacks();
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [stream] = thread.streams([5]);
    instantiate(&mut thread, &chain(vec![GraphWork::Empty])).unwrap();
    let release = |exec, id| GraphRelease { exec, callback: CallbackId(id) };
    thread.send(release(Some(GRAPH), 40));
    thread.launch(wait_for, Stream::Created(stream), 1, &[flags, flags + 4], &[]);
    thread.send(GraphLaunch { ctx: CTX, stream: Stream::Created(stream), exec: GRAPH, wide: false });
    thread.send(release(Some(GRAPH), 41));
    thread.send(release(None, 42));
    thread.send(GraphExecDestroy { exec: GRAPH });
    thread.send(StreamDestroy { stream });
    for id in [40, 42] {
        assert_eq!(receiver.next(LONG).unwrap().unwrap().id, id);
        receiver.acknowledge();
    }
    let soon = Duration::from_millis(50);
    assert!(receiver.next(soon).unwrap().is_none(), "the launch is not complete");
    ours.word(0).store(1, std::sync::atomic::Ordering::Release);
    assert_eq!(receiver.next(LONG).unwrap().unwrap().id, 41);
    // A cut finds nothing under way.
    let holders = app.session.close_gate(soon).unwrap_err().concat();
    assert!(holders.contains("host callback"), "{holders}");
    receiver.acknowledge();
    app.session.close_gate(LONG).unwrap();
    app.session.open_gate();
    drop(thread);
    let _ = app.kill();
}

#[test]
fn a_graph_of_arrays_and_words_comes_back() {
    let (app, mut thread, ..) = started();
    let images = Images::new();
    let memory = thread.alloc(4096);
    let (one, other) = (ArrayId(30), ArrayId(31));
    let desc = ArrayDesc { width: 4, height: 2, depth: 0, format: 3, channels: 1, flags: 0 };
    for array in [one, other] {
        thread.call(ArrayCreate { ctx: CTX, array, desc }).unwrap();
    }
    let rows = CopySide::Memory(Pitched { address: memory, pitch: 16, rows: 2 });
    let box_of = |dst, src| GraphWork::Copy(GraphCopy { ctx: CTX, dst, src, width: 16, height: 2, depth: 1 });
    let array = |id| CopySide::Array(id, [0; 3]);
    let word = |offset, value| Word { address: memory + offset, value, wide: false };
    let wait = MemoryOperation::Wait { word: word(64, 1), until: Until::Reached };
    let write = |value| MemoryOperation::Write { word: word(68, value) };
    let operations = |list| GraphWork::Operations(GraphOperations { ctx: CTX, operations: list });
    let plan = chain(vec![
        box_of(array(one), rows),
        box_of(array(other), array(one)),
        operations(vec![wait, write(7)]),
        GraphWork::Copy(GraphCopy {
            ctx: CTX,
            dst: CopySide::Memory(Pitched { address: memory + 128, pitch: 16, rows: 2 }),
            src: array(other),
            width: 16,
            height: 2,
            depth: 1,
        }),
    ]);
    let words: Vec<u32> = (1..=8).collect();
    thread.put(memory, &words);
    thread.put(memory + 64, &[1, 0]);
    instantiate(&mut thread, &plan).unwrap();
    launch(&mut thread);
    assert_eq!((thread.get(memory + 128, 8), thread.get(memory + 68, 1)), (words.clone(), vec![7]));
    let change = vec![GraphChange { node: 2, work: operations(vec![wait, write(8)]) }];
    thread.call(GraphUpdate { exec: GRAPH, changes: inline(&change) }).unwrap();

    let (image, state, (dir, addresses)) = app.captured(thread, &images);
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    thread.put(memory + 128, &[0; 8]);
    // A launch that waits is named as what holds a cut.
    let [held, free] = thread.streams([40, 41]).map(Stream::Created);
    thread.put(memory + 64, &[0, 0]);
    thread.synchronize().unwrap();
    thread.send(GraphLaunch { ctx: CTX, stream: held, exec: GRAPH, wide: false });
    thread.call(StreamQuery { ctx: CTX, stream: held }).unwrap();
    let holders = app.session.close_gate(Duration::from_millis(200)).unwrap_err();
    let named = format!("{:#x} to reach 1", memory + 64);
    assert!(holders.iter().any(|each| each.contains(&named)), "{holders:?}");
    let go = MemoryOperation::Write { word: word(64, 1) };
    thread.send(MemoryOperations { ctx: CTX, stream: free, operations: vec![go] });
    thread.call(StreamSynchronize { ctx: CTX, stream: held }).unwrap();
    assert_eq!((thread.get(memory + 128, 8), thread.get(memory + 68, 1)), (words, vec![8]));
    // Without one of its arrays it cannot run; the end of the array comes after the launch.
    thread.send(ArrayDestroy { array: one });
    launch(&mut thread);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_HANDLE), "an array is gone");
    drop(thread);
    let _ = app.kill();
}

#[test]
fn a_long_plan_travels_in_a_file() {
    let (app, mut thread, _, add, memory) = started();
    let plan = chain(vec![kernel(add, memory, 1); 3000]);
    let bytes = encoded(&plan);
    assert!(bytes.len() > GRAPH_INLINE_MAX);
    let message = |plan| GraphInstantiate { ctx: CTX, exec: GRAPH, template: None, flags: 0, plan };
    let file = app.dir.path().join("upload-77");
    std::fs::write(&file, &bytes).unwrap();
    thread.call(message(GraphData::Upload(UploadId(77)))).unwrap();
    assert!(!file.exists(), "the server takes it");
    launch(&mut thread);
    assert_eq!(thread.get(memory, 1), [3000]);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn what_is_wrong_with_a_graph_is_told() {
    let (app, mut thread, store, add, memory) = started();
    let unknown = Callee::Function(FunctionId(99));
    let mut short = kernel(store, memory, 1);
    if let GraphWork::Kernel(kernel) = &mut short {
        kernel.params.0.truncate(8);
    }
    let refused = [
        (kernel(unknown, memory, 1), CuError::INVALID_HANDLE),
        (short, CuError::INVALID_VALUE),
        (copy(memory, 0x1000, 4), CuError::INVALID_VALUE),
        (copy(memory, memory + 4092, 8), CuError::INVALID_VALUE),
        (GraphWork::EventWait(EventId(99)), CuError::INVALID_HANDLE),
    ];
    for (work, error) in refused {
        assert_eq!(instantiate(&mut thread, &chain(vec![work.clone()])), Err(error), "{work:?}");
    }
    instantiate(&mut thread, &chain(vec![kernel(store, memory, 1), kernel(add, memory, 1)])).unwrap();
    assert_eq!(
        instantiate(&mut thread, &GraphPlan::default()),
        Err(CuError::INVALID_HANDLE),
        "the id is in use"
    );
    let mut update = |node, work| {
        thread.call(GraphUpdate { exec: GRAPH, changes: inline(&vec![GraphChange { node, work }]) })
    };
    assert_eq!(update(0, copy(memory, memory + 4, 4)), Err(CuError::GRAPH_EXEC_UPDATE_FAILURE));
    assert_eq!(update(2, kernel(store, memory, 1)), Err(CuError::INVALID_VALUE));
    assert_eq!(update(0, kernel(unknown, memory, 1)), Err(CuError::INVALID_HANDLE));
    // Bytes that are no plan: a node that waits for itself, and garbage.
    let mut circle = chain(vec![GraphWork::Empty]);
    circle.nodes[0].after = vec![GraphEdge { from: 0, from_port: 0, to_port: 0, kind: 0 }];
    for plan in [inline(&circle), GraphData::Inline(Bytes(vec![0xff; 40])), GraphData::Upload(UploadId(5))] {
        let message = GraphInstantiate { ctx: CTX, exec: GraphExecId(701), template: None, flags: 0, plan };
        assert!(thread.call(message).is_err());
    }
    launch(&mut thread);
    assert_eq!(thread.get(memory, 1), [2], "nothing of that has touched the graph that is there");
    drop(thread);
    let _ = app.kill();
}
