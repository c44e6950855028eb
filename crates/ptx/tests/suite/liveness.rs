//! The control-flow graph and liveness, by hand and against a plain model.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashSet;

use proptest::prelude::*;
use ptx::{
    BlockId, Cfg, Liveness,
    ast::{Body, Statement},
    parse,
};

fn body(statements: &str) -> Body {
    let text = format!(
        ".version 8.0 .target sm_80 .address_size 64 .func (.reg .b32 out) f(.reg .b32 in) {{
         .reg .b32 r<9>; .reg .pred p<9>; {statements} }}"
    );
    parse(&text).unwrap().functions().next().unwrap().body.clone().unwrap()
}

fn names(body: &Body, set: &ptx::BitSet) -> Vec<String> {
    let mut names: Vec<_> = set.registers().map(|reg| body.register(reg).name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn a_loop() {
    let body = body(
        "mov.b32 r0, 0; mov.b32 r1, in; mov.b32 r2, 5;
         LOOP: add.s32 r0, r0, r1; @p1 mov.b32 r3, r2; sub.s32 r1, r1, 1; setp.gt.s32 p0, r1, 0; @p0 bra LOOP;
         mov.b32 out, r3; ret;
         UNREACHED: mov.b32 r4, r5; brx.idx r4, TABLE;
         TABLE: .branchtargets LOOP, UNREACHED, LOOP;",
    );
    let cfg = Cfg::new(&body).unwrap();
    let successors: Vec<_> =
        cfg.blocks.iter().map(|b| b.successors.iter().map(|s| s.0).collect::<Vec<_>>()).collect();
    assert_eq!(successors, [vec![1], vec![1, 2], vec![], vec![1, 3]]);
    assert_eq!(cfg.blocks[1].predecessors, [BlockId(0), BlockId(1), BlockId(3)]);
    assert_eq!(cfg.blocks.iter().map(|b| b.exits).collect::<Vec<_>>(), [false, false, true, false]);
    assert!(Cfg::is_back_edge(BlockId(1), BlockId(1)) && !Cfg::is_back_edge(BlockId(0), BlockId(1)));

    let live = Liveness::new(&body, &cfg).unwrap();
    // r3 is written under a guard only, so its first value matters; r0 is never read outside its own sum.
    assert_eq!(names(&body, &live.live_in(BlockId(0))), ["in", "p1", "r3"]);
    assert_eq!(names(&body, &live.live_in(BlockId(1))), ["p1", "r0", "r1", "r2", "r3"]);
    assert_eq!(names(&body, &live.live_in(BlockId(2))), ["r3"]);
    assert_eq!(names(&body, &live.live_out(BlockId(2))), ["out"]);
    let ret = cfg.blocks[2].statements.end - 1;
    assert_eq!(names(&body, &live.live_before(&body, &cfg, BlockId(2), ret)), ["out"]);
}

#[test]
fn operands_that_are_not_what_they_seem() {
    let reads = |statements: &str| {
        let body = body(statements);
        let cfg = Cfg::new(&body).unwrap();
        names(&body, &Liveness::new(&body, &cfg).unwrap().live_in(BlockId(0)))
    };
    // `out` is in the list where nothing writes it: the function returns it.
    assert_eq!(reads("mov.b32 out, 0; bar.sync r0, r1;"), ["r0", "r1"]);
    assert_eq!(reads("bar.red.popc.u32 out, r0, r1, !p0;"), ["p0", "r0", "r1"]);
    assert_eq!(reads("st.global.v2.b32 [r0], {r1, out};"), ["out", "r0", "r1"]);
    assert_eq!(reads("mov.b64 {out, r1}, r2;"), ["r2"]);
    assert_eq!(reads("shfl.sync.idx.b32 out|p0, r0, 0, 31, -1;"), ["r0"]);
    assert_eq!(reads("@p0 mov.b32 out, 1;"), ["out", "p0"]);
    assert_eq!(reads("vadd.s32.s32.s32 out.b0, r0.h0, r1, r2;"), ["out", "r0", "r1", "r2"]);
    assert_eq!(reads("nanosleep.u32 out;"), ["out"]);
}

/// A register is live before a statement if some path from there reads it before a sure write.
fn live_by_search(body: &Body, cfg: &Cfg, block: BlockId, register: usize) -> bool {
    let mut seen = HashSet::new();
    let mut work = vec![block];
    'block: while let Some(block) = work.pop() {
        if !seen.insert(block) {
            continue;
        }
        for statement in &body.statements[cfg.blocks[block.index()].statements.clone()] {
            let Statement::Instruction(instruction) = statement else { continue };
            let (mut reads, mut writes) = (false, false);
            instruction.for_each_register(|reg, access| {
                reads |= reg.index() == register && access.reads();
                writes |= reg.index() == register && access.writes();
            });
            if reads {
                return true;
            }
            if writes && instruction.guard.is_none() {
                continue 'block;
            }
        }
        let block = &cfg.blocks[block.index()];
        if block.exits && body.returned().any(|reg| reg.index() == register) {
            return true;
        }
        work.extend(&block.successors);
    }
    false
}

fn statement() -> impl Strategy<Value = String> {
    let r = || 0..6u8;
    prop_oneof![
        (r(), r(), r()).prop_map(|(a, b, c)| format!("add.s32 r{a}, r{b}, r{c};")),
        (r(), r(), r()).prop_map(|(a, b, c)| format!("@p{a} mov.b32 r{b}, r{c};")),
        (r(), r()).prop_map(|(a, b)| format!("setp.eq.s32 p{a}|p{a}, r{b}, 0;")),
        (r(), r()).prop_map(|(a, b)| format!("st.global.b32 [r{a}], r{b};")),
        (r(), r()).prop_map(|(a, b)| format!("@!p{a} bra L{b};")),
        r().prop_map(|a| format!("bra L{a};")),
        (r(), r()).prop_map(|(a, b)| format!("@p{a} brx.idx r{b}, T;")),
        r().prop_map(|a| format!("mov.b32 out, r{a};")),
        Just("ret;".to_owned()),
    ]
}

proptest! {
    #[test]
    fn equals_a_search_of_paths(parts in prop::collection::vec(prop::collection::vec(statement(), 0..5), 6)) {
        let mut text = "T: .branchtargets L1, L4;".to_owned();
        for (label, part) in parts.iter().enumerate() {
            text.push_str(&format!("L{label}: {}", part.concat()));
        }
        let body = body(&text);
        let cfg = Cfg::new(&body).unwrap();
        let live = Liveness::new(&body, &cfg).unwrap();
        for block in (0..cfg.blocks.len()).map(|index| BlockId(index as u32)) {
            let set = live.live_in(block);
            for register in 0..body.registers.len() {
                prop_assert_eq!(set.contains(register), live_by_search(&body, &cfg, block, register));
            }
            // Walking the block backwards ends where the block begins.
            let mut first = None;
            live.for_each_backward(&body, &cfg, block, |index, _| first = Some(index));
            prop_assert_eq!(first, Some(cfg.blocks[block.index()].statements.start));
            prop_assert_eq!(live.live_before(&body, &cfg, block, first.unwrap()), set);
        }
    }
}
