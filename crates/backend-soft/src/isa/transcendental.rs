//! Approximations. Hardware uses tables with 20-odd good bits; here the result is computed in double precision and rounded, so
//! it is within the error that the PTX ISA documents, but not bit-identical to a GPU's.

use ptx::ast::ScalarType::*;

use super::rounding::Float;
use super::{Result, Spelling};
use crate::exec::{Compute, un};
use crate::lower::Lower;

/// A handler for a function of one single-precision value, by way of double precision.
macro_rules! approximated {
    ($ftz:expr; |$arg:ident| $value:expr) => {
        if $ftz {
            un(|a: f32| {
                let $arg = f64::from(a.flush());
                ($value as f32).canonical().flush()
            })
        } else {
            un(|a: f32| {
                let $arg = f64::from(a);
                ($value as f32).canonical()
            })
        }
    };
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["approx", "ftz"])?;
    let (ty, ftz) = (op.ty()?, op.has("ftz"));
    if !op.has("approx") {
        return Err(op.unsupported());
    }
    let handler: Compute = match (op.name, ty) {
        ("rcp", F32) => approximated!(ftz; |a| (1.0 / a)),
        ("sqrt", F32) => approximated!(ftz; |a| a.sqrt()),
        ("rsqrt", F32) => approximated!(ftz; |a| (1.0 / a.sqrt())),
        ("sin", F32) => approximated!(ftz; |a| a.sin()),
        ("cos", F32) => approximated!(ftz; |a| a.cos()),
        ("lg2", F32) => approximated!(ftz; |a| a.log2()),
        ("ex2", F32) => approximated!(ftz; |a| a.exp2()),
        ("tanh", F32) => approximated!(ftz; |a| a.tanh()),
        // What flushes is the hardware's table: only the high words of argument and result count.
        ("rcp", F64) if ftz => un(|a: f64| high(1.0 / high(a))),
        ("rsqrt", F64) if ftz => un(|a: f64| high(1.0 / high(a).sqrt())),
        ("rsqrt", F64) => un(rsqrt),
        ("ex2", F16) => un(|a: crate::exec::Half| super::half::f16(a.float().exp2())),
        ("tanh", F16) => un(|a: crate::exec::Half| super::half::f16(a.float().tanh())),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty])
}

/// The value with its low word zero, and subnormals flushed.
#[inline(always)]
fn high(value: f64) -> f64 {
    let bits = value.to_bits() & 0xffff_ffff_0000_0000;
    if bits & 0x7ff0_0000_0000_0000 == 0 { f64::from_bits(bits & 1 << 63) } else { f64::from_bits(bits) }
}

/// `1 / √value`, but for the last place: the compiler's `rsqrt()`, of which CUDA documents an error of at most one unit there.
fn rsqrt(value: f64) -> f64 {
    let root = 1.0 / value.sqrt();
    if !root.is_normal() {
        return root;
    }
    // Two roundings may be off by more than one unit; a step of Newton's on what is exactly left over ends that.
    let product = value * root;
    let left = (-product).mul_add(root, 1.0) - value.mul_add(root, -product) * root;
    root.mul_add(left * 0.5, root)
}
