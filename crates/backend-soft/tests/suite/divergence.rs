//! Random programs with nested branches and loops: 32 lanes that diverge and meet again compute what each would alone.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;

use crate::common::Param::U64;
use crate::common::{BACKEND, Gpu};
use backend::Backend;
use proptest::prelude::*;

/// Registers of a program.
const REGISTERS: usize = 6;
/// Threads: two warps, the second not full.
const THREADS: u32 = 50;

#[derive(Clone, Debug)]
enum Statement {
    /// `d = a op b`
    Compute(usize, Op, usize, usize),
    /// Adds the register to a sum that all lanes of the warp share.
    Tell(usize),
    /// By the lowest bits of a register.
    If(usize, Vec<Statement>, Vec<Statement>),
    /// As often as the low bits of a register say, counted in a register of its own.
    Loop(usize, Vec<Statement>),
    /// Leaves the innermost loop if the register is odd.
    Break(usize),
    /// Ends the thread if the low bits are all ones.
    Exit(usize),
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    Sub,
    Mul,
    Xor,
    Shr,
}

fn statements(depth: u32) -> BoxedStrategy<Vec<Statement>> {
    let register = 0..REGISTERS;
    let op = prop_oneof![Just(Op::Add), Just(Op::Sub), Just(Op::Mul), Just(Op::Xor), Just(Op::Shr)];
    let compute = (register.clone(), op, register.clone(), register.clone())
        .prop_map(|(d, op, a, b)| Statement::Compute(d, op, a, b));
    let simple = prop_oneof![
        8 => compute,
        1 => register.clone().prop_map(Statement::Tell),
        1 => register.clone().prop_map(Statement::Break),
        1 => register.clone().prop_map(Statement::Exit),
    ];
    let one = if depth == 0 {
        simple.boxed()
    } else {
        let inner = || statements(depth - 1);
        let branch = (register.clone(), inner(), inner()).prop_map(|(r, yes, no)| Statement::If(r, yes, no));
        let repeat = (register, inner()).prop_map(|(r, body)| Statement::Loop(r, body));
        prop_oneof![4 => simple, 2 => branch, 2 => repeat].boxed()
    };
    prop::collection::vec(one, 1..5).boxed()
}

/// How a list of statements ended.
#[derive(PartialEq)]
enum End {
    Through,
    Broke,
    Exited,
}

fn evaluate(list: &[Statement], r: &mut [u32; REGISTERS], told: &mut u32) -> End {
    for statement in list {
        let end = match statement {
            Statement::Compute(d, op, a, b) => {
                let (a, b) = (r[*a], r[*b]);
                r[*d] = match op {
                    Op::Add => a.wrapping_add(b),
                    Op::Sub => a.wrapping_sub(b),
                    Op::Mul => a.wrapping_mul(b),
                    Op::Xor => a ^ b,
                    Op::Shr => a.checked_shr(b).unwrap_or(0),
                };
                End::Through
            }
            Statement::Tell(a) => {
                *told = told.wrapping_add(r[*a]);
                End::Through
            }
            Statement::If(a, yes, no) => evaluate(if r[*a] & 3 == 0 { yes } else { no }, r, told),
            Statement::Loop(a, body) => {
                let mut end = End::Through;
                for _ in 0..r[*a] & 7 {
                    end = evaluate(body, r, told);
                    if end != End::Through {
                        break;
                    }
                }
                if end == End::Exited { End::Exited } else { End::Through }
            }
            Statement::Break(a) if r[*a] & 1 != 0 => End::Broke,
            Statement::Exit(a) if r[*a] & 15 == 15 => End::Exited,
            Statement::Break(_) | Statement::Exit(_) => End::Through,
        };
        if end != End::Through {
            return end;
        }
    }
    End::Through
}

/// Appends PTX; `labels` counts labels and loop counters, `out` is where a break goes.
fn emit(list: &[Statement], text: &mut String, labels: &mut u32, out: &str) {
    for statement in list {
        *labels += 1;
        let n = *labels;
        match statement {
            Statement::Compute(d, op, a, b) => {
                let op = match op {
                    Op::Add => "add.u32",
                    Op::Sub => "sub.u32",
                    Op::Mul => "mul.lo.u32",
                    Op::Xor => "xor.b32",
                    Op::Shr => "shr.u32",
                };
                writeln!(text, "{op} %r{d}, %r{a}, %r{b};").unwrap();
            }
            Statement::Tell(a) => writeln!(text, "red.global.add.u32 [%q2], %r{a};").unwrap(),
            Statement::If(a, yes, no) => {
                writeln!(
                    text,
                    "and.b32 %t{n}, %r{a}, 3;\nsetp.ne.u32 %p{n}, %t{n}, 0;\n@%p{n} bra $else{n};"
                )
                .unwrap();
                emit(yes, text, labels, out);
                writeln!(text, "bra.uni $end{n};\n$else{n}:").unwrap();
                emit(no, text, labels, out);
                writeln!(text, "$end{n}:").unwrap();
            }
            Statement::Loop(a, body) => {
                writeln!(
                    text,
                    "and.b32 %t{n}, %r{a}, 7;\n$top{n}:\nsetp.eq.u32 %p{n}, %t{n}, 0;\n@%p{n} bra $end{n};"
                )
                .unwrap();
                writeln!(text, "sub.u32 %t{n}, %t{n}, 1;").unwrap();
                emit(body, text, labels, &format!("$end{n}"));
                writeln!(text, "bra $top{n};\n$end{n}:").unwrap();
            }
            Statement::Break(a) => {
                writeln!(text, "and.b32 %t{n}, %r{a}, 1;\nsetp.ne.u32 %p{n}, %t{n}, 0;\n@%p{n} bra {out};")
                    .unwrap();
            }
            Statement::Exit(a) => {
                writeln!(
                    text,
                    "and.b32 %t{n}, %r{a}, 15;\nsetp.eq.u32 %p{n}, %t{n}, 15;\n@%p{n} bra $store;"
                )
                .unwrap();
            }
        }
    }
}

fn module(program: &[Statement]) -> String {
    let (mut body, mut labels) = (String::new(), 0);
    emit(program, &mut body, &mut labels, "$store");
    let count = labels + 1;
    let seeds: String =
        (0..REGISTERS).map(|i| format!("mad.lo.u32 %r{i}, %r9, {}, {};\n", 2 * i + 1, i * i)).collect();
    let stores: String = (0..REGISTERS).map(|i| format!("st.global.u32 [%q1+{}], %r{i};\n", 4 * i)).collect();
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 sum)\n{{\n\
         .reg .b32 %r<10>;\n.reg .b32 %t<{count}>;\n.reg .pred %p<{count}>;\n.reg .b64 %q<4>;\n\
         mov.u32 %r9, %tid.x;\nld.param.u64 %q1, [out];\nld.param.u64 %q2, [sum];\n\
         mul.wide.u32 %q3, %r9, {};\nadd.u64 %q1, %q1, %q3;\n{seeds}{body}$store:\n{stores}ret;\n}}\n",
        4 * REGISTERS
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn lanes_compute_what_each_would_alone(program in statements(4)) {
        let gpu = Gpu::new(&module(&program));
        let results = gpu.alloc(u64::from(THREADS) * 4 * REGISTERS as u64);
        let sum = gpu.alloc(4);
        gpu.run("k", [1; 3], [THREADS, 1, 1], 0, &[U64(results), U64(sum)]).unwrap();
        let got = gpu.download::<u32>(results, THREADS as usize * REGISTERS);
        let mut told = 0;
        for (thread, got) in got.chunks(REGISTERS).enumerate() {
            let mut r = std::array::from_fn(|i| (thread * (2 * i + 1) + i * i) as u32);
            evaluate(&program, &mut r, &mut told);
            prop_assert_eq!(got, r, "thread {}", thread);
        }
        prop_assert_eq!(gpu.download::<u32>(sum, 1)[0], told);
        BACKEND.context_destroy(gpu.ctx).unwrap();
    }
}
