//! What each instruction means: one file for each family, each opcode a closure on one lane's values.
//!
//! A spelling that is not listed, with all its modifiers, is refused when the module is loaded.

mod atomics;
mod bits;
mod cmp;
mod control;
mod convert;
mod flags;
mod float;
mod half;
mod integer;
mod loads;
mod mbarrier;
mod minmax;
mod moves;
mod narrow;
mod rounding;
pub mod special;
mod textures;
mod transcendental;
mod video;
mod warp;

pub use narrow::HALF;
use ptx::ast::{Instruction, ScalarType};

use crate::lower::{Lower, Reason, unsupported};

type Result<T> = std::result::Result<T, Reason>;

/// An opcode taken apart.
struct Spelling<'a> {
    instruction: &'a Instruction,
    name: &'a str,
    /// Modifiers that are not types.
    mods: Vec<&'a str>,
    types: Vec<ScalarType>,
}

impl<'a> Spelling<'a> {
    fn new(instruction: &'a Instruction) -> Self {
        let opcode = &instruction.opcode;
        let mods = opcode.modifiers().filter(|m| ScalarType::from_name(m).is_none()).collect();
        Self { instruction, name: opcode.mnemonic(), mods, types: opcode.types().collect() }
    }

    fn has(&self, modifier: &str) -> bool {
        self.mods.contains(&modifier)
    }

    /// Refuses a spelling with a modifier that is not among these.
    fn only(&self, known: &[&str]) -> Result<()> {
        if self.mods.iter().all(|m| known.contains(m)) { Ok(()) } else { Err(self.unsupported()) }
    }

    /// The only type.
    fn ty(&self) -> Result<ScalarType> {
        match self.types[..] {
            [ty] => Ok(ty),
            _ => Err(self.unsupported()),
        }
    }

    fn unsupported(&self) -> Reason {
        unsupported(self.instruction)
    }
}

/// Appends what an instruction means.
///
/// # Errors
/// When the device does not support its spelling, or its operands do not fit.
pub fn lower(cx: &mut Lower<'_>, instruction: &Instruction) -> Result<()> {
    let op = Spelling::new(instruction);
    match op.name {
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "neg" | "abs"
            if op.types.first().is_some_and(|ty| is_half(*ty)) =>
        {
            half::arithmetic(cx, &op)
        }
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "neg" | "abs"
            if op.types.first().is_some_and(|ty| is_float(*ty)) =>
        {
            float::arithmetic(cx, &op)
        }
        "add" | "sub" | "mad" | "addc" | "subc" | "madc" if op.has("cc") || op.name.ends_with('c') => {
            flags::lower(cx, &op)
        }
        "add" | "sub" | "mul" | "mad" | "div" | "rem" | "neg" | "abs" | "mul24" | "mad24" | "sad"
        | "dp4a" | "dp2a" => integer::lower(cx, &op),
        "min" | "max" => minmax::lower(cx, &op),
        "rcp" | "sqrt" | "copysign" => float::special(cx, &op),
        "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => transcendental::lower(cx, &op),
        "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "popc" | "clz" | "bfind"
        | "brev" | "bfe" | "bfi" | "bmsk" | "szext" | "fns" | "prmt" => bits::lower(cx, &op),
        "setp" | "set" | "selp" | "slct" | "testp" => cmp::lower(cx, &op),
        "mov" | "cvta" | "isspacep" => moves::lower(cx, &op),
        "cvt" => convert::lower(cx, &op),
        "ld" | "ldu" | "st" | "prefetch" | "prefetchu" | "membar" | "fence" | "cp" | "discard"
        | "applypriority" => loads::lower(cx, &op),
        "atom" | "red" => atomics::lower(cx, &op),
        "tex" | "tld4" | "txq" | "suq" | "suld" | "sust" => textures::lower(cx, &op),
        "mbarrier" => mbarrier::lower(cx, &op),
        "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "bar" | "barrier"
        | "pmevent" | "griddepcontrol" | "setmaxnreg" => control::lower(cx, &op),
        "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => warp::lower(cx, &op),
        "vabsdiff4" | "vabsdiff2" | "vadd4" | "vsub4" | "vadd2" | "vsub2" | "vmin4" | "vmax4" | "vmin2"
        | "vmax2" | "vavrg4" | "vavrg2" | "vset4" | "vset2" => video::lower(cx, &op),
        _ => Err(op.unsupported()),
    }
}

fn is_half(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F16 | ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2)
}

fn is_float(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F32 | ScalarType::F64)
}
