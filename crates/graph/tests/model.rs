//! Graphs keep their shape, whatever is done to them.
#![allow(clippy::unwrap_used)]

use graph::{Body, Difference, Edge, EdgeData, Error, GraphId, Graphs, NodeId, What};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn behind(node: NodeId) -> Edge {
    Edge { node, data: EdgeData::default() }
}

/// A graph of `count` nodes, each waiting for some made before it, as `edges` says; its work is its number.
fn build(graphs: &mut Graphs<usize>, count: usize, edges: &[(usize, usize)]) -> (GraphId, Vec<NodeId>) {
    let graph = graphs.create();
    let nodes: Vec<NodeId> = (0..count).map(|work| graphs.add(graph, &[], work).unwrap()).collect();
    for (a, b) in edges {
        let (a, b) = (a % count, b % count);
        // Edges that are there already are refused, and the graph stays as it is.
        let _ = graphs.connect(graph, &[(nodes[a.min(b)], nodes[a.max(b)], EdgeData::default())]);
    }
    (graph, nodes)
}

fn shape() -> impl Strategy<Value = (usize, Vec<(usize, usize)>)> {
    (1..20usize, prop::collection::vec((any::<usize>(), any::<usize>()), 0..40))
}

/// Every end of an edge is known at the other.
fn is_consistent(graphs: &Graphs<usize>, graph: GraphId) {
    for id in graphs.nodes(graph).unwrap() {
        let node = graphs.node(id).unwrap();
        for edge in &node.dependencies {
            let other = graphs.node(edge.node).unwrap();
            assert_eq!(other.graph, graph);
            assert!(other.dependents.contains(&Edge { node: id, data: edge.data }));
        }
        for edge in &node.dependents {
            assert!(graphs.node(edge.node).unwrap().dependencies.iter().any(|back| back.node == id));
        }
    }
}

proptest! {
    #[test]
    fn nodes_run_behind_what_they_wait_for((count, edges) in shape()) {
        let mut graphs = Graphs::default();
        let (graph, _) = build(&mut graphs, count, &edges);
        is_consistent(&graphs, graph);
        let order = graphs.in_order(graph).unwrap().unwrap();
        prop_assert_eq!(order.len(), count);
        let place: BTreeMap<_, _> = order.iter().enumerate().map(|(at, node)| (*node, at)).collect();
        for (from, to, _) in graphs.edges(graph).unwrap() {
            prop_assert!(place[&from] < place[&to]);
            prop_assert!(graphs.reaches([to], from) && !graphs.reaches([from], to));
        }
        for (number, step) in graphs.steps(graph).unwrap().unwrap().into_iter().enumerate() {
            prop_assert!(step.after.iter().all(|(before, _)| *before < number));
        }
    }

    #[test]
    fn a_clone_is_the_same_and_apart((count, edges) in shape(), gone in any::<prop::sample::Index>()) {
        let mut graphs = Graphs::default();
        let (graph, nodes) = build(&mut graphs, count, &edges);
        let clone = graphs.clone_graph(graph).unwrap();
        is_consistent(&graphs, clone);
        let pairs = graphs.pair(graph, clone, &|a, b| a == b).unwrap().unwrap();
        prop_assert_eq!(pairs.len(), count);
        for (node, copy) in pairs {
            prop_assert_eq!(graphs.find_in_clone(node, clone), Ok(copy));
        }
        let gone = nodes[gone.index(count)];
        let copy = graphs.find_in_clone(gone, clone).unwrap();
        let _ = graphs.remove(gone).unwrap();
        is_consistent(&graphs, graph);
        prop_assert!(graphs.node(copy).is_ok());
        prop_assert_eq!(graphs.pair(graph, clone, &|_, _| true).unwrap(), Err(Difference::Topology(None)));
        let _ = graphs.destroy(graph).unwrap();
        is_consistent(&graphs, clone);
        prop_assert_eq!(graphs.nodes(clone).unwrap().len(), count);
    }
}

#[test]
fn wrong_edges_are_refused_and_change_nothing() {
    let mut graphs = Graphs::default();
    let (graph, nodes) = build(&mut graphs, 3, &[(0, 1)]);
    let (_, others) = build(&mut graphs, 1, &[]);
    let plain = EdgeData::default();
    let early = EdgeData { from_port: 1, to_port: 0, kind: 1 };
    for (edges, error) in [
        (vec![(nodes[0], nodes[1], plain)], Error::Duplicate),
        (vec![(nodes[1], nodes[2], plain), (nodes[1], nodes[2], early)], Error::Duplicate),
        (vec![(nodes[1], nodes[2], plain), (nodes[2], nodes[2], plain)], Error::Itself),
        (vec![(nodes[1], nodes[2], plain), (others[0], nodes[2], plain)], Error::Elsewhere),
    ] {
        assert_eq!(graphs.connect(graph, &edges), Err(error));
        assert_eq!(graphs.edges(graph).unwrap().len(), 1);
    }
    assert_eq!(graphs.disconnect(graph, &[(nodes[1], nodes[0], None)]), Err(Error::NoEdge));
    assert_eq!(graphs.disconnect(graph, &[(nodes[0], nodes[1], Some(early))]), Err(Error::NoEdge));
    graphs.disconnect(graph, &[(nodes[0], nodes[1], Some(plain))]).unwrap();
    assert_eq!(graphs.edges(graph).unwrap(), []);
    assert_eq!(graphs.add(graph, &[behind(nodes[0]), behind(nodes[0])], 9), Err(Error::Duplicate));
    assert_eq!(graphs.add(graph, &[behind(others[0])], 9), Err(Error::Elsewhere));
}

#[test]
fn a_circle_is_found() {
    let mut graphs = Graphs::default();
    let (graph, nodes) = build(&mut graphs, 4, &[(0, 1), (1, 2), (2, 3)]);
    graphs.connect(graph, &[(nodes[3], nodes[1], EdgeData::default())]).unwrap();
    assert_eq!(graphs.in_order(graph), Ok(Err(nodes[1])));
    assert_eq!(graphs.steps(graph), Ok(Err(nodes[1])));
}

#[test]
fn children_are_laid_out_in_their_parents_and_go_with_them() {
    let mut graphs = Graphs::default();
    let (child, _) = build(&mut graphs, 2, &[]);
    let graph = graphs.create();
    let first = graphs.add(graph, &[], 10).unwrap();
    let middle = graphs.add_child(graph, &[behind(first)], child).unwrap();
    let last = graphs.add(graph, &[behind(middle)], 11).unwrap();
    let _ = graphs.destroy(child).unwrap();
    let Body::Child(own) = graphs.node(middle).unwrap().body else { panic!("it is a child node") };
    assert_eq!(graphs.destroy(own), Err(Error::Owned));
    let steps = graphs.steps(graph).unwrap().unwrap();
    let told: Vec<_> =
        steps.iter().map(|step| (step.what.clone(), step.after.iter().map(|a| a.0).collect())).collect();
    let expected: Vec<(What, Vec<usize>)> = vec![
        (What::Work, vec![]),
        (What::Begin, vec![0]),
        (What::Work, vec![1]),
        (What::Work, vec![1]),
        (What::End, vec![2, 3]),
        (What::Work, vec![4]),
    ];
    assert_eq!(told, expected);
    assert_eq!(steps[5].node, last);
    let _ = graphs.destroy(graph).unwrap();
    assert!(graphs.node(first).is_err() && !graphs.contains(own));
    // An empty child is as if it were not there.
    let (graph, nothing) = (graphs.create(), graphs.create());
    let first = graphs.add(graph, &[], 10).unwrap();
    let middle = graphs.add_child(graph, &[behind(first)], nothing).unwrap();
    graphs.add(graph, &[behind(middle)], 11).unwrap();
    let steps = graphs.steps(graph).unwrap().unwrap();
    assert_eq!(steps.iter().map(|step| step.after.len()).collect::<Vec<_>>(), [0, 1, 1, 1]);
}

#[test]
fn a_difference_is_named() {
    let mut graphs = Graphs::default();
    let (old, _) = build(&mut graphs, 3, &[(0, 1), (1, 2)]);
    let (new, nodes) = build(&mut graphs, 3, &[(0, 1), (0, 2)]);
    assert_eq!(graphs.pair(old, new, &|_, _| true).unwrap(), Err(Difference::Topology(Some(nodes[2]))));
    let (wider, nodes) = build(&mut graphs, 3, &[(0, 2), (1, 2)]);
    assert_eq!(graphs.pair(old, wider, &|_, _| true).unwrap(), Err(Difference::Topology(Some(nodes[2]))));
    // Two that wait for one, and for one each: where it is one, it cannot be two.
    let (one, _) = build(&mut graphs, 4, &[(0, 2), (0, 3), (1, 3)]);
    let (two, nodes) = build(&mut graphs, 4, &[(0, 2), (1, 3), (0, 3)]);
    assert_eq!(graphs.pair(one, two, &|_, _| true).unwrap(), Err(Difference::Edge(nodes[3], nodes[1])),);
    let (same, nodes) = build(&mut graphs, 3, &[(0, 1), (1, 2)]);
    assert_eq!(graphs.pair(old, same, &|_, b| *b != 1).unwrap(), Err(Difference::Kind(nodes[1])));
}

#[test]
fn nodes_are_paired_by_their_edges_and_not_by_when_they_were_made() {
    let mut graphs = Graphs::default();
    let plain = EdgeData::default();
    let pairs = |graphs: &Graphs<usize>, old, new| {
        let pairs = graphs.pair(old, new, &|_, _| true).unwrap().unwrap();
        let work = |node| *graphs.node(node).unwrap().body.work().unwrap();
        let mut works: Vec<_> = pairs.into_iter().map(|(old, new)| (work(old), work(new))).collect();
        works.sort_unstable();
        works
    };
    // 2 waits for 0 and 1, in this order; in the other graph for 1 and 0.
    let (old, _) = build(&mut graphs, 3, &[(0, 2), (1, 2)]);
    let (new, _) = build(&mut graphs, 3, &[(1, 2), (0, 2)]);
    assert_eq!(pairs(&graphs, old, new), [(0, 1), (1, 0), (2, 2)]);
    // The first node is the last that comes to have none behind it, in a copy too.
    let (old, _) = build(&mut graphs, 2, &[]);
    let (new, nodes) = build(&mut graphs, 3, &[]);
    graphs.connect(new, &[(nodes[0], nodes[1], plain)]).unwrap();
    let _ = graphs.remove(nodes[1]).unwrap();
    assert_eq!(pairs(&graphs, old, new), [(0, 2), (1, 0)]);
    let copy = graphs.clone_graph(new).unwrap();
    assert_eq!(pairs(&graphs, old, copy), [(0, 2), (1, 0)]);
}

#[test]
fn a_moved_graph_is_its_nodes_for_good() {
    let mut graphs = Graphs::default();
    let (child, nodes) = build(&mut graphs, 1, &[]);
    let graph = graphs.create();
    assert_eq!(graphs.move_child(child, &[], child), Err(Error::Itself));
    let inner = graphs.create();
    let node = graphs.move_child(graph, &[], child).unwrap();
    graphs.move_child(child, &[], inner).unwrap();
    assert_eq!(graphs.move_child(inner, &[], graph), Err(Error::Itself));
    assert_eq!(graphs.move_child(graph, &[], inner), Err(Error::Owned));
    assert_eq!(graphs.destroy(child), Err(Error::Owned));
    assert!(graphs.is_bound(child).unwrap() && !graphs.is_bound(graph).unwrap());
    assert_eq!(graphs.with_parents(inner).collect::<Vec<_>>(), [inner, child, graph]);
    let steps = graphs.steps(graph).unwrap().unwrap();
    assert_eq!(steps[1].node, nodes[0], "it is the graph itself that runs");
    let _ = graphs.remove(node).unwrap();
    assert!(!graphs.contains(inner) && graphs.node(nodes[0]).is_err());
}

#[test]
fn what_a_choice_decides_about_stands_behind_it_and_apart() {
    let mut graphs = Graphs::default();
    let (child, _) = build(&mut graphs, 2, &[(0, 1)]);
    let graph = graphs.create();
    let first = graphs.add(graph, &[], 10).unwrap();
    let mut told = Vec::new();
    let choice = graphs.add_choice(graph, &[behind(first)], 2, |own| {
        told = own.to_vec();
        11
    });
    let choice = choice.unwrap();
    let last = graphs.add(graph, &[behind(choice)], 12).unwrap();
    assert_eq!(graphs.node(choice).unwrap().body.graphs(), told);
    let inside = graphs.add_child(told[0], &[], child).unwrap();
    graphs.add(told[0], &[behind(inside)], 20).unwrap();
    graphs.add_choice(told[1], &[], 1, |_| 30).unwrap();
    graphs.add(told[1], &[], 31).unwrap();
    let copy = graphs.clone_graph(graph).unwrap();
    assert!(graphs.pair(graph, copy, &|a, b| a == b).unwrap().is_ok());
    for of in [graph, copy] {
        let steps = graphs.steps(of).unwrap().unwrap();
        let after: Vec<Vec<usize>> =
            steps.iter().map(|step| step.after.iter().map(|after| after.0).collect()).collect();
        let expected: Vec<Vec<usize>> =
            vec![vec![], vec![0], vec![], vec![2], vec![3], vec![4], vec![5], vec![], vec![], vec![1]];
        assert_eq!(after, expected);
        assert_eq!((&steps[1].what, &steps[7].what), (&What::Choice(vec![5, 2]), &What::Choice(vec![0])));
    }
    assert_eq!(graphs.all_work(graph).len(), 8);
    assert_eq!(graphs.steps(graph).unwrap().unwrap()[9].node, last);
    // In a child, nothing waits for what is inside of a choice.
    let outer = graphs.create();
    graphs.add_child(outer, &[], graph).unwrap();
    let steps = graphs.steps(outer).unwrap().unwrap();
    assert_eq!(steps.last().unwrap().after.iter().map(|after| after.0).collect::<Vec<_>>(), [10]);
    let _ = graphs.remove(choice).unwrap();
    assert!(!graphs.contains(told[0]) && graphs.node(inside).is_err());
}

#[test]
fn user_objects_end_with_their_last_reference() {
    let mut graphs = Graphs::<usize>::default();
    let graph = graphs.create();
    let object = graphs.create_object(2);
    graphs.retain_in_graph(graph, object, 1, true).unwrap();
    assert!(graphs.holds_objects(graph));
    assert_eq!(graphs.release_object(object, 2), Err(Error::References), "one is the graph's");
    let clone = graphs.clone_graph(graph).unwrap();
    assert_eq!(graphs.release_object(object, 1).unwrap().0, []);
    assert_eq!(graphs.destroy(graph).unwrap().0, []);
    assert_eq!(graphs.release_in_graph(clone, object, 2), Err(Error::References));
    assert_eq!(graphs.destroy(clone).unwrap().0, [object]);
    assert_eq!(graphs.retain_object(object, 1), Err(Error::NoObject));
}

#[test]
fn user_objects_are_taken_over_from_another_graph() {
    let mut graphs: Graphs<usize> = Graphs::default();
    let (exec, inner, source) = (graphs.create(), graphs.create(), graphs.create());
    let [old, deep, new] = [1, 1, 1].map(|count| graphs.create_object(count));
    graphs.retain_in_graph(exec, old, 1, true).unwrap();
    graphs.retain_in_graph(inner, deep, 1, true).unwrap();
    graphs.add_child(exec, &[], inner).unwrap();
    assert_eq!(graphs.destroy(inner).unwrap().0, []);
    let child = graphs.create();
    graphs.retain_in_graph(child, new, 1, true).unwrap();
    graphs.add_child(source, &[], child).unwrap();
    assert_eq!(graphs.destroy(child).unwrap().0, []);
    let holder = graphs.replace_objects(exec, source).unwrap().unwrap();
    assert_eq!(graphs.replace_objects(exec, source).unwrap(), None, "nothing changes");
    assert_eq!(graphs.destroy(source).unwrap().0, [], "the other graph has it too");
    let mut released = graphs.destroy(holder).unwrap().0;
    released.sort_unstable();
    assert_eq!(released, [old, deep]);
    assert_eq!(graphs.destroy(exec).unwrap().0, [new]);
}
