//! What the parser makes of real and hand-written PTX, and that printing loses nothing.
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::{FILES, without_lines};
use ptx::{
    ast::{
        AddressBase, Attribute, CallTargets, Callee, Immediate, Instruction, Linkage, Module, Operand,
        Relocation, ScalarType, Space, SpecialRegister, Statement, Symbol,
    },
    parse,
};

fn file(name: &str) -> Module {
    parse(FILES.iter().find(|(file, _)| *file == name).unwrap().1).unwrap()
}

fn instructions(module: &Module, function: &str) -> Vec<Instruction> {
    let body = module.function(function).unwrap().body.as_ref().unwrap();
    let instructions = body.statements.iter().filter_map(|statement| match statement {
        Statement::Instruction(instruction) => Some(instruction.clone()),
        _ => None,
    });
    instructions.collect()
}

#[test]
fn printing_gives_back_the_tree() {
    for (name, text) in FILES {
        let module = without_lines(parse(text).unwrap_or_else(|error| panic!("{name}: {error}")));
        let printed = module.to_string();
        let again = parse(&printed).unwrap_or_else(|error| panic!("{name}, printed: {error}\n{printed}"));
        assert_eq!(without_lines(again), module, "{name}");
    }
}

#[test]
fn heads() {
    let module = file("syntax");
    assert_eq!((module.version.major, module.version.minor), (8, 3));
    assert_eq!((module.target.sm(), module.target.options[0].as_str()), (Some(80), "texmode_independent"));
    assert_eq!(file("sm90").target.sm(), Some(90));
    assert_eq!(module.address_size, 64);

    let kernel = module.function("operands").unwrap();
    assert_eq!(kernel.performance.max_ntid, Some([256, 1, 1]));
    assert_eq!(kernel.performance.min_ncta_per_sm, Some(2));
    let (layout, size) = kernel.param_layout().unwrap();
    assert_eq!(layout.iter().map(|p| (p.offset, p.size)).collect::<Vec<_>>(), [(0, 8), (8, 24), (32, 4)]);
    assert_eq!(size, 36);
    assert_eq!(kernel.params[0].pointee.unwrap().align, Some(16));
    assert_eq!(module.kernels().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["operands", "unbounded"]);

    let hopper = file("sm90");
    let hopper = hopper.function("hopper").unwrap();
    assert_eq!(hopper.performance.cluster.req_ncta, Some([2, 1, 1]));
    assert_eq!(hopper.param_layout().unwrap().1, 136);

    let dynamic = module.variable("dynamic").unwrap();
    assert_eq!((dynamic.linkage, dynamic.space), (Linkage::Extern, Space::Shared));
    assert_eq!((dynamic.size(), dynamic.alignment()), (Some(0), 16));
    assert_eq!(module.variable("image").unwrap().ty, ScalarType::Texref);
}

#[test]
fn operands() {
    let module = file("syntax");
    let body = module.function("operands").unwrap().body.clone().unwrap();
    let all = instructions(&module, "operands");
    let find = |spelling: &str, nth: usize| {
        all.iter().filter(|i| i.opcode.as_str() == spelling).nth(nth).unwrap().operands.clone()
    };
    let name_of = |operand: &Operand| match operand {
        Operand::Reg(reg) => body.register(*reg).name.as_str().to_owned(),
        other => panic!("{other:?} is no register"),
    };

    assert_eq!(find("mov.u32", 0)[1], Operand::Special(SpecialRegister::from_name("%tid.x").unwrap()));
    assert_eq!(find("mov.u32", 1)[1], Operand::Imm(Immediate::Int(32)));
    assert_eq!(find("mov.u32", 2)[1], Operand::Imm(Immediate::Int(16 | (3 ^ !0))));
    assert_eq!(find("mov.u64", 1)[1], Operand::Symbol(Symbol::Module("table".into()), 8));
    assert_eq!(find("mov.f32", 0)[1], Operand::Imm(Immediate::F32(1f32.to_bits())));
    assert_eq!(find("mov.f32", 1)[1], Operand::Imm(Immediate::F64(1.5f64.to_bits())));
    let Operand::Vector(halves) = &find("mov.b64", 2)[0] else { panic!() };
    assert_eq!(halves[0], Operand::Sink);

    // A vector register is its components.
    let Operand::Vector(quad) = &find("ld.global.v4.f32", 0)[0] else { panic!() };
    assert_eq!(quad.iter().map(name_of).collect::<Vec<_>>(), ["quad$x", "quad$y", "quad$z", "quad$w"]);
    assert_eq!(find("add.f32", 0)[2], quad[3]);
    let Operand::Address(below) = &find("ld.global.v2.u32", 0)[1] else { panic!() };
    assert_eq!(below.offset, -16);

    let Operand::Pair(pair) = &find("setp.lt.and.s32", 0)[0] else { panic!() };
    assert_eq!((name_of(&pair.0), name_of(&pair.1)), ("p1".into(), "p2".into()));
    assert!(matches!(find("setp.lt.and.s32", 0)[3], Operand::Not(_)));
    let Operand::Indexed { base, sampler, coordinates } = &find("tex.2d.v4.f32.f32", 0)[1] else { panic!() };
    assert_eq!(base.base, AddressBase::Symbol(Symbol::Module("image".into())));
    assert_eq!(sampler.as_ref().unwrap().base, AddressBase::Symbol(Symbol::Module("nearest".into())));
    assert_eq!(coordinates.len(), 2);
    let Operand::Part(_, selector) = &find("vabsdiff4.u32.u32.u32.add", 0)[2] else { panic!() };
    assert_eq!(selector.as_str(), "b7654");

    let callees: Vec<_> = all
        .iter()
        .filter_map(|i| match i.operands.as_slice() {
            [Operand::Call(call)] => Some(call.callee.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(callees[0], Callee::Function("twice".into()));
    assert!(matches!(callees[1], Callee::Indirect(_, CallTargets::Prototype(_))));
    assert!(matches!(callees[2], Callee::Indirect(_, CallTargets::Table(_))));
    assert_eq!(body.branch_tables[0].targets.len(), 3);
}

#[test]
fn names_of_nested_scopes_are_made_unique() {
    let module = file("syntax");
    let body = module.function("operands").unwrap().body.clone().unwrap();
    let registers: Vec<_> = body.registers.iter().map(|r| r.name.as_str()).collect();
    for name in ["one", "one$1", "one$2"] {
        assert_eq!(registers.iter().filter(|r| **r == name).count(), 1, "{name} in {registers:?}");
    }
    assert!(!registers.contains(&"%r0"), "an unused register came into being");
    assert_eq!(body.labels.iter().map(|l| l.as_str()).filter(|l| l.starts_with("LOOP")).count(), 2);
    // Each branch goes to the label of its own scope.
    let mut last = None;
    for statement in &body.statements {
        match statement {
            Statement::Label(label) => last = Some(*label),
            Statement::Instruction(i) if i.opcode.as_str().starts_with("bra") && i.guard.is_some() => {
                if let [Operand::Label(target)] = i.operands[..]
                    && body.label(target).starts_with("LOOP")
                {
                    assert_eq!(Some(target), last);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn initial_values_are_bytes_and_relocations() {
    let module = file("initialisers");
    let init = |name: &str| module.variable(name).unwrap().init.clone().unwrap();
    assert_eq!(init("scalar").data, 0x1234_5678u32.to_le_bytes());
    assert_eq!(init("signed").data, [255, 128, 127]);
    assert_eq!(init("grid").data, [1, 0, 2, 0, 0, 0, 4, 0]);
    assert_eq!(init("cube").data, [1, 2, 3, 0, 5]);
    assert_eq!(module.variable("cube").unwrap().size(), Some(8));
    assert_eq!(module.variable("sized").unwrap().dims, [Some(3)]);
    assert_eq!(init("quad").data[4..8], 2f32.to_bits().to_le_bytes());
    assert_eq!(init("doubles").data[8..], (-0.25f64).to_bits().to_le_bytes());
    assert_eq!(init("computed").data, ((1u64 << 40) + 42).to_le_bytes());
    assert_eq!(
        init("addresses").relocations,
        [
            Relocation { offset: 0, symbol: "plain".into(), addend: 0, generic: true, mask: None },
            Relocation { offset: 8, symbol: "grid".into(), addend: 4, generic: true, mask: None },
            Relocation { offset: 16, symbol: "grid".into(), addend: 2, generic: false, mask: None },
        ]
    );
    assert_eq!(init("addresses").data.len(), 32);
    assert_eq!(init("packed").relocations[1].mask, Some(0xFF00));
    assert_eq!(init("packed").data[0], 7);
    assert!(module.variable("managed").unwrap().is_managed());
    assert_eq!(file("sm90").variable("everywhere").unwrap().attributes, [Attribute::Unified(19, 95)]);
}

#[test]
fn what_nvcc_makes_of_cuda() {
    let module = file("kernels");
    let kernels: Vec<_> = module.kernels().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(kernels.len(), 3);
    let tally = module.function("_Z5tally4PairPKiii").unwrap();
    let (layout, size) = tally.param_layout().unwrap();
    assert_eq!(
        layout.iter().map(|p| (p.offset, p.size)).collect::<Vec<_>>(),
        [(0, 16), (16, 8), (24, 4), (28, 4)]
    );
    assert_eq!(size, 32);
    let steps = module.variable("steps").unwrap().init.clone().unwrap();
    assert_eq!(
        steps.relocations.iter().map(|r| r.symbol.as_str()).collect::<Vec<_>>(),
        ["_Z8plus_onei", "_Z5twicei"]
    );
    assert!(module.variable("shared_with_host").unwrap().is_managed());
    assert!(module.function("malloc").unwrap().body.is_none());
    assert!(file("kernels-debug").target.options.iter().any(|option| &**option == "debug"));
}
