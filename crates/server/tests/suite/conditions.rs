//! Conditions of graphs: their values come back, whatever was there between them; what a plan may do with them.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread, rehearse};
use wire::*;

const CONDITIONS: &str = include_str!("../../../backend/src/conformance/ptx/conditions.ptx");
const GRAPH: GraphExecId = GraphExecId(700);

fn inline(value: &impl Wire) -> GraphData {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    GraphData::Inline(Bytes(bytes))
}

fn condition(thread: &mut Thread, template: u32, initial: Option<u32>) -> u64 {
    thread.call(GraphCondition { ctx: CTX, template: GraphTemplateId(template), initial }).unwrap()
}

fn kernel(callee: Callee, params: &[u8]) -> GraphWork {
    GraphWork::Kernel(GraphKernel {
        ctx: CTX,
        callee,
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        attributes: vec![],
        params: Bytes(params.to_vec()),
    })
}

fn node(work: GraphWork, after: &[u32]) -> GraphNode {
    let edge = |from: &u32| GraphEdge { from: *from, from_port: 0, to_port: 0, kind: 0 };
    GraphNode { work, after: after.iter().map(edge).collect() }
}

fn choice(handle: u64, kind: ConditionKind, bodies: &[u32]) -> GraphWork {
    GraphWork::Conditional(GraphConditional { ctx: CTX, handle, kind, bodies: bodies.to_vec() })
}

fn instantiate(thread: &mut Thread, template: Option<u32>, nodes: Vec<GraphNode>) -> Result<(), CuError> {
    let template = template.map(GraphTemplateId);
    thread.call(GraphInstantiate {
        ctx: CTX,
        exec: GRAPH,
        template,
        flags: 0,
        plan: inline(&GraphPlan { nodes }),
    })
}

/// A loop that counts the word at `memory` down, adds to the one behind it each time, and then to the third.
fn counting(thread: &mut Thread, app: &mut App, handle: u64, memory: u64) -> Vec<GraphNode> {
    let conditions = app.load(thread, 2, CONDITIONS);
    let basic = app.load(thread, 3, BASIC);
    let (count, add) = (thread.function(conditions, 4, "count_down"), thread.function(basic, 5, "add_one"));
    let of = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let one = |at: u64| [&at.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
    vec![
        node(choice(handle, ConditionKind::While, &[2]), &[]),
        node(kernel(add, &one(memory + 4)), &[]),
        node(kernel(count, &of(handle, memory)), &[1]),
        node(kernel(add, &one(memory + 8)), &[0]),
    ]
}

fn launch(thread: &mut Thread) {
    thread.send(GraphLaunch { ctx: CTX, stream: Stream::Legacy, exec: GRAPH, wide: false });
}

#[test]
fn conditions_have_the_values_that_they_had() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let memory = thread.alloc(64);
    // The second template's second condition was made behind some that are gone, and so was the last template.
    condition(&mut thread, 20, None);
    let first = condition(&mut thread, 21, Some(1));
    let gone = [22, 23].map(|template| condition(&mut thread, template, None));
    thread.send(GraphTemplateDestroy { template: GraphTemplateId(20) });
    let second = condition(&mut thread, 21, Some(7));
    let third = condition(&mut thread, 21, None);
    let last = condition(&mut thread, 24, None);
    thread.send(GraphTemplateDestroy { template: GraphTemplateId(22) });
    thread.send(GraphTemplateDestroy { template: GraphTemplateId(23) });
    thread.synchronize().unwrap();
    assert!(second < first && third > gone[1], "a free value is given again, where there is one");
    let mut nodes = counting(&mut thread, &mut app, first, memory);
    nodes.push(node(choice(second, ConditionKind::Switch, &[0]), &[3]));
    nodes.push(node(choice(third, ConditionKind::If, &[0, 0]), &[3]));
    instantiate(&mut thread, Some(21), nodes).unwrap();
    // The program has let go of the graph; the executable one goes on.
    thread.send(GraphTemplateDestroy { template: GraphTemplateId(21) });
    let run = |thread: &mut Thread, times| {
        thread.put(memory, &[times, 0, 0]);
        launch(thread);
        assert_eq!(thread.get(memory, 3), [0, times, 1]);
    };
    run(&mut thread, 3);

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, state) = images.capture(&app.session);
    let (dir, addresses) = app.kill();
    drop(thread);
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    run(&mut thread, 4);
    // What comes next is what would have come next.
    let next = condition(&mut thread, 25, None);
    assert!(![first, second, third, last].contains(&next));
    thread.send(GraphExecDestroy { exec: GRAPH });
    let again = condition(&mut thread, 24, None);
    assert!(again != last && again != next);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), None);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn what_is_wrong_with_conditions_is_told() {
    let (mut app, mut thread) = App::with_context();
    let memory = thread.alloc(64);
    let (one, other) = (condition(&mut thread, 20, Some(1)), condition(&mut thread, 21, None));
    let good = counting(&mut thread, &mut app, one, memory);
    let with = |at: usize, work: GraphWork| {
        let mut nodes = good.clone();
        nodes[at].work = work;
        nodes
    };
    let copies = |bytes| {
        let side = CopySide::Memory(Pitched { address: memory, pitch: bytes, rows: 1 });
        GraphWork::Copy(GraphCopy { ctx: CTX, dst: side, src: side, width: bytes, height: 1, depth: 1 })
    };
    for (template, nodes) in [
        (None, good.clone()),
        (Some(21), good.clone()),
        (Some(20), with(0, choice(other, ConditionKind::While, &[2]))),
        (Some(20), with(3, choice(one, ConditionKind::While, &[0]))),
        (Some(20), with(2, GraphWork::Host(CallbackId(9)))),
        (Some(20), with(1, GraphWork::EventWait(EventId(9)))),
        (Some(20), with(1, copies(128))),
    ] {
        assert_eq!(instantiate(&mut thread, template, nodes), Err(CuError::INVALID_VALUE));
    }
    assert_eq!(instantiate(&mut thread, Some(22), good.clone()), Err(CuError::INVALID_HANDLE));
    instantiate(&mut thread, Some(20), good.clone()).unwrap();
    let again = GraphInstantiate {
        ctx: CTX,
        exec: GraphExecId(701),
        template: Some(GraphTemplateId(20)),
        flags: 0,
        plan: inline(&GraphPlan { nodes: good }),
    };
    assert_eq!(thread.call(again), Err(CuError::INVALID_VALUE), "there is one executable graph at a time");
    let change = inline(&vec![GraphChange { node: 0, work: choice(one, ConditionKind::If, &[1 << 30]) }]);
    let update = |thread: &mut Thread| thread.call(GraphUpdate { exec: GRAPH, changes: change.clone() });
    assert_eq!(update(&mut thread), Err(CuError::GRAPH_EXEC_UPDATE_FAILURE));
    // No more so where the graph is only a plan, since its code is gone.
    thread.call(ModuleUnload { module: ModuleId(3) }).unwrap();
    assert_eq!(update(&mut thread), Err(CuError::GRAPH_EXEC_UPDATE_FAILURE));
    // With the context all of it goes.
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    let gone = GraphCondition { ctx: CTX, template: GraphTemplateId(20), initial: None };
    assert_eq!(thread.call(gone), Err(CuError::INVALID_CONTEXT));
    drop(thread);
    let _ = app.kill();
}
