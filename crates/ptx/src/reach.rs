//! What memory a kernel reads and writes: the allocations that its parameters point into.
//!
//! Each register is followed to where its value comes from, whatever the order of the code: to the parameter buffer, to variables, to values of 64 bits and more out of memory, which may be
//! pointers to anything, or to numbers. What comes from no parameter and no variable is an address of anything. A pointer is taken to stay in its allocation as CUDA asks, and, if it is pieced
//! together, to begin where one of the pieces that were loaded does.

use crate::ast::{
    Address, AddressBase, Body, Function, Instruction, Operand, ParamId, RegId, SpecialRegister, Symbol,
};
use std::collections::BTreeSet;

/// Of more pointers than this a kernel is not followed.
const MOST: usize = 256;

/// What a kernel can reach.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reach {
    /// Offsets, in the parameter buffer, of pointers to what it may read.
    pub reads: BTreeSet<u64>,
    /// Of pointers to what it may write.
    pub writes: BTreeSet<u64>,
}

impl Reach {
    /// What a kernel can reach; `None` if it may be anything.
    #[must_use]
    pub fn of(kernel: &Function) -> Option<Self> {
        let (layout, end) = kernel.param_layout()?;
        let offsets: Vec<u64> = layout.iter().map(|param| param.offset).collect();
        let body = kernel.body.as_ref()?;
        let origins = Origins::of(body, &offsets, end);
        let mut reach = Self::default();
        for instruction in body.instructions() {
            reach.add(instruction, &origins)?;
        }
        Some(reach)
    }

    fn add(&mut self, instruction: &Instruction, origins: &Origins<'_>) -> Option<()> {
        let opcode = &instruction.opcode;
        let (reads, writes) = match opcode.mnemonic() {
            "ld" | "ldu" => (true, false),
            "st" => (false, true),
            "atom" | "red" => (true, true),
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "isspacep" | "cvta" | "mov" => {
                return Some(());
            }
            // Waiting and shared memory's barriers.
            "bar" | "barrier" | "membar" | "fence" | "mbarrier" => return Some(()),
            "ldmatrix" | "stmatrix" | "movmatrix" => return Some(()),
            "cp" => {
                let plain = opcode.has("async") && !opcode.has("bulk");
                let [_, Operand::Address(source), ..] = instruction.operands.as_slice() else {
                    return plain.then_some(());
                };
                return if plain { self.note(source, origins, (true, false)) } else { None };
            }
            "call" | "tex" | "tld4" | "suld" | "sust" | "sured" | "wmma" | "wgmma" | "tcgen05"
            | "multimem" => return None,
            // It computes.
            _ => return if instruction.operands.iter().any(is_memory) { None } else { Some(()) },
        };
        let elsewhere =
            ["shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "const"];
        if elsewhere.iter().any(|space| opcode.has(space)) {
            return Some(());
        }
        let address = instruction.operands.iter().find_map(|operand| match operand {
            Operand::Address(address) => Some(address),
            _ => None,
        })?;
        self.note(address, origins, (reads, writes))
    }

    fn note(
        &mut self,
        address: &Address,
        origins: &Origins<'_>,
        (reads, writes): (bool, bool),
    ) -> Option<()> {
        let base = match address.base {
            AddressBase::Reg(base) => base,
            AddressBase::Symbol(_) => return Some(()),
            AddressBase::Absolute => return None,
        };
        let Origin::Known(sources) = origins.registers.get(base.index())? else { return None };
        let offsets = sources.iter().filter_map(|source| match source {
            // Beyond the buffer's end no pointer reaches.
            Source::Word(offset) => Some(*offset).filter(|offset| offset.saturating_add(8) <= origins.end),
            Source::Variable | Source::Memory => None,
        });
        // Made of nothing but numbers, it may have come in a way that was not followed.
        if offsets.clone().next().is_none() && !sources.contains(&Source::Variable) {
            return None;
        }
        let sets = [(reads, &mut self.reads), (writes, &mut self.writes)];
        for (_, set) in sets.into_iter().filter(|(wanted, _)| *wanted) {
            set.extend(offsets.clone());
            if set.len() > MOST {
                return None;
            }
        }
        Some(())
    }
}

fn is_memory(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(_) | Operand::Indexed { .. } | Operand::Call(_))
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// Numbers, and these.
    Known(BTreeSet<Source>),
    /// Anything.
    Unknown,
}

/// Something that a value is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// The eight bytes at this offset in the parameter buffer, or some of them.
    Word(u64),
    /// The address of a variable, of shared or local memory, or of the driver's own.
    Variable,
    /// What was loaded from memory and is too short for a pointer.
    Memory,
}

/// Where the values of all registers come from.
struct Origins<'a> {
    /// Where each parameter begins in the parameter buffer.
    parameters: &'a [u64],
    /// Where the buffer ends.
    end: u64,
    registers: Vec<Origin>,
}

impl<'a> Origins<'a> {
    fn of(body: &Body, parameters: &'a [u64], end: u64) -> Self {
        let mut origins = Self { parameters, end, registers: vec![Origin::number(); body.registers.len()] };
        // Each round some register has come to have more origins, or all is known.
        while body.instructions().fold(false, |grew, instruction| origins.flow(instruction) | grew) {}
        origins
    }

    /// Whether something has become known.
    fn flow(&mut self, instruction: &Instruction) -> bool {
        let opcode = &instruction.opcode;
        let mnemonic = opcode.mnemonic();
        if mnemonic == "ld" && opcode.modifiers().any(|each| each.starts_with("param")) {
            return self.load_parameter(instruction);
        }
        let wide = opcode.types().any(|ty| ty.size() >= 8);
        let loads = matches!(mnemonic, "ld" | "ldu" | "ldmatrix" | "atom" | "call" | "tex" | "suld");
        let (mut from, mut to, mut read) = (Origin::number(), Vec::new(), 0);
        instruction.for_each_register(|register, access| {
            if access.writes() {
                to.push(register);
            }
            if access.reads() && !loads {
                read += 1;
                from.join(self.registers.get(register.index()).unwrap_or(&Origin::Unknown));
            }
        });
        if loads {
            from = if wide || mnemonic == "call" { Origin::Unknown } else { Origin::from([Source::Memory]) };
        }
        let pieces_together = wide && read > 1 && matches!(mnemonic, "mov" | "or" | "xor" | "bfi");
        if pieces_together && from.has(Source::Memory) {
            // Perhaps a pointer.
            from = Origin::Unknown;
        }
        let spaces = ["shared", "shared::cta", "shared::cluster", "local", "const"];
        let from_space =
            mnemonic == "cvta" && !opcode.has("to") && spaces.iter().any(|space| opcode.has(space));
        if from_space || matches!(mnemonic, "mapa" | "alloca") {
            from.join(&Origin::from([Source::Variable]));
        }
        for operand in instruction.operands.iter().skip(1) {
            match operand {
                // A pointer to the buffer itself, from which anything may be loaded.
                Operand::Symbol(Symbol::Param(_) | Symbol::Return(_), _) => from = Origin::Unknown,
                // These hold where the driver's own memory for a grid's synchronization is.
                Operand::Symbol(..) | Operand::Special(SpecialRegister::EnvReg(_)) => {
                    from.join(&Origin::from([Source::Variable]));
                }
                _ => {}
            }
        }
        to.into_iter().fold(false, |grew, register| self.join(register, &from) | grew)
    }

    /// Whether something has become known of the registers that an `ld.param` loads.
    fn load_parameter(&mut self, instruction: &Instruction) -> bool {
        let to = match instruction.operands.first() {
            Some(Operand::Vector(elements)) => elements.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        (0..).zip(to).fold(false, |grew, (element, operand)| {
            let Operand::Reg(register) = operand else { return grew };
            let from = self.parameter(instruction, element);
            self.join(*register, &from) | grew
        })
    }

    fn join(&mut self, register: RegId, from: &Origin) -> bool {
        self.registers.get_mut(register.index()).is_some_and(|known| known.join(from))
    }

    /// The element with that number of those that an `ld.param` loads.
    fn parameter(&self, instruction: &Instruction, element: u64) -> Origin {
        let Some(Operand::Address(Address {
            base: AddressBase::Symbol(Symbol::Param(ParamId(id))),
            offset,
            ..
        })) = instruction.operands.get(1)
        else {
            return Origin::Unknown;
        };
        let base = self.parameters.get(*id as usize);
        let Some(base) = base.and_then(|base| base.checked_add_signed(*offset)) else {
            return Origin::Unknown;
        };
        let Some(size) = instruction.opcode.types().map(|ty| ty.size()).max() else {
            return Origin::Unknown;
        };
        let at = base.saturating_add(size.saturating_mul(element));
        if size >= 8 {
            return Origin::from([Source::Word(at), Source::Word(at.saturating_add(size - 8))]);
        }
        // Perhaps a piece of a pointer: of one that is aligned, or, of one that is not, the first.
        Origin::from([Source::Word(at), Source::Word(at - at % 8)])
    }
}

impl<const N: usize> From<[Source; N]> for Origin {
    fn from(sources: [Source; N]) -> Self {
        Self::Known(BTreeSet::from(sources))
    }
}

impl Origin {
    fn number() -> Self {
        Self::Known(BTreeSet::new())
    }

    fn has(&self, source: Source) -> bool {
        matches!(self, Self::Known(sources) if sources.contains(&source))
    }

    /// Whether it has become more.
    fn join(&mut self, other: &Self) -> bool {
        match (&mut *self, other) {
            (Self::Unknown, _) => false,
            (Self::Known(known), Self::Known(more)) => {
                let before = known.len();
                known.extend(more);
                let grew = known.len() > before;
                // Besides words there are two sources.
                if known.len() > MOST + 2 {
                    *self = Self::Unknown;
                }
                grew
            }
            (Self::Known(_), Self::Unknown) => {
                *self = Self::Unknown;
                true
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn reach(params: &str, code: &str) -> Option<Reach> {
        let text = format!(
            ".version 8.3\n.target sm_80\n.address_size 64\n.shared .align 8 .b8 tile[64];\n.visible .entry k({params})\n{{\n.reg .b128 %rq<3>;\n.reg .b64 %rd<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<9>;\n.reg .f32 %f<9>;\n{code}\nret;\n}}\n"
        );
        let module = crate::parse(&text).unwrap();
        Reach::of(module.kernels().next().unwrap())
    }

    const TWO: &str = ".param .u64 a, .param .u64 b, .param .u32 n";

    #[test]
    fn one_is_read_and_the_other_written() {
        let code = "ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nld.param.u32 %r1, [n];\ncvta.to.global.u64 %rd3, %rd1;\n\
                    mul.wide.s32 %rd4, %r1, 4;\nadd.s64 %rd5, %rd3, %rd4;\nld.global.f32 %f1, [%rd5];\nadd.s64 %rd6, %rd2, %rd4;\nst.global.f32 [%rd6+4], %f1;";
        let reach = reach(TWO, code).unwrap();
        assert_eq!((reach.reads, reach.writes), (BTreeSet::from([0]), BTreeSet::from([8])));
    }

    #[test]
    fn an_index_out_of_memory_is_no_pointer_but_a_wide_value_may_be_one() {
        let load = |ty: &str, register: &str, widen: &str| {
            format!(
                "ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nld.global.{ty} {register}, [%rd1];\n{widen}\nadd.s64 %rd5, %rd2, %rd4;\nred.global.add.u32 [%rd5], 1;"
            )
        };
        let index = reach(TWO, &load("u32", "%r1", "mul.wide.u32 %rd4, %r1, 4;")).unwrap();
        assert_eq!((index.reads, index.writes), (BTreeSet::from([0, 8]), BTreeSet::from([8])));
        assert_eq!(reach(TWO, &load("u64", "%rd3", "mov.b64 %rd4, %rd3;")), None);
    }

    #[test]
    fn pointers_in_structures_and_loops_are_followed() {
        let code = "ld.param.v2.u64 {%rd1, %rd2}, [s+8];\nmov.b64 %rd3, %rd1;\nagain:\nld.global.u32 %r1, [%rd3];\nadd.s64 %rd3, %rd3, 4;\nst.global.u32 [%rd2], %r1;\nbra again;";
        let reach = reach(".param .align 8 .b8 s[24]", code).unwrap();
        assert_eq!((reach.reads, reach.writes), (BTreeSet::from([8]), BTreeSet::from([16])));
    }

    #[test]
    fn shared_memory_is_of_no_account() {
        let code =
            "ld.param.u32 %r1, [n];\nst.shared.u32 [%r1], %r1;\nbar.sync 0;\nld.shared.u32 %r2, [%r1];";
        assert_eq!(reach(TWO, code), Some(Reach::default()));
    }

    #[test]
    fn wider_values_hold_pointers_too() {
        for space in ["global", "shared"] {
            let load = format!(
                "ld.param.u64 %rd1, [a];\nld.{space}.b128 %rq1, [%rd1];\nmov.b128 {{%rd2, %rd3}}, %rq1;\nld.global.f32 %f1, [%rd3];"
            );
            assert_eq!(reach(TWO, &load), None, "{space}");
        }
        let parameters = "ld.param.b128 %rq1, [s];\nmov.b128 {%rd1, %rd2}, %rq1;\nld.global.f32 %f1, [%rd2];";
        let reach = reach(".param .align 16 .b8 s[16]", parameters).unwrap();
        assert_eq!(reach.reads, BTreeSet::from([0, 8]));
    }

    #[test]
    fn a_pointer_may_be_loaded_in_pieces() {
        let words =
            "ld.param.v2.u32 {%r1, %r2}, [s+4];\nmov.b64 %rd1, {%r1, %r2};\nld.global.f32 %f1, [%rd1];";
        let packed = reach(".param .align 4 .b8 s[12]", words).unwrap();
        assert_eq!(packed.reads, BTreeSet::from([0, 4]));
        let bytes: String = (0..8)
            .map(|byte| {
                let shift = 8 * byte;
                format!(
                    "ld.param.u8 %rs1, [s+{}];\ncvt.u64.u16 %rd1, %rs1;\nshl.b64 %rd1, %rd1, {shift};\nor.b64 %rd2, %rd2, %rd1;\n",
                    byte + 3
                )
            })
            .collect();
        let packed =
            reach(".param .align 1 .b8 s[11]", &format!("{bytes}st.global.f32 [%rd2], %f1;")).unwrap();
        assert!(packed.writes.contains(&3) && packed.reads.is_empty());
        let second = "ld.param.v2.u64 {_, %rd2}, [s];\nld.global.f32 %f1, [%rd2];";
        assert_eq!(reach(".param .align 16 .b8 s[16]", second).unwrap().reads, BTreeSet::from([8]));
    }

    #[test]
    fn an_address_out_of_nowhere_may_be_anything() {
        for code in [
            "mov.u64 %rd1, 4096;\nld.global.f32 %f1, [%rd1];",
            "ld.global.f32 %f1, [4096];",
            "ld.param.u32 %r1, [n];\nmul.wide.u32 %rd1, %r1, 4;\nld.global.f32 %f1, [%rd1];",
            "ld.shared.v2.u32 {%r1, %r2}, [tile];\nmov.b64 %rd1, {%r1, %r2};\nld.param.u32 %r3, [n];\nmad.wide.u32 %rd2, %r3, 4, %rd1;\nst.global.f32 [%rd2], %f1;",
        ] {
            assert_eq!(reach(TWO, code), None, "{code}");
        }
        let shared =
            "mov.u64 %rd1, tile;\ncvta.shared.u64 %rd2, %rd1;\nadd.s64 %rd2, %rd2, 8;\nst.u32 [%rd2], %r1;";
        let grid = "mov.u32 %r1, %envreg1;\nmov.u32 %r2, %envreg2;\nmov.b64 %rd1, {%r2, %r1};\natom.add.u32 %r3, [%rd1], 1;";
        for code in [shared, grid] {
            assert_eq!(reach(TWO, code), Some(Reach::default()), "{code}");
        }
    }
}
