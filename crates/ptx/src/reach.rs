//! What memory a kernel reads and writes: the allocations that its parameters point into.
//!
//! Each register is followed to where its value comes from, whatever the order of the code: to words of the parameter buffer, to 64-bit values out of memory, which may be pointers to anything,
//! or to numbers. A pointer is taken to be loaded from memory whole, and to stay in its allocation as CUDA asks.

use crate::ast::{
    Address, AddressBase, Body, Function, Instruction, Operand, ParamId, RegId, Statement, Symbol,
};
use std::collections::BTreeSet;

/// Of more pointers than this a kernel is not followed.
const MOST: usize = 64;

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
        let (layout, _) = kernel.param_layout()?;
        let offsets: Vec<u64> = layout.iter().map(|param| param.offset).collect();
        let body = kernel.body.as_ref()?;
        let origins = Origins::of(body, &offsets);
        let mut reach = Self::default();
        for instruction in instructions(body) {
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
        let AddressBase::Reg(base) = address.base else { return Some(()) };
        let Origin::Parameters(offsets) = origins.registers.get(base.index())? else { return None };
        let sets = [(reads, &mut self.reads), (writes, &mut self.writes)];
        for (_, set) in sets.into_iter().filter(|(wanted, _)| *wanted) {
            set.extend(offsets);
            if set.len() > MOST {
                return None;
            }
        }
        Some(())
    }
}

fn instructions(body: &Body) -> impl Iterator<Item = &Instruction> {
    body.statements.iter().filter_map(|statement| match statement {
        Statement::Instruction(instruction) => Some(instruction),
        _ => None,
    })
}

fn is_memory(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(_) | Operand::Indexed { .. } | Operand::Call(_))
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// Numbers, and words of the parameter buffer at these offsets.
    Parameters(BTreeSet<u64>),
    /// Anything.
    Unknown,
}

/// Where the values of all registers come from.
struct Origins<'a> {
    parameters: &'a [u64],
    registers: Vec<Origin>,
}

impl<'a> Origins<'a> {
    fn of(body: &Body, parameters: &'a [u64]) -> Self {
        let mut origins =
            Self { parameters, registers: vec![Origin::Parameters(BTreeSet::new()); body.registers.len()] };
        // Each round some register has come to have more origins, or all is known.
        while instructions(body).fold(false, |grew, instruction| origins.flow(instruction) | grew) {}
        origins
    }

    /// Whether something has become known.
    fn flow(&mut self, instruction: &Instruction) -> bool {
        let opcode = &instruction.opcode;
        let (mut from, mut to) = (Origin::Parameters(BTreeSet::new()), Vec::new());
        let wide = opcode.types().any(|ty| ty.size() == 8);
        let loads = matches!(opcode.mnemonic(), "ld" | "ldu" | "atom" | "call" | "tex" | "suld");
        let of_parameters =
            opcode.mnemonic() == "ld" && opcode.modifiers().any(|each| each.starts_with("param"));
        instruction.for_each_register(|register, access| {
            if access.writes() {
                to.push(register);
            }
            if access.reads() && !loads {
                from.join(self.registers.get(register.index()).unwrap_or(&Origin::Unknown));
            }
        });
        if of_parameters {
            return self.load_parameter(instruction, &to);
        } else if loads && (wide || opcode.mnemonic() == "call") {
            from = Origin::Unknown;
        } else if matches!(instruction.operands.get(1), Some(Operand::Symbol(Symbol::Param(_), _))) {
            // A pointer to the buffer itself, from which anything may be loaded.
            from = Origin::Unknown;
        }
        to.into_iter().fold(false, |grew, register| self.join(register, &from) | grew)
    }

    /// Whether something has become known of the registers that an `ld.param` loads, a word each.
    fn load_parameter(&mut self, instruction: &Instruction, to: &[RegId]) -> bool {
        (0..).zip(to).fold(false, |grew, (word, register)| {
            let from = self.parameter(instruction, word);
            self.join(*register, &from) | grew
        })
    }

    fn join(&mut self, register: RegId, from: &Origin) -> bool {
        self.registers.get_mut(register.index()).is_some_and(|known| known.join(from))
    }

    /// The word with that number of those that an `ld.param` loads.
    fn parameter(&self, instruction: &Instruction, word: u64) -> Origin {
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
        let size = instruction.opcode.types().map(|ty| ty.size()).max().unwrap_or(8);
        // A number of 32 bits is no pointer.
        let is_word = size == 8;
        Origin::Parameters(is_word.then(|| base.saturating_add(8 * word)).into_iter().collect())
    }
}

impl Origin {
    /// Whether it has become more.
    fn join(&mut self, other: &Self) -> bool {
        match (&mut *self, other) {
            (Self::Unknown, _) => false,
            (Self::Parameters(known), Self::Parameters(more)) => {
                let before = known.len();
                known.extend(more);
                known.len() > before
            }
            (Self::Parameters(_), Self::Unknown) => {
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
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({params})\n{{\n.reg .b64 %rd<9>;\n.reg .b32 %r<9>;\n.reg .f32 %f<9>;\n{code}\nret;\n}}\n"
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
}
