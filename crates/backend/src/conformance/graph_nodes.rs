use super::arrays::{desc, get, put};
use super::graphs::{chain, instantiate, kernel};
use super::rig::{BASIC, Rig, Shared, params};
use crate::{
    Backend, BoxSide, CopyBox, Fill, GraphConditional, GraphNode, GraphPlan, GraphWork, Pitched, RawTemplate,
    StreamArg,
};
use wire::{ConditionKind, CuError, GraphEdge, MemoryOperation, Until, Word};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_AD_FORMAT_UNSIGNED_INT32`.
const U32: u32 = 3;

pub(super) fn graphs_copy_arrays(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(NON_BLOCKING));
    let desc = desc([8, 4, 3], U32, 1, 0);
    let (one, other) =
        (backend.array_create(rig.ctx, &desc).unwrap(), backend.array_create(rig.ctx, &desc).unwrap());
    let words: Vec<u32> = (0..96).collect();
    put(&rig, one, &desc, &words);
    put(&rig, other, &desc, &[7; 96]);
    // Two rows of three words of two slices, to memory with gaps and from there to the other array; a row straight.
    let gaps = BoxSide::Memory(Pitched { address: rig.at(0), pitch: 64, rows: 3 });
    let copy = |dst, src, [width, height, depth]: [u64; 3]| {
        GraphWork::Copy(rig.ctx, CopyBox { dst, src, width, height, depth })
    };
    let add = rig.kernel(BASIC, "add_one");
    let plan = chain(vec![
        copy(gaps, BoxSide::Array(one, [8, 1, 1]), [12, 2, 2]),
        kernel(&rig, add, params(&[rig.at(0)], &[1])),
        copy(BoxSide::Array(other, [0, 0, 0]), gaps, [12, 2, 2]),
        copy(BoxSide::Array(other, [0, 3, 2]), BoxSide::Array(one, [0, 0, 0]), [32, 1, 1]),
    ]);
    let graph = instantiate(&rig, &plan);
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    let word = |x: usize, y: usize, z: usize| (z * 32 + y * 8 + x) as u32;
    let mut expected = vec![7; 96];
    for (z, y, x) in [0, 1]
        .into_iter()
        .flat_map(|z| [0, 1].map(|y| (z, y)))
        .flat_map(|(z, y)| [0, 1, 2].map(|x| (z, y, x)))
    {
        expected[word(x, y, z) as usize] = word(x + 2, y + 1, z + 1);
    }
    expected[0] += 1;
    (0..8).for_each(|x| expected[word(x, 3, 2) as usize] = x as u32);
    assert_eq!(get(&rig, other, &desc), expected);
    // Elsewhere in the same arrays.
    let change = copy(BoxSide::Array(other, [0, 3, 2]), BoxSide::Array(one, [0, 1, 0]), [32, 1, 1]);
    backend.graph_update(rig.ctx, graph, &[(3, change)]).unwrap();
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    (0..8).for_each(|x| expected[word(x, 3, 2) as usize] = 8 + x as u32);
    assert_eq!(get(&rig, other, &desc), expected);
    backend.graph_destroy(rig.ctx, graph).unwrap();
    for array in [one, other] {
        backend.array_destroy(rig.ctx, array).unwrap();
    }
}

pub(super) fn graphs_operate_on_words(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(NON_BLOCKING));
    let word = |address, value| Word { address, value, wide: false };
    let (gate, done) = (shared.address(0), shared.address(1));
    let add = rig.kernel(BASIC, "add_one");
    rig.put(rig.at(0), &[0]);
    rig.wait(StreamArg::Legacy);
    let operations = |turn| {
        let wait = MemoryOperation::Wait { word: word(gate, turn), until: Until::Reached };
        let write = MemoryOperation::Write { word: word(done, turn) };
        let wide =
            MemoryOperation::Write { word: Word { address: rig.at(64), value: turn << 32 | 5, wide: true } };
        [GraphWork::Operations(rig.ctx, vec![wait]), GraphWork::Operations(rig.ctx, vec![write, wide])]
    };
    let [first, last] = operations(1);
    let graph = instantiate(&rig, &chain(vec![first, kernel(&rig, add, params(&[rig.at(0)], &[1])), last]));
    for turn in 1..=20 {
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
        assert!(!backend.stream_query(rig.ctx, stream).unwrap(), "turn {turn} does not wait");
        shared.set(0, turn);
        rig.wait(stream);
        assert_eq!(shared.get(1), turn);
        assert_eq!(rig.get(rig.at(64), 2), [5, turn]);
        let [first, last] = operations(u64::from(turn) + 1);
        backend.graph_update(rig.ctx, graph, &[(0, first), (2, last)]).unwrap();
    }
    assert_eq!(rig.get(rig.at(0), 1), [20]);
    assert!(backend.graph_enable(rig.ctx, graph, 0, false).is_err(), "operations are always enabled");
    backend.graph_destroy(rig.ctx, graph).unwrap();
    let odd = GraphWork::Operations(rig.ctx, vec![MemoryOperation::Write { word: word(rig.at(2), 1) }]);
    assert_eq!(backend.graph_instantiate(rig.ctx, &chain(vec![odd]), 0), Err(CuError::INVALID_VALUE));
}

/// Kernels that set conditions.
const CONDITIONS: &str = include_str!("ptx/conditions.ptx");

fn conditional(rig: &Rig<'_>, handle: u64, kind: ConditionKind, bodies: &[u32], after: &[u32]) -> GraphNode {
    let conditional = GraphConditional { handle, kind, bodies: bodies.to_vec() };
    node(GraphWork::Conditional(rig.ctx, conditional), after)
}

fn node(work: GraphWork, after: &[u32]) -> GraphNode {
    let edge = |from: &u32| GraphEdge { from: *from, from_port: 0, to_port: 0, kind: 0 };
    GraphNode { work, after: after.iter().map(edge).collect() }
}

fn plan(template: RawTemplate, nodes: Vec<GraphNode>) -> GraphPlan {
    GraphPlan { nodes, template: Some(template) }
}

pub(super) fn conditions_choose_what_runs(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(NON_BLOCKING));
    let (set, count_down) = (rig.kernel(CONDITIONS, "set_condition"), rig.kernel(CONDITIONS, "count_down"));
    let add = rig.kernel(BASIC, "add_one");
    let template = backend.template_create(rig.ctx).unwrap();
    let condition = |initial| backend.template_condition(rig.ctx, template, initial).unwrap();
    let (choice, switch, repeat) = (condition(None), condition(None), condition(Some(1)));
    let word = |at: u64| params(&[rig.at(at * 4)], &[1]);
    let one = |at: u64, after: &[u32]| node(kernel(&rig, add, word(at)), after);
    // Words: 0 what the conditions are set to, 1 how often the loop runs; 2 to 7 what has run.
    let setting = |handle| kernel(&rig, set, params(&[handle, rig.at(0)], &[]));
    let nodes = vec![
        node(setting(choice), &[]),
        node(setting(switch), &[0]),
        conditional(&rig, choice, ConditionKind::If, &[1, 1], &[1]),
        one(2, &[]),
        one(3, &[]),
        conditional(&rig, switch, ConditionKind::Switch, &[1, 0, 2], &[2]),
        one(4, &[]),
        one(5, &[]),
        one(5, &[7]),
        // Its condition is 1 at the beginning; the kernel in it counts down, and ends it at 0.
        conditional(&rig, repeat, ConditionKind::While, &[3], &[5]),
        one(6, &[]),
        node(kernel(&rig, count_down, params(&[repeat, rig.at(4)], &[])), &[10]),
        node(GraphWork::Empty, &[11]),
        one(7, &[9]),
    ];
    let graph = instantiate(&rig, &plan(template, nodes.clone()));
    let run = |graph, value, times| {
        rig.put(rig.at(0), &[value, times, 0, 0, 0, 0, 0, 0]);
        rig.wait(StreamArg::Legacy);
        backend.graph_launch(rig.ctx, stream, graph).unwrap();
        rig.wait(stream);
        rig.get(rig.at(8), 6)
    };
    assert_eq!(run(graph, 0, 1), [0, 1, 1, 0, 1, 1]);
    assert_eq!(run(graph, 1, 3), [1, 0, 0, 0, 3, 1]);
    assert_eq!(run(graph, 2, 100), [1, 0, 0, 2, 100, 1]);
    assert_eq!(run(graph, 3, 2), [1, 0, 0, 0, 2, 1], "there is no such body");
    // A node of a body is changed like any other.
    backend.graph_update(rig.ctx, graph, &[(10, kernel(&rig, add, params(&[rig.at(24)], &[1])))]).unwrap();
    assert_eq!(run(graph, 0, 2), [0, 1, 1, 0, 2, 1]);
    let other = GraphConditional { handle: switch, kind: ConditionKind::While, bodies: vec![3] };
    let change = [(9, GraphWork::Conditional(rig.ctx, other))];
    assert_eq!(backend.graph_update(rig.ctx, graph, &change), Err(CuError::GRAPH_EXEC_UPDATE_FAILURE));
    assert!(
        backend.graph_instantiate(rig.ctx, &plan(template, nodes.clone()), 0).is_err(),
        "one at a time is made of a template"
    );
    backend.graph_destroy(rig.ctx, graph).unwrap();
    // Made again, with other nodes between the same conditional ones.
    let mut fewer = nodes;
    fewer[2] = node(fewer[2].work.clone(), &[0, 1]);
    fewer[10].work = GraphWork::Empty;
    let graph = instantiate(&rig, &plan(template, fewer));
    backend.template_destroy(rig.ctx, template).unwrap();
    assert_eq!(run(graph, 2, 5), [1, 0, 0, 2, 0, 1]);
    backend.graph_destroy(rig.ctx, graph).unwrap();
}

pub(super) fn conditions_are_inside_of_one_another(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(NON_BLOCKING));
    let count_down = rig.kernel(CONDITIONS, "count_down");
    let add = rig.kernel(BASIC, "add_one");
    let template = backend.template_create(rig.ctx).unwrap();
    let [outer, inner] = [0, 1].map(|_| backend.template_condition(rig.ctx, template, Some(1)).unwrap());
    // Word 0 counts the outer loop, word 1 the inner one, which word 2 is put back for; word 3 counts what is inside.
    let back = Fill { dst: rig.at(4), pitch: 4, element: 4, value: 3, width: 1, height: 1 };
    let set = rig.kernel(CONDITIONS, "set_condition");
    let nodes = vec![
        conditional(&rig, outer, ConditionKind::While, &[6], &[]),
        node(GraphWork::Fill(rig.ctx, back), &[]),
        node(kernel(&rig, set, params(&[inner, rig.at(8)], &[])), &[1]),
        conditional(&rig, inner, ConditionKind::While, &[2], &[2]),
        node(kernel(&rig, add, params(&[rig.at(12)], &[1])), &[]),
        node(kernel(&rig, count_down, params(&[inner, rig.at(4)], &[])), &[4]),
        node(kernel(&rig, count_down, params(&[outer, rig.at(0)], &[])), &[3]),
    ];
    rig.put(rig.at(0), &[5, 0, 1, 0]);
    rig.wait(StreamArg::Legacy);
    let graph = instantiate(&rig, &plan(template, nodes));
    backend.graph_launch(rig.ctx, stream, graph).unwrap();
    rig.wait(stream);
    assert_eq!(rig.get(rig.at(0), 4), [0, 0, 1, 15]);
    backend.graph_destroy(rig.ctx, graph).unwrap();
    backend.template_destroy(rig.ctx, template).unwrap();
}
